#include "common/file/reliable_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/file_error.h"

namespace muster {

long FileSystemType(const std::string& path) {
  struct statfs info {};
  return statfs(path.c_str(), &info) == 0 ? static_cast<long>(info.f_type) : 0;
}

// The numbers of linux/magic.h, and of file systems that are not in the kernel's tree.
const char* NetworkFileSystem(long type) {
  switch (static_cast<unsigned long>(type) & 0xffffffff) {
    case 0x6969:
      return "NFS";
    case 0x517b:
    case 0xfe534d42:
    case 0xff534d42:
      return "SMB";
    case 0x01021997:
      return "9p";
    case 0x5346414f:
    case 0x6b414653:
      return "AFS";
    case 0x00c36400:
      return "Ceph";
    case 0x0bd00bd0:
      return "Lustre";
    case 0x47504653:
      return "GPFS";
    case 0x19830326:
      return "BeeGFS";
    case 0x7461636f:
      return "OCFS2";
    case 0x01161970:
      return "GFS2";
    case 0x65735546:
      return "FUSE";
    default:
      return nullptr;
  }
}

absl::Status CheckReliable(const std::string& folder, bool allow_network, long type) {
  if (const char* name = NetworkFileSystem(type); name != nullptr && !allow_network) {
    return absl::FailedPreconditionError(
        absl::StrCat(folder, " is on ", name,
                     ", where locks and fsync may not hold what they promise: two coordinators could use it at ",
                     "once, and accepted jobs could be lost. Name a folder on a local disk, or accept that with ",
                     "--allow-network-filesystem"));
  }
  const std::string probe = absl::StrCat(folder, "/.probe-", getpid());
  const int first = open(probe.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  // A full disk says nothing about locks and fsync; what a process needs to store there has its own reserve.
  if (first < 0 && IsFullDisk(errno)) return absl::OkStatus();
  if (first < 0) return FileError(errno, absl::StrCat("cannot write to ", folder));
  const int second = open(probe.c_str(), O_RDWR | O_CLOEXEC);
  const auto removed = absl::MakeCleanup([&] {
    close(first);
    if (second >= 0) close(second);
    unlink(probe.c_str());
  });
  const bool locks = second >= 0 && flock(first, LOCK_EX | LOCK_NB) == 0 && flock(second, LOCK_EX | LOCK_NB) != 0 &&
                     errno == EWOULDBLOCK;
  if (!locks) {
    return absl::FailedPreconditionError(
        absl::StrCat("locks do not exclude in ", folder, ": two coordinators could use it at once"));
  }
  const bool written = write(first, "x", 1) == 1 || IsFullDisk(errno);
  if (!written || fsync(first) != 0) {
    return absl::FailedPreconditionError(absl::StrCat("fsync does not work in ", folder, ": ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

}  // namespace muster
