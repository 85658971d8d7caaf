#include "tests/terminal/terminal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

namespace muster::terminal {
namespace {

// Bytes of the character that begins with `first`.
size_t LengthOf(unsigned char first) { return first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4; }

std::string ColourOf(const std::string& style) {
  static const auto& colours = *new std::map<std::string, std::string>{
      {"31", "#ff7b72"}, {"32", "#7ee787"}, {"33", "#e3b341"}, {"36", "#79c0ff"}, {"2", "#8b949e"}, {"1", "#ffffff"}};
  const auto found = colours.find(style);
  return found == colours.end() ? "#d7dde4" : found->second;
}

}  // namespace

std::vector<Terminal::Cell>& Terminal::Row() {
  if (rows_.size() <= static_cast<size_t>(row_)) rows_.resize(row_ + 1);
  return rows_[row_];
}

void Terminal::Put(const std::string& character) {
  if (column_ == columns_) {
    std::string line;
    for (const Cell& cell : Row()) line += cell.character;
    (wraps_ ? wrapped_ : lost_).push_back(line);
    if (!wraps_) return;
    ++row_, column_ = 0;
  }
  std::vector<Cell>& row = Row();
  if (row.size() <= static_cast<size_t>(column_)) row.resize(column_ + 1);
  row[column_++] = {character, style_};
}

void Terminal::Control(const std::string& parameters, char command) {
  const std::string all = parameters + command;
  if (command == 'm') {
    style_ = parameters == "0" ? "" : parameters;
  } else if (all == "J" || all == "K") {
    if (Row().size() > static_cast<size_t>(column_)) Row().resize(column_);
    if (all == "J") rows_.resize(row_ + 1);
  } else if (all == "2J") {
    rows_.clear();
  } else if (all == "H") {
    row_ = column_ = 0;
  } else if (all == "?7l" || all == "?7h") {
    wraps_ = command == 'h';
  } else if (all != "?25l" && all != "?25h") {
    ADD_FAILURE() << "unknown control sequence ESC [ " << all;
  }
}

void Terminal::Feed(const std::string& bytes) {
  pending_ += bytes;
  size_t at = 0;
  while (at < pending_.size()) {
    const char first = pending_[at];
    if (first == '\x1b') {
      const size_t end = pending_.find_first_of("ABCDHJKmhlr", at + 2);
      if (end == std::string::npos) break;
      EXPECT_EQ(pending_[at + 1], '[');
      Control(pending_.substr(at + 2, end - at - 2), pending_[end]);
      at = end + 1;
      continue;
    }
    const size_t length = LengthOf(static_cast<unsigned char>(first));
    if (at + length > pending_.size()) break;
    if (first == '\r') {
      column_ = 0;
    } else if (first == '\n') {
      ++row_;
    } else {
      Put(pending_.substr(at, length));
    }
    at += length;
  }
  pending_.erase(0, at);
}

void Terminal::Resize(int columns) {
  std::vector<std::vector<Cell>> rows;
  int cursor_row = row_;
  for (size_t r = 0; r < rows_.size(); ++r) {
    const std::vector<Cell>& row = rows_[r];
    if (static_cast<int>(r) == row_) cursor_row = static_cast<int>(rows.size()) + column_ / columns;
    for (size_t begin = 0; begin == 0 || begin < row.size(); begin += static_cast<size_t>(columns)) {
      const size_t end = std::min(row.size(), begin + static_cast<size_t>(columns));
      rows.emplace_back(row.begin() + static_cast<ptrdiff_t>(begin), row.begin() + static_cast<ptrdiff_t>(end));
    }
  }
  const int below = row_ - static_cast<int>(rows_.size());  // of a cursor where nothing was written yet
  if (below >= 0) cursor_row = static_cast<int>(rows.size()) + below;
  rows_ = std::move(rows);
  row_ = cursor_row;
  column_ %= columns;
  columns_ = columns;
}

std::vector<std::string> Terminal::Lines() const {
  std::vector<std::string> lines;
  for (const std::vector<Cell>& row : rows_) {
    std::string line;
    for (const Cell& cell : row) line += cell.character;
    line.erase(line.find_last_not_of(' ') + 1);
    lines.push_back(line);
  }
  while (!lines.empty() && lines.back().empty()) lines.pop_back();
  return lines;
}

std::string Terminal::Text() const { return absl::StrJoin(Lines(), "\n") + "\n"; }

std::string Terminal::Svg(const std::string& title) const {
  constexpr double kWidth = 8.4, kHeight = 18;
  const size_t shown = Lines().size();
  const double width = columns_ * kWidth + 24, height = static_cast<double>(shown) * kHeight + 52;
  std::string svg = absl::StrCat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", width, "\" height=\"", height,
      "\" font-family=\"DejaVu Sans Mono, Menlo, Consolas, monospace\" font-size=\"14\">\n",
      "<rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#0d1117\"/>\n<text x=\"12\" y=\"24\" fill=\"#8b949e\">$ ",
      title, "</text>\n");
  const auto quoted = [](const std::string& text) {
    return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}});
  };
  for (size_t row = 0; row < shown; ++row) {
    const std::vector<Cell>& cells = rows_[row];
    // A piece of one style at a time, each at its own place: fonts differ in the width of bars.
    for (size_t begin = 0; begin < cells.size();) {
      size_t end = begin;
      std::string text;
      while (end < cells.size() && cells[end].style == cells[begin].style) text += cells[end++].character;
      if (text.find_first_not_of(' ') != std::string::npos) {
        absl::StrAppend(&svg, "<text xml:space=\"preserve\" x=\"", 12 + static_cast<double>(begin) * kWidth, "\" y=\"",
                        46 + static_cast<double>(row) * kHeight, "\" textLength=\"",
                        static_cast<double>(end - begin) * kWidth, "\" fill=\"", ColourOf(cells[begin].style), "\">",
                        quoted(text), "</text>\n");
      }
      begin = end;
    }
  }
  return svg + "</svg>\n";
}

}  // namespace muster::terminal
