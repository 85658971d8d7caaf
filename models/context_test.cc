// What each of some ranks that share sequences has of a model's work.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "models/inventory.h"

namespace muster::models {
namespace {

// GPT-2 tiny: 4 layers of width 128, 4 heads, vocabulary 256, context 128.
Train TinyGpt2() {
  Train train;
  train.mutable_model()->mutable_gpt2()->set_size(GPT2_SIZE_TINY);
  return train;
}

// Eight heads of 16 share two of keys.
Train GroupedLlama() {
  Train train;
  Llama& m = *train.mutable_model()->mutable_llama();
  m.set_layers(2), m.set_heads(8), m.set_key_value_heads(2), m.set_width(128), m.set_inner(384);
  m.set_vocabulary(256), m.set_context(128);
  return train;
}

Inventory Made(Train train, uint32_t context, uint32_t tensor = 1, bool sequence_parallel = false,
               Device device = DEVICE_CPU) {
  train.mutable_parallel()->set_context(context);
  train.mutable_parallel()->set_tensor(tensor);
  train.mutable_parallel()->set_sequence_parallel(sequence_parallel);
  const auto inventory = MakeInventory(train, device);
  EXPECT_TRUE(inventory.ok()) << inventory.status();
  return *inventory;
}

// By hand, of 128 tokens on two ranks.
TEST(ContextRanks, HaveTheirTokensOfASample) {
  const Inventory two = Made(TinyGpt2(), 2);
  EXPECT_EQ(ContextRanks(two), 2u);
  EXPECT_EQ(two.task().tensors(0).shape(0), 64u);
  EXPECT_EQ(two.task().tensors(1).shape(0), 64u);
  EXPECT_EQ(TargetsPerSample(two), 64u);
  EXPECT_EQ(WholeTargetsPerSample(two), 128u);
  EXPECT_EQ(two.units(0).outputs(0).shape(0), 64u);
  EXPECT_EQ(two.units(1).outputs(0).shape(0), 64u);
  EXPECT_EQ(two.units(0).tensors(1).shape(0), 128u) << "a table of all positions";
  EXPECT_EQ(two.units(1).attention().heads(), 4u);
  EXPECT_EQ(Parameters(two), Parameters(Made(TinyGpt2(), 1)));

  const Inventory share = ShareOf(Made(TinyGpt2(), 2, 2, true), 1);
  EXPECT_EQ(ContextRanks(share), 2u);
  EXPECT_EQ(TargetsPerSample(share), 64u);
  EXPECT_EQ(share.units(1).outputs(0).shape(0), 32u) << "of these each tensor rank has half";

  EXPECT_EQ(Made(TinyGpt2(), 1).SerializeAsString(), Made(TinyGpt2(), 0).SerializeAsString());
  EXPECT_FALSE(Made(TinyGpt2(), 1).units(1).has_context_exchange());
}

// All of them, since they compute equally many scores (sequence_test.cc).
TEST(ContextRanks, ComputeTheWholeTogether) {
  Train windows = GroupedLlama();
  windows.mutable_model()->mutable_llama()->set_window(40);
  windows.mutable_model()->mutable_llama()->add_full_layers(1);
  for (const Train& train : {TinyGpt2(), GroupedLlama(), windows}) {
    for (const uint32_t tensor : {1u, 2u}) {
      const Inventory whole = ShareOf(Made(train, 1, tensor), 0);
      for (const uint32_t ranks : {2u, 4u}) {
        const Inventory part = ShareOf(Made(train, ranks, tensor), 0);
        ASSERT_EQ(part.units_size(), whole.units_size());
        for (int u = 0; u < whole.units_size(); ++u) {
          const Unit &of = part.units(u), &all = whole.units(u);
          EXPECT_DOUBLE_EQ(ranks * of.forward_flops(), all.forward_flops()) << all.name();
          EXPECT_DOUBLE_EQ(ranks * of.weight_gradient_flops(), all.weight_gradient_flops()) << all.name();
          EXPECT_EQ(ranks * of.output_bytes(), all.output_bytes()) << all.name();
          EXPECT_EQ(of.piece_rows(), all.piece_rows()) << all.name();
          // The ids have a place more than tokens.
          if (u > 0) {
            EXPECT_EQ(ranks * of.saved_bytes(), all.saved_bytes()) << all.name();
          }
        }
      }
    }
  }
}

// By hand. A token has 128 elements of keys and as many of values; 64 are a rank's own, and two tensor ranks have half
// of the heads each. Of Llama two heads of 16, one of them on each of two tensor ranks, and one where four mirror both.
TEST(ContextRanks, GatherKeysAndValuesOfEachBlock) {
  const auto expect = [](const Unit& unit, uint64_t bytes) {
    const TensorExchange& exchange = unit.context_exchange();
    EXPECT_EQ(exchange.forward().collectives(), 1u) << unit.name();
    EXPECT_EQ(exchange.forward().gathered_bytes(), bytes) << unit.name();
    EXPECT_EQ(exchange.backward().collectives(), 2u) << unit.name();
    EXPECT_EQ(exchange.backward().gathered_bytes(), bytes) << unit.name();
    EXPECT_EQ(exchange.backward().scattered_bytes(), bytes) << unit.name();
    EXPECT_EQ(exchange.evaluation().SerializeAsString(), exchange.forward().SerializeAsString()) << unit.name();
  };
  const Inventory gpt2 = Made(TinyGpt2(), 2);
  for (const int block : {1, 2, 3, 4}) expect(gpt2.units(block), 4 * 2 * 128 * 64);
  for (const int other : {0, 5}) EXPECT_FALSE(gpt2.units(other).has_context_exchange());
  expect(Made(TinyGpt2(), 4).units(1), 4 * 2 * 128 * 32);
  expect(ShareOf(Made(TinyGpt2(), 2, 2), 1).units(1), 4 * 2 * 64 * 64);
  expect(Made(GroupedLlama(), 2).units(1), 4 * 2 * 32 * 64);
  expect(ShareOf(Made(GroupedLlama(), 2, 2), 1).units(1), 4 * 2 * 16 * 64);
  expect(ShareOf(Made(GroupedLlama(), 2, 4), 1).units(1), 4 * 2 * 16 * 64);
}

// By hand, in streams of 64 own tokens of 128 fp32. Keys and values of all 128 tokens are four streams; in forward they
// are there twice, before the hidden layer's four streams and the output, but beside what the norm gave. In backward
// they are there with their gradients, beside five streams of other gradients (attention's output and q k v, without
// the one that comes in); the hidden layer and the sum after attention, five streams, are gone.
TEST(ContextRanks, HoldAllKeysWhileAttentionComputes) {
  constexpr uint64_t kStream = 64 * 128 * 4;
  const Unit block = Made(TinyGpt2(), 2).units(1);
  EXPECT_EQ(block.forward_bytes(), (8 - 4) * kStream);
  EXPECT_EQ(block.backward_bytes(), (8 + 4 - 5) * kStream);
  // Half of the heads: the hidden layer and all that is by head have half as much.
  const Unit share = ShareOf(Made(TinyGpt2(), 2, 2), 0).units(1);
  EXPECT_EQ(share.forward_bytes(), (4 - 2) * kStream);
  EXPECT_EQ(share.backward_bytes(), (4 + 2 - 3) * kStream);
  // More ranks keep less of what is saved, but the same keys are there.
  EXPECT_EQ(Made(TinyGpt2(), 4).units(1).forward_bytes(), (8 - 2) * kStream);
  // Two of Llama's eight heads have keys. Gate and up are six streams.
  const Unit llama = Made(GroupedLlama(), 2).units(1);
  EXPECT_EQ(llama.forward_bytes(), kStream) << "the second norm, which is more";
  EXPECT_EQ(Made(GroupedLlama(), 16).units(1).forward_bytes(), 4 * 128 * 4 * 32 - 7 * kStream / 8);
}

// By hand, as above. On a GPU attention's results of two runs are joined. In backward come its output once more, the
// gradients of q and its sums, and of all keys and values the gradients of one run. Where heads share keys, these are
// there for each head as well, four streams, and in backward their gradients, and with a window those once more.
TEST(ContextRanks, HoldMoreOnAGpu) {
  constexpr uint64_t kStream = 64 * 128 * 4;
  const auto block = [](const Train& train) { return Made(train, 2, 1, false, DEVICE_CUDA).units(1); };
  EXPECT_EQ(block(TinyGpt2()).forward_bytes(), (8 - 4 + 1) * kStream);
  EXPECT_EQ(block(TinyGpt2()).backward_bytes(), (8 + 4 - 5 + 3 + 4) * kStream);
  Train llama = GroupedLlama();
  llama.mutable_model()->mutable_llama()->set_inner(128);
  EXPECT_EQ(block(llama).forward_bytes(), (2 - 3 + 1 + 4) * kStream);
  EXPECT_EQ(2 * block(llama).backward_bytes(), (2 * 2 + 5 - 6 + 6 + 2 + 2 * 8) * kStream);
  llama.mutable_model()->mutable_llama()->set_window(40);
  EXPECT_EQ(block(llama).forward_bytes(), (2 - 3 + 1 + 4) * kStream);
  EXPECT_EQ(2 * block(llama).backward_bytes(), (2 * 2 + 5 - 6 + 6 + 2 + 2 * 8 + 2 * 4) * kStream);
}

// A mask says which keys a run sees: of 32 queries to 128 keys, fp32, and where it is set.
TEST(ContextRanks, MaskRunsOnAGpu) {
  EXPECT_EQ(Made(TinyGpt2(), 2, 1, false, DEVICE_CUDA).units(1).backward_constant_bytes(), 32u * 128 * 5);
  EXPECT_EQ(Made(GroupedLlama(), 2, 1, false, DEVICE_CUDA).units(1).backward_constant_bytes(), 32u * 128 * 5);
  EXPECT_EQ(Made(TinyGpt2(), 1, 1, false, DEVICE_CUDA).units(1).backward_constant_bytes(), 0u);
}

// By hand, of 4 heads: 32 queries to 128 keys at a time, and of longer runs 1,024. Forward has three such matrices, and
// backward four; nothing of them is kept, and on a CPU there are none.
TEST(ContextRanks, DropWeightsOfABlockOfQueriesOnAGpu) {
  constexpr uint64_t kMatrix = 4 * 4 * 32 * 128;
  Train plain = TinyGpt2();
  for (const uint32_t context : {128u, 8192u}) {
    plain.mutable_model()->mutable_gpt2()->set_context(context);
    Train drops = plain;
    drops.mutable_dropout()->set_attention(0.1);
    const uint64_t matrix = context == 128 ? kMatrix : uint64_t{4} * 4 * 1024 * 8192;
    for (const uint32_t tensor : {1u, 2u}) {
      const auto block = [&](const Train& train, Device device) {
        return ShareOf(Made(train, 2, tensor, false, device), 0).units(1);
      };
      const Unit with = block(drops, DEVICE_CUDA), without = block(plain, DEVICE_CUDA);
      EXPECT_EQ(with.saved_bytes(), without.saved_bytes());
      EXPECT_EQ(with.forward_bytes(), without.forward_bytes() + 3 * matrix / tensor);
      EXPECT_EQ(with.backward_bytes(), without.backward_bytes() + 4 * matrix / tensor);
      EXPECT_EQ(with.backward_constant_bytes(), without.backward_constant_bytes());
      EXPECT_EQ(block(drops, DEVICE_CPU).SerializeAsString(), block(plain, DEVICE_CPU).SerializeAsString());
    }
  }
  // A window's mask is of its blocks; by products there is that of a run, too, a byte more an element.
  Train llama = GroupedLlama();
  llama.mutable_model()->mutable_llama()->set_window(3);
  llama.mutable_model()->mutable_llama()->set_context(4096);
  const auto constant = [&] { return Made(llama, 2, 1, false, DEVICE_CUDA).units(1).backward_constant_bytes(); };
  EXPECT_EQ(constant(), 4u * 128 * (16 + 128));
  llama.mutable_dropout()->set_attention(0.1);
  EXPECT_EQ(constant(), 4u * 128 * (16 + 128) + 6u * 1024 * 4096);
}

// What is dropped of the residual stream leaves a copy of its gradient, of a rank's own tokens.
TEST(ContextRanks, CopyTheGradientOfWhatDrops) {
  Train drops = TinyGpt2();
  drops.mutable_dropout()->set_residual(0.1), drops.mutable_dropout()->set_embedding(0.1);
  for (const Device device : {DEVICE_CPU, DEVICE_CUDA}) {
    const Inventory with = Made(drops, 2, 1, false, device), without = Made(TinyGpt2(), 2, 1, false, device);
    for (const int unit : {0, 1}) {
      EXPECT_EQ(with.units(unit).backward_bytes(), without.units(unit).backward_bytes() + 64 * 128 * 4);
      EXPECT_EQ(with.units(unit).forward_bytes(), without.units(unit).forward_bytes());
    }
  }
}

TEST(ContextRanks, NameTheNumberThatStandsInTheWay) {
  const auto error = [](Train train, uint32_t context, uint32_t tensor = 1, bool sequence_parallel = false) {
    train.mutable_parallel()->set_context(context);
    train.mutable_parallel()->set_tensor(tensor);
    train.mutable_parallel()->set_sequence_parallel(sequence_parallel);
    return std::string(MakeInventory(train).status().message());
  };
  Train odd = TinyGpt2(), llama = GroupedLlama();
  odd.mutable_model()->mutable_gpt2()->set_context(126);
  llama.mutable_model()->mutable_llama()->set_context(126);
  EXPECT_EQ(error(odd, 1), "");
  const std::string runs =
      "parallel.context: context: 126 tokens are not a multiple of 4, because each rank has two runs of them";
  EXPECT_EQ(error(odd, 2), runs);
  EXPECT_EQ(error(llama, 2), runs);
  EXPECT_EQ(error(odd, 3), "");
  EXPECT_EQ(error(odd, 3, 4), "") << "42 tokens on each";
  EXPECT_EQ(error(odd, 3, 4, true),
            "parallel.context: context: each rank has 42 of 126 tokens, which sequence_parallel cannot divide by "
            "parallel.tensor 4");
  Train resnet;
  resnet.mutable_model()->mutable_resnet()->set_depth(20);
  EXPECT_EQ(error(resnet, 1), "");
  EXPECT_EQ(error(resnet, 2),
            "parallel.context: models of family resnet do not divide sequences; use more shards or stages");
}

}  // namespace
}  // namespace muster::models
