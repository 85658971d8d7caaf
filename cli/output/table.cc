#include "cli/output/table.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "cli/output/format.h"

namespace muster::cli {
namespace {

constexpr int kColumnGap = 2;
// Optional columns are left out before free text gets less than this.
constexpr int kReadable = 24;

}  // namespace

std::string Table::Render(const Screen& screen) const { return Render(screen, /*or_blocks=*/false); }
std::string Table::RenderOrBlocks(const Screen& screen) const { return Render(screen, /*or_blocks=*/true); }

std::string Table::Render(const Screen& screen, bool or_blocks) const {
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
  const auto least = [&](size_t i) {
    return columns_[i].narrow == Narrow::kWhole ? widths[i] : std::min(kReadable, widths[i]);
  };
  const auto fits = [&] {
    int wide = -kColumnGap;
    for (const size_t i : shown) wide += kColumnGap + least(i);
    return screen.width == 0 || wide <= screen.width;
  };
  while (!fits()) {
    const auto last = std::max_element(shown.rbegin(), shown.rend(),
                                       [&](size_t a, size_t b) { return columns_[a].optional < columns_[b].optional; });
    if (columns_[*last].optional == 0) break;
    shown.erase(std::next(last).base());
  }
  const Column& end = columns_[shown.back()];
  std::optional<size_t> below;  // free text that gets lines of its own
  if (!fits() && shown.size() > 1 && end.narrow != Narrow::kWhole) {
    below = shown.back();
    shown.pop_back();
  }
  if (or_blocks && !fits()) return Blocks(screen);
  int before_last = 0;
  for (size_t n = 0; n + 1 < shown.size(); ++n) before_last += widths[shown[n]] + kColumnGap;
  const size_t last = shown.back();
  const bool free = columns_[last].narrow != Narrow::kWhole && screen.width > 0;
  if (free) widths[last] = std::max(least(last), std::min(widths[last], screen.width - before_last));
  const auto shortened = [&](size_t i, const std::string& text, int columns, const std::string& hanging) {
    if (columns_[i].narrow == Narrow::kCut) return Cut(text, columns, screen.unicode);
    std::string lines = Wrapped(text, columns, /*hang=*/0);
    lines.pop_back();
    return absl::StrReplaceAll(lines, {{"\n", "\n" + hanging}});
  };
  std::string out;
  for (const std::vector<Cell>& row : rows) {
    for (const size_t i : shown) {
      const std::string hanging(static_cast<size_t>(before_last), ' ');
      const std::string text = i == last && free ? shortened(i, row[i].text, widths[i], hanging) : row[i].text;
      const std::string blanks(static_cast<size_t>(std::max(0, widths[i] - Width(text))), ' ');
      if (columns_[i].right) out += blanks;
      out += Paint(screen, row[i].colour, text);
      if (i == last) break;
      if (!columns_[i].right) out += blanks;
      out.append(kColumnGap, ' ');
    }
    out += "\n";
    if (below.has_value() && row[*below].text != "-") {
      const std::string text = shortened(*below, row[*below].text, screen.width - kColumnGap, "  ");
      absl::StrAppend(&out, "  ", Paint(screen, row[*below].colour, text), "\n");
    }
  }
  return out;
}

std::string Table::Blocks(const Screen& screen) const {
  int wide = 0;
  for (const Column& column : columns_) wide = std::max(wide, Width(column.title));
  std::string out;
  for (const std::vector<Cell>& row : rows_) {
    if (!out.empty()) out += "\n";
    for (size_t i = 0; i < columns_.size(); ++i) {
      if (row[i].text.empty()) continue;
      const std::string blanks(static_cast<size_t>(wide - Width(columns_[i].title) + kColumnGap), ' ');
      const std::string value = Paint(screen, row[i].colour, OneLine(row[i].text));
      out += Wrapped(absl::StrCat(Paint(screen, Colour::kDim, columns_[i].title), blanks, value, "\n"), screen.width,
                     /*hang=*/wide + kColumnGap);
    }
  }
  return out;
}

}  // namespace muster::cli
