#include "models/custom/custom.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "google/protobuf/util/json_util.h"
#include "models/inventory.h"
#include "models/inventory_build.h"
#include "models/tuning.h"

namespace muster::models {
namespace {

constexpr char kCustomModelType[] = "muster_custom";
constexpr size_t kMaxNameBytes = 256;
constexpr size_t kMaxOptionNameBytes = 64, kMaxOptionValueBytes = 256;
constexpr uint64_t kMaxContext = 1 << 24, kMaxVocabulary = uint64_t{1} << 31;
constexpr uint64_t kMaxChannels = 1 << 10, kMaxImage = 1 << 14, kMaxClasses = 1 << 24;
constexpr int kMaxBatchTensors = 32, kMaxMetrics = 32;
constexpr uint64_t kMaxSampleElements = uint64_t{1} << 32, kMaxBound = uint64_t{1} << 62;
constexpr uint64_t kMaxTargets = uint64_t{1} << 31;
constexpr double kMaxFlops = 1e20;
constexpr double kMaxStandardDeviation = 1e3;

absl::Status Bad(absl::string_view path, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
}

// Names go into checkpoints, messages and file formats.
absl::Status CheckTensorName(const std::string& path, const std::string& name) {
  if (name.empty()) return Bad(path, "missing");
  if (name.size() > kMaxNameBytes) {
    return Bad(path, absl::StrCat("has ", name.size(), " bytes, at most ", kMaxNameBytes, " are allowed"));
  }
  for (const char c : name) {
    if (!absl::ascii_isgraph(static_cast<unsigned char>(c))) return Bad(path, "may hold visible ASCII characters only");
  }
  if (IsAdapter(name)) return Bad(path, absl::StrCat("\"", name, "\" is a name of adapters"));
  // What checkpoints and safetensors call their own.
  if (absl::StartsWith(name, "optimizer.") || name == "__metadata__") {
    return Bad(path, absl::StrCat("\"", name, "\" is a name that checkpoints use themselves"));
  }
  return absl::OkStatus();
}

// Checks one model; Run returns the first error, which begins with the field's path below `model`.
class CustomCheck {
 public:
  explicit CustomCheck(const Custom& model) : model_(model) {}

  absl::Status Run() {
    for (const auto& check :
         {&CustomCheck::Library, &CustomCheck::Options, &CustomCheck::TaskOf, &CustomCheck::Units}) {
      if (absl::Status status = (this->*check)(); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Library() {
    const std::string& library = model_.library();
    if (library.empty()) return Bad("library", "missing: the path of a shared object on the workers");
    if (library.size() >= 4096) return Bad("library", "is longer than a path may be");
    for (const char c : library) {
      if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) return Bad("library", "holds a control character");
    }
    if (library[0] != '/') {
      return Bad("library", absl::StrCat("\"", library, "\" is relative; a path on the workers must be absolute"));
    }
    if (!model_.inventory().empty()) {
      return Bad("inventory", "names a file, which `muster submit` reads; a spec that is sent has its task and units");
    }
    return absl::OkStatus();
  }

  absl::Status Options() {
    if (model_.options_size() > kMaxCustomOptions) {
      return Bad("options", absl::StrCat("at most ", kMaxCustomOptions, " are allowed, got ", model_.options_size()));
    }
    std::set<std::string> names;
    for (int i = 0; i < model_.options_size(); ++i) {
      const ModelOption& option = model_.options(i);
      const std::string path = absl::StrCat("options[", i, "]");
      if (option.name().empty()) return Bad(path + ".name", "missing");
      if (option.name().size() > kMaxOptionNameBytes) return Bad(path + ".name", "is too long");
      if (option.value().size() > kMaxOptionValueBytes) return Bad(path + ".value", "is too long");
      if (!names.insert(option.name()).second) return Bad(path + ".name", "occurs twice: leave one out");
    }
    return absl::OkStatus();
  }

  // Whatever reads the shapes of the first two relies on their being what SetLanguageTask and SetImageTask make.
  absl::Status TaskOf() {
    const Task& task = model_.task();
    if (task.name() == kTensors) return TensorsTask(task);
    const BatchTensor &inputs = Find(task, kInputs), &targets = Find(task, kTargets);
    Inventory expected;
    if (task.name() == kLanguageModel) {
      const uint64_t context = inputs.shape_size() == 1 ? inputs.shape(0) : 0;
      const uint64_t vocabulary = inputs.bound();
      if (context < 1 || context > kMaxContext || vocabulary < 2 || vocabulary > kMaxVocabulary) {
        return Bad("task", absl::StrCat("a language_model's inputs have the shape [1 to ", kMaxContext,
                                        " tokens] and a bound of 2 to ", kMaxVocabulary, ", its vocabulary"));
      }
      SetLanguageTask(expected, vocabulary, context);
    } else if (task.name() == kImageClassification) {
      const auto& shape = inputs.shape();
      const uint64_t classes = targets.bound();
      if (shape.size() != 3 || shape[0] < 1 || shape[0] > kMaxChannels || shape[1] < 1 || shape[1] > kMaxImage ||
          shape[2] < 1 || shape[2] > kMaxImage || classes < 2 || classes > kMaxClasses) {
        return Bad("task", absl::StrCat("an image_classification's inputs have the shape [1 to ", kMaxChannels,
                                        " channels, 1 to ", kMaxImage, ", 1 to ", kMaxImage,
                                        "], and its targets a bound of 2 to ", kMaxClasses, ", its classes"));
      }
      SetImageTask(expected, shape[0], shape[1], shape[2], classes);
    } else {
      return Bad("task", task.name().empty()
                             ? absl::StrCat("missing: `muster model inspect ", model_.library(),
                                            " > model.json` prints it and the units; name the file as model.inventory")
                             : absl::StrCat("\"", task.name(), "\" is not known; there are ", kLanguageModel, ", ",
                                            kImageClassification, " and ", kTensors));
    }
    if (task.SerializeAsString() == expected.task().SerializeAsString()) return absl::OkStatus();
    return Bad("task", absl::StrCat("is not what a ", task.name(),
                                    " of these shapes has: ", expected.task().ShortDebugString()));
  }

  static absl::Status TensorsTask(const Task& task) {
    if (task.tensors_size() < 1 || task.tensors_size() > kMaxBatchTensors) {
      return Bad("task.tensors",
                 absl::StrCat("must be 1 to ", kMaxBatchTensors, " tensors of a batch, got ", task.tensors_size()));
    }
    std::set<std::string> names;
    bool reads = false;
    for (int t = 0; t < task.tensors_size(); ++t) {
      const std::string path = absl::StrCat("task.tensors[", t, "]");
      if (absl::Status status = OneBatchTensor(path, task.tensors(t)); !status.ok()) return status;
      if (!names.insert(task.tensors(t).name()).second) {
        return Bad(path + ".name", absl::StrCat("\"", task.tensors(t).name(), "\" occurs twice"));
      }
      reads |= task.tensors(t).input();
    }
    if (!reads) return Bad("task.tensors", "none is an input: the first unit reads at least one");
    if (task.has_inputs() || task.has_targets()) return Bad("task", "has fields that only older builds wrote");
    if (task.targets_per_sample() < 1 || task.targets_per_sample() > kMaxTargets) {
      return Bad("task.targets_per_sample",
                 absl::StrCat("must be 1 to ", kMaxTargets, ", got ", task.targets_per_sample()));
    }
    return Metrics(task);
  }

  static absl::Status OneBatchTensor(const std::string& path, const BatchTensor& tensor) {
    if (absl::Status status = CheckTensorName(path + ".name", tensor.name()); !status.ok()) return status;
    if (tensor.type() != BatchTensor::INT64 && tensor.type() != BatchTensor::FLOAT) {
      return Bad(path + ".type", "must be INT64 or FLOAT");
    }
    if (absl::Status status = SampleShape(path + ".shape", tensor.shape()); !status.ok()) return status;
    if (tensor.type() == BatchTensor::FLOAT && tensor.bound() != 0) {
      return Bad(path + ".bound", "only integers have one");
    }
    if (tensor.type() == BatchTensor::INT64 && (tensor.bound() < 1 || tensor.bound() > kMaxBound)) {
      return Bad(path + ".bound",
                 absl::StrCat("integers are 0 to bound - 1, and bound is 1 to ", kMaxBound, ", got ", tensor.bound()));
    }
    if (tensor.input() || tensor.target()) return absl::OkStatus();
    return Bad(path, "is neither an input nor a target: nothing reads it");
  }

  // They become fields of logs and of JSON, tags of TensorBoard, and labels of Prometheus.
  static absl::Status Metrics(const Task& task) {
    static const std::set<std::string> taken = {"attempt", "error", "generation", "job",  "loss",           "node",
                                                "path",    "rank",  "samples",    "step", "validation_loss"};
    if (task.metrics_size() > kMaxMetrics) {
      return Bad("task.metrics", absl::StrCat("at most ", kMaxMetrics, " are allowed, got ", task.metrics_size()));
    }
    std::set<std::string> names;
    for (int m = 0; m < task.metrics_size(); ++m) {
      const std::string &name = task.metrics(m), path = absl::StrCat("task.metrics[", m, "]");
      const bool good = std::all_of(name.begin(), name.end(), [](unsigned char c) {
        return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '_';
      });
      if (!good || name.empty() || name.size() > kMaxOptionNameBytes || !absl::ascii_islower(name[0])) {
        return Bad(path, absl::StrCat("\"", name,
                                      "\" is not a name for a metric: expected a lowercase letter, then lowercase "
                                      "letters, digits and _, at most ",
                                      kMaxOptionNameBytes));
      }
      if (taken.contains(name)) return Bad(path, absl::StrCat("\"", name, "\" is what another number is called"));
      if (!names.insert(name).second) return Bad(path, absl::StrCat("\"", name, "\" occurs twice"));
    }
    return absl::OkStatus();
  }

  absl::Status Units() {
    if (model_.units().empty()) return Bad("units", "missing: `muster model inspect` prints them");
    if (model_.units_size() > kMaxCustomUnits) {
      return Bad("units", absl::StrCat("at most ", kMaxCustomUnits, " are allowed, got ", model_.units_size()));
    }
    if (const size_t bytes = model_.ByteSizeLong(); bytes > kMaxCustomUnitsBytes) {
      return Bad("units", absl::StrCat("take ", bytes, " bytes, at most ", kMaxCustomUnitsBytes,
                                       " are allowed: fewer tensors, or shorter names"));
    }
    for (int u = 0; u < model_.units_size(); ++u) {
      const std::string path = absl::StrCat("units[", u, "]");
      if (absl::Status status = OneUnit(path, model_.units(u)); !status.ok()) return status;
      const bool last = u + 1 == model_.units_size();
      if (absl::Status status = Outputs(path, model_.units(u), last); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status OneUnit(const std::string& path, const Unit& unit) {
    if (absl::Status status = CheckTensorName(path + ".name", unit.name()); !status.ok()) return status;
    if (units_.contains(unit.name())) return Bad(path + ".name", absl::StrCat("\"", unit.name(), "\" occurs twice"));
    if (unit.kind() != kCustomKind) return Bad(path + ".kind", absl::StrCat("must be ", kCustomKind));
    if (unit.tensors().empty()) return Bad(path + ".tensors", "missing: a unit has at least one");
    for (int t = 0; t < unit.tensors_size(); ++t) {
      const std::string at = absl::StrCat(path, ".tensors[", t, "]");
      if (absl::Status status = OneTensor(at, unit.tensors(t)); !status.ok()) return status;
    }
    for (int b = 0; b < unit.buffers_size(); ++b) {
      const std::string at = absl::StrCat(path, ".buffers[", b, "]");
      if (absl::Status status = OneTensor(at, unit.buffers(b)); !status.ok()) return status;
      if (unit.buffers(b).init().kind() == Initialisation::NORMAL || unit.buffers(b).decay()) {
        return Bad(at + ".init", "a buffer starts with zeros or ones, and has no weight decay");
      }
    }
    if (absl::Status status = Borrows(path, unit); !status.ok()) return status;
    for (const Tensor& tensor : unit.tensors()) units_[unit.name()].insert(tensor.name());
    return Numbers(path, unit);
  }

  absl::Status OneTensor(const std::string& path, const Tensor& tensor) {
    if (absl::Status status = CheckTensorName(path + ".name", tensor.name()); !status.ok()) return status;
    if (!names_.insert(tensor.name()).second) {
      return Bad(path + ".name", absl::StrCat("\"", tensor.name(), "\" occurs twice"));
    }
    if (tensor.shape_size() > kMaxCustomDimensions) {
      return Bad(path + ".shape", absl::StrCat("at most ", kMaxCustomDimensions, " dimensions are allowed"));
    }
    uint64_t elements = 1;
    for (const uint64_t n : tensor.shape()) {
      if (n == 0) return Bad(path + ".shape", "a dimension is 0");
      if (n > kMaxCustomElements / elements) return Bad(path + ".shape", "is larger than any machine's memory");
      elements *= n;
    }
    elements_ += elements;
    if (elements_ > kMaxCustomElements) return Bad(path + ".shape", "with it the model is larger than any memory");
    const double deviation = tensor.init().standard_deviation();
    switch (tensor.init().kind()) {
      case Initialisation::ZEROS:
      case Initialisation::ONES:
        if (deviation != 0) return Bad(path + ".init", "only a normal distribution has a standard_deviation");
        break;
      case Initialisation::NORMAL:
        if (std::isfinite(deviation) && deviation > 0 && deviation <= kMaxStandardDeviation) break;
        return Bad(path + ".init.standard_deviation",
                   absl::StrCat("must be greater than 0 and at most ", kMaxStandardDeviation, ", got ", deviation));
      default:
        return Bad(path + ".init.kind", "must be zeros, ones or normal");
    }
    if (tensor.frozen()) return Bad(path + ".frozen", "tensors that are not trained are not supported");
    if (tensor.atom() != ATOM_ELEMENT) return Bad(path + ".atom", "must be left out");
    if (tensor.linear() != LINEAR_LAYOUT_UNSPECIFIED || tensor.has_low_rank()) {
      return Bad(path, "has a field that only built-in families have: use what `muster model inspect` prints");
    }
    return absl::OkStatus();
  }

  absl::Status Borrows(const std::string& path, const Unit& unit) {
    std::set<std::string> borrowed;
    for (int b = 0; b < unit.borrows_size(); ++b) {
      const Borrow& borrow = unit.borrows(b);
      const std::string at = absl::StrCat(path, ".borrows[", b, "]");
      const auto owner = units_.find(borrow.unit());
      if (owner == units_.end() || !owner->second.contains(borrow.tensor())) {
        return Bad(at, absl::StrCat("no earlier unit \"", borrow.unit(), "\" has a tensor \"", borrow.tensor(), "\""));
      }
      if (!borrowed.insert(borrow.tensor()).second) return Bad(at, "occurs twice");
    }
    return absl::OkStatus();
  }

  // None: unknown, as in an inventory of an older build. Else one, which is all that a plug-in's unit gives.
  static absl::Status Outputs(const std::string& path, const Unit& unit, bool last) {
    if (unit.outputs().empty()) return absl::OkStatus();
    if (last) return Bad(path + ".outputs", "the last unit hands nothing to a next one");
    if (unit.outputs_size() > 1) return Bad(path + ".outputs", "a custom unit has one");
    const Activation& output = unit.outputs(0);
    const std::string at = path + ".outputs[0]";
    if (absl::Status status = CheckTensorName(at + ".name", output.name()); !status.ok()) return status;
    if (output.type() != Activation::FP32 && output.type() != Activation::COMPUTE) {
      return Bad(at + ".type", "must be FP32 or COMPUTE");
    }
    if (absl::Status status = SampleShape(at + ".shape", output.shape()); !status.ok()) return status;
    const uint64_t bytes = OutputBytes(unit, sizeof(float));
    if (unit.output_bytes() == bytes) return absl::OkStatus();
    return Bad(path + ".output_bytes", absl::StrCat("must be the ", bytes, " of outputs, got ", unit.output_bytes()));
  }

  // Of one sample.
  static absl::Status SampleShape(const std::string& path, const google::protobuf::RepeatedField<uint64_t>& shape) {
    if (shape.size() > kMaxCustomDimensions) {
      return Bad(path, absl::StrCat("at most ", kMaxCustomDimensions, " dimensions are allowed"));
    }
    uint64_t elements = 1;
    for (const uint64_t n : shape) {
      if (n == 0) return Bad(path, "a dimension is 0");
      if (n > kMaxSampleElements / elements) {
        return Bad(path, absl::StrCat("a sample has more than ", kMaxSampleElements, " elements"));
      }
      elements *= n;
    }
    return absl::OkStatus();
  }

  static absl::Status Numbers(const std::string& path, const Unit& unit) {
    if (!(unit.forward_flops() >= 0 && unit.forward_flops() <= kMaxFlops)) {
      return Bad(path + ".forward_flops", absl::StrCat("must be 0 to ", kMaxFlops, ", got ", unit.forward_flops()));
    }
    const std::pair<const char*, uint64_t> bytes[] = {{"saved_bytes", unit.saved_bytes()},
                                                      {"output_bytes", unit.output_bytes()},
                                                      {"forward_bytes", unit.forward_bytes()},
                                                      {"backward_bytes", unit.backward_bytes()},
                                                      {"backward_constant_bytes", unit.backward_constant_bytes()}};
    for (const auto& [field, value] : bytes) {
      if (value > kMaxCustomBytes) {
        return Bad(absl::StrCat(path, ".", field), absl::StrCat("must be at most ", kMaxCustomBytes, ", got ", value));
      }
    }
    if (unit.piece_rows() != 0 || unit.forward_piece_bytes() != 0 || unit.backward_piece_bytes() != 0 ||
        unit.heads() != 0 || unit.has_attention() || unit.backward_without_parameters() || unit.drops() ||
        unit.has_exchange() || unit.frees_output()) {
      return Bad(path, "has a field that only built-in families have: use what `muster model inspect` prints");
    }
    return absl::OkStatus();
  }

  const Custom& model_;
  std::set<std::string> names_;                         // of tensors and buffers
  std::map<std::string, std::set<std::string>> units_;  // earlier ones, with their tensors
  uint64_t elements_ = 0;
};

std::string ShapeText(const Tensor& tensor) { return absl::StrCat("[", absl::StrJoin(tensor.shape(), ", "), "]"); }

// "libmine.so" of a path.
std::string LibraryName(const Custom& model) {
  const std::string& library = model.library();
  return library.substr(library.rfind('/') + 1);
}

absl::Status CheckSameTensors(const std::string& unit, const char* what,
                              const google::protobuf::RepeatedPtrField<Tensor>& theirs,
                              const google::protobuf::RepeatedPtrField<Tensor>& ours) {
  const auto differ = [&](const auto&... parts) {
    return absl::InvalidArgumentError(absl::StrCat("unit ", unit, ": ", parts...));
  };
  for (int i = 0; i < theirs.size() && i < ours.size(); ++i) {
    const Tensor &a = theirs[i], &b = ours[i];
    if (a.name() != b.name()) return differ(what, " ", i, " is \"", a.name(), "\", but \"", b.name(), "\" here");
    if (ShapeText(a) != ShapeText(b)) {
      return differ(a.name(), " has the shape ", ShapeText(a), ", but ", ShapeText(b), " here");
    }
    if (a.init().SerializeAsString() != b.init().SerializeAsString() || a.decay() != b.decay()) {
      return differ(a.name(), " starts with {", a.init().ShortDebugString(), "}", a.decay() ? " and decays" : "",
                    ", but {", b.init().ShortDebugString(), "}", b.decay() ? " and decays" : "", " here");
    }
  }
  if (theirs.size() == ours.size()) return absl::OkStatus();
  return differ("has ", theirs.size(), " ", what, "s, but ", ours.size(), " here");
}

class CustomModels final : public ModelFamily {
 public:
  std::string name() const override { return "custom"; }

  absl::StatusOr<Model> Resolve(const Model& model) const override {
    Model resolved = model;
    if (model.custom().has_task()) *resolved.mutable_custom()->mutable_task() = Current(model.custom().task());
    if (absl::Status status = CustomCheck(resolved.custom()).Run(); !status.ok()) return status;
    return resolved;
  }
  // Measured on a CPU: on a GPU bytes differ by what its kernels keep.
  Inventory MakeInventory(const Model& resolved, Device, const TensorShare&) const override {
    Inventory inventory;
    *inventory.mutable_task() = resolved.custom().task();
    *inventory.mutable_units() = resolved.custom().units();
    return inventory;
  }
  // Buffers are the module's own tensors, in fp32, and its parameters are in the dtype that is computed in.
  absl::Status CheckCompute(const Inventory& inventory, Dtype compute) const override {
    if (compute == DTYPE_FP32) return absl::OkStatus();
    for (const Unit& unit : inventory.units()) {
      if (unit.buffers_size() == 0) continue;
      return absl::InvalidArgumentError(absl::StrCat("unit ", unit.name(), " has buffers (", unit.buffers(0).name(),
                                                     "), and a custom model with buffers computes in fp32 only"));
    }
    return absl::OkStatus();
  }
  std::string Describe(const Model& model) const override {
    return absl::StrCat("custom ", absl::StripSuffix(LibraryName(model.custom()), ".so"));
  }

  // Folders that `muster export` wrote: no other program reads them.
  bool Reads(const nlohmann::json& config) const override {
    return config.value("model_type", nlohmann::json()) == kCustomModelType;
  }
  absl::StatusOr<Model> FromConfig(const nlohmann::json& config) const override {
    Model model;
    if (!config.contains("model")) return absl::InvalidArgumentError("model is missing");
    const auto read = google::protobuf::util::JsonStringToMessage(config["model"].dump(), model.mutable_custom());
    if (!read.ok()) return absl::InvalidArgumentError(absl::StrCat("model: ", std::string(read.message())));
    return model;
  }
  nlohmann::ordered_json ToConfig(const Model& resolved) const override {
    std::string text;
    google::protobuf::util::JsonPrintOptions options;
    options.preserve_proto_field_names = true;
    const auto printed = google::protobuf::util::MessageToJsonString(resolved.custom(), &text, options);
    nlohmann::ordered_json config = {{"model_type", kCustomModelType}};
    if (printed.ok()) config["model"] = nlohmann::ordered_json::parse(text);
    return config;
  }
  // Numbers are not compared one by one: Differences.
  std::string ConfigKey(absl::string_view) const override { return ""; }
  std::string Differences(const Model& theirs, const Model& ours) const override {
    return std::string(CheckSameStructure(theirs.custom(), ours.custom()).message());
  }
  std::string StoredName(absl::string_view tensor) const override { return std::string(tensor); }
  std::string TensorName(const Model&, absl::string_view stored) const override { return std::string(stored); }
};

}  // namespace

absl::Status CheckSameStructure(const Custom& theirs, const Custom& ours) {
  // A checkpoint's may have been written by an older build.
  const Task their_task = Current(theirs.task()), our_task = Current(ours.task());
  if (their_task.SerializeAsString() != our_task.SerializeAsString()) {
    return absl::InvalidArgumentError(absl::StrCat("the task is {", their_task.ShortDebugString(), "}, but {",
                                                   our_task.ShortDebugString(), "} here"));
  }
  for (int u = 0; u < theirs.units_size() && u < ours.units_size(); ++u) {
    const Unit &a = theirs.units(u), &b = ours.units(u);
    if (a.name() != b.name()) {
      return absl::InvalidArgumentError(absl::StrCat("unit ", u, " is ", a.name(), ", but ", b.name(), " here"));
    }
    if (absl::Status s = CheckSameTensors(a.name(), "tensor", a.tensors(), b.tensors()); !s.ok()) return s;
    if (absl::Status s = CheckSameTensors(a.name(), "buffer", a.buffers(), b.buffers()); !s.ok()) return s;
    const auto borrows = [](const Unit& unit) {
      return absl::StrJoin(unit.borrows(), ", ", [](std::string* out, const Borrow& b) { *out += b.tensor(); });
    };
    if (borrows(a) != borrows(b)) {
      return absl::InvalidArgumentError(absl::StrCat("unit ", a.name(), " borrows ",
                                                     a.borrows().empty() ? "nothing" : borrows(a), ", but ",
                                                     b.borrows().empty() ? "nothing" : borrows(b), " here"));
    }
  }
  if (theirs.units_size() == ours.units_size()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("there are ", theirs.units_size(), " units, but ", ours.units_size(), " here"));
}

const ModelFamily& CustomFamily() {
  static const auto& family = *new CustomModels;
  return family;
}

}  // namespace muster::models
