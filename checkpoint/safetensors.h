// The safetensors format (Hugging Face): a little-endian u64 header length N, N bytes of JSON, then the tensors' bytes.
// The reader is strict, so that a file has one meaning: no header over 100 MB, no unknown or repeated keys, no
// overlaps or holes, sizes equal to shape times dtype.
//
//   SafetensorsFile file = SafetensorsFile::Open("shard-00000.safetensors").value();
//   file.Read(file.header().tensors[0], /*offset=*/0, bytes, buffer);
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/file.h"

namespace muster::checkpoint {

inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;

struct TensorEntry {
  std::string name;
  std::string dtype;            // "F32"
  std::vector<uint64_t> shape;  // empty: a scalar
  uint64_t begin = 0;           // bytes, from the end of the header
  uint64_t end = 0;
  friend bool operator==(const TensorEntry&, const TensorEntry&) = default;
};

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;             // in the order of their bytes
  std::map<std::string, std::string> metadata;  // "__metadata__"
  friend bool operator==(const SafetensorsHeader&, const SafetensorsHeader&) = default;
};

// Bytes of one element; 0: no dtype of the format.
uint64_t DtypeBytes(std::string_view dtype);

// The file's first bytes: length and JSON, padded with spaces so that the buffer begins at a multiple of 64 bytes.
// REQUIRES: `header` is what ParseHeader would accept.
std::string EncodeHeader(const SafetensorsHeader& header);

// `json`: the header without its length; `buffer_bytes`: the size of what follows it.
// InvalidArgument: not as the format demands; the message says what is wrong with which tensor.
absl::StatusOr<SafetensorsHeader> ParseHeader(std::string_view json, uint64_t buffer_bytes);

// Reads ranges without loading the whole. Thread-safe.
class SafetensorsFile {
 public:
  // NotFound; InvalidArgument: not as the format demands; messages begin with the path.
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);

  const SafetensorsHeader& header() const { return header_; }
  const ReadFile& file() const { return file_; }
  uint64_t header_bytes() const { return buffer_; }  // of the file, before the tensors
  // Bytes [offset, offset + length) of a tensor of header(). REQUIRES: they lie within it.
  absl::Status Read(const TensorEntry& tensor, uint64_t offset, uint64_t length, char* out) const;

 private:
  SafetensorsFile(ReadFile file, SafetensorsHeader header, uint64_t buffer)
      : file_(std::move(file)), header_(std::move(header)), buffer_(buffer) {}
  ReadFile file_;
  SafetensorsHeader header_;
  uint64_t buffer_;  // where the tensors begin in the file
};

}  // namespace muster::checkpoint
