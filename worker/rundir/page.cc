#include "worker/rundir/page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/file_error.h"

namespace muster::rundir {

absl::StatusOr<void*> MapPage(const std::string& path, bool writable) {
  // Never replace the file: other processes have it mapped.
  const int fd = open(path.c_str(), (writable ? O_RDWR | O_CREAT : O_RDONLY) | O_CLOEXEC, 0600);
  if (fd < 0) return FileError(errno, absl::StrCat("cannot open ", path));
  const auto closed = absl::MakeCleanup([fd] { close(fd); });
  // Allocate blocks: a store to a hole on a full disk would raise SIGBUS.
  if (const int error = writable ? posix_fallocate(fd, 0, kPageBytes) : 0; error != 0) {
    return FileError(error, absl::StrCat("cannot make room for ", path));
  }
  if (lseek(fd, 0, SEEK_END) < static_cast<off_t>(kPageBytes)) {
    return absl::DataLossError(absl::StrCat(path, " is too short; check the disk"));
  }
  void* page = mmap(nullptr, kPageBytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
  if (page == MAP_FAILED) return absl::ErrnoToStatus(errno, absl::StrCat("cannot map ", path));
  return page;
}

}  // namespace muster::rundir
