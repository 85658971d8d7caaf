#include "coordinator/scheduler/place.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace muster::scheduler {
namespace {

struct Candidate {
  NodeId id;
  std::vector<uint32_t> free;
};

const char* Name(Device device) { return device == DEVICE_CUDA ? "cuda" : "cpu"; }

Device ResolveDevice(Device wanted, const std::vector<NodeView>& nodes) {
  if (wanted != DEVICE_AUTO) return wanted;
  for (const NodeView& node : nodes) {
    for (const Slot& slot : node.slots) {
      if (slot.device() == DEVICE_CUDA) return DEVICE_CUDA;
    }
  }
  return DEVICE_CPU;
}

std::string Slots(uint64_t n) { return absl::StrCat(n, n == 1 ? " slot" : " slots"); }

}  // namespace

Decision Place(const Demand& demand, const std::vector<NodeView>& nodes) {
  Decision decision;
  decision.device = ResolveDevice(demand.device, nodes);
  std::vector<Candidate> candidates;
  std::set<std::string> users;
  uint64_t total = 0, free = 0;
  for (const NodeView& node : nodes) {
    Candidate& candidate = candidates.emplace_back(Candidate{node.id, {}});
    for (const Slot& slot : node.slots) {
      if (slot.device() != decision.device) continue;
      ++total;
      if (slot.state() == SLOT_STATE_FREE) {
        candidate.free.push_back(slot.index());
      } else if (!slot.job().empty()) {
        users.insert(slot.job());
      }
    }
    free += candidate.free.size();
  }
  decision.fits_when_idle = total >= demand.ranks;
  if (free < demand.ranks) {
    if (nodes.empty()) {
      decision.reason = "no node has joined that takes ranks";
    } else if (!decision.fits_when_idle) {
      decision.reason = absl::StrCat("needs ", Slots(demand.ranks), " on ", Name(decision.device),
                                     ", the live nodes have ", total, " in all");
    } else {
      decision.reason = absl::StrCat("needs ", Slots(demand.ranks), ", ", free, " of ", total, " free");
      if (!users.empty()) absl::StrAppend(&decision.reason, " (in use: ", absl::StrJoin(users, ", "), ")");
    }
    return decision;
  }

  std::stable_sort(candidates.begin(), candidates.end(), [&](const Candidate& a, const Candidate& b) {
    const bool a_holds = a.free.size() >= demand.ranks, b_holds = b.free.size() >= demand.ranks;
    if (a_holds != b_holds) return a_holds;
    if (a.free.size() != b.free.size()) return a_holds ? a.free.size() < b.free.size() : a.free.size() > b.free.size();
    return a.id < b.id;
  });
  for (const Candidate& candidate : candidates) {
    for (const uint32_t slot : candidate.free) {
      if (decision.ranks.size() == demand.ranks) return decision;
      decision.ranks.push_back({candidate.id, slot});
    }
  }
  return decision;
}

}  // namespace muster::scheduler
