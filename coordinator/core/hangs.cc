#include "coordinator/core/hangs.h"

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "coordinator/core/exits.h"
#include "strategies/schedule/mesh.h"
#include "strategies/schedule/ops.h"

namespace muster::core {
namespace {

// How often workers report a stalled rank. The next report would come after the limit.
constexpr absl::Duration kBetweenReports = absl::Seconds(1);

}  // namespace

void Hangs::Note(JobEntry& job, const NodeEntry& node, const ObservedRank& seen, SteadyTime now) const {
  const auto [at, inserted] = job.running->progress.try_emplace(seen.key().rank());
  RunningGeneration::RankProgress& progress = at->second;
  // For a rank that was just connected it is unknown whether its process was frozen until now.
  if (inserted || !node.reported || (progress.frozen && !seen.frozen())) job.running->peers_unblocked_at = now;
  // A restarted daemon may not know yet which step its rank had reached.
  progress = {std::max(progress.step, seen.step()),
              seen.op_issued(),
              seen.op_completed(),
              absl::Seconds(std::max(0.0, seen.stalled_seconds())),
              seen.frozen(),
              seen.op(),
              seen.op_step(),
              seen.has_op_exchanges() ? std::optional(seen.op_exchanges()) : std::nullopt};
}

// How long the slowest rank may stall.
absl::Duration Hangs::LimitOf(const JobEntry& job, const RunningGeneration::RankProgress& slowest) const {
  const Timeouts timeouts = generations_->TimeoutsOf(job.record());
  const Train& train = job.record().spec().train();
  const uint64_t resumed = job.newest()->record().resumed_step();
  const Checkpoint& checkpoint = train.checkpoint();
  const bool writes = !checkpoint.path().empty() && checkpoint.has_async() && !checkpoint.async() &&
                      checkpoint.every_steps() > 0 && slowest.step % checkpoint.every_steps() == 0;
  // The first step of a process, and a checkpoint that a rank waits for, have no typical duration.
  if (slowest.step <= resumed || slowest.step >= train.steps() || writes) {
    return std::max(timeouts.start, timeouts.hang);
  }
  return HangLimit(timeouts, job.running->step_times.Slowest());
}

// Whether the rank is at an op that ends only when another stage is at its own part of it.
bool Hangs::WaitsForAnotherStage(const JobEntry& job, const RankPlacement& rank) {
  const RunningGeneration::RankProgress& progress = job.running->progress.at(rank.rank());
  if (job.running->plan == nullptr || job.running->plan->digests.size() == 1 || progress.issued == 0) return false;
  const OpKind kind = job.running->plan->op_names.at(rank.role().stage()).KindOf(progress.op());
  return kind == OpKind::kReduceScalars || kind == OpKind::kGradientNorm ||
         (kind != OpKind::kEnd && Traits(kind).edge != EdgeUse::kNone);
}

// Every stage waits for another one. That happens on GPUs, which report the earliest op that is not done: a receive
// that was posted ahead hides the op that hangs. The first stage that misses activations is right after the one at
// fault; where none does, the last stage that misses gradients is right before it.
uint32_t Hangs::StageThatAllWaitFor(const JobEntry& job, const Generation& generation, uint32_t otherwise) {
  const auto stages = static_cast<uint32_t>(job.running->plan->digests.size());
  std::optional<uint32_t> misses_activations, misses_gradients;
  for (const RankPlacement& rank : generation.ranks()) {
    if (rank.state() == RANK_STATE_EXITED) continue;
    const uint32_t stage = rank.role().stage();
    const OpKind kind = job.running->plan->op_names.at(stage).KindOf(job.running->progress.at(rank.rank()).op());
    if (kind == OpKind::kReceiveActivation) misses_activations = std::min(stage, misses_activations.value_or(stage));
    if (kind == OpKind::kReceiveGradient) misses_gradients = std::max(stage, misses_gradients.value_or(stage));
  }
  if (misses_activations.has_value()) return (*misses_activations + stages - 1) % stages;
  return misses_gradients.has_value() ? (*misses_gradients + 1) % stages : otherwise;
}

// Ranks that compute units together or share sequences exchange inside their passes, or else those with samples of
// their own (normalization over a batch): both are of one stage. What ranks of two such groups have begun does not
// compare. Exchanges of both kinds count in one order, which is the same on all ranks of an op.
std::map<uint32_t, Hangs::Entered> Hangs::EnteredOf(const JobEntry& job, const Generation& generation) {
  std::map<uint32_t, Entered> by_rank;
  const Mesh mesh = MeshOf(generation);
  std::map<std::tuple<uint32_t, uint64_t, uint64_t, uint64_t>, std::vector<uint32_t>> together;
  for (const RankPlacement& rank : generation.ranks()) {
    const auto found = job.running->progress.find(rank.rank());
    if (rank.state() == RANK_STATE_EXITED || found == job.running->progress.end()) continue;
    const RunningGeneration::RankProgress& p = found->second;
    if (!p.exchanges_in_op()) continue;
    Coordinate group = CoordinateOf(mesh, rank.rank());
    if (mesh.tensor > 1 || mesh.context > 1) {
      const uint32_t first = SampleRankAt(mesh, group) * mesh.context;
      group.replica = first / mesh.shard, group.shard = first % mesh.shard, group.tensor = 0;
    } else {
      group.replica = group.shard = 0;
    }
    together[{RankAt(mesh, group), p.step, p.issued, p.completed}].push_back(rank.rank());
  }
  for (const auto& [key, ranks] : together) {
    Entered all{.least = *job.running->progress.at(ranks[0]).exchanges, .first = ranks[0]};
    all.most = all.least;
    for (const uint32_t rank : ranks) {
      const uint64_t begun = *job.running->progress.at(rank).exchanges;
      all.least = std::min(all.least, begun);
      if (begun > all.most) all.most = begun, all.first = rank;
    }
    for (const uint32_t rank : ranks) by_rank[rank] = all;
  }
  return by_rank;
}

// A rank that hangs makes all others wait: they stall in their collectives, or idle between two steps. The slowest rank
// is at fault. The others may also have waited for a rank whose process was frozen; when it resumes, their stall time
// restarts. While a node is silent its ranks' progress is unknown, and the node's own time-out comes first. The ops of
// two stages of a pipeline do not compare by their numbers, so ranks that wait for another stage come last. Ranks that
// compute units together are at the same op: the slowest of them has begun fewer exchanges inside it than another one.
void Hangs::Check(JobEntry& job, uint32_t reporter, Transaction& transaction) {
  const GenerationMachine& generation = *job.newest();
  if (generation.state() != GENERATION_STATE_RUNNING ||
      job.running->progress.at(reporter).stalled <= options_->timeouts.detection) {
    return;
  }
  const RankPlacement* culprit = nullptr;
  const std::map<uint32_t, Entered> entered = EnteredOf(job, generation.record());
  const auto place = [&](const RankPlacement& rank) {
    const RunningGeneration::RankProgress& p = job.running->progress.at(rank.rank());
    const auto its = entered.find(rank.rank());
    const bool lags = its != entered.end() && *p.exchanges == its->second.least && *p.exchanges < its->second.most;
    return std::tuple(!p.frozen, p.step, WaitsForAnotherStage(job, rank), p.issued, p.completed, !lags, rank.rank());
  };
  for (const RankPlacement& rank : generation.record().ranks()) {
    if (rank.state() == RANK_STATE_EXITED) continue;
    const NodeEntry& node = records_->nodes.at(NodeId(rank.node()));
    if (node.machine.state() != NODE_STATE_LIVE || !node.reported || !job.running->progress.contains(rank.rank()))
      return;
    if (culprit == nullptr || place(rank) < place(*culprit)) culprit = &rank;
  }
  if (culprit == nullptr) return;
  if (!job.running->progress.at(culprit->rank()).frozen && WaitsForAnotherStage(job, *culprit)) {
    const uint32_t stage = StageThatAllWaitFor(job, generation.record(), culprit->role().stage());
    const RankPlacement* of_stage = nullptr;
    for (const RankPlacement& rank : generation.record().ranks()) {
      if (rank.state() == RANK_STATE_EXITED || rank.role().stage() != stage) continue;
      if (of_stage == nullptr || place(rank) < place(*of_stage)) of_stage = &rank;
    }
    if (of_stage != nullptr) culprit = of_stage;
  }
  const RunningGeneration::RankProgress progress = job.running->progress.at(culprit->rank());
  const absl::Duration stalled = std::min(progress.stalled, transaction.now.steady - job.running->peers_unblocked_at);
  if (stalled > LimitOf(job, progress) - kBetweenReports) Fail(job, *culprit, progress, transaction);
}

// ", inside the unit (...)": how far the rank has come in its op. "": it may not have begun it.
std::string Hangs::WhereInside(uint64_t begun, const Entered& all) {
  if (all.most == 0) return "";
  const std::string own = begun == 0 ? "no exchange" : absl::StrCat("exchange ", begun);
  return absl::StrCat(", inside the unit (it has entered ", own,
                      begun < all.most
                          ? absl::StrCat("; rank ", all.first, " has entered exchange ", all.most, " and waits for it)")
                          : " and no later one)");
}

void Hangs::Fail(JobEntry& job, const RankPlacement& culprit, const RunningGeneration::RankProgress& progress,
                 Transaction& transaction) {
  const Generation& generation = job.newest()->record();
  const std::string op =
      job.running->plan == nullptr ? "" : job.running->plan->op_names.at(culprit.role().stage()).NameOf(progress.op());
  Failure failure;
  failure.set_generation(generation.number());
  failure.set_rank(culprit.rank());
  failure.set_node(culprit.node());
  failure.set_step(progress.step + 1);
  failure.set_op(op);
  failure.set_detected_seconds(absl::ToDoubleSeconds(progress.stalled));
  RankExit& exit = *failure.mutable_exit();
  exit.set_cause(RankExit::HUNG);
  const std::map<uint32_t, Entered> entered = EnteredOf(job, generation);
  const auto its = entered.find(culprit.rank());
  const std::string exchange = op.empty() || its == entered.end() ? "" : WhereInside(*progress.exchanges, its->second);
  exit.set_message(absl::StrCat(RankName(generation, culprit.rank()), " on ", culprit.node(), " hung in step ",
                                failure.step(), op.empty() ? "" : " at ", op, exchange, ": no progress for ",
                                absl::ToInt64Seconds(progress.stalled), " s"));
  failure.set_hint(
      absl::StrCat("a process that was stopped, a device or a network that is stuck: on the node dmesg and "
                   "nvidia-smi; its output: muster logs ",
                   job.record().id(), " --rank ", culprit.rank()));
  const std::string why = exit.message();
  transaction.AddEvent(&job, generation.number(), culprit.node(), "rank.hung", why);
  transaction.Blame(NodeId(culprit.node()), job.id(), why);
  *job.machine.fields().mutable_failure() = std::move(failure);
  generations_->Stop(job, END_REASON_FAILED, STOP_INTENT_REQUEUE, why, transaction);
}

}  // namespace muster::core
