// Text that fits a terminal.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace muster {

// Breaks lines that are wider at spaces. What follows is indented: below the value of "Name:  value", else by two more
// blanks than the line. A word that is wider than that is broken after a slash, or else anywhere. What is three blanks
// apart in a line without indentation, such as commands to type next, gets lines of its own. Sequences for colors take
// no room. `hang`: indent by so much instead, and treat nothing as commands.
std::string Wrapped(absl::string_view text, int columns, int hang = -1);
// Of the terminal that the descriptor is; 0: it is none, so that there is no limit.
int ColumnsOf(int descriptor);

}  // namespace muster
