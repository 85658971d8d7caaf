#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace muster {

// Whether the errno says that the disk has no room for more, or that the user's quota of it is used up. EFBIG is not
// about the disk: there may be room in another file.
bool IsFullDisk(int error);

// The Status of a failed file operation, "<what>: <cause>". Like absl::ErrnoToStatus, but says what to check next: no
// space, a quota or a size limit is ResourceExhausted, EIO is DataLoss, a read-only file system is PermissionDenied.
// `error` is an errno.
absl::Status FileError(int error, std::string_view what);

// Whether the kernel provides the folder (/proc, /sys), so that users can create nothing in it.
bool IsKernelFolder(const std::string& folder);

// `path`, or the nearest of the folders above it that exists. A symbolic link does, also one to nothing (WhyBroken).
std::string ExistingPart(std::string path);

// Why a symbolic link names nothing: "is a broken symbolic link (to /x): ...", "is part of a loop of symbolic links (to
// /x): ...", the rest of a sentence that begins with the path. Empty: `path` is no link, or what it names is there.
std::string WhyBroken(const std::string& path);

// Why the parent folder of `path` lets nothing be created: it is missing, is a file, or is below a folder of the kernel
// or one itself. Empty: none of these.
std::string WhyNotCreatable(const std::string& path);

// The Status of a file or folder that could not be created: FileError's, with WhyNotCreatable as its cause.
absl::Status CreateError(int error, const std::string& path);

// OK once standard output has all that stdio has printed there; else why not, as "cannot write to standard output:
// ...".
absl::Status FlushStandardOutput();

}  // namespace muster
