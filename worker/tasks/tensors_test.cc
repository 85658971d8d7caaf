#include "worker/tasks/tensors.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "models/inventory_build.h"
#include "testing/temporary_folder.h"

namespace muster::tasks {
namespace {

constexpr uint64_t kSamples = 12;

// "place" [12], int64, and "half" [12, 1], fp32: sample k has k and k / 2.
std::string PlacesFile() {
  std::string data;
  for (int64_t k = 0; k < static_cast<int64_t>(kSamples); ++k) {
    data.append(reinterpret_cast<const char*>(&k), sizeof k);
  }
  for (uint64_t k = 0; k < kSamples; ++k) {
    const float half = static_cast<float>(k) / 2;
    data.append(reinterpret_cast<const char*>(&half), sizeof half);
  }
  const std::string header = R"({"place":{"dtype":"I64","shape":[12],"data_offsets":[0,96]},)"
                             R"("half":{"dtype":"F32","shape":[12,1],"data_offsets":[96,144]}})";
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + header + data;
}

Inventory PlacesInventory(uint64_t bound) {
  Inventory inventory;
  muster::Task& task = *inventory.mutable_task();
  task.set_name(models::kTensors);
  BatchTensor& place = models::AddBatchTensor(task, "place", BatchTensor::INT64, {});
  place.set_bound(bound);
  models::AddBatchTensor(task, "half", BatchTensor::FLOAT, {1});
  return inventory;
}

class TensorsTaskTest : public ::testing::Test {
 protected:
  std::unique_ptr<Samples> Open(uint64_t seed, bool evaluation) {
    Data data;
    data.set_order(DATA_ORDER_SHUFFLED);
    auto opened =
        TaskOf(inventory_)
            .value()
            ->Open(inventory_,
                   {.field = "data.tensors", .path = path_, .data = data, .seed = seed, .evaluation = evaluation});
    EXPECT_TRUE(opened.ok()) << opened.status();
    return *std::move(opened);
  }
  // The places of the samples, which their halves must follow.
  static std::vector<int64_t> Places(const Samples& samples, uint64_t first, uint64_t count) {
    const engine::Batch batch = samples.Read(first, count).value();
    EXPECT_EQ(batch.samples, count);
    const at::Tensor place = batch.tensors["place"], half = batch.tensors["half"];
    EXPECT_EQ(place.sizes(), (std::vector<int64_t>{static_cast<int64_t>(count)}));
    EXPECT_EQ(half.sizes(), (std::vector<int64_t>{static_cast<int64_t>(count), 1}));
    std::vector<int64_t> places(place.const_data_ptr<int64_t>(), place.const_data_ptr<int64_t>() + count);
    for (size_t i = 0; i < count; ++i) {
      EXPECT_EQ(half.const_data_ptr<float>()[i], static_cast<float>(places[i]) / 2);
    }
    return places;
  }

  const TemporaryFolder folder_;
  const std::string path_ = folder_.Write("places.safetensors", PlacesFile());
  const Inventory inventory_ = PlacesInventory(kSamples);
};

TEST_F(TensorsTaskTest, AnEpochTakesEachSampleOnceInAnOrderOfItsOwn) {
  const auto samples = Open(5, /*evaluation=*/false);
  EXPECT_EQ(samples->samples_per_epoch(), kSamples);
  std::vector<int64_t> all(kSamples);
  std::iota(all.begin(), all.end(), 0);
  const std::vector<int64_t> first = Places(*samples, 0, kSamples), second = Places(*samples, kSamples, kSamples);
  for (std::vector<int64_t> epoch : {first, second}) {
    EXPECT_NE(epoch, all);
    std::sort(epoch.begin(), epoch.end());
    EXPECT_EQ(epoch, all);
  }
  EXPECT_NE(first, second);
  EXPECT_NE(Places(*Open(6, false), 0, kSamples), first);
  // Any part of it is the same, which a resumed or resized job reads.
  EXPECT_EQ(Places(*samples, 5, 3), std::vector<int64_t>(first.begin() + 5, first.begin() + 8));
  std::vector<int64_t> across(first.begin() + 10, first.end());
  across.insert(across.end(), second.begin(), second.begin() + 2);
  EXPECT_EQ(Places(*samples, 10, 4), across);
}

TEST_F(TensorsTaskTest, AnEvaluationReadsInTheFilesOrder) {
  EXPECT_EQ(Places(*Open(5, /*evaluation=*/true), 2, 4), (std::vector<int64_t>{2, 3, 4, 5}));
  EXPECT_TRUE(Places(*Open(5, true), 2, 0).empty());
}

TEST_F(TensorsTaskTest, MessagesBeginWithTheField) {
  const Inventory fewer = PlacesInventory(kSamples - 1);
  const absl::Status status = TensorsTask().Open(fewer, {.field = "data.validation", .path = path_}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_TRUE(absl::StartsWith(status.message(),
                               absl::StrCat("data.validation: ", path_, ": the tensor \"place\" has 11 in sample 11")))
      << status;
  EXPECT_TRUE(
      absl::StartsWith(TensorsTask().Open(inventory_, {.field = "data.tensors", .path = "/none"}).status().message(),
                       "data.tensors: /none"));
}

}  // namespace
}  // namespace muster::tasks
