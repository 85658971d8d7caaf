#include "data/images/image_file.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "data/file_pattern.h"
#include "data/tokenizer_origin.h"

namespace muster::data {
namespace {

std::string ShapeOf(const ImageShard& shard) {
  const ImageSidecar& shape = shard.shape();
  return absl::StrCat(shape.channels, " x ", shape.height, " x ", shape.width, " images in ", shape.classes,
                      " classes");
}

bool Agree(const ImageSidecar& a, const ImageSidecar& b) {
  return a.channels == b.channels && a.height == b.height && a.width == b.width && a.classes == b.classes;
}

// `paths` are in byte order.
bool IsSidecarOfAnother(const std::string& path, const std::vector<std::string>& paths) {
  return absl::EndsWith(path, ".json") &&
         std::binary_search(paths.begin(), paths.end(), path.substr(0, path.size() - 5));
}

}  // namespace

absl::StatusOr<ImageFile> ImageFile::Open(const std::string& pattern) {
  const absl::StatusOr<std::vector<std::string>> paths = FilesOf(pattern);
  if (!paths.ok()) return paths.status();
  ImageFile file;
  uint64_t images = 0;
  for (const std::string& path : *paths) {
    if (IsSidecarOfAnother(path, *paths)) continue;
    absl::StatusOr<ImageShard> shard = ImageShard::Open(path);
    if (!shard.ok()) return shard.status();
    images += shard->images();
    file.shards_.push_back(*std::move(shard));
    file.ends_.push_back(images);
    const ImageShard &first = file.shards_.front(), &last = file.shards_.back();
    if (!Agree(first.shape(), last.shape())) {
      return absl::InvalidArgumentError(absl::StrCat(last.path(), " holds ", ShapeOf(last), ", but ", first.path(), " ",
                                                     ShapeOf(first), ": shards of one job must agree"));
    }
    if (first.shape().class_names != last.shape().class_names) {
      return absl::InvalidArgumentError(absl::StrCat(last.path(), " and ", first.path(),
                                                     " name their classes differently, so the same label means "
                                                     "different things: prepare them with the same classes"));
    }
  }
  return file;
}

absl::Status ImageFile::Read(uint64_t index, absl::Span<uint8_t> pixels, uint32_t& label) const {
  const size_t shard = std::upper_bound(ends_.begin(), ends_.end(), index) - ends_.begin();
  return shards_[shard].Read(index - (ends_[shard] - shards_[shard].images()), pixels, label);
}

absl::Status ImageFile::CheckShape(uint64_t channels, uint64_t height, uint64_t width) const {
  const ImageSidecar& shape = shards_[0].shape();
  if (shape.channels == channels && shape.height == height && shape.width == width) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(shards_[0].path(), " has images of ", shape.channels, " x ", shape.height, " x ", shape.width,
                   " (channels, height, width), the model reads ", channels, " x ", height, " x ", width));
}

absl::Status ImageFile::CheckLabels(uint64_t classes, uint64_t most) const {
  const uint64_t stride = (images() - 1) / most + 1;
  for (const ImageShard& shard : shards_) {
    const absl::StatusOr<uint64_t> record = shard.FindOutside(classes, stride);
    if (!record.ok()) return record.status();
    if (*record == shard.images()) continue;
    const absl::StatusOr<uint32_t> label = shard.Label(*record);
    if (!label.ok()) return label.status();
    return absl::OutOfRangeError(absl::StrCat(shard.path(), ": label ", *label, " of record ", *record,
                                              " is not below the number of classes, ", classes,
                                              ": the file is of another data set, or the model has too few classes"));
  }
  return absl::OkStatus();
}

bool HoldsImages(const std::string& pattern) {
  const absl::StatusOr<std::vector<std::string>> paths = FilesOf(pattern);
  if (!paths.ok()) return false;
  for (const std::string& path : *paths) {
    if (access(SidecarPath(path).c_str(), F_OK) == 0) return true;
  }
  for (const std::string& path : *paths) {
    if (const auto tokenizer = ReadTokenizerOrigin(path); tokenizer.ok() && tokenizer->has_value()) return false;
  }
  const absl::StatusOr<ImageFile> file = ImageFile::Open(pattern);
  if (!file.ok()) return false;
  return std::all_of(file->shards().begin(), file->shards().end(),
                     [](const ImageShard& shard) { return shard.LabelsFit().value_or(false); });
}

}  // namespace muster::data
