#include "cli/output/top.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/output/format.h"
#include "cli/output/table.h"
#include "common/bytes.h"
#include "common/node/not_ready.h"
#include "common/proto_time.h"

namespace muster::cli {
namespace {

// Metrics of a job that does not run are out of date.
bool Measures(const v1::Job& job) { return job.state() == v1::JOB_STATE_RUNNING; }

std::string Totals(const v1::ListJobsReply& jobs, const v1::ListNodesReply& nodes) {
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
  return absl::StrCat("jobs: ", running, " running, ", waiting, " waiting   nodes: ", live, " of ", nodes.nodes_size(),
                      " live   slots: ", busy, " of ", slots, " busy   ", Count(tokens), " tokens/s\n");
}

Table Jobs(const v1::ListJobsReply& jobs, absl::Time now) {
  Table table({{"JOB"},
               {"STATE"},
               {"STEP", true},
               {"LOSS", true},
               {"TOKENS/S", true},
               {"STEP-TIME", true},
               {"MEMORY", true},
               {"LEFT", true},
               {"AGE", true},
               {"NODES"}});
  for (const v1::JobSummary& summary : jobs.jobs()) {
    const v1::Job& job = summary.job();
    const v1::MetricPoint& metrics = summary.last_metrics();
    const bool measures = Measures(job);
    const uint64_t step = std::max(metrics.step(), job.progress_step());
    table.Add({job.id(), Cell(StateName(job.state()), ColourOf(job.state())),
               job.spec().has_exec() ? absl::StrCat(step) : absl::StrCat(step, "/", job.spec().train().steps()),
               metrics.has_loss() ? Significant(metrics.loss()) : "",
               measures && metrics.has_tokens_per_second() ? Count(metrics.tokens_per_second()) : "",
               measures && metrics.has_step_seconds() ? absl::StrCat(Significant(metrics.step_seconds()), "s") : "",
               measures && metrics.has_peak_memory_bytes() ? FormatBytes(metrics.peak_memory_bytes()) : "",
               TimeLeft(job, metrics), job.has_submitted() ? Age(now - FromProto(job.submitted())) : "",
               absl::StrJoin(summary.nodes(), ",")});
  }
  return table;
}

Table Nodes(const v1::ListNodesReply& nodes) {
  Table table({{"NODE"}, {"STATE"}, {"DEVICE"}, {"BUSY", true}, {"MEMORY", true}, {"JOBS"}});
  for (const v1::Node& node : nodes.nodes()) {
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
    table.Add({node.id(),
               Cell(absl::StrCat(StateName(node.state()), node.draining() ? ",draining" : "",
                                 live && !NotReady(node).empty() ? ",not ready" : ""),
                    live ? Colour::kGreen : Colour::kYellow),
               node.slots_size() > 0 ? DeviceName(node.slots(0).device()) : "",
               absl::StrCat(busy, "/", node.slots_size()), FormatBytes(memory), absl::StrJoin(jobs, ",")});
  }
  return table;
}

}  // namespace

std::string TopPage(const v1::ListJobsReply& jobs, const v1::ListNodesReply& nodes, const Screen& screen,
                    absl::Time now) {
  std::string page = Totals(jobs, nodes);
  if (jobs.jobs_size() > 0) absl::StrAppend(&page, "\n", Jobs(jobs, now).Render(screen));
  if (nodes.nodes_size() > 0) absl::StrAppend(&page, "\n", Nodes(nodes).Render(screen));
  return page;
}

}  // namespace muster::cli
