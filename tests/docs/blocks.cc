#include "tests/docs/blocks.h"

#include <algorithm>
#include <regex>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace muster::docs {
namespace {

// What a job needs beside the fields that a page shows.
constexpr const char* kOtherFields[] = {
    "apiVersion: muster/v1",
    "kind: Job",
    "name: shown",
    "model: {family: gpt2, size: small}",
    "data: {tokens: train.bin}",
    "batch: {sequences: 64}",
    "steps: 100",
};

// What the comments above a block say.
struct Notes {
  std::string instead, beside;
  bool in_a_job = false, output_varies = false;
  Block block;
};

void Note(absl::string_view comment, Notes& notes) {
  absl::ConsumePrefix(&comment, "<!-- ");
  absl::ConsumeSuffix(&comment, " -->");
  const auto text_after = [&](absl::string_view what, std::string& text) {
    if (absl::ConsumePrefix(&comment, what)) text = absl::StrCat(comment, "\n");
  };
  text_after("first: ", notes.block.first);
  text_after("then: ", notes.block.then);
  text_after("typed as: ", notes.instead);
  text_after("beside: ", notes.beside);
  if (absl::ConsumePrefix(&comment, "typed with: ")) notes.block.replaced = absl::StrSplit(comment, ' ');
  if (absl::ConsumePrefix(&comment, "saved as: ")) notes.block.save_as = absl::StrCat("~/", comment);
  if (absl::ConsumePrefix(&comment, "not typed: ")) {
    notes.block.not_typed = std::string(comment.substr(0, comment.find(';')));
  }
  if (comment == "on the second machine") notes.block.second_machine = true;
  if (comment == "typed in a job") notes.in_a_job = true;
  if (comment == "output varies") notes.output_varies = true;
}

// "model" of "model: {family: gpt2}"; empty for lines that begin no field of a job.
std::string FieldOf(absl::string_view line) {
  const size_t colon = line.find(':');
  if (line.empty() || !absl::ascii_isalpha(line[0]) || colon == absl::string_view::npos) return "";
  return std::string(line.substr(0, colon));
}

// Whole jobs of a block's fields. Where it has a field several times, each is another job.
std::vector<std::string> JobsOf(const std::string& text, const std::string& beside) {
  if (absl::StrContains(text, "\nkind: Job\n")) return {text};
  std::vector<std::string> jobs = {""};
  std::set<std::string> fields;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(text, '\n', absl::SkipEmpty()))) {
    const std::string field = FieldOf(line);
    if (!field.empty() && !fields.insert(field).second) {
      fields = {field};
      jobs.emplace_back();
    }
    absl::StrAppend(&jobs.back(), line, "\n");
  }
  for (std::string& job : jobs) {
    absl::StrAppend(&job, beside);
    fields.clear();
    for (const std::string& line : std::vector<std::string>(absl::StrSplit(job, '\n'))) fields.insert(FieldOf(line));
    std::string others;
    for (const char* line : kOtherFields) {
      if (!fields.contains(FieldOf(line))) absl::StrAppend(&others, line, "\n");
    }
    job = others + job;
  }
  return jobs;
}

// A block for each command of a console, and for each file that it shows.
std::vector<Block> ConsoleBlocks(const Block& console, bool output_varies) {
  std::vector<Block> blocks;
  int line = console.line;
  for (const std::string& shown : std::vector<std::string>(absl::StrSplit(console.text, '\n', absl::SkipEmpty()))) {
    ++line;
    absl::string_view rest = shown;
    if (absl::ConsumePrefix(&rest, "$ cat ")) {
      blocks.push_back({.line = line, .save_as = std::string(rest)});
    } else if (absl::ConsumePrefix(&rest, "$ ")) {
      blocks.push_back({.line = line, .text = absl::StrCat(rest, "\n")});
      if (!output_varies) blocks.back().prints = "";
    } else if (!blocks.empty() && !blocks.back().save_as.empty()) {
      absl::StrAppend(&blocks.back().text, shown, "\n");
    } else if (!blocks.empty() && blocks.back().prints.has_value()) {
      absl::StrAppend(&*blocks.back().prints, shown, "\n");
    }
  }
  if (!blocks.empty()) blocks.front().first = console.first;
  return blocks;
}

// The lines up to the end of the block, without the indentation of its first line.
std::string TextOf(const std::vector<std::string>& lines, size_t& at, size_t indentation) {
  std::string text;
  for (++at; at < lines.size(); ++at) {
    const std::string line = lines[at].substr(std::min(indentation, lines[at].size()));
    if (line == "```") break;
    absl::StrAppend(&text, line, "\n");
  }
  return text;
}

void Add(Block block, const std::string& language, const Notes& notes, Blocks& all) {
  const auto mistaken = [&](absl::string_view what) { all.mistakes.push_back(absl::StrCat(block.line, ": ", what)); };
  static const auto& to_read = *new std::set<std::string>{"text", "json", "python", "cpp", "mermaid"};
  if (!block.not_typed.empty()) {
    const auto reason = ReasonsNotToType().find(block.not_typed.substr(0, block.not_typed.find(" //")));
    if (reason == ReasonsNotToType().end()) {
      mistaken(absl::StrCat("\"", block.not_typed, "\" is no reason not to type a block"));
    } else if (!std::regex_search(block.text, std::regex(reason->second))) {
      mistaken(absl::StrCat("\"", block.not_typed, "\" is for blocks with ", reason->second));
    }
  } else if (to_read.contains(language) && block.save_as.empty()) {
    return;
  } else if (language == "console") {
    for (Block& one : ConsoleBlocks(block, notes.output_varies)) all.blocks.push_back(std::move(one));
    return;
  } else if (language == "yaml" && block.save_as.empty()) {
    const std::string first = block.text.substr(0, block.text.find('\n'));
    if (absl::StartsWith(first, "# ") && absl::EndsWith(first, ".yaml")) {
      block.save_as = first.substr(2);
    } else {
      block.jobs = JobsOf(block.text, notes.beside);
    }
  } else if (language != "sh" && block.save_as.empty()) {
    mistaken(language.empty() ? "a block without a language"
                              : absl::StrCat("a block of the unknown language ", language));
  }
  if (!notes.instead.empty()) block.text = notes.instead;
  if (notes.in_a_job) {
    block.text = absl::StrCat("cat >.in_a_job <<'EOF'\n", block.text, "EOF\nmuster run -- bash -eu .in_a_job\n");
  }
  all.blocks.push_back(std::move(block));
}

// Lines without spaces at their ends; empty ones are for the eye.
std::vector<std::string> Shown(const std::string& text) {
  std::vector<std::string> lines;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    line = absl::StripTrailingAsciiWhitespace(line);
    if (!line.empty()) lines.emplace_back(line);
  }
  return lines;
}

bool LineMatches(absl::string_view line, const std::string& expected) {
  const std::vector<std::string> parts = absl::StrSplit(expected, "...");
  if (parts.size() == 1) return line == expected;
  if (!absl::ConsumePrefix(&line, parts.front()) || !absl::ConsumeSuffix(&line, parts.back())) return false;
  for (size_t i = 1; i + 1 < parts.size(); ++i) {
    const size_t at = line.find(parts[i]);
    if (at == absl::string_view::npos) return false;
    line.remove_prefix(at + parts[i].size());
  }
  return true;
}

}  // namespace

const std::map<std::string, std::string>& ReasonsNotToType() {
  static const auto& reasons = *new std::map<std::string, std::string>{
      {"installs packages", "(pip|apt-get) install|tools/setup\\.sh|quickstart\\.sh"},
      {"is a benchmark", "(^|\n)(bench/|python3 bench/|bazel run //bench|bazel run //coordinator/simulate)"},
      {"is run by", ""},  // "is run by //tests/x:x_test": commands_test looks there for its commands
      {"needs a container engine", "docker|podman"},
      {"needs root", "(sudo|systemctl) |--run-as-owner"},
  };
  return reasons;
}

Blocks BlocksOf(const std::string& page) {
  Blocks all;
  const std::vector<std::string> lines = absl::StrSplit(page, '\n');
  Notes notes;
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::string line(absl::StripLeadingAsciiWhitespace(lines[i]));
    if (absl::StartsWith(line, "<!-- ")) {
      Note(line, notes);
      continue;
    }
    if (!absl::StartsWith(line, "```")) {
      if (!line.empty()) notes = {};
      continue;
    }
    Block block = notes.block;
    block.line = static_cast<int>(i) + 1;
    block.text = TextOf(lines, i, lines[i].size() - line.size());
    Add(std::move(block), line.substr(3), notes, all);
    notes = {};
  }
  return all;
}

bool Matches(const std::string& printed, const std::string& expected) {
  const std::vector<std::string> is = Shown(printed), should = Shown(expected);
  // fits[j]: the lines of `is` from i on are those of `should` from j on.
  std::vector<bool> fits(should.size() + 1), after;
  for (size_t i = is.size() + 1; i-- > 0;) {
    after = std::exchange(fits, std::vector<bool>(should.size() + 1));
    fits[should.size()] = i == is.size();
    for (size_t j = should.size(); j-- > 0;) {
      const bool more = i < is.size();
      fits[j] = should[j] == "..." ? fits[j + 1] || (more && after[j])
                                   : more && after[j + 1] && LineMatches(is[i], should[j]);
    }
  }
  return fits[0];
}

}  // namespace muster::docs
