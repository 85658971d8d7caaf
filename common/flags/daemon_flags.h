// Flags of the daemons and of the programs that they start: how they are spelled, read and shown.
#pragma once

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <string>

#include "absl/time/time.h"

namespace muster {

// The value that an option takes, as help shows it: "FILE", "N", "ddp|fsdp". Empty: none.
std::string ValueOf(const CLI::Option& option);

inline constexpr char kCommandMissing[] = "a command is missing";

// What CLI11 says about a command line, as Muster's programs say it.
std::string InOurWords(const CLI::ParseError& error);

// "500ms", "30s", "10m"; greater than 0. The default is the value that `value` has.
CLI::Option* AddDuration(CLI::App& app, const std::string& name, absl::Duration& value, const std::string& what);

// Shows values in words rather than the parser's types, and accepts flags with underscores, too. -1: `app` has its
// values; otherwise the program exits with this code: 0 after --help and --version, 2 after a wrong flag, which is
// printed to stderr after the program's name; 1 if standard output takes no page or version.
int ParseFlags(CLI::App& app, int argc, char** argv);

}  // namespace muster
