// A file that appears under its name whole and on disk, or not at all.
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

// After it, names created, renamed or removed in the directory survive a power loss.
absl::Status SyncDirectory(const std::string& path);

class OutputFile {
 public:
  enum class Existing { kRefuse, kReplace };

  // AlreadyExists: `path` is there and not to be replaced; NotFound: its folder is not; PermissionDenied.
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
  // Cuts what was written behind `size`.
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
