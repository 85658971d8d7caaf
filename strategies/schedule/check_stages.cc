#include "strategies/schedule/check_stages.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "strategies/schedule/chunks.h"
#include "strategies/schedule/stage_ops.h"

namespace muster {
namespace {

class Stages {
 public:
  explicit Stages(const std::vector<StageSchedule>& stages) : stages_(stages) {
    std::vector<const Schedule*> schedules;
    for (const StageSchedule& stage : stages) {
      schedules.push_back(stage.schedule);
      inputs_.push_back(InputBytes(*stage.inventory));
      Played& played = played_.emplace_back();
      played.ended.resize(stage.schedule->ops.size());
      for (size_t i = 0; i < stage.schedule->ops.size(); ++i) {
        played.streams[static_cast<size_t>(stage.schedule->ops[i].stream)].push_back(i);
      }
    }
    meetings_ = OpsThatMeet(schedules);
  }

  absl::Status Match() const {
    for (const auto& [meeting, by_stage] : meetings_) {
      const auto& [first, ops] = *by_stage.begin();
      const size_t parties = IsEdge(meeting) ? 2 : stages_.size();
      if (by_stage.size() != parties) {
        return absl::InternalError(absl::StrCat("schedule: ", Name(first, ops[0]), " of stage ", first,
                                                ": another stage of its group has none"));
      }
      for (const auto& [stage, others] : by_stage) {
        for (size_t k = 0; k < std::max(ops.size(), others.size()); ++k) {
          if (k < ops.size() && k < others.size() && Fit(first, ops[k], stage, others[k])) continue;
          return absl::InternalError(absl::StrCat("schedule: number ", k, " in ", Print(GroupOf(first, ops[0])),
                                                  ": stage ", first, " issues ",
                                                  k < ops.size() ? Name(first, ops[k]) : "nothing", ", stage ", stage,
                                                  " issues ", k < others.size() ? Name(stage, others[k]) : "nothing"));
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status Play() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t p = 0; p < stages_.size(); ++p) {
        while (Advance(p)) moved = true;
      }
    }
    std::string heads;
    for (size_t p = 0; p < stages_.size(); ++p) {
      for (size_t s = 0; s < kStreams; ++s) {
        const Played& played = played_[p];
        if (played.next[s] == played.streams[s].size()) continue;
        absl::StrAppend(&heads, heads.empty() ? "" : "; ", "stage ", p, " is at ",
                        Name(p, played.streams[s][played.next[s]]));
      }
    }
    if (!heads.empty()) return absl::InternalError(absl::StrCat("schedule: the stages block each other: ", heads));
    return absl::OkStatus();
  }

 private:
  struct Played {
    std::array<std::vector<size_t>, kStreams> streams;  // ops
    std::array<size_t, kStreams> next{};                // the first that has not ended
    std::vector<bool> ended;
    std::map<StageGroup, size_t> met;  // ops of the group that have ended
  };

  const Op& At(size_t stage, size_t op) const { return stages_[stage].schedule->ops[op]; }
  const GroupSpec& GroupOf(size_t stage, size_t op) const {
    return stages_[stage].schedule->groups[static_cast<size_t>(At(stage, op).group)];
  }
  bool Meets(size_t stage, size_t op) const { return MeetsOtherStages(*stages_[stage].schedule, At(stage, op)); }
  std::string Name(size_t stage, size_t op) const { return Print(At(stage, op), *stages_[stage].inventory); }

  // Per sample.
  uint64_t Bytes(size_t stage, const Op& op) const {
    const EdgeUse edge = Traits(op.kind).edge;
    if (Traits(op.kind).scope == OpScope::kUnits) return 0;  // a tied tensor
    const bool handed_on = edge == EdgeUse::kSendActivation || edge == EdgeUse::kReceiveGradient;
    return handed_on ? stages_[stage].inventory->units(op.unit).output_bytes() : inputs_[stage][op.unit];
  }
  // Of the tied tensors that the op moves, which all have the same one; empty: it moves none.
  std::string OwnerOfTied(size_t stage, const Op& op) const {
    const std::vector<TiedEdges>& edges = stages_[stage].schedule->tied;
    const Inventory& inventory = *stages_[stage].inventory;
    for (size_t t = 0; t < std::min(edges.size(), static_cast<size_t>(inventory.tied_size())); ++t) {
      const TiedTensor& tied = inventory.tied(static_cast<int>(t));
      if (op.group != edges[t].parameters && op.group != edges[t].gradient) continue;
      const std::string& unit = inventory.units(op.unit).name();
      if (unit == tied.owner() || unit == tied.user()) return tied.owner();
    }
    return "";
  }
  bool Fit(size_t a, size_t first, size_t b, size_t second) const {
    const Op &x = At(a, first), &y = At(b, second);
    if (Traits(x.kind).edge == EdgeUse::kNone) return x.kind == y.kind && x.even == y.even;
    return a == b ||
           (x.microbatch == y.microbatch && Bytes(a, x) == Bytes(b, y) && OwnerOfTied(a, x) == OwnerOfTied(b, y));
  }

  bool IsCompute(size_t stage, size_t op) const { return At(stage, op).stream == Stream::kCompute; }

  // Whether the op is at the head of its stream and nothing but its partners holds it up.
  bool Ready(size_t stage, size_t op) const {
    const Played& played = played_[stage];
    const Op& its = At(stage, op);
    const auto stream = static_cast<size_t>(its.stream);
    if (played.next[stream] == played.streams[stream].size() || played.streams[stream][played.next[stream]] != op) {
      return false;
    }
    const auto compute = static_cast<size_t>(Stream::kCompute);
    const bool computed_before =
        played.next[compute] == played.streams[compute].size() || played.streams[compute][played.next[compute]] >= op;
    return computed_before &&
           std::all_of(its.waits.begin(), its.waits.end(), [&](int32_t w) { return played.ended[w]; });
  }

  void End(size_t stage, size_t op) {
    Played& played = played_[stage];
    played.ended[op] = true;
    ++played.next[static_cast<size_t>(At(stage, op).stream)];
    if (Meets(stage, op)) ++played.met[StageGroupOf(GroupOf(stage, op))];
  }

  // Ends an op of the stage that can end, with its partners.
  bool Advance(size_t stage) {
    for (size_t s = 0; s < kStreams; ++s) {
      const Played& played = played_[stage];
      if (played.next[s] == played.streams[s].size()) continue;
      const size_t op = played.streams[s][played.next[s]];
      if (!Ready(stage, op)) continue;
      if (!Meets(stage, op)) {
        End(stage, op);
        return true;
      }
      const StageGroup meeting = StageGroupOf(GroupOf(stage, op));
      const auto met = played.met.find(meeting);
      const size_t k = met == played.met.end() ? 0 : met->second;
      const auto& by_stage = meetings_.at(meeting);
      if (!std::all_of(by_stage.begin(), by_stage.end(),
                       [&](const auto& party) { return Ready(party.first, party.second[k]); })) {
        continue;
      }
      for (const auto& [party, ops] : by_stage) End(party, ops[k]);
      return true;
    }
    return false;
  }

  const std::vector<StageSchedule>& stages_;
  std::vector<Played> played_;
  std::vector<std::vector<uint64_t>> inputs_;  // by stage and unit
  StageOps meetings_;
};

}  // namespace

absl::Status CheckStages(const std::vector<StageSchedule>& stages) {
  if (stages.size() < 2) return absl::OkStatus();
  Stages all(stages);
  if (absl::Status s = all.Match(); !s.ok()) return s;
  return all.Play();
}

}  // namespace muster
