#include "cli/output/table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "cli/output/format.h"

namespace muster::cli {
namespace {

constexpr int kColumnGap = 2;
// The minimum width of a cut column.
constexpr int kLeast = 8;

}  // namespace

std::string Table::Render(const Screen& screen) const {
  std::vector<std::vector<Cell>> rows;
  std::vector<Cell> titles;
  for (const Column& column : columns_) titles.emplace_back(column.title, Colour::kDim);
  rows.push_back(std::move(titles));
  rows.insert(rows.end(), rows_.begin(), rows_.end());
  std::vector<int> widths(columns_.size(), 0);
  for (std::vector<Cell>& row : rows) {
    for (size_t i = 0; i < columns_.size(); ++i) {
      row[i].text = row[i].text.empty() ? "-" : OneLine(row[i].text);
      widths[i] = std::max(widths[i], Width(row[i].text));
    }
  }
  int before_last = 0;
  for (size_t i = 0; i + 1 < columns_.size(); ++i) before_last += widths[i] + kColumnGap;
  const int last = screen.width == 0 ? 0 : std::max(kLeast, screen.width - before_last);
  std::string out;
  for (const std::vector<Cell>& row : rows) {
    for (size_t i = 0; i < columns_.size(); ++i) {
      const bool end = i + 1 == columns_.size();
      const std::string text = end ? Cut(row[i].text, last, screen.unicode) : row[i].text;
      const std::string blanks(std::max(0, widths[i] - Width(text)), ' ');
      if (columns_[i].right) out += blanks;
      out += Paint(screen, row[i].colour, text);
      if (!columns_[i].right && !end) out += blanks;
      if (!end) out.append(kColumnGap, ' ');
    }
    out += "\n";
  }
  return out;
}

}  // namespace muster::cli
