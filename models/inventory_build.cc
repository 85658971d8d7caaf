#include "models/inventory_build.h"

#include "absl/strings/str_cat.h"
#include "models/inventory.h"

namespace muster::models {

absl::Status CheckNumbers(std::initializer_list<FamilyNumber> numbers, const char* what) {
  for (const FamilyNumber& n : numbers) {
    if (!n.given) return absl::InvalidArgumentError(absl::StrCat(n.name, ": missing; give ", what));
    if (n.value == 0 || n.value > n.max) {
      return absl::InvalidArgumentError(absl::StrCat(n.name, ": must be 1 to ", n.max, ", got ", n.value));
    }
  }
  return absl::OkStatus();
}

Tensor& AddTensor(Unit& unit, const std::string& name, const std::vector<uint64_t>& shape, Initialisation::Kind kind,
                  double standard_deviation) {
  Tensor& tensor = *unit.add_tensors();
  tensor.set_name(name);
  for (const uint64_t n : shape) tensor.add_shape(n);
  tensor.mutable_init()->set_kind(kind);
  tensor.mutable_init()->set_standard_deviation(standard_deviation);
  tensor.set_decay(shape.size() >= 2);
  return tensor;
}

void AddOutput(Unit& unit, const std::string& name, const std::vector<uint64_t>& shape, Activation::Type type) {
  Activation& output = *unit.add_outputs();
  output.set_name(name);
  for (const uint64_t n : shape) output.add_shape(n);
  output.set_type(type);
  unit.set_output_bytes(OutputBytes(unit, sizeof(float)));
}

BatchTensor& AddBatchTensor(Task& task, const std::string& name, BatchTensor::Type type,
                            const std::vector<uint64_t>& shape) {
  BatchTensor& tensor = *task.add_tensors();
  tensor.set_name(name);
  tensor.set_type(type);
  for (const uint64_t n : shape) tensor.add_shape(n);
  return tensor;
}

void SetLanguageTask(Inventory& inventory, uint64_t vocabulary, uint64_t context) {
  Task& task = *inventory.mutable_task();
  task.set_name(kLanguageModel);
  AddBatchTensor(task, kInputs, BatchTensor::INT64, {context}).set_input(true);
  AddBatchTensor(task, kTargets, BatchTensor::INT64, {context}).set_target(true);
  for (BatchTensor& tensor : *task.mutable_tensors()) tensor.set_bound(vocabulary);
  task.set_targets_per_sample(context);
}

void SetImageTask(Inventory& inventory, uint64_t channels, uint64_t height, uint64_t width, uint64_t classes) {
  Task& task = *inventory.mutable_task();
  task.set_name(kImageClassification);
  AddBatchTensor(task, kInputs, BatchTensor::FLOAT, {channels, height, width}).set_input(true);
  BatchTensor& labels = AddBatchTensor(task, kTargets, BatchTensor::INT64, {});
  labels.set_bound(classes);
  labels.set_target(true);
  task.add_metrics("top1");
  if (classes > 5) task.add_metrics("top5");
  task.set_targets_per_sample(1);
}

void AddHiddenStates(Unit& unit, uint64_t tokens, uint64_t width) {
  AddOutput(unit, "hidden_states", {tokens, width}, Activation::FP32);
}

Unit& AddTokenEmbedding(Inventory& inventory, const char* kind, uint64_t width) {
  const uint64_t c = width, t = TargetsPerSample(inventory);
  Unit& unit = *inventory.add_units();
  unit.set_name("embedding");
  unit.set_kind(kind);
  unit.set_forward_flops(1.0 * static_cast<double>(t) * static_cast<double>(c));
  unit.set_saved_bytes(8 * (t + 1));  // the token ids
  AddHiddenStates(unit, t, c);
  unit.set_drops(true);
  unit.set_backward_without_parameters(true);  // it adds the gradient's rows to those of the tokens
  unit.set_frees_output(true);
  return unit;
}

Unit& AddLanguageHead(Inventory& inventory, const char* kind, uint64_t width, Device device) {
  const uint64_t c = width, t = TargetsPerSample(inventory), v = Find(inventory.task(), kTargets).bound();
  Unit& unit = *inventory.add_units();
  unit.set_name("head");
  unit.set_kind(kind);
  unit.set_forward_flops(2.0 * static_cast<double>(t) * static_cast<double>(c) * static_cast<double>(v));
  unit.set_saved_bytes(4 * t * c);  // the input
  unit.set_piece_rows(LogitsPieceRows(v, device));
  unit.set_backward_bytes(4 * t * c);              // its gradient
  unit.set_backward_piece_bytes(4 * (v + c + 2));  // logits, which become their own gradient, and around the norm
  return unit;
}

}  // namespace muster::models
