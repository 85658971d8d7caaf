#include "cli/output/plot.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/output/format.h"

namespace muster::cli {
namespace {

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  void Take(double v) {
    low = std::min(low, v);
    high = std::max(high, v);
  }
  double Fraction(double v) const { return high > low ? (v - low) / (high - low) : 0.5; }
};

std::vector<std::pair<double, double>> Finite(const std::vector<std::pair<double, double>>& points) {
  std::vector<std::pair<double, double>> finite;
  for (const auto& point : points) {
    if (std::isfinite(point.first) && std::isfinite(point.second)) finite.push_back(point);
  }
  return finite;
}

// Dots of a character grid: 2 x 4 in a braille character, else 1 x 1.
class Canvas {
 public:
  Canvas(int columns, int rows, bool braille)
      : columns_(columns),
        rows_(rows),
        across_(braille ? 2 : 1),
        down_(braille ? 4 : 1),
        cells_(static_cast<size_t>(columns) * rows, 0),
        marks_(cells_.size(), false) {}

  int width() const { return columns_ * across_; }
  int height() const { return rows_ * down_; }

  // x to the right, y downwards.
  void Dot(int x, int y) {
    // Unicode: dots 1 2 3 7 in the left column, 4 5 6 8 in the right.
    static constexpr int kBits[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    cells_[Cell(x, y)] |= kBits[y % down_][x % across_];
  }
  void Mark(int x, int y) { marks_[Cell(x, y)] = true; }

  std::string Row(int row) const {
    std::string text;
    for (int column = 0; column < columns_; ++column) {
      const size_t cell = static_cast<size_t>(row) * columns_ + column;
      const int dots = cells_[cell];
      if (marks_[cell]) {
        text += across_ == 2 ? "◆" : "o";
      } else if (across_ == 1) {
        text += dots != 0 ? "*" : " ";
      } else if (dots == 0) {
        text += " ";
      } else {
        // U+2800 + dots in UTF-8.
        text += {static_cast<char>(0xE2), static_cast<char>(0xA0 | dots >> 6), static_cast<char>(0x80 | (dots & 0x3F))};
      }
    }
    text.erase(text.find_last_not_of(' ') + 1);
    return text;
  }

 private:
  size_t Cell(int x, int y) const { return static_cast<size_t>(y / down_) * columns_ + x / across_; }

  const int columns_, rows_, across_, down_;
  std::vector<int> cells_;
  std::vector<bool> marks_;
};

// Plots the mean of each dot column's points, joined by vertical strokes; skips columns without points.
void DrawLine(const std::vector<std::pair<double, double>>& points, const Range& x, const Range& y, Canvas& canvas) {
  const auto at = [](double fraction, int size) {
    return std::clamp(static_cast<int>(std::lround(fraction * (size - 1))), 0, size - 1);
  };
  std::vector<double> sums(canvas.width(), 0);
  std::vector<int> counts(canvas.width(), 0);
  for (const auto& [step, value] : points) {
    const int column = at(x.Fraction(step), canvas.width());
    sums[column] += value;
    ++counts[column];
  }
  int last_column = -1, last_row = 0;
  for (int column = 0; column < canvas.width(); ++column) {
    if (counts[column] == 0) continue;
    const int row = at(1 - y.Fraction(sums[column] / counts[column]), canvas.height());
    if (last_column < 0) {
      canvas.Dot(column, row);
    } else {
      // A straight line from the last point, so that a few points also make a curve.
      const int steps = std::max(column - last_column, std::abs(row - last_row));
      for (int i = 1; i <= steps; ++i) {
        canvas.Dot(last_column + (column - last_column) * i / steps, last_row + (row - last_row) * i / steps);
      }
    }
    last_column = column;
    last_row = row;
  }
}

}  // namespace

int CurveWidth(const Screen& screen) { return screen.width == 0 ? 72 : std::min(screen.width, 100); }

std::string Draw(const Plot& plot) {
  const auto line = Finite(plot.line);
  const auto marks = Finite(plot.marks);
  Range x, y;
  for (const auto* points : {&line, &marks}) {
    for (const auto& [step, value] : *points) {
      x.Take(step);
      y.Take(value);
    }
  }
  if ((line.empty() && marks.empty()) || plot.width < kLeastCurveWidth) return "";
  const int rows = std::max(3, plot.height);
  const std::string labels[] = {Significant(y.high), Significant(y.high - (y.high - y.low) * (rows / 2) / (rows - 1)),
                                Significant(y.low)};
  int label_width = 0;
  for (const std::string& label : labels) label_width = std::max(label_width, Width(label));
  const int columns = plot.width - label_width - 2;
  Canvas canvas(columns, rows, plot.unicode);
  DrawLine(line, x, y, canvas);
  for (const auto& [step, value] : marks) {
    canvas.Mark(
        std::clamp(static_cast<int>(std::lround(x.Fraction(step) * (canvas.width() - 1))), 0, canvas.width() - 1),
        std::clamp(static_cast<int>(std::lround((1 - y.Fraction(value)) * (canvas.height() - 1))), 0,
                   canvas.height() - 1));
  }
  std::string out = plot.title;
  if (!marks.empty()) absl::StrAppend(&out, "   ", plot.unicode ? "◆" : "o", " ", plot.marks_title);
  out += "\n";
  for (int row = 0; row < rows; ++row) {
    const std::string label = row == 0 ? labels[0] : row == rows / 2 ? labels[1] : row == rows - 1 ? labels[2] : "";
    const bool tick = !label.empty();
    const char* axis = plot.unicode ? (tick ? "┤" : "│") : (tick ? "+" : "|");
    absl::StrAppend(&out, std::string(label_width - Width(label), ' '), label, " ", axis, canvas.Row(row), "\n");
  }
  const std::string first = absl::StrFormat("%.0f", x.low);
  const std::string last = absl::StrFormat("step %.0f", x.high);
  out.append(label_width + 2, ' ');
  const int gap = columns - Width(first) - Width(last);
  absl::StrAppend(&out, first, std::string(std::max(1, gap), ' '), last, "\n");
  return out;
}

}  // namespace muster::cli
