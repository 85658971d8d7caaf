#include "models/llama/llama.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
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
    {"mistralai/Mistral-7B-v0.1",
     R"({"model_type": "mistral", "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
         "max_position_embeddings": 32768, "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
         "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096, "tie_word_embeddings": false,
         "vocab_size": 32000})",
     7'241'732'096},
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
      {"sliding_window", 4096u, "sliding_window is 4096, which transformers' Llama does not read"},
      {"layer_types", json::array({"full_attention"}), "layer_types is not a list of 30 layers"},
      {"rope_scaling", json{{"rope_type", "proportional"}}, "rope_scaling.rope_type is \"proportional\""},
      {"rope_scaling", json{{"rope_type", "longrope"}},
       "rope_scaling.short_factor is missing or not a list of numbers"},
      {"rope_scaling", json{{"rope_type", "longrope"}, {"short_factor", {1, "2"}}},
       "rope_scaling.short_factor is not a list of numbers"},
      {"rope_scaling", "yes", "rope_scaling is not an object"},
      {"rope_scaling", json{{"rope_type", "yarn"}, {"factor", 2}, {"original_max_position_embeddings", 1e300}},
       "original_max_position_embeddings is missing, or no whole number"},
      {"num_hidden_layers", nullptr, "num_hidden_layers is missing"},
      {"hidden_size", -1, "hidden_size is missing, or no whole number"},
      {"rms_norm_eps", "small", "rms_norm_eps is not a number"},
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

// The layers that transformers' classes give a window, printed by configuration_qwen2.py, _qwen3.py, _mistral.py and
// _ministral.py of transformers 5.23: `AutoConfig.for_model(...).layer_types`.
TEST(Llama, WindowsOfTheLayersAreTransformers) {
  const json sliding = "sliding_attention", full = "full_attention";
  const struct {
    const char* type;
    json more;
    uint32_t window;
    std::vector<uint32_t> full;
    const char* written;
  } cases[] = {
      {"mistral", {{"sliding_window", 7}}, 7, {}, "mistral"},
      {"mistral", {{"sliding_window", nullptr}}, 0, {}, "llama"},
      {"mistral", {{"sliding_window", 99}}, 99, {}, "mistral"},  // wider than the context
      {"qwen2", {{"sliding_window", 7}}, 0, {}, "qwen2"},
      {"qwen2", {{"sliding_window", 7}, {"use_sliding_window", true}}, 0, {}, "qwen2"},  // max_window_layers is 28
      {"qwen2", {{"sliding_window", 7}, {"use_sliding_window", true}, {"max_window_layers", 2}}, 7, {0, 1}, "qwen2"},
      {"qwen3", {{"sliding_window", 7}, {"use_sliding_window", true}, {"max_window_layers", 0}}, 7, {}, "qwen3"},
      {"qwen3",
       {{"sliding_window", 7}, {"use_sliding_window", true}, {"layer_types", {sliding, full, sliding}}},
       7,
       {1},
       "qwen3"},
      {"qwen3", {{"sliding_window", nullptr}, {"layer_types", {full, full, full}}}, 0, {}, "qwen3"},
      {"ministral", {{"sliding_window", 7}, {"layer_types", {full, sliding, sliding}}}, 7, {0}, "ministral"},
      {"ministral", {{"sliding_window", 7}}, 7, {}, "mistral"},
      {"mistral", json::object(), 4096, {}, "mistral"},
      {"ministral", json::object(), 4096, {}, "mistral"},
      {"ministral", {{"sliding_window", nullptr}}, 0, {}, "llama"},
      {"qwen2", json::object(), 0, {}, "qwen2"},
      {"qwen3", {{"use_sliding_window", true}, {"max_window_layers", 1}}, 4096, {0}, "qwen3"},
      {"llama", json::object(), 0, {}, "llama"},
  };
  json config = {{"hidden_size", 8},         {"intermediate_size", 16},  {"max_position_embeddings", 16},
                 {"num_attention_heads", 2}, {"num_key_value_heads", 2}, {"num_hidden_layers", 3},
                 {"vocab_size", 32}};
  for (const auto& c : cases) {
    json given = config;
    given["model_type"] = c.type;
    given.update(c.more);
    given = json::parse(given.dump());  // numbers as in a file, unsigned
    SCOPED_TRACE(given.dump());
    const absl::StatusOr<Model> model = LlamaFamily().FromConfig(given);
    ASSERT_TRUE(model.ok()) << model.status();
    const Model resolved = *Resolve(*model);
    EXPECT_EQ(resolved.llama().window(), c.window);
    EXPECT_EQ(std::vector<uint32_t>(resolved.llama().full_layers().begin(), resolved.llama().full_layers().end()),
              c.full);
    const json written = json::parse(LlamaFamily().ToConfig(resolved).dump());
    EXPECT_EQ(written["model_type"], c.written);
    EXPECT_EQ(Resolve(*LlamaFamily().FromConfig(written))->ShortDebugString(), resolved.ShortDebugString());
  }
  const auto says = [&](const char* type, const json& more, const std::string& message) {
    json given = config;
    given["model_type"] = type;
    given.update(more);
    given = json::parse(given.dump());
    EXPECT_TRUE(absl::StartsWith(LlamaFamily().FromConfig(given).status().message(), message))
        << LlamaFamily().FromConfig(given).status();
  };
  says("qwen2", {{"sliding_window", 7}, {"layer_types", {full, sliding, full}}},
       "layer_types has sliding_attention, but sliding_window is missing or not used");
  says("mistral", {{"sliding_window", 7}, {"layer_types", {full, sliding, full}}},
       "layer_types is [\"full_attention\",\"sliding_attention\",\"full_attention\"], which transformers' Mistral");
  says("mistral", {{"layer_types", {full, full, full}}},
       "layer_types is [\"full_attention\",\"full_attention\",\"full_attention\"], which transformers' Mistral");
  says("qwen3", {{"layer_types", {full, "linear_attention", full}}}, "layer_types[1] is \"linear_attention\"");
  says("qwen3", {{"layer_types", "full_attention"}}, "layer_types is not a list of 3 layers");
  says("qwen2", {{"use_sliding_window", 1}}, "use_sliding_window is neither true nor false");
  says("mistral", {{"sliding_window", -1}}, "sliding_window is missing, or no whole number");
  says("qwen2", {{"max_window_layers", "all"}}, "max_window_layers is missing, or no whole number");
}

// As `AutoConfig.for_model(...)` of transformers 5.23 prints them: num_key_value_heads, and head_dim or, where that is
// None, hidden_size / num_attention_heads.
TEST(Llama, HeadsThatAFileLeavesOutAreTransformers) {
  const struct {
    const char* type;
    uint32_t key_value_heads, head_width;
  } cases[] = {{"llama", 64, 2}, {"mistral", 8, 2}, {"ministral", 8, 2}, {"qwen2", 32, 2}, {"qwen3", 32, 128}};
  for (const auto& c : cases) {
    const json config = {{"model_type", c.type},         {"hidden_size", 128},     {"intermediate_size", 16},
                         {"num_attention_heads", 64},    {"num_hidden_layers", 3}, {"vocab_size", 32},
                         {"max_position_embeddings", 16}};
    const absl::StatusOr<Model> model = LlamaFamily().FromConfig(json::parse(config.dump()));
    ASSERT_TRUE(model.ok()) << c.type << ": " << model.status();
    const Llama resolved = Resolve(*model)->llama();
    EXPECT_EQ(resolved.key_value_heads(), c.key_value_heads) << c.type;
    EXPECT_EQ(resolved.head_width(), c.head_width) << c.type;
  }
}

// A query of layer 0 sees 5 of 16 keys: 5 * 16 - 5 * 5 / 2 pairs, of which each takes two GEMMs of two FLOPs by
// element.
TEST(Llama, AWindowCountsInFlopsAndInTheShapeOfAttention) {
  Model model;
  Llama& m = *model.mutable_llama();
  m.set_layers(2), m.set_heads(6), m.set_width(48), m.set_inner(100), m.set_vocabulary(256), m.set_context(16);
  const Inventory whole = *MakeInventory(model);
  m.set_window(5), m.add_full_layers(1);
  const Inventory inventory = *MakeInventory(model);
  EXPECT_EQ(inventory.units(1).attention().window(), 5u);
  EXPECT_EQ(inventory.units(2).attention().window(), 0u);
  EXPECT_EQ(whole.units(1).forward_flops() - inventory.units(1).forward_flops(), 4.0 * 48 * (16 * 16 / 2 - 67.5));
  EXPECT_EQ(whole.units(2).forward_flops(), inventory.units(2).forward_flops());
  m.set_window(16);
  EXPECT_EQ(MakeInventory(model)->units(1).SerializeAsString(), whole.units(1).SerializeAsString());
  // On a GPU attention's result is kept by block and whole, and there is a mask; and shared keys and values are
  // repeated.
  m.set_window(5), m.set_context(1024);
  const Inventory windowed = *MakeInventory(model, DEVICE_CUDA);
  EXPECT_EQ(windowed.units(1).saved_bytes() - windowed.units(2).saved_bytes(), 4u * 1024 * 48);
  EXPECT_EQ(windowed.units(1).backward_constant_bytes(), 4u * 128 * (16 + 128));
  m.set_key_value_heads(2);
  const Inventory grouped = *MakeInventory(model, DEVICE_CUDA);
  EXPECT_EQ(grouped.units(1).saved_bytes() - grouped.units(2).saved_bytes(), 3 * 4u * 1024 * 48);
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
  says([](Llama& l) { l.mutable_rope_scaling()->set_kind(ROPE_SCALING_KIND_LINEAR); }, "rope_scaling.factor: missing");
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
  const auto scaled = [](RopeScalingKind kind, auto change) {
    return [=](Llama& l) {
      RopeScaling& scaling = *l.mutable_rope_scaling();
      scaling.set_kind(kind), scaling.set_factor(2), scaling.set_original_context(8);
      change(scaling);
    };
  };
  says(scaled(ROPE_SCALING_KIND_DYNAMIC, [](RopeScaling& s) { s.clear_original_context(); }),
       "rope_scaling.original_context: missing");
  says(scaled(ROPE_SCALING_KIND_DYNAMIC, [](RopeScaling& s) { s.set_attention_factor(1); }),
       "rope_scaling.attention_factor: of yarn and longrope only");
  says(scaled(ROPE_SCALING_KIND_DYNAMIC, [](RopeScaling& s) { s.add_long_factors(1); }),
       "rope_scaling.long_factors: of kind longrope only");
  says(scaled(ROPE_SCALING_KIND_LONGROPE, [](RopeScaling& s) { s.add_short_factors(1); }),
       "rope_scaling.short_factors: must be 4 numbers, half of head_width, got 1");
  says(scaled(ROPE_SCALING_KIND_LONGROPE,
              [](RopeScaling& s) {
                for (int i = 0; i < 4; ++i) s.add_short_factors(1), s.add_long_factors(-i);
              }),
       "rope_scaling.long_factors: must be greater than 0");
  says(
      [](Llama& l) {
        l.set_head_width(2);
        l.mutable_rope_scaling()->set_kind(ROPE_SCALING_KIND_DYNAMIC);
        l.mutable_rope_scaling()->set_factor(2), l.mutable_rope_scaling()->set_original_context(8);
      },
      "rope_scaling.kind: dynamic stretches");
  says([](Llama& l) { l.set_window(0); }, "window: must be 1 to");
  says([](Llama& l) { l.add_full_layers(0); }, "full_layers: without window every layer attends to all; give window");
  says([](Llama& l) { l.set_window(2), l.add_full_layers(2); }, "full_layers: layer 2 of 2, which are numbered from 0");
  says([](Llama& l) { l.set_window(2), l.add_full_layers(1), l.add_full_layers(1); },
       "full_layers: must ascend, got 1 after 1");
}

// Su et al. 2021, section 3.4.3: base^(-2i/d).
TEST(Llama, FrequenciesWithoutScaling) {
  Model model = OfSize(LLAMA_SIZE_TINY);
  const std::vector<double> frequencies = RopeFrequencies(Resolve(model)->llama());
  ASSERT_EQ(frequencies.size(), 16u);
  EXPECT_DOUBLE_EQ(frequencies[0], 1);
  EXPECT_NEAR(frequencies[8], 0.01, 1e-15);
}

// ROPE_INIT_FUNCTIONS of transformers 5.23, called with seq_len = context, of 2 heads, hidden_size 16 and base 10,000:
// "dynamic" with factor 3 and max_position_embeddings 16, "longrope" with original_max_position_embeddings 16 and
// max_position_embeddings 64.
TEST(Llama, DynamicAndLongropeFrequenciesAreTransformers) {
  const struct {
    RopeScalingKind kind;
    uint32_t context;
    std::vector<double> frequencies;
    double amplitude;
  } cases[] = {
      {ROPE_SCALING_KIND_DYNAMIC, 8, {1, 0.1, 0.01, 0.001}, 1},
      {ROPE_SCALING_KIND_DYNAMIC, 16, {1, 0.1, 0.01, 0.001}, 1},
      {ROPE_SCALING_KIND_DYNAMIC, 17, {1, 0.09443264454603195, 0.008917522616684437, 0.0008421052480116487}, 1},
      {ROPE_SCALING_KIND_DYNAMIC, 40, {1, 0.05665163695812225, 0.0032094076741486788, 0.0001818181772250682}, 1},
      {ROPE_SCALING_KIND_LONGROPE, 8, {1, 0.06666667014360428, 0.005, 0.0004}, 1.224744871391589},
      {ROPE_SCALING_KIND_LONGROPE, 16, {1, 0.06666667014360428, 0.005, 0.0004}, 1.224744871391589},
      {ROPE_SCALING_KIND_LONGROPE, 17, {1, 0.025, 0.0011111111380159855, 6.25000029685907e-05}, 1.224744871391589},
      {ROPE_SCALING_KIND_LONGROPE, 64, {1, 0.025, 0.0011111111380159855, 6.25000029685907e-05}, 1.224744871391589},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(absl::StrCat(RopeScalingKind_Name(c.kind), " ", c.context));
    Model model;
    Llama& m = *model.mutable_llama();
    m.set_layers(1), m.set_heads(2), m.set_width(16), m.set_inner(16), m.set_vocabulary(8), m.set_context(c.context);
    RopeScaling& scaling = *m.mutable_rope_scaling();
    scaling.set_kind(c.kind);
    scaling.set_factor(c.kind == ROPE_SCALING_KIND_DYNAMIC ? 3 : 4);
    scaling.set_original_context(16);
    if (c.kind == ROPE_SCALING_KIND_LONGROPE) {
      for (const double x : {1.0, 1.5, 2.0, 2.5}) scaling.add_short_factors(x);
      for (const double x : {1.0, 4.0, 9.0, 16.0}) scaling.add_long_factors(x);
    }
    const absl::StatusOr<Model> resolved = Resolve(model);
    ASSERT_TRUE(resolved.ok()) << resolved.status();
    const std::vector<double> frequencies = RopeFrequencies(resolved->llama());
    ASSERT_EQ(frequencies.size(), c.frequencies.size());
    for (size_t i = 0; i < frequencies.size(); ++i) EXPECT_NEAR(frequencies[i] / c.frequencies[i], 1, 1e-6) << i;
    EXPECT_NEAR(RopeAmplitude(resolved->llama()), c.amplitude, 1e-12);
    // Both ways; of dynamic a file's context is the original one.
    const json written = json::parse(LlamaFamily().ToConfig(*resolved).dump());
    Model again = *Resolve(*LlamaFamily().FromConfig(written));
    if (c.kind == ROPE_SCALING_KIND_DYNAMIC) {
      EXPECT_EQ(again.llama().context(), 16u);
      again.mutable_llama()->set_context(c.context);
    }
    EXPECT_EQ(again.ShortDebugString(), resolved->ShortDebugString());
  }
  // Phi 3's files have the original context outside, and no factor.
  const absl::StatusOr<Model> outside = LlamaFamily().FromConfig(json::parse(
      R"({"model_type": "llama", "hidden_size": 16, "intermediate_size": 16, "max_position_embeddings": 64,
          "num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 8, "original_max_position_embeddings": 16,
          "rope_scaling": {"type": "longrope", "short_factor": [1, 1, 1, 1], "long_factor": [1, 2, 3, 4]}})"));
  ASSERT_TRUE(outside.ok()) << outside.status();
  EXPECT_EQ(outside->llama().rope_scaling().factor(), 4);
  EXPECT_NEAR(RopeAmplitude(Resolve(*outside)->llama()), 1.224744871391589, 1e-12);
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
  other = model;
  other.mutable_llama()->set_window(9), other.mutable_llama()->add_full_layers(1);
  other.mutable_llama()->add_full_layers(3);
  EXPECT_EQ(CheckSame(other, model).message(),
            "sliding_window 9, but model.window is 0; layer_types [1, 3], but model.full_layers is []");
  Model gpt2;
  gpt2.mutable_gpt2()->set_size(GPT2_SIZE_TINY);
  EXPECT_EQ(CheckSame(*Resolve(gpt2), model).message(), "family gpt2, but model.family is llama");
}

TEST(Llama, AJobsOwnListReplacesThatOfTheFolder) {
  Model folder = OfSize(LLAMA_SIZE_TINY), job;
  folder.mutable_llama()->set_window(9), folder.mutable_llama()->add_full_layers(1);
  job.mutable_llama()->add_full_layers(1);
  job.mutable_llama()->set_context(64);
  const Llama both = Overlaid(folder, job).llama();
  EXPECT_EQ(both.full_layers_size(), 1) << "not appended";
  EXPECT_EQ(both.window(), 9u);
  EXPECT_EQ(both.context(), 64u);
  EXPECT_EQ(Overlaid(folder, Model()).SerializeAsString(), folder.SerializeAsString());
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
