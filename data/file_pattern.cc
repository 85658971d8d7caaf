#include "data/file_pattern.h"

#include <glob.h>
#include <sys/stat.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "data/tokenizer_origin.h"

namespace muster::data {
namespace {

bool Exists(const std::string& path) {
  struct stat found;
  return stat(path.c_str(), &found) == 0;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> FilesOf(const std::string& pattern) {
  if (pattern.find_first_of("*?[") == std::string::npos || Exists(pattern)) return std::vector<std::string>{pattern};
  glob_t matches = {};
  std::vector<std::string> paths;
  if (glob(pattern.c_str(), GLOB_NOSORT, nullptr, &matches) == 0) {
    paths.assign(matches.gl_pathv, matches.gl_pathv + matches.gl_pathc);
    // train* also matches what lies beside train.bin.
    std::erase_if(paths, [](const std::string& path) { return absl::EndsWith(path, kOriginEnding); });
  }
  globfree(&matches);
  if (paths.empty()) {
    return absl::NotFoundError(absl::StrCat(pattern, ": no file on this machine matches"));
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace muster::data
