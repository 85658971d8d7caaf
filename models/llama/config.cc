#include "models/llama/config.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "models/config.h"
#include "models/inventory_build.h"

namespace muster::models {
namespace {

using nlohmann::json;

struct LlamaNumber {
  const char *field, *key;  // in the spec, in config.json
  void (Llama::*set)(uint32_t);
  uint32_t (Llama::*get)() const;
};
constexpr LlamaNumber kLlamaNumbers[] = {
    {"layers", "num_hidden_layers", &Llama::set_layers, &Llama::layers},
    {"heads", "num_attention_heads", &Llama::set_heads, &Llama::heads},
    {"key_value_heads", "num_key_value_heads", &Llama::set_key_value_heads, &Llama::key_value_heads},
    {"width", "hidden_size", &Llama::set_width, &Llama::width},
    {"head_width", "head_dim", &Llama::set_head_width, &Llama::head_width},
    {"inner", "intermediate_size", &Llama::set_inner, &Llama::inner},
    {"vocabulary", "vocab_size", &Llama::set_vocabulary, &Llama::vocabulary},
    {"context", "max_position_embeddings", &Llama::set_context, &Llama::context}};

// Of transformers' configuration classes, for keys that a file may leave out, where they are not what Resolve takes.
struct ClassDefault {
  const char *type, *key;
  uint32_t value;
};
constexpr ClassDefault kClassDefaults[] = {{"mistral", "num_key_value_heads", 8},
                                           {"mistral", "sliding_window", 4096},
                                           {"ministral", "num_key_value_heads", 8},
                                           {"ministral", "sliding_window", 4096},
                                           {"qwen2", "num_key_value_heads", 32},
                                           {"qwen2", "sliding_window", 4096},
                                           {"qwen3", "num_key_value_heads", 32},
                                           {"qwen3", "sliding_window", 4096},
                                           {"qwen3", "head_dim", 128}};

// 0: the class has none, or the key is there, be it null.
uint32_t DefaultOfClass(const json& config, const std::string& key) {
  if (config.contains(key)) return 0;
  const json type = config.value("model_type", json());
  for (const ClassDefault& each : kClassDefaults) {
    if (type == each.type && key == each.key) return each.value;
  }
  return 0;
}

constexpr char kSliding[] = "sliding_attention", kFull[] = "full_attention";

absl::Status Refused(const std::string& key, const json& value, absl::string_view why) {
  return absl::FailedPreconditionError(absl::StrCat(key, " is ", value.dump(), ", ", why));
}

absl::Status ReadLongrope(const json& rope, Llama& m) {
  RopeScaling& scaling = *m.mutable_rope_scaling();
  for (const auto& [key, factors] : {std::pair("short_factor", scaling.mutable_short_factors()),
                                     std::pair("long_factor", scaling.mutable_long_factors())}) {
    const json list = rope.value(key, json());
    if (!list.is_array() || list.size() > m.width()) {
      return absl::InvalidArgumentError(absl::StrCat("rope_scaling.", key, " is missing or not a list of numbers"));
    }
    for (const json& x : list) {
      if (!x.is_number())
        return absl::InvalidArgumentError(absl::StrCat("rope_scaling.", key, " is not a list of numbers"));
      factors->Add(x.get<double>());
    }
  }
  // Below 1, as 1, it leaves sine and cosine as they are.
  const double times = scaling.has_factor() ? scaling.factor() : 1.0 * m.context() / scaling.original_context();
  scaling.set_factor(std::max(times, 1.0));
  return absl::OkStatus();
}

// config.json's rope_scaling, or what newer versions call rope_parameters.
absl::Status ReadScaling(const json& config, Llama& m) {
  json rope = config.value("rope_parameters", json());
  if (rope.is_null()) rope = config.value("rope_scaling", json());
  if (rope.is_null()) rope = json::object();
  if (!rope.is_object()) return absl::InvalidArgumentError("rope_scaling is not an object");
  const auto read = [&](const char* key, auto set) -> absl::Status {
    if (!rope.contains(key) || rope[key].is_null()) return absl::OkStatus();
    const absl::StatusOr<double> value = ReadReal(rope, key, 0);
    if (value.ok()) set(*value);
    return value.status();
  };
  // Newer versions have the base among the parameters.
  const absl::StatusOr<double> base = ReadReal(rope.contains("rope_theta") ? rope : config, "rope_theta", 10'000);
  if (!base.ok()) return base.status();
  m.set_rope_base(*base);
  const json type = rope.contains("rope_type") ? rope["rope_type"] : rope.value("type", json("default"));
  if (type == "default") return absl::OkStatus();
  RopeScaling& scaling = *m.mutable_rope_scaling();
  if (type == "linear") {
    scaling.set_kind(ROPE_SCALING_KIND_LINEAR);
  } else if (type == "llama3") {
    scaling.set_kind(ROPE_SCALING_KIND_LLAMA3);
  } else if (type == "yarn") {
    scaling.set_kind(ROPE_SCALING_KIND_YARN);
  } else if (type == "dynamic") {
    scaling.set_kind(ROPE_SCALING_KIND_DYNAMIC);
  } else if (type == "longrope") {
    scaling.set_kind(ROPE_SCALING_KIND_LONGROPE);
  } else {
    return absl::FailedPreconditionError(
        absl::StrCat("rope_scaling.rope_type is ", type.dump(),
                     ", this build computes \"linear\", \"llama3\", \"yarn\", \"dynamic\" and \"longrope\" only"));
  }
  if (scaling.kind() == ROPE_SCALING_KIND_YARN) {
    for (const char* key : {"mscale", "mscale_all_dim"}) {
      if (absl::Status s = CheckOnly(rope, key, nullptr); !s.ok()) return s;
    }
    if (absl::Status s = CheckOnly(rope, "truncate", true); !s.ok()) return s;
  }
  const bool with_amplitude =
      scaling.kind() == ROPE_SCALING_KIND_YARN || scaling.kind() == ROPE_SCALING_KIND_LONGROPE;  // others ignore it
  for (absl::Status s : {read("factor", [&](double x) { scaling.set_factor(x); }),
                         read("low_freq_factor", [&](double x) { scaling.set_low_frequency_factor(x); }),
                         read("high_freq_factor", [&](double x) { scaling.set_high_frequency_factor(x); }),
                         read("beta_fast", [&](double x) { scaling.set_beta_fast(x); }),
                         read("beta_slow", [&](double x) { scaling.set_beta_slow(x); }),
                         with_amplitude ? read("attention_factor", [&](double x) { scaling.set_attention_factor(x); })
                                        : absl::OkStatus()}) {
    if (!s.ok()) return s;
  }
  // Where a file names no original context, `transformers` takes the model's own; of dynamic always. Phi 3's files have
  // it beside the scaling, which takes precedence.
  const bool outside = !config.value("original_max_position_embeddings", json()).is_null();
  const absl::StatusOr<uint32_t> original =
      ReadNumber(outside ? config : rope, "original_max_position_embeddings", m.context());
  if (!original.ok()) return original.status();
  if (scaling.kind() == ROPE_SCALING_KIND_DYNAMIC) {
    scaling.set_original_context(m.context());
  } else if (scaling.kind() != ROPE_SCALING_KIND_LINEAR) {
    scaling.set_original_context(*original);
  }
  return scaling.kind() == ROPE_SCALING_KIND_LONGROPE ? ReadLongrope(rope, m) : absl::OkStatus();
}

// Which layers have the window. Only Qwen's and Ministral's classes ask for each layer; Mistral's has it in all, and
// Llama's in none.
absl::Status ReadWindow(const json& config, Llama& m) {
  if (m.layers() > kMaxLlamaLayers) return absl::OkStatus();  // Resolve refuses so many
  const json& type = config["model_type"];
  const bool qwen = type == "qwen2" || type == "qwen3", by_layer = qwen || type == "ministral";
  const absl::StatusOr<bool> used = ReadFlag(config, "use_sliding_window", false);
  if (!used.ok()) return used.status();
  const absl::StatusOr<uint32_t> window =
      ReadNumber(config, "sliding_window", DefaultOfClass(config, "sliding_window"));
  if (!window.ok()) return window.status();
  if (*window == 0 && !config.value("sliding_window", json()).is_null()) {
    return absl::InvalidArgumentError("sliding_window is 0, so no position would attend to any");
  }
  const bool given = *window > 0 && (!qwen || *used) && (type != "llama" || *window < m.context());
  if (given && type == "llama") {
    return Refused("sliding_window", config["sliding_window"],
                   "which transformers' Llama does not read: remove it, or name the model_type that has it (mistral)");
  }
  // Qwen's first layers have none; this is its classes' default.
  const absl::StatusOr<uint32_t> first = ReadNumber(config, "max_window_layers", 28);
  if (!first.ok()) return first.status();
  json types = config.value("layer_types", json());
  if (types.is_null()) {
    types = json::array();
    for (uint32_t layer = 0; layer < m.layers(); ++layer) {
      types.push_back(given && (!qwen || layer >= *first) ? kSliding : kFull);
    }
  }
  if (!types.is_array() || types.size() != m.layers()) {
    return absl::InvalidArgumentError(absl::StrCat("layer_types is not a list of ", m.layers(), " layers"));
  }
  std::vector<uint32_t> full;
  for (uint32_t layer = 0; layer < m.layers(); ++layer) {
    if (types[layer] == kFull) {
      full.push_back(layer);
    } else if (types[layer] != kSliding) {
      return Refused(absl::StrCat("layer_types[", layer, "]"), types[layer],
                     "this build computes \"full_attention\" and \"sliding_attention\" only");
    }
  }
  const bool sliding = full.size() < m.layers();
  if (sliding && !given) {
    return absl::FailedPreconditionError(
        "layer_types has sliding_attention, but sliding_window is missing or not used");
  }
  if (given && !full.empty() && !by_layer) {
    return Refused("layer_types", config["layer_types"], "which transformers' Mistral does not read: ministral does");
  }
  if (!sliding) return absl::OkStatus();
  m.set_window(*window);
  for (const uint32_t layer : full) m.add_full_layers(layer);
  return absl::OkStatus();
}

void WriteWindow(const Llama& m, bool qwen, nlohmann::ordered_json& config) {
  const bool windowed = m.has_window();
  config["sliding_window"] = windowed ? json(m.window()) : json();
  if (qwen) config["use_sliding_window"] = windowed;
  if (!windowed) return;
  std::vector<const char*> types(m.layers(), kSliding);
  for (const uint32_t layer : m.full_layers()) types[layer] = kFull;
  const auto first = std::find(types.begin(), types.end(), kSliding);
  // Versions before layer_types know this number alone.
  const bool prefix = std::find(first, types.end(), kFull) == types.end();
  if (qwen && prefix) config["max_window_layers"] = static_cast<uint32_t>(first - types.begin());
  config["layer_types"] = types;
}

nlohmann::ordered_json ScalingConfig(const RopeScaling& scaling) {
  switch (scaling.kind()) {
    case ROPE_SCALING_KIND_LLAMA3:
      return {{"rope_type", "llama3"},
              {"factor", scaling.factor()},
              {"low_freq_factor", scaling.low_frequency_factor()},
              {"high_freq_factor", scaling.high_frequency_factor()},
              {"original_max_position_embeddings", scaling.original_context()}};
    case ROPE_SCALING_KIND_YARN:
      return {{"rope_type", "yarn"},
              {"factor", scaling.factor()},
              {"beta_fast", scaling.beta_fast()},
              {"beta_slow", scaling.beta_slow()},
              {"attention_factor", scaling.attention_factor()},
              {"original_max_position_embeddings", scaling.original_context()}};
    case ROPE_SCALING_KIND_DYNAMIC:
      return {{"rope_type", "dynamic"}, {"factor", scaling.factor()}};
    case ROPE_SCALING_KIND_LONGROPE:
      return {
          {"rope_type", "longrope"},
          {"factor", scaling.factor()},
          {"short_factor", json(std::vector<double>(scaling.short_factors().begin(), scaling.short_factors().end()))},
          {"long_factor", json(std::vector<double>(scaling.long_factors().begin(), scaling.long_factors().end()))},
          {"attention_factor", scaling.attention_factor()},
          {"original_max_position_embeddings", scaling.original_context()}};
    default:
      return {{"rope_type", "linear"}, {"factor", scaling.factor()}};
  }
}

}  // namespace

bool IsLlamaConfig(const json& config) {
  const json type = config.value("model_type", json());
  return type == "llama" || type == "mistral" || type == "ministral" || type == "qwen2" || type == "qwen3";
}

absl::StatusOr<Llama> LlamaOfConfig(const json& config) {
  const json type = config.value("model_type", json());
  if (absl::Status s = CheckOnly(config, "hidden_act", "silu"); !s.ok()) return s;
  if (absl::Status s = CheckOnly(config, "mlp_bias", false); !s.ok()) return s;
  // Of Qwen 2's the three projections have biases without a word of it; elsewhere the flag means the output's, too.
  if (absl::Status s = CheckOnly(config, "attention_bias", false); !s.ok()) return s;
  Llama m;
  for (const LlamaNumber& number : kLlamaNumbers) {
    if (const uint32_t otherwise = DefaultOfClass(config, number.key); otherwise > 0) {
      (m.*number.set)(otherwise);
      continue;
    }
    const bool optional = number.set == &Llama::set_key_value_heads || number.set == &Llama::set_head_width;
    if (optional && (!config.contains(number.key) || config[number.key].is_null())) continue;
    const absl::StatusOr<uint32_t> value = ReadNumber(config, number.key);
    if (!value.ok()) return value.status();
    (m.*number.set)(*value);
  }
  // Qwen 2's classes have this default, and their files leave it out.
  const absl::StatusOr<double> epsilon = ReadReal(config, "rms_norm_eps", 1e-6);
  if (!epsilon.ok()) return epsilon.status();
  m.set_norm_epsilon(*epsilon);
  const absl::StatusOr<bool> tied = ReadFlag(config, "tie_word_embeddings", false);
  if (!tied.ok()) return tied.status();
  m.set_tied_head(*tied);
  m.set_qkv_bias(type == "qwen2");
  m.set_qk_norm(type == "qwen3");
  if (absl::Status s = ReadWindow(config, m); !s.ok()) return s;
  if (absl::Status s = ReadScaling(config, m); !s.ok()) return s;
  return m;
}

nlohmann::ordered_json ConfigOfLlama(const Llama& m) {
  const char *type = "llama", *architecture = "LlamaForCausalLM";
  const bool qwen = m.qkv_bias() || m.qk_norm();
  if (m.qkv_bias()) type = "qwen2", architecture = "Qwen2ForCausalLM";
  if (m.qk_norm()) type = "qwen3", architecture = "Qwen3ForCausalLM";
  if (!qwen && m.has_window()) {
    const bool all = m.full_layers().empty();
    type = all ? "mistral" : "ministral", architecture = all ? "MistralForCausalLM" : "MinistralForCausalLM";
  }
  nlohmann::ordered_json config = {{"architectures", {architecture}}, {"model_type", type}};
  for (const LlamaNumber& number : kLlamaNumbers) config[number.key] = (m.*number.get)();
  config["hidden_act"] = "silu";
  config["rms_norm_eps"] = m.norm_epsilon();
  config["rope_theta"] = m.rope_base();
  if (m.has_rope_scaling()) config["rope_scaling"] = ScalingConfig(m.rope_scaling());
  // There dynamic scaling starts beyond the model's own context.
  if (m.rope_scaling().kind() == ROPE_SCALING_KIND_DYNAMIC) {
    config["max_position_embeddings"] = m.rope_scaling().original_context();
  }
  if (qwen || m.has_window()) WriteWindow(m, qwen, config);
  config["tie_word_embeddings"] = m.tied_head();
  config["attention_bias"] = false;
  config["attention_dropout"] = 0.0;
  config["initializer_range"] = kStandardDeviation;
  config["torch_dtype"] = "float32";
  config["bos_token_id"] = nullptr;
  config["eos_token_id"] = nullptr;
  return config;
}

std::string LlamaConfigKey(absl::string_view field) {
  for (const LlamaNumber& number : kLlamaNumbers) {
    if (field == number.field) return field == "context" ? "" : number.key;  // a job's own choice
  }
  for (const auto& [name, key] : {std::pair<const char*, const char*>{"rope_base", "rope_theta"},
                                  {"rope_scaling", "rope_scaling"},
                                  {"norm_epsilon", "rms_norm_eps"},
                                  {"tied_head", "tie_word_embeddings"},
                                  {"qkv_bias", "attention_bias"},
                                  {"qk_norm", "qk_norm"},
                                  {"window", "sliding_window"},
                                  {"full_layers", "layer_types"}}) {
    if (field == name) return key;
  }
  return "";
}

}  // namespace muster::models
