// For tests: a folder under /tmp, removed with the object. Its path is short, because socket paths must stay under 107
// bytes.
#pragma once

#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

namespace muster {

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

  // Writes a file in it, creating parent folders; returns its path.
  std::string Write(const std::string& name, const std::string& bytes, bool executable = false) const {
    const std::filesystem::path file = std::filesystem::path(path_) / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
    if (executable) chmod(file.c_str(), 0755);
    return file;
  }

 private:
  std::string path_;
};

}  // namespace muster
