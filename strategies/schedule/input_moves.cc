#include "strategies/schedule/input_moves.h"

#include <algorithm>
#include <cstddef>

namespace muster {
namespace {

class Planner {
 public:
  Planner(const std::vector<Event>& events, const std::vector<uint64_t>& bytes)
      : events_(events), bytes_(bytes), offloaded_(bytes.size()), fetched_(bytes.size()) {}

  InputPlan Plan() {
    for (uint32_t e = 0; e < events_.size(); ++e) {
      const int32_t unit = events_[e].unit;
      if (events_[e].kind == OpKind::kForward) {
        Add(OpKind::kReleaseInput, unit - 2, e);
        Add(OpKind::kOffloadInput, unit, e);
        offloaded_[unit] = e;
        continue;
      }
      const bool last = unit + 1 == static_cast<int32_t>(bytes_.size());
      const bool first_of_unit = events_[e - 1].unit != unit || events_[e - 1].kind == OpKind::kForward;
      if (first_of_unit && last) {
        Add(OpKind::kReleaseInput, unit - 1, e);
        Add(OpKind::kReleaseInput, unit, e);
        Fetch(unit, e);
      }
      if (first_of_unit) Fetch(unit - 1, e);
      if (events_[e].kind == OpKind::kBackward && Moves(unit)) on_device_.push_back({Index(unit), fetched_[unit], e});
    }
    std::vector<Span> inputs;
    for (size_t u = 0; u < bytes_.size(); ++u) {
      inputs.push_back({static_cast<int32_t>(u), static_cast<int32_t>(u) + 1, bytes_[u]});
    }
    plan_.host_slot_of = AssignSlots(inputs, on_host_, plan_.host_slots);
    plan_.slot_of = AssignSlots(inputs, on_device_, plan_.slots);
    return std::move(plan_);
  }

 private:
  static uint32_t Index(int32_t unit) { return static_cast<uint32_t>(unit); }
  bool Moves(int32_t unit) const { return unit >= 0 && bytes_[Index(unit)] > 0; }

  void Add(OpKind kind, int32_t unit, uint32_t e) {
    if (Moves(unit)) plan_.moves.push_back({kind, unit, events_[e].microbatch, e});
  }

  void Fetch(int32_t unit, uint32_t e) {
    if (!Moves(unit)) return;
    Add(OpKind::kFetchInput, unit, e);
    fetched_[Index(unit)] = e;
    on_host_.push_back({Index(unit), offloaded_[Index(unit)], e});
  }

  const std::vector<Event>& events_;
  const std::vector<uint64_t>& bytes_;
  std::vector<uint32_t> offloaded_, fetched_;  // by unit: beside this event
  std::vector<Hold> on_host_, on_device_;
  InputPlan plan_;
};

}  // namespace

InputPlan PlanInputMoves(const std::vector<Event>& events, const std::vector<uint64_t>& bytes) {
  return Planner(events, bytes).Plan();
}

}  // namespace muster
