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

void AddHiddenStates(Unit& unit, uint64_t tokens, uint64_t width, const TensorShare& share) {
  AddOutput(unit, "hidden_states", {tokens / TokenParts(share), width}, Activation::FP32);
}

Unit& AddTokenEmbedding(Inventory& inventory, const char* kind, uint64_t width, bool positions,
                        const TensorShare& share) {
  const uint64_t c = width, t = TargetsPerSample(inventory), flow = 4 * t * c;
  Unit& unit = *inventory.add_units();
  unit.set_name("embedding");
  unit.set_kind(kind);
  unit.set_forward_flops(1.0 * static_cast<double>(t) * static_cast<double>(c) / share.ranks);
  unit.set_saved_bytes(8 * (t + 1));  // the token ids
  AddHiddenStates(unit, t, c, share);
  unit.set_drops(true);
  unit.set_backward_without_parameters(true);  // it adds the gradient's rows to those of the tokens
  unit.set_frees_output(true);
  if (share.whole()) return unit;
  TensorExchange& exchange = *unit.mutable_tensor_exchange();
  exchange.mutable_forward()->set_collectives(1);
  if (share.sequence_parallel) {
    exchange.mutable_forward()->set_scattered_bytes(flow / share.ranks);
    exchange.mutable_backward()->set_collectives(positions ? 2 : 1);
    exchange.mutable_backward()->set_gathered_bytes(flow / share.ranks);
    if (positions) exchange.mutable_backward()->set_constant_bytes(flow);
    unit.set_forward_bytes(flow);   // the rows of all tokens
    unit.set_backward_bytes(flow);  // and their gradients
    if (positions) unit.set_backward_constant_bytes(flow);
  } else {
    exchange.mutable_forward()->set_summed_bytes(flow);
  }
  *exchange.mutable_evaluation() = exchange.forward();
  return unit;
}

namespace {

constexpr uint64_t kRowStatistics = 3;  // of a row of logits: its maximum, sum of exponentials and target's logit

void AddHeadExchange(Unit& unit, uint64_t tokens, uint64_t width, uint64_t norm, const TensorShare& share) {
  const uint64_t flow = 4 * tokens * width, statistics = 4 * tokens * kRowStatistics;
  TensorExchange& exchange = *unit.mutable_tensor_exchange();
  TensorExchange::Pass &backward = *exchange.mutable_backward(), &evaluation = *exchange.mutable_evaluation();
  for (TensorExchange::Pass* pass : {&backward, &evaluation}) {
    pass->set_piece_collectives(1);
    pass->set_gathered_bytes(statistics);
  }
  if (share.sequence_parallel) {
    for (TensorExchange::Pass* pass : {&backward, &evaluation})
      pass->set_gathered_bytes(statistics + flow / share.ranks);
    evaluation.set_collectives(1);
    backward.set_collectives(3);
    backward.set_scattered_bytes(flow / share.ranks);
    backward.set_constant_bytes(4 * norm);
  } else {
    backward.set_collectives(1);
    backward.set_summed_bytes(flow);
  }
}

}  // namespace

Unit& AddLanguageHead(Inventory& inventory, const char* kind, uint64_t width, uint64_t norm, Device device,
                      const TensorShare& share) {
  const uint64_t c = width, t = TargetsPerSample(inventory), parts = TokenParts(share),
                 all = Find(inventory.task(), kTargets).bound(), v = PartOf(all, share).size;
  Unit& unit = *inventory.add_units();
  unit.set_name("head");
  unit.set_kind(kind);
  unit.set_forward_flops(2.0 * static_cast<double>(t) * static_cast<double>(c) * static_cast<double>(v));
  unit.set_saved_bytes(4 * t * c / parts);  // the input
  // Of the largest share: all have pieces of the same rows, since they meet in each.
  unit.set_piece_rows(LogitsPieceRows((all + share.ranks - 1) / share.ranks, device));
  if (share.whole()) {
    unit.set_backward_bytes(4 * t * c);              // its gradient
    unit.set_backward_piece_bytes(4 * (v + c + 2));  // logits, which become their own gradient, and around the norm
    return unit;
  }
  // What the norm gives of all rows, which becomes its own gradient; that of the input, and of the norm's part.
  const uint64_t normed = t * c + (share.sequence_parallel ? t * c / parts : 0) + 2 * t / parts;
  unit.set_forward_bytes(4 * normed);
  unit.set_backward_bytes(4 * (normed + t * c / parts));
  const uint64_t statistics = kRowStatistics * (share.ranks + 2);
  unit.set_forward_piece_bytes(4 * (v + statistics));
  unit.set_backward_piece_bytes(4 * (v + c + statistics));
  AddHeadExchange(unit, t, c, norm, share);
  return unit;
}

Part PartOf(uint64_t n, const TensorShare& share) {
  const uint64_t each = n / share.ranks, more = n % share.ranks, rank = share.rank;
  return {rank * each + std::min(rank, more), each + (rank < more ? 1 : 0)};
}

void Cut(Tensor& tensor, const std::vector<uint64_t>& view, uint32_t axis, const TensorShare& share) {
  if (share.whole()) return;
  const Part part = PartOf(view[axis], share);
  uint64_t before = view[axis], dimensions = 1;  // elements of the view up to the axis, and of the shape
  for (uint32_t i = 0; i < axis; ++i) before *= view[i];
  for (int d = 0; d < tensor.shape_size(); ++d) {
    dimensions *= tensor.shape(d);
    if (dimensions < before) continue;
    tensor.set_shape(d, tensor.shape(d) / view[axis] * part.size);
    break;
  }
  Box& box = *tensor.mutable_box();
  for (const uint64_t n : view) box.add_view(n);
  box.set_axis(axis);
  box.set_begin(part.begin);
  box.set_size(part.size);
}

void AddBlockExchange(Unit& unit, uint64_t tokens, uint64_t width, uint64_t vectors, const TensorShare& share) {
  if (share.whole()) return;
  const uint64_t flow = 4 * tokens * width, part = flow / share.ranks;
  TensorExchange& exchange = *unit.mutable_tensor_exchange();
  TensorExchange::Pass &forward = *exchange.mutable_forward(), &backward = *exchange.mutable_backward();
  // By chunks: what the GEMMs by columns take, of the network also in backward, and what those by rows give.
  if (share.sequence_parallel) {
    forward.set_chunked_collectives(4);
    forward.set_gathered_bytes(2 * part);
    forward.set_scattered_bytes(2 * part);
    forward.set_chunked_bytes(4 * flow);
    // What the norms gave is gathered again, and with it the gradient of what the GEMMs by rows gave.
    backward.set_collectives(3);
    backward.set_chunked_collectives(3);
    backward.set_gathered_bytes(4 * part);
    backward.set_scattered_bytes(2 * part);
    backward.set_chunked_bytes(3 * flow);
  } else {
    forward.set_chunked_collectives(2);
    forward.set_summed_bytes(2 * flow);
    forward.set_chunked_bytes(4 * flow);
    backward.set_collectives(1);
    backward.set_chunked_collectives(1);
    backward.set_summed_bytes(2 * flow);
    backward.set_chunked_bytes(2 * flow);
  }
  backward.set_overlapped_bytes(2 * flow);
  if (vectors > 0) {
    backward.set_collectives(backward.collectives() + 1);
    backward.set_constant_bytes(4 * vectors);
  }
  *exchange.mutable_evaluation() = forward;
}

void AddContextExchange(Unit& unit, uint64_t context, uint64_t keys, const AttentionElements& forward,
                        const AttentionElements& backward, const TensorShare& share) {
  if (share.context_ranks == 1) return;
  const uint64_t tokens = context / share.context_ranks, part = 4 * 2 * tokens * keys;
  TensorExchange& exchange = *unit.mutable_context_exchange();
  exchange.mutable_forward()->set_collectives(1);
  exchange.mutable_forward()->set_gathered_bytes(part);
  // What was gathered is not kept until then: it would take as much as sharing the sequence saves.
  exchange.mutable_backward()->set_collectives(2);
  exchange.mutable_backward()->set_gathered_bytes(part);
  exchange.mutable_backward()->set_scattered_bytes(part);
  *exchange.mutable_evaluation() = exchange.forward();
  const auto bytes = [&](const AttentionElements& elements) {
    const auto all = static_cast<int64_t>(context * (4 * keys + elements.whole));
    return static_cast<uint64_t>(4 * std::max<int64_t>(0, all + static_cast<int64_t>(tokens) * elements.own));
  };
  unit.set_forward_bytes(std::max(unit.forward_bytes(), bytes(forward)));
  unit.set_backward_bytes(std::max(unit.backward_bytes(), bytes(backward)));
}

uint64_t RunQueries(uint64_t context, const TensorShare& share) {
  return std::min(kMaskedQueries, context / (2 * uint64_t{share.context_ranks}));
}

uint64_t RunMaskBytes(uint64_t context, const TensorShare& share) {
  constexpr uint64_t kAdded = 4, kWhere = 1;  // bytes an element
  return (kAdded + kWhere) * RunQueries(context, share) * context;
}

absl::Status CheckMultiple(const char* field, uint64_t n, const TensorShare& share) {
  if (n % share.ranks == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", n, " are not a multiple of ", share.ranks));
}

absl::Status CheckLanguageShare(uint64_t vocabulary, uint64_t context, const TensorShare& share) {
  if (vocabulary < share.ranks) {
    return absl::InvalidArgumentError(absl::StrCat("vocabulary: ", vocabulary, " are fewer than ", share.ranks));
  }
  return share.sequence_parallel ? CheckMultiple("context", context / share.context_ranks, share) : absl::OkStatus();
}

absl::Status CheckLanguageContext(uint64_t context, const TensorShare& share) {
  if (share.context_ranks == 1) return absl::OkStatus();
  const uint64_t runs = 2 * uint64_t{share.context_ranks}, own = context / share.context_ranks;
  const auto error = [](auto... what) { return absl::InvalidArgumentError(absl::StrCat("context: ", what...)); };
  if (context % runs != 0) {
    return error(context, " tokens are not a multiple of ", runs, ", because each rank has two runs of them");
  }
  if (!share.sequence_parallel || own % share.ranks == 0) return absl::OkStatus();
  return error("each rank has ", own, " of ", context,
               " tokens, which sequence_parallel cannot divide by parallel.tensor ", share.ranks);
}

}  // namespace muster::models
