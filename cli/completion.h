// What could stand at the end of an unfinished command line. The scripts of `muster completion` ask for it by the
// hidden first argument __complete, so that they know nothing of the commands themselves.
#pragma once

#include <CLI/App.hpp>
#include <functional>
#include <string>
#include <vector>

namespace muster::cli {

inline constexpr char kCompleteArgument[] = "__complete";

struct Candidate {
  std::string text;
  std::string description;
};

enum class Named { kJobs, kNodes };
// Live names; empty when they cannot be had quickly.
using NamesOf = std::function<std::vector<Candidate>(Named)>;

struct Completion {
  std::vector<Candidate> candidates;  // those that begin with the unfinished word
  bool files = false;                 // paths fit too
};

// `words`: what stands behind "muster"; the last one is unfinished, perhaps empty.
Completion Complete(const CLI::App& app, const std::vector<std::string>& words, const NamesOf& names);

// "text<TAB>description" a line, and the line ":files" when paths fit too.
std::string CompletionLines(const Completion& completion);

}  // namespace muster::cli
