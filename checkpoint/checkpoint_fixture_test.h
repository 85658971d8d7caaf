// Small checkpoints in a temporary folder.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/checkpoint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/inventory.h"
#include "strategies/partition/planners.h"
#include "testing/temporary_folder.h"

namespace muster::checkpoint {

inline std::string Slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

inline void Dump(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

class CheckpointTest : public ::testing::Test {
 protected:
  CheckpointTest() {
    values_.resize(300);
    Fill(0);
  }
  void Fill(uint64_t step) {
    for (size_t i = 0; i < values_.size(); ++i) values_[i] = static_cast<float>(step * 1000 + i);
  }
  static Manifest MakeManifest(uint64_t step, uint64_t generation = 1, const std::string& job = "job-1") {
    Manifest manifest;
    manifest.set_job(job);
    manifest.set_step(step);
    manifest.set_generation(generation);
    manifest.set_samples_consumed(step * 8);
    manifest.mutable_spec()->set_name("job");
    Model model;
    Gpt2& gpt2 = *model.mutable_gpt2();
    gpt2.set_layers(1), gpt2.set_heads(1), gpt2.set_width(8), gpt2.set_vocabulary(16), gpt2.set_context(4);
    *manifest.mutable_inventory() = models::MakeInventory(model).value();
    *manifest.mutable_table() = partition::Replicated(manifest.inventory());
    return manifest;
  }
  std::vector<TensorRun> Parts() {
    return {{"w", {20, 10}, 0, absl::MakeSpan(values_).subspan(0, 200)},
            {"optimizer.exp_avg.w", {10, 10}, 0, absl::MakeSpan(values_).subspan(200, 100)}};
  }
  absl::StatusOr<Written> WriteStep(uint64_t step, uint64_t generation = 1) {
    Fill(step);
    return Write(path_, MakeManifest(step, generation), Parts());
  }
  std::string Directory(uint64_t step, uint64_t generation = 1) const {
    return absl::StrCat(path_, "/", StepName{step, generation}.Directory());
  }
  // Of all entries but the owner file.
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      if (entry.path().filename() != kOwnerFile) names.push_back(entry.path().filename());
    }
    std::sort(names.begin(), names.end());
    return names;
  }
  void ExpectWhole(uint64_t step, uint64_t generation = 1) {
    const auto checkpoint = Checkpoint::Open(Directory(step, generation));
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    Fill(99999);
    for (const TensorRun& part : Parts()) ASSERT_TRUE(checkpoint->Read(part).ok());
    for (size_t i = 0; i < values_.size(); ++i) ASSERT_EQ(values_[i], static_cast<float>(step * 1000 + i));
  }

  const TemporaryFolder folder_;
  const std::string path_ = folder_.path();
  std::vector<float> values_;
};

}  // namespace muster::checkpoint
