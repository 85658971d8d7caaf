// A job's images: one file, or several shards as one stream, in the formats of image_shard.h.
//
//   auto file = ImageFile::Open("data_batch_*.bin").value();
//   file.CheckLabels(10);
//   std::vector<uint8_t> pixels(file.channels() * file.height() * file.width());
//   uint32_t label;
//   file.Read(0, absl::MakeSpan(pixels), label);
//
// Shards are concatenated in byte order of their paths. They may be of different formats, but must agree on the size of
// the images and the number of classes. Nothing is kept in memory: the page cache does that.
// Thread-safe: no method changes the object.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "data/images/image_shard.h"

namespace muster::data {

class ImageFile {
 public:
  // `pattern`: a path, or one with * ? [ ] as in a shell (a file of that very name goes first); sidecars that it
  // matches are left out. NotFound: no file matches. InvalidArgument: shards that do not agree. Else as
  // ImageShard::Open.
  static absl::StatusOr<ImageFile> Open(const std::string& pattern);

  const std::vector<ImageShard>& shards() const { return shards_; }  // at least one
  uint64_t images() const { return ends_.back(); }                   // at least one
  uint32_t channels() const { return shards_[0].shape().channels; }
  uint32_t height() const { return shards_[0].shape().height; }
  uint32_t width() const { return shards_[0].shape().width; }
  uint64_t classes() const { return shards_[0].shape().classes; }
  // By label; empty: the files do not say.
  const std::vector<std::string>& class_names() const { return shards_[0].shape().class_names; }

  // `pixels` becomes image `index`, [channels, height, width]. `label` may be any number: see CheckLabels.
  // REQUIRES: index < images(), pixels.size() == channels() * height() * width().
  // DataLoss: a file became shorter since Open, or the disk fails.
  absl::Status Read(uint64_t index, absl::Span<uint8_t> pixels, uint32_t& label) const;

  // InvalidArgument: the images are not those that a model reads; names both shapes.
  absl::Status CheckShape(uint64_t channels, uint64_t height, uint64_t width) const;

  // OutOfRange: a label at or above `classes`; names the first one, its file and its record there. Of more than `most`
  // labels it reads about so many, spread over the shards.
  absl::Status CheckLabels(uint64_t classes, uint64_t most = UINT64_MAX) const;

 private:
  ImageFile() = default;

  std::vector<ImageShard> shards_;
  std::vector<uint64_t> ends_;  // of each shard in the stream
};

// Whether `pattern` is a file of images, or matches some: it has a sidecar; or no record of a tokenizer
// (tokenizer_origin.h), Open takes it, and all labels are in range. A file of tokens whose size happens to be that of
// CIFAR's records is none by its record, or else most often by its labels.
bool HoldsImages(const std::string& pattern);

}  // namespace muster::data
