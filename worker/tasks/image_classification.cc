#include "worker/tasks/image_classification.h"

#include <ATen/ops/from_blob.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "data/images/image_batch.h"
#include "models/inventory.h"

namespace muster::tasks {
namespace {

// A tensor that owns the vector.
template <typename T>
at::Tensor Owning(std::vector<T> values, const std::vector<int64_t>& shape, at::ScalarType type) {
  auto kept = std::make_shared<std::vector<T>>(std::move(values));
  return at::from_blob(
      kept->data(), shape, [kept](void*) {}, type);
}

class Images final : public Samples {
 public:
  Images(data::ImageFile file, const data::SampleOrder& order, const data::Augmentation& augmentation,
         data::Normalization normalization)
      : file_(std::move(file)), order_(order), augmentation_(augmentation), normalization_(std::move(normalization)) {}

  uint64_t samples_per_epoch() const override { return order_.samples_per_epoch(); }
  absl::StatusOr<engine::Batch> Read(uint64_t first, uint64_t count) const override {
    std::vector<float> pixels;
    std::vector<int64_t> labels;
    absl::Status read = data::ReadImages(file_, order_, augmentation_, normalization_, first, count, pixels, labels);
    if (!read.ok()) return read;
    const auto images = static_cast<int64_t>(count);
    return engine::Batch{
        .samples = count,
        .tensors = {{models::kInputs,
                     Owning(std::move(pixels), {images, file_.channels(), file_.height(), file_.width()}, at::kFloat)},
                    {models::kTargets, Owning(std::move(labels), {images}, at::kLong)}},
        .global_samples = 0};
  }

 private:
  const data::ImageFile file_;
  const data::SampleOrder order_;
  const data::Augmentation augmentation_;
  const data::Normalization normalization_;
};

class ImageClassification final : public Task {
 public:
  std::string name() const override { return models::kImageClassification; }

  absl::StatusOr<std::unique_ptr<Samples>> Open(const Inventory& inventory,
                                                const SourceOptions& options) const override {
    const auto at = [&](const absl::Status& status) {
      return absl::Status(status.code(), absl::StrCat(options.field, ": ", status.message()));
    };
    absl::StatusOr<data::ImageFile> file = data::ImageFile::Open(options.path);
    if (!file.ok()) return at(file.status());
    const auto& shape = models::Find(inventory.task(), models::kInputs).shape();
    if (absl::Status s = file->CheckShape(shape[0], shape[1], shape[2]); !s.ok()) return at(s);
    if (absl::Status s = file->CheckLabels(models::Find(inventory.task(), models::kTargets).bound()); !s.ok())
      return at(s);
    const data::SampleOrder order({.samples = file->images(),
                                   .order = options.evaluation ? DATA_ORDER_SEQUENTIAL : options.data.order(),
                                   .seed = options.seed});
    data::Augmentation augmentation;
    if (!options.evaluation) {
      augmentation = {.crop_padding = options.data.augmentation().crop_padding(),
                      .flip = options.data.augmentation().flip()};
    }
    const data::Normalization normalization{
        .mean = {options.data.mean().begin(), options.data.mean().end()},
        .standard_deviation = {options.data.standard_deviation().begin(), options.data.standard_deviation().end()}};
    if (absl::Status s = data::CheckNormalization(normalization, file->channels()); !s.ok()) return at(s);
    return std::make_unique<Images>(*std::move(file), order, augmentation, normalization);
  }

  std::vector<NamedMetric> Metrics(const Inventory& inventory, const engine::Evaluation& evaluation) const override {
    return TaskMetrics(inventory, evaluation);
  }

  std::string samples_name() const override { return "images"; }
  std::string targets_name() const override { return "images"; }
};

}  // namespace

const Task& ImageClassificationTask() {
  static const ImageClassification task;
  return task;
}

}  // namespace muster::tasks
