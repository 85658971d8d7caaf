#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <set>

#include <nlohmann/json.hpp>
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checkpoint/bf16.h"
#include "checkpoint/file.h"
#include "checkpoint/hugging_face.h"
#include "models/family.h"
#include "models/inventory.h"

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
  if (!parsed.is_object()) return absl::InvalidArgumentError(absl::StrCat(path, " is not a JSON object: was it cut?"));
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

}  // namespace

absl::StatusOr<Model> ReadHuggingFaceConfig(const std::string& directory) {
  const std::string path = absl::StrCat(directory, "/", kConfigFile);
  const absl::StatusOr<json> config = ReadJson(path);
  std::error_code error;
  const bool folder = std::filesystem::is_directory(directory, error);
  if (absl::IsNotFound(config.status()) || (!config.ok() && !folder)) {
    return absl::NotFoundError(
        absl::StrCat(directory, folder ? absl::StrCat(" has no ", kConfigFile) : " is not a folder",
                     ": expected a Hugging Face model, a folder with ", kConfigFile, " and model.safetensors"));
  }
  if (!config.ok()) return config.status();
  const models::ModelFamily* family = models::FamilyOfConfig(*config);
  if (family == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": model_type is ", config->value("model_type", json()).dump(),
                     ", which none of this build's families computes: ", models::FamilyNames()));
  }
  absl::StatusOr<Model> model = family->FromConfig(*config);
  if (!model.ok()) return absl::Status(model.status().code(), absl::StrCat(path, ": ", model.status().message()));
  return model;
}

absl::StatusOr<Data> ReadPreprocessing(const std::string& directory) {
  const std::string path = absl::StrCat(directory, "/", kPreprocessorFile);
  Data data;
  if (!Exists(path)) return data;
  const absl::StatusOr<json> config = ReadJson(path);
  if (!config.ok()) return config.status();
  for (const char* key : {"image_mean", "image_std"}) {
    const json values = config->value(key, json::array());
    for (const json& value : values) {
      if (!values.is_array() || !value.is_number()) {
        return absl::InvalidArgumentError(absl::StrCat(path, ": ", key, " is not a list of numbers"));
      }
      if (key == absl::string_view("image_mean")) {
        data.add_mean(value.get<float>());
      } else {
        data.add_standard_deviation(value.get<float>());
      }
    }
  }
  return data;
}

absl::StatusOr<Model> ReadModel(const std::string& path) {
  const std::vector<std::string> folders = StepFolders(path);
  if (folders.empty()) return ReadHuggingFaceConfig(path);
  const absl::StatusOr<Opened> opened = OpenFirstWhole(folders, Verification::kAsRead);
  if (!opened.ok()) return opened.status();
  Model numbers = models::WithoutSize(opened->checkpoint.manifest().spec().train().model());
  numbers.clear_from();  // where that job's weights came from
  return numbers;
}

absl::StatusOr<HuggingFaceModel> HuggingFaceModel::Open(const std::string& directory) {
  const absl::StatusOr<Model> config = ReadHuggingFaceConfig(directory);
  if (!config.ok()) return config.status();
  absl::StatusOr<Inventory> inventory = models::MakeInventory(*config);
  if (!inventory.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(directory, "/", kConfigFile, ": ", inventory.status().message()));
  }
  HuggingFaceModel model;
  model.directory_ = directory;
  model.inventory_ = *std::move(inventory);
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
  std::set<std::string> known;
  for (const Unit& unit : inventory_.units()) {
    for (const Tensor& tensor : unit.tensors()) known.insert(tensor.name());
    for (const Tensor& tensor : unit.buffers()) known.insert(tensor.name());
  }
  const models::ModelFamily& family = *models::FamilyOf(inventory_.model());
  const std::vector<TensorEntry>& entries = file->header().tensors;
  for (size_t i = 0; i < entries.size(); ++i) {
    const std::string name = family.TensorName(inventory_.model(), entries[i].name);
    if (name.empty()) continue;
    // More of them would be another model's first layers.
    if (!known.contains(name)) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": a ", models::Describe(inventory_.model()),
                                                     " as in config.json has no tensor ", entries[i].name));
    }
    if (!tensors_.emplace(name, std::pair(files_.size(), i)).second) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": ", entries[i].name, " is there twice"));
    }
  }
  files_.push_back(*std::move(file));
  return absl::OkStatus();
}

absl::Status HuggingFaceModel::Read(const TensorRun& run) const {
  if (!run.bf16.empty()) return ReadAsBf16(run, [&](const TensorRun& part) { return Read(part); });
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
  // Stretches that are consecutive in the file.
  for (uint64_t at = 0; !run.box.whole() && at < run.values.size();) {
    const uint64_t n = std::min<uint64_t>(run.values.size() - at, run.box.Left(run.begin + at));
    const TensorRun part{run.name, run.shape, run.box.Whole(run.begin + at), run.values.subspan(at, n)};
    if (absl::Status status = Read(part); !status.ok() || at + n == run.values.size()) return status;
    at += n;
  }
  if (entry.dtype == "F32") {
    return file.Read(entry, run.begin * 4, run.values.size() * 4, reinterpret_cast<char*>(run.values.data()));
  }
  if (entry.dtype == "F64") return ReadConverted<double>(file, entry, run, FromDouble);
  if (entry.dtype == "F16") return ReadConverted<uint16_t>(file, entry, run, FromHalf);
  if (entry.dtype == "BF16") return ReadConverted<uint16_t>(file, entry, run, FromBf16);
  return wrong("dtype ", entry.dtype, ", expected F64, F32, F16 or BF16");
}

}  // namespace muster::checkpoint
