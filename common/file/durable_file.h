// Files that are complete on disk when they have their name, even after a kill or a power loss.
//
//   absl::Status status = WriteDurably(state_dir + "/node_id", "node-7f3k\n");
//
//   absl::StatusOr<DurableFile> file = DurableFile::Create("train.bin", {.existing = FileOptions::kRefuse});
//   file->Write(bytes);
//   file->Commit();
//
// Bytes go to a hidden temporary file next to the target, `.NAME.XXXXXXXX.new`. Commit() fsyncs it, renames it (or
// links it, if it must not replace a file), and fsyncs the folder. After an error the old file is intact. A killed
// process may leave its temporary file behind.
//
// Each step has a failpoint (common/failpoint.h): POINTS.create, .write (each call), .sync, .rename, .folder.
//
// Errors are those of FileError (common/file_error.h), with the path: ResourceExhausted: no space, quota or file size
// limit; DataLoss: the disk failed; NotFound: no such folder; PermissionDenied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace muster {

struct FileOptions {
  enum Existing { kReplace, kRefuse };
  Existing existing = kReplace;
  // The exact mode, regardless of the umask. If absent: 0666 minus the umask, as for files that a user creates.
  std::optional<unsigned> mode;
  // The prefix of the failpoints. If empty: "file.NAME", where NAME is the last component of the path.
  std::string_view points;
};

// A file being written. Not thread-safe.
class DurableFile {
 public:
  // AlreadyExists: `path` exists and must not be replaced. FailedPrecondition: `path` is a folder.
  static absl::StatusOr<DurableFile> Create(const std::string& path, const FileOptions& options = {});
  // Creates the file under its final name, for a folder that is renamed when all of its files are written. Commit()
  // only fsyncs the file, and the destructor removes nothing. AlreadyExists: `path` exists.
  static absl::StatusOr<DurableFile> CreateInPlace(const std::string& path, const FileOptions& options = {});
  DurableFile(DurableFile&& other) noexcept;
  DurableFile& operator=(DurableFile&&) = delete;
  // Removes the temporary file unless Commit() succeeded.
  ~DurableFile();

  const std::string& path() const { return path_; }
  // Bytes written.
  uint64_t size() const { return size_; }
  // After an error of Write, Overwrite or Truncate the file cannot be committed.
  absl::Status Write(std::string_view bytes);
  // Reads exactly `length` written bytes from `offset` into `out`.
  absl::Status ReadBack(uint64_t offset, size_t length, char* out) const;
  // Replaces bytes from `offset` on. REQUIRES: they were written.
  absl::Status Overwrite(uint64_t offset, std::string_view bytes);
  // Cuts the file to `size`. REQUIRES: size <= size().
  absl::Status Truncate(uint64_t size);
  // AlreadyExists: someone else created `path` meanwhile, and it must not be replaced. Call once.
  absl::Status Commit();

 private:
  DurableFile(std::string path, std::string points, const FileOptions& options);
  absl::Status Open(const std::string& path, const FileOptions& options);
  int Hit(std::string_view step) const;

  std::string path_;
  std::string points_;
  FileOptions::Existing existing_;
  std::string temporary_;  // empty: nothing to remove
  int descriptor_ = -1;
  uint64_t size_ = 0;
  bool failed_ = false;
};

// Replaces a small file as a whole. Without `options` its mode is 0600; with options it is theirs.
absl::Status WriteDurably(const std::string& path, std::string_view content,
                          const FileOptions& options = {.mode = 0600});

// Writes a small file of a folder that is renamed later (DurableFile::CreateInPlace).
absl::Status WriteInPlace(const std::string& path, std::string_view content, const FileOptions& options);

// Renames a file or folder. REQUIRES: its content was synced. `point`: its failpoint.
absl::Status Rename(const std::string& from, const std::string& to, std::string_view point);
// Makes the content of a file that someone else wrote survive a power loss. NotFound.
absl::Status SyncFile(const std::string& path);
// Makes names that were created, renamed or removed in `folder` survive a power loss.
absl::Status SyncFolder(const std::string& folder, std::string_view point = "file.folder");

// Appends all of `bytes` to an open file; errors name `path`. Sets `written` to the count of bytes written, even after
// an error.
absl::Status WriteFully(int descriptor, const std::string& path, std::string_view bytes, size_t& written);

// "/a/b" of "/a/b/c", "/" of "/c", "." of "c".
std::string ParentFolder(const std::string& path);

}  // namespace muster
