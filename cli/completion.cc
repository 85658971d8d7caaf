#include "cli/completion.h"

#include <CLI/Option.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/output/format.h"

namespace muster::cli {
namespace {

// A visible option of a command or of its parents.
const CLI::Option* FindOption(const CLI::App* app, const std::string& word) {
  for (; app != nullptr; app = app->get_parent()) {
    for (const CLI::Option* option : app->get_options()) {
      if (!option->get_positional() && option->check_name(word)) return option;
    }
  }
  return nullptr;
}

const CLI::App* FindCommand(const CLI::App& app, const std::string& name) {
  for (const CLI::App* command : app.get_subcommands({})) {
    if (command->get_name() == name) return command;
  }
  return nullptr;
}

bool TakesValue(const CLI::Option& option) { return option.get_items_expected_max() > 0; }

std::vector<const CLI::Option*> Positionals(const CLI::App& app) {
  std::vector<const CLI::Option*> all;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_positional()) all.push_back(option);
  }
  return all;
}

// The command and option state after the finished words.
struct Cursor {
  const CLI::App* command;
  size_t positionals = 0;                // already given
  const CLI::Option* pending = nullptr;  // its value comes next
};

Cursor Walk(const CLI::App& app, const std::vector<std::string>& words) {
  Cursor cursor{&app};
  for (size_t i = 0; i + 1 < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "=") continue;  // bash splits at "="
    if (cursor.pending != nullptr) {
      cursor.pending = nullptr;
    } else if (absl::StartsWith(word, "-") && word.size() > 1) {
      const CLI::Option* option = FindOption(cursor.command, word.substr(0, word.find('=')));
      if (option != nullptr && TakesValue(*option) && !absl::StrContains(word, '=')) cursor.pending = option;
    } else if (const CLI::App* command = cursor.positionals == 0 ? FindCommand(*cursor.command, word) : nullptr;
               command != nullptr) {
      cursor.command = command;
    } else {
      ++cursor.positionals;
    }
  }
  return cursor;
}

class Collector {
 public:
  Collector(std::string begin, const NamesOf& names) : begin_(std::move(begin)), names_(names) {}

  void Add(const std::string& text, const std::string& description) {
    if (absl::StartsWith(text, begin_)) result_.candidates.push_back({text, description});
  }

  // The kind of completion, from the placeholder in the option's help.
  void AddValues(const CLI::Option& option) {
    const std::string kind = option.get_positional() ? option.get_name() : option.get_type_name();
    if (kind == "JOB" || kind == "FROM") {
      Add("@last", "the newest job from here");
      for (const Candidate& name : names_(Named::kJobs)) Add(name.text, name.description);
      result_.files |= kind == "FROM";
    } else if (kind == "NODE") {
      for (const Candidate& name : names_(Named::kNodes)) Add(name.text, name.description);
    } else if (kind == "FORMAT" || kind == "SHELL" || kind == "ROLE") {
      for (const std::string& word : std::vector<std::string>(absl::StrSplit(option.get_description(), '|'))) {
        Add(word, "");
      }
    } else {
      result_.files = true;
    }
  }

  void AddOptions(const CLI::App* app) {
    for (; app != nullptr; app = app->get_parent()) {
      for (const CLI::Option* option : app->get_options()) {
        for (const std::string& name : option->get_lnames()) Add("--" + name, option->get_description());
      }
    }
  }

  Completion Take() { return std::move(result_); }

 private:
  const std::string begin_;
  const NamesOf& names_;
  Completion result_;
};

}  // namespace

Completion Complete(const CLI::App& app, const std::vector<std::string>& words, const NamesOf& names) {
  const std::string last = words.empty() ? "" : words.back();
  const Cursor cursor = Walk(app, words);
  Collector collector(last == "=" ? "" : last, names);
  if (cursor.pending != nullptr) {
    collector.AddValues(*cursor.pending);
  } else if (absl::StartsWith(last, "-")) {
    collector.AddOptions(cursor.command);
  } else if (const auto commands = cursor.command->get_subcommands({}); !commands.empty()) {
    for (const CLI::App* command : commands) collector.Add(command->get_name(), command->get_description());
  } else if (const auto positionals = Positionals(*cursor.command); !positionals.empty()) {
    const CLI::Option* at = positionals[std::min(cursor.positionals, positionals.size() - 1)];
    const bool full = cursor.positionals >= positionals.size() && at->get_items_expected_max() <= 1;
    if (!full) collector.AddValues(*at);
  }
  return collector.Take();
}

std::string CompletionLines(const Completion& completion) {
  std::string lines;
  for (const Candidate& candidate : completion.candidates) {
    absl::StrAppend(&lines, OneLine(candidate.text), "\t", OneLine(candidate.description), "\n");
  }
  if (completion.files) lines += ":files\n";
  return lines;
}

}  // namespace muster::cli
