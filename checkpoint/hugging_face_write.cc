#include <errno.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "checkpoint/file.h"
#include "checkpoint/hugging_face.h"
#include "common/file/durable_file.h"
#include "common/file_error.h"
#include "models/family.h"
#include "models/tuning.h"

namespace muster::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr FileOptions kFile{.points = "export"};
constexpr uint64_t kWriteElements = 1 << 20;
constexpr uint64_t kMaxTokenizerBytes = 100 << 20;

struct Tensors {
  std::string file;
  SafetensorsHeader header;
  std::vector<TensorRun> runs;                   // without values
  std::map<std::string, const Tensor*> adapted;  // of the runs: those that an adapter is merged into
  uint64_t bytes = 0;
};

// Adds an adapter to parts of its weight.
class Merger {
 public:
  static absl::StatusOr<Merger> Read(const Checkpoint& checkpoint, const Tensor& weight) {
    Merger merger;
    const LowRank& low = weight.low_rank();
    merger.rank_ = checkpoint.manifest().spec().train().lora().rank();
    if (merger.rank_ == 0 || weight.shape_size() != 2 || weight.shape(1) == 0) {
      return absl::DataLossError(
          absl::StrCat(checkpoint.directory(), ": the manifest gives ", weight.name(), " an adapter and its job none"));
    }
    merger.scale_ = static_cast<float>(low.scale());
    merger.in_first_ = weight.linear() == LINEAR_LAYOUT_IN_OUT;
    merger.columns_ = weight.shape(1);
    const uint64_t in = weight.shape(merger.in_first_ ? 0 : 1), out = weight.shape(merger.in_first_ ? 1 : 0);
    merger.a_.resize(merger.rank_ * in);
    merger.b_.resize(out * merger.rank_);
    absl::Status status = checkpoint.Read({low.a(), {merger.rank_, in}, 0, absl::MakeSpan(merger.a_)});
    if (status.ok()) status = checkpoint.Read({low.b(), {out, merger.rank_}, 0, absl::MakeSpan(merger.b_)});
    if (!status.ok()) return status;
    return merger;
  }

  // `values`: elements of the weight from `begin` on.
  void Add(uint64_t begin, absl::Span<float> values) const {
    const uint64_t in = a_.size() / rank_;
    for (size_t i = 0; i < values.size(); ++i) {
      const uint64_t row = (begin + i) / columns_, column = (begin + i) % columns_;
      const uint64_t from = in_first_ ? row : column, to = in_first_ ? column : row;
      float sum = 0;
      for (uint64_t r = 0; r < rank_; ++r) sum += b_[to * rank_ + r] * a_[r * in + from];
      values[i] += scale_ * sum;
    }
  }

 private:
  std::vector<float> a_, b_;  // [rank, in], [out, rank]
  uint64_t rank_ = 0, columns_ = 0;
  bool in_first_ = false;
  float scale_ = 0;
};

// PEFT's name of a tensor: that in the model which it wraps.
constexpr char kPeftPrefix[] = "base_model.model.";

// Splits the tensors, or only those of adapters, into files in the inventory's order.
std::vector<Tensors> Distribute(const Inventory& inventory, const models::ModelFamily& family, bool adapters,
                                uint64_t max_bytes) {
  std::vector<Tensors> files(1);
  for (const Unit& unit : inventory.units()) {
    std::vector<const Tensor*> tensors;
    for (const Tensor& tensor : unit.tensors()) {
      if (models::IsAdapter(tensor.name()) == adapters) tensors.push_back(&tensor);
    }
    for (const Tensor& tensor : unit.buffers()) {
      if (!adapters) tensors.push_back(&tensor);
    }
    for (const Tensor* stored : tensors) {
      const Tensor& tensor = *stored;
      TensorRun run{.name = tensor.name(), .shape = {tensor.shape().begin(), tensor.shape().end()}};
      uint64_t bytes = sizeof(float);
      for (const uint64_t n : run.shape) bytes *= n;
      if (!files.back().runs.empty() && files.back().bytes + bytes > max_bytes) files.emplace_back();
      Tensors& file = files.back();
      if (tensor.has_low_rank()) file.adapted[run.name] = &tensor;
      file.header.tensors.push_back({.name = absl::StrCat(adapters ? kPeftPrefix : "", family.StoredName(run.name)),
                                     .dtype = "F32",
                                     .shape = run.shape,
                                     .begin = file.bytes,
                                     .end = file.bytes + bytes});
      file.bytes += bytes;
      file.runs.push_back(std::move(run));
    }
  }
  for (size_t i = 0; i < files.size(); ++i) {
    files[i].header.metadata["format"] = "pt";
    files[i].file = adapters            ? "adapter_model.safetensors"
                    : files.size() == 1 ? "model.safetensors"
                                        : absl::StrFormat("model-%05d-of-%05d.safetensors", i + 1, files.size());
  }
  return files;
}

absl::Status WriteTensors(const Checkpoint& checkpoint, const std::string& folder, const Tensors& tensors) {
  absl::StatusOr<DurableFile> file = DurableFile::CreateInPlace(absl::StrCat(folder, "/", tensors.file), kFile);
  if (!file.ok()) return file.status();
  if (absl::Status status = file->Write(EncodeHeader(tensors.header)); !status.ok()) return status;
  std::vector<float> values;
  for (size_t i = 0; i < tensors.runs.size(); ++i) {
    const uint64_t elements = (tensors.header.tensors[i].end - tensors.header.tensors[i].begin) / sizeof(float);
    TensorRun run = tensors.runs[i];
    std::optional<Merger> merger;
    if (const auto found = tensors.adapted.find(run.name); found != tensors.adapted.end()) {
      absl::StatusOr<Merger> read = Merger::Read(checkpoint, *found->second);
      if (!read.ok()) return read.status();
      merger = *std::move(read);
    }
    for (run.begin = 0; run.begin < elements; run.begin += values.size()) {
      values.resize(std::min(kWriteElements, elements - run.begin));
      run.values = absl::MakeSpan(values);
      if (absl::Status status = checkpoint.Read(run); !status.ok()) return status;
      if (merger.has_value()) merger->Add(run.begin, run.values);
      absl::Status status = file->Write({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
      if (!status.ok()) return status;
    }
  }
  return file->Commit();
}

absl::Status WriteJson(const std::string& path, const ordered_json& json) {
  return WriteInPlace(path, json.dump(2) + "\n", kFile);
}

absl::Status WriteIndex(const std::string& folder, const std::vector<Tensors>& files, uint64_t bytes) {
  ordered_json index = {{"metadata", {{"total_size", bytes}}}, {"weight_map", ordered_json::object()}};
  for (const Tensors& file : files) {
    for (const TensorEntry& tensor : file.header.tensors) index["weight_map"][tensor.name] = file.file;
  }
  return WriteJson(folder + "/model.safetensors.index.json", index);
}

// Of a file, also what describes it beside it. Other files there may be of another tokenizer.
absl::Status CopyTokenizer(const std::string& from, const std::string& folder) {
  std::vector<std::pair<fs::path, const char*>> names = {
      {"vocab.json", "vocab.json"}, {"encoder.json", "vocab.json"},       {"merges.txt", "merges.txt"},
      {"vocab.bpe", "merges.txt"},  {"tokenizer.json", "tokenizer.json"}, {"added_tokens.json", "added_tokens.json"}};
  std::error_code error;
  fs::path in = from;
  if (fs::is_regular_file(in, error)) {
    names = {{in.filename(), "tokenizer.json"}};
    in = in.parent_path();
  }
  for (const char* const name : {"tokenizer_config.json", "special_tokens_map.json"}) names.emplace_back(name, name);
  for (const auto& [name, as] : names) {
    const std::string source = (in / name).string(), target = absl::StrCat(folder, "/", as);
    if (!fs::exists(source, error) || fs::exists(target, error)) continue;
    const absl::StatusOr<std::string> text = ReadText(source, kMaxTokenizerBytes);
    if (!text.ok()) return text.status();
    if (absl::Status status = WriteInPlace(target, *text, kFile); !status.ok()) return status;
  }
  const bool pair = fs::exists(folder + "/vocab.json", error) && fs::exists(folder + "/merges.txt", error);
  if (pair || fs::exists(folder + "/tokenizer.json", error)) return absl::OkStatus();
  return absl::NotFoundError(
      absl::StrCat(from, " holds no tokenizer: expected tokenizer.json, or vocab.json and merges.txt"));
}

// What PeftModel.from_pretrained needs.
ordered_json AdapterConfig(const Train& train, const Inventory& inventory) {
  std::set<std::string> targets;
  bool in_first = false;
  for (const Unit& unit : inventory.units()) {
    for (const Tensor& tensor : unit.tensors()) {
      if (!tensor.has_low_rank()) continue;
      const absl::string_view module = absl::StripSuffix(tensor.name(), ".weight");
      targets.insert(std::string(module.substr(module.rfind('.') + 1)));
      in_first |= tensor.linear() == LINEAR_LAYOUT_IN_OUT;
    }
  }
  // Given targets say exactly which; all linear layers are named by their last parts.
  if (train.lora().targets_size() > 0) targets = {train.lora().targets().begin(), train.lora().targets().end()};
  return {{"peft_type", "LORA"},
          {"task_type", "CAUSAL_LM"},
          {"base_model_name_or_path", train.model().from()},
          {"r", train.lora().rank()},
          {"lora_alpha", train.lora().alpha()},
          {"lora_dropout", 0.0},
          {"bias", "none"},
          {"fan_in_fan_out", in_first},
          {"target_modules", targets},
          {"inference_mode", true}};
}

absl::Status CheckAdapter(const Checkpoint& checkpoint) {
  const Train& train = checkpoint.manifest().spec().train();
  if (!train.has_lora()) {
    return absl::FailedPreconditionError(
        absl::StrCat(checkpoint.directory(), " has no adapters: its job had no lora; leave out --adapter"));
  }
  for (const Unit& unit : checkpoint.manifest().inventory().units()) {
    for (const Tensor& tensor : unit.tensors()) {
      if (tensor.frozen() || models::IsAdapter(tensor.name())) continue;
      return absl::FailedPreconditionError(absl::StrCat(checkpoint.directory(), ": its job also trained ",
                                                        tensor.name(),
                                                        ", which adapters do not hold; leave out --adapter"));
    }
  }
  return absl::OkStatus();
}

absl::Status WriteAdapter(const Checkpoint& checkpoint, const models::ModelFamily& family, const std::string& folder,
                          Exported& exported) {
  if (absl::Status status = CheckAdapter(checkpoint); !status.ok()) return status;
  const Inventory& inventory = checkpoint.manifest().inventory();
  for (const Tensors& file : Distribute(inventory, family, /*adapters=*/true, std::numeric_limits<uint64_t>::max())) {
    if (absl::Status status = WriteTensors(checkpoint, folder, file); !status.ok()) return status;
    exported.bytes += file.bytes;
    ++exported.files;
  }
  return WriteJson(folder + "/adapter_config.json", AdapterConfig(checkpoint.manifest().spec().train(), inventory));
}

absl::Status WriteAll(const Checkpoint& checkpoint, const ExportOptions& options, const std::string& folder,
                      Exported& exported) {
  const Model& model = checkpoint.manifest().spec().train().model();
  const models::ModelFamily& family = *models::FamilyOf(model);
  if (options.adapter) return WriteAdapter(checkpoint, family, folder, exported);
  const std::vector<Tensors> files =
      Distribute(checkpoint.manifest().inventory(), family, /*adapters=*/false, options.max_shard_bytes);
  for (const Tensors& file : files) {
    if (absl::Status status = WriteTensors(checkpoint, folder, file); !status.ok()) return status;
    exported.bytes += file.bytes;
    ++exported.files;
  }
  if (files.size() > 1) {
    if (absl::Status status = WriteIndex(folder, files, exported.bytes); !status.ok()) return status;
  }
  const ordered_json config = family.ToConfig(model);
  if (absl::Status status = WriteJson(folder + "/config.json", config); !status.ok()) return status;
  if (config.contains("bos_token_id")) {
    const ordered_json generation = {{"_from_model_config", true},
                                     {"bos_token_id", config["bos_token_id"]},
                                     {"eos_token_id", config["eos_token_id"]}};
    if (absl::Status status = WriteJson(folder + "/generation_config.json", generation); !status.ok()) return status;
  }
  const Data& data = checkpoint.manifest().spec().train().data();
  if (data.mean_size() > 0) {  // also of an imported checkpoint, whose job has no images
    const std::vector<float> mean(data.mean().begin(), data.mean().end()),
        deviation(data.standard_deviation().begin(), data.standard_deviation().end());
    const ordered_json preprocessing = {{"do_rescale", true},
                                        {"rescale_factor", 1 / 255.0},
                                        {"do_normalize", true},
                                        {"image_mean", mean},
                                        {"image_std", deviation}};
    absl::Status status = WriteJson(absl::StrCat(folder, "/", kPreprocessorFile), preprocessing);
    if (!status.ok()) return status;
  }
  if (options.tokenizer_from.empty()) return absl::OkStatus();
  return CopyTokenizer(options.tokenizer_from, folder);
}

// The temporary path of exports to `out` from this host, up to the pid.
std::string StagingPrefix(const std::string& out) {
  char host[256] = "";
  if (gethostname(host, sizeof host - 1) != 0) host[0] = '\0';
  return absl::StrCat(out, ".part-", host, "-");
}

// Folders of processes that have ended. Another host's are never touched, because its processes are not visible here.
void RemoveStale(const std::string& prefix) {
  const fs::path path(prefix);
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  const std::string begin = path.filename().string();
  std::error_code error;
  std::vector<fs::path> stale;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    pid_t pid = 0;
    if (!absl::StartsWith(name, begin) || !absl::SimpleAtoi(name.substr(begin.size()), &pid) || pid <= 0) continue;
    if (pid == getpid() || (kill(pid, 0) != 0 && errno == ESRCH)) stale.push_back(entry.path());
  }
  for (const fs::path& one : stale) fs::remove_all(one, error);  // a later write reports what could not be removed
}

}  // namespace

absl::StatusOr<Exported> Export(const Checkpoint& checkpoint, const ExportOptions& options) {
  if (models::FamilyOf(checkpoint.manifest().spec().train().model()) == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(checkpoint.directory(),
                                                      " is of a family that this build does not "
                                                      "have; it has ",
                                                      models::FamilyNames()));
  }
  std::string out = options.out;
  while (out.size() > 1 && out.back() == '/') out.pop_back();
  std::error_code error;
  if (fs::exists(fs::symlink_status(out, error)))
    return absl::AlreadyExistsError(absl::StrCat(out, " exists already; name another folder"));
  const std::string prefix = StagingPrefix(out), staging = absl::StrCat(prefix, getpid());
  RemoveStale(prefix);
  fs::create_directory(staging, error);
  if (error) return CreateError(error.value(), out);
  Exported exported;
  absl::Status status = WriteAll(checkpoint, options, staging, exported);
  if (status.ok()) status = SyncFolder(staging, "export.staging.sync");
  if (status.ok()) {
    status = Rename(staging, out, "export.rename");
    // Exports make folders whole, so the other one's is.
    if (!status.ok() && fs::is_directory(out, error)) {
      status = absl::AlreadyExistsError(
          absl::StrCat(out, " was made by another export meanwhile, and is whole: use it, or name another folder"));
    }
  }
  if (!status.ok()) {
    fs::remove_all(staging, error);
    return status;
  }
  if (status = SyncFolder(ParentFolder(out), "export.folder.sync"); !status.ok()) return status;
  return exported;
}

}  // namespace muster::checkpoint
