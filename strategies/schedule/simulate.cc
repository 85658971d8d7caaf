#include "strategies/schedule/simulate.h"

#include <algorithm>
#include <limits>
#include <optional>

namespace muster {
namespace {

class Play {
 public:
  Play(const Schedule& schedule, const std::vector<OpCost>& costs, Sharing sharing, const Repeated& repeated)
      : schedule_(schedule), costs_(costs), sharing_(sharing), repeated_(repeated), ended_(schedule.ops.size()) {
    timeline_.ops.resize(schedule.ops.size());
    for (size_t i = 0; i < schedule.ops.size(); ++i) {
      streams_[static_cast<size_t>(schedule.ops[i].stream)].queue.push_back(static_cast<uint32_t>(i));
    }
  }

  Timeline Run() {
    while (BeginWhatCan()) Advance();
    timeline_.seconds = now_;
    if (repeated_.times > 0) Repeat();
    return std::move(timeline_);
  }

 private:
  struct Lane {
    std::vector<uint32_t> queue;  // its ops, in order
    size_t next = 0;
    std::optional<size_t> op;  // in progress
    double latency = 0;        // remaining
    double work = 0;           // remaining
  };

  // What the timeline counts, up to now.
  struct Counts {
    double seconds = 0, communication = 0, exposed = 0;
    std::array<double, kStreams> busy{};
  };
  Counts CountsNow() const { return {now_, timeline_.communication, timeline_.exposed, timeline_.busy}; }

  void Repeat() {
    timeline_.seconds += repeated_.times * (to_.seconds - from_.seconds);
    timeline_.communication += repeated_.times * (to_.communication - from_.communication);
    timeline_.exposed += repeated_.times * (to_.exposed - from_.exposed);
    for (size_t s = 0; s < kStreams; ++s) timeline_.busy[s] += repeated_.times * (to_.busy[s] - from_.busy[s]);
  }

  bool Ready(size_t op) const {
    const Waits& waits = schedule_.ops[op].waits;
    return std::all_of(waits.begin(), waits.end(), [this](int32_t wait) { return ended_[wait]; });
  }

  // Ends ops without cost at once, which may let others begin. False: no op is in progress any more.
  bool BeginWhatCan() {
    bool any = false;
    for (bool changed = true; changed;) {
      changed = any = false;
      for (Lane& lane : streams_) {
        if (!lane.op.has_value() && lane.next < lane.queue.size() && Ready(lane.queue[lane.next])) {
          lane.op = lane.queue[lane.next++];
          lane.latency = costs_[*lane.op].latency, lane.work = costs_[*lane.op].work;
          timeline_.ops[*lane.op].begin = now_;
          if (*lane.op == repeated_.from) from_ = CountsNow();
          if (*lane.op == repeated_.to) to_ = CountsNow();
          changed = true;
        }
        if (lane.op.has_value() && lane.latency <= 0 && lane.work <= 0) End(lane), changed = true;
        any |= lane.op.has_value();
      }
    }
    return any;
  }

  void End(Lane& lane) {
    timeline_.ops[*lane.op].end = now_;
    ended_[*lane.op] = true;
    lane.op.reset();
  }

  bool Shares(const Lane& lane) const {
    if (!lane.op.has_value() || lane.latency > 0) return false;
    const Op& op = schedule_.ops[*lane.op];
    return sharing_ == Sharing::kProcessor || (op.group >= 0 && op.stream != Stream::kCompute);
  }

  // Advances to the next instant at which an op ends or begins to work.
  void Advance() {
    const double sharers = static_cast<double>(
        std::count_if(streams_.begin(), streams_.end(), [this](const Lane& lane) { return Shares(lane); }));
    const auto left = [&](const Lane& lane) {
      if (lane.latency > 0) return lane.latency;
      return Shares(lane) ? lane.work * sharers : lane.work;
    };
    double step = std::numeric_limits<double>::infinity();
    for (const Lane& lane : streams_) {
      if (lane.op.has_value()) step = std::min(step, left(lane));
    }
    Count(step);
    // Compute the sharing before anything changes.
    std::array<bool, kStreams> shares{}, done{};
    for (size_t s = 0; s < kStreams; ++s) {
      shares[s] = Shares(streams_[s]);
      done[s] = streams_[s].op.has_value() && left(streams_[s]) <= step;
    }
    for (size_t s = 0; s < kStreams; ++s) {
      Lane& lane = streams_[s];
      if (!lane.op.has_value()) continue;
      double& rest = lane.latency > 0 ? lane.latency : lane.work;
      rest = done[s] ? 0 : rest - (shares[s] ? step / sharers : step);
    }
    now_ += step;
  }

  void Count(double step) {
    bool communicates = false;
    for (size_t s = 0; s < kStreams; ++s) {
      if (!streams_[s].op.has_value()) continue;
      timeline_.busy[s] += step;
      communicates |= s != static_cast<size_t>(Stream::kCompute);
    }
    if (!communicates) return;
    timeline_.communication += step;
    if (!streams_[static_cast<size_t>(Stream::kCompute)].op.has_value()) timeline_.exposed += step;
  }

  const Schedule& schedule_;
  const std::vector<OpCost>& costs_;
  const Sharing sharing_;
  const Repeated repeated_;
  std::vector<bool> ended_;
  std::array<Lane, kStreams> streams_;
  double now_ = 0;
  Counts from_, to_;  // when the repeated stretch began and ended
  Timeline timeline_;
};

}  // namespace

Timeline Simulate(const Schedule& schedule, const std::vector<OpCost>& costs, Sharing sharing,
                  const Repeated& repeated) {
  return Play(schedule, costs, sharing, repeated).Run();
}

}  // namespace muster
