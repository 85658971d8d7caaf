#include "common/process/find_program.h"

#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace muster {

std::string FindProgram(absl::string_view program, absl::string_view path) {
  if (absl::StrContains(program, '/')) return std::string(program);
  for (const absl::string_view folder : absl::StrSplit(path, ':', absl::SkipEmpty())) {
    std::string file = absl::StrCat(folder, "/", program);
    if (folder[0] == '/' && access(file.c_str(), X_OK) == 0) return file;
  }
  return "";
}

}  // namespace muster
