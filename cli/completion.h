// Completion of an unfinished command line. The scripts of `muster completion` call it by the hidden first argument
// __complete, so that they need to know nothing about the commands.
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

enum class Named { kJobs, kLiveJobs, kNodes, kTemplates };
// Live names; empty if they cannot be fetched quickly.
using NamesOf = std::function<std::vector<Candidate>(Named)>;

struct Completion {
  std::vector<Candidate> candidates;  // those that start with the unfinished word
  bool files = false;                 // file paths fit too
};

// Words as the user wrote them: bash makes three of gpt2:tiny.
std::vector<std::string> JoinedAtColons(const std::vector<std::string>& words);

// `words`: the words after "muster"; the last one is unfinished, perhaps empty.
Completion Complete(const CLI::App& app, const std::vector<std::string>& words, const NamesOf& names);

// "text<TAB>description" a line, and the line ":files" when paths fit too.
std::string CompletionLines(const Completion& completion);

}  // namespace muster::cli
