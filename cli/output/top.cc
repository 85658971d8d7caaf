#include "cli/output/top.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "cli/output/format.h"
#include "cli/output/table.h"
#include "common/bytes.h"
#include "common/node/not_ready.h"
#include "common/node/peak_flops.h"
#include "common/proto_time.h"

namespace muster::cli {
namespace {

// Metrics of a job that does not run are out of date.
bool Measures(const v1::Job& job) { return job.state() == v1::JOB_STATE_RUNNING; }

constexpr char kGap[] = "   ";

std::string Totals(const v1::ListJobsReply& jobs, const v1::ListNodesReply& nodes, const Screen& screen) {
  int running = 0, waiting = 0, live = 0, slots = 0, busy = 0;
  double tokens = 0;
  for (const v1::JobSummary& summary : jobs.jobs()) {
    running += Measures(summary.job()) ? 1 : 0;
    waiting += summary.job().state() == v1::JOB_STATE_QUEUED ? 1 : 0;
    if (Measures(summary.job())) tokens += summary.last_metrics().tokens_per_second();
  }
  for (const v1::Node& node : nodes.nodes()) {
    live += node.state() == v1::NODE_STATE_LIVE ? 1 : 0;
    for (const v1::Slot& slot : node.slots()) {
      ++slots;
      busy += slot.state() == v1::SLOT_STATE_USED || slot.state() == v1::SLOT_STATE_RESERVED ? 1 : 0;
    }
  }
  const std::string line = Fitted({{absl::StrCat("jobs: ", running, " running, ", waiting, " waiting")},
                                   {absl::StrCat("nodes: ", live, " of ", nodes.nodes_size(), " live"), /*optional=*/3},
                                   {absl::StrCat("slots: ", busy, " of ", slots, " busy"), /*optional=*/1},
                                   {absl::StrCat(Count(tokens), " tokens/s"), /*optional=*/2}},
                                  kGap, screen.width);
  return Cut(line, screen.width, screen.unicode) + "\n";
}

// The share of a step in which the reporting rank computes instead of waiting for collectives. Empty: not measured.
std::optional<double> BusyShare(const v1::JobSummary& summary) {
  const v1::MetricPoint& metrics = summary.last_metrics();
  if (!Measures(summary.job()) || !metrics.has_communication_seconds() || metrics.step_seconds() <= 0) {
    return std::nullopt;
  }
  return std::clamp(1 - metrics.communication_seconds() / metrics.step_seconds(), 0.0, 1.0);
}

// Model FLOPs utilization: of the peak of the job's GPUs (PaLM, Chowdhery et al. 2022, appendix B). Empty: no GPU whose
// data sheet is known, or not measured.
std::optional<double> Mfu(const v1::JobSummary& summary, const v1::ListNodesReply& nodes) {
  const v1::MetricPoint& metrics = summary.last_metrics();
  if (!Measures(summary.job()) || !metrics.has_model_flops_per_second()) return std::nullopt;
  double peak = 0;
  for (const v1::Node& node : nodes.nodes()) {
    for (const v1::Slot& slot : node.slots()) {
      if (slot.job() != summary.job().id()) continue;
      const std::optional<double> of_slot = PeakFlops(slot.model(), summary.job().spec().train().precision());
      if (!of_slot.has_value()) return std::nullopt;
      peak += *of_slot;
    }
  }
  return peak > 0 ? std::optional(metrics.model_flops_per_second() / peak) : std::nullopt;
}

std::string Percent(std::optional<double> share) {
  return share.has_value() ? absl::StrFormat("%.0f%%", 100 * *share) : "";
}

// Order by which `view` sorts, the largest numbers first; jobs without the number come last.
std::vector<const v1::JobSummary*> Sorted(const v1::ListJobsReply& jobs, const TopView& view) {
  std::vector<const v1::JobSummary*> rows;
  for (const v1::JobSummary& summary : jobs.jobs()) rows.push_back(&summary);
  const auto number = [&](const v1::JobSummary* row) -> double {
    const v1::MetricPoint& metrics = row->last_metrics();
    const bool measures = Measures(row->job());
    switch (view.sort) {
      case TopSort::kTokens:
        return measures ? metrics.tokens_per_second() : -1;
      case TopSort::kMemory:
        return measures ? static_cast<double>(metrics.peak_memory_bytes()) : -1;
      case TopSort::kBusy:
        return BusyShare(*row).value_or(-1);
      case TopSort::kLeft:
        return absl::ToDoubleSeconds(Remaining(row->job(), metrics).value_or(-absl::Seconds(1)));
      case TopSort::kSubmitted:
      case TopSort::kJob:
      case TopSort::kState:
        break;
    }
    return 0;
  };
  std::stable_sort(rows.begin(), rows.end(), [&](const v1::JobSummary* a, const v1::JobSummary* b) {
    if (view.sort == TopSort::kJob) return a->job().id() < b->job().id();
    if (view.sort == TopSort::kState) return a->job().state() < b->job().state();
    return number(a) > number(b);
  });
  if (view.reverse) std::reverse(rows.begin(), rows.end());
  return rows;
}

Table Jobs(absl::Span<const v1::JobSummary* const> rows, const v1::ListNodesReply& nodes, absl::Time now) {
  std::vector<std::optional<double>> mfus;
  for (const v1::JobSummary* row : rows) mfus.push_back(Mfu(*row, nodes));
  const bool mfu = std::any_of(mfus.begin(), mfus.end(), [](const auto& of_row) { return of_row.has_value(); });
  std::vector<Column> columns = {{"JOB"}, {"STATE"}, {"STEP", true, /*optional=*/1}};
  const auto add = [&](const char* title, int optional) { columns.push_back({title, true, optional}); };
  for (const char* title : {"LOSS", "TOKENS/S", "STEP-TIME", "TFLOP/S"}) add(title, 3);
  if (mfu) add("MFU", 3);
  add("BUSY", 3), add("MEMORY", 3), add("LEFT", 1), add("AGE", 3);
  columns.push_back({"NODES", false, /*optional=*/2});
  Table table(columns);
  for (size_t i = 0; i < rows.size(); ++i) {
    const v1::JobSummary* summary = rows[i];
    const v1::Job& job = summary->job();
    const v1::MetricPoint& metrics = summary->last_metrics();
    const bool measures = Measures(job);
    const uint64_t step = std::max(metrics.step(), job.progress_step());
    std::vector<Cell> row = {
        job.id(),
        Cell(StateName(job.state()), ColourOf(job.state())),
        job.spec().has_exec() ? absl::StrCat(step) : absl::StrCat(step, "/", job.spec().train().steps()),
        metrics.has_loss() ? Significant(metrics.loss()) : "",
        measures && metrics.has_tokens_per_second() ? Count(metrics.tokens_per_second()) : "",
        measures && metrics.has_step_seconds() ? absl::StrCat(Significant(metrics.step_seconds()), "s") : "",
        measures && metrics.has_model_flops_per_second() ? Significant(metrics.model_flops_per_second() / 1e12) : ""};
    if (mfu) row.emplace_back(Percent(mfus[i]));
    row.insert(row.end(), {Percent(BusyShare(*summary)),
                           measures && metrics.has_peak_memory_bytes() ? FormatBytes(metrics.peak_memory_bytes()) : "",
                           TimeLeft(job, metrics), job.has_submitted() ? Age(now - FromProto(job.submitted())) : "",
                           absl::StrJoin(summary->nodes(), ",")});
    table.Add(std::move(row));
  }
  return table;
}

// The mean over the node's GPUs.
std::optional<double> BusyGpus(const v1::NodeUse& use) {
  if (use.devices_size() == 0) return std::nullopt;
  double busy = 0;
  for (const v1::DeviceUse& device : use.devices()) busy += device.busy();
  return busy / use.devices_size();
}

// `all`: of the node's slots.
std::string UsedGpuMemory(const v1::Node& node, uint64_t all) {
  if (node.use().devices_size() == 0) return "";
  uint64_t used = 0;
  for (const v1::DeviceUse& device : node.use().devices()) used += device.used_memory_bytes();
  return absl::StrCat(FormatBytes(used), "/", FormatBytes(all));
}

// `count` nodes from `first` on.
Table Nodes(const v1::ListNodesReply& nodes, int first, int count) {
  const bool gpus = std::any_of(nodes.nodes().begin(), nodes.nodes().end(),
                                [](const v1::Node& node) { return node.use().devices_size() > 0; });
  std::vector<Column> columns = {{"NODE"},
                                 {"STATE"},
                                 {"DEVICE", false, /*optional=*/1},
                                 {"SLOTS", true},
                                 {"BUSY CORES", true},
                                 {"MEMORY", true, /*optional=*/1}};
  if (gpus) columns.insert(columns.end(), {{"GPU", true}, {"GPU MEMORY", true, /*optional=*/1}});
  columns.push_back({"JOBS", false, /*optional=*/1, Narrow::kCut});
  Table table(columns);
  for (int i = first; i < first + count; ++i) {
    const v1::Node& node = nodes.nodes(i);
    int busy = 0;
    uint64_t memory = 0;
    std::vector<std::string> jobs;
    for (const v1::Slot& slot : node.slots()) {
      busy += slot.state() == v1::SLOT_STATE_USED || slot.state() == v1::SLOT_STATE_RESERVED ? 1 : 0;
      memory += slot.memory_bytes();
      if (slot.job().empty() || std::find(jobs.begin(), jobs.end(), slot.job()) != jobs.end()) continue;
      jobs.push_back(slot.job());
    }
    const bool live = node.state() == v1::NODE_STATE_LIVE;
    std::vector<Cell> row = {node.id(),
                             Cell(absl::StrCat(StateName(node.state()), node.draining() ? ",draining" : "",
                                               live && !NotReady(node).empty() ? ",not ready" : ""),
                                  live ? Colour::kGreen : Colour::kYellow),
                             node.slots_size() > 0 ? DeviceName(node.slots(0).device()) : "",
                             absl::StrCat(busy, "/", node.slots_size()),
                             BusyCores(node.use()),
                             UsedMemory(node.use())};
    if (gpus) row.insert(row.end(), {Percent(BusyGpus(node.use())), UsedGpuMemory(node, memory)});
    row.emplace_back(absl::StrJoin(jobs, ","));
    table.Add(std::move(row));
  }
  return table;
}

}  // namespace

bool PressTopKey(const std::string& key, TopView& view) {
  constexpr int kPage = 10;
  constexpr int kSorts = static_cast<int>(std::size(kTopSorts));
  const auto scroll = [&](int rows) { view.first = std::max(0, view.first + rows); };
  if (key == "j" || key == "\x1b[B" || key == "\x1bOB") {
    scroll(1);
  } else if (key == "k" || key == "\x1b[A" || key == "\x1bOA") {
    scroll(-1);
  } else if (key == "\x1b[6~" || key == " ") {
    scroll(kPage);
  } else if (key == "\x1b[5~") {
    scroll(-kPage);
  } else if (key == "g") {
    view.first = 0;
  } else if (key == "n") {
    view.first_node += view.nodes_shown;
  } else if (key == "s") {
    view.sort = static_cast<TopSort>((static_cast<int>(view.sort) + 1) % kSorts);
  } else if (key == "r") {
    view.reverse = !view.reverse;
  } else {
    return false;
  }
  return true;
}

namespace {

// A table has a blank line above it and a line of titles.
constexpr int kTableLines = 2;
constexpr int kKeyLines = 2;  // with the blank line above

int LinesOf(const std::string& text) { return static_cast<int>(std::count(text.begin(), text.end(), '\n')); }

// The table of the nodes from view.first_node on, of at most so many lines; sets what of the view is about nodes.
std::string NodeLines(const v1::ListNodesReply& nodes, const Screen& screen, int most_lines, TopView& view) {
  const int total = nodes.nodes_size();
  const auto page = [&](int first, int count) {
    view.first_node = first;
    view.nodes_shown = count;
    return count == 0 ? "" : absl::StrCat("\n", Nodes(nodes, first, count).Render(screen));
  };
  const auto most = [&](int first) { return std::min(total - first, std::max(0, most_lines - kTableLines)); };
  const int first = view.first_node < total ? std::max(0, view.first_node) : 0;
  if (most(0) == total) {
    if (std::string all = page(0, total); LinesOf(all) <= most_lines) return all;
  }
  // On a narrow terminal a node may take two lines.
  for (int count = most(first); count > 0; --count) {
    if (std::string some = page(first, count); LinesOf(some) <= most_lines) return some;
  }
  return page(first, 0);
}

// "nodes 3-4 of 9 (n: next)"; empty: all are shown.
std::string HiddenNodes(const TopView& view, int total) {
  if (view.nodes_shown == total) return "";
  if (view.nodes_shown == 0) return absl::StrCat(total, total == 1 ? " node does not fit" : " nodes do not fit");
  return absl::StrCat("nodes ", view.first_node + 1, "-", view.first_node + view.nodes_shown, " of ", total,
                      " (n: next)");
}

}  // namespace

std::string TopPage(const v1::ListJobsReply& jobs, const v1::ListNodesReply& nodes, const Screen& screen,
                    absl::Time now, TopView& view) {
  constexpr int kLeastJobs = 3;
  const std::vector<const v1::JobSummary*> all = Sorted(jobs, view);
  const int total = static_cast<int>(all.size());
  int shown = total;
  bool keys = view.keys;
  std::string node_lines;
  if (screen.height > 0) {
    const int job_titles = total > 0 ? kTableLines : 0;
    const int below_totals = screen.height - 1 - job_titles;
    keys = keys && below_totals >= kKeyLines + std::min(total, 1);
    const int rows = below_totals - (keys ? kKeyLines : 0);
    node_lines = NodeLines(nodes, screen, rows - std::min(total, kLeastJobs), view);
    if (view.nodes_shown == 0) node_lines = NodeLines(nodes, screen, rows - std::min(total, 1), view);
    shown = std::clamp(rows - LinesOf(node_lines), 1, std::max(1, total));
  } else if (nodes.nodes_size() > 0) {
    node_lines = absl::StrCat("\n", Nodes(nodes, 0, nodes.nodes_size()).Render(screen));
    view.first_node = 0;
    view.nodes_shown = nodes.nodes_size();
  }
  view.first = std::clamp(view.first, 0, std::max(0, total - shown));
  const auto rows = absl::MakeConstSpan(all).subspan(static_cast<size_t>(view.first), static_cast<size_t>(shown));
  std::string page = Totals(jobs, nodes, screen);
  if (total > 0) absl::StrAppend(&page, "\n", Jobs(rows, nodes, now).Render(screen));
  page += node_lines;
  if (keys) {
    const size_t first = total == 0 ? 0 : static_cast<size_t>(view.first) + 1;
    std::vector<Part> parts = {
        {absl::StrCat("jobs ", first, "-", static_cast<size_t>(view.first) + rows.size(), " of ", total)}};
    if (const std::string hidden = HiddenNodes(view, nodes.nodes_size()); !hidden.empty()) parts.push_back({hidden});
    parts.insert(parts.end(), {{"q quit", /*optional=*/1},
                               {absl::StrCat("s sort: ", kTopSorts[static_cast<int>(view.sort)]), /*optional=*/2},
                               {"r reverse", /*optional=*/3},
                               {"j, k scroll", /*optional=*/4}});
    const std::string keys = Fitted(std::move(parts), kGap, screen.width);
    absl::StrAppend(&page, "\n", Paint(screen, Colour::kDim, Cut(keys, screen.width, screen.unicode)));
  }
  return page;
}

}  // namespace muster::cli
