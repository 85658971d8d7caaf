#include "worker/rundir/segments.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"

namespace muster::rundir {

std::string SegmentPath(const std::string& directory, std::string_view prefix, uint64_t index) {
  return absl::StrFormat("%s/%s.%06d", directory, prefix, index);
}

std::vector<uint64_t> ListSegments(const std::string& directory, std::string_view prefix) {
  std::vector<uint64_t> indices;
  std::error_code error;
  for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    absl::string_view rest = name;
    uint64_t index = 0;
    if (absl::ConsumePrefix(&rest, absl::StrCat(absl::string_view(prefix.data(), prefix.size()), ".")) &&
        rest.size() >= 6 && absl::SimpleAtoi(rest, &index)) {
      indices.push_back(index);
    }
  }
  std::sort(indices.begin(), indices.end());
  return indices;
}

}  // namespace muster::rundir
