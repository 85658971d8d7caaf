// A Core with its store and a manual clock, for tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/event_kinds.h"
#include "coordinator/core/core.h"
#include "coordinator/spec/resolve.h"

namespace muster::core {

inline constexpr uint64_t kGiB = uint64_t{1} << 30;

inline JobSpec Spec(const std::string& name, int priority = 0, uint32_t max_restarts = 3, uint64_t steps = 100) {
  JobSpec spec;
  spec.set_name(name);
  spec.set_priority(priority);
  spec.set_max_restarts(max_restarts);
  Train& train = *spec.mutable_train();
  train.mutable_model()->mutable_gpt2()->set_size(GPT2_SIZE_TINY);
  train.mutable_data()->set_tokens("/t.bin");
  train.mutable_checkpoint()->set_path("/c/{job}");
  train.set_steps(steps);
  EXPECT_TRUE(spec::Resolve({}, spec).empty());
  return spec;
}

inline Node Hello(const std::string& id, int slots, const std::string& incarnation = "i1") {
  Node node;
  node.set_id(id);
  node.set_hostname(id + ".host");
  node.set_boot_id("boot");
  node.set_incarnation(incarnation);
  for (int i = 0; i < slots; ++i) {
    node.add_slots()->set_index(i);
    node.mutable_slots(i)->set_device(DEVICE_CPU);
  }
  return node;
}

// A job of several ranks. It needs no real strategy, since tests only compare the names of its table and schedule.
inline JobSpec Gang(const std::string& name, uint32_t ranks, uint32_t max_restarts = 3) {
  JobSpec spec = Spec(name, 0, max_restarts);
  spec.mutable_resources()->set_ranks(ranks);
  return spec;
}

inline JobSpec Limited(const std::string& name, const std::string& time_limit, uint32_t ranks = 1) {
  JobSpec spec = Gang(name, ranks);
  spec.set_time_limit(time_limit);
  return spec;
}

// As the pool of the real coordinator plans.
inline absl::StatusOr<Planned> PlanByStrategies(const JobSpec& spec, const Slots& slots) {
  const absl::StatusOr<JobPlan> plan = PlanJob(spec, slots, HardwareFor(slots));
  if (!plan.ok()) return plan.status();
  return PlannedOf(*plan);
}

// With what makes the plans that the core asks for.
struct WorldOptions : Options {
  std::function<absl::StatusOr<Planned>(const JobSpec& spec, const Slots& slots)> planner = PlanByStrategies;
};

// "Release u0" to "Release u19".
inline OpNames AnyOps() {
  Inventory inventory;
  Schedule schedule;
  for (int32_t u = 0; u < 20; ++u) {
    inventory.add_units()->set_name(absl::StrCat("u", u));
    schedule.ops.push_back({.kind = OpKind::kRelease, .unit = u, .unit_end = u + 1});
  }
  return OpNames(schedule, inventory);
}

// Four microbatches forward and backward through one unit a stage, with what the stage receives and sends, each receive
// one pass ahead; then the update. Stage 1 of 3: "ReceiveActivation u0 m0", "ReceiveActivation u0 m1", "Forward u0 m0",
// "SendActivation u0 m0", ...
inline OpNames AnyStage(uint32_t stage, uint32_t stages) {
  Inventory inventory;
  inventory.add_units()->set_name("u0");
  Schedule schedule;
  const auto add = [&](OpKind kind, int32_t microbatch) {
    schedule.ops.push_back({.kind = kind, .unit = 0, .unit_end = 1, .microbatch = microbatch});
  };
  constexpr int32_t kMicrobatches = 4;
  const bool first = stage == 0, last = stage + 1 == stages;
  const auto receive = [&](int32_t k) {
    if (k < kMicrobatches && !first) add(OpKind::kReceiveActivation, k);
    if (k >= kMicrobatches && k < 2 * kMicrobatches && !last) add(OpKind::kReceiveGradient, k - kMicrobatches);
  };
  receive(0);
  for (int32_t k = 0; k < 2 * kMicrobatches; ++k) {
    const bool forward = k < kMicrobatches;
    receive(k + 1);
    add(forward ? OpKind::kForward : OpKind::kBackward, k % kMicrobatches);
    if (forward && !last) add(OpKind::kSendActivation, k);
    if (!forward && !first) add(OpKind::kSendGradient, k - kMicrobatches);
  }
  schedule.ops.push_back({.kind = OpKind::kGradientNorm});
  schedule.ops.push_back({.kind = OpKind::kOptimizerStep});
  return OpNames(schedule, inventory);
}

inline WorldOptions AnyWorld() {
  WorldOptions options;
  options.planner = [](const JobSpec& spec, const Slots& slots) -> absl::StatusOr<Planned> {
    if (absl::StartsWith(spec.name(), "bad")) return absl::UnimplementedError("strategy: not in this build");
    Planned planned;
    planned.table_sha256 = absl::StrCat("table of ", spec.name());
    const auto ranks = static_cast<uint32_t>(slots.ranks.size());
    const uint32_t stages = StagesOf(spec), each = ranks / stages, tensor = TensorRanksOf(spec),  // not both
        context = ContextRanksOf(spec);
    for (uint32_t stage = 0; stage < stages; ++stage) {
      planned.digests.push_back(absl::StrCat("digest ", stage));
      planned.op_names.push_back(stages == 1 ? AnyOps() : AnyStage(stage, stages));
    }
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      RankRole& role = planned.roles.emplace_back();
      role.set_rank(rank);
      if (stages > 1) role.set_shard(rank), role.set_stage(rank / each), role.set_shard_in_stage(rank % each);
      if (tensor > 1) role.set_shard(rank), role.set_tensor(rank % tensor), role.set_shard_in_stage(rank / tensor);
      role.set_context(rank / tensor % context);
    }
    return planned;
  };
  return options;
}

// A Core with its store: every outcome is applied to the rows as the shell does.
class World {
 public:
  explicit World(WorldOptions o = {}) : options(std::move(o)) {
    core = Core::Recover(options, {}, clock.Read()).value();
  }

  // Followed by the tick that ends the shell's iteration, if one is due, and by the plans that the core asks for, each
  // in an iteration of its own, unless `held`.
  Outcome Do(const Event& event) {
    Outcome out = Turn(event);
    for (int turns = 0; !held && !requested.empty(); ++turns) {
      EXPECT_LT(turns, 1000) << "plans are asked for again and again";
      if (turns == 1000) break;
      const RequestPlan request = requested.begin()->second;
      requested.erase(requested.begin());
      Append(Turn(PlanReady{request.key, Make(request)}), out);
    }
    return out;
  }
  Outcome Turn(const Event& event) {
    Outcome out = Alone(event);
    if (std::holds_alternative<Tick>(event) || !IsTickDue()) return out;
    Append(Alone(Tick{}), out);
    return out;
  }
  static void Append(Outcome more, Outcome& out) {
    std::move(more.rows.begin(), more.rows.end(), std::back_inserter(out.rows));
    std::move(more.events.begin(), more.events.end(), std::back_inserter(out.events));
    std::move(more.actions.begin(), more.actions.end(), std::back_inserter(out.actions));
  }
  absl::StatusOr<PlannedPtr> Make(const RequestPlan& request) const {
    absl::StatusOr<Planned> planned = options.planner(request.spec, request.slots);
    if (!planned.ok()) return planned.status();
    return std::make_shared<const Planned>(*std::move(planned));
  }
  bool IsTickDue() const {
    const std::optional<SteadyTime> tick = core->NextTick();
    return tick.has_value() && *tick <= clock.Read().steady;
  }
  Outcome Alone(const Event& event) {
    Outcome out = core->Handle(event, clock.Read());
    EXPECT_TRUE(out.status.ok() || (out.rows.empty() && out.events.empty() && out.actions.empty()))
        << "a refused event changes nothing";
    EXPECT_LE(out.rows.size() + out.events.size(), 100u);
    for (const RowChange& row : out.rows) {
      if (row.value.has_value())
        rows[row.key] = *row.value;
      else
        rows.erase(row.key);
    }
    for (const StateEvent& e : out.events) {
      EXPECT_TRUE(IsEventKind(e.kind())) << e.kind() << " is missing in event_kinds.h";
      events.push_back(e.kind());
    }
    for (const Action& action : out.actions) {
      if (const auto* cancel = std::get_if<CancelPlan>(&action)) requested.erase(cancel->key);
      if (const auto* request = std::get_if<RequestPlan>(&action)) requested.emplace(request->key, *request);
      if (const auto* again = std::get_if<AskSyncAgain>(&action)) asked_again.push_back(*again);
    }
    return out;
  }
  JobId Submit(const JobSpec& spec) {
    const std::string n = absl::StrCat(++requests);
    return Do(SubmitJob{"r" + n, "me", spec, "s" + n}).job;
  }
  void Restart() {
    std::vector<Row> all;
    for (const auto& [key, value] : rows) all.push_back({key, value});
    auto recovered = Core::Recover(options, all, clock.Read());
    ASSERT_TRUE(recovered.ok()) << recovered.status();
    core = *std::move(recovered);
    requested.clear();
    if (IsTickDue()) Do(Tick{});
  }
  Job Get(const JobId& id) { return core->GetJob(id).value(); }
  JobState State(const JobId& id) { return Get(id).state(); }
  Generation Newest(const JobId& id) { return core->ListGenerations(id).at(0); }

  // A node reconnects and reports no ranks.
  Outcome Return(const Node& node) {
    const Outcome out = Do(NodeConnected{node});
    EXPECT_TRUE(out.status.ok()) << out.status;
    return ReportNothing(node.id(), node.incarnation());
  }
  Outcome ReportNothing(const std::string& node, const std::string& incarnation = "i1") {
    NodeObserved nothing{NodeId(node), Incarnation(incarnation), {}};
    nothing.observed.set_full(true);
    return Do(nothing);
  }

  // A worker's report about a rank of the job's newest generation.
  Outcome Report(const JobId& id, RankState state, RankExit::Cause cause = RankExit::CAUSE_UNSPECIFIED,
                 bool full = false, uint32_t number = 0) {
    const Generation g = Newest(id);
    const NodeId node(g.ranks(static_cast<int>(number)).node());
    NodeObserved event{node, Incarnation(core->GetNode(node)->incarnation()), {}};
    event.observed.set_full(full);
    ObservedRank& rank = *event.observed.add_ranks();
    rank.mutable_key()->set_job(id.value());
    rank.mutable_key()->set_generation(g.number());
    rank.mutable_key()->set_rank(number);
    rank.set_state(state);
    rank.mutable_exit()->set_cause(cause);
    if (cause == RankExit::FAILED) rank.mutable_exit()->set_message("rank 0 was killed by signal 9 (SIGKILL)");
    return Do(event);
  }
  // A report with the figures of the rank's progress page; `stalled`: seconds without progress.
  Outcome RankProgress(const JobId& id, uint32_t number, uint64_t step, uint64_t issued, uint64_t completed,
                       double stalled, bool frozen = false, uint64_t op = 0, uint64_t op_step = 0,
                       std::optional<uint64_t> exchanges = 0) {
    const Generation g = Newest(id);
    const NodeId node(g.ranks(static_cast<int>(number)).node());
    NodeObserved event{node, Incarnation(core->GetNode(node)->incarnation()), {}};
    ObservedRank& rank = *event.observed.add_ranks();
    rank.mutable_key()->set_job(id.value());
    rank.mutable_key()->set_generation(g.number());
    rank.mutable_key()->set_rank(number);
    rank.set_state(RANK_STATE_RUNNING);
    rank.set_step(step);
    rank.set_op_issued(issued);
    rank.set_op_completed(completed);
    rank.set_stalled_seconds(stalled);
    rank.set_frozen(frozen);
    rank.set_op(op);
    rank.set_op_step(op_step);
    if (exchanges.has_value()) rank.set_op_exchanges(*exchanges);
    return Do(event);
  }
  Outcome Checkpoint(const JobId& id, uint64_t step, uint64_t generation = 0) {
    RankRecord event{{id, generation == 0 ? Newest(id).number() : generation, 0}, {}};
    event.record.mutable_checkpoint()->set_step(step);
    event.record.mutable_checkpoint()->set_directory(absl::StrCat("step-", step));
    return Do(event);
  }
  Outcome Begin(const JobId& id, uint64_t resumed_step) {
    RankRecord event{{id, Newest(id).number(), 0}, {}};
    event.record.mutable_running()->set_resumed_step(resumed_step);
    return Do(event);
  }
  void Finish(const JobId& id) {
    RankRecord event{{id, Newest(id).number(), 0}, {}};
    event.record.mutable_finished()->set_step(100);
    EXPECT_TRUE(Do(event).status.ok());
    Report(id, RANK_STATE_EXITED, RankExit::COMPLETED);
  }
  Outcome ReportRank(const JobId& id, uint32_t rank, RankState state,
                     RankExit::Cause cause = RankExit::CAUSE_UNSPECIFIED) {
    return Report(id, state, cause, false, rank);
  }
  // Rank 0 failed with that exit code, as its shim reports it.
  Outcome Fail(const JobId& id, int code, const std::string& message = "") {
    const Generation g = Newest(id);
    const NodeId node(g.ranks(0).node());
    NodeObserved event{node, Incarnation(core->GetNode(node)->incarnation()), {}};
    ObservedRank& rank = *event.observed.add_ranks();
    rank.mutable_key()->set_job(id.value());
    rank.mutable_key()->set_generation(g.number());
    rank.set_state(RANK_STATE_EXITED);
    rank.mutable_exit()->set_cause(RankExit::FAILED);
    rank.mutable_exit()->set_exit_code(code);
    rank.mutable_exit()->set_message(absl::StrCat("rank 0 exited with code ", code, message));
    return Do(event);
  }
  void FinishRank(const JobId& id, uint32_t rank) {
    RankRecord event{{id, Newest(id).number(), rank}, {}};
    event.record.mutable_finished()->set_step(100);
    EXPECT_TRUE(Do(event).status.ok());
    ReportRank(id, rank, RANK_STATE_EXITED, RankExit::COMPLETED);
  }
  // All ranks of the newest generation run.
  void RunAll(const JobId& id) {
    for (int rank = 0; rank < Newest(id).ranks_size(); ++rank) {
      ReportRank(id, static_cast<uint32_t>(rank), RANK_STATE_RUNNING);
    }
    ASSERT_EQ(State(id), JOB_STATE_RUNNING) << Get(id).reason();
  }
  // All ranks of the newest generation that still run exit.
  void EndAll(const JobId& id, RankExit::Cause cause = RankExit::STOPPED) {
    const Generation all = Newest(id);  // its end may start the next one
    for (int rank = 0; rank < all.ranks_size(); ++rank) {
      if (Newest(id).number() != all.number() || Newest(id).ranks(rank).state() == RANK_STATE_EXITED) continue;
      ReportRank(id, static_cast<uint32_t>(rank), RANK_STATE_EXITED, cause);
    }
  }
  // Time passes, with a tick whenever one is due, as in the shell. Returns how many there were.
  int Pass(absl::Duration time) {
    const SteadyTime end = clock.Read().steady + time;
    int ticks = 0;
    for (;; ++ticks) {
      EXPECT_LT(ticks, 100'000) << "ticks are due again and again";
      const std::optional<SteadyTime> next = core->NextTick();
      if (!next.has_value() || *next > end || ticks == 100'000) break;
      clock.Advance(std::max(*next - clock.Read().steady, absl::ZeroDuration()));
      Do(Tick{});
    }
    clock.Advance(end - clock.Read().steady);
    return ticks;
  }
  // Time passes with a single tick, at its end.
  void TickAfter(absl::Duration time) {
    clock.Advance(time);
    Do(Tick{});
  }
  void PassBackoff() { TickAfter(absl::Minutes(2)); }

  WorldOptions options;
  std::map<std::string, RequestPlan> requested;  // by key
  bool held = false;                             // plans are not made
  std::vector<AskSyncAgain> asked_again;
  FakeClock clock;
  std::map<std::string, std::string> rows;
  std::vector<std::string> events;
  std::unique_ptr<Core> core;
  int requests = 0;
};

}  // namespace muster::core
