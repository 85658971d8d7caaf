// What each of some ranks that compute a model together has of it.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "models/inventory.h"

namespace muster::models {
namespace {

Train Gpt2Of(uint32_t vocabulary) {
  Train train;
  Gpt2& m = *train.mutable_model()->mutable_gpt2();
  m.set_size(GPT2_SIZE_TINY);
  m.set_vocabulary(vocabulary);
  return train;
}

// Grouped: two heads of keys and values for four of queries.
Train SmallLlama(bool tied) {
  Train train;
  Llama& m = *train.mutable_model()->mutable_llama();
  m.set_layers(1), m.set_heads(4), m.set_key_value_heads(2), m.set_width(20), m.set_head_width(6), m.set_inner(24);
  m.set_vocabulary(19), m.set_context(8), m.set_tied_head(tied), m.set_qkv_bias(true);
  return train;
}

Inventory Divided(Train train, uint32_t ranks, bool sequence_parallel = false) {
  train.mutable_parallel()->set_tensor(ranks);
  train.mutable_parallel()->set_sequence_parallel(sequence_parallel);
  const auto inventory = MakeInventory(train);
  EXPECT_TRUE(inventory.ok()) << inventory.status();
  return *inventory;
}

std::string Print(const Tensor& tensor) {
  std::string out = absl::StrCat(tensor.name(), " [", absl::StrJoin(tensor.shape(), ","), "]");
  if (!tensor.has_box()) return out;
  const Box& box = tensor.box();
  return absl::StrCat(out, " of [", absl::StrJoin(box.view(), ","), "] axis ", box.axis(), " from ", box.begin(), " ",
                      box.size());
}

std::vector<std::string> Tensors(const Inventory& share, int unit) {
  std::vector<std::string> lines;
  for (const Tensor& tensor : share.units(unit).tensors()) lines.push_back(Print(tensor));
  return lines;
}

TEST(Share, OfGpt2IsByHeadsColumnsAndRows) {
  const Inventory two = ShareOf(Divided(Gpt2Of(257), 2), 1);
  EXPECT_EQ(Tensors(two, 0), (std::vector<std::string>{"wte.weight [128,128] of [257,128] axis 0 from 129 128",
                                                       "wpe.weight [128,128]"}));
  EXPECT_EQ(Tensors(two, 1), (std::vector<std::string>{
                                 "h.0.ln_1.weight [128]",
                                 "h.0.ln_1.bias [128]",
                                 "h.0.attn.c_attn.weight [128,192] of [128,3,4,32] axis 2 from 2 2",
                                 "h.0.attn.c_attn.bias [192] of [3,4,32] axis 1 from 2 2",
                                 "h.0.attn.c_proj.weight [64,128] of [128,128] axis 0 from 64 64",
                                 "h.0.attn.c_proj.bias [128]",
                                 "h.0.ln_2.weight [128]",
                                 "h.0.ln_2.bias [128]",
                                 "h.0.mlp.c_fc.weight [128,256] of [128,512] axis 1 from 256 256",
                                 "h.0.mlp.c_fc.bias [256] of [512] axis 0 from 256 256",
                                 "h.0.mlp.c_proj.weight [256,128] of [512,128] axis 0 from 256 256",
                                 "h.0.mlp.c_proj.bias [128]",
                             }));
  const Inventory four = ShareOf(Divided(Gpt2Of(257), 4), 3);
  EXPECT_EQ(Tensors(four, 0)[0], "wte.weight [64,128] of [257,128] axis 0 from 193 64");
  EXPECT_EQ(Tensors(four, 1)[2], "h.0.attn.c_attn.weight [128,96] of [128,3,4,32] axis 2 from 3 1");
  EXPECT_EQ(four.units(1).attention().heads(), 1u);
  EXPECT_EQ(four.units(1).attention().width(), 32u);
  EXPECT_EQ(Tensors(ShareOf(Divided(Gpt2Of(257), 4), 0), 0)[0], "wte.weight [65,128] of [257,128] axis 0 from 0 65");
}

TEST(Share, OfLlamaMirrorsKeysOfFewerHeadsThanRanks) {
  const Inventory two = ShareOf(Divided(SmallLlama(false), 2), 1);
  EXPECT_EQ(Tensors(two, 1), (std::vector<std::string>{
                                 "model.layers.0.input_layernorm.weight [20]",
                                 "model.layers.0.self_attn.q_proj.weight [12,20] of [24,20] axis 0 from 12 12",
                                 "model.layers.0.self_attn.k_proj.weight [6,20] of [12,20] axis 0 from 6 6",
                                 "model.layers.0.self_attn.v_proj.weight [6,20] of [12,20] axis 0 from 6 6",
                                 "model.layers.0.self_attn.q_proj.bias [12] of [24] axis 0 from 12 12",
                                 "model.layers.0.self_attn.k_proj.bias [6] of [12] axis 0 from 6 6",
                                 "model.layers.0.self_attn.v_proj.bias [6] of [12] axis 0 from 6 6",
                                 "model.layers.0.self_attn.o_proj.weight [20,12] of [20,24] axis 1 from 12 12",
                                 "model.layers.0.post_attention_layernorm.weight [20]",
                                 "model.layers.0.mlp.gate_proj.weight [12,20] of [24,20] axis 0 from 12 12",
                                 "model.layers.0.mlp.up_proj.weight [12,20] of [24,20] axis 0 from 12 12",
                                 "model.layers.0.mlp.down_proj.weight [20,12] of [20,24] axis 1 from 12 12",
                             }));
  EXPECT_EQ(Tensors(two, 2),
            (std::vector<std::string>{"model.norm.weight [20]", "lm_head.weight [9,20] of [19,20] axis 0 from 10 9"}));
  const Inventory four = ShareOf(Divided(SmallLlama(false), 4), 2);
  EXPECT_EQ(Tensors(four, 1)[1], "model.layers.0.self_attn.q_proj.weight [6,20] of [24,20] axis 0 from 12 6");
  EXPECT_EQ(Tensors(four, 1)[2], "model.layers.0.self_attn.k_proj.weight [12,20]");
  EXPECT_EQ(Tensors(four, 1)[6], "model.layers.0.self_attn.v_proj.bias [12]");
  EXPECT_EQ(four.units(1).attention().heads(), 1u);
  EXPECT_EQ(four.units(1).attention().key_value_heads(), 1u);
}

// Each element of each tensor, by its number in the whole one, is in one share's part, or in all of a mirrored one.
TEST(Share, PartsHoldEachElementOnce) {
  for (const Train& train : {Gpt2Of(257), SmallLlama(false), SmallLlama(true)}) {
    for (const uint32_t ranks : {2u, 4u}) {
      const Inventory whole = Divided(train, ranks);
      for (int u = 0; u < whole.units_size(); ++u) {
        for (int t = 0; t < whole.units(u).tensors_size(); ++t) {
          const Tensor& tensor = whole.units(u).tensors(t);
          std::vector<int> seen(Elements(tensor));
          bool cut = false;
          for (uint32_t rank = 0; rank < ranks; ++rank) {
            const Tensor part = ShareOf(whole, rank).units(u).tensors(t);
            cut = part.has_box();
            if (!cut) {
              EXPECT_EQ(Print(part), Print(tensor));
              continue;
            }
            uint64_t inside = 1, axis = part.box().view(static_cast<int>(part.box().axis())), elements = 0;
            for (int i = static_cast<int>(part.box().axis()) + 1; i < part.box().view_size(); ++i) {
              inside *= part.box().view(i);
            }
            for (uint64_t e = 0; e < seen.size(); ++e) {
              const uint64_t at = e / inside % axis;
              if (at < part.box().begin() || at >= part.box().begin() + part.box().size()) continue;
              ++seen[e], ++elements;
            }
            EXPECT_EQ(elements, Elements(part)) << Print(part);
          }
          EXPECT_EQ(seen, std::vector<int>(seen.size(), cut ? 1 : 0)) << tensor.name();
        }
      }
    }
  }
}

TEST(Share, TheSharesComputeTheWhole) {
  for (const Train& train : {Gpt2Of(257), SmallLlama(false)}) {
    const Inventory whole = Divided(train, 2);
    for (int u = 0; u < whole.units_size(); ++u) {
      double flops = 0, weights = 0;
      for (const uint32_t rank : {0u, 1u}) {
        flops += ShareOf(whole, rank).units(u).forward_flops();
        weights += ShareOf(whole, rank).units(u).weight_gradient_flops();
      }
      EXPECT_NEAR(flops / whole.units(u).forward_flops(), 1, 1e-12) << whole.units(u).name();
      EXPECT_DOUBLE_EQ(weights, whole.units(u).weight_gradient_flops()) << whole.units(u).name();
    }
  }
}

// By hand, in units of 128 tokens of 128 fp32. Four streams of all tokens: what two norms gave, and the gradients of
// what two GEMMs by rows gave. Of twelve streams of heads and of the hidden layer the rank's half. Then 6 x 128 and
// 7 x 64 elements of vectors' gradients.
TEST(Share, SplitsItsBackwardAndKeepsWhatItGathered) {
  for (const bool sequence_parallel : {false, true}) {
    const Inventory share = ShareOf(Divided(Gpt2Of(256), 2, sequence_parallel), 1);
    EXPECT_EQ(share.units(0).deferred_bytes(), 0u);
    EXPECT_EQ(share.units(1).deferred_bytes(), (4 + 12 / 2) * 65536u + 4 * (6 * 128 + 7 * 64));
    EXPECT_EQ(share.units(1).weight_gradient_flops(), 2.0 * 128 * 12 * 128 * 64);
    EXPECT_EQ(share.units(5).deferred_bytes(), 0u);
  }
  EXPECT_EQ(Divided(Gpt2Of(256), 1).units(1).deferred_bytes(), 16 * 65536u + 4 * 13 * 128);
}

// By hand, of 128 tokens of 128 fp32: 64 KiB a residual stream.
TEST(Share, DeclaresItsCollectives) {
  constexpr uint64_t kStream = 65536;
  const Inventory sums = ShareOf(Divided(Gpt2Of(256), 2), 0), parts = ShareOf(Divided(Gpt2Of(256), 2, true), 0);
  EXPECT_EQ(sums.units(0).tensor_exchange().forward().summed_bytes(), kStream);
  EXPECT_EQ(sums.units(0).tensor_exchange().backward().collectives(), 0u);
  // A sum after attention and one after the network, each of which moves the stream twice.
  EXPECT_EQ(sums.units(1).tensor_exchange().forward().collectives(), 0u);
  EXPECT_EQ(sums.units(1).tensor_exchange().forward().chunked_collectives(), 2u);
  EXPECT_EQ(sums.units(1).tensor_exchange().forward().summed_bytes(), 2 * kStream);
  EXPECT_EQ(sums.units(1).tensor_exchange().forward().chunked_bytes(), 4 * kStream);
  EXPECT_EQ(sums.units(1).tensor_exchange().backward().collectives(), 1u);
  EXPECT_EQ(sums.units(1).tensor_exchange().backward().chunked_collectives(), 1u);
  EXPECT_EQ(sums.units(1).tensor_exchange().backward().chunked_bytes(), 2 * kStream);
  EXPECT_EQ(sums.units(1).tensor_exchange().backward().overlapped_bytes(), 2 * kStream);
  EXPECT_EQ(sums.units(1).tensor_exchange().backward().summed_bytes(), 2 * kStream);
  EXPECT_EQ(sums.units(5).tensor_exchange().backward().summed_bytes(), kStream);
  EXPECT_EQ(sums.units(5).tensor_exchange().backward().gathered_bytes(), 128u * 3 * 4);
  EXPECT_EQ(sums.units(5).tensor_exchange().backward().piece_collectives(), 1u);
  EXPECT_EQ(sums.units(1).outputs(0).shape(0), 128u);
  EXPECT_EQ(parts.units(1).outputs(0).shape(0), 64u);
  EXPECT_EQ(parts.units(1).output_bytes(), kStream / 2);
  // A gather and a sum around attention, and around the network. In backward the latter has two gathers; attention's
  // three exchanges and the sum of vectors are whole.
  EXPECT_EQ(parts.units(1).tensor_exchange().forward().collectives(), 0u);
  EXPECT_EQ(parts.units(1).tensor_exchange().forward().chunked_collectives(), 4u);
  EXPECT_EQ(parts.units(1).tensor_exchange().forward().chunked_bytes(), 4 * kStream);
  EXPECT_EQ(parts.units(1).tensor_exchange().backward().collectives(), 4u);
  EXPECT_EQ(parts.units(1).tensor_exchange().backward().chunked_collectives(), 3u);
  EXPECT_EQ(parts.units(1).tensor_exchange().backward().chunked_bytes(), 3 * kStream);
  EXPECT_EQ(parts.units(1).tensor_exchange().backward().overlapped_bytes(), 2 * kStream);
  EXPECT_EQ(parts.units(1).tensor_exchange().backward().constant_bytes(), 6u * 128 * 4);
  // Kept: half of two streams and of two norms' scalars; q k v, attention and the hidden layer of two heads of four.
  EXPECT_EQ(sums.units(1).saved_bytes(), 2 * kStream + 8 * kStream / 2 + 128 * 4 * (4 + 2));
  EXPECT_EQ(parts.units(1).saved_bytes(), kStream + 8 * kStream / 2 + 128 * 4 * (2 + 2));
}

TEST(Share, NamesTheNumberThatStandsInTheWay) {
  const auto error = [](Train train, uint32_t ranks, bool sequence_parallel) {
    train.mutable_parallel()->set_tensor(ranks);
    train.mutable_parallel()->set_sequence_parallel(sequence_parallel);
    return std::string(MakeInventory(train).status().message());
  };
  Train xl;
  xl.mutable_model()->mutable_gpt2()->set_size(GPT2_SIZE_XL);
  EXPECT_EQ(error(xl, 2, false), "parallel.tensor: heads: 25 are not a multiple of 2");
  EXPECT_EQ(error(Gpt2Of(3), 4, false), "parallel.tensor: vocabulary: 3 are fewer than 4");
  Train context = Gpt2Of(256);
  context.mutable_model()->mutable_gpt2()->set_context(127);
  EXPECT_EQ(error(context, 2, false), "");
  EXPECT_EQ(error(context, 2, true), "parallel.tensor: context: 127 are not a multiple of 2");
  Train llama = SmallLlama(false);
  llama.mutable_model()->mutable_llama()->set_inner(27);
  EXPECT_EQ(error(llama, 2, false), "parallel.tensor: inner: 27 are not a multiple of 2");
  llama = SmallLlama(false);
  llama.mutable_model()->mutable_llama()->set_heads(12);
  llama.mutable_model()->mutable_llama()->set_key_value_heads(3);
  EXPECT_EQ(error(llama, 2, false), "parallel.tensor: key_value_heads: 3 are not a multiple of 2");
  EXPECT_EQ(error(llama, 4, false), "parallel.tensor: key_value_heads: 3 do not divide 4 and are not a multiple of it");
}

}  // namespace
}  // namespace muster::models
