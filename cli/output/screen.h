// What an output stream can show.
#pragma once

#include <string>

namespace muster::cli {

struct Screen {
  bool terminal = false;  // live lines and progress bars
  bool colour = false;
  bool unicode = false;  // the locale is UTF-8: bars and curves may use block and braille characters
  int width = 0;         // columns; 0: no limit (not a terminal)
};

// Of a file descriptor. NO_COLOR (set, not empty), TERM=dumb and `no_colour` switch colour off; TERM=dumb also what
// moves the cursor.
Screen ScreenOf(int descriptor, bool no_colour);

enum class Colour { kNone, kRed, kGreen, kYellow, kCyan, kDim, kBold };

// `text` in a colour, or as it is.
std::string Paint(const Screen& screen, Colour colour, const std::string& text);

}  // namespace muster::cli
