#include "cli/completion.h"

#include <CLI/Option.hpp>
#include <algorithm>
#include <array>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "cli/output/format.h"
#include "common/event_kinds.h"
#include "common/flags/daemon_flags.h"
#include "common/hardware_names.h"
#include "common/message/fields.h"
#include "proto/job.pb.h"
#include "proto/spec.pb.h"

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
  std::vector<std::string> positionals;  // already given
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
    } else if (const CLI::App* command = cursor.positionals.empty() ? FindCommand(*cursor.command, word) : nullptr;
               command != nullptr) {
      cursor.command = command;
    } else {
      cursor.positionals.push_back(word);
    }
  }
  return cursor;
}

// "gpt2", "gpt2:tiny": the families that have sizes, with them.
std::vector<std::string> ModelNames() {
  std::vector<std::string> names;
  const google::protobuf::Descriptor& model = *v1::Model::descriptor();
  for (int i = 0; i < model.field_count(); ++i) {
    const google::protobuf::FieldDescriptor& family = *model.field(i);
    if (family.real_containing_oneof() == nullptr || family.message_type() == nullptr) continue;
    names.push_back(KeyOf(family));
    const google::protobuf::FieldDescriptor* size = family.message_type()->FindFieldByName("size");
    if (size == nullptr || size->enum_type() == nullptr) continue;
    for (const std::string& text : OfferedTexts(*size)) names.push_back(absl::StrCat(KeyOf(family), ":", text));
  }
  return names;
}

// Whether a value that has no names to offer is a path, from its placeholder: "FOLDER,...", or an argument's name.
bool IsPath(const CLI::Option& option, const std::string& kind) {
  static constexpr std::array kOfOptions = {"ADDRESS", "FILE", "FOLDER", "PATH"};  // ADDRESS: unix:/path
  static constexpr std::array kOfArguments = {"DATA", "DIR", "FILE", "FILES", "FOLDER", "LIBRARY", "OUT", "PROGRAM"};
  const std::string one = kind.substr(0, kind.find(','));
  const auto is = [&](const char* name) { return one == name; };
  return option.get_positional() ? std::any_of(kOfArguments.begin(), kOfArguments.end(), is)
                                 : std::any_of(kOfOptions.begin(), kOfOptions.end(), is);
}

// The words of a description that lists them: "auto, cpu or cuda".
std::vector<std::string> ListedWords(const std::string& description) {
  std::string list = description.substr(0, description.find(" ("));
  if (const size_t colon = list.rfind(": "); colon != std::string::npos) list = list.substr(colon + 2);
  const std::vector<std::string> words = absl::StrSplit(absl::StrReplaceAll(list, {{" or ", ", "}}), ", ");
  const bool names = std::all_of(words.begin(), words.end(), [](const std::string& word) {
    return !word.empty() &&
           std::all_of(word.begin(), word.end(), [](unsigned char c) { return absl::ascii_isalnum(c) || c == '_'; });
  });
  return words.size() > 1 && names ? words : std::vector<std::string>{};
}

class Collector {
 public:
  // `jobs`: those that JOB means.
  Collector(std::string begin, const NamesOf& names, Named jobs = Named::kJobs)
      : begin_(std::move(begin)), names_(names), jobs_(jobs) {}

  void Add(const std::string& text, const std::string& description) {
    if (absl::StartsWith(text, begin_)) result_.candidates.push_back({text, description});
  }

  // The kind of completion, from the placeholder in the option's help.
  void AddValues(const CLI::Option& option) {
    const std::string kind = option.get_positional() ? option.get_name() : option.get_type_name();
    if (kind == "JOB" || kind == "FROM") {
      Add("@last", "the newest job from here");
      for (const Candidate& name : names_(jobs_)) Add(name.text, name.description);
      result_.files |= kind == "FROM";
    } else if (kind == "NODE") {
      for (const Candidate& name : names_(Named::kNodes)) Add(name.text, name.description);
    } else if (kind == "TEMPLATE") {
      for (const Candidate& name : names_(Named::kTemplates)) Add(name.text, name.description);
    } else if (kind == "FORMAT" || kind == "SHELL" || kind == "ROLE") {
      for (const std::string& word : std::vector<std::string>(absl::StrSplit(option.get_description(), '|'))) {
        Add(word, "");
      }
    } else if (kind == "MODEL") {
      for (const std::string& model : ModelNames()) Add(model, "");
    } else if (kind == "STRATEGY" || kind == "SIZE" || kind == "ORDER" || kind == "DEVICE" || kind == "KIND" ||
               kind == "KEY") {
      for (const std::string& word : ListedWords(option.get_description())) Add(word, "");
    } else if (option.check_name("--hardware")) {
      for (const char* name : kHardwareNames) Add(name, "");
    } else if (kind == "STATE,...") {
      for (const std::string& state : EnumTexts(*v1::JobState_descriptor())) AddItem(state);
    } else if (kind == "TYPE,...") {
      for (const std::string& type : EventKindsAndFamilies()) AddItem(type);
    } else if (absl::StartsWith(kind, "PATH=")) {
      AddAssignments(kind);
    } else if (const size_t words = kind.find(",...:{"); words != std::string::npos) {
      const std::string listed = kind.substr(words + 6, kind.rfind('}') - words - 6);
      for (const absl::string_view word : absl::StrSplit(listed, ',')) AddItem(std::string(word));
    } else if (const std::string values = ValueOf(option); absl::StrContains(values, '|')) {
      for (const absl::string_view word : absl::StrSplit(values, '|')) Add(std::string(word), "");
    } else {
      result_.files = IsPath(option, kind);
    }
  }

  void AddCommands(const CLI::App& app) {
    for (const CLI::App* command : app.get_subcommands({})) Add(command->get_name(), command->get_description());
  }

  // Of `muster help data prepare`: the commands below those that `words` name.
  void AddCommandsBelow(const CLI::App& app, const std::vector<std::string>& words) {
    const CLI::App* at = &app;
    for (const std::string& word : words) {
      if (at = FindCommand(*at, word); at == nullptr) return;
    }
    AddCommands(*at);
  }

  // Of --set PATH=VALUE, where bash has made words of PATH and =.
  void AddWordsAt(const std::string& path) {
    for (const PathAndWords& field : AllPaths(*v1::JobSpec::descriptor())) {
      if (field.path != path) continue;
      for (const std::string& word : field.words) AddItem(word);
    }
  }

  // Of a command and of those above it, which take --help as well.
  void AddOptions(const CLI::App* app) {
    std::set<std::string> seen;
    for (; app != nullptr; app = app->get_parent()) {
      for (const CLI::Option* option : app->get_options()) {
        for (const std::string& name : option->get_lnames()) {
          if (seen.insert(name).second) Add("--" + name, option->get_description());
        }
      }
    }
  }

  Completion Take() { return std::move(result_); }

 private:
  // Of a list: what is before the last comma stays.
  void AddItem(const std::string& item) { Add(begin_.substr(0, begin_.rfind(',') + 1) + item, ""); }

  // Of PATH=VALUE, PATH=VALUES or PATH=RANGE.
  void AddAssignments(const std::string& kind) {
    const bool complete_path = absl::StrContains(begin_, '=');
    for (const PathAndWords& field : AllPaths(*v1::JobSpec::descriptor())) {
      if (!complete_path) Add(absl::StrCat(field.path, "="), absl::StrJoin(field.words, "|"));
      if (!complete_path) continue;
      if (kind == "PATH=RANGE" || !absl::StartsWith(begin_, field.path + "=")) continue;
      for (const std::string& word : field.words) {
        if (kind == "PATH=VALUES" && absl::StrContains(begin_, ',')) {
          AddItem(word);
        } else {
          Add(absl::StrCat(field.path, "=", word), "");
        }
      }
    }
  }

  const std::string begin_;
  const NamesOf& names_;
  const Named jobs_;
  Completion result_;
};

}  // namespace

std::vector<std::string> JoinedAtColons(const std::vector<std::string>& words) {
  std::vector<std::string> joined;
  for (size_t i = 0; i < words.size(); ++i) {
    const bool follows = i > 0 && (words[i] == ":" || words[i - 1] == ":");
    if (follows && !joined.empty()) {
      joined.back() += words[i];
    } else {
      joined.push_back(words[i]);
    }
  }
  return joined;
}

Completion Complete(const CLI::App& app, const std::vector<std::string>& words, const NamesOf& names) {
  const std::string last = words.empty() ? "" : words.back();
  const bool bare = last == "=";
  // After the "=", which bash makes a word of its own.
  const size_t at = bare || words.size() < 2 ? words.size() : words.size() - 1;
  const bool split = at >= 2 && words[at - 1] == "=" && !absl::StartsWith(words[at - 2], "-");
  if (split) {
    const Cursor before = Walk(app, {words.begin(), words.begin() + static_cast<ptrdiff_t>(at - 1)});
    if (before.pending != nullptr && absl::StartsWith(before.pending->get_type_name(), "PATH=")) {
      Collector values(bare ? "" : last, names);
      values.AddWordsAt(words[at - 2]);
      return values.Take();
    }
  }
  const Cursor cursor = Walk(app, words);
  static constexpr std::array kOfLiveJobs = {"cancel", "pause", "resume"};
  const bool live = std::any_of(kOfLiveJobs.begin(), kOfLiveJobs.end(),
                                [&](const char* name) { return cursor.command->get_name() == name; });
  Collector collector(bare ? "" : last, names, live ? Named::kLiveJobs : Named::kJobs);
  if (cursor.pending != nullptr) {
    collector.AddValues(*cursor.pending);
  } else if (absl::StartsWith(last, "-")) {
    collector.AddOptions(cursor.command);
  } else if (!cursor.command->get_subcommands({}).empty()) {
    collector.AddCommands(*cursor.command);
  } else if (const auto positionals = Positionals(*cursor.command); !positionals.empty()) {
    const size_t given = cursor.positionals.size();
    const CLI::Option* at = positionals[std::min(given, positionals.size() - 1)];
    const bool full = given >= positionals.size() && at->get_items_expected_max() <= 1;
    if (at->get_name() == "COMMAND") {
      collector.AddCommandsBelow(app, cursor.positionals);
    } else if (!full) {
      collector.AddValues(*at);
    }
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
