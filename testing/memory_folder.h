// For tests: a folder in memory (tmpfs), removed with the object. For tests that kill processes hundreds of times and
// call fsync in between: their result does not depend on a disk, and a busy disk would make them take minutes.
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
