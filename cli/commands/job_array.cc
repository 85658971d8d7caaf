#include "cli/commands/job_array.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "cli/spec/set.h"

namespace muster::cli {
namespace {

constexpr size_t kMostJobs = 1000;

// At commas outside of brackets and quotes.
std::vector<std::string> Values(absl::string_view text) {
  std::vector<std::string> values(1);
  int depth = 0;
  char quote = 0;
  for (const char c : text) {
    if (quote != 0) {
      if (c == quote) quote = 0;
    } else if (c == '"' || c == '\'') {
      quote = c;
    } else if (c == '[' || c == '{') {
      ++depth;
    } else if (c == ']' || c == '}') {
      --depth;
    } else if (c == ',' && depth == 0) {
      values.emplace_back();
      continue;
    }
    values.back() += c;
  }
  return values;
}

}  // namespace

absl::StatusOr<std::vector<std::vector<Assignment>>> Combinations(const std::vector<std::string>& arrays) {
  std::vector<std::vector<Assignment>> all = {{}};
  std::set<std::string> paths, settings;
  for (const std::string& array : arrays) {
    const size_t equals = array.find('=');
    if (equals == std::string::npos || equals == 0) {
      return absl::InvalidArgumentError(absl::StrCat("--array: expected PATH=VALUE,VALUE,..., got \"", array, "\""));
    }
    const std::string path = array.substr(0, equals);
    if (!paths.insert(path).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("--array: ", path, " is given twice: give all its values at once"));
    }
    std::vector<Assignment> values;
    for (const std::string& value : Values(absl::string_view(array).substr(equals + 1))) {
      const std::string setting = absl::StrCat(path, "=", value);
      if (value.empty()) return absl::InvalidArgumentError(absl::StrCat("--array: an empty value in \"", array, "\""));
      if (!settings.insert(setting).second) {
        return absl::InvalidArgumentError(
            absl::StrCat("--array: ", setting, " is given twice, which would be two equal jobs"));
      }
      absl::StatusOr<Assignment> assignment = ParseAssignment(setting, "--array");
      if (!assignment.ok()) return assignment.status();
      values.push_back(*std::move(assignment));
    }
    std::vector<std::vector<Assignment>> longer;
    for (const std::vector<Assignment>& begun : all) {
      for (const Assignment& value : values) {
        longer.push_back(begun);
        longer.back().push_back(value);
        if (longer.size() > kMostJobs) {
          return absl::InvalidArgumentError(absl::StrCat("--array: more than ", kMostJobs, " jobs"));
        }
      }
    }
    all = std::move(longer);
  }
  return all;
}

}  // namespace muster::cli
