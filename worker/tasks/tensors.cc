#include "worker/tasks/tensors.h"

#include <ATen/ops/empty.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "data/sample_order.h"
#include "data/tensors/tensor_file.h"
#include "models/task.h"

namespace muster::tasks {
namespace {

class TensorSamples final : public Samples {
 public:
  TensorSamples(data::TensorFile file, const data::SampleOrder& order, const muster::Task& task)
      : file_(std::move(file)), order_(order), task_(task) {}

  uint64_t samples_per_epoch() const override { return order_.samples_per_epoch(); }
  absl::StatusOr<engine::Batch> Read(uint64_t first, uint64_t count) const override {
    std::vector<uint64_t> records;
    for (uint64_t i = 0; i < count; ++i) records.push_back(order_.Index(first + i));
    engine::Batch batch{.samples = count};
    for (int t = 0; t < task_.tensors_size(); ++t) {
      const BatchTensor& described = task_.tensors(t);
      std::vector<int64_t> shape = {static_cast<int64_t>(count)};
      shape.insert(shape.end(), described.shape().begin(), described.shape().end());
      const at::Tensor values = at::empty(shape, engine::DtypeOf(described));
      absl::Status read = file_.Read(static_cast<size_t>(t), records, static_cast<char*>(values.mutable_data_ptr()));
      if (!read.ok()) return read;
      batch.tensors.Set(described.name(), values);
    }
    return batch;
  }

 private:
  const data::TensorFile file_;
  const data::SampleOrder order_;
  const muster::Task task_;
};

class Tensors final : public Task {
 public:
  std::string name() const override { return models::kTensors; }

  absl::StatusOr<std::unique_ptr<Samples>> Open(const Inventory& inventory,
                                                const SourceOptions& options) const override {
    const auto at = [&](const absl::Status& status) {
      return absl::Status(status.code(), absl::StrCat(options.field, ": ", status.message()));
    };
    absl::StatusOr<data::TensorFile> file = data::TensorFile::Open(options.path, inventory.task());
    if (!file.ok()) return at(file.status());
    if (absl::Status s = file->CheckBounds(); !s.ok()) return at(s);
    const data::SampleOrder order({.samples = file->samples(),
                                   .order = options.evaluation ? DATA_ORDER_SEQUENTIAL : options.data.order(),
                                   .seed = options.seed});
    return std::make_unique<TensorSamples>(*std::move(file), order, inventory.task());
  }

  std::vector<NamedMetric> Metrics(const Inventory& inventory, const engine::Evaluation& evaluation) const override {
    return TaskMetrics(inventory, evaluation);
  }

  std::string samples_name() const override { return "samples"; }
  std::string targets_name() const override { return "samples"; }
};

}  // namespace

const Task& TensorsTask() {
  static const Tensors task;
  return task;
}

}  // namespace muster::tasks
