// The samples of a task of named tensors: one safetensors file, or several shards as one stream, whose tensors
// [samples, ...] have the names, the types and the shapes that the task declares.
//
//   auto file = TensorFile::Open("ratings-*.safetensors", inventory.task()).value();
//   file.CheckBounds();
//   std::vector<float> users(2 * 8);
//   file.Read(/*tensor=*/0, {5, 3}, reinterpret_cast<char*>(users.data()));
//
// Shards are concatenated in byte order of their paths. Tensors that the task does not declare are not read. Reads with
// pread, so that a truncated file is an error and no SIGBUS; nothing is kept in memory: the page cache does that.
// Thread-safe: no method changes the object.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "checkpoint/safetensors.h"
#include "proto/units.pb.h"

namespace muster::data {

class TensorFile {
 public:
  // `pattern`: as FilesOf has it. NotFound: no file matches. InvalidArgument: no safetensors file; a tensor is missing,
  // or of another type or shape; its tensors have different numbers of samples, or none. Messages name the file and the
  // tensor.
  static absl::StatusOr<TensorFile> Open(const std::string& pattern, const Task& task);

  uint64_t samples() const { return ends_.back(); }  // at least one

  // Bytes of one sample of the task's tensor `tensor`.
  uint64_t sample_bytes(size_t tensor) const { return sample_bytes_[tensor]; }
  // `out` becomes the samples `records` of the task's tensor `tensor`, one after another.
  // REQUIRES: each is less than samples(). DataLoss: a file became shorter since Open, or the disk fails.
  absl::Status Read(size_t tensor, absl::Span<const uint64_t> records, char* out) const;

  // OutOfRange: an integer is not 0 to bound - 1; names the first one, its file, tensor and sample there. Reads every
  // integer.
  absl::Status CheckBounds() const;

 private:
  struct Shard {
    checkpoint::SafetensorsFile file;
    std::vector<checkpoint::TensorEntry> tensors;  // in the task's order
  };
  explicit TensorFile(const Task& task);
  absl::Status Add(const std::string& path);
  absl::Status CheckBoundsOf(const Shard& shard, size_t tensor) const;

  Task task_;
  std::vector<uint64_t> sample_bytes_;  // by tensor
  std::vector<Shard> shards_;
  std::vector<uint64_t> ends_;  // of each shard in the stream
};

}  // namespace muster::data
