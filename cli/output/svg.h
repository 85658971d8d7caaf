// Parts of pictures as SVG 1.1.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace muster::cli {

// As the text of an element or of an attribute, in one line.
std::string SvgEscape(absl::string_view text);

// `attributes` begin with a space.
std::string SvgText(double x, double y, absl::string_view text, absl::string_view attributes = "");

// A label in the middle of a light rectangle, as large as fits; empty if it would be too small to read.
std::string SvgLabel(double x, double y, double width, double height, absl::string_view text);

// The whole file: dark on white, or light on dark where the reader's browser is dark.
std::string SvgPage(double width, double height, absl::string_view body);

}  // namespace muster::cli
