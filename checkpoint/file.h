// Files of a checkpoint: created once, written in order while their SHA-256 is taken, read by ranges.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/file/durable_file.h"
#include "common/sha256.h"

namespace muster::checkpoint {

// A new file in a folder that gets its name when all of its files are written. Not thread-safe.
class NewFile {
 public:
  // AlreadyExists: `path` is there. `points` names the failpoints (common/file/durable_file.h).
  static absl::StatusOr<NewFile> Create(const std::string& path, std::string_view points);

  // ResourceExhausted: disk full.
  absl::Status Write(std::string_view bytes);
  uint64_t bytes() const { return file_.size(); }
  // Takes a CRC-32C of all bytes written so far, and from now on of every `block_bytes`.
  void BeginBlocks(uint64_t block_bytes);
  // fsync and close; the SHA-256 of the content. Call once.
  absl::StatusOr<std::string> Finish();
  // After Finish, if BeginBlocks was called.
  const std::vector<uint32_t>& block_crc32c() const { return blocks_; }

 private:
  explicit NewFile(DurableFile file) : file_(std::move(file)) {}
  absl::Status WriteSlice(std::string_view slice);
  void EndBlock();

  DurableFile file_;
  uint64_t block_bytes_ = 0;  // 0: not begun
  uint64_t in_block_ = 0;     // bytes of the current block
  uint32_t crc_ = 0;          // and its checksum
  std::vector<uint32_t> blocks_;
  std::unique_ptr<Sha256> sha256_ = std::make_unique<Sha256>();
};

// Open for reading. Thread-safe.
class ReadFile {
 public:
  // NotFound; InvalidArgument: no regular file.
  static absl::StatusOr<ReadFile> Open(const std::string& path);
  ReadFile(ReadFile&& other) noexcept;
  ReadFile& operator=(ReadFile&&) = delete;
  ~ReadFile();

  const std::string& path() const { return path_; }
  uint64_t bytes() const { return bytes_; }
  // Exactly `length` bytes from `offset`. DataLoss: the file is shorter, or the disk fails.
  absl::Status Read(uint64_t offset, uint64_t length, char* out) const;
  // Of the whole file.
  absl::StatusOr<std::string> Sha256Hex() const;

 private:
  ReadFile(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  std::string path_;
  int descriptor_;
  uint64_t bytes_ = 0;
};

// The whole of a file. Besides ReadFile's errors InvalidArgument: it has more than `max_bytes`.
absl::StatusOr<std::string> ReadText(const std::string& path, uint64_t max_bytes);

// Of a file in a step folder that cannot be opened or parsed: DataLoss if the file itself is at fault, also when it is
// missing; the error as it is if it says nothing about the file: no permission, no descriptors, another version.
absl::Status AsDamage(const absl::Status& status);

}  // namespace muster::checkpoint
