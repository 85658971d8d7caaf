#include "cli/output/collectives.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "cli/output/svg.h"
#include "common/bytes.h"

namespace muster::cli {
namespace {

constexpr double kGiga = 1e9, kPerMicro = 1e6;

double Gigabytes(double bytes_per_second) { return bytes_per_second / kGiga; }

// In pixels.
struct PlotArea {
  double left = 70, top = 70, width = 640, height = 380;
  double log_least_size = 0, log_most_size = 1, log_least = 0, log_most = 1;  // base 2, base 10
  double X(double size) const {
    return left + width * (std::log2(size) - log_least_size) / (log_most_size - log_least_size);
  }
  double Y(double bandwidth) const {
    return top + height * (1 - (std::log10(bandwidth) - log_least) / (log_most - log_least));
  }
};

constexpr const char* kSeriesColors[] = {"#3b78c2", "#d1602a", "#3a9a4e", "#9255b5", "#b8912a", "#2a9d9d", "#c24a78"};

std::string DrawAxes(const PlotArea& area) {
  std::string out;
  const auto line = [&](double x1, double y1, double x2, double y2) {
    absl::StrAppendFormat(&out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#bbbbbb\"/>\n", x1, y1,
                          x2, y2);
  };
  for (int power = static_cast<int>(area.log_least); power <= static_cast<int>(area.log_most); ++power) {
    const double bandwidth = std::pow(10, power), y = area.Y(bandwidth);
    line(area.left, y, area.left + area.width, y);
    out += SvgText(area.left - 8, y + 4, absl::StrFormat("%g", Gigabytes(bandwidth)), " text-anchor=\"end\"");
  }
  // At most ten labels.
  const int step = std::max(1, static_cast<int>(std::ceil((area.log_most_size - area.log_least_size) / 10)));
  for (int power = static_cast<int>(std::ceil(area.log_least_size)); power <= area.log_most_size; power += step) {
    const double size = std::pow(2, power), x = area.X(size);
    line(x, area.top, x, area.top + area.height);
    out += SvgText(x, area.top + area.height + 18, FormatBytes(static_cast<uint64_t>(size)), " text-anchor=\"middle\"");
  }
  return out;
}

}  // namespace

std::string CollectiveName(v1::Collective collective) {
  const std::string name = v1::Collective_Name(collective);
  return absl::AsciiStrToLower(absl::StripPrefix(name, "COLLECTIVE_"));
}

std::string CollectiveModeName(v1::CollectiveMode mode) {
  const std::string name = v1::CollectiveMode_Name(mode);
  return absl::AsciiStrToLower(absl::StripPrefix(name, "COLLECTIVE_MODE_"));
}

Table CollectivesTable(const std::vector<v1::CollectiveTime>& rows) {
  Table table({{"COLLECTIVE"},
               {"MODE"},
               {"RANKS", true, /*optional=*/1},
               {"SIZE(B)", true},
               {"COUNT", true, /*optional=*/2},
               {"TYPE", true, /*optional=*/2},
               {"REDOP", true, /*optional=*/2},
               {"ROOT", true, /*optional=*/2},
               {"TIME(US)", true},
               {"ALGBW(GB/S)", true, /*optional=*/1},
               {"BUSBW(GB/S)", true}});
  for (const v1::CollectiveTime& row : rows) {
    table.Add({CollectiveName(row.collective()), CollectiveModeName(row.mode()), absl::StrCat(row.ranks()),
               absl::StrCat(row.bytes()), absl::StrCat(row.count()), row.type(), row.redop(), absl::StrCat(row.root()),
               absl::StrFormat("%.2f", row.seconds() * kPerMicro),
               absl::StrFormat("%.4f", Gigabytes(row.algorithm_bytes_per_second())),
               absl::StrFormat("%.4f", Gigabytes(row.bus_bytes_per_second()))});
  }
  return table;
}

nlohmann::ordered_json CollectivesTree(const std::vector<v1::CollectiveTime>& rows) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const v1::CollectiveTime& row : rows) {
    list.push_back({{"collective", CollectiveName(row.collective())},
                    {"mode", CollectiveModeName(row.mode())},
                    {"ranks", row.ranks()},
                    {"size", row.bytes()},
                    {"count", row.count()},
                    {"type", row.type()},
                    {"redop", row.redop()},
                    {"root", row.root()},
                    {"time_us", row.seconds() * kPerMicro},
                    {"algbw", Gigabytes(row.algorithm_bytes_per_second())},
                    {"busbw", Gigabytes(row.bus_bytes_per_second())},
                    {"iterations", row.iterations()}});
  }
  return list;
}

double MeanBusBandwidth(const std::vector<v1::CollectiveTime>& rows) {
  double sum = 0;
  for (const v1::CollectiveTime& row : rows) sum += row.bus_bytes_per_second();
  return rows.empty() ? 0 : sum / static_cast<double>(rows.size());
}

std::string CollectivesSvg(const std::vector<v1::CollectiveTime>& rows, const std::string& title) {
  PlotArea area;
  double least_size = INFINITY, most_size = 1, least = INFINITY, most = 1;
  bool several_ranks = false;
  for (const v1::CollectiveTime& row : rows) {
    const double size = static_cast<double>(std::max<uint64_t>(1, row.bytes()));
    const double bandwidth = std::max(1.0, row.bus_bytes_per_second());
    least_size = std::min(least_size, size), most_size = std::max(most_size, size);
    least = std::min(least, bandwidth), most = std::max(most, bandwidth);
    several_ranks |= row.ranks() != rows[0].ranks();
  }
  if (rows.empty()) least_size = least = 1;
  area.log_least_size = std::log2(least_size);
  area.log_most_size = std::max(std::log2(most_size), area.log_least_size + 1);
  area.log_least = std::floor(std::log10(least));
  area.log_most = std::max(std::ceil(std::log10(most)), area.log_least + 1);

  std::map<std::pair<std::string, uint32_t>, std::string> lines;  // points, by name and ranks
  std::vector<std::pair<std::string, uint32_t>> order;
  std::string marks;
  for (const v1::CollectiveTime& row : rows) {
    const std::pair key(absl::StrCat(CollectiveName(row.collective()), ", ", CollectiveModeName(row.mode())),
                        row.ranks());
    if (!lines.contains(key)) order.push_back(key);
    const double x = area.X(static_cast<double>(std::max<uint64_t>(1, row.bytes()))),
                 y = area.Y(std::max(1.0, row.bus_bytes_per_second()));
    absl::StrAppendFormat(&lines[key], "%.1f,%.1f ", x, y);
    absl::StrAppendFormat(&marks,
                          "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"2.5\"><title>%s: %s, %.1f us, %.4g GB/s</title>"
                          "</circle>\n",
                          x, y, SvgEscape(key.first), FormatBytes(row.bytes()), row.seconds() * kPerMicro,
                          Gigabytes(row.bus_bytes_per_second()));
  }

  std::string body = SvgText(20, 30, title, " font-size=\"16\" font-weight=\"bold\"");
  body += SvgText(20, 50, "bus bandwidth, GB/s, over size");
  body += DrawAxes(area);
  double y = area.top + 10;
  for (size_t i = 0; i < order.size(); ++i) {
    const char* const color = kSeriesColors[i % std::size(kSeriesColors)];
    const char* const dashes = i % (2 * std::size(kSeriesColors)) < std::size(kSeriesColors) ? "" : "6 3";
    absl::StrAppendFormat(
        &body, "<polyline points=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"2\" stroke-dasharray=\"%s\"/>\n",
        lines[order[i]], color, *dashes == 0 ? "none" : dashes);
    absl::StrAppendFormat(&body,
                          "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" stroke-width=\"2\" "
                          "stroke-dasharray=\"%s\"/>\n",
                          area.left + area.width + 15, y - 4, area.left + area.width + 40, y - 4, color,
                          *dashes == 0 ? "none" : dashes);
    body += SvgText(area.left + area.width + 46, y,
                    several_ranks ? absl::StrCat(order[i].first, ", ", order[i].second, " ranks") : order[i].first);
    y += 18;
  }
  body += marks;
  return SvgPage(area.left + area.width + 260, std::max(area.top + area.height + 40, y + 20), body);
}

}  // namespace muster::cli
