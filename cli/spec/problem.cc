#include "cli/spec/problem.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace muster::cli {
namespace {

constexpr char kLocations[] = "muster.locations";

}  // namespace

std::string Location::ToString() const {
  const std::string name = source ? *source : std::string("spec");
  return line == 0 ? name : absl::StrCat(name, ":", line, ":", column);
}

std::string Problem::ToString() const {
  std::string text = where.ToString();
  // A flag names its field: "--lr: ...", not "--lr: optimizer.lr: ...".
  if (!path.empty() && path != where.sets) absl::StrAppend(&text, ": ", path);
  absl::StrAppend(&text, ": ", message);
  if (!suggestion.empty()) absl::StrAppend(&text, ", did you mean ", suggestion, "?");
  return text;
}

void SortProblems(std::vector<Problem>& problems) {
  // Groups the problems of several files by file.
  std::map<std::string, size_t> files;
  for (const Problem& problem : problems) {
    if (problem.where.line > 0 && problem.where.source) files.emplace(*problem.where.source, files.size());
  }
  const auto place = [&](const Location& where) {
    const auto file = where.line > 0 && where.source ? files.find(*where.source) : files.end();
    return std::tuple(where.line == 0, file == files.end() ? 0 : file->second, where.line, where.column);
  };
  std::stable_sort(problems.begin(), problems.end(),
                   [&](const Problem& a, const Problem& b) { return place(a.where) < place(b.where); });
}

absl::Status ToStatus(const std::vector<Problem>& problems) {
  absl::Status status =
      absl::InvalidArgumentError(absl::StrJoin(problems, "\n", [](std::string* out, const Problem& p) {
        absl::StrAppend(out, p.where.line == 0 ? "muster: " : "", p.ToString());
      }));
  status.SetPayload(kLocations, absl::Cord("1"));
  return status;
}

bool HasLocations(const absl::Status& status) { return status.GetPayload(kLocations).has_value(); }

const Location& SourceMap::Find(absl::string_view path) const {
  while (!path.empty()) {
    if (const auto found = places_.find(path); found != places_.end()) return found->second;
    const size_t cut = path.find_last_of(".[");
    path = cut == absl::string_view::npos ? absl::string_view() : path.substr(0, cut);
  }
  return root_;
}

}  // namespace muster::cli
