// A file of bytes in idx format, as MNIST and its successors are published: images [count, rows, columns] or labels
// [count], plain or compressed by gzip.
//
//   auto images = IdxFile::Open("train-images-idx3-ubyte.gz", /*dimensions=*/3).value();
//   images.Read(pixels);      // as often as there are images
//   images.CheckEnd();
//
// Streams: memory does not grow with the file. Not thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace muster::data {

class IdxFile {
 public:
  // NotFound, PermissionDenied: as open(2). InvalidArgument: no idx file of bytes of that many dimensions (at least 1).
  static absl::StatusOr<IdxFile> Open(const std::string& path, uint32_t dimensions);
  IdxFile(IdxFile&& other) noexcept;
  IdxFile& operator=(IdxFile&&) = delete;
  ~IdxFile();

  const std::string& path() const { return path_; }
  // [count], or [count, rows, columns].
  const std::vector<uint32_t>& sizes() const { return sizes_; }

  // The next bytes. InvalidArgument: the file ends early, or its compression is broken. Others as FileError.
  absl::Status Read(absl::Span<uint8_t> out);
  // InvalidArgument: there is more, or the checksum of gzip is wrong.
  absl::Status CheckEnd();

 private:
  IdxFile(std::string path, void* file) : path_(std::move(path)), file_(file) {}
  absl::StatusOr<size_t> Take(absl::Span<uint8_t> out);

  std::string path_;
  void* file_;  // gzFile
  std::vector<uint32_t> sizes_;
};

}  // namespace muster::data
