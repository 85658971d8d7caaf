// The location of a value in a spec, and what is wrong with it.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace muster::cli {

// A place in a file ("job.yaml", 12, 9), or a flag ("--set optimizer.lr", 0, 0). Lines and columns count from 1;
// columns are characters, not bytes.
struct Location {
  std::shared_ptr<const std::string> source;
  int line = 0;
  int column = 0;
  std::string sets = {};  // of a flag: the field that it sets, "optimizer.lr"

  std::string ToString() const;  // "job.yaml:12:9" or "--set optimizer.lr"
};

// One error of a spec.
struct Problem {
  Location where;
  std::string path;        // "optimizer.lr"; empty: about the whole file
  std::string message;     // "unknown field"
  std::string suggestion;  // "optimizer.lr"; empty: none

  // "job.yaml:12:9: optimizer.lrr: unknown field, did you mean optimizer.lr?"
  std::string ToString() const;
};

// Sorts in the order of the file; several files one after another, flags last.
void SortProblems(std::vector<Problem>& problems);

// InvalidArgument with one problem on each line. Those of a file begin with their location, so that editors can jump
// there; those of flags begin with "muster: ". REQUIRES: `problems` is not empty.
absl::Status ToStatus(const std::vector<Problem>& problems);
// Whether ToStatus made it: it needs no further prefix.
bool HasLocations(const absl::Status& status);

// Records the location of each field's value, so that a later error that names only a path finds its line.
class SourceMap {
 public:
  explicit SourceMap(Location root = {}) : root_(std::move(root)) {}

  void SetRoot(Location root) { root_ = std::move(root); }
  void Set(const std::string& path, Location where) { places_[path] = std::move(where); }
  // Of a field that was not written: what would set it.
  void SetIfMissing(const std::string& path, Location where) { places_.emplace(path, std::move(where)); }

  // The location of `path`, or of its nearest parent that was written, or of the whole file.
  const Location& Find(absl::string_view path) const;

 private:
  Location root_;
  std::map<std::string, Location, std::less<>> places_;
};

}  // namespace muster::cli
