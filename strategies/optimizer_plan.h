// What an optimizer asks of a layout: tensors that one shard owns whole, memory for its state and for its update, and
// work. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "proto/inventory.pb.h"
#include "proto/partition.pb.h"
#include "proto/spec.pb.h"

namespace muster::strategies {

// Whether some tensors are updated as a whole, so that a placement that cuts tensors does not do.
bool NeedsWholeTensors(const Optimizer& optimizer);

// Whether this one is, a trained tensor of units(unit).
bool IsUpdatedWhole(const Optimizer& optimizer, const Inventory& inventory, int unit, const Tensor& tensor);

// A tensor of two dimensions or more as the matrix that Muon takes: the first dimension, and the others together.
struct Matrix {
  uint64_t rows = 0, columns = 0;
};
Matrix MatrixOf(const Tensor& tensor);

// InvalidArgument names the tensor: it is updated as a whole, and the table cuts it. REQUIRES: the table passed Check.
absl::Status CheckWhole(const Optimizer& optimizer, const Inventory& inventory, const PartitionTable& table);

// Bytes of optimizer state by shard, fp32. REQUIRES: the table passed Check and CheckWhole.
std::vector<uint64_t> StateBytes(const Optimizer& optimizer, const Inventory& inventory, const PartitionTable& table);

// The most fp32 numbers of state that a trained element may take.
uint64_t MostStateAnElement(const Optimizer& optimizer);

// The most temporaries of an update, which takes place while there are no activations, in the memory that has the
// optimizer's state; what is bounded by a small block is not counted.
uint64_t UpdateBytes(const Train& train, const Inventory& inventory);

// Floating-point operations of an update of units [unit, unit_end) in bf16 GEMMs, of the shard that has most. REQUIRES:
// as StateBytes.
double UpdateFlops(const Optimizer& optimizer, const Inventory& inventory, const PartitionTable& table, int unit,
                   int unit_end);

}  // namespace muster::strategies
