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

// Daemons return once they serve.
constexpr char kDaemons[] = R"sh(
daemon() {
  local state='' previous='' word log pid
  for word; do [ "$previous" != --state-dir ] || state=$word; previous=$word; done
  mkdir -p ~/.daemons
  log=~/.daemons/${1##*/}-${state//\//_}
  [ ! -e "$log.pid" ] || end_daemon "$log.pid"
  : >"$log"  # not by the background process, which may come later than the first look
  "$@" >>"$log" 2>&1 &
  pid=$!
  echo $pid | tee "$log.pid" >> ~/.background
  until grep -qe 'listening on' -e 'in contact with the coordinator' "$log"; do
    if ! kill -0 $pid 2>/dev/null; then cat "$log"; wait $pid && return || return $?; fi
    read -rt 0.05 <> <(:) || true
  done
}
end_daemon() {
  local pid=$(cat "$1")
  kill "$pid" 2>/dev/null || true
  while [ -d "/proc/$pid" ] && ! grep -q '^State:.Z' "/proc/$pid/status" 2>/dev/null; do
    read -rt 0.05 <> <(:) || true
  done
  rm "$1"
}
stop() {
  local file
  for file in ~/.daemons/$1-*.pid; do end_daemon "$file"; done
}
muster-coordinator() { daemon "$(type -P muster-coordinator)" "$@"; }
muster-worker() { daemon "$(type -P muster-worker)" "$@"; }
)sh";

}  // namespace

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
  fs::path path = fs::path(Folder()) / file;
  if (absl::StartsWith(file, "~/")) {
    path = home_ + file.substr(1);
    fs::create_directories(path.parent_path());
  }
  std::ofstream(path) << text;
  if (absl::StartsWith(text, "#!")) fs::permissions(path, fs::perms::owner_all);
}

Machine::Typed Machine::Type(const std::string& commands) {
  const std::string script = absl::StrCat(home_, "/.block-", blocks_++), output = script + ".out";
  std::ofstream(script) << "exec >'" << output << "' 2>&1 </dev/null\n"
                        << "set -euo pipefail\n"
                        << "[ ! -e ~/.variables ] || . ~/.variables\n"
                        << kDaemons << "cd \"$(cat ~/.folder)\"\n"
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
                             "worker/exec/muster-exec", "worker/shim/muster-step", "worker/trainer/muster-trainer"}) {
    const fs::path program = fs::canonical(cli::ProgramPath(target));
    fs::copy_file(program, folder + "/" + program.filename().string());
  }
}

}  // namespace muster::docs
