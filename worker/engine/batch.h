// One rank's samples of a step or of an evaluation, as the inventory's task describes them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "absl/status/status.h"
#include "proto/inventory.pb.h"
#include "worker/units/named_tensors.h"

namespace muster::engine {

struct Batch {
  uint64_t samples = 0;         // maybe none
  units::NamedTensors tensors;  // the task's, on the CPU, [samples, ...]; not changed by the caller any more
  uint64_t global_samples = 0;  // over all ranks; the loss sum is divided by their targets
  uint64_t first_sample = 0;    // the first one's place among them
};

// InvalidArgument: the tensors are not such samples, or an integer is out of its bounds.
absl::Status CheckBatch(const Inventory& inventory, const Batch& batch);
at::ScalarType DtypeOf(const BatchTensor& described);
absl::Status CheckBatchTensor(const BatchTensor& described, const at::Tensor& tensor, uint64_t samples);

}  // namespace muster::engine
