#include "data/images/prepare/inspect_images.h"

#include <utility>

namespace muster::data {

absl::StatusOr<ImageInspection> InspectImages(const std::string& pattern) {
  const absl::StatusOr<ImageFile> file = ImageFile::Open(pattern);
  if (!file.ok()) return file.status();
  if (absl::Status status = file->CheckLabels(file->classes()); !status.ok()) return status;
  ImageInspection result{.images = file->images(),
                         .channels = file->channels(),
                         .height = file->height(),
                         .width = file->width(),
                         .classes = file->classes(),
                         .class_names = file->class_names()};
  result.counts.resize(file->classes(), 0);
  for (const ImageShard& shard : file->shards()) {
    result.bytes += shard.bytes();
    result.shards.push_back({shard.path(), FormatName(shard.format()), shard.images()});
    for (uint64_t i = 0; i < shard.images(); ++i) {
      const absl::StatusOr<uint32_t> label = shard.Label(i);
      if (!label.ok()) return label.status();
      if (*label < result.counts.size()) ++result.counts[*label];
    }
  }
  absl::StatusOr<Normalization> measured = Measure(*file);
  if (!measured.ok()) return measured.status();
  result.normalization = *std::move(measured);
  return result;
}

}  // namespace muster::data
