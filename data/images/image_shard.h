// A file of labeled images, one of the shards of an ImageFile, in one of three formats:
//
//   cifar10   records of 1 byte label and 3,072 bytes of pixels (CIFAR-10 binary version)
//   cifar100  records of 1 byte coarse label, 1 byte fine label and 3,072 bytes of pixels; the fine label is read
//   muster    records as NAME.json beside the file says (image_sidecar.h), of any size and number of classes
//
// A file with a sidecar is muster. The size tells the other two apart; a size that is a multiple of both 3,073 and
// 3,074 (9,446,402 bytes, or a multiple of that) is decided by the labels: those of only one format are all in range.
// Pixels are one byte each, [channels, height, width]; of CIFAR [3, 32, 32], red, green, blue.
//
// Reads with pread, so that a truncated file is an error and no SIGBUS. Thread-safe: no method changes the object.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "data/images/image_sidecar.h"

namespace muster::data {

enum class ImageFormat { kCifar10, kCifar100, kMuster };

// "cifar10", "cifar100", "muster"
const char* FormatName(ImageFormat format);

inline constexpr uint64_t kCifarPixelBytes = 3 * 32 * 32;
inline constexpr uint64_t kCifar10Record = 1 + kCifarPixelBytes;
inline constexpr uint64_t kCifar100Record = 2 + kCifarPixelBytes;

class ImageShard {
 public:
  // NotFound, PermissionDenied: as open(2). InvalidArgument: empty, cut, no regular file, of another format, or with a
  // wrong sidecar; says which sizes were expected. Messages begin with the path.
  static absl::StatusOr<ImageShard> Open(const std::string& path);
  ImageShard(ImageShard&& other) noexcept;
  ImageShard& operator=(ImageShard&&) = delete;
  ~ImageShard();

  const std::string& path() const { return path_; }
  ImageFormat format() const { return format_; }
  uint64_t images() const { return shape_.images; }  // at least one
  uint64_t bytes() const { return bytes_; }
  const ImageSidecar& shape() const { return shape_; }  // also of CIFAR files, which have no sidecar

  // `pixels` becomes image `index`, `label` its label, which no one has compared with the number of classes.
  // REQUIRES: index < images(), pixels.size() == shape().pixel_bytes().
  // DataLoss: the file became shorter since Open, or the disk fails.
  absl::Status Read(uint64_t index, absl::Span<uint8_t> pixels, uint32_t& label) const;

  // REQUIRES: index < images(). Errors as Read.
  absl::StatusOr<uint32_t> Label(uint64_t index) const;

  // Index of the first label at or above `classes` among every `stride`th; images() if there is none. Errors as Read.
  absl::StatusOr<uint64_t> FindOutside(uint64_t classes, uint64_t stride = 1) const;

  // Whether all labels are ones that the format has: below shape().classes; of cifar100 also the coarse ones, below 20.
  // Errors as Read.
  absl::StatusOr<bool> LabelsFit() const;

 private:
  ImageShard(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  absl::Status Recognize();
  absl::Status RecognizeCifar();
  void Become(ImageFormat format);
  uint64_t RecordBytes() const { return head_ + shape_.pixel_bytes(); }
  uint32_t LabelIn(const uint8_t* head) const;
  absl::Status Cut() const;

  std::string path_;
  int descriptor_;
  ImageFormat format_ = ImageFormat::kMuster;
  ImageSidecar shape_;
  uint32_t head_ = 1;  // bytes of a record before its pixels; the label is the last shape_.label_bytes of them
  uint64_t bytes_ = 0;
};

}  // namespace muster::data
