// The command line as a whole.
#pragma once

#include <CLI/App.hpp>
#include <memory>
#include <string>
#include <vector>

#include "cli/command.h"

namespace muster::cli {

// Registers every command. `invocation` outlives the returned app.
std::unique_ptr<CLI::App> BuildApp(Invocation& invocation);

// The command below `at` that `unknown` may mean, maybe one of a command's own ("checkpoint import"); for words of
// other systems, what it is called here. Empty: none.
std::string MeantCommand(const CLI::App& at, const std::string& unknown);

// Parses the command line and runs the command; returns the exit code. Data goes to stdout, messages to stderr.
int RunProgram(const std::vector<std::string>& arguments);

}  // namespace muster::cli
