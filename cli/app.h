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

// Parses the command line and runs the command; returns the exit code. Data goes to stdout, messages to stderr.
int RunProgram(const std::vector<std::string>& arguments);

}  // namespace muster::cli
