#include "coordinator/metrics/measures.h"

#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/strip.h"
#include "common/node/not_ready.h"
#include "common/proto_time.h"
#include "common/version.h"

namespace muster::metrics {
namespace {

// Bucket bounds of commit times: from a fast SSD to a failing disk.
std::vector<double> CommitBounds() { return {0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 5}; }
std::vector<double> TurnBounds() {
  return {0.0001, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 5};
}
std::vector<double> WaitBounds() { return {0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 24 * 3600}; }

// Returns "running" for JOB_STATE_RUNNING: the name without the prefix that JOB_STATE_UNSPECIFIED shows, in lower case.
std::string Word(const google::protobuf::EnumValueDescriptor& value) {
  absl::string_view prefix = value.type()->FindValueByNumber(0)->name();
  absl::string_view word = value.name();
  if (absl::ConsumeSuffix(&prefix, "UNSPECIFIED")) absl::ConsumePrefix(&word, prefix);
  return absl::AsciiStrToLower(word);
}

// A gauge with a series for each state, including states without members.
template <typename State>
void WriteStates(const std::string& name, const std::string& help, const std::map<State, uint64_t>& counts,
                 Exposition& page) {
  page.Begin(name, Kind::kGauge, help);
  const auto* const states = google::protobuf::GetEnumDescriptor<State>();
  for (int i = 0; i < states->value_count(); ++i) {
    if (states->value(i)->number() == 0) continue;
    const auto found = counts.find(static_cast<State>(states->value(i)->number()));
    page.Add({{"state", Word(*states->value(i))}}, found == counts.end() ? 0 : static_cast<double>(found->second));
  }
}

// The label is not "job", since Prometheus sets a label of that name.
void WriteJobs(const Snapshot& snapshot, Exposition& page) {
  std::vector<std::pair<std::string, const Job*>> running;
  for (const Job& job : snapshot.jobs) {
    if (job.state() == JOB_STATE_RUNNING || job.state() == JOB_STATE_STOPPING) running.emplace_back(job.id(), &job);
  }
  const auto write = [&](const char* name, const char* help, auto value) {
    page.Begin(name, Kind::kGauge, help);
    for (const auto& [id, job] : running) {
      const auto last = snapshot.last.find(id);
      const std::optional<double> known = value(*job, last == snapshot.last.end() ? MetricPoint() : last->second);
      if (known.has_value()) page.Add({{"job_id", id}}, *known);
    }
  };
  using Known = std::optional<double>;
  write("muster_job_step", "Steps that a running job has done.",
        [](const Job&, const MetricPoint& last) -> Known { return static_cast<double>(last.step()); });
  write("muster_job_target_steps", "Steps that a running job does in all.",
        [](const Job& job, const MetricPoint&) -> Known { return static_cast<double>(job.spec().train().steps()); });
  write("muster_job_loss", "Newest training loss of a running job, nats.",
        [](const Job&, const MetricPoint& last) { return last.has_loss() ? Known(last.loss()) : std::nullopt; });
  write("muster_job_validation_loss", "Newest validation loss of a running job, nats.",
        [](const Job&, const MetricPoint& last) {
          return last.has_validation_loss() ? Known(last.validation_loss()) : std::nullopt;
        });
  page.Begin("muster_job_validation", Kind::kGauge, "Newest metrics of a running job's validation, by name.");
  for (const auto& [id, job] : running) {
    const auto last = snapshot.last.find(id);
    if (last == snapshot.last.end()) continue;
    for (const NamedMetric& metric : last->second.validation()) {
      page.Add({{"job_id", id}, {"metric", metric.name()}}, metric.value());
    }
  }
  write("muster_job_samples_per_second", "Samples that a running job trains on in a second, over all ranks.",
        [](const Job&, const MetricPoint& last) {
          return last.has_samples_per_second() ? Known(last.samples_per_second()) : std::nullopt;
        });
  write("muster_job_tokens_per_second", "Tokens that a running job trains on in a second, over all ranks.",
        [](const Job&, const MetricPoint& last) {
          return last.has_tokens_per_second() ? Known(last.tokens_per_second()) : std::nullopt;
        });
  write("muster_job_model_flops_per_second",
        "FLOPs of a running job's forward and backward a second, over all ranks, without recomputation.",
        [](const Job&, const MetricPoint& last) {
          return last.has_model_flops_per_second() ? Known(last.model_flops_per_second()) : std::nullopt;
        });
  write("muster_job_skipped_steps", "Steps of a running job that updated nothing, because they were not finite.",
        [](const Job&, const MetricPoint& last) -> Known { return static_cast<double>(last.skipped_steps()); });
  write("muster_job_loss_scale", "Newest factor on a running job's fp16 gradients.",
        [](const Job&, const MetricPoint& last) {
          return last.has_loss_scale() ? Known(last.loss_scale()) : std::nullopt;
        });
  write("muster_job_restarts", "Restarts of a running job after faults.",
        [](const Job& job, const MetricPoint&) -> Known { return static_cast<double>(job.restarts()); });
}

// Of the links between nodes that ranks have measured.
void WriteLinks(const std::vector<Node>& nodes, Exposition& page) {
  const auto write = [&](const char* name, const char* help, double (NodeLink::*value)() const) {
    page.Begin(name, Kind::kGauge, help);
    for (const Node& node : nodes) {
      for (const NodeLink& link : node.links()) {
        if ((link.*value)() > 0) page.Add({{"from", node.id()}, {"to", link.node()}}, (link.*value)());
      }
    }
  };
  write("muster_link_bytes_per_second", "Bandwidth from a node to another, as ranks last measured it.",
        &NodeLink::bytes_per_second);
  write("muster_link_usual_bytes_per_second", "Median of earlier measurements of that bandwidth.",
        &NodeLink::usual_bytes_per_second);
  write("muster_link_latency_seconds", "Latency from a node to another, one way, as ranks last measured it.",
        &NodeLink::latency_seconds);
  page.Begin("muster_link_socket_bytes_per_second", Kind::kGauge,
             "Socket throughput of one otherwise idle core that sends and receives at the same rate.");
  for (const Node& node : nodes) {
    for (const NodeLink& link : node.links()) {
      const double rate = link.core().socket_bytes_per_second();
      if (rate > 0) page.Add({{"from", node.id()}, {"to", link.node()}}, rate);
    }
  }
  page.Begin("muster_link_compression_seconds", Kind::kGauge,
             "Time of one core of a node to compress a gradient, measured together with a link.");
  for (const Node& node : nodes) {
    for (const NodeLink& link : node.links()) {
      for (const auto& [kind, seconds] :
           {std::pair("int8", link.core().int8_seconds()), std::pair("power_sgd", link.core().power_sgd_seconds()),
            std::pair("top_k", link.core().top_k_seconds())}) {
        if (seconds > 0) page.Add({{"from", node.id()}, {"kind", kind}, {"to", link.node()}}, seconds);
      }
    }
  }
}

void WriteUses(const std::vector<Node>& nodes, Exposition& page) {
  const auto write = [&](const char* name, const char* help, auto value) {
    page.Begin(name, Kind::kGauge, help);
    for (const Node& node : nodes) {
      if (node.has_use()) page.Add({{"node", node.id()}}, static_cast<double>(value(node.use())));
    }
  };
  write("muster_node_busy_cores", "Cores of a live node that were busy, by whatever process.",
        [](const NodeUse& use) { return use.busy_cores(); });
  write("muster_node_cores", "Cores that a live node's worker may use.",
        [](const NodeUse& use) { return use.cores(); });
  write("muster_node_used_memory_bytes", "Memory of a live node that is in use.",
        [](const NodeUse& use) { return use.used_memory_bytes(); });
  write("muster_node_memory_bytes", "Memory that a live node's worker may use.",
        [](const NodeUse& use) { return use.memory_bytes(); });
  const auto of_devices = [&](const char* name, const char* help, auto value) {
    page.Begin(name, Kind::kGauge, help);
    for (const Node& node : nodes) {
      for (const DeviceUse& device : node.use().devices()) {
        page.Add({{"node", node.id()}, {"slot", absl::StrCat(device.slot())}}, static_cast<double>(value(device)));
      }
    }
  };
  of_devices("muster_gpu_busy_ratio", "Share of the time in which a kernel ran on a GPU, by NVML.",
             [](const DeviceUse& device) { return device.busy(); });
  of_devices("muster_gpu_used_memory_bytes", "Memory of a GPU that is in use.",
             [](const DeviceUse& device) { return device.used_memory_bytes(); });
}

void WriteTracking(const std::vector<TrackingServer>& servers, Exposition& page) {
  const auto each = [&](const char* name, Kind kind, const char* help, auto value) {
    page.Begin(name, kind, help);
    for (const TrackingServer& server : servers)
      page.Add({{"server", server.name}}, static_cast<double>(value(server)));
  };
  each("muster_tracking_up", Kind::kGauge, "1: the tracking server answered the last request; 0: it is tried again.",
       [](const TrackingServer& server) { return server.up ? 1 : 0; });
  each("muster_tracking_values_total", Kind::kCounter, "Values of metrics that the tracking server took.",
       [](const TrackingServer& server) { return server.values; });
  each("muster_tracking_refused_total", Kind::kCounter,
       "Values, and sets of parameters or tags, that the tracking server refused for good.",
       [](const TrackingServer& server) { return server.refused; });
  each("muster_tracking_failures_total", Kind::kCounter, "Requests to the tracking server that were to be repeated.",
       [](const TrackingServer& server) { return server.failures; });
}

}  // namespace

Measures::Measures() : turn_(TurnBounds()), commit_(CommitBounds()), queue_wait_(WaitBounds()) {}

void Measures::ObserveEvent(const StateEvent& event, EndReason reason) {
  const MutexLock lock(mutex_);
  if (event.kind() == "job.queued") {
    queued_.emplace(event.job(), FromProto(event.time()));
  } else if (event.kind() == "generation.starting") {
    ++generations_started_;
    const auto since = queued_.find(event.job());
    if (since == queued_.end()) return;  // it was queued before this coordinator started
    queue_wait_.Observe(absl::ToDoubleSeconds(FromProto(event.time()) - since->second));
    queued_.erase(since);
  } else if (event.kind() == "generation.ended") {
    ++generations_ended_[reason];
  } else if (!event.job().empty() && event.job_state() != JOB_STATE_QUEUED) {
    queued_.erase(event.job());
  }
}

void Measures::CountCall(const std::string& method, const std::string& code) {
  const MutexLock lock(mutex_);
  ++calls_[{method, code}];
}

void Measures::WriteTo(Exposition& page) const {
  page.Begin("muster_queue_wait_seconds", Kind::kHistogram, "From a job's queueing to the start of its generation.");
  page.Add(queue_wait_.Read());
  page.Begin("muster_store_commit_seconds", Kind::kHistogram, "Time for a commit of the store, fsync included.");
  page.Add(commit_.Read());
  page.Begin("muster_loop_turn_seconds", Kind::kHistogram, "Time for a turn of the event loop, its commit included.");
  page.Add(turn_.Read());
  const MutexLock lock(mutex_);
  page.Counter("muster_history_dropped_total", "Metrics and pieces of logs that were dropped on a full disk.",
               static_cast<double>(dropped_));
  page.Counter("muster_generations_started_total", "Generations that were started.",
               static_cast<double>(generations_started_));
  page.Begin("muster_generations_ended_total", Kind::kCounter, "Generations that ended, by reason.");
  const auto* const reasons = google::protobuf::GetEnumDescriptor<EndReason>();
  for (int i = 0; i < reasons->value_count(); ++i) {
    if (reasons->value(i)->number() == 0) continue;
    const auto found = generations_ended_.find(static_cast<EndReason>(reasons->value(i)->number()));
    page.Add({{"reason", Word(*reasons->value(i))}},
             found == generations_ended_.end() ? 0 : static_cast<double>(found->second));
  }
  page.Begin("muster_rpcs_total", Kind::kCounter, "Calls that have ended, by method and status code.");
  for (const auto& [call, count] : calls_) {
    page.Add({{"method", call.first}, {"code", call.second}}, static_cast<double>(count));
  }
}

std::string CoordinatorPage(const Snapshot& snapshot, const Measures& measures) {
  Exposition page;
  page.Begin("muster_build_info", Kind::kGauge, "Always 1; the label says which build this is.");
  page.Add({{"version", kVersion}}, 1);
  WriteStates("muster_jobs", "Jobs by state.", snapshot.job_states, page);
  std::map<NodeState, uint64_t> nodes;
  std::map<SlotState, uint64_t> slots;
  uint64_t draining = 0, faulty = 0, faults = 0, not_ready = 0;
  for (const Node& node : snapshot.nodes) {
    ++nodes[node.state()];
    draining += node.draining() ? 1 : 0;
    faulty += node.drain_reason().empty() ? 0 : 1;
    faults += node.recent_faults();
    not_ready += node.state() == NODE_STATE_LIVE && !NotReady(node).empty() ? 1 : 0;
    for (const Slot& slot : node.slots()) ++slots[slot.state()];
  }
  WriteStates("muster_nodes", "Nodes by state.", nodes, page);
  page.Gauge("muster_nodes_draining", "Nodes that take no new ranks.", static_cast<double>(draining));
  page.Gauge("muster_nodes_faulty", "Nodes that the coordinator has drained for their faults.",
             static_cast<double>(faulty));
  page.Gauge("muster_nodes_not_ready", "Live nodes whose worker checks the machine or found a problem with it.",
             static_cast<double>(not_ready));
  page.Gauge("muster_node_faults", "Recent faults of ranks and connections that nodes may be to blame for.",
             static_cast<double>(faults));
  WriteStates("muster_slots", "Slots of all nodes by state; reserved and used ones are busy.", slots, page);
  WriteLinks(snapshot.nodes, page);
  WriteUses(snapshot.nodes, page);
  page.Gauge("muster_watch_streams", "Readers of the stream of events, metrics and logs.",
             static_cast<double>(snapshot.watch_streams));
  page.Begin("muster_connections", Kind::kGauge, "Open connections; unknown ones have not made an admitted call yet.");
  for (const auto& [kind, count] : snapshot.connections) page.Add({{"kind", kind}}, static_cast<double>(count));
  page.Counter("muster_connections_refused_total",
               "Connections that were refused or closed: over a limit, out of descriptors, or unknown for too long.",
               static_cast<double>(snapshot.refused_connections));
  page.Gauge("muster_new_jobs_refused", "1: the disk of the store has less free space than --min-free-bytes.",
             snapshot.refuses_jobs ? 1 : 0);
  WriteTracking(snapshot.tracking, page);
  WriteJobs(snapshot, page);
  measures.WriteTo(page);
  return page.Take();
}

}  // namespace muster::metrics
