// What every command is given and how it registers. Lists of commands are written out in app.cc.
#pragma once

#include <CLI/App.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/client.h"
#include "cli/config.h"
#include "cli/exit_code.h"
#include "cli/output/screen.h"

namespace muster::cli {

// One run of the program. Flags are filled in while the command line is parsed; `run` is set by the command that it
// names. Outlives the CLI::App.
class Invocation {
 public:
  // Ok: the exit code. An error is printed to stderr and mapped to one.
  using Run = std::function<absl::StatusOr<ExitCode>()>;

  ConnectionFlags flags;
  bool no_colour = false;
  Environment environment = ProcessEnvironment();
  Run run;

  // The streams as they are once the flags are known.
  Screen Out() const;
  Screen Err() const;

  // Talks only to learn whom to believe (Client::Secure). Errors as that, ResolveConnection and CheckRuntimeFolder.
  absl::StatusOr<std::unique_ptr<Client>> Connect() const;

  // "@last" is the newest job that was submitted from here to this coordinator; anything else is itself. NotFound.
  absl::StatusOr<std::string> JobNamed(const std::string& text, const Client& client) const;
  // Failing to remember is no error of the submission: a message on stderr.
  void Remember(const std::string& job, const Client& client) const;

  // The folder in which Muster's other programs lie: MUSTER_BIN_DIR, else that of this one.
  std::string BinaryFolder() const;
};

// Groups of the help page, in its order.
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

// To stdout, whole and at once; what a pipe's reader no longer takes is dropped.
void Print(const std::string& text);
// To stderr, with a newline.
void Say(const std::string& message);

}  // namespace muster::cli
