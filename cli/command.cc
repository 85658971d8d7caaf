#include "cli/command.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <limits>
#include <vector>

#include "absl/numeric/int128.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "cli/interrupt.h"
#include "cli/output/format.h"
#include "cli/spec/problem.h"
#include "common/file/read_file.h"
#include "common/file_error.h"
#include "common/hardware_names.h"

namespace muster::cli {
namespace {

constexpr size_t kMaxLastBytes = 4096;
constexpr int kAnswerPollMilliseconds = 50;
constexpr size_t kMostDecimals = 18;  // of a size; they fit into 64 bits, and more change it by a byte at most

absl::StatusOr<std::string> LastFile(const Environment& environment) {
  const absl::StatusOr<std::string> state = StateFolder(environment);
  if (!state.ok()) return state;
  return *state + "/last";
}

}  // namespace

std::string TakeSize(std::string& text) {
  const absl::string_view trimmed = absl::StripAsciiWhitespace(text);
  const size_t end = trimmed.find_first_not_of("0123456789.");
  const absl::string_view unit =
      absl::StripLeadingAsciiWhitespace(end == absl::string_view::npos ? "" : trimmed.substr(end));
  const std::vector<absl::string_view> parts = absl::StrSplit(trimmed.substr(0, end), absl::MaxSplits('.', 1));
  std::string one = absl::StrCat("1", unit);  // which CLI11 replaces by the bytes of one such unit
  bool known = false;
  try {
    known = CLI::AsSizeValue(/*kb_is_1000=*/true)(one).empty();
  } catch (const CLI::ValidationError&) {  // an unknown unit
  }
  uint64_t whole = 0, unit_bytes = 0;
  const absl::string_view decimals = parts.size() > 1 ? parts[1].substr(0, kMostDecimals) : "0";
  uint64_t fraction = 0;
  known = known && std::all_of(unit.begin(), unit.end(), absl::ascii_isalpha) && absl::SimpleAtoi(parts[0], &whole) &&
          absl::SimpleAtoi(decimals, &fraction) && absl::SimpleAtoi(one, &unit_bytes);
  absl::uint128 part = absl::uint128(fraction) * unit_bytes;  // of integers, so 0.57kB has no rounding error
  for (size_t i = 0; i < decimals.size(); ++i) part /= 10;
  const absl::uint128 bytes = absl::uint128(whole) * unit_bytes + part;
  if (!known || bytes == 0 || bytes > std::numeric_limits<uint64_t>::max()) {
    return absl::StrCat("must be a size above 0, such as 80GB or 74.5GiB, got ", text);
  }
  constexpr uint64_t kLeastBare = 1 << 20;
  if (bytes < kLeastBare && unit.empty()) {
    return absl::StrCat(text, " has no unit, which means bytes: write ", text, "GB or ", text, "GiB");
  }
  text = absl::StrCat(static_cast<uint64_t>(bytes));
  return "";
}

CLI::Option* AddHardware(CLI::App* command, std::string& hardware, const std::string& what,
                         const std::string& otherwise) {
  const auto check = [](const std::string& text) -> std::string {
    for (const char* name : kHardwareNames) {
      if (absl::AsciiStrToLower(text) == name) return "";
    }
    return absl::StrCat("\"", text, "\" is unknown; known: ", absl::StrJoin(kHardwareNames, ", "));
  };
  return command
      ->add_option("--hardware", hardware, absl::StrCat(what, ": ", absl::StrJoin(kHardwareNames, ", "), otherwise))
      ->check(CLI::Validator(check, ""))
      ->type_name("NAME");
}

Screen Invocation::Out() const { return ScreenOf(STDOUT_FILENO, no_colour); }
Screen Invocation::Err() const { return ScreenOf(STDERR_FILENO, no_colour); }

absl::StatusOr<std::unique_ptr<Client>> Invocation::Connect() const {
  absl::StatusOr<Connection> connection = ResolveConnection(flags, environment);
  if (!connection.ok()) return connection.status();
  if (connection->default_address) {
    const absl::StatusOr<std::string> runtime = RuntimeFolder(environment);
    if (!runtime.ok()) return runtime.status();
    if (absl::Status ours = CheckRuntimeFolder(*runtime); !ours.ok()) return ours;
  }
  if (absl::Status secure = Client::Secure(*connection); !secure.ok()) return secure;
  return std::make_unique<Client>(*connection);
}

absl::StatusOr<std::string> Invocation::JobNamed(const std::string& text, const Client& client) const {
  if (text != "@last") return text;
  const absl::StatusOr<std::string> file = LastFile(environment);
  if (!file.ok()) return absl::Status(file.status().code(), absl::StrCat("@last: ", file.status().message()));
  const absl::StatusOr<std::string> last = ReadWhole(*file, kMaxLastBytes);
  if (!last.ok()) return absl::NotFoundError("@last: no job was submitted from here yet");
  const std::vector<std::string> lines = absl::StrSplit(*last, '\n');
  if (lines.size() < 2 || lines[0].empty())
    return absl::NotFoundError("@last: the record of the last job is corrupt; name the job instead");
  if (lines[1] != client.connection().address) {
    return absl::NotFoundError(absl::StrCat("@last: the newest job from here, ", lines[0],
                                            ", was submitted to another coordinator, ", lines[1]));
  }
  return lines[0];
}

void Invocation::Remember(const std::string& job, const Client& client) const {
  const absl::StatusOr<std::string> file = LastFile(environment);
  const absl::Status written =
      file.ok() ? WriteFile(*file, absl::StrCat(job, "\n", client.connection().address, "\n")) : file.status();
  if (!written.ok()) Say(absl::StrCat("note: @last will not name this job: ", written.message()));
}

std::string Invocation::BinaryFolder() const {
  if (const auto named = environment("MUSTER_BIN_DIR"); named && !named->empty()) return *named;
  char path[4096];
  const ssize_t size = readlink("/proc/self/exe", path, sizeof(path));
  if (size <= 0) return ".";
  const std::string self(path, size);
  return self.substr(0, self.rfind('/'));
}

CLI::App* AddCommand(CLI::App& parent, const std::string& name, const std::string& group,
                     const std::string& description, const std::string& example) {
  CLI::App* command = parent.add_subcommand(name, description);
  command->group(group);
  command->footer(absl::StrCat("Example:\n  ", absl::StrReplaceAll(example, {{"\n", "\n  "}})));
  return command;
}

void OnRun(CLI::App* command, Invocation& invocation, Invocation::Run run) {
  // Of a group that also runs by itself, the command that was named counts.
  command->callback([&invocation, command, run = std::move(run)] {
    if (command->get_subcommands().empty()) invocation.run = run;
  });
}

void AddJob(CLI::App* command, std::string& job) {
  command->add_option("JOB", job, "id, a unique prefix of one, or @last")->required();
}

absl::Status Confirm(const std::string& question, const std::string& otherwise) {
  if (isatty(STDIN_FILENO) == 0) {
    return absl::FailedPreconditionError("nothing is changed: standard input is not a terminal to ask on; add -y");
  }
  std::string asked = Wrapped(absl::StrCat(question, " [y/N]\n"), ScreenOf(STDERR_FILENO, /*no_colour=*/false).width);
  asked.back() = ' ';  // the answer follows on the line
  std::cerr << asked << std::flush;
  const InterruptScope interrupts;
  pollfd in = {STDIN_FILENO, POLLIN, 0};
  while (poll(&in, 1, kAnswerPollMilliseconds) <= 0) {
    if (!Interrupted()) continue;
    std::cerr << "\n";
    return absl::CancelledError(absl::StrCat("interrupted: ", otherwise));
  }
  std::string answer;
  if (!std::getline(std::cin, answer)) std::cerr << "\n";  // Ctrl-D
  const std::string word = absl::AsciiStrToLower(absl::StripAsciiWhitespace(answer));
  if (word == "y" || word == "yes") return absl::OkStatus();
  return absl::AbortedError(otherwise);
}

absl::Status CheckOutput(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, std::max<size_t>(slash, 1));
  if (access(path.c_str(), W_OK) == 0 || access(folder.c_str(), W_OK | X_OK) == 0) return absl::OkStatus();
  return CreateError(errno, path);
}

absl::Status WriteOutput(const std::string& path, const std::string& text) {
  errno = 0;
  std::ofstream out(path, std::ios::binary);
  if (!out) return CreateError(errno, path);
  out << text;
  out.close();
  return out ? absl::OkStatus() : FileError(errno, absl::StrCat("cannot write ", path));
}

void Print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

void SayError(const absl::Status& status) {
  const std::string text = Lines(std::string(status.message()));
  Say(HasLocations(status) ? text : absl::StrCat("muster: ", text));
}

void Say(const std::string& message) {
  const int columns = ScreenOf(STDERR_FILENO, /*no_colour=*/false).width;
  std::fputs(Wrapped(absl::StrCat(message, "\n"), columns).c_str(), stderr);
}

}  // namespace muster::cli
