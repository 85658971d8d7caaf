// --tokenizer, of the commands that turn text into tokens or tokens into text.
#pragma once

#include <string>

#include "cli/command.h"

namespace muster::cli {

// `otherwise`: what happens without it, for the help.
void AddTokenizer(CLI::App* command, std::string& path, const std::string& otherwise);

}  // namespace muster::cli
