#include "cli/output/timeline.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "cli/output/format.h"
#include "cli/output/svg.h"

namespace muster::cli {
namespace {

// In pixels.
constexpr double kComputeHeight = 20, kSendsHeight = 7, kGapBelow = 6, kLeastShown = 0.05, kTextHeight = 18;

// By the op's kind; of communication by its stream.
struct KindColor {
  const char *kind, *fill, *meaning;
};
constexpr KindColor kColors[] = {
    {"Forward", "#9ec5f0", "forward"},
    {"Recompute", "#f3dc9a", "recomputed forward"},
    {"Backward", "#a9d8a0", "backward"},
    {"BackwardInputs", "#a9d8a0", ""},
    {"BackwardWeights", "#d3ecb4", "gradients of weights"},
    {"", "#c9c9c9", "the rest of computing"},
};
constexpr KindColor kStreams[] = {
    {"send", "#f0a36b", "activations and gradients between stages"},
    {"receive", "#f0a36b", ""},
    {"", "#b79ad6", "gathers, reductions and transfers"},
};

const KindColor& ColorOf(absl::string_view kind) {
  return *absl::c_find_if(kColors, [&](const KindColor& c) { return kind == c.kind || c.kind[0] == 0; });
}
const KindColor& StreamColorOf(absl::string_view stream) {
  return *absl::c_find_if(kStreams, [&](const KindColor& c) { return absl::StartsWith(stream, c.kind); });
}

// What a stage does at a time: neighboring ops of one kind and microbatch.
struct TimeBlock {
  absl::string_view kind, microbatch;  // "Forward", "m3"; without: ""
  const KindColor* color;
  double begin = 0, end = 0;
};

std::vector<TimeBlock> ComputeBlocks(const v1::PlanReply& plan, uint32_t stage) {
  std::vector<TimeBlock> blocks;
  for (const v1::PlannedOp& op : plan.ops()) {
    if (op.stage() != stage || op.stream() != "compute" || op.end_seconds() <= op.begin_seconds()) continue;
    const absl::string_view text = op.op();
    const size_t last = text.rfind(' ');
    TimeBlock block{text.substr(0, text.find(' ')), "", nullptr, op.begin_seconds(), op.end_seconds()};
    block.color = &ColorOf(block.kind);
    if (last != absl::string_view::npos && text.substr(last + 1, 1) == "m") block.microbatch = text.substr(last + 1);
    const bool same = !blocks.empty() && blocks.back().color->fill == block.color->fill &&
                      blocks.back().microbatch == block.microbatch && blocks.back().end >= block.begin - 1e-9;
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

std::string DrawBlocks(const std::vector<TimeBlock>& blocks, const std::string& whose, const Frame& frame) {
  std::string out;
  for (const TimeBlock& block : blocks) {
    const double width = frame.scale * (block.end - block.begin), x = frame.left + frame.scale * block.begin;
    if (width < kLeastShown) continue;
    absl::StrAppendFormat(&out,
                          "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\" fill=\"%s\"><title>%s: %s%s, "
                          "%.3g to %.3g ms</title></rect>\n",
                          x, frame.y, width, frame.height, block.color->fill, whose, SvgEscape(block.kind),
                          block.microbatch.empty() ? "" : absl::StrCat(" ", SvgEscape(block.microbatch)),
                          1e3 * block.begin, 1e3 * block.end);
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
    out += SvgText(x, frame.y + kTextHeight, absl::StrCat(absl::StrFormat("%.3g", i * tick), i == 0 ? " ms" : ""),
                   " text-anchor=\"middle\"");
  }
  return out;
}

std::string DrawColors(double x, double y) {
  std::string out;
  const auto add = [&](const KindColor& color) {
    if (color.meaning[0] == 0) return;
    absl::StrAppendFormat(&out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"12\" height=\"12\" fill=\"%s\"/>\n", x, y - 10,
                          color.fill);
    out += SvgText(x + 16, y, color.meaning);
    x += 30 + 6.5 * static_cast<double>(absl::string_view(color.meaning).size());
  };
  for (const KindColor& color : kColors) add(color);
  for (const KindColor& color : kStreams) add(color);
  return out;
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
  constexpr double kPage = 1400, kEdge = 20, kLeft = 100, kRows = 1180;
  const v1::JobSpec& spec = plan.resolved();
  double y = kEdge + 14;
  std::string body =
      SvgText(kEdge, y,
              Cut(absl::StrCat(spec.name().empty() ? "" : spec.name() + ": ", ModelName(spec), ", ", plan.strategy(),
                               " on ", plan.ranks_size(), plan.ranks_size() == 1 ? " rank" : " ranks"),
                  140, true),
              " font-size=\"16\" font-weight=\"bold\"");
  const double step = plan.simulated().step_seconds(), shown = EndOf(plan);
  const bool part = shown < 0.995 * step;
  body += SvgText(kEdge, y += kTextHeight,
                  absl::StrFormat("a step of %.4g ms predicted on %s%s", 1e3 * step, plan.simulated().hardware(),
                                  part ? absl::StrFormat("; shown are its first %.4g ms", 1e3 * shown) : ""));
  const TimelineRows rows = DrawTimeline(plan, kLeft, kRows, y + kTextHeight / 2);
  body += rows.svg + DrawScale(shown, {kLeft, kRows / shown, rows.bottom, 0});
  body += DrawColors(kLeft, rows.bottom + 2.5 * kTextHeight);
  return SvgPage(kPage, rows.bottom + 3 * kTextHeight + kEdge, body);
}

}  // namespace muster::cli
