#include "tests/docs/typed.h"

#include <signal.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "cli/testing/program.h"

namespace muster::docs {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kBlockDeadline = absl::Minutes(12);  // the suite runs on loaded machines

std::string ReadAll(const std::string& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// What the comments above a block say.
struct Notes {
  bool skip = false;
  std::string instead;
  Block block;
};

void Note(absl::string_view comment, Notes& notes) {
  absl::ConsumePrefix(&comment, "<!-- ");
  absl::ConsumeSuffix(&comment, " -->");
  if (absl::ConsumePrefix(&comment, "typed with: ")) notes.block.replaced = absl::StrSplit(comment, ' ');
  if (absl::ConsumePrefix(&comment, "typed as: ")) notes.instead = absl::StrCat(comment, "\n");
  if (comment == "on the second machine") notes.block.second_machine = true;
  if (absl::StartsWith(comment, "not typed: ")) notes.skip = true;
}

}  // namespace

std::vector<Block> BlocksOf(const std::string& page) {
  std::vector<Block> blocks;
  const std::vector<std::string> lines = absl::StrSplit(page, '\n');
  Notes notes;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (absl::StartsWith(lines[i], "<!-- ")) {
      Note(lines[i], notes);
      continue;
    }
    if (!absl::StartsWith(lines[i], "```")) {
      if (!lines[i].empty()) notes = {};
      continue;
    }
    const std::string language = lines[i].substr(3);
    Block block = notes.block;
    block.line = static_cast<int>(i) + 1;
    for (++i; i < lines.size() && lines[i] != "```"; ++i) absl::StrAppend(&block.text, lines[i], "\n");
    absl::string_view first = block.text;
    const bool file = language == "yaml" && absl::ConsumePrefix(&first, "# ") &&
                      absl::EndsWith(first.substr(0, first.find('\n')), ".yaml");
    if (file) block.save_as = std::string(first.substr(0, first.find('\n')));
    if (!notes.instead.empty()) block.text = notes.instead;
    if (!notes.skip && (file || language == "sh")) blocks.push_back(std::move(block));
    notes = {};
  }
  return blocks;
}

Machine::Machine(std::string home, std::string programs, std::vector<std::string> prefix)
    : home_(std::move(home)), programs_(std::move(programs)), prefix_(std::move(prefix)) {
  std::ofstream(home_ + "/.folder") << home_ << "\n";
}

Machine::~Machine() {
  // The daemons of `muster local` first: they end their ranks.
  Type("muster local down --force --timeout 60s || true\n");
  for (const std::string& word :
       std::vector<std::string>(absl::StrSplit(ReadAll(home_ + "/.background"), '\n', absl::SkipEmpty()))) {
    pid_t pid = 0;
    if (absl::SimpleAtoi(word, &pid) && pid > 1) kill(pid, SIGTERM);
  }
}

std::string Machine::Folder() const { return std::string(absl::StripSuffix(ReadAll(home_ + "/.folder"), "\n")); }

void Machine::Save(const std::string& file, const std::string& text) const {
  std::ofstream(absl::StrCat(Folder(), "/", file)) << text;
}

Machine::Typed Machine::Type(const std::string& commands) {
  const std::string script = absl::StrCat(home_, "/.block-", blocks_++), output = script + ".out";
  std::ofstream(script) << "exec >'" << output << "' 2>&1 </dev/null\n"
                        << "set -euo pipefail\n"
                        << "[ ! -e ~/.variables ] || . ~/.variables\n"
                        << "cd \"$(cat ~/.folder)\"\n"
                        << "trap 'echo \"failed: $BASH_COMMAND\"' ERR\n"
                        << commands << "pwd > ~/.folder\nexport -p > ~/.variables\njobs -p >> ~/.background\n";
  std::vector<std::string> command = prefix_;
  command.insert(command.end(), {"/bin/bash", script});
  cli::Program program(command, {{"HOME", home_},
                                 {"PATH", programs_ + ":/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"},
                                 {"MUSTER_RUNTIME_DIR", home_ + "/r"},
                                 {"XDG_STATE_HOME", home_ + "/s"},
                                 {"LANG", "C.UTF-8"}});
  const int exit_code = program.Wait(kBlockDeadline).code;
  return {exit_code, ReadAll(output)};
}

void CopyPrograms(const std::string& folder) {
  fs::create_directories(folder);
  for (const char* target : {"cli/muster", "coordinator/muster-coordinator", "worker/agent/muster-worker",
                             "worker/shim/muster-step", "worker/trainer/muster-trainer"}) {
    const fs::path program = fs::canonical(cli::ProgramPath(target));
    fs::copy_file(program, folder + "/" + program.filename().string());
  }
}

}  // namespace muster::docs
