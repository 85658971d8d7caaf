#include "coordinator/store/reserve.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <utility>

namespace muster::store {

Reserve::Reserve(std::string path, uint64_t bytes) : path_(std::move(path)), bytes_(bytes) { held_ = Take(); }

bool Reserve::Take() {
  const int fd = open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return false;
  const bool taken = posix_fallocate(fd, 0, static_cast<off_t>(bytes_)) == 0;
  close(fd);
  if (!taken) unlink(path_.c_str());
  const int folder = open(path_.substr(0, path_.rfind('/')).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder >= 0) {
    fsync(folder);  // so that a crash leaves no half of it; an error costs only the reserve
    close(folder);
  }
  return taken;
}

bool Reserve::Release() {
  if (!std::exchange(held_, false)) return false;
  return unlink(path_.c_str()) == 0;
}

bool Reserve::Refill() {
  if (held_) return true;
  struct statvfs info {};
  const std::string folder = path_.substr(0, path_.rfind('/'));
  if (statvfs(folder.c_str(), &info) != 0 || uint64_t{info.f_bavail} * info.f_frsize < 2 * bytes_) return false;
  held_ = Take();
  return held_;
}

}  // namespace muster::store
