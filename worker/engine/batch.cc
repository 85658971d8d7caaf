#include "worker/engine/batch.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace muster::engine {

at::ScalarType DtypeOf(const BatchTensor& described) {
  return described.type() == BatchTensor::INT64 ? at::kLong : at::kFloat;
}

absl::Status CheckBatchTensor(const BatchTensor& described, const at::Tensor& tensor, uint64_t samples) {
  std::vector<int64_t> shape = {static_cast<int64_t>(samples)};
  for (const uint64_t n : described.shape()) shape.push_back(static_cast<int64_t>(n));
  if (!tensor.defined() || !tensor.is_cpu() || tensor.sizes() != shape || tensor.scalar_type() != DtypeOf(described)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a batch of ", samples, " samples has ", described.name(), " [", absl::StrJoin(shape, ", "),
                     "] of ", BatchTensor::Type_Name(described.type()), ", got ",
                     tensor.defined() ? absl::StrCat("[", absl::StrJoin(tensor.sizes(), ", "), "]") : "none"));
  }
  if (described.bound() == 0) return absl::OkStatus();
  const at::Tensor values = tensor.contiguous();
  const int64_t *begin = values.const_data_ptr<int64_t>(), *end = begin + values.numel();
  const int64_t bound = static_cast<int64_t>(described.bound());
  const int64_t* wrong = std::find_if(begin, end, [&](int64_t value) { return value < 0 || value >= bound; });
  if (wrong == end) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(described.name(), ": ", *wrong, " is not 0 to ", bound - 1, ": the data is of another model"));
}

absl::Status CheckBatch(const Inventory& inventory, const Batch& batch) {
  if (batch.global_samples < std::max<uint64_t>(1, batch.samples)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a batch of ", batch.samples, " samples out of ", batch.global_samples, " of all ranks"));
  }
  if (batch.samples == 0) return absl::OkStatus();
  for (const BatchTensor& described : inventory.task().tensors()) {
    absl::Status status = CheckBatchTensor(described, batch.tensors[described.name()], batch.samples);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace muster::engine
