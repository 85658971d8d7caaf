#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <set>

#include <nlohmann/json.hpp>
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "checkpoint/file.h"
#include "checkpoint/hugging_face.h"

namespace muster::checkpoint {
namespace {

using nlohmann::json;

constexpr uint64_t kReadElements = 1 << 18;
constexpr uint64_t kMaxJsonBytes = 100 << 20;

bool Exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

absl::StatusOr<json> ReadJson(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadText(path, kMaxJsonBytes);
  if (!text.ok()) return text.status();
  json parsed = json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return absl::InvalidArgumentError(absl::StrCat(path, " is no JSON object: was it cut?"));
  return parsed;
}

float FromHalf(uint16_t half) {
  const uint32_t sign = uint32_t{half & 0x8000u} << 16, exponent = half >> 10 & 31, fraction = half & 1023;
  if (exponent == 0) {  // zero, or fraction * 2^-24
    const float value = static_cast<float>(fraction) * 0x1p-24f;
    return sign != 0 ? -value : value;
  }
  const uint32_t wide = exponent == 31 ? 255 : exponent + 112;
  return std::bit_cast<float>(sign | wide << 23 | fraction << 13);
}

float FromBfloat(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

float FromDouble(double value) { return static_cast<float>(value); }

template <typename T>
absl::Status ReadConverted(const SafetensorsFile& file, const TensorEntry& entry, const TensorRun& run,
                           float (*convert)(T)) {
  std::vector<T> raw;
  for (uint64_t begin = 0; begin < run.values.size(); begin += raw.size()) {
    raw.resize(std::min<uint64_t>(kReadElements, run.values.size() - begin));
    absl::Status status =
        file.Read(entry, (run.begin + begin) * sizeof(T), raw.size() * sizeof(T), reinterpret_cast<char*>(raw.data()));
    if (!status.ok()) return status;
    std::transform(raw.begin(), raw.end(), run.values.begin() + static_cast<ptrdiff_t>(begin), convert);
  }
  return absl::OkStatus();
}

// The causal mask, which older versions saved though it is no parameter.
bool IsMask(absl::string_view name) {
  return absl::EndsWith(name, ".attn.bias") || absl::EndsWith(name, ".attn.masked_bias");
}

// Settings that change what the model computes, with the only supported value.
absl::Status CheckVariant(const std::string& path, const json& config) {
  const auto refuse = [&](const std::string& key, const std::string& expected) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": ", key, " is ", config[key].dump(), ", this build computes ", expected, " only"));
  };
  const std::pair<const char*, bool> flags[] = {{"tie_word_embeddings", true},
                                                {"scale_attn_weights", true},
                                                {"scale_attn_by_inverse_layer_idx", false},
                                                {"add_cross_attention", false}};
  if (config.value("model_type", json("gpt2")) != "gpt2") return refuse("model_type", "\"gpt2\"");
  for (const auto& [key, expected] : flags) {
    if (config.contains(key) && config[key] != expected) return refuse(key, expected ? "true" : "false");
  }
  const json activation = config.value("activation_function", json("gelu_new"));
  if (activation != "gelu_new" && activation != "gelu_pytorch_tanh")
    return refuse("activation_function", "\"gelu_new\"");
  if (config.value("layer_norm_epsilon", json(1e-5)) != 1e-5) return refuse("layer_norm_epsilon", "1e-5");
  if (const json inner = config.value("n_inner", json()); !inner.is_null() && inner != 4 * config.value("n_embd", 0)) {
    return refuse("n_inner", "4 n_embd");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Gpt2> ReadHuggingFaceConfig(const std::string& directory) {
  const std::string path = absl::StrCat(directory, "/", kConfigFile);
  const absl::StatusOr<json> config = ReadJson(path);
  if (!config.ok()) return config.status();
  Gpt2 model;
  const std::pair<const char*, void (Gpt2::*)(uint32_t)> numbers[] = {{"n_layer", &Gpt2::set_layers},
                                                                      {"n_head", &Gpt2::set_heads},
                                                                      {"n_embd", &Gpt2::set_width},
                                                                      {"vocab_size", &Gpt2::set_vocabulary},
                                                                      {"n_positions", &Gpt2::set_context}};
  if (config->contains("model_type") && (*config)["model_type"] != "gpt2") return CheckVariant(path, *config);
  for (const auto& [name, set] : numbers) {
    // The first configurations used another name.
    const std::string key = name == std::string_view("n_positions") && !config->contains(name) ? "n_ctx" : name;
    if (!config->contains(key) || !(*config)[key].is_number_unsigned() || (*config)[key].get<uint64_t>() > UINT32_MAX) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": ", name, " is missing, or no whole number"));
    }
    (model.*set)((*config)[key].get<uint32_t>());
  }
  if (absl::Status status = CheckVariant(path, *config); !status.ok()) return status;
  return model;
}

absl::StatusOr<Gpt2> ReadModel(const std::string& path) {
  const std::vector<std::string> folders = StepFolders(path);
  if (folders.empty()) return ReadHuggingFaceConfig(path);
  const absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(folders.front(), Verification::kAsRead);
  if (!checkpoint.ok()) return checkpoint.status();
  const Model& model = checkpoint->manifest().spec().train().model();
  if (!model.has_gpt2()) {
    return absl::FailedPreconditionError(absl::StrCat(folders.front(), " is of another family than GPT-2"));
  }
  Gpt2 numbers = model.gpt2();
  numbers.clear_size();
  return numbers;
}

absl::StatusOr<HuggingFaceModel> HuggingFaceModel::Open(const std::string& directory) {
  absl::StatusOr<Gpt2> config = ReadHuggingFaceConfig(directory);
  if (!config.ok()) return config.status();
  HuggingFaceModel model;
  model.directory_ = directory;
  model.model_ = *std::move(config);
  const std::string single = directory + "/model.safetensors", index = directory + "/model.safetensors.index.json";
  std::set<std::string> files;
  if (Exists(single)) {
    files.insert("model.safetensors");
  } else if (Exists(index)) {
    const absl::StatusOr<json> read = ReadJson(index);
    if (!read.ok()) return read.status();
    const json map = read->value("weight_map", json());
    for (const auto& [tensor, file] : map.items()) {
      const std::string name = file.is_string() ? file.get<std::string>() : "";
      if (name.empty() || absl::StrContains(name, '/')) {
        return absl::InvalidArgumentError(
            absl::StrCat(index, ": weight_map names no file of this folder for ", tensor));
      }
      files.insert(name);
    }
    if (files.empty()) return absl::InvalidArgumentError(absl::StrCat(index, " has no weight_map"));
  } else if (Exists(directory + "/pytorch_model.bin")) {
    return absl::FailedPreconditionError(absl::StrCat(
        directory, " has its weights only as pytorch_model.bin, a pickle, which may run any code and is not read: ",
        "load and save it once with transformers, which writes model.safetensors"));
  } else {
    return absl::NotFoundError(absl::StrCat(directory, ": neither model.safetensors nor model.safetensors.index.json"));
  }
  for (const std::string& file : files) {
    if (absl::Status status = model.OpenFile(absl::StrCat(directory, "/", file)); !status.ok()) return status;
  }
  return model;
}

absl::Status HuggingFaceModel::OpenFile(const std::string& path) {
  absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(path);
  if (!file.ok()) return file.status();
  const std::vector<TensorEntry>& entries = file->header().tensors;
  for (size_t i = 0; i < entries.size(); ++i) {
    absl::string_view name = entries[i].name;
    absl::ConsumePrefix(&name, "transformer.");
    if (IsMask(name) || name == "lm_head.weight") continue;  // the head is the embedding
    const bool known = absl::StartsWith(name, "wte.") || absl::StartsWith(name, "wpe.") ||
                       absl::StartsWith(name, "ln_f.") || absl::StartsWith(name, "h.");
    if (!known) return absl::InvalidArgumentError(absl::StrCat(path, ": GPT-2 has no tensor ", entries[i].name));
    if (absl::ConsumePrefix(&name, "h.")) {
      // More of them would be another model's first layers.
      uint32_t layer = 0;
      if (!absl::SimpleAtoi(name.substr(0, name.find('.')), &layer) || layer >= model_.layers()) {
        return absl::InvalidArgumentError(
            absl::StrCat(path, ": ", entries[i].name, ": config.json says ", model_.layers(), " layers"));
      }
      name = absl::StripPrefix(entries[i].name, "transformer.");
    }
    if (!tensors_.emplace(std::string(name), std::pair(files_.size(), i)).second) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": ", entries[i].name, " is there twice"));
    }
  }
  files_.push_back(*std::move(file));
  return absl::OkStatus();
}

absl::Status HuggingFaceModel::Read(const TensorRun& run) const {
  const auto wrong = [&](auto... what) {
    return absl::FailedPreconditionError(absl::StrCat(directory_, ": ", run.name, ": ", what...));
  };
  const auto found = tensors_.find(run.name);
  if (found == tensors_.end())
    return wrong("no such tensor: the folder is incomplete, or config.json belongs to another model");
  const SafetensorsFile& file = files_[found->second.first];
  const TensorEntry& entry = file.header().tensors[found->second.second];
  if (entry.shape != run.shape) {
    return wrong("shape [", absl::StrJoin(entry.shape, ", "), "], expected [", absl::StrJoin(run.shape, ", "), "]");
  }
  if (entry.dtype == "F32") {
    return file.Read(entry, run.begin * 4, run.values.size() * 4, reinterpret_cast<char*>(run.values.data()));
  }
  if (entry.dtype == "F64") return ReadConverted<double>(file, entry, run, FromDouble);
  if (entry.dtype == "F16") return ReadConverted<uint16_t>(file, entry, run, FromHalf);
  if (entry.dtype == "BF16") return ReadConverted<uint16_t>(file, entry, run, FromBfloat);
  return wrong("dtype ", entry.dtype, ", expected F64, F32, F16 or BF16");
}

}  // namespace muster::checkpoint
