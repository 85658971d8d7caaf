// Describes a plan as text.
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cli/output/describe.h"
#include "cli/output/format.h"
#include "common/bytes.h"
#include "common/some_of.h"

namespace muster::cli {
namespace {

constexpr size_t kMostRows = 40;  // above this, only the extremes are shown

// "44.0 GFLOP"
std::string Flops(double flops) {
  std::string count = Count(flops);
  std::string unit;
  if (count.find_last_not_of("0123456789.") != std::string::npos) {
    unit = count.back() == 'B' ? "G" : count.substr(count.size() - 1);
    count.pop_back();
  }
  return absl::StrCat(count, " ", unit, "FLOP");
}

// "213 us", "1.25 ms", "3.4 s", "1d 21h"
std::string Seconds(double seconds) {
  if (seconds < 1e-3) return absl::StrFormat("%.3g us", 1e6 * seconds);
  if (seconds < 1) return absl::StrFormat("%.3g ms", 1e3 * seconds);
  return seconds < 1000 ? absl::StrFormat("%.3g s", seconds) : FormatSpan(absl::Seconds(seconds));
}

// "0-3,8,10-11" of ascending numbers.
std::string Runs(const std::vector<uint32_t>& ranks) {
  std::vector<std::string> runs;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    runs.push_back(end == i + 1 ? absl::StrCat(ranks[i]) : absl::StrCat(ranks[i], "-", ranks[end - 1]));
    i = end;
  }
  constexpr size_t kShown = 4;
  if (runs.size() <= kShown) return absl::StrJoin(runs, ",");
  return absl::StrCat(absl::StrJoin(runs.begin(), runs.begin() + kShown, ","), ",... (", ranks.size(), ")");
}

// Ranks with the same bytes.
struct Alike {
  const v1::RankPlan* first = nullptr;
  std::vector<uint32_t> ranks;
  std::set<uint32_t> shares, parts;  // that these ranks have of their units' tensors, and of their sequences
  std::vector<std::string> nodes;
};

std::vector<Alike> GroupRanks(const v1::PlanReply& plan) {
  std::vector<Alike> groups;
  std::map<std::vector<uint64_t>, size_t> known;
  for (const v1::RankPlan& rank : plan.ranks()) {
    const std::vector<uint64_t> key = {rank.parameter_bytes(), rank.gradient_bytes(), rank.optimizer_bytes(),
                                       rank.gather_bytes(),    rank.reduce_bytes(),   rank.activation_bytes(),
                                       rank.fixed_bytes(),     rank.peak_bytes(),     rank.slot_bytes(),
                                       rank.host_bytes(),      rank.node().empty(),   rank.stage()};
    const auto [at, fresh] = known.emplace(key, groups.size());
    if (fresh) groups.push_back({.first = &rank, .ranks = {}, .shares = {}, .parts = {}, .nodes = {}});
    Alike& group = groups[at->second];
    group.ranks.push_back(rank.rank());
    group.shares.insert(rank.tensor());
    group.parts.insert(rank.context());
    if (!rank.node().empty() && (group.nodes.empty() || group.nodes.back() != rank.node())) {
      group.nodes.push_back(rank.node());
    }
  }
  return groups;
}

std::string RankTable(const v1::PlanReply& plan, const Screen& screen) {
  // Only a GPU has fixed costs.
  const auto any = [&](auto&& has) { return std::any_of(plan.ranks().begin(), plan.ranks().end(), has); };
  const bool fixed = any([](const v1::RankPlan& r) { return r.fixed_bytes() > 0; });
  const bool host = any([](const v1::RankPlan& r) { return r.host_bytes() > 0; });
  const bool stages = plan.stages_size() > 0;
  std::vector<Column> columns = {{"RANK", true}};
  const bool shares = any([](const v1::RankPlan& r) { return r.tensor() > 0; });
  const bool parts = any([](const v1::RankPlan& r) { return r.context() > 0; });
  if (stages) columns.push_back({"STAGE", true});
  if (parts) columns.push_back({"CONTEXT", true});
  if (shares) columns.push_back({"TENSOR", true});
  columns.insert(columns.end(), {{"PARAMETERS", true, /*optional=*/1},
                                 {"GRADIENTS", true, /*optional=*/2},
                                 {"OPTIMIZER", true, /*optional=*/1},
                                 {"GATHER", true, /*optional=*/3},
                                 {"REDUCE", true, /*optional=*/3},
                                 {"ACTIVATIONS", true, /*optional=*/1}});
  if (fixed) columns.push_back({"FIXED", true, /*optional=*/2});
  if (host) columns.push_back({"HOST", true, /*optional=*/1});
  columns.insert(columns.end(), {{"PEAK", true}, {"SLOT", true}, {"NODE"}});
  Table table(columns);
  std::vector<Alike> groups = GroupRanks(plan);
  const size_t all = groups.size();
  if (all > kMostRows) {
    const auto less = [](const Alike& a, const Alike& b) { return a.first->peak_bytes() < b.first->peak_bytes(); };
    const auto [least, most] = std::minmax_element(groups.begin(), groups.end(), less);
    groups = {*least, *most};
  }
  for (const Alike& group : groups) {
    const v1::RankPlan& r = *group.first;
    std::vector<Cell> cells = {Runs(group.ranks)};
    if (stages) cells.emplace_back(absl::StrCat(r.stage()));
    if (parts) cells.emplace_back(Runs({group.parts.begin(), group.parts.end()}));
    if (shares) cells.emplace_back(Runs({group.shares.begin(), group.shares.end()}));
    for (const uint64_t bytes : {r.parameter_bytes(), r.gradient_bytes(), r.optimizer_bytes(), r.gather_bytes(),
                                 r.reduce_bytes(), r.activation_bytes()}) {
      cells.emplace_back(FormatBytes(bytes));
    }
    if (fixed) cells.emplace_back(FormatBytes(r.fixed_bytes()));
    if (host) cells.emplace_back(FormatBytes(r.host_bytes()));
    cells.emplace_back(FormatBytes(r.peak_bytes()));
    cells.emplace_back(r.slot_bytes() > 0 ? FormatBytes(r.slot_bytes()) : "");
    cells.emplace_back(SomeOf(group.nodes, 2));
    table.Add(std::move(cells));
  }
  std::string text = table.Render(screen);
  if (all > kMostRows) {
    text += Wrapped(absl::StrCat("only the ranks that need the least and the most are shown; for the other ", all - 2,
                                 ": -o json\n"),
                    screen.width);
  }
  return text;
}

std::string StageTable(const v1::PlanReply& plan, const Screen& screen) {
  Table table({{"STAGE", true},
               {"UNITS"},
               {"PARAMETERS", true, /*optional=*/2},
               {"FLOPS", true, /*optional=*/2},
               {"PEAK", true},
               {"COMPUTE", true},
               {"BUBBLE", true, /*optional=*/1},
               {"EXPOSED", true, /*optional=*/1},
               {"SENDS", true, /*optional=*/2}});
  for (const v1::StagePlan& stage : plan.stages()) {
    table.Add({absl::StrCat(stage.stage()), absl::StrJoin(stage.chunks(), ", "),
               Count(static_cast<double>(stage.parameters())), absl::StrFormat("%.1f%%", 100 * stage.flops_share()),
               FormatBytes(stage.peak_bytes()), Seconds(stage.compute_seconds()),
               absl::StrFormat("%.1f%%", 100 * stage.bubble()), Seconds(stage.exposed_seconds()),
               FormatBytes(stage.sent_bytes())});
  }
  const std::string legend =
      absl::StrCat("a rank's step of ", Seconds(plan.simulated().step_seconds()), " predicted on ",
                   OneLine(plan.simulated().hardware()),
                   "; bubble: idle time; exposed: communication not overlapped with compute; sends: to other "
                   "stages\n");
  return absl::StrCat(table.Render(screen), Wrapped(legend, screen.width));
}

std::string CandidateTable(const v1::PlanReply& plan, const Screen& screen) {
  const bool reasons = std::any_of(plan.candidates().begin(), plan.candidates().end(),
                                   [](const v1::CandidatePlan& c) { return !c.lost().empty(); });
  std::vector<Column> columns = {{"CANDIDATE"}, {"PEAK", true}, {"STEP", true}, {"FITS"}};
  if (reasons) columns.push_back({.title = "WHY NOT", .narrow = Narrow::kWrap});
  Table table(columns);
  bool least = false, may_fit = false, unknown = false;
  for (const v1::CandidatePlan& c : plan.candidates()) {
    const char* bound = c.least() ? "> " : "";
    const bool bounded = c.step_seconds() > 0;  // otherwise nothing is known of it
    least |= c.least() && bounded, may_fit |= c.least() && bounded && c.unfit().empty(),
        unknown |= c.least() && !bounded;
    std::vector<Cell> cells = {Cell(c.strategy(), c.strategy() == plan.strategy() ? Colour::kGreen : Colour::kNone),
                               bounded ? absl::StrCat(bound, FormatBytes(c.peak_bytes())) : "-",
                               bounded ? absl::StrCat(bound, Seconds(c.step_seconds())) : "-",
                               !bounded             ? "-"
                               : !c.unfit().empty() ? "no"
                               : c.least()          ? "?"
                                                    : "yes"};
    if (reasons) cells.emplace_back(c.lost().empty() ? "chosen" : c.lost());
    table.Add(std::move(cells));
  }
  std::vector<std::string> marks;
  if (least) marks.emplace_back("> a lower bound: this mix was not planned");
  if (may_fit) marks.emplace_back("? it may fit");
  if (unknown) marks.emplace_back("- unknown: too much work to plan");
  const std::string legend =
      absl::StrCat(reasons ? "the rule: the fastest that fits; one that is simpler if it is less than 2% slower\n" : "",
                   absl::StrJoin(marks, "; "), marks.empty() ? "" : "\n");
  return absl::StrCat(table.RenderOrBlocks(screen), Wrapped(legend, screen.width));
}

std::string Times(const v1::PlanReply& plan) {
  const v1::Simulated& t = plan.simulated();
  const bool tokens = plan.tokens_per_step() > 0;
  const double amount = static_cast<double>(tokens ? plan.tokens_per_step() : plan.samples_per_step());
  const bool replicas = t.exchange_seconds() > 0;
  const double mean = replicas ? t.mean_step_seconds() : t.step_seconds(), rate = mean > 0 ? amount / mean : 0;
  const auto any = [&](auto&& has) { return std::any_of(plan.ranks().begin(), plan.ranks().end(), has); };
  const bool shares = any([](const v1::RankPlan&r) { return r.tensor() > 0; }),
             parts = any([](const v1::RankPlan&r) { return r.context() > 0; });
  const std::string exchanged = t.exchanged_seconds() > 0
                                    ? absl::StrCat(" (", Seconds(t.exchanged_seconds()), " of it exchanges of ",
                                                   shares && parts ? "tensor and context"
                                                   : parts         ? "context"
                                                                   : "tensor",
                                                   " ranks)")
                                    : "";
  const std::string exchanges = replicas ? absl::StrCat("\n  an exchange of replicas ", Seconds(t.exchange_seconds()),
                                                        "; a step with them ", Seconds(mean), " on average")
                                         : "";
  return absl::StrCat("A step on ", OneLine(t.hardware()), ", predicted: ", Seconds(t.step_seconds()), ", ",
                      Count(rate), tokens ? " tokens/s" : " samples/s", "\n  compute ", Seconds(t.compute_seconds()),
                      exchanged, ", gather ", Seconds(t.gather_seconds()), ", reduce ", Seconds(t.reduce_seconds()),
                      "; communication ", Seconds(t.communication_seconds()), ", ", Seconds(t.exposed_seconds()),
                      " of it not overlapped with compute", exchanges, "\n  assumed: ", OneLine(t.assumptions()), "\n",
                      t.network().empty() ? "" : absl::StrCat("  links between nodes, ", OneLine(t.network()), "\n"));
}

std::string Timeouts(const v1::PlanReply& plan, const Screen& screen) {
  Table table({{"TIME", true}, {"UNTIL"}, {.title = "RULE", .narrow = Narrow::kWrap}});
  for (const v1::Timeout& timeout : plan.timeouts()) {
    table.Add({Span(absl::Seconds(timeout.seconds())), timeout.name(), timeout.rule()});
  }
  return table.RenderOrBlocks(screen);
}

std::string OpTable(const v1::PlanReply& plan, uint32_t stage, const Screen& screen) {
  Table table({{"OP"}, {"STREAM", false, /*optional=*/1}, {"BEGIN", true}, {"END", true}, {"MEMORY", true}});
  for (const v1::PlannedOp& op : plan.ops()) {
    if (op.stage() != stage) continue;
    table.Add(
        {op.op(), op.stream(), Seconds(op.begin_seconds()), Seconds(op.end_seconds()), FormatBytes(op.memory_bytes())});
  }
  return table.RenderOrBlocks(screen);
}

std::string Schedules(const v1::PlanReply& plan, std::optional<uint32_t> only, const Screen& screen) {
  if (plan.ops().empty()) {
    std::string lines = absl::StrCat("\nSchedule ", plan.schedule_digest(), ":\n");
    for (const absl::string_view line : absl::StrSplit(plan.schedule(), '\n', absl::SkipEmpty())) {
      lines += Wrapped(absl::StrCat("  ", Lines(line), "\n"), screen.width);
    }
    return lines;
  }
  if (plan.stages().empty()) {
    return absl::StrCat("\nSchedule ", plan.schedule_digest(), ":\n", OpTable(plan, 0, screen));
  }
  std::string text;
  for (const v1::StagePlan& stage : plan.stages()) {
    if (only.has_value() && *only != stage.stage()) continue;
    absl::StrAppend(&text, "\nSchedule of stage ", stage.stage(), ", ", stage.schedule_digest(), ":\n",
                    OpTable(plan, stage.stage(), screen));
  }
  return text;
}

// Of an exec job: where its ranks run.
std::string ProgramPlan(const v1::PlanReply& plan, const PlanSections& parts, const Screen& screen) {
  const v1::JobSpec& spec = plan.resolved();
  const int ranks = plan.ranks_size();
  std::string out = absl::StrCat(spec.name().empty() ? "" : absl::StrCat(OneLine(spec.name()), ": "), ModelName(spec),
                                 " on ", ranks, ranks == 1 ? " rank\n\n" : " ranks\n\n");
  out = Wrapped(out, screen.width);
  std::map<std::string, std::vector<uint32_t>> ranks_of;  // by node
  for (const v1::RankPlan& rank : plan.ranks()) ranks_of[rank.node()].push_back(rank.rank());
  Table table({{"RANK", true}, {"NODE"}});
  for (const auto& [node, here] : ranks_of) table.Add({Runs(here), OneLine(node)});
  out += table.Render(screen);
  if (parts.timeouts && plan.timeouts_size() > 0) absl::StrAppend(&out, "\n", Timeouts(plan, screen));
  for (const std::string& note : plan.notes())
    out += Wrapped(absl::StrCat("note: ", OneLine(note), "\n"), screen.width);
  return out;
}

}  // namespace

bool IsIdleNote(absl::string_view note) { return absl::StrContains(note, "idle"); }

std::string PlanSummary(const v1::PlanReply& plan, const Screen& screen) {
  const v1::JobSpec& spec = plan.resolved();
  const int ranks = plan.ranks_size();
  std::string out = ModelName(spec);
  if (!spec.has_exec()) {
    absl::StrAppend(&out, ", ", Count(static_cast<double>(plan.parameters())), " parameters, ", StrategyName(spec),
                    ParallelName(spec));
  }
  absl::StrAppend(&out, " on ", ranks, ranks == 1 ? " rank" : " ranks");
  if (!spec.has_exec()) {
    uint64_t peak = 0;
    for (const v1::RankPlan& rank : plan.ranks()) peak = std::max(peak, rank.peak_bytes());
    absl::StrAppend(&out, ", at most ", FormatBytes(peak), " a rank, ", Grouped(spec.train().steps(), "step", "steps"));
  }
  if (!plan.unfit().empty()) {
    absl::StrAppend(&out, "\n", Paint(screen, Colour::kRed, "does not fit"), ": ", OneLine(plan.unfit()));
  }
  for (const std::string& note : plan.notes()) {
    if (absl::StrContains(note, "can never start") || absl::StrContains(note, "no node has joined") ||
        IsIdleNote(note)) {
      absl::StrAppend(&out, "\n", Paint(screen, Colour::kYellow, "note"), ": ", OneLine(note));
    }
  }
  return out;
}

std::string DescribePlan(const v1::PlanReply& plan, const PlanSections& parts, const Screen& screen) {
  const v1::JobSpec& spec = plan.resolved();
  if (spec.has_exec()) return ProgramPlan(plan, parts, screen);
  const int ranks = plan.ranks_size();
  std::string out =
      absl::StrCat(spec.name().empty() ? "" : absl::StrCat(OneLine(spec.name()), ": "), ModelName(spec), ", ",
                   Count(static_cast<double>(plan.parameters())), " parameters, ", StrategyName(spec),
                   ParallelName(spec), " on ", ranks, ranks == 1 ? " rank\n" : " ranks\n");
  const bool tokens = plan.tokens_per_step() > 0;
  absl::StrAppend(&out,
                  tokens ? Grouped(plan.tokens_per_step(), "token", "tokens")
                         : Grouped(plan.samples_per_step(), "sample", "samples"),
                  " a step, ", plan.microbatches(), plan.microbatches() == 1 ? " microbatch" : " microbatches",
                  " a rank, ", Flops(plan.flops_per_step()), " a step, ",
                  Grouped(spec.train().steps(), "step", "steps"), "\n");
  if (!plan.strategy_reason().empty()) {
    absl::StrAppend(&out, "strategy auto: ", OneLine(plan.strategy_reason()), "\n");
  }
  out = Wrapped(out, screen.width);
  if (!plan.strategy_reason().empty() && plan.candidates_size() > 0) {
    absl::StrAppend(&out, "\n", CandidateTable(plan, screen));
  }
  if (plan.stages_size() > 0) absl::StrAppend(&out, "\n", StageTable(plan, screen));
  absl::StrAppend(&out, "\n", RankTable(plan, screen));
  if (plan.placement_size() > 0) absl::StrAppend(&out, "\n");
  for (const std::string& line : plan.placement()) out += Wrapped(absl::StrCat(OneLine(line), "\n"), screen.width);
  if (parts.times) absl::StrAppend(&out, "\n", Wrapped(Times(plan), screen.width));
  if (!plan.unfit().empty()) {
    const std::string unfit = absl::StrCat(Paint(screen, Colour::kRed, "does not fit"), ": ", OneLine(plan.unfit()));
    out += Wrapped(absl::StrCat(unfit, "\n"), screen.width);
  }
  if (parts.timeouts && plan.timeouts_size() > 0) absl::StrAppend(&out, "\n", Timeouts(plan, screen));
  for (const std::string& note : plan.notes())
    out += Wrapped(absl::StrCat("note: ", OneLine(note), "\n"), screen.width);
  if (parts.schedule) absl::StrAppend(&out, Schedules(plan, parts.stage, screen));
  return out;
}

}  // namespace muster::cli
