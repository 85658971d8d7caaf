#include "common/wrapped.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace muster {
namespace {

bool Continues(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// Without sequences for colors.
int WidthShown(absl::string_view text) {
  int width = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\x1b') {
      i = std::min(text.size(), text.find('m', i));
    } else if (!Continues(text[i])) {
      ++width;
    }
  }
  return width;
}

// Bytes of `word` for so many columns: up to the last / among them, if there is one.
size_t FirstPart(absl::string_view word, int columns) {
  size_t end = 0, behind_slash = 0;
  for (int taken = 0; end < word.size() && taken < std::max(columns, 1); ++taken) {
    if (word[end++] == '/') behind_slash = end;
    while (end < word.size() && Continues(word[end])) ++end;
  }
  return behind_slash > 1 ? behind_slash : end;
}

// Appends words, after what is `used` of the line.
void AppendWords(absl::string_view text, int columns, const std::string& hanging, int used, std::string& out) {
  const int hang = static_cast<int>(hanging.size());
  const auto next_line = [&] {
    absl::StrAppend(&out, "\n", hanging);
    used = hang;
  };
  for (size_t at = 0; at < text.size();) {
    // Blanks, then a word.
    const size_t begin = std::min(text.size(), text.find_first_not_of(' ', at));
    const size_t end = std::min(text.size(), text.find(' ', begin));
    absl::string_view word = text.substr(begin, end - begin);
    const int blanks = static_cast<int>(begin - at);
    if (at > 0 && used > hang && used + blanks + WidthShown(word) > columns) {
      next_line();
    } else {
      out.append(static_cast<size_t>(blanks), ' ');
      used += blanks;
    }
    // A long path or identifier; a narrow terminal leaves it some columns in any case.
    while (used + WidthShown(word) > columns && columns - hang > 8 && !absl::StrContains(word, '\x1b')) {
      const size_t part = FirstPart(word, columns - used);
      absl::StrAppend(&out, word.substr(0, part));
      word.remove_prefix(part);
      if (word.empty()) break;
      next_line();
    }
    absl::StrAppend(&out, word);
    used += WidthShown(word);
    at = end;
  }
}

}  // namespace

std::string Wrapped(absl::string_view text, int columns, int hang) {
  if (columns <= 0) return std::string(text);
  std::string out;
  while (!text.empty()) {
    absl::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    size_t indent = line.find_first_not_of(' ');
    if (indent == absl::string_view::npos) indent = 0;
    const size_t colon = line.find(": ");
    const size_t value = colon == absl::string_view::npos ? colon : line.find_first_not_of(' ', colon + 1);
    // A name before the colon is short, and has no more than one blank in a row.
    const int before = value == absl::string_view::npos ? 0 : WidthShown(line.substr(0, value));
    const bool named =
        indent == 0 && before > 0 && before <= 16 && line.substr(0, colon).find("  ") == absl::string_view::npos;
    const std::string hanging(hang >= 0 ? static_cast<size_t>(hang)
                              : named   ? static_cast<size_t>(before)
                                        : indent + 2,
                              ' ');
    int used = 0;
    if (hang < 0 && indent == 0 && WidthShown(line) > columns) {
      // Commands that are three blanks apart stay whole, each on its own line.
      size_t gap = line.find("   ", named ? value : 0);
      for (; gap != absl::string_view::npos; gap = line.find("   ")) {
        AppendWords(line.substr(0, gap), columns, hanging, used, out);
        absl::StrAppend(&out, "\n", hanging);
        used = static_cast<int>(hanging.size());
        line.remove_prefix(std::min(line.size(), line.find_first_not_of(' ', gap)));
      }
    }
    AppendWords(line, columns, hanging, used, out);
    out += "\n";
  }
  return out;
}

int ColumnsOf(int descriptor) {
  if (isatty(descriptor) == 0) return 0;
  winsize size{};
  return ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace muster
