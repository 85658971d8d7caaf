// What a library with a model and Muster's trainer know of each other. Users include muster/model.h, which implements
// this. torch::nn stays on the library's side: only tensors cross.
//
// The trainer reads the note from the file before it loads the library, so a library of another ABI is refused before
// any of its code runs. Every change here that an old library would misread raises kAbi.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <torch/headeronly/version.h>

namespace muster::plugin {

inline constexpr uint32_t kAbi = 2;
inline constexpr char kNoteSection[] = ".note.muster";
inline constexpr char kEntryPoint[] = "muster_plugin_model";

// An ELF note. Plain data: it is read from the file.
struct Note {
  uint32_t name_bytes = 8;
  uint32_t description_bytes = 40;
  uint32_t type = 1;
  char name[8] = {'M', 'u', 's', 't', 'e', 'r', 0, 0};
  uint32_t abi = kAbi;
  uint32_t cxx11_abi = _GLIBCXX_USE_CXX11_ABI;
  char torch[32] = TORCH_VERSION;
};
static_assert(sizeof(Note) == 60);

using Options = std::vector<std::pair<std::string, std::string>>;  // by name

// How a tensor starts.
struct Initial {
  enum Kind : int32_t { kUnknown = 0, kZeros = 1, kOnes = 2, kNormal = 3 };
  Kind kind = kUnknown;
  double standard_deviation = 0;  // kNormal, of mean 0
};

// A tensor of a module. Until the trainer binds it, it has a shape and a dtype and no memory.
struct Tensor {
  std::string name;   // "0.weight": unique in the model
  at::Tensor tensor;  // the module's own: binding it gives the module its values
  Initial initial;
  bool decay = false;  // takes weight decay
};

// A tensor of an earlier unit that this one also uses.
struct Borrowed {
  std::string unit;
  std::string name;
  at::Tensor tensor;
};

// Functions may throw std::exception.
class Unit {
 public:
  virtual ~Unit() = default;
  virtual std::string name() const = 0;
  virtual std::vector<Tensor> Parameters() const = 0;
  virtual std::vector<Borrowed> Borrows() const = 0;
  virtual std::vector<Tensor> Buffers() const = 0;
  virtual void Train(bool on) = 0;  // torch::nn::Module::train
  // `in`: of the first unit the batch's tensors that it reads, in the task's order; of another one the output of the
  // unit before. The first dimension is the samples.
  virtual at::Tensor Forward(const std::vector<at::Tensor>& in) = 0;
};

// A tensor of a batch, as the first unit and the loss see it: [samples, shape...].
struct BatchTensor {
  std::string name;
  std::vector<int64_t> shape;
  int64_t bound = 0;                   // 0: fp32; else int64, 0 <= value < bound
  bool input = false, target = false;  // read by the first unit, by the loss and the metrics
};

struct Task {
  enum Kind : int32_t { kLanguageModel = 1, kImageClassification = 2, kTensors = 3 };
  Kind kind = kLanguageModel;
  int64_t vocabulary = 0, context = 0;                       // kLanguageModel
  int64_t channels = 0, height = 0, width = 0, classes = 0;  // kImageClassification
  std::vector<BatchTensor> tensors;                          // kTensors
  std::vector<std::string> metrics;                          // kTensors
  int64_t targets_per_sample = 1;                            // kTensors
};

class Model {
 public:
  virtual ~Model() = default;
  virtual Task task() const = 0;
  virtual std::vector<Unit*> Units() const = 0;  // in forward order; they live as long as the model
  // The loss summed over the targets, of the last unit's output and the batch's targets, in the task's order.
  // Undefined: cross entropy of its output as logits; never with kTensors.
  virtual at::Tensor Loss(const at::Tensor& output, const std::vector<at::Tensor>& targets, double label_smoothing) = 0;
  // kTensors: of each metric one number, likewise summed over the targets.
  virtual std::vector<at::Tensor> Metrics(const at::Tensor& output, const std::vector<at::Tensor>& targets) = 0;
};

// kEntryPoint: a model that the caller deletes. Null: `error` says why.
using EntryPoint = Model* (*)(const Options& options, std::string& error);

}  // namespace muster::plugin
