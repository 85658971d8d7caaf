#include "models/llama/llama.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "models/inventory.h"

namespace muster::models {
namespace {

using nlohmann::json;

Model OfSize(LlamaSize size) {
  Model model;
  model.mutable_llama()->set_size(size);
  return model;
}

// The counts that Hugging Face shows for meta-llama's Llama-3.2-1B, Llama-3.2-3B, Llama-3.1-8B and Llama-3.1-70B.
TEST(Llama, ParameterCountsAreThePublishedOnes) {
  EXPECT_EQ(Parameters(*MakeInventory(OfSize(LLAMA_SIZE_1B))), 1'235'814'400u);
  EXPECT_EQ(Parameters(*MakeInventory(OfSize(LLAMA_SIZE_3B))), 3'212'749'824u);
  EXPECT_EQ(Parameters(*MakeInventory(OfSize(LLAMA_SIZE_8B))), 8'030'261'248u);
  EXPECT_EQ(Parameters(*MakeInventory(OfSize(LLAMA_SIZE_70B))), 70'553'706'496u);
}

struct Published {
  const char* name;
  const char* config;  // as far as it matters
  uint64_t parameters;
};

// config.json and parameter counts as on Hugging Face.
const Published kPublished[] = {
    {"Qwen/Qwen2.5-0.5B",
     R"({"model_type": "qwen2", "hidden_act": "silu", "hidden_size": 896, "intermediate_size": 4864,
         "max_position_embeddings": 32768, "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2,
         "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": true,
         "use_sliding_window": false, "vocab_size": 151936})",
     494'032'768},
    {"HuggingFaceTB/SmolLM2-135M",
     R"({"model_type": "llama", "attention_bias": false, "hidden_act": "silu", "hidden_size": 576,
         "intermediate_size": 1536, "max_position_embeddings": 8192, "mlp_bias": false, "num_attention_heads": 9,
         "num_hidden_layers": 30, "num_key_value_heads": 3, "rms_norm_eps": 1e-05, "rope_scaling": null,
         "rope_theta": 100000, "tie_word_embeddings": true, "vocab_size": 49152})",
     134'515'008},
    {"mistralai/Mistral-7B-v0.3",
     R"({"model_type": "mistral", "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
         "max_position_embeddings": 32768, "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
         "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "sliding_window": null, "tie_word_embeddings": false,
         "vocab_size": 32768})",
     7'248'023'552},
    {"Qwen/Qwen3-0.6B",
     R"({"model_type": "qwen3", "attention_bias": false, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024,
         "intermediate_size": 3072, "max_position_embeddings": 40960, "num_attention_heads": 16, "num_hidden_layers": 28,
         "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000,
         "sliding_window": null, "tie_word_embeddings": true, "use_sliding_window": false, "vocab_size": 151936})",
     596'049'920},
};

TEST(Llama, ReadsThePublishedConfigurations) {
  for (const Published& published : kPublished) {
    const json config = json::parse(published.config);
    ASSERT_EQ(FamilyOfConfig(config), &LlamaFamily()) << published.name;
    const absl::StatusOr<Model> model = LlamaFamily().FromConfig(config);
    ASSERT_TRUE(model.ok()) << published.name << ": " << model.status();
    EXPECT_EQ(Parameters(*MakeInventory(*model)), published.parameters) << published.name;
    // What is written for it means the same model.
    const Model resolved = *Resolve(*model);
    const absl::StatusOr<Model> again = LlamaFamily().FromConfig(LlamaFamily().ToConfig(resolved));
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(Resolve(*again)->ShortDebugString(), resolved.ShortDebugString()) << published.name;
  }
}

TEST(Llama, RefusesWhatItWouldComputeOtherwise) {
  const json good = json::parse(kPublished[1].config);
  const struct {
    const char* key;
    json value;
    const char* says;
  } cases[] = {
      {"hidden_act", "gelu", "hidden_act is \"gelu\", this build computes \"silu\" only"},
      {"mlp_bias", true, "mlp_bias is true"},
      {"attention_bias", true, "attention_bias is true"},
      {"sliding_window", 4096u, "sliding_window is 4096 of a context of 8192"},
      {"rope_scaling", json{{"rope_type", "longrope"}}, "rope_scaling.rope_type is \"longrope\""},
      {"rope_scaling", "yes", "rope_scaling is no object"},
      {"rope_scaling", json{{"rope_type", "yarn"}, {"factor", 2}, {"original_max_position_embeddings", 1e300}},
       "original_max_position_embeddings is missing, or no whole number"},
      {"num_hidden_layers", nullptr, "num_hidden_layers is missing"},
      {"hidden_size", -1, "hidden_size is missing, or no whole number"},
      {"rms_norm_eps", "small", "rms_norm_eps is no number"},
  };
  for (const auto& c : cases) {
    json config = good;
    config[c.key] = c.value;
    const absl::StatusOr<Model> model = LlamaFamily().FromConfig(config);
    ASSERT_FALSE(model.ok()) << c.key;
    EXPECT_TRUE(absl::StartsWith(model.status().message(), c.says)) << model.status();
  }
  EXPECT_EQ(FamilyOfConfig(json{{"model_type", "gemma"}}), nullptr);
  EXPECT_EQ(FamilyOfConfig(json::object()), nullptr);
}

TEST(Llama, DefaultsAndErrors) {
  Model model;
  Llama& m = *model.mutable_llama();
  m.set_layers(2), m.set_heads(6), m.set_width(48), m.set_inner(100), m.set_vocabulary(256), m.set_context(16);
  const Llama resolved = Resolve(model)->llama();
  EXPECT_EQ(resolved.key_value_heads(), 6u);
  EXPECT_EQ(resolved.head_width(), 8u);
  EXPECT_EQ(resolved.rope_base(), 10'000);
  EXPECT_EQ(resolved.norm_epsilon(), 1e-5);
  EXPECT_EQ(Resolve(*Resolve(model))->SerializeAsString(), Resolve(model)->SerializeAsString());
  EXPECT_EQ(Describe(model), "llama 2x48");
  EXPECT_EQ(Describe(OfSize(LLAMA_SIZE_70B)), "llama 70b");

  const auto says = [&](auto change, const std::string& message) {
    Model wrong = model;
    change(*wrong.mutable_llama());
    EXPECT_TRUE(absl::StartsWith(Resolve(wrong).status().message(), message)) << Resolve(wrong).status();
  };
  says([](Llama& l) { l.set_key_value_heads(4); }, "key_value_heads: 4 does not divide heads 6");
  says([](Llama& l) { l.set_heads(5); }, "heads: 5 does not divide width 48; give head_width");
  says([](Llama& l) { l.set_head_width(7); }, "head_width: must be even");
  says([](Llama& l) { l.set_heads(65536), l.set_head_width(65536); }, "head_width: of 65536 heads, at most 64");
  says([](Llama& l) { l.set_inner(0); }, "inner: must be 1 to");
  says([](Llama& l) { l.clear_layers(); }, "layers: missing; give a size");
  says([](Llama& l) { l.set_rope_base(0); }, "rope_base: must be greater than 1");
  says([](Llama& l) { l.set_norm_epsilon(std::nan("")); }, "norm_epsilon: must be greater than 0");
  says([](Llama& l) { l.mutable_rope_scaling()->set_factor(2); }, "rope_scaling.kind: missing");
  says(
      [](Llama& l) {
        l.mutable_rope_scaling()->set_kind(ROPE_SCALING_KIND_LINEAR);
        l.mutable_rope_scaling()->set_factor(0.5);
      },
      "rope_scaling.factor: must be 1 to");
  says(
      [](Llama& l) {
        l.mutable_rope_scaling()->set_kind(ROPE_SCALING_KIND_YARN);
        l.mutable_rope_scaling()->set_factor(4);
      },
      "rope_scaling.original_context: missing");
  says([](Llama& l) { l.set_qkv_bias(true), l.set_qk_norm(true); }, "qk_norm: no published model");
}

// Su et al. 2021, section 3.4.3: base^(-2i/d).
TEST(Llama, FrequenciesWithoutScaling) {
  Model model = OfSize(LLAMA_SIZE_TINY);
  const std::vector<double> frequencies = RopeFrequencies(Resolve(model)->llama());
  ASSERT_EQ(frequencies.size(), 16u);
  EXPECT_DOUBLE_EQ(frequencies[0], 1);
  EXPECT_NEAR(frequencies[8], 0.01, 1e-15);
}

TEST(Llama, SameWeightsMeanTheSameModel) {
  const Model model = *Resolve(OfSize(LLAMA_SIZE_TINY));
  Model other = model;
  other.mutable_llama()->set_context(64);
  EXPECT_TRUE(CheckSame(other, model).ok()) << "a job's own choice";
  other.mutable_llama()->set_layers(5);
  other.mutable_llama()->set_rope_base(5e5);
  EXPECT_EQ(CheckSame(other, model).message(),
            "num_hidden_layers 5, but model.layers is 4; rope_theta 500000, but model.rope_base is 10000");
  Model gpt2;
  gpt2.mutable_gpt2()->set_size(GPT2_SIZE_TINY);
  EXPECT_EQ(CheckSame(*Resolve(gpt2), model).message(), "family gpt2, but model.family is llama");
}

TEST(Llama, TiedHeadsBorrowTheEmbedding) {
  Model model = OfSize(LLAMA_SIZE_TINY);
  EXPECT_EQ(MakeInventory(model)->units(5).borrows_size(), 0);
  EXPECT_EQ(LlamaFamily().TensorName(*Resolve(model), "lm_head.weight"), "lm_head.weight");
  model.mutable_llama()->set_tied_head(true);
  const Inventory inventory = *MakeInventory(model);
  EXPECT_EQ(inventory.units(5).borrows(0).tensor(), "model.embed_tokens.weight");
  EXPECT_EQ(LlamaFamily().TensorName(inventory.model(), "lm_head.weight"), "") << "older files repeat it";
}

}  // namespace
}  // namespace muster::models
