// For tests: a folder in memory (tmpfs) that goes with the object. For those that end processes hundreds of times and
// ask for fsync in between: what they look for does not depend on a disk, and a busy one would make them take minutes.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>
#include <system_error>

namespace muster {

class MemoryFolder {
 public:
  MemoryFolder() {
    char name[] = "/dev/shm/muster-XXXXXX";
    path_ = mkdtemp(name) == nullptr ? "" : name;
  }
  ~MemoryFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  MemoryFolder(const MemoryFolder&) = delete;
  MemoryFolder& operator=(const MemoryFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace muster
