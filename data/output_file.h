// An output file that appears complete and durable under its name, or not at all.
//
//   auto file = OutputFile::Create("train.bin", OutputFile::Existing::kRefuse).value();
//   file.Write(bytes);
//   file.Commit();
//
// Bytes go to a hidden temporary beside it, which the destructor removes unless Commit() succeeded. Not thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace muster::data {

// "/a/b" of "/a/b/c", "." of "c".
std::string DirectoryOf(const std::string& path);

// Makes creations, renames and removals in the directory durable.
absl::Status SyncDirectory(const std::string& path);

class OutputFile {
 public:
  enum class Existing { kRefuse, kReplace };

  // AlreadyExists: `path` exists and must not be replaced; NotFound: no such folder; PermissionDenied.
  static absl::StatusOr<OutputFile> Create(const std::string& path, Existing existing);
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile();

  // ResourceExhausted: disk full. After any error the file cannot be committed.
  absl::Status Write(std::string_view bytes);
  // Bytes written.
  uint64_t size() const { return size_; }
  // Reads exactly `length` written bytes from `offset` into `out`.
  absl::Status ReadBack(uint64_t offset, size_t length, char* out) const;
  // Replaces bytes that were written, from `offset` on. Errors as Write. REQUIRES: they were written.
  absl::Status Overwrite(uint64_t offset, std::string_view bytes);
  // Removes the bytes after `size`.
  absl::Status Truncate(uint64_t size);
  // fsync, rename, fsync of the folder. AlreadyExists: the name appeared meanwhile. Call once.
  absl::Status Commit();

 private:
  OutputFile(std::string path, std::string temporary, int descriptor, Existing existing);

  std::string path_;
  std::string temporary_;  // empty: nothing to remove
  int descriptor_;
  Existing existing_;
  uint64_t size_ = 0;
  bool failed_ = false;
};

}  // namespace muster::data
