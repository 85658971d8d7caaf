#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "cli/config.h"
#include "cli/doctor/checks.h"
#include "cli/output/format.h"
#include "common/bytes.h"
#include "common/file_error.h"

namespace muster::cli {
namespace {

constexpr uint64_t kTooLittleFree = uint64_t{256} << 20;  // below it the coordinator accepts no job
constexpr uint64_t kLittleFree = uint64_t{2048} << 20;
constexpr size_t kMaxSocketPath = 107;
constexpr absl::string_view kLongestSocket = "/coordinator.sock";

}  // namespace

Finding CheckDisk(const std::string& folder, const std::string& what) {
  const std::string existing = ExistingPart(folder);
  if (const std::string why = WhyBroken(existing); !why.empty()) {
    return {"disk", Severity::kProblem, absl::StrCat(what, " ", folder, ": ", existing, " ", why),
            "name another folder"};
  }
  struct statvfs disk {};
  if (statvfs(existing.c_str(), &disk) != 0) {
    return {"disk", Severity::kProblem, absl::StrCat(what, " ", folder, ": ", std::strerror(errno)),
            absl::StrCat("make ", existing, " readable for this user")};
  }
  struct stat found {};
  if (stat(existing.c_str(), &found) == 0 && !S_ISDIR(found.st_mode)) {
    return {"disk", Severity::kProblem, absl::StrCat(what, " ", folder, ": ", existing, " is a file, not a folder"),
            "name another folder"};
  }
  const uint64_t free = uint64_t{disk.f_bavail} * disk.f_frsize;
  const std::string text = absl::StrCat(FormatBytes(free), " free for ", what, " ", folder);
  // First: access() refuses writing there, too, and no chmod would help.
  if ((disk.f_flag & ST_RDONLY) != 0) {
    return {"disk", Severity::kProblem, absl::StrCat(text, ", mounted read-only"),
            "mount it for writing, or name another folder"};
  }
  if (access(existing.c_str(), W_OK | X_OK) != 0) {
    return {"disk", Severity::kProblem, absl::StrCat(text, ", but ", existing, " is not writable"),
            absl::StrCat("chown or chmod ", existing, ", or name another folder")};
  }
  if (free < kTooLittleFree) {
    return {"disk", Severity::kProblem, text,
            "free some space: with less than 256 MiB the coordinator accepts no jobs"};
  }
  if (free < kLittleFree) {
    return {"disk", Severity::kNote, text,
            "free some space: a checkpoint of GPT-2 124M takes 1.5 GB, and two are kept"};
  }
  return {"disk", Severity::kOk, text, ""};
}

Finding CheckFolder(const std::string& folder) {
  const std::string existing = ExistingPart(folder);
  if (IsKernelFolder(existing)) {
    return {"disk", Severity::kProblem,
            absl::StrCat(folder, ": the kernel provides ", existing, ", where no files can be created"),
            "name another folder"};
  }
  const bool broken = !WhyBroken(existing).empty();
  struct stat found {};
  if (!broken && stat(folder.c_str(), &found) != 0) {
    return {"disk", Severity::kProblem, absl::StrCat(folder, ": ", std::strerror(errno)),
            errno == ENOENT ? absl::StrCat("mkdir -p ", folder, ", or name another folder")
                            : absl::StrCat("make ", folder, " readable for this user, or name another folder")};
  }
  return CheckDisk(folder, "the folder");
}

Finding CheckRuntime(const std::string& folder) {
  if (folder.size() + kLongestSocket.size() > kMaxSocketPath) {
    return {"runtime folder", Severity::kProblem, absl::StrCat(folder, ": its path is too long for a socket in it"),
            "set MUSTER_RUNTIME_DIR to a folder with a path of at most 90 bytes"};
  }
  if (absl::Status ours = CheckRuntimeFolder(folder); !ours.ok()) {
    return {"runtime folder", Severity::kProblem, std::string(ours.message()),
            absl::StrCat("chmod 700 ", folder, " if it is yours, else set MUSTER_RUNTIME_DIR to another")};
  }
  struct stat found {};
  if (stat(folder.c_str(), &found) != 0) {
    const Finding disk = CheckDisk(folder, "the runtime folder");
    if (disk.severity == Severity::kProblem) return {"runtime folder", Severity::kProblem, disk.text, disk.remedy};
    return {"runtime folder", Severity::kOk, absl::StrCat(folder, ", made when it is needed"), ""};
  }
  return {"runtime folder", Severity::kOk, absl::StrCat(folder, ", closed to others"), ""};
}

}  // namespace muster::cli
