// The command line as a whole.
#pragma once

#include <CLI/App.hpp>
#include <memory>
#include <string>
#include <vector>

#include "cli/command.h"

namespace muster::cli {

// Every command, registered. `invocation` outlives it.
std::unique_ptr<CLI::App> BuildApp(Invocation& invocation);

// Parses and runs; returns the exit code. Data on stdout, messages on stderr.
int RunProgram(const std::vector<std::string>& arguments);

}  // namespace muster::cli
