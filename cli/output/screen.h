// What an output stream can display.
#pragma once

#include <string>

namespace muster::cli {

struct Screen {
  bool terminal = false;  // live lines and progress bars
  bool colour = false;
  bool unicode = false;  // the locale is UTF-8: bars and curves may use block and braille characters
  int width = 0;         // columns; 0: no limit (not a terminal)
  int height = 0;        // rows; 0: not known
};

// Detects it for a file descriptor. NO_COLOR (set, not empty), TERM=dumb and `no_colour` switch color off; TERM=dumb
// also switches off cursor movement.
Screen ScreenOf(int descriptor, bool no_colour);

enum class Colour { kNone, kRed, kGreen, kYellow, kCyan, kDim, kBold };

// `text` in a color, or unchanged.
std::string Paint(const Screen& screen, Colour colour, const std::string& text);

}  // namespace muster::cli
