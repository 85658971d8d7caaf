#include "models/task.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace muster::models {

const BatchTensor& Find(const Task& task, const std::string& name) {
  for (const BatchTensor& tensor : task.tensors()) {
    if (tensor.name() == name) return tensor;
  }
  return BatchTensor::default_instance();
}

uint64_t Elements(const BatchTensor& tensor) {
  uint64_t elements = 1;
  for (const uint64_t n : tensor.shape()) elements *= n;
  return elements;
}

std::string DescribeSample(const Task& task) {
  return absl::StrJoin(task.tensors(), ", ", [](std::string* out, const BatchTensor& tensor) {
    const char* type = tensor.type() == BatchTensor::FLOAT ? " float [" : " int64 [";
    absl::StrAppend(out, tensor.name(), type, absl::StrJoin(tensor.shape(), ", "), "]");
  });
}

uint64_t TargetsPerSample(const Inventory& inventory) { return inventory.task().targets_per_sample(); }

double TrainingFlops(const Inventory& inventory) {
  double forward = 0;
  for (const Unit& unit : inventory.units()) forward += unit.forward_flops();
  return 3 * forward;
}

Task Current(const Task& task) {
  Task current = task;
  if (!task.has_inputs() || !task.has_targets() || task.tensors_size() > 0) return current;
  BatchTensor &inputs = *current.add_tensors(), &targets = *current.add_tensors();
  inputs = task.inputs();
  inputs.set_name(kInputs);
  inputs.set_input(true);
  targets = task.targets();
  targets.set_name(kTargets);
  targets.set_target(true);
  current.set_targets_per_sample(Elements(task.targets()));
  current.clear_inputs();
  current.clear_targets();
  return current;
}

DataSource SourceOf(const std::string& task, const Data& data) {
  if (task == kImageClassification) return {"data.images", data.images()};
  if (task == kTensors) return {"data.tensors", data.tensors()};
  return {"data.tokens", data.tokens()};
}

}  // namespace muster::models
