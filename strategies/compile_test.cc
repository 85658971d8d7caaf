#include "strategies/compile.h"

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "models/inventory.h"
#include "strategies/partition/flat.h"

namespace muster::strategies {
namespace {

Train Tiny() {
  Train train;
  train.mutable_model()->mutable_gpt2()->set_size(GPT2_SIZE_TINY);
  train.mutable_strategy()->mutable_single();
  train.mutable_batch()->set_sequences(8);
  train.mutable_optimizer()->mutable_adamw();
  train.mutable_optimizer()->set_clip_norm(1);
  return train;
}

TEST(Compile, SingleIsTheSameEverywhere) {
  const Train train = Tiny();
  const Inventory inventory = *models::MakeInventory(train.model());
  const Layout layout = *MakeLayout(train, inventory, 1);
  const RankProgram a = *Compile(train, inventory, layout, 0), b = *Compile(train, inventory, layout, 0);
  EXPECT_EQ(a.digest, b.digest);
  EXPECT_EQ(layout.table_sha256.size(), 64u);
  const uint64_t flat = 4 * partition::FlatElements(inventory);
  EXPECT_EQ(a.memory.parameters, flat);
  EXPECT_EQ(a.memory.gradients, flat);
  EXPECT_EQ(a.memory.optimizer_state, 2 * flat);
  EXPECT_EQ(a.memory.peak, 4 * flat + a.memory.activations);
}

TEST(Compile, SgdKeepsOneMomentumOrNone) {
  Train train = Tiny();
  train.mutable_optimizer()->mutable_sgd()->set_momentum(0.9);
  const Inventory inventory = *models::MakeInventory(train.model());
  const Layout layout = *MakeLayout(train, inventory, 1);
  EXPECT_EQ(Compile(train, inventory, layout, 0)->memory.optimizer_state, 4 * partition::FlatElements(inventory));
  train.mutable_optimizer()->mutable_sgd()->set_momentum(0);
  EXPECT_EQ(Compile(train, inventory, layout, 0)->memory.optimizer_state, 0u);
}

TEST(Compile, RefusesWhatItCannotDo) {
  Train train = Tiny();
  const Inventory inventory = *models::MakeInventory(train.model());
  const absl::Status two = MakeLayout(train, inventory, 2).status();
  EXPECT_EQ(two.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(two.message(), "one rank"));
  train.mutable_strategy()->mutable_zero()->set_stage(3);
  const absl::Status zero = MakeLayout(train, inventory, 2).status();
  EXPECT_EQ(zero.code(), absl::StatusCode::kUnimplemented);
  EXPECT_TRUE(absl::StrContains(zero.message(), "strategy: zero"));
}

TEST(Microbatches, RoundUpTheLargestShare) {
  const auto of = [](uint32_t sequences, uint32_t microbatch, uint32_t world) {
    Batch batch;
    batch.set_sequences(sequences);
    if (microbatch > 0) batch.set_microbatch(microbatch);
    return Microbatches(batch, world);
  };
  EXPECT_EQ(of(8, 0, 1), 1u);
  EXPECT_EQ(of(8, 2, 1), 4u);
  EXPECT_EQ(of(8, 3, 1), 3u);
  EXPECT_EQ(of(8, 2, 3), 2u);
  EXPECT_EQ(of(7, 1, 2), 4u);
  EXPECT_EQ(of(1, 1, 4), 1u);
}

}  // namespace
}  // namespace muster::strategies
