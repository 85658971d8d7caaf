#include "cli/output/ownership.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "cli/output/format.h"
#include "cli/output/svg.h"
#include "cli/output/timeline.h"
#include "common/bytes.h"
#include "common/some_of.h"
#include "strategies/schedule/mesh.h"

namespace muster::cli {
namespace {

// In pixels.
constexpr double kMargin = 20, kBars = 120, kBarsWidth = 700, kRight = kBars + kBarsWidth + 10, kWidth = 1000;
constexpr double kLeastHeight = 14, kMostHeight = 64, kRowGap = 4, kLine = 18;
constexpr double kLeastWidth = 1;  // of a part that is drawn alone
constexpr int kLegendColumns = 3, kLegendMost = 192, kCharacters = 150;

struct Segment {
  uint32_t first = 0, last = 0;  // shards; several where each alone is too narrow
  uint64_t begin = 0, end = 0;   // elements
};

struct Row {
  std::string unit;
  std::vector<Segment> parts;
  uint64_t elements = 0;
};

uint64_t ToBytes(uint64_t elements) { return 4 * elements; }

// Boundaries are those of the shards of the unit's stage and share.
Row MakeRow(const v1::UnitPartition& unit, const Mesh& mesh) {
  Row row;
  row.unit = unit.unit();
  const auto add = [&](uint32_t shard, uint64_t elements) {
    if (elements == 0) return;
    const uint64_t end = row.elements + elements;
    if (!row.parts.empty() && row.parts.back().first == shard) {
      row.parts.back().end = end;
    } else {
      row.parts.push_back({shard, shard, row.elements, end});
    }
    row.elements = end;
  };
  Coordinate owner{.pipeline = unit.stage(), .tensor = unit.tensor()};
  for (int s = 0; s + 1 < unit.boundaries_size(); ++s, ++owner.shard) {
    const uint64_t begin = unit.boundaries(s), end = unit.boundaries(s + 1);
    add(OwnerAt(mesh, owner), end > begin ? end - begin : 0);
  }
  for (const v1::Piece& piece : unit.pieces()) {
    for (const v1::Extent& extent : piece.extents()) add(extent.shard(), extent.length());
  }
  return row;
}

std::vector<uint64_t> ShardBytes(const std::vector<Row>& rows, uint32_t shards) {
  std::vector<uint64_t> bytes(shards);
  for (const Row& row : rows) {
    for (const Segment& part : row.parts) {
      if (part.first < shards) bytes[part.first] += ToBytes(part.end - part.begin);
    }
  }
  return bytes;
}

// Merges neighbors that are too narrow to see.
std::vector<Segment> Visible(const Row& row) {
  const double least = kLeastWidth / kBarsWidth * static_cast<double>(row.elements);
  std::vector<Segment> parts;
  for (const Segment& part : row.parts) {
    if (!parts.empty() && static_cast<double>(parts.back().end - parts.back().begin) < least) {
      parts.back().end = part.end;
      parts.back().first = std::min(parts.back().first, part.first);
      parts.back().last = std::max(parts.back().last, part.last);
    } else {
      parts.push_back(part);
    }
  }
  return parts;
}

// Neighboring shards get hues far apart (the golden angle); all are light enough for dark text.
std::string FillOf(uint32_t shard) {
  const double hue = std::fmod(210 + 137.508 * shard, 360) / 60;
  const double light = std::array{0.72, 0.64, 0.80}[shard % 3], chroma = 0.6 * (1 - std::abs(2 * light - 1));
  const auto channel = [&](double offset) {  // a trapezium around the circle
    const double at = std::abs(std::fmod(hue + offset, 6) - 3);
    return static_cast<int>(std::lround(255 * (light + chroma * (std::clamp(at - 1, 0.0, 1.0) - 0.5))));
  };
  return absl::StrFormat("#%02x%02x%02x", channel(0), channel(4), channel(2));
}

std::string ShardsName(const Segment& part) {
  return part.first == part.last ? absl::StrCat("shard ", part.first)
                                 : absl::StrCat("shards ", part.first, " to ", part.last);
}

// By shard: the ranks that hold it.
std::vector<std::vector<uint32_t>> Holders(const v1::PlanReply& plan) {
  std::vector<std::vector<uint32_t>> holders(plan.table().shards());
  for (const v1::RankPlan& rank : plan.ranks()) {
    if (rank.shard() < holders.size()) holders[rank.shard()].push_back(rank.rank());
  }
  return holders;
}

// "rank 3", "ranks 3, 11 and 6 more".
std::string RanksOf(const std::vector<uint32_t>& ranks) {
  if (ranks.empty()) return "no rank";
  if (ranks.size() == 1) return absl::StrCat("rank ", ranks[0]);
  return absl::StrCat("ranks ", ranks.size() == 2 ? absl::StrJoin(ranks, " and ") : SomeOf(ranks, 2));
}

std::string DrawRow(const Row& row, double top, double height) {
  const double scale = kBarsWidth / static_cast<double>(std::max<uint64_t>(1, row.elements));
  std::string out = SvgText(kBars - 10, top + height / 2 + 4, Cut(row.unit, 16, true), " text-anchor=\"end\"");
  for (const Segment& part : Visible(row)) {
    const double x = kBars + scale * static_cast<double>(part.begin);
    const double width = scale * static_cast<double>(part.end - part.begin);
    const uint64_t bytes = ToBytes(part.end - part.begin);
    absl::StrAppendFormat(&out, "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\" fill=\"%s\">", x, top,
                          width, height, FillOf(part.first));
    absl::StrAppendFormat(&out, "<title>%s: %s of %s, %.2f%%</title></rect>\n", SvgEscape(row.unit), ShardsName(part),
                          FormatBytes(bytes),
                          100.0 * static_cast<double>(part.end - part.begin) / static_cast<double>(row.elements));
    const std::string name = absl::StrCat(part.first);
    if (part.first == part.last) out += SvgLabel(x, top, width, height, name);
  }
  return out + SvgText(kRight, top + height / 2 + 4, FormatBytes(ToBytes(row.elements)));
}

std::string DrawLegend(const std::vector<uint64_t>& bytes, const std::vector<std::vector<uint32_t>>& holders,
                       double top) {
  std::string out;
  const auto shards = static_cast<uint32_t>(bytes.size());
  const uint32_t shown = std::min<uint32_t>(shards, kLegendMost);
  for (uint32_t s = 0; s < shown; ++s) {
    const double x = kMargin + (kWidth - 2 * kMargin) / kLegendColumns * (s % kLegendColumns);
    const double y = top + kLine * (s / kLegendColumns);
    absl::StrAppendFormat(&out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"12\" height=\"12\" fill=\"%s\"/>\n", x, y - 10,
                          FillOf(s));
    out += SvgText(x + 18, y, absl::StrCat("shard ", s, ": ", FormatBytes(bytes[s]), ", ", RanksOf(holders[s])));
  }
  if (shown < shards) {
    const auto [least, most] = std::minmax_element(bytes.begin() + shown, bytes.end());
    out += SvgText(
        kMargin, top + kLine * (shown / kLegendColumns),
        absl::StrCat("and ", shards - shown, " more shards of ", FormatBytes(*least), " to ", FormatBytes(*most)));
  }
  return out;
}

}  // namespace

absl::StatusOr<std::string> OwnershipSvg(const v1::PlanReply& plan) {
  const uint32_t shards = plan.table().shards();
  if (shards == 0) {
    return absl::NotFoundError(
        "the coordinator sent no partition table: it is too large to send (thousands of ranks, placement: rows), or "
        "the "
        "coordinator is older than this program (muster version)");
  }
  std::vector<Row> rows;
  uint64_t largest = 1;
  const Mesh mesh = WithShardsFor(
      {.pipeline = std::max(1u, plan.table().stages()), .tensor = std::max(1u, plan.table().tensor())}, shards);
  for (const v1::UnitPartition& unit : plan.table().units()) {
    rows.push_back(MakeRow(unit, mesh));
    largest = std::max(largest, rows.back().elements);
  }
  const auto world = static_cast<uint32_t>(plan.ranks_size());
  const v1::JobSpec& spec = plan.resolved();
  double y = kMargin + 14;
  std::string body =
      SvgText(kMargin, y,
              Cut(absl::StrCat(spec.name().empty() ? "" : spec.name() + ": ", ModelName(spec), ", ",
                               Count(static_cast<double>(plan.parameters())), " parameters, ", StrategyName(spec),
                               " on ", world, world == 1 ? " rank" : " ranks", ": who owns what"),
                  kCharacters - 40, true),
              " font-size=\"16\" font-weight=\"bold\"");
  for (const std::string& line : plan.placement()) body += SvgText(kMargin, y += kLine, Cut(line, kCharacters, true));
  if (!plan.stages().empty() && !plan.ops().empty()) {
    body += SvgText(kMargin, y += kLine,
                    "predicted step: forward blue, backward green, recomputed yellow, the rest of computing gray; "
                    "communication below");
    const TimelineRows rows = DrawTimeline(plan, kBars, kBarsWidth, y + kRowGap);
    body += rows.svg, y = rows.bottom;
  }
  y += kLine;
  for (const Row& row : rows) {
    const double height =
        std::max(kLeastHeight, kMostHeight * static_cast<double>(row.elements) / static_cast<double>(largest));
    body += DrawRow(row, y, height);
    y += height + kRowGap;
  }
  y += kLine;
  body += DrawLegend(ShardBytes(rows, shards), Holders(plan), y);
  y += kLine * (std::min<uint32_t>(shards, kLegendMost) / kLegendColumns + 1) + kMargin;
  return SvgPage(kWidth, y, body);
}

}  // namespace muster::cli
