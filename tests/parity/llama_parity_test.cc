// Full training of Llama's family against transformers' own classes and torch.optim.AdamW: the same initial weights,
// the same text in order, on one rank and with full_shard on two. Limits as in parity_test.cc.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "tests/parity/trial.h"

namespace muster::parity {
namespace {

constexpr int kLlamaSteps = 20;

Model SmallLlama() {
  Model model;
  Llama& m = *model.mutable_llama();
  m.set_layers(2), m.set_heads(4), m.set_key_value_heads(2), m.set_width(48), m.set_inner(112);
  m.set_vocabulary(256), m.set_context(32);
  return model;
}

// As Llama 3.1 has its positions.
Model SmallLlama3() {
  Model model = SmallLlama();
  Llama& m = *model.mutable_llama();
  m.set_rope_base(500'000);
  m.mutable_rope_scaling()->set_kind(ROPE_SCALING_KIND_LLAMA3);
  m.mutable_rope_scaling()->set_factor(8), m.mutable_rope_scaling()->set_original_context(16);
  return model;
}

Model SmallQwen3() {
  Model model = SmallLlama();
  Llama& m = *model.mutable_llama();
  m.set_qk_norm(true), m.set_tied_head(true), m.set_head_width(16), m.set_norm_epsilon(1e-6);
  return model;
}

Model SmallMistral() {
  Model model = SmallLlama();
  model.mutable_llama()->set_window(7);
  return model;
}

Model SmallQwen2() {  // with biases, and a window in its second layer
  Model model = SmallLlama();
  Llama& m = *model.mutable_llama();
  m.set_qkv_bias(true), m.set_window(5), m.add_full_layers(0);
  return model;
}

Trial LlamaTrial(const Model& model) {
  Trial trial{.sequences = 7, .microbatch = 2, .lr = 1e-3, .steps = kLlamaSteps};
  trial.model = model;
  return trial;
}

TEST(LlamaParity, TrainsAsTransformers) {
  const Lab lab;
  for (const auto& [name, model] : {std::pair("llama 3", SmallLlama3()), std::pair("qwen 3", SmallQwen3()),
                                    std::pair("mistral", SmallMistral()), std::pair("qwen 2", SmallQwen2())}) {
    SCOPED_TRACE(name);
    Trial trial = LlamaTrial(model);
    const Curve theirs = lab.Theirs(trial);
    ASSERT_EQ(theirs.losses.size(), static_cast<size_t>(kLlamaSteps));
    EXPECT_LT(theirs.losses.back(), 0.9 * theirs.losses.front()) << "it learned nothing, so the comparison is void";
    for (const uint32_t ranks : {1u, 2u}) {
      trial.ranks = ranks, trial.strategy = FullShard;
      const Difference d = Compare(lab.Ours(trial), theirs);
      EXPECT_LE(d.loss, kLossLimit) << ranks << " ranks";
      EXPECT_LE(d.norm, kNormLimit) << ranks << " ranks";
    }
  }
}

// A test that cannot fail shows nothing.
TEST(LlamaParity, CatchesMistakes) {
  const Lab lab;
  Trial trial = LlamaTrial(SmallMistral());
  const Curve ours = lab.Ours(trial);
  for (const char* mistake : {"window", "rope", "epsilon", "heads", "betas", "decay_all"}) {
    trial.mistake = mistake;
    const Difference d = Compare(ours, lab.Theirs(trial));
    EXPECT_TRUE(std::isfinite(d.loss)) << mistake << ": nothing was compared";
    EXPECT_FALSE(Same(d)) << mistake << " would not be seen";
  }
}

}  // namespace
}  // namespace muster::parity
