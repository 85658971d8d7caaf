// For tests: a folder under /tmp that goes with the object. Short, because socket paths must stay under 107 bytes.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>
#include <system_error>

namespace muster::rundir {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    char name[] = "/tmp/muster-test-XXXXXX";
    path_ = mkdtemp(name) == nullptr ? "" : name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace muster::rundir
