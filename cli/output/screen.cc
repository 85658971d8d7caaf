#include "cli/output/screen.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace muster::cli {
namespace {

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool LocaleIsUtf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const std::string value = absl::AsciiStrToLower(Environment(name));
    if (!value.empty()) return absl::StrContains(value, "utf-8") || absl::StrContains(value, "utf8");
  }
  // Containers often set no locale at all; their terminals are UTF-8.
  return true;
}

}  // namespace

Screen ScreenOf(int descriptor, bool no_colour) {
  Screen screen;
  const bool dumb = Environment("TERM") == "dumb";
  screen.terminal = isatty(descriptor) != 0 && !dumb;
  screen.colour = screen.terminal && !no_colour && Environment("NO_COLOR").empty();
  screen.unicode = LocaleIsUtf8();
  if (isatty(descriptor) != 0) {
    winsize size{};
    const bool known = ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
    screen.width = known ? size.ws_col : 80;
    screen.height = known ? size.ws_row : 0;
  }
  return screen;
}

std::string Paint(const Screen& screen, Colour colour, const std::string& text) {
  if (!screen.colour || colour == Colour::kNone || text.empty()) return text;
  const char* code = "";
  switch (colour) {
    case Colour::kNone:
      break;
    case Colour::kRed:
      code = "31";
      break;
    case Colour::kGreen:
      code = "32";
      break;
    case Colour::kYellow:
      code = "33";
      break;
    case Colour::kCyan:
      code = "36";
      break;
    case Colour::kDim:
      code = "2";
      break;
    case Colour::kBold:
      code = "1";
      break;
  }
  return absl::StrCat("\x1b[", code, "m", text, "\x1b[0m");
}

}  // namespace muster::cli
