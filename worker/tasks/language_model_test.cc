#include "worker/tasks/language_model.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "models/inventory_build.h"
#include "testing/temporary_folder.h"

namespace muster::tasks {
namespace {

using Rows = std::vector<std::vector<int64_t>>;

Rows RowsOf(const at::Tensor& ids) {
  const at::Tensor whole = ids.contiguous();
  Rows rows;
  for (int64_t r = 0; r < whole.size(0); ++r) {
    const int64_t* const row = whole.const_data_ptr<int64_t>() + r * whole.size(1);
    rows.emplace_back(row, row + whole.size(1));
  }
  return rows;
}

// Of a model with 8 tokens of context, which `ranks` ranks share.
Inventory InventoryOf(uint32_t ranks) {
  Inventory inventory;
  models::SetLanguageTask(inventory, /*vocabulary=*/64, 8 / ranks);
  if (ranks > 1) inventory.set_context_ranks(ranks);
  return inventory;
}

// Tokens 0 to 32: token k is k, and of two samples the second begins with 8.
class LanguageModelTaskTest : public ::testing::Test {
 protected:
  static std::string Tokens() {
    std::string data;
    for (char k = 0; k <= 32; ++k) data += {k, 0};
    return data;
  }
  // In the file's order.
  engine::Batch Read(uint32_t ranks, uint32_t rank, uint64_t samples = 2) const {
    const Inventory inventory = InventoryOf(ranks);
    auto opened = LanguageModelTask().Open(inventory, {.field = "data.tokens", .path = path_, .context_rank = rank});
    EXPECT_TRUE(opened.ok()) << opened.status();
    EXPECT_EQ((*opened)->samples_per_epoch(), 4u) << "whole ones";
    return (*opened)->Read(0, samples).value();
  }

  const TemporaryFolder folder_;
  const std::string path_ = folder_.Write("tokens.bin", Tokens());
};

TEST_F(LanguageModelTaskTest, OneRankHasAllTokens) {
  const engine::Batch batch = Read(1, 0);
  EXPECT_EQ(RowsOf(batch.tensors["inputs"]), (Rows{{0, 1, 2, 3, 4, 5, 6, 7}, {8, 9, 10, 11, 12, 13, 14, 15}}));
  EXPECT_EQ(RowsOf(batch.tensors["targets"]), (Rows{{1, 2, 3, 4, 5, 6, 7, 8}, {9, 10, 11, 12, 13, 14, 15, 16}}));
}

// A target is the token after its input, also where another rank has that.
TEST_F(LanguageModelTaskTest, EachRankHasItsRunsOfTheSameSamples) {
  const struct {
    uint32_t ranks, rank;
    Rows inputs, targets;
  } kCases[] = {
      {2, 0, {{0, 1, 6, 7}, {8, 9, 14, 15}}, {{1, 2, 7, 8}, {9, 10, 15, 16}}},
      {2, 1, {{2, 3, 4, 5}, {10, 11, 12, 13}}, {{3, 4, 5, 6}, {11, 12, 13, 14}}},
      {4, 0, {{0, 7}, {8, 15}}, {{1, 8}, {9, 16}}},
      {4, 1, {{1, 6}, {9, 14}}, {{2, 7}, {10, 15}}},
      {4, 2, {{2, 5}, {10, 13}}, {{3, 6}, {11, 14}}},
      {4, 3, {{3, 4}, {11, 12}}, {{4, 5}, {12, 13}}},
  };
  for (const auto& test : kCases) {
    const engine::Batch batch = Read(test.ranks, test.rank);
    EXPECT_EQ(batch.samples, 2u);
    EXPECT_EQ(RowsOf(batch.tensors["inputs"]), test.inputs) << test.rank << " of " << test.ranks;
    EXPECT_EQ(RowsOf(batch.tensors["targets"]), test.targets) << test.rank << " of " << test.ranks;
    EXPECT_TRUE(batch.tensors["inputs"].is_contiguous() && batch.tensors["targets"].is_contiguous());
  }
}

TEST_F(LanguageModelTaskTest, NoSamplesHaveNoTokens) {
  for (const uint32_t ranks : {1u, 2u}) {
    const engine::Batch batch = Read(ranks, ranks - 1, 0);
    EXPECT_EQ(batch.tensors["inputs"].numel() + batch.tensors["targets"].numel(), 0);
  }
}

}  // namespace
}  // namespace muster::tasks
