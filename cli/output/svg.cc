#include "cli/output/svg.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "cli/output/format.h"

namespace muster::cli {

std::string SvgEscape(absl::string_view text) {
  return absl::StrReplaceAll(OneLine(text), {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

std::string SvgText(double x, double y, absl::string_view text, absl::string_view attributes) {
  return absl::StrFormat("<text x=\"%.1f\" y=\"%.1f\"%s>%s</text>\n", x, y, attributes, SvgEscape(text));
}

std::string SvgLabel(double x, double y, double width, double height, absl::string_view text) {
  constexpr double kFont = 12, kLeastFont = 7, kDigit = 0.6;  // a digit's width, in font sizes
  if (text.empty()) return "";
  const double size = std::min(kFont, (width - 1) / (kDigit * static_cast<double>(text.size())));
  if (size < kLeastFont) return "";
  return SvgText(
      x + width / 2, y + height / 2 + size / 3, text,
      absl::StrFormat(" text-anchor=\"middle\" font-size=\"%.1f\" fill=\"#222222\" pointer-events=\"none\"", size));
}

std::string SvgPage(double width, double height, absl::string_view body) {
  return absl::StrFormat(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\" "
      "font-family=\"sans-serif\" font-size=\"12\" fill=\"#222222\">\n"
      "<style>@media (prefers-color-scheme: dark) { svg { fill: #dddddd } .page { fill: #1e1e1e } }</style>\n"
      "<rect class=\"page\" width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n%s</svg>\n",
      width, height, width, height, body);
}

}  // namespace muster::cli
