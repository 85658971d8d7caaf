// Opens files below given folders only, wherever symbolic links lead and whoever changes them meanwhile.
//
//   absl::StatusOr<int> fd = OpenBeneath({"/data", "/scratch"}, "/data/train.bin", O_RDONLY | O_CLOEXEC);
//
// Links that stay below one of the folders are followed. Every other way out (links, "..", the links of /proc) is an
// error, decided by the kernel while it opens the file (openat2, RESOLVE_BENEATH), so a link that is changed in between
// leads nowhere else. Before Linux 5.6, and where a sandbox forbids openat2, the file's folder is opened and its
// real path compared.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace muster {

// As open(2). `roots` and `path`: absolute. PermissionDenied: it lies below none of the roots, of which it may be one
// itself. NotFound and others as FileError.
absl::StatusOr<int> OpenBeneath(const std::vector<std::string>& roots, const std::string& path, int flags,
                                unsigned mode = 0);

// Whether a file or folder that is there, or may be created, lies below one of `roots`: what exists of its path is
// opened there. PermissionDenied: it does not; or it is a link to nothing, which may be made to lead anywhere.
absl::Status CheckBeneath(const std::vector<std::string>& roots, const std::string& path);

// Makes a folder and what is missing above it, below one of `roots` or as one of them. No link that is made meanwhile
// leads elsewhere. Nothing happens if it is there. PermissionDenied as CheckBeneath; others as FileError.
absl::Status MakeFoldersBeneath(const std::vector<std::string>& roots, const std::string& path);

// The path without symbolic links, as far as it exists, and without "..".
std::string RealPath(const std::string& path);
// Where something of that path would be created: as RealPath, also through symbolic links to what is not there.
std::string PlaceOf(const std::string& path);
// Whether `path` is `folder` or below it. Both are compared as text.
bool IsWithin(const std::string& path, const std::string& folder);

// Where this process may open the files of a job; no folders: anywhere.
struct Confinement {
  std::vector<std::string> data;   // token and image files
  std::vector<std::string> read;   // checkpoints, and weights to start from
  std::vector<std::string> write;  // checkpoints
};
enum class FileUse { kData, kRead, kWrite };

// For the whole process, like its user or its limits: what is opened lies deep in the readers of data and checkpoints.
// Call it once, before there are other threads.
void Confine(Confinement confinement);
// As OpenBeneath, where Confine says so; otherwise open(2). Errors name the path only.
absl::StatusOr<int> OpenConfined(FileUse use, const std::string& path, int flags, unsigned mode = 0);
// CheckBeneath of the folders for writing, before what lies there is renamed or removed.
absl::Status CheckConfined(const std::string& path);
// MakeFoldersBeneath them; otherwise as mkdir -p. FailedPrecondition: a file or a broken symbolic link is in the way.
absl::Status MakeConfinedFolders(const std::string& path);

}  // namespace muster
