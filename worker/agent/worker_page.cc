#include "worker/agent/worker_page.h"

#include "absl/strings/str_cat.h"
#include "common/metrics/exposition.h"

namespace muster::agent {

std::string WorkerPage(const WorkerView& view, const Node& node) {
  Exposition page;
  page.Begin("muster_worker_build_info", Kind::kGauge, "Always 1; the labels say which build and node this is.");
  page.Add({{"version", node.version()}, {"node", node.id()}}, 1);
  page.Gauge("muster_worker_ranks_running", "Ranks with running processes on this node.",
             static_cast<double>(view.ranks_running));
  page.Gauge("muster_worker_ranks_ended", "Ended ranks with unacknowledged records or output.",
             static_cast<double>(view.ranks_ended));
  page.Gauge("muster_worker_ranks_stuck", "Ranks that were killed and whose processes do not end.",
             static_cast<double>(view.ranks_stuck));
  page.Gauge("muster_worker_slots", "Slots of this node.", node.slots_size());
  page.Begin("muster_worker_slot_memory_bytes", Kind::kGauge, "Memory of a slot.");
  for (const Slot& slot : node.slots()) {
    page.Add({{"slot", absl::StrCat(slot.index())}, {"device", slot.device() == DEVICE_CUDA ? "cuda" : "cpu"}},
             static_cast<double>(slot.memory_bytes()));
  }
  page.Gauge("muster_worker_connected", "1 while the coordinator is in contact, else 0.", view.connected ? 1 : 0);
  page.Gauge("muster_worker_foreign_store",
             "1 while the coordinator has another store than the ranks here belong to, else 0.",
             view.foreign_store ? 1 : 0);
  page.Gauge("muster_worker_contact_age_seconds", "Time since the coordinator's last message, or since the start.",
             absl::ToDoubleSeconds(view.contact_age));
  page.Counter("muster_worker_log_dropped_bytes_total",
               "Output of ranks that was lost before the coordinator acknowledged it.",
               static_cast<double>(view.log_bytes_dropped));
  return page.Take();
}

}  // namespace muster::agent
