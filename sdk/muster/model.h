// Your own model for Muster: a library that this header and LibTorch are all it needs (docs/custom_models.md).
//
//   #include <muster/model.h>
//
//   muster::Model MakeModel(const muster::Options& options) {
//     const int64_t width = options.Integer("width", 64);
//     torch::nn::Sequential layers(torch::nn::Flatten(), torch::nn::Linear(3 * 32 * 32, width), torch::nn::ReLU(),
//                                  torch::nn::Linear(width, 10));
//     return {muster::ImageClassification{.channels = 3, .height = 32, .width = 32, .classes = 10}, layers,
//             muster::WrapPolicy::MinParameters(1000)};
//   }
//   MUSTER_MODEL(MakeModel)
//
// MakeModel may throw; the trainer prints the message. It runs with every tensor that it makes on the meta device: a
// parameter has a shape and no memory, and its values come from Muster. What forward needs beside parameters and
// buffers, a mask for example, is made in forward or is a muster::Constant.
#pragma once

#include <muster/plugin.h>
#include <torch/nn.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace muster {

// The options of the job: `model: {options: [{name: width, value: "64"}]}`. One that MakeModel did not ask for is an
// error. All throw std::invalid_argument for a value of another type.
class Options {
 public:
  explicit Options(const plugin::Options& given) : given_(given.begin(), given.end()) {}

  int64_t Integer(const std::string& name, int64_t otherwise) const {
    return Parsed<int64_t>(name, otherwise, "a whole number",
                           [](const std::string& text, size_t* end) { return std::stoll(text, end); });
  }
  double Number(const std::string& name, double otherwise) const {
    return Parsed<double>(name, otherwise, "a number",
                          [](const std::string& text, size_t* end) { return std::stod(text, end); });
  }
  bool Flag(const std::string& name, bool otherwise) const {
    const std::string text = Text(name, otherwise ? "true" : "false");
    if (text != "true" && text != "false") throw Wrong(name, "true or false");
    return text == "true";
  }
  std::string Text(const std::string& name, const std::string& otherwise) const {
    asked_.insert(name);
    const auto found = given_.find(name);
    return found == given_.end() ? otherwise : found->second;
  }

  // Throws std::invalid_argument if an option was given that MakeModel did not ask for.
  void CheckAllAsked() const {
    for (const auto& [name, value] : given_) {
      if (asked_.count(name) > 0) continue;
      std::string known;
      for (const std::string& asked : asked_) known += (known.empty() ? "" : ", ") + asked;
      throw std::invalid_argument("the model has no option \"" + name + "\"; it has " +
                                  (known.empty() ? "none" : known));
    }
  }

 private:
  std::invalid_argument Wrong(const std::string& name, const char* what) const {
    return std::invalid_argument("option " + name + ": \"" + given_.at(name) + "\" is not " + what);
  }
  template <typename T, typename F>
  T Parsed(const std::string& name, T otherwise, const char* what, const F& parse) const {
    asked_.insert(name);
    const auto found = given_.find(name);
    if (found == given_.end()) return otherwise;
    size_t end = 0;
    T value{};
    try {
      value = parse(found->second, &end);
    } catch (const std::exception&) {
      throw Wrong(name, what);
    }
    if (end != found->second.size()) throw Wrong(name, what);
    return value;
  }

  std::map<std::string, std::string> given_;
  mutable std::set<std::string> asked_;
};

// Sequences of `context` tokens: the first unit gets int64 [samples, context], the last one gives logits
// [samples, context, vocabulary].
struct LanguageModel {
  int64_t vocabulary = 0;
  int64_t context = 0;
};

// The first unit gets fp32 [samples, channels, height, width], the last one gives logits [samples, classes].
struct ImageClassification {
  int64_t channels = 0;
  int64_t height = 0;
  int64_t width = 0;
  int64_t classes = 0;
};

// A tensor of a sample, for Tensors.
struct BatchTensor {
  std::string name;
  std::vector<int64_t> shape;  // of one sample; empty: a number
  int64_t bound = 0;           // 0: fp32; else int64, 0 <= value < bound
};
inline BatchTensor Floats(std::string name, std::vector<int64_t> shape = {}) {
  return {std::move(name), std::move(shape), 0};
}
// Throws std::invalid_argument: a bound below 1.
inline BatchTensor Integers(std::string name, int64_t bound, std::vector<int64_t> shape = {}) {
  if (bound < 1) {
    throw std::invalid_argument(name + ": integers are 0 to bound - 1, and the bound is " + std::to_string(bound));
  }
  return {std::move(name), std::move(shape), bound};
}

// Samples of named tensors, from safetensors files (docs/custom_models.md). The first unit gets `inputs`, the model's
// Loss and Metrics get the last unit's output and `targets`; a tensor may be in both lists.
//
//   muster::Tensors{.inputs = {muster::Floats("user", {8}), muster::Integers("item", 500)},
//                   .targets = {muster::Floats("rating")}}
struct Tensors {
  std::vector<BatchTensor> inputs, targets;
  int64_t targets_per_sample =
      1;  // what the loss and the metrics count of each sample; Muster divides their sums by it
};

// Tensors of a batch by name, [samples, shape...]: what the first unit or the loss reads.
class Batch {
 public:
  Batch(const std::vector<std::string>& names, const std::vector<at::Tensor>& tensors)
      : names_(names), tensors_(tensors) {}
  // Throws std::invalid_argument: there is none of that name.
  const at::Tensor& operator[](const std::string& name) const {
    const auto found = std::find(names_.begin(), names_.end(), name);
    if (found != names_.end()) return tensors_.at(static_cast<size_t>(found - names_.begin()));
    std::string known;
    for (const std::string& own : names_) known += (known.empty() ? "" : ", ") + own;
    throw std::invalid_argument("there is no tensor \"" + name + "\" here; there are " + known);
  }

 private:
  const std::vector<std::string>& names_;
  const std::vector<at::Tensor>& tensors_;
};

// How a tensor starts.
inline plugin::Initial Zeros() { return {plugin::Initial::kZeros, 0}; }
inline plugin::Initial Ones() { return {plugin::Initial::kOnes, 0}; }
inline plugin::Initial Normal(double standard_deviation) { return {plugin::Initial::kNormal, standard_deviation}; }

// A tensor that forward needs and that is neither trained nor saved, made on its first use:
//   muster::Constant mask_{[] { return torch::ones({128, 128}).tril(); }};
//   ... mask_.On(x.device()) ...
class Constant {
 public:
  explicit Constant(std::function<at::Tensor()> make) : make_(std::move(make)) {}
  const at::Tensor& On(const at::Device& device) {
    if (!value_.defined() || value_.device() != device) {
      const torch::NoGradGuard off;
      value_ = make_().to(device);
    }
    return value_;
  }

 private:
  std::function<at::Tensor()> make_;
  at::Tensor value_;
};

// Where a Sequential is cut into units, the parts that a strategy gathers, computes and reduces as a whole. Modules
// without parameters join the unit before them.
class WrapPolicy {
 public:
  // Each module of one of these types (a module, or its holder) is a unit; what lies between two of them is one, too.
  template <typename... Modules>
  static WrapPolicy ByType() {
    WrapPolicy policy;
    policy.alone_ = [](const torch::nn::Module& module) { return (IsA<Modules>(module) || ...); };
    return policy;
  }
  // Neighbors are one unit until it has at least this many parameters.
  static WrapPolicy MinParameters(int64_t elements) {
    WrapPolicy policy;
    policy.min_parameters_ = elements;
    return policy;
  }
  // Each module with parameters is a unit.
  static WrapPolicy EachModule() { return MinParameters(1); }

 private:
  friend class Model;
  template <typename M, typename = void>
  struct Implementation {
    using type = M;
  };
  template <typename M>
  struct Implementation<M, std::void_t<typename M::ContainedType>> {
    using type = typename M::ContainedType;
  };
  template <typename M>
  static bool IsA(const torch::nn::Module& module) {
    return dynamic_cast<const typename Implementation<M>::type*>(&module) != nullptr;
  }

  std::function<bool(const torch::nn::Module&)> alone_;  // null: by parameters
  int64_t min_parameters_ = 1;
};

namespace sdk {

// Of the tensors that a unit gets: one, unless it is the first of Tensors.
using ForwardFunction = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

// The modules of a unit, in order.
struct Part {
  std::string path;  // prefix of its tensors' names
  std::shared_ptr<torch::nn::Module> module;
  ForwardFunction forward;
};

// Calls a module's forward with as many tensors as it gets.
inline ForwardFunction ForwardOf(torch::nn::AnyModule module) {
  return [module = std::move(module)](const std::vector<at::Tensor>& in) mutable {
    switch (in.size()) {
      case 1:
        return module.forward(in[0]);
      case 2:
        return module.forward(in[0], in[1]);
      case 3:
        return module.forward(in[0], in[1], in[2]);
      case 4:
        return module.forward(in[0], in[1], in[2], in[3]);
      default:
        throw std::invalid_argument(
            "a module's forward gets at most 4 tensors: call AddUnit with a function of a Batch");
    }
  };
}

template <typename Impl>
bool Drops(const torch::nn::Module& module) {
  const auto* dropout = dynamic_cast<const Impl*>(&module);
  return dropout != nullptr && dropout->options.p() > 0;
}

template <typename Impl>
bool AveragesForever(const torch::nn::Module& module) {
  const auto* norm = dynamic_cast<const Impl*>(&module);
  return norm != nullptr && norm->options.track_running_stats() && !norm->options.momentum().has_value();
}

// Throws std::invalid_argument: a module whose results Muster could not repeat after a restart.
inline void CheckModule(const std::string& path, const torch::nn::Module& module) {
  using namespace torch::nn;  // NOLINT: for the names of a dozen modules
  const auto* attention = dynamic_cast<const MultiheadAttentionImpl*>(&module);
  const auto* rrelu = dynamic_cast<const RReLUImpl*>(&module);
  if (Drops<DropoutImpl>(module) || Drops<Dropout2dImpl>(module) || Drops<Dropout3dImpl>(module) ||
      Drops<AlphaDropoutImpl>(module) || Drops<FeatureAlphaDropoutImpl>(module) || rrelu != nullptr ||
      (attention != nullptr && attention->options.dropout() > 0)) {
    throw std::invalid_argument(
        path + ": " + module.name() +
        " draws random numbers, which a recomputed forward or a resumed job would draw differently: leave it out, or "
        "set its probability to 0");
  }
  if (AveragesForever<BatchNorm1dImpl>(module) || AveragesForever<BatchNorm2dImpl>(module) ||
      AveragesForever<BatchNorm3dImpl>(module)) {
    throw std::invalid_argument(path + ": " + module.name() +
                                " without a momentum averages over all batches so far: give it a momentum");
  }
}

// torch.nn's own variance of matrices and kernels (kaiming_uniform_ with a = sqrt(5)), 0.02 for embeddings.
inline plugin::Initial DefaultInitial(const std::string& name, const at::Tensor& tensor,
                                      const torch::nn::Module& owner) {
  const auto ends = [&](const std::string& end) {
    return name == end || (name.size() > end.size() && name.substr(name.size() - end.size() - 1) == "." + end);
  };
  if (tensor.dim() >= 2) {
    if (!tensor.requires_grad()) return {};  // a buffer
    if (dynamic_cast<const torch::nn::EmbeddingImpl*>(&owner) != nullptr) return Normal(0.02);
    const double fan_in = static_cast<double>(tensor.numel()) / static_cast<double>(tensor.size(0));
    return Normal(1 / std::sqrt(3 * std::max(1.0, fan_in)));
  }
  if (ends("bias") || ends("running_mean")) return Zeros();
  if (ends("running_var")) return Ones();
  if (ends("weight") && dynamic_cast<const torch::nn::PReLUImpl*>(&owner) == nullptr) return Ones();
  return {};
}

struct UnitTensors {
  std::vector<plugin::Tensor> parameters, buffers;
  std::vector<plugin::Borrowed> borrows;
};

class ModuleUnit final : public plugin::Unit {
 public:
  ModuleUnit(std::string name, std::vector<Part> parts, UnitTensors tensors)
      : name_(std::move(name)), parts_(std::move(parts)), tensors_(std::move(tensors)) {}

  std::string name() const override { return name_; }
  std::vector<plugin::Tensor> Parameters() const override { return tensors_.parameters; }
  std::vector<plugin::Borrowed> Borrows() const override { return tensors_.borrows; }
  std::vector<plugin::Tensor> Buffers() const override { return tensors_.buffers; }
  void Train(bool on) override {
    for (const Part& part : parts_) part.module->train(on);
  }
  at::Tensor Forward(const std::vector<at::Tensor>& in) override {
    at::Tensor x = parts_[0].forward(in);
    for (size_t i = 1; i < parts_.size(); ++i) x = parts_[i].forward({x});
    return x;
  }

 private:
  const std::string name_;
  const std::vector<Part> parts_;
  const UnitTensors tensors_;
};

using LossFunction =
    std::function<at::Tensor(const at::Tensor& output, const at::Tensor& targets, double label_smoothing)>;
using BatchFunction = std::function<at::Tensor(const at::Tensor& output, const Batch& targets)>;

inline std::vector<std::string> NamesOf(const plugin::Task& task, bool plugin::BatchTensor::*which) {
  std::vector<std::string> names;
  for (const plugin::BatchTensor& tensor : task.tensors) {
    if (tensor.*which) names.push_back(tensor.name);
  }
  return names;
}

// What the model computes of the last unit's output. One of the losses, or none.
struct Objective {
  LossFunction loss;
  BatchFunction batch_loss;
  std::vector<BatchFunction> metrics;
};

class ModuleModel final : public plugin::Model {
 public:
  ModuleModel(plugin::Task task, std::vector<std::unique_ptr<ModuleUnit>> units, Objective objective)
      : task_(std::move(task)),
        targets_(NamesOf(task_, &plugin::BatchTensor::target)),
        units_(std::move(units)),
        objective_(std::move(objective)) {}

  plugin::Task task() const override { return task_; }
  std::vector<plugin::Unit*> Units() const override {
    std::vector<plugin::Unit*> units;
    for (const auto& unit : units_) units.push_back(unit.get());
    return units;
  }
  at::Tensor Loss(const at::Tensor& output, const std::vector<at::Tensor>& targets, double label_smoothing) override {
    if (objective_.batch_loss != nullptr) return objective_.batch_loss(output, Batch(targets_, targets));
    return objective_.loss == nullptr ? at::Tensor() : objective_.loss(output, targets.at(0), label_smoothing);
  }
  std::vector<at::Tensor> Metrics(const at::Tensor& output, const std::vector<at::Tensor>& targets) override {
    std::vector<at::Tensor> sums;
    for (const BatchFunction& metric : objective_.metrics) sums.push_back(metric(output, Batch(targets_, targets)));
    return sums;
  }

 private:
  const plugin::Task task_;
  const std::vector<std::string> targets_;
  const std::vector<std::unique_ptr<ModuleUnit>> units_;
  const Objective objective_;
};

// Finds the tensors of units, in forward order. Throws std::invalid_argument: one that Muster cannot train.
class TensorCollector {
 public:
  TensorCollector(std::map<std::string, plugin::Initial> initials, std::map<std::string, bool> decays)
      : initials_(std::move(initials)), decays_(std::move(decays)) {}

  UnitTensors Collect(const std::string& unit, const std::vector<Part>& parts) {
    UnitTensors found;
    for (const Part& part : parts) {
      if (part.module == nullptr) throw std::invalid_argument(unit + ": has no module");
      for (const auto& item : part.module->named_modules(part.path)) {
        CheckModule(item.key(), *item.value());
        AddParameters(unit, item.key(), *item.value(), found);
        AddBuffers(unit, item.key(), *item.value(), found);
      }
    }
    if (!found.parameters.empty()) return found;
    throw std::invalid_argument("unit " + unit + " has no parameters of its own: put its modules into a neighbor");
  }

  void CheckAllUsed() const {
    if (!initials_.empty()) throw std::invalid_argument("Initialize: there is no tensor " + initials_.begin()->first);
    if (!decays_.empty()) throw std::invalid_argument("Decay: there is no tensor " + decays_.begin()->first);
  }

 private:
  struct Owner {
    std::string unit, name;
  };

  void AddParameters(const std::string& unit, const std::string& path, const torch::nn::Module& module,
                     UnitTensors& found) {
    for (const auto& parameter : module.named_parameters(/*recurse=*/false)) {
      const std::string name = path + "." + parameter.key();
      const at::Tensor& tensor = parameter.value();
      if (!tensor.defined()) continue;  // as the bias of a Linear without one
      const auto [owner, is_new] = owners_.emplace(tensor.unsafeGetTensorImpl(), Owner{unit, name});
      if (is_new) {
        if (!tensor.requires_grad()) {
          throw std::invalid_argument(name + ": does not require a gradient; frozen parameters are not supported");
        }
        found.parameters.push_back(Describe(name, tensor, module, tensor.dim() >= 2));
      } else if (owner->second.unit != unit) {
        found.borrows.push_back({owner->second.unit, owner->second.name, tensor});
      }
    }
  }

  void AddBuffers(const std::string& unit, const std::string& path, const torch::nn::Module& module,
                  UnitTensors& found) {
    for (const auto& buffer : module.named_buffers(/*recurse=*/false)) {
      if (!buffer.value().defined() || buffer.key() == "num_batches_tracked") continue;  // CheckModule: not needed
      const std::string name = path + "." + buffer.key();
      if (!owners_.emplace(buffer.value().unsafeGetTensorImpl(), Owner{unit, name}).second) {
        throw std::invalid_argument(name + ": is a buffer of two modules");
      }
      found.buffers.push_back(Describe(name, buffer.value(), module, /*decays=*/false));
    }
  }

  plugin::Tensor Describe(const std::string& name, const at::Tensor& tensor, const torch::nn::Module& owner,
                          bool decays) {
    if (tensor.scalar_type() != at::kFloat) {
      throw std::invalid_argument(
          name + ": is of " + at::toString(tensor.scalar_type()) +
          ", but tensors of a model are fp32; make a mask or a table in forward, or by a muster::Constant");
    }
    plugin::Tensor described{name, tensor, DefaultInitial(name, tensor, owner), decays};
    if (const auto given = initials_.extract(name)) described.initial = given.mapped();
    if (const auto given = decays_.extract(name)) described.decay = given.mapped();
    if (described.initial.kind != plugin::Initial::kUnknown) return described;
    throw std::invalid_argument(name + ": has no default for how it starts: call Initialize(\"" + name +
                                "\", muster::Ones()), or another; a constant is a muster::Constant");
  }

  std::map<std::string, plugin::Initial> initials_;
  std::map<std::string, bool> decays_;
  std::map<const void*, Owner> owners_;  // by TensorImpl: a tied weight is one tensor under two names
};

}  // namespace sdk

class Model {
 public:
  // A Sequential cut by the policy. Tensors are called as in the Sequential: "0.weight".
  Model(LanguageModel task, const torch::nn::Sequential& layers, const WrapPolicy& policy) : Model(task) {
    Cut(layers, policy);
  }
  Model(ImageClassification task, const torch::nn::Sequential& layers, const WrapPolicy& policy) : Model(task) {
    Cut(layers, policy);
  }
  Model(const Tensors& task, const torch::nn::Sequential& layers, const WrapPolicy& policy) : Model(task) {
    Cut(layers, policy);
  }
  // By hand: AddUnit, in forward order.
  explicit Model(LanguageModel task) {
    task_.kind = plugin::Task::kLanguageModel;
    task_.vocabulary = task.vocabulary;
    task_.context = task.context;
  }
  explicit Model(ImageClassification task) {
    task_.kind = plugin::Task::kImageClassification;
    task_.channels = task.channels;
    task_.height = task.height;
    task_.width = task.width;
    task_.classes = task.classes;
  }

  // Throws std::invalid_argument: the two lists say different things of a tensor.
  explicit Model(const Tensors& task) {
    task_.kind = plugin::Task::kTensors;
    task_.targets_per_sample = task.targets_per_sample;
    for (const BatchTensor& tensor : task.inputs) Declare(tensor, &plugin::BatchTensor::input);
    for (const BatchTensor& tensor : task.targets) Declare(tensor, &plugin::BatchTensor::target);
  }

  // A module whose forward takes and returns one tensor; the first unit of Tensors takes its inputs, up to four, in
  // their order. Its tensors are called "<name>.<their name in the module>".
  template <typename M>
  Model& AddUnit(const std::string& name, const torch::nn::ModuleHolder<M>& module) {
    return AddPart(name, module.ptr(), sdk::ForwardOf(torch::nn::AnyModule(module)), /*reads_batch=*/false);
  }
  // Likewise, computed by a function that uses the module.
  Model& AddUnit(const std::string& name, std::shared_ptr<torch::nn::Module> module,
                 std::function<at::Tensor(const at::Tensor&)> forward) {
    const auto one = [forward = std::move(forward)](const std::vector<at::Tensor>& in) {
      if (in.size() == 1) return forward(in[0]);
      throw std::invalid_argument("gets " + std::to_string(in.size()) + " tensors: its function must take a Batch");
    };
    return AddPart(name, std::move(module), one, /*reads_batch=*/false);
  }
  // The first unit of Tensors, of whose inputs the function takes some by name.
  Model& AddUnit(const std::string& name, std::shared_ptr<torch::nn::Module> module,
                 std::function<at::Tensor(const Batch&)> forward) {
    const auto named = [names = sdk::NamesOf(task_, &plugin::BatchTensor::input), forward = std::move(forward)](
                           const std::vector<at::Tensor>& in) { return forward(Batch(names, in)); };
    return AddPart(name, std::move(module), named, /*reads_batch=*/true);
  }

  // How a tensor starts, instead of by the default: matrices and kernels by torch.nn's variance, embeddings by
  // Normal(0.02), biases by Zeros(), other weights by Ones(). A vector of another name has no default.
  Model& Initialize(const std::string& tensor, plugin::Initial initial) {
    initials_[tensor] = initial;
    return *this;
  }
  // Whether a tensor takes weight decay, instead of by the default: tensors of two dimensions or more do.
  Model& Decay(const std::string& tensor, bool decays) {
    decays_[tensor] = decays;
    return *this;
  }
  // In place of cross entropy: the loss summed over all targets, from the last unit's output and the targets (int64
  // [samples, context] or [samples]). Muster divides it by their number.
  Model& Loss(sdk::LossFunction loss) {
    objective_.loss = std::move(loss);
    return *this;
  }
  // Of Tensors, and required: the loss summed over all targets, from the last unit's output (at least fp32) and the
  // batch's targets. Muster divides it by the number of samples times targets_per_sample.
  Model& Loss(sdk::BatchFunction loss) {
    objective_.batch_loss = std::move(loss);
    return *this;
  }
  // Of Tensors: a metric that validations report beside the loss, summed and divided likewise. `name`: lowercase
  // letters, digits and underscores.
  Model& Metric(const std::string& name, sdk::BatchFunction metric) {
    task_.metrics.push_back(name);
    objective_.metrics.push_back(std::move(metric));
    return *this;
  }

  // For MUSTER_MODEL. Throws std::invalid_argument: a unit or tensor that Muster cannot train; the message names it.
  std::unique_ptr<plugin::Model> Finish() const {
    if (units_.empty()) throw std::invalid_argument("the model has no units");
    CheckObjective();
    sdk::TensorCollector collector(initials_, decays_);
    std::vector<std::unique_ptr<sdk::ModuleUnit>> units;
    for (const UnitParts& unit : units_) {
      units.push_back(
          std::make_unique<sdk::ModuleUnit>(unit.name, unit.parts, collector.Collect(unit.name, unit.parts)));
    }
    collector.CheckAllUsed();
    return std::make_unique<sdk::ModuleModel>(task_, std::move(units), objective_);
  }

 private:
  struct UnitParts {
    std::string name;
    std::vector<sdk::Part> parts;
    bool reads_batch = false;
  };

  Model& AddPart(const std::string& name, std::shared_ptr<torch::nn::Module> module, sdk::ForwardFunction forward,
                 bool reads_batch) {
    units_.push_back({name, {sdk::Part{name, std::move(module), std::move(forward)}}, reads_batch});
    return *this;
  }

  void Declare(const BatchTensor& tensor, bool plugin::BatchTensor::*which) {
    for (plugin::BatchTensor& own : task_.tensors) {
      if (own.name != tensor.name) continue;
      if (own.*which) throw std::invalid_argument(tensor.name + ": is twice in the same list of Tensors");
      if (own.shape != tensor.shape || own.bound != tensor.bound) {
        throw std::invalid_argument(tensor.name + ": is an input of another shape or type than the target");
      }
      own.*which = true;
      return;
    }
    plugin::BatchTensor& added = task_.tensors.emplace_back();
    added.name = tensor.name;
    added.shape = tensor.shape;
    added.bound = tensor.bound;
    added.*which = true;
  }

  void CheckObjective() const {
    const bool tensors = task_.kind == plugin::Task::kTensors;
    if (tensors && (objective_.batch_loss == nullptr || objective_.loss != nullptr)) {
      throw std::invalid_argument(
          "a model of Tensors has a loss of its own: call Loss with a function of the output "
          "and a Batch");
    }
    if (!tensors && (objective_.batch_loss != nullptr || !objective_.metrics.empty())) {
      throw std::invalid_argument("a loss of a Batch, and metrics, are for models of Tensors");
    }
    for (size_t i = 0; i < units_.size(); ++i) {
      if (units_[i].reads_batch && (!tensors || i > 0)) {
        throw std::invalid_argument("unit " + units_[i].name +
                                    ": a function of a Batch is for the first unit of Tensors");
      }
    }
  }

  // The modules of a Sequential, one by one.
  static std::vector<sdk::Part> PartsOf(const torch::nn::Sequential& layers) {
    std::vector<sdk::Part> parts;
    auto any = layers->begin();
    for (const auto& child : layers->named_children()) {
      parts.push_back({child.key(), child.value(), sdk::ForwardOf(*any++)});
    }
    return parts;
  }

  void Cut(const torch::nn::Sequential& layers, const WrapPolicy& policy) {
    std::vector<sdk::Part> parts = PartsOf(layers);
    std::set<const void*> seen;  // so that a tied weight counts where it comes first
    const auto elements_of = [&](const torch::nn::Module& module) {
      int64_t elements = 0;
      for (const auto& parameter : module.named_parameters()) {
        if (seen.insert(parameter.value().unsafeGetTensorImpl()).second) elements += parameter.value().numel();
      }
      return elements;
    };
    int64_t elements = 0;        // of the last unit
    bool last_is_alone = false;  // nothing joins it, unless without parameters
    for (sdk::Part& part : parts) {
      const int64_t own = elements_of(*part.module);
      const bool alone = policy.alone_ != nullptr && policy.alone_(*part.module);
      const bool full = policy.alone_ != nullptr ? last_is_alone || (alone && elements > 0)
                                                 : elements >= std::max<int64_t>(1, policy.min_parameters_);
      if (units_.empty() || (full && own > 0)) {
        units_.push_back({part.path, {}, /*reads_batch=*/false});
        elements = 0;
        last_is_alone = false;
      }
      last_is_alone = last_is_alone || (alone && own > 0);
      elements += own;
      units_.back().parts.push_back(std::move(part));
    }
    // What is left is less than a unit.
    if (policy.alone_ == nullptr && units_.size() > 1 && elements < policy.min_parameters_) {
      std::vector<sdk::Part> rest = std::move(units_.back().parts);
      units_.pop_back();
      std::move(rest.begin(), rest.end(), std::back_inserter(units_.back().parts));
    }
  }

  plugin::Task task_;
  std::vector<UnitParts> units_;
  std::map<std::string, plugin::Initial> initials_;
  std::map<std::string, bool> decays_;
  sdk::Objective objective_;
};

namespace sdk {

template <typename Make>
plugin::Model* MakeModel(const Make& make, const plugin::Options& given, std::string& error) {
  try {
    const Options options(given);
    const ::muster::Model model = make(options);
    options.CheckAllAsked();
    return model.Finish().release();
  } catch (const c10::Error& e) {
    error = e.what_without_backtrace();
  } catch (const std::exception& e) {
    error = e.what();
  }
  return nullptr;
}

}  // namespace sdk
}  // namespace muster

// Once in a library: `make` is a function from const muster::Options& to muster::Model.
#define MUSTER_MODEL(make)                                                                        \
  extern "C" __attribute__((section(".note.muster"), used, aligned(4), visibility("default")))    \
  const ::muster::plugin::Note muster_plugin_note = {};                                           \
  extern "C" __attribute__((visibility("default"))) ::muster::plugin::Model* muster_plugin_model( \
      const ::muster::plugin::Options& options, std::string& error) {                             \
    return ::muster::sdk::MakeModel(make, options, error);                                        \
  }
