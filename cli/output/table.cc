#include "cli/output/table.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "cli/output/format.h"

namespace muster::cli {
namespace {

constexpr int kColumnGap = 2;
// The minimum width of a cut column: the first keeps the beginning of a name.
constexpr int kLeast = 8;
// Optional columns are left out before the last one, a reason, gets less than this.
constexpr int kReadable = 24;

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
  std::vector<size_t> shown(columns_.size());
  std::iota(shown.begin(), shown.end(), 0);
  // How much wider than the terminal a row is whose last column has so many.
  const auto excess = [&](int last) {
    int wide = std::min(last, widths.back());
    for (size_t n = 0; n + 1 < shown.size(); ++n) wide += widths[shown[n]] + kColumnGap;
    return screen.width == 0 ? 0 : std::max(0, wide - screen.width);
  };
  for (size_t i = columns_.size(); i-- > 0 && excess(kReadable) > 0;) {
    if (columns_[i].optional) shown.erase(std::find(shown.begin(), shown.end(), i));
  }
  if (shown.size() > 1) widths[0] = std::min(widths[0], std::max(kLeast, widths[0] - excess(kLeast)));
  int before_last = 0;
  for (size_t n = 0; n + 1 < shown.size(); ++n) before_last += widths[shown[n]] + kColumnGap;
  const int last = screen.width == 0 ? 0 : std::max(kLeast, screen.width - before_last);
  std::string out;
  for (const std::vector<Cell>& row : rows) {
    for (const size_t i : shown) {
      const bool end = i == shown.back();
      const std::string text = end      ? Cut(row[i].text, last, screen.unicode)
                               : i == 0 ? Cut(row[i].text, widths[0], screen.unicode)
                                        : row[i].text;
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
