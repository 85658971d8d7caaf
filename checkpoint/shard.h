// A shard of a checkpoint, of which no byte is given out that does not agree with its checksum.
//
// Thread-safe, but for the scratch, which is the caller's.
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

// The last block of which only a part was wanted: small tensors that lie side by side are read from disk once.
struct BlockScratch {
  const void* shard = nullptr;
  size_t block = 0;
  std::string bytes;
};

class ShardReader {
 public:
  // `entry`: what the manifest says of it. Verifies its header, and all of it if the manifest has no checksums of
  // blocks, as older ones have. DataLoss: missing, cut, damaged; names the file and the cause.
  static absl::StatusOr<ShardReader> Open(const std::string& directory, ShardFile entry);

  const SafetensorsHeader& header() const { return file_.header(); }

  // Bytes [offset, offset + length) of a tensor of header(), after verifying the blocks that they lie in. REQUIRES:
  // they lie within it. DataLoss: damaged; names the file and the bytes.
  absl::Status Read(const TensorEntry& tensor, uint64_t offset, uint64_t length, char* out,
                    BlockScratch& scratch) const;

  // Every byte, also against the checksum of the whole file. DataLoss names the damaged ranges.
  absl::Status Verify() const;

 private:
  struct Block {
    uint64_t begin = 0, end = 0;
  };
  ShardReader(ShardFile entry, SafetensorsFile file) : entry_(std::move(entry)), file_(std::move(file)) {}
  bool has_blocks() const { return entry_.block_crc32c_size() > 0; }
  Block BlockAt(size_t index) const;
  // The block that file byte `at`, behind the header, lies in.
  size_t BlockOf(uint64_t at) const;
  absl::Status CheckBlock(size_t index, std::string_view bytes) const;
  absl::Status ReadBlock(size_t index, BlockScratch& scratch) const;

  ShardFile entry_;
  SafetensorsFile file_;
};

}  // namespace muster::checkpoint
