#include "coordinator/spec/resolve_exec.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/rank_variables.h"

namespace muster::spec {
namespace {

constexpr int kMaxArguments = 1024;
constexpr size_t kMaxCommandBytes = 64 * 1024;
constexpr size_t kMaxWorkdirBytes = 4095;  // PATH_MAX without its zero
constexpr size_t kMaxImageBytes = 512;
constexpr double kMaxStopGraceSeconds = 3600;
constexpr double kMaxProgressSeconds = 1'000'000;

void CheckCommand(const Exec& exec, const NoteError& note) {
  if (exec.command_size() == 0) {
    return note("command", "missing: the program and its arguments, such as [python, train.py]", "");
  }
  if (exec.command_size() > kMaxArguments) {
    note("command", absl::StrCat("has ", exec.command_size(), " entries, at most ", kMaxArguments, " are allowed"), "");
  }
  if (exec.command(0).empty()) note("command[0]", "is empty: it names the program", "");
  size_t bytes = 0;
  for (int i = 0; i < exec.command_size(); ++i) {
    bytes += exec.command(i).size() + 1;
    if (absl::StrContains(exec.command(i), '\0')) note(absl::StrCat("command[", i, "]"), "holds a zero byte", "");
  }
  if (bytes <= kMaxCommandBytes) return;
  note("command", absl::StrCat("has ", bytes, " bytes, at most ", kMaxCommandBytes, " are allowed"), "");
}

void CheckWorkdir(const std::string& workdir, const NoteError& note) {
  if (absl::StrContains(workdir, '\0')) {
    note("workdir", "holds a zero byte", "");
  } else if (workdir.size() > kMaxWorkdirBytes) {
    note("workdir", absl::StrCat("has ", workdir.size(), " bytes, at most ", kMaxWorkdirBytes, " are allowed"), "");
  } else if (!workdir.empty() && workdir[0] != '/') {
    note("workdir", absl::StrCat("\"", workdir, "\" is relative; a path on the workers must be absolute"), "");
  }
}

void CheckImage(const std::string& image, const NoteError& note) {
  if (image.size() > kMaxImageBytes) {
    note("image", absl::StrCat("has ", image.size(), " bytes, at most ", kMaxImageBytes, " are allowed"), "");
  } else if (absl::StartsWith(image, "-")) {
    note("image", absl::StrCat("\"", image, "\" begins with -; an image is named as docker.io/library/python:3.12"),
         "");
  } else if (std::any_of(image.begin(), image.end(), [](char c) { return !absl::ascii_isgraph(c); })) {
    note("image", "holds a space or a character that is not ASCII", "");
  }
}

void CheckLaunchers(const Exec& exec, const NoteError& note) {
  std::set<int> seen;
  for (int i = 0; i < exec.launchers_size(); ++i) {
    const std::string path = absl::StrCat("launchers[", i, "]");
    const Launcher launcher = exec.launchers(i);
    if (!Launcher_IsValid(launcher) || launcher == LAUNCHER_UNSPECIFIED) {
      note(path, "not a value that this build knows", "");
    } else if (!seen.insert(launcher).second) {
      note(path, "occurs twice: leave one out", "");
    }
  }
}

void CheckSeconds(const char* path, double seconds, double most, const NoteError& note) {
  if (std::isfinite(seconds) && seconds >= 0 && seconds <= most) return;
  note(path, absl::StrCat("must be 0 to ", most, ", got ", seconds), "");
}

void CheckVariables(const JobSpec& spec, const NoteError& note) {
  if (spec.env_size() > kMaxRankVariables) {
    return note("env", absl::StrCat("has ", spec.env_size(), " variables, at most ", kMaxRankVariables, " are allowed"),
                "");
  }
  std::set<std::string> names;
  for (int i = 0; i < spec.env_size(); ++i) {
    const EnvVar& variable = spec.env(i);
    const std::string path = absl::StrCat("env[", i, "]");
    if (absl::Status s = CheckProgramVariableName(variable.name()); !s.ok()) {
      note(path + ".name", std::string(s.message()), "");
    } else if (!names.insert(variable.name()).second) {
      note(path + ".name", absl::StrCat(variable.name(), " occurs twice: leave one out"), "");
    }
    if (absl::Status s = CheckProgramVariableValue(variable.value()); !s.ok()) {
      note(path + ".value", std::string(s.message()), "");
    }
  }
}

}  // namespace

void ResolveExec(JobSpec& spec, const NoteError& note) {
  Exec& exec = *spec.mutable_exec();
  if (exec.launchers_size() == 0) exec.add_launchers(LAUNCHER_TORCHRUN);
  if (!exec.has_stop_grace_seconds()) exec.set_stop_grace_seconds(0);
  if (!exec.has_progress_timeout_seconds()) exec.set_progress_timeout_seconds(1800);
  CheckCommand(exec, note);
  CheckWorkdir(exec.workdir(), note);
  CheckImage(exec.image(), note);
  CheckLaunchers(exec, note);
  CheckSeconds("stop_grace_seconds", exec.stop_grace_seconds(), kMaxStopGraceSeconds, note);
  CheckSeconds("progress_timeout_seconds", exec.progress_timeout_seconds(), kMaxProgressSeconds, note);
  CheckVariables(spec, note);
}

}  // namespace muster::spec
