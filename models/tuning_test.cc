// Which tensors are trained. Counts are those that PEFT's documentation and model cards print.
#include "models/tuning.h"

#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/inventory.h"

namespace muster::models {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Tuning, PatternsFitWholeNames) {
  struct Case {
    const char *pattern, *name;
    bool fits;
  };
  for (const Case& c : {Case{"wte.weight", "wte.weight", true},
                        {"wte.weight", "wte.weights", false},
                        {"wte", "wte.weight", false},
                        {"*", "", true},
                        {"*", "h.0.ln_1.weight", true},
                        {"h.*.weight", "h.0.ln_1.weight", true},
                        {"h.?.ln_1.*", "h.0.ln_1.weight", true},
                        {"h.?.ln_1.*", "h.10.ln_1.weight", false},
                        {"*ln*", "h.0.ln_1.weight", true},
                        {"*.bias", "h.0.ln_1.weight", false},
                        {"**b*b", "abab", true},
                        {"*ab", "aab", true},
                        {"?", "", false},
                        {"", "", true},
                        {"", "x", false}}) {
    EXPECT_EQ(Fits(c.pattern, c.name), c.fits) << c.pattern << " " << c.name;
  }
}

// Any number of stars costs the product of the lengths, not more.
TEST(Tuning, AHostilePatternIsNotSlow) {
  std::string pattern;
  for (int i = 0; i < 500; ++i) pattern += "a*";
  EXPECT_FALSE(Fits(pattern + "b", std::string(1000, 'a')));
}

Train Gpt2Of(Gpt2Size size) {
  Train train;
  train.mutable_model()->mutable_gpt2()->set_size(size);
  return train;
}

std::set<std::string> Trained(const Inventory& inventory) {
  std::set<std::string> names;
  for (const Unit& unit : inventory.units()) {
    for (const Tensor& tensor : unit.tensors()) {
      if (!tensor.frozen()) names.insert(tensor.name());
    }
  }
  return names;
}

TEST(Tuning, TheLastPatternDecides) {
  Train train = Gpt2Of(GPT2_SIZE_TINY);
  train.add_freeze("*");
  train.add_freeze("!ln_f.*");
  train.add_freeze("!h.3.mlp.c_proj.*");
  train.add_freeze("*.c_proj.bias");
  const Inventory inventory = MakeInventory(train).value();
  EXPECT_THAT(Trained(inventory), ElementsAre("h.3.mlp.c_proj.weight", "ln_f.bias", "ln_f.weight"));
  EXPECT_EQ(TrainedParameters(inventory), 4u * 128 * 128 + 2 * 128);
  EXPECT_EQ(Parameters(inventory), Parameters(*MakeInventory(train.model()))) << "nothing is gone";
}

TEST(Tuning, NothingIsFrozenByDefault) {
  const Train train = Gpt2Of(GPT2_SIZE_TINY);
  EXPECT_EQ(MakeInventory(train)->SerializeAsString(), MakeInventory(train.model())->SerializeAsString());
}

void Adapt(uint32_t rank, const std::vector<std::string>& targets, Train& train) {
  train.mutable_lora()->set_rank(rank);
  train.mutable_lora()->set_alpha(2.0 * rank);
  for (const std::string& target : targets) train.mutable_lora()->add_targets(target);
}

// "trainable params: 294,912 || all params: 124,734,720" of gpt2, and 4,194,304 of Llama 2 7B with q_proj and v_proj,
// both with rank 8.
TEST(Tuning, AdaptersHaveAsManyParametersAsPeftPrints) {
  Train gpt2 = Gpt2Of(GPT2_SIZE_SMALL);
  Adapt(8, {"c_attn"}, gpt2);
  EXPECT_EQ(TrainedParameters(*MakeInventory(gpt2)), 294'912u);
  EXPECT_EQ(Parameters(*MakeInventory(gpt2)), 124'734'720u);
  Train llama;
  Llama& m = *llama.mutable_model()->mutable_llama();
  m.set_layers(32), m.set_heads(32), m.set_width(4096), m.set_inner(11008), m.set_vocabulary(32000), m.set_context(64);
  Adapt(8, {"q_proj", "v_proj"}, llama);
  EXPECT_EQ(TrainedParameters(*MakeInventory(llama)), 4'194'304u);
}

TEST(Tuning, AnAdapterLiesBesideItsWeight) {
  Train train = Gpt2Of(GPT2_SIZE_TINY);
  Adapt(4, {"attn.c_attn"}, train);
  const Inventory inventory = MakeInventory(train).value();
  const Unit& block = inventory.units(1);
  ASSERT_EQ(block.tensors_size(), 14);
  EXPECT_EQ(block.tensors(12).name(), "h.0.attn.c_attn.lora_A.weight");
  EXPECT_THAT(block.tensors(12).shape(), ElementsAre(4, 128));
  EXPECT_EQ(block.tensors(13).name(), "h.0.attn.c_attn.lora_B.weight");
  EXPECT_THAT(block.tensors(13).shape(), ElementsAre(3 * 128, 4));
  EXPECT_EQ(block.tensors(13).init().kind(), Initialisation::ZEROS);
  EXPECT_EQ(block.tensors(2).low_rank().a(), block.tensors(12).name());
  EXPECT_EQ(block.tensors(2).low_rank().scale(), 2);
  EXPECT_TRUE(IsAdapter(block.tensors(12).name()));
  EXPECT_FALSE(IsAdapter(block.tensors(2).name()));
  const Inventory plain = MakeInventory(train.model()).value();
  EXPECT_EQ(block.forward_flops() - plain.units(1).forward_flops(), 2.0 * 128 * 4 * (128 + 3 * 128));
}

TEST(Tuning, AllLinearLayersBetweenEmbeddingAndHeadByDefault) {
  Train train = Gpt2Of(GPT2_SIZE_TINY);
  Adapt(2, {}, train);
  train.add_freeze("!ln_f.weight");
  const Inventory inventory = MakeInventory(train).value();
  EXPECT_EQ(inventory.units(1).tensors_size(), 12 + 2 * 4);
  EXPECT_EQ(inventory.units(0).tensors_size(), 2);
  EXPECT_EQ(Trained(inventory).count("ln_f.weight"), 1u) << "what freeze says otherwise";
  EXPECT_EQ(Trained(inventory).count("h.0.ln_1.weight"), 0u);
}

TEST(Tuning, MistakesNameTheField) {
  const auto error = [](const Train& train) { return std::string(MakeInventory(train).status().message()); };
  Train train = Gpt2Of(GPT2_SIZE_TINY);
  train.add_freeze("h.4.*");
  EXPECT_THAT(error(train), HasSubstr("freeze: h.4.* fits no tensor of this model; its first one is wte.weight"));
  train.set_freeze(0, "*");
  EXPECT_EQ(error(train), "freeze: every tensor is frozen, so nothing is left to train");
  train.clear_freeze();
  Adapt(2, {"c_attn", "q_proj"}, train);
  EXPECT_EQ(error(train), "lora.targets: no linear layer of this model is called q_proj");
  Train many = Gpt2Of(GPT2_SIZE_XL);
  for (int i = 0; i < 2000; ++i) many.add_freeze("*");
  EXPECT_EQ(error(many), "freeze: 2000 entries are too many for 580 tensors; at most 1807 are allowed");
  many.clear_freeze();
  many.add_freeze(std::string(65, '*'));
  EXPECT_EQ(error(many), "freeze: an entry of 65 bytes, at most 64 are allowed");
  Train images;
  images.mutable_model()->mutable_resnet()->set_depth(20);
  Adapt(2, {}, images);
  EXPECT_EQ(error(images), "lora: this model has no linear layers that take adapters");
}

}  // namespace
}  // namespace muster::models
