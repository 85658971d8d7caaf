// For tests: a disk of so many MiB at a folder, in memory. Needs the right to mount, which tests have in their sandbox.
#pragma once

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <string>

namespace muster {

class SmallDisk {
 public:
  // Makes the folder if it is not there.
  SmallDisk(std::string path, int mib) : path_(std::move(path)) {
    mkdir(path_.c_str(), 0700);
    const std::string options = "mode=700,size=" + std::to_string(mib) + "m";
    ok_ = mount("none", path_.c_str(), "tmpfs", 0, options.c_str()) == 0;
  }
  ~SmallDisk() {
    if (ok_) umount2(path_.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  bool ok() const { return ok_; }
  const std::string& path() const { return path_; }

  // To the last byte.
  void Fill() const {
    const int fd = open(Filler().c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    const std::string piece(4096, 'x');
    while (write(fd, piece.data(), piece.size()) > 0) {
    }
    close(fd);
  }
  void Free() const { unlink(Filler().c_str()); }
  // No more files can be created; the existing ones can grow. False: they can be created still.
  bool TakeNoMoreFiles() const {
    struct statvfs use {};
    if (statvfs(path_.c_str(), &use) != 0) return false;
    const std::string options = "nr_inodes=" + std::to_string(use.f_files - use.f_ffree);
    return mount("none", path_.c_str(), nullptr, MS_REMOUNT, options.c_str()) == 0;
  }
  // False: it is still writable.
  bool MakeReadOnly() const { return mount("none", path_.c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr) == 0; }

 private:
  std::string Filler() const { return path_ + "/filler"; }

  const std::string path_;
  bool ok_ = false;
};

}  // namespace muster
