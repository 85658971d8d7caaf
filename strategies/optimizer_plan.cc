#include "strategies/optimizer_plan.h"

#include <algorithm>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "models/inventory.h"
#include "strategies/partition/cuts.h"
#include "strategies/partition/flat.h"
#include "strategies/partition/table.h"

namespace muster::strategies {
namespace {

// fp32 numbers of state of each trained element, by an optimizer that takes elements one by one.
uint64_t StateTensors(const Optimizer& optimizer) {
  if (optimizer.has_adamw()) return 2;
  if (optimizer.has_lion()) return 1;
  return optimizer.sgd().momentum() > 0 ? 1 : 0;
}

// Of Adafactor: a row and a column, each padded, or all elements.
uint64_t FactoredElements(const Tensor& tensor) {
  const uint64_t elements = models::Elements(tensor);
  const int dimensions = tensor.shape_size();
  if (dimensions < 2) return partition::Padded(elements);
  return partition::Padded(elements / tensor.shape(dimensions - 1)) +
         partition::Padded(elements / tensor.shape(dimensions - 2));
}

// visit(unit, tensor, shard) for each trained tensor of units [unit, unit_end) that a shard owns whole.
template <typename F>
void EachOwned(const Inventory& inventory, const PartitionTable& table, int unit, int unit_end, const F& visit) {
  for (int u = unit; u < unit_end; ++u) {
    std::map<std::string, const Tensor*> tensors;
    for (const Tensor& tensor : inventory.units(u).tensors()) tensors[tensor.name()] = &tensor;
    const partition::OwnedUnit owned = partition::OwnedUnitOf(table, inventory, u);
    for (const partition::FlatTensor& flat : owned.flat.tensors) {
      if (flat.frozen) continue;
      for (const partition::OwnedRange& range : owned.ranges) {
        if (range.begin <= flat.begin && flat.begin + flat.elements <= range.end) {
          visit(u, *tensors.at(flat.name), range.shard);
        }
      }
    }
  }
}
template <typename F>
void EachOwned(const Inventory& inventory, const PartitionTable& table, const F& visit) {
  EachOwned(inventory, table, 0, inventory.units_size(), visit);
}

// Of each matrix that Newton-Schulz orthogonalizes (worker/engine/muon.cc).
struct Orthogonalization {
  uint64_t bytes = 0;
  double flops = 0;
};
Orthogonalization OrthogonalizationOf(const Muon& muon, const Tensor& tensor) {
  const Matrix m = MatrixOf(tensor);
  const uint64_t least = std::min(m.rows, m.columns), gram = least * least, elements = m.rows * m.columns;
  const auto n = static_cast<double>(elements), g = static_cast<double>(gram), side = static_cast<double>(least);
  // In bf16: the matrix and the next one, X X^T and the polynomial of it.
  return {.bytes = 2 * (2 * elements + 2 * gram), .flops = muon.ns_steps() * (2 * 2 * n * side + 2 * g * side)};
}

}  // namespace

bool NeedsWholeTensors(const Optimizer& optimizer) { return optimizer.has_muon() || optimizer.has_adafactor(); }

bool IsUpdatedWhole(const Optimizer& optimizer, const Inventory& inventory, int unit, const Tensor& tensor) {
  if (tensor.frozen()) return false;
  return optimizer.has_adafactor() || (optimizer.has_muon() && models::IsHiddenMatrix(inventory, unit, tensor));
}

Matrix MatrixOf(const Tensor& tensor) {
  const uint64_t rows = tensor.shape(0);
  return {.rows = rows, .columns = models::Elements(tensor) / rows};
}

absl::Status CheckWhole(const Optimizer& optimizer, const Inventory& inventory, const PartitionTable& table) {
  if (!NeedsWholeTensors(optimizer)) return absl::OkStatus();
  std::map<std::string, bool> whole;
  EachOwned(inventory, table, [&](int, const Tensor& tensor, uint32_t) { whole[tensor.name()] = true; });
  for (int u = 0; u < inventory.units_size(); ++u) {
    for (const Tensor& tensor : inventory.units(u).tensors()) {
      if (!IsUpdatedWhole(optimizer, inventory, u, tensor) || whole.contains(tensor.name())) continue;
      return absl::InvalidArgumentError(absl::StrCat("the optimizer updates ", tensor.name(),
                                                     " as a whole, and the partition table cuts it; use placement: "
                                                     "whole"));
    }
  }
  return absl::OkStatus();
}

std::vector<uint64_t> StateBytes(const Optimizer& optimizer, const Inventory& inventory, const PartitionTable& table) {
  std::vector<uint64_t> bytes = partition::TrainedElements(table, inventory);
  const uint64_t each = optimizer.has_muon() ? 2 : optimizer.has_adafactor() ? 0 : StateTensors(optimizer);
  for (uint64_t& of_shard : bytes) of_shard *= 4 * each;
  if (!NeedsWholeTensors(optimizer)) return bytes;
  EachOwned(inventory, table, [&](int unit, const Tensor& tensor, uint32_t shard) {
    if (!IsUpdatedWhole(optimizer, inventory, unit, tensor)) return;
    if (optimizer.has_adafactor()) {
      bytes[shard] += 4 * FactoredElements(tensor);
    } else {
      bytes[shard] -= 4 * partition::PaddedElements(tensor);  // one momentum in place of AdamW's two
    }
  });
  return bytes;
}

uint64_t MostStateAnElement(const Optimizer& optimizer) {
  return optimizer.has_muon() ? 2 : optimizer.has_adafactor() ? 1 : StateTensors(optimizer);
}

uint64_t UpdateBytes(const Train& train, const Inventory& inventory) {
  const Optimizer& optimizer = train.optimizer();
  uint64_t most = 0;
  for (int u = 0; u < inventory.units_size(); ++u) {
    for (const Tensor& tensor : inventory.units(u).tensors()) {
      if (!IsUpdatedWhole(optimizer, inventory, u, tensor)) continue;
      // Weights in bf16 are widened.
      const uint64_t wide = train.precision().params() == DTYPE_BF16 ? 4 * models::Elements(tensor) : 0;
      most = std::max(most, wide + (optimizer.has_muon() ? OrthogonalizationOf(optimizer.muon(), tensor).bytes : 0));
    }
  }
  const bool on_gpu = inventory.device() == DEVICE_CUDA && !train.offload().optimizer();
  return !optimizer.has_muon() || most == 0 || on_gpu ? most : most + models::kPanelBytes;
}

double UpdateFlops(const Optimizer& optimizer, const Inventory& inventory, const PartitionTable& table, int unit,
                   int unit_end) {
  if (!optimizer.has_muon()) return 0;
  std::vector<double> flops(table.shards());
  EachOwned(inventory, table, unit, unit_end, [&](int u, const Tensor& tensor, uint32_t shard) {
    if (!IsUpdatedWhole(optimizer, inventory, u, tensor)) return;
    flops[shard] += OrthogonalizationOf(optimizer.muon(), tensor).flops;
  });
  return *std::max_element(flops.begin(), flops.end());
}

}  // namespace muster::strategies
