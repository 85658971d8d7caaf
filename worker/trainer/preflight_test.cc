#include "worker/trainer/preflight.h"

#include <ATen/core/Tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "worker/collectives/threads.h"

namespace muster::trainer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A network that changes one number on its way.
class CorruptGroup final : public collectives::Group {
 public:
  explicit CorruptGroup(std::unique_ptr<collectives::Group> group) : group_(std::move(group)) {}
  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  std::unique_ptr<collectives::Work> AllReduce(at::Tensor values) override {
    std::unique_ptr<collectives::Work> work = group_->AllReduce(values);
    EXPECT_TRUE(work->Wait().ok());
    values.view({-1})[17] += 1;
    return work;
  }
  std::unique_ptr<collectives::Work> AllGather(std::vector<at::Tensor> wholes) override {
    return group_->AllGather(std::move(wholes));
  }
  std::unique_ptr<collectives::Work> ReduceScatter(std::vector<at::Tensor> wholes) override {
    return group_->ReduceScatter(std::move(wholes));
  }
  std::unique_ptr<collectives::Work> Broadcast(at::Tensor values, int root) override {
    return group_->Broadcast(std::move(values), root);
  }
  std::unique_ptr<collectives::Work> BroadcastShares(std::vector<collectives::RankShare> shares) override {
    return group_->BroadcastShares(std::move(shares));
  }
  std::unique_ptr<collectives::Work> ReduceShares(std::vector<collectives::RankShare> shares) override {
    return group_->ReduceShares(std::move(shares));
  }
  std::unique_ptr<collectives::Work> Send(at::Tensor values, int to) override {
    return group_->Send(std::move(values), to);
  }
  std::unique_ptr<collectives::Work> Recv(at::Tensor values, int from) override {
    return group_->Recv(std::move(values), from);
  }
  absl::Status Barrier() override { return group_->Barrier(); }
  absl::Status Health() override { return group_->Health(); }

 private:
  const std::unique_ptr<collectives::Group> group_;
};

std::vector<PreflightFinding> FindingsOf(const PreflightOptions& options, std::vector<std::string>* begun = nullptr) {
  std::vector<PreflightFinding> found;
  RunPreflight(
      options,
      [&](const std::string& name) {
        if (begun != nullptr) begun->push_back(name);
      },
      [&](const PreflightFinding& finding) { found.push_back(finding); });
  return found;
}

TEST(TrainerPreflight, ThisMachinePasses) {
  std::vector<std::string> begun;
  const std::vector<PreflightFinding> found = FindingsOf({}, &begun);
  EXPECT_THAT(begun, ElementsAre("cpu", "collective"));
  ASSERT_EQ(found.size(), 2u);
  for (const PreflightFinding& finding : found) EXPECT_TRUE(finding.status.ok()) << finding.status;
  EXPECT_GT(found[0].flops_per_second, 1e8) << "any CPU of this century";
}

// As where the host's name leads to another machine, or the firewall drops what it sends to itself.
TEST(TrainerPreflight, AnAddressThatIsNotOfThisMachineIsFound) {
  const std::vector<PreflightFinding> found = FindingsOf({.host = "203.0.113.7"});
  ASSERT_EQ(found.size(), 2u);
  EXPECT_TRUE(found[0].status.ok());
  EXPECT_THAT(std::string(found[1].status.message()), HasSubstr("203.0.113.7"));
}

TEST(TrainerPreflight, ADeviceThatIsNotThereIsAFindingAndNoCrash) {
  const std::vector<PreflightFinding> found = FindingsOf({.cuda = true, .slots = {3}});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].name, "device 3");
  EXPECT_FALSE(found[0].status.ok());
  EXPECT_THAT(FoundLine(found[0]), ::testing::StartsWith("fail\tdevice 3\t"));
}

TEST(TrainerPreflight, AWrongSumIsFound) {
  auto groups = collectives::MakeThreads(2);
  const auto make = [&](int rank) -> absl::StatusOr<std::unique_ptr<collectives::Group>> {
    std::unique_ptr<collectives::Group> group = std::move(groups[static_cast<size_t>(rank)]);
    if (rank == 0) return group;
    return std::make_unique<CorruptGroup>(std::move(group));
  };
  const absl::Status status = CheckCollective(2, make, false);
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 got a wrong sum in 1 of 65536 elements"));
}

TEST(TrainerPreflight, LinesAreOneLineEach) {
  EXPECT_EQ(BegunLine("cpu"), "begin\tcpu\n");
  EXPECT_EQ(FoundLine({"cpu", absl::OkStatus(), "0.1 TFLOP/s", 1e11}), "pass\tcpu\t0.1 TFLOP/s\t1e+11\n");
  EXPECT_EQ(FoundLine({"device 0", absl::UnavailableError("CUDA error:\nECC\tuncorrectable"), "", 0}),
            "fail\tdevice 0\tCUDA error: ECC uncorrectable\n");
}

}  // namespace
}  // namespace muster::trainer
