#include "strategies/schedule/simulate.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <queue>
#include <tuple>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "strategies/schedule/stage_ops.h"

namespace muster {
namespace {

// One stage, as far as it depends on no other one.
class StagePlay {
 public:
  StagePlay(const Schedule& schedule, const std::vector<OpCost>& costs, Sharing sharing)
      : schedule_(schedule), costs_(costs), sharing_(sharing), ended_(schedule.ops.size()) {
    timeline_.ops.resize(schedule.ops.size());
    for (size_t i = 0; i < schedule.ops.size(); ++i) {
      streams_[static_cast<size_t>(schedule.ops[i].stream)].queue.push_back(static_cast<uint32_t>(i));
    }
  }

  // What the timeline counts, up to now.
  struct Counts {
    double communication = 0, exposed = 0;
    std::array<double, kStreams> busy{};
  };
  Counts CountsNow() const { return {timeline_.communication, timeline_.exposed, timeline_.busy}; }

  // The op is the next of its stream, which has room for it, and prepared, and all that it waits for has ended.
  bool Ready(size_t op) const {
    const Lane& lane = streams_[static_cast<size_t>(schedule_.ops[op].stream)];
    return HasRoom(lane) && lane.queue[lane.next] == op && WaitsEnded(op) &&
           (costs_[op].preparing == 0 || (lane.prepared == op && lane.preparing == 0));
  }
  // Begins to prepare the next op of the stream, if it has to be and all that it waits for has ended.
  void Prepare(size_t stream) {
    Lane& lane = streams_[stream];
    if (lane.next == lane.queue.size() || lane.prepared == lane.queue[lane.next]) return;
    const size_t op = lane.queue[lane.next];
    if (costs_[op].preparing == 0 || !WaitsEnded(op)) return;
    lane.prepared = op, lane.preparing = costs_[op].preparing;
  }
  std::optional<size_t> Next(size_t stream) const {
    const Lane& lane = streams_[stream];
    if (!HasRoom(lane)) return std::nullopt;
    return lane.queue[lane.next];
  }
  void Begin(size_t op, double now) {
    Lane& lane = streams_[static_cast<size_t>(schedule_.ops[op].stream)];
    ++lane.next;
    const OpCost& cost = costs_[op];
    lane.in_progress.push_back({op, cost.latency, cost.work, cost.work > 0 ? cost.processor / cost.work : 0});
    timeline_.ops[op].begin = now;
  }
  // Ends the stream's first op in progress if nothing of it remains.
  bool EndIfDone(size_t stream, double now) {
    Lane& lane = streams_[stream];
    if (lane.in_progress.empty() || Rest(lane.in_progress.front()) > 0) return false;
    const size_t op = lane.in_progress.front().op;
    timeline_.ops[op].end = now;
    ended_[op] = true;
    lane.in_progress.erase(lane.in_progress.begin());
    return true;
  }
  bool busy() const {
    return std::any_of(streams_.begin(), streams_.end(), [](const Lane& lane) { return Busy(lane); });
  }
  // Until the next of its ops ends, is prepared or begins to work; infinity: none is in progress.
  double Step() const {
    const Load load = LoadNow();
    double step = std::numeric_limits<double>::infinity();
    for (const Lane& lane : streams_) {
      for (const InProgress& op : lane.in_progress) {
        if (Rest(op) > 0) step = std::min(step, Rest(op) * SlowdownOf(op, load));
      }
      if (lane.preparing > 0) step = std::min(step, lane.preparing * Slowdown(/*network=*/false, load));
    }
    return step;
  }
  void Advance(double step) {
    Count(step);
    const Load load = LoadNow();
    const auto advance = [step](double& rest, double slowdown) {
      rest = rest * slowdown <= step ? 0 : rest - step / slowdown;
    };
    for (Lane& lane : streams_) {
      for (InProgress& op : lane.in_progress) advance(op.latency > 0 ? op.latency : op.work, SlowdownOf(op, load));
      if (lane.preparing > 0) advance(lane.preparing, Slowdown(/*network=*/false, load));
    }
  }
  Timeline Take(double seconds) {
    timeline_.seconds = seconds;
    return std::move(timeline_);
  }
  void Repeat(const Counts& from, const Counts& to, double times) {
    timeline_.communication += times * (to.communication - from.communication);
    timeline_.exposed += times * (to.exposed - from.exposed);
    for (size_t s = 0; s < kStreams; ++s) timeline_.busy[s] += times * (to.busy[s] - from.busy[s]);
  }

 private:
  struct InProgress {
    size_t op;
    double latency, work;  // remaining
    double processor;      // the part of the processor that its work takes
  };
  struct Lane {
    std::vector<uint32_t> queue;  // its ops, in order
    size_t next = 0;
    absl::InlinedVector<InProgress, 2> in_progress;  // and those that wait for one before them to end
    std::optional<size_t> prepared;                  // an op, the next or the one in progress
    double preparing = 0;                            // remaining, of its preparation
  };
  // What is at work at an instant.
  struct Load {
    double local = 0;    // that share a processor, or the links of a node
    double network = 0;  // that share the network
    double moving = 0;   // the part of the processor that moving the bytes of the network takes
  };

  bool HasRoom(const Lane& lane) const {
    return lane.next < lane.queue.size() && lane.in_progress.size() < costs_[lane.queue[lane.next]].in_flight;
  }
  static bool Busy(const Lane& lane) { return !lane.in_progress.empty() || lane.preparing > 0; }
  bool Shares(const InProgress& progress) const {
    if (progress.latency > 0 || progress.work == 0) return false;
    const Op& op = schedule_.ops[progress.op];
    return sharing_ == Sharing::kProcessor || (op.group >= 0 && op.stream != Stream::kCompute);
  }
  Load LoadNow() const {
    Load load;
    for (const Lane& lane : streams_) {
      if (lane.preparing > 0) ++load.local;
      for (const InProgress& progress : lane.in_progress) {
        if (!Shares(progress)) continue;
        if (!costs_[progress.op].network) {
          ++load.local;
        } else {
          ++load.network;
          load.moving = std::max(load.moving, progress.processor);
        }
      }
    }
    return load;
  }
  // How many times slower one of them works than alone: by how many share its resource, itself among them, and by the
  // processor's time that the network's ops take of those that compute, and they of them.
  double Slowdown(bool network, const Load& load) const {
    const double sharers = network ? load.network : load.local;
    if (sharing_ != Sharing::kProcessor || load.moving == 0) return sharers;
    const double most = load.local > 0 ? 0.5 : 1;
    return network ? sharers * std::max(1.0, load.moving / most) : sharers / (1 - std::min(load.moving, most));
  }
  double SlowdownOf(const InProgress& progress, const Load& load) const {
    return Shares(progress) ? Slowdown(costs_[progress.op].network, load) : 1;
  }
  // Of what the op does now.
  static double Rest(const InProgress& op) { return op.latency > 0 ? op.latency : op.work; }
  bool WaitsEnded(size_t op) const {
    const Waits& waits = schedule_.ops[op].waits;
    return std::all_of(waits.begin(), waits.end(), [this](int32_t wait) { return ended_[wait]; });
  }

  void Count(double step) {
    bool communicates = false;
    for (size_t s = 0; s < kStreams; ++s) {
      if (!Busy(streams_[s])) continue;
      timeline_.busy[s] += step;
      communicates |= s != static_cast<size_t>(Stream::kCompute);
    }
    if (!communicates) return;
    timeline_.communication += step;
    if (streams_[static_cast<size_t>(Stream::kCompute)].in_progress.empty()) timeline_.exposed += step;
  }

  const Schedule& schedule_;
  const std::vector<OpCost>& costs_;
  const Sharing sharing_;
  std::vector<bool> ended_;
  std::array<Lane, kStreams> streams_;
  Timeline timeline_;
};

class Play {
 public:
  Play(const std::vector<StageCosts>& stages, Sharing sharing, const Repeated& repeated)
      : repeated_(repeated), partners_(stages.size()), stages_(stages.size()) {
    std::vector<const Schedule*> schedules;
    for (const StageCosts& stage : stages) {
      plays_.emplace_back(*stage.schedule, *stage.costs, sharing);
      schedules.push_back(stage.schedule);
    }
    for (const auto& [group, by_stage] : OpsThatMeet(schedules)) {
      for (size_t k = 0; k < by_stage.begin()->second.size(); ++k) {
        meetings_.emplace_back();
        for (const auto& [stage, ops] : by_stage) {
          meetings_.back().emplace_back(stage, ops[k]);
          partners_[stage][ops[k]] = meetings_.size() - 1;
        }
      }
    }
  }

  std::vector<Timeline> Run() {
    for (size_t p = 0; p < plays_.size(); ++p) Touch(p);
    Settle();
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      if (event.version != stages_[event.stage].version) continue;
      now_ = event.time;
      plays_[event.stage].Advance(plays_[event.stage].Step());
      stages_[event.stage].at = now_;
      Touch(event.stage);
      Settle();
    }
    double seconds = now_;
    if (repeated_.times > 0) {
      seconds += repeated_.times * (to_seconds_ - from_seconds_);
      for (size_t p = 0; p < plays_.size(); ++p) plays_[p].Repeat(from_[p], to_[p], repeated_.times);
    }
    std::vector<Timeline> timelines;
    for (StagePlay& play : plays_) timelines.push_back(play.Take(seconds));
    return timelines;
  }

 private:
  using Counts = std::vector<StagePlay::Counts>;
  // The next instant at which an op of a stage ends or begins to work, unless the stage changes before.
  struct Event {
    double time;
    size_t stage;
    uint64_t version;
    bool operator>(const Event& other) const {
      return std::tie(time, stage, version) > std::tie(other.time, other.stage, other.version);
    }
  };
  struct Stage {
    double at = 0;         // until when it is played
    uint64_t version = 0;  // changes when its events do
    bool touched = false;
  };

  // Stages depend on each other only where they meet, so each is played by its own events: with hundreds of stages most
  // of them do nothing at an instant.
  void CatchUp(size_t stage) {
    if (now_ > stages_[stage].at) plays_[stage].Advance(now_ - stages_[stage].at);
    stages_[stage].at = now_;
  }
  void Touch(size_t stage) {
    if (!std::exchange(stages_[stage].touched, true)) touched_.push_back(stage);
  }

  Counts CountsNow() {
    Counts counts;
    for (size_t p = 0; p < plays_.size(); ++p) {
      CatchUp(p);
      counts.push_back(plays_[p].CountsNow());
    }
    return counts;
  }

  void Begin(size_t stage, size_t op) {
    CatchUp(stage);
    Touch(stage);
    plays_[stage].Begin(op, now_);
    if (stage > 0) return;
    if (op == repeated_.from) from_ = CountsNow(), from_seconds_ = now_;
    if (op == repeated_.to) to_ = CountsNow(), to_seconds_ = now_;
  }

  // Begins the op with those of other stages that happen together with it, if all can.
  bool BeginIfReady(size_t stage, size_t op) {
    if (!plays_[stage].Ready(op)) return false;
    const auto meeting = partners_[stage].find(op);
    if (meeting == partners_[stage].end()) {
      Begin(stage, op);
      return true;
    }
    const auto& parties = meetings_[meeting->second];
    if (!std::all_of(parties.begin(), parties.end(), [&](const auto& p) { return plays_[p.first].Ready(p.second); })) {
      return false;
    }
    for (const auto& [party, its] : parties) Begin(party, its);
    return true;
  }

  // Begins what can begin on the stages that changed and on those that they meet, and ends ops without cost at once,
  // which may let others begin. Then finds when these stages change next.
  void Settle() {
    for (size_t t = 0; t < touched_.size(); ++t) {
      const size_t p = touched_[t];
      stages_[p].touched = false;  // it may change again
      for (bool changed = true; changed;) {
        changed = false;
        for (size_t s = 0; s < kStreams; ++s) {
          plays_[p].Prepare(s);
          const std::optional<size_t> next = plays_[p].Next(s);
          if (next.has_value()) changed |= BeginIfReady(p, *next);
          changed |= plays_[p].EndIfDone(s, now_);
        }
      }
    }
    for (const size_t p : touched_) {
      stages_[p].touched = false;
      const uint64_t version = ++stages_[p].version;
      if (plays_[p].busy()) events_.push({now_ + plays_[p].Step(), p, version});
    }
    touched_.clear();
  }

  const Repeated repeated_;
  std::vector<StagePlay> plays_;
  std::vector<std::vector<std::pair<size_t, size_t>>> meetings_;  // stages and ops
  std::vector<std::map<size_t, size_t>> partners_;                // by stage and op: its meeting
  std::vector<Stage> stages_;
  std::vector<size_t> touched_;  // stages that changed at this instant
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  double now_ = 0;
  Counts from_, to_;  // when the repeated stretch began and ended
  double from_seconds_ = 0, to_seconds_ = 0;
};

}  // namespace

std::vector<Timeline> SimulateStages(const std::vector<StageCosts>& stages, Sharing sharing, const Repeated& repeated) {
  return Play(stages, sharing, repeated).Run();
}

Timeline Simulate(const Schedule& schedule, const std::vector<OpCost>& costs, Sharing sharing,
                  const Repeated& repeated) {
  return std::move(SimulateStages({{&schedule, &costs}}, sharing, repeated)[0]);
}

}  // namespace muster
