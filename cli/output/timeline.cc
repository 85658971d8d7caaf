#include "cli/output/timeline.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "cli/output/format.h"
#include "cli/output/svg.h"

namespace muster::cli {
namespace {

// In pixels.
constexpr double kComputeHeight = 20, kSendsHeight = 7, kGapBelow = 6, kLeastBlock = 0.8, kTextHeight = 18;

// By the op's kind; of communication by its stream.
struct KindColor {
  const char *kind, *fill, *meaning;
};
constexpr KindColor kColors[] = {
    {"Forward", "#9ec5f0", "forward"},
    {"Recompute", "#f3dc9a", "recomputed forward"},
    {"Backward", "#a9d8a0", "backward"},
    {"BackwardInputs", "#a9d8a0", ""},
    {"BackwardWeights", "#f0b6c6", "gradients of weights"},
    {"", "#c9c9c9", "the rest of computing"},
};
constexpr KindColor kStreamColors[] = {
    {"send", "#f0a36b", "activations and gradients between stages"},
    {"receive", "#f0a36b", ""},
    {"", "#b79ad6", "gathers, reductions and transfers"},
};

const KindColor& ColorOf(absl::string_view kind) {
  return *absl::c_find_if(kColors, [&](const KindColor& c) { return kind == c.kind || c.kind[0] == 0; });
}
const KindColor& StreamColorOf(absl::string_view stream) {
  return *absl::c_find_if(kStreamColors, [&](const KindColor& c) { return absl::StartsWith(stream, c.kind); });
}

// What a stage does at a time: neighboring ops of one kind, microbatch and chunk.
struct TimeBlock {
  absl::string_view kind, microbatch;  // "Forward", "m3"; without: ""
  const KindColor* color;
  double begin = 0, end = 0;
  int chunk = 0;  // of the stage
};

// By unit: the stage's chunk that it is in. Forwards come in the order of the units.
std::map<absl::string_view, int> ChunksOf(const v1::PlanReply& plan, uint32_t stage) {
  std::vector<absl::string_view> begins;
  for (const v1::StagePlan& of : plan.stages()) {
    for (const std::string& chunk : of.chunks()) {
      if (of.stage() == stage) begins.push_back(absl::string_view(chunk).substr(0, chunk.find(" to ")));
    }
  }
  std::map<absl::string_view, int> chunks;
  int current = 0;
  for (const v1::PlannedOp& op : plan.ops()) {
    const std::vector<absl::string_view> words = absl::StrSplit(op.op(), ' ');
    if (op.stage() != stage || words[0] != "Forward" || words.size() < 2 || chunks.contains(words[1])) continue;
    const auto begin = absl::c_find(begins, words[1]);
    if (begin != begins.end()) current = static_cast<int>(begin - begins.begin());
    chunks[words[1]] = current;
  }
  return chunks;
}

std::vector<TimeBlock> ComputeBlocks(const v1::PlanReply& plan, uint32_t stage) {
  std::vector<TimeBlock> blocks;
  const std::map<absl::string_view, int> chunks = ChunksOf(plan, stage);
  for (const v1::PlannedOp& op : plan.ops()) {
    if (op.stage() != stage || op.stream() != "compute" || op.end_seconds() <= op.begin_seconds()) continue;
    const std::vector<absl::string_view> words = absl::StrSplit(op.op(), ' ');
    TimeBlock block{words[0], "", &ColorOf(words[0]), op.begin_seconds(), op.end_seconds()};
    // "Forward h.0 m3 in tensor".
    if (words.size() > 2 && words[2].substr(0, 1) == "m") block.microbatch = words[2];
    if (const auto chunk = chunks.find(words.size() > 1 ? words[1] : ""); chunk != chunks.end()) {
      block.chunk = chunk->second;
    }
    const bool same = !blocks.empty() && blocks.back().color->fill == block.color->fill &&
                      blocks.back().microbatch == block.microbatch && blocks.back().chunk == block.chunk &&
                      blocks.back().end >= block.begin - 1e-9;
    if (same) {
      blocks.back().end = block.end;
    } else {
      blocks.push_back(block);
    }
  }
  return blocks;
}

// Of all other streams. What overlaps in one color is one block.
std::vector<TimeBlock> CommunicationBlocks(const v1::PlanReply& plan, uint32_t stage) {
  std::vector<TimeBlock> all, blocks;
  for (const v1::PlannedOp& op : plan.ops()) {
    if (op.stage() != stage || op.stream() == "compute" || op.end_seconds() <= op.begin_seconds()) continue;
    all.push_back({op.stream(), "", &StreamColorOf(op.stream()), op.begin_seconds(), op.end_seconds()});
  }
  absl::c_stable_sort(all, [](const TimeBlock& a, const TimeBlock& b) {
    return std::pair(a.color, a.begin) < std::pair(b.color, b.begin);
  });
  for (const TimeBlock& block : all) {
    if (!blocks.empty() && blocks.back().color == block.color && block.begin <= blocks.back().end) {
      blocks.back().end = std::max(blocks.back().end, block.end);
    } else {
      blocks.push_back(block);
    }
  }
  return blocks;
}

double EndOf(const v1::PlanReply& plan) {
  double seconds = 1e-12;
  for (const v1::PlannedOp& op : plan.ops()) seconds = std::max(seconds, op.end_seconds());
  return seconds;
}

struct Frame {
  double left, scale, y, height;  // pixels, and pixels per second
};

// Of a later chunk the color of the first, half as far from white each time.
std::string FillOf(const TimeBlock& block) {
  uint32_t rgb = 0, out = 0;
  if (!absl::SimpleHexAtoi(block.color->fill + 1, &rgb)) return block.color->fill;
  for (int shift = 16; shift >= 0; shift -= 8) {
    const uint32_t part = rgb >> shift & 0xff;
    out |= (0xff - ((0xff - part) >> std::min(block.chunk, 3))) << shift;
  }
  return absl::StrFormat("#%06x", out);
}

std::string DrawBlocks(const std::vector<TimeBlock>& blocks, const std::string& whose, const Frame& frame) {
  std::string out;
  for (const TimeBlock& block : blocks) {
    const double width = std::max(kLeastBlock, frame.scale * (block.end - block.begin)),
                 x = frame.left + frame.scale * block.begin;
    absl::StrAppendFormat(&out,
                          "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\" fill=\"%s\"><title>%s: %s%s%s, "
                          "%.4g to %.4g ms</title></rect>\n",
                          x, frame.y, width, frame.height, FillOf(block), whose, SvgEscape(block.kind),
                          block.microbatch.empty() ? "" : absl::StrCat(" ", SvgEscape(block.microbatch)),
                          block.chunk == 0 ? "" : absl::StrCat(" of chunk ", block.chunk), 1e3 * block.begin,
                          1e3 * block.end);
    if (!block.microbatch.empty()) out += SvgLabel(x, frame.y, width, frame.height, block.microbatch.substr(1));
  }
  return out;
}

// 1, 2 or 5 times a power of ten, so that there are five to twelve of it in the whole.
double TickOf(double whole) {
  const double power = std::pow(10, std::floor(std::log10(whole / 5)));
  for (const double times : {5.0, 2.0}) {
    if (times * power <= whole / 5) return times * power;
  }
  return power;
}

std::string DrawScale(double seconds, const Frame& frame) {
  std::string out;
  const double tick = TickOf(1e3 * seconds);
  for (int i = 0; i * tick <= 1e3 * seconds; ++i) {
    const double x = frame.left + frame.scale * i * tick / 1e3;
    absl::StrAppendFormat(&out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#999999\"/>\n", x,
                          frame.y, x, frame.y + 5);
    out += SvgText(x, frame.y + kTextHeight, absl::StrCat(absl::StrFormat("%.6g", i * tick), i == 0 ? " ms" : ""),
                   " text-anchor=\"middle\"");
  }
  return out;
}

// Of what `rows` show.
std::string DrawColors(absl::string_view rows, bool chunks, double x, double y) {
  std::string out;
  const auto add = [&](const KindColor& color) {
    if (color.meaning[0] == 0 || !absl::StrContains(rows, color.fill)) return;
    absl::StrAppendFormat(&out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"12\" height=\"12\" fill=\"%s\"/>\n", x, y - 10,
                          color.fill);
    out += SvgText(x + 16, y, color.meaning);
    x += 30 + 6.5 * static_cast<double>(absl::string_view(color.meaning).size());
  };
  for (const KindColor& color : kColors) add(color);
  for (const KindColor& color : kStreamColors) add(color);
  return chunks ? out + SvgText(x, y, "lighter: later chunks of a stage") : out;
}

// So that most microbatches have a label.
double WidthOf(const v1::PlanReply& plan) {
  constexpr double kLabel = 13, kLeast = 1180, kMost = 3200;
  std::vector<double> seconds;
  for (const v1::StagePlan& stage : plan.stages()) {
    for (const TimeBlock& block : ComputeBlocks(plan, stage.stage())) {
      if (!block.microbatch.empty()) seconds.push_back(block.end - block.begin);
    }
  }
  if (seconds.empty()) return kLeast;
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 4);
  std::nth_element(seconds.begin(), middle, seconds.end());
  return std::clamp(kLabel * EndOf(plan) / *middle, kLeast, kMost);
}

// ", 4 stages by interleaved of 2 chunks".
std::string PipelineText(const v1::PlanReply& plan) {
  if (plan.stages().empty() || absl::StrContains(plan.strategy(), "stages by")) return "";
  const Pipeline& pipeline = plan.resolved().train().pipeline();
  const std::string name = PipelineSchedule_Name(pipeline.schedule());
  return absl::StrCat(", ", plan.stages_size(), " stages by ",
                      absl::AsciiStrToLower(absl::StripPrefix(name, "PIPELINE_SCHEDULE_")),
                      pipeline.chunks() > 1 ? absl::StrCat(" of ", pipeline.chunks(), " chunks") : "");
}

}  // namespace

TimelineRows DrawTimeline(const v1::PlanReply& plan, double left, double width, double top) {
  const double scale = width / EndOf(plan);
  TimelineRows rows{.svg = "", .bottom = top};
  const auto draw = [&](uint32_t stage, const std::string& name, const std::string& note) {
    const double y = rows.bottom;
    rows.svg += SvgText(left - 10, y + kComputeHeight / 2 + 4, name, " text-anchor=\"end\"");
    absl::StrAppendFormat(&rows.svg,
                          "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\" fill=\"none\" "
                          "stroke=\"#bbbbbb\"/>\n",
                          left, y, width, kComputeHeight);
    rows.svg += DrawBlocks(ComputeBlocks(plan, stage), name, {left, scale, y, kComputeHeight});
    rows.svg += DrawBlocks(CommunicationBlocks(plan, stage), name, {left, scale, y + kComputeHeight + 1, kSendsHeight});
    rows.svg += SvgText(left + width + 10, y + kComputeHeight / 2 + 4, note);
    rows.bottom = y + kComputeHeight + 1 + kSendsHeight + kGapBelow;
  };
  for (const v1::StagePlan& stage : plan.stages()) {
    draw(stage.stage(), absl::StrCat("stage ", stage.stage()), absl::StrFormat("%.1f%% bubble", 100 * stage.bubble()));
  }
  if (plan.stages().empty()) draw(0, plan.ranks_size() == 1 ? "the rank" : "every rank", "");
  return rows;
}

absl::StatusOr<std::string> TimelineSvg(const v1::PlanReply& plan) {
  if (plan.ops().empty()) {
    return absl::NotFoundError(
        "the coordinator sent no ops of the step; it is older than this program (muster version)");
  }
  constexpr double kEdge = 20, kLeft = 100, kNotes = 120;
  const double width = WidthOf(plan);
  const v1::JobSpec& spec = plan.resolved();
  double y = kEdge + 14;
  std::string body =
      SvgText(kEdge, y,
              Cut(absl::StrCat(spec.name().empty() ? "" : spec.name() + ": ", ModelName(spec), PipelineText(plan), ", ",
                               plan.strategy(), " on ", plan.ranks_size(), plan.ranks_size() == 1 ? " rank" : " ranks"),
                  140, true),
              " font-size=\"16\" font-weight=\"bold\"");
  const double step = plan.simulated().step_seconds(), shown = EndOf(plan);
  const bool part = shown < 0.995 * step;
  body += SvgText(kEdge, y += kTextHeight,
                  absl::StrFormat("a step of %.4g ms predicted on %s%s", 1e3 * step, plan.simulated().hardware(),
                                  part ? absl::StrFormat("; shown are its first %.4g ms", 1e3 * shown) : ""));
  const TimelineRows rows = DrawTimeline(plan, kLeft, width, y + kTextHeight / 2);
  body += rows.svg + DrawScale(shown, {kLeft, width / shown, rows.bottom, 0});
  const bool chunks = absl::c_any_of(plan.stages(), [](const v1::StagePlan& s) { return s.chunks_size() > 1; });
  body += DrawColors(rows.svg, chunks, kLeft, rows.bottom + 2.5 * kTextHeight);
  return SvgPage(kLeft + width + kNotes, rows.bottom + 3 * kTextHeight + kEdge, body);
}

}  // namespace muster::cli
