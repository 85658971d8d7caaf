// What every command receives and how it registers. The list of commands is in app.cc.
#pragma once

#include <CLI/App.hpp>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/client.h"
#include "cli/config.h"
#include "cli/exit_code.h"
#include "cli/output/screen.h"

namespace muster::cli {

// One run of the program. Parsing fills in the flags; the chosen command sets `run`. Outlives the CLI::App.
class Invocation {
 public:
  // Ok: the exit code. An error is printed to stderr and mapped to an exit code.
  using Run = std::function<absl::StatusOr<ExitCode>()>;

  ConnectionFlags flags;
  bool no_colour = false;
  Environment environment = ProcessEnvironment();
  Run run;
  // An empty value, as of an unset variable of a script, is refused of all other options and arguments.
  std::set<const CLI::Option*> may_be_empty;

  // The output streams; call after the flags are parsed.
  Screen Out() const;
  Screen Err() const;

  // Connects only to learn which authority to trust (Client::Secure). Errors: those of Client::Secure,
  // ResolveConnection and CheckRuntimeFolder.
  absl::StatusOr<std::unique_ptr<Client>> Connect() const;

  // Resolves "@last" to the newest job that was submitted from here to this coordinator; returns other text unchanged.
  // NotFound.
  absl::StatusOr<std::string> JobNamed(const std::string& text, const Client& client) const;
  // Remembers the job for @last. A failure prints a note on stderr; the submission still counts.
  void Remember(const std::string& job, const Client& client) const;

  // The folder of Muster's other programs: MUSTER_BIN_DIR, else the folder of this program.
  std::string BinaryFolder() const;
};

// Groups of the help page, in order.
inline constexpr char kGroupRun[] = "Run";
inline constexpr char kGroupLook[] = "Look";
inline constexpr char kGroupSteer[] = "Steer";
inline constexpr char kGroupData[] = "Data and models";
inline constexpr char kGroupService[] = "Service";

// `example`: one command line, or several with \n between them.
CLI::App* AddCommand(CLI::App& parent, const std::string& name, const std::string& group,
                     const std::string& description, const std::string& example);
void OnRun(CLI::App* command, Invocation& invocation, Invocation::Run run);
void AddJob(CLI::App* command, std::string& job);

// Asks the question on the terminal. FailedPrecondition: standard input is none, so it takes the command's -y. Aborted:
// any answer but y or yes, in any case; the message is `otherwise`. Cancelled: Ctrl-C.
absl::Status Confirm(const std::string& question, const std::string& otherwise);

// Replaces a size, such as 80GB or 74.5GiB, by its bytes, rounded down. Returns why it is none; empty: it is one. A
// number without a unit is in bytes, at least 1 MiB: with 80 someone meant 80GB. For CLI::Validator.
std::string TakeSize(std::string& text);

// --hardware, whose help is `what`, the names that there are, and `otherwise`.
CLI::Option* AddHardware(CLI::App* command, std::string& hardware, const std::string& what,
                         const std::string& otherwise = "");

// For a file of results that the user names, readable by all. CheckOutput before long work: whether the file could be
// created in its folder. Errors as CreateError (common/file_error.h): NotFound: there is no such folder;
// PermissionDenied: it is not writable.
absl::Status CheckOutput(const std::string& path);
absl::Status WriteOutput(const std::string& path, const std::string& text);

// Writes all of it to stdout at once; drops what a closed pipe no longer reads.
void Print(const std::string& text);
// To stderr, with a newline, in lines that fit a terminal.
void Say(const std::string& message);
// To stderr, after "muster: ". Errors of a file keep "file:line:column: " as their beginning, so that editors can jump
// there.
void SayError(const absl::Status& status);

}  // namespace muster::cli
