#include "models/inventory.h"

#include <algorithm>

#include <google/protobuf/util/field_mask_util.h>
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "models/family.h"
#include "models/tuning.h"

namespace muster::models {

absl::StatusOr<Model> Resolve(const Model& model) {
  const ModelFamily* family = FamilyOf(model);
  if (family == nullptr) return absl::InvalidArgumentError(absl::StrCat("family: missing; known: ", FamilyNames()));
  return family->Resolve(model);
}

namespace {

// Of all ranks that compute a unit together.
Inventory MakeUndivided(Model resolved, Device device, uint32_t context_ranks) {
  const ModelFamily& family = *FamilyOf(resolved);
  const Device known = device == DEVICE_CUDA ? DEVICE_CUDA : DEVICE_CPU;
  Inventory inventory = family.MakeInventory(resolved, known, TensorShare{.context_ranks = context_ranks});
  inventory.set_family(family.name());
  inventory.set_device(known);
  if (context_ranks > 1) inventory.set_context_ranks(context_ranks);
  *inventory.mutable_model() = std::move(resolved);
  return inventory;
}

TensorShare ShareAsked(const Parallel& parallel, uint32_t context_ranks) {
  return {.ranks = std::max(1u, parallel.tensor()),
          .sequence_parallel = parallel.sequence_parallel(),
          .context_ranks = context_ranks};
}

}  // namespace

absl::StatusOr<Inventory> MakeInventory(const Model& model, Device device) {
  absl::StatusOr<Model> resolved = Resolve(model);
  if (!resolved.ok()) return resolved.status();
  return MakeUndivided(*std::move(resolved), device, /*context_ranks=*/1);
}

absl::Status Divide(const Train& train, Inventory& inventory) {
  const TensorShare share = ShareAsked(train.parallel(), ContextRanks(inventory));
  if (share.whole()) return absl::OkStatus();
  const auto error = [](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("parallel.tensor: ", why));
  };
  if (train.has_lora()) return error("adapters (lora) are not divided; use more shards or stages");
  const absl::Status possible = FamilyOf(inventory.model())->CheckTensorRanks(inventory.model(), share);
  if (!possible.ok()) return error(possible.message());
  inventory.set_tensor_ranks(share.ranks);
  inventory.set_sequence_parallel(share.sequence_parallel);
  return absl::OkStatus();
}

absl::StatusOr<Inventory> MakeInventory(const Train& train, Device device) {
  absl::StatusOr<Model> resolved = Resolve(train.model());
  if (!resolved.ok()) return resolved.status();
  const TensorShare share = ShareAsked(train.parallel(), std::max(1u, train.parallel().context()));
  const absl::Status possible = FamilyOf(*resolved)->CheckContextRanks(*resolved, share);
  if (!possible.ok()) return absl::InvalidArgumentError(absl::StrCat("parallel.context: ", possible.message()));
  absl::StatusOr<Inventory> inventory = MakeUndivided(*std::move(resolved), device, share.context_ranks);
  if (absl::Status s = Divide(train, *inventory); !s.ok()) return s;
  if (absl::Status s = Tune(train, *inventory); !s.ok()) return s;
  if (!train.precision().has_compute()) return inventory;
  const absl::Status computes = FamilyOf(inventory->model())->CheckCompute(*inventory, train.precision().compute());
  if (!computes.ok()) return absl::InvalidArgumentError(absl::StrCat("precision.compute: ", computes.message()));
  return inventory;
}

uint32_t TensorRanks(const Inventory& inventory) { return std::max(1u, inventory.tensor_ranks()); }

uint32_t ContextRanks(const Inventory& inventory) { return std::max(1u, inventory.context_ranks()); }

uint64_t WholeTargetsPerSample(const Inventory& inventory) {
  return TargetsPerSample(inventory) * ContextRanks(inventory);
}

bool IsShare(const Inventory& inventory) { return inventory.has_tensor_rank(); }

Inventory WithoutUnits(const Inventory& inventory) {
  using google::protobuf::util::FieldMaskUtil;
  google::protobuf::FieldMask units, rest;
  units.add_paths("units");
  FieldMaskUtil::Subtract<Inventory>(FieldMaskUtil::GetFieldMaskForAllFields<Inventory>(), units, &rest);
  Inventory of;
  FieldMaskUtil::MergeMessageTo(inventory, rest, FieldMaskUtil::MergeOptions(), &of);
  return of;
}

Inventory ShareOf(const Inventory& inventory, uint32_t rank) {
  const TensorShare of{.ranks = TensorRanks(inventory),
                       .rank = rank,
                       .sequence_parallel = inventory.sequence_parallel(),
                       .context_ranks = ContextRanks(inventory)};
  if (of.whole()) return inventory;
  Inventory share = WithoutUnits(inventory);
  Inventory made = FamilyOf(inventory.model())->MakeInventory(inventory.model(), inventory.device(), of);
  share.mutable_units()->Swap(made.mutable_units());
  share.set_tensor_rank(rank);
  for (int u = 0; u < share.units_size(); ++u) {
    for (int t = 0; t < share.units(u).tensors_size(); ++t) {
      const Tensor& whole = inventory.units(u).tensors(t);
      Tensor& tensor = *share.mutable_units(u)->mutable_tensors(t);
      tensor.set_frozen(whole.frozen());
      if (tensor.has_box()) *tensor.mutable_box()->mutable_shape() = whole.shape();
    }
  }
  AddDropoutBytes(share);
  return share;
}

bool Counts(const Inventory& inventory, const Tensor& tensor) {
  return tensor.has_box() || inventory.tensor_rank() == 0;
}

uint64_t Elements(const Tensor& tensor) {
  uint64_t n = 1;
  for (const uint64_t d : tensor.shape()) n *= d;
  return n;
}

uint64_t Parameters(const Inventory& inventory) {
  uint64_t n = 0;
  for (const Unit& unit : inventory.units()) {
    for (const Tensor& tensor : unit.tensors()) n += Elements(tensor);
  }
  return n;
}

uint64_t TrainedParameters(const Inventory& inventory) {
  uint64_t n = 0;
  for (const Unit& unit : inventory.units()) {
    for (const Tensor& tensor : unit.tensors()) n += tensor.frozen() ? 0 : Elements(tensor);
  }
  return n;
}

int ModelUnit(const Inventory& inventory, int unit) {
  int number = unit;
  for (const Chunk& chunk : inventory.chunks()) {
    if (static_cast<int>(chunk.begin()) > unit) break;
    number = static_cast<int>(chunk.model_begin()) + unit - static_cast<int>(chunk.begin());
  }
  return number;
}

int ModelUnits(const Inventory& inventory) {
  return inventory.chunks().empty() ? inventory.units_size() : static_cast<int>(inventory.model_units());
}

uint64_t OutputBytes(const Unit& unit, uint64_t compute_bytes) { return OutputBytes(unit.outputs(), compute_bytes); }

uint64_t OutputBytes(const google::protobuf::RepeatedPtrField<Activation>& outputs, uint64_t compute_bytes) {
  uint64_t bytes = 0;
  for (const Activation& output : outputs) {
    uint64_t elements = 1;
    for (const uint64_t n : output.shape()) elements *= n;
    bytes += elements * (output.type() == Activation::COMPUTE ? compute_bytes : sizeof(float));
  }
  return bytes;
}

absl::Status CheckOutputs(const Inventory& inventory) {
  for (int u = 0; u < inventory.units_size(); ++u) {
    const Unit& unit = inventory.units(u);
    const auto error = [&](auto... what) {
      return absl::FailedPreconditionError(absl::StrCat("unit ", unit.name(), " ", what...));
    };
    const bool last = u + 1 == inventory.units_size();
    if (last && unit.outputs_size() > 0) return error("is the last one and hands activations to a next one");
    if (!last && unit.outputs().empty()) {
      return error(
          "does not say what it hands to the next one: its inventory is of an older build, or it gives activations "
          "that are neither fp32 nor in precision.compute; print the inventory again with `muster model inspect`");
    }
    for (const Activation& output : unit.outputs()) {
      if (output.type() == Activation::FP32 || output.type() == Activation::COMPUTE) continue;
      return error("hands over ", output.name(), " of an unknown type");
    }
    if (const uint64_t bytes = OutputBytes(unit, sizeof(float)); bytes != unit.output_bytes()) {
      return error("hands over ", bytes, " bytes of a sample, but has output_bytes ", unit.output_bytes());
    }
  }
  return absl::OkStatus();
}

int FirstTrained(const Inventory& inventory) {
  if (!inventory.chunks().empty()) {
    int before = 0;
    while (before < inventory.units_size() &&
           ModelUnit(inventory, before) < static_cast<int>(inventory.first_trained()))
      ++before;
    return before;
  }
  const auto is_trained = [](const Tensor& tensor) { return !tensor.frozen(); };
  const auto borrows_trained = [&](const Borrow& borrow) {
    return std::any_of(inventory.units().begin(), inventory.units().end(), [&](const Unit& unit) {
      return unit.name() == borrow.unit() &&
             std::any_of(unit.tensors().begin(), unit.tensors().end(),
                         [&](const Tensor& tensor) { return tensor.name() == borrow.tensor() && is_trained(tensor); });
    });
  };
  const auto first = std::find_if(inventory.units().begin(), inventory.units().end(), [&](const Unit& unit) {
    return std::any_of(unit.tensors().begin(), unit.tensors().end(), is_trained) ||
           std::any_of(unit.borrows().begin(), unit.borrows().end(), borrows_trained);
  });
  return std::min(static_cast<int>(first - inventory.units().begin()), std::max(0, inventory.units_size() - 1));
}

bool IsHiddenMatrix(const Inventory& inventory, int unit, const Tensor& tensor) {
  const int number = ModelUnit(inventory, unit);
  return number > 0 && number + 1 < ModelUnits(inventory) && tensor.shape_size() >= 2;
}

uint64_t TypicalWidth(const Inventory& inventory) {
  const int units = inventory.units_size();
  uint64_t largest = 0, width = 1;
  for (int u = units > 2 ? 1 : 0; u < (units > 2 ? units - 1 : units); ++u) {
    for (const Tensor& tensor : inventory.units(u).tensors()) {
      if (tensor.shape_size() < 2 || Elements(tensor) <= largest) continue;
      largest = Elements(tensor);
      width = std::min(tensor.shape(0), largest / tensor.shape(0));
    }
  }
  return width;
}

uint64_t Buffers(const Inventory& inventory) {
  uint64_t elements = 0;
  for (const Unit& unit : inventory.units()) {
    for (const Tensor& tensor : unit.buffers()) elements += Elements(tensor);
  }
  return elements;
}

bool DependsOnMicrobatches(const Inventory& inventory) {
  return std::any_of(inventory.units().begin(), inventory.units().end(),
                     [](const Unit& unit) { return unit.buffers_size() > 0 || unit.has_exchange(); });
}

WindowBlocks BlocksOfWindow(uint64_t tokens, uint64_t window) {
  constexpr uint64_t kLeast = 128;  // a narrower one launches more kernels for nothing
  const auto aligned = [](uint64_t n) { return (n + 15) / 16 * 16; };
  return {std::min(tokens, std::max(aligned(window), kLeast)), aligned(window - 1)};
}

uint64_t PieceRows(uint64_t rows, uint64_t most) {
  if (most == 0 || rows <= most) return rows;
  const uint64_t pieces = (rows + most - 1) / most;
  return (rows + pieces - 1) / pieces;
}

uint64_t RowChunks(uint64_t rows, uint64_t pieces, uint64_t ranks) {
  return std::clamp<uint64_t>(std::min(pieces, rows / ranks), 1, 4);  // each rank may have a part of the rows
}

uint64_t NarrowBytes(const Inventory& inventory) {
  if (inventory.device() == DEVICE_CUDA) return 0;
  uint64_t largest = 0;
  for (const Unit& unit : inventory.units()) {
    for (const Tensor& tensor : unit.tensors()) largest = std::max(largest, Elements(tensor));
  }
  return std::max(2 * largest, kPanelBytes);
}

}  // namespace muster::models
