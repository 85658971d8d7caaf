// Reads a shard of a checkpoint. Returns only bytes that match their checksums.
//
// Thread-safe, except for the caller's scratch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/safetensors.h"
#include "proto/manifest.pb.h"

namespace muster::checkpoint {

inline constexpr uint64_t kBlockBytes = 4 << 20;  // of shards that are written

// Caches the last partly used block, so that adjacent small tensors are read from disk once.
struct BlockScratch {
  const void* shard = nullptr;
  size_t block = 0;
  std::string bytes;
};

class ShardReader {
 public:
  // `entry`: the shard in the manifest. Verifies the header; verifies the whole file if the manifest is an older one
  // without block checksums. DataLoss: missing, cut or damaged; names the file and the cause.
  static absl::StatusOr<ShardReader> Open(const std::string& directory, ShardFile entry);

  const SafetensorsHeader& header() const { return file_.header(); }

  // Bytes [offset, offset + length) of a tensor of header(), after verifying the blocks that they lie in. REQUIRES:
  // they lie within it. DataLoss: damaged; names the file and the bytes.
  absl::Status Read(const TensorEntry& tensor, uint64_t offset, uint64_t length, char* out,
                    BlockScratch& scratch) const;

  // Verifies every byte, also against the checksum of the whole file. DataLoss names the damaged ranges.
  absl::Status Verify() const;

 private:
  struct Block {
    uint64_t begin = 0, end = 0;
  };
  ShardReader(ShardFile entry, SafetensorsFile file) : entry_(std::move(entry)), file_(std::move(file)) {}
  bool has_blocks() const { return entry_.block_crc32c_size() > 0; }
  Block BlockAt(size_t index) const;
  // The block that contains byte `at` of the file, which lies after the header.
  size_t BlockOf(uint64_t at) const;
  absl::Status CheckBlock(size_t index, std::string_view bytes) const;
  absl::Status ReadBlock(size_t index, BlockScratch& scratch) const;

  ShardFile entry_;
  SafetensorsFile file_;
};

}  // namespace muster::checkpoint
