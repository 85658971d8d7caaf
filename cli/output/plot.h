// A curve drawn with characters.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cli/output/screen.h"

namespace muster::cli {

// Fewer columns show no curve.
inline constexpr int kLeastCurveWidth = 30;

struct Plot {
  std::string title;  // "loss"
  std::vector<std::pair<double, double>>
      line;  // (step, value), ascending steps; values that are not finite are left out
  std::vector<std::pair<double, double>> marks;  // single points over the line: validation
  std::string marks_title;                       // "validation loss"
  int width = 72;                                // columns of the whole drawing
  int height = 12;                               // rows of the curve, at least 3
  bool unicode = true;                           // braille dots, two by four in a character; else one '*' a character
};

// Columns of a drawing on this screen.
int CurveWidth(const Screen& screen);

// Title, curve with three labels on the value axis, first and last step below. Empty without a finite point, and below
// kLeastCurveWidth.
std::string Draw(const Plot& plot);

}  // namespace muster::cli
