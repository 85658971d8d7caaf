#include "coordinator/simulate/judge.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "coordinator/simulate/accounts.h"
#include "coordinator/simulate/hash.h"
#include "strategies/schedule/mesh.h"

namespace muster::simulate {
namespace {

int Order(GenerationState state) { return static_cast<int>(state); }

}  // namespace

void Judge::Fail(const std::string& invariant, const std::string& what) {
  if (failure_.empty()) failure_ = absl::StrCat(invariant, ": ", what);
}

void Judge::Committed(const std::vector<store::ChangeGroup>& groups) {
  for (const store::ChangeGroup& group : groups) {
    // One event may free a slot and assign it again.
    std::vector<Generation> claims;
    for (const store::Change& change : group) {
      if (!change.value.has_value() || !absl::StartsWith(change.key, "generation/")) {
        Changed(change);
        continue;
      }
      Generation generation;
      if (!generation.ParseFromString(*change.value)) return Fail("rows", "a generation that does not parse");
      if (generation.state() == GENERATION_STATE_ENDED) {
        GenerationChanged(std::move(generation));
      } else {
        claims.push_back(std::move(generation));
      }
    }
    for (Generation& generation : claims) GenerationChanged(std::move(generation));
    for (const store::Change& change : group) {
      AddToHash(change.key, fingerprint_);
      AddToHash(change.value.value_or(""), fingerprint_);
      if (decisions_.has_value()) AddDecision(change);
    }
  }
}

void Judge::Changed(const store::Change& change) {
  if (absl::StartsWith(change.key, "event/")) return EventAdded(change.key, change.value);
  if (!change.value.has_value()) return RowDeleted(change.key);
  if (absl::StartsWith(change.key, "project/")) {
    books_.projects[change.key.substr(8)].ParseFromString(*change.value);
  }
  if (absl::StartsWith(change.key, "reservation/")) {
    books_.reservations[change.key.substr(12)].ParseFromString(*change.value);
  }
  if (absl::StartsWith(change.key, "run/")) return RunChanged(change.key.substr(4), *change.value);
  if (absl::StartsWith(change.key, "job/")) return JobChanged(JobId(change.key.substr(4)), *change.value);
}

void Judge::EventAdded(const std::string& key, const std::optional<std::string>& value) {
  uint64_t sequence = 0;
  if (!absl::SimpleAtoi(key.substr(6), &sequence)) return Fail("stream", absl::StrCat("an invalid key ", key));
  if (!value.has_value()) {
    const auto found = std::lower_bound(books_.stream.begin(), books_.stream.end(), sequence,
                                        [](const Books::StreamEvent& event, uint64_t s) { return event.sequence < s; });
    if (found == books_.stream.end() || found->sequence != sequence || !books_.jobs[found->job].deleted) {
      Fail("stream", absl::StrCat("event ", sequence, " was removed, but its job was not"));
    }
    return;
  }
  if (!books_.stream.empty() && sequence <= books_.stream.back().sequence) {
    return Fail("stream", absl::StrCat("event ", sequence, " was stored after ", books_.stream.back().sequence));
  }
  StateEvent event;
  if (!event.ParseFromString(*value)) return Fail("stream", "an event that does not parse");
  books_.stream.push_back({sequence, JobId(event.job()), *value});
}

void Judge::JobChanged(const JobId& id, const std::string& bytes) {
  Job job;
  if (!job.ParseFromString(bytes)) return Fail("rows", absl::StrCat(id.value(), " does not parse"));
  JobAccount& account = books_.jobs[id];
  if (account.deleted) return Fail("jobs", absl::StrCat(id.value(), " is back after its deletion"));
  if (account.state == JOB_STATE_UNSPECIFIED) {
    const auto [known, fresh] = books_.requests.emplace(std::pair(job.owner(), job.request_id()), id);
    // A deleted job's request id is forgotten with it.
    if (!fresh && !books_.jobs[known->second].deleted)
      return Fail("no job doubled", absl::StrCat(id.value(), " is ", known->second.value(), " again"));
    known->second = id;
    account.request = job.request_id();
    account.sequence = job.sequence();
    account.steps = job.spec().train().steps();
    account.folder = job.spec().train().checkpoint().path();
    for (const auto& [other, theirs] : books_.jobs) {
      if (other == id || theirs.deleted || theirs.folder != account.folder) continue;
      return Fail("a folder has one owner",
                  absl::StrCat(account.folder, " of ", id.value(), " is ", other.value(), "'s"));
    }
    account.max_restarts = job.spec().max_restarts();
    account.owner = job.owner();
    account.project = job.project();
    for (const std::string& before : job.spec().after()) account.after.emplace_back(before);
    absl::ParseDuration(job.spec().time_limit(), &account.time_limit);
    account.resources = job.spec().resources();
    account.together = std::max(1u, job.spec().train().parallel().tensor());
    account.multiple = account.together * std::max(1u, job.spec().train().parallel().context());
    account.submitted_at = clock_->Read().steady;
    account.coordinator_starts = coordinator_starts_;
  }
  if (account.request != job.request_id() || account.sequence != job.sequence()) {
    return Fail("jobs", absl::StrCat(id.value(), " has become another one"));
  }
  if (Terminal(account.state) && job.state() != account.state) {
    return Fail("jobs", absl::StrCat(id.value(), " had ended, and is ", JobState_Name(job.state())));
  }
  if (job.restarts() < account.restarts || job.progress_step() < account.progress_step) {
    return Fail("nothing goes back", absl::StrCat(id.value(), "'s restarts or progress"));
  }
  account.reservation = job.reservation();
  account.held_seconds = job.held_seconds();
  account.restarts = job.restarts();
  account.progress_step = job.progress_step();
  CheckTimeLimit(id, job, account);
  CheckFailsWith(id, job, account);
  account.refused |= job.failure().exit().cause() == RankExit::REFUSED;
  if (job.state() == JOB_STATE_FAILED && job.restarts_without_progress() < account.max_restarts && !account.refused &&
      !account.timed_out && !account.failed_with_one_before) {
    return Fail("restarts", absl::StrCat(id.value(), " failed after ", job.restarts_without_progress(), " restarts"));
  }
  if (job.state() == JOB_STATE_FAILED && job.failure().exit().of_node() && job.refused_by_size() < 2 &&
      !absl::StrContains(job.reason(), "no other node can run it")) {
    return Fail("one bad node fails no job", absl::StrCat(id.value(), " failed: ", job.reason()));
  }
  const uint64_t newest = account.generations.empty() ? 0 : account.generations.rbegin()->first;
  // The generation's own row comes after the job's in the same group.
  if (job.generation() < newest || (job.generation() > newest + 1 && restores_ == 0)) {
    return Fail("generations", absl::StrCat(id.value(), " went from ", newest, " to ", job.generation()));
  }
  PublishedIn(id, job, account);
  TimeBreakdownChanged(id, job.time_breakdown(), account);
  const Failure& failure = job.failure();
  if (failure.exit().cause() == RankExit::HUNG && failure.generation() > account.hung_generation) {
    account.hung_generation = failure.generation();
    CheckHangReport(id, failure, account.generations[failure.generation()]);
  }
  if (!Terminal(account.state) && Terminal(job.state())) account.ended_at = clock_->Read().steady;
  account.state = job.state();
  account.failure = failure;
}

// The rank at fault was frozen for long enough, and no frozen rank whose page was seen to show less progress is
// overlooked. If a process has ended, its exit is about to be reported.
void Judge::CheckHangReport(const JobId& id, const Failure& failure, const Generation& generation) {
  constexpr absl::Duration kLongEnough = absl::Seconds(20);  // a resumed rank's page changes with its next step
  bool any_frozen = false;
  for (const RankPlacement& rank : generation.ranks()) {
    const Ran key{{id, generation.number(), rank.rank()}, NameOf(id, generation.number())};
    if (!running_.contains(key)) return;
    const auto found = frozen_.find(key);
    if (found == frozen_.end()) continue;
    const FrozenRank& frozen = found->second;
    const bool counts = frozen.frozen || frozen.longest >= kLongEnough;
    if (counts && (rank.rank() == failure.rank() || !frozen.seen)) return;
    any_frozen |= counts;
  }
  Fail("a hang is a hang", absl::StrCat(failure.exit().message(), any_frozen ? ", but another rank is frozen"
                                                                             : ", but no rank of it was frozen"));
}

void Judge::CheckCulprit(const std::string& name, const Generation& generation, const JobAccount& account) {
  const Failure& failure = account.failure;
  if (failure.generation() != generation.number() || !failure.exit().of_other_rank()) return;
  for (const RankPlacement& rank : generation.ranks()) {
    if (rank.exit().cause() != RankExit::FAILED || rank.exit().of_other_rank()) continue;
    return Fail("faults are those of who failed",
                absl::StrCat(name, " names rank ", failure.rank(), ", which failed for ", "another one, and not rank ",
                             rank.rank()));
  }
}

void Judge::TimeBreakdownChanged(const JobId& id, const TimeBreakdown& now, JobAccount& account) {
  const TimeBreakdown& before = account.time_breakdown;
  for (const auto& label : kLabels) {
    if ((now.*label)() + 1e-6 < (before.*label)()) Fail("no label of a time_breakdown shrinks", id.value());
  }
  const double passed = absl::ToDoubleSeconds(clock_->Read().steady - account.submitted_at);
  if (Sum(now) > passed + 1e-3) {
    Fail("each moment counts once", absl::StrCat(id.value(), " counts ", Sum(now), " s of ", passed));
  }
  account.time_breakdown = now;
}

void Judge::Frozen(const Ran& rank, bool seen) {
  FrozenRank& frozen = frozen_[rank];
  frozen.frozen = true;
  frozen.seen = seen;
  frozen.since = clock_->Read().steady;
}

void Judge::Thawed(const Ran& rank) {
  FrozenRank& frozen = frozen_[rank];
  frozen.frozen = false;
  frozen.longest = std::max(frozen.longest, clock_->Read().steady - frozen.since);
}

void Judge::PublishedIn(const JobId& id, const Job& job, JobAccount& account) {
  // With its first checkpoint, a generation replaces those that its ranks have skipped. A restored store may have lost
  // what they reported of that, and then it may go on listing them.
  const auto is_listed = [&](const PublishedCheckpoint& known) {
    return std::any_of(job.checkpoints().begin(), job.checkpoints().end(), [&](const PublishedCheckpoint& listed) {
      return listed.step() == known.step() && listed.generation() == known.generation();
    });
  };
  if (!job.checkpoints().empty() && job.checkpoints().rbegin()->generation() == job.generation()) {
    const auto resumed = resumed_.find({id, NameOf(id, job.generation())});
    std::erase_if(account.published, [&](const auto& known) {
      return known.second.generation() < job.generation() && resumed != resumed_.end() &&
             known.first > resumed->second && (restores_ == 0 || !is_listed(known.second));
    });
  }
  uint64_t before = 0;
  for (const PublishedCheckpoint& checkpoint : job.checkpoints()) {
    if (checkpoint.step() <= before) {
      return Fail("no step published twice", absl::StrCat("step ", checkpoint.step(), " of ", id.value()));
    }
    before = checkpoint.step();
    const auto known = account.published.find(checkpoint.step());
    if (known != account.published.end()) {
      if (known->second.generation() == checkpoint.generation() &&
          known->second.directory() == checkpoint.directory()) {
        continue;
      }
      return Fail("no step published twice", absl::StrCat("step ", checkpoint.step(), " of ", id.value()));
    }
    const std::string what = absl::StrCat("step ", checkpoint.step(), " of ", Text(id, checkpoint.generation()));
    if (!account.published.empty() && checkpoint.step() < account.published.rbegin()->first) {
      return Fail("published steps only grow", what);
    }
    if (checkpoint.generation() != job.generation() || account.ended.contains(checkpoint.generation())) {
      return Fail("one publishing generation", absl::StrCat(what, ", but the current one is ", job.generation()));
    }
    const uint64_t name = NameOf(id, checkpoint.generation());
    if (!written_.contains({id, name, checkpoint.step(), checkpoint.directory()})) {
      return Fail("published is written", what);
    }
    account.published[checkpoint.step()] = checkpoint;
  }
}

void Judge::GenerationChanged(Generation generation) {
  const JobId id(generation.job());
  JobAccount& account = books_.jobs[id];
  const uint64_t number = generation.number();
  const bool over = generation.state() == GENERATION_STATE_ENDED;
  const std::string name = Text(id, number);
  const auto known = account.generations.find(number);
  if (known == account.generations.end()) {
    const uint64_t newest = account.generations.empty() ? 0 : account.generations.rbegin()->first;
    if (number <= newest || (number != newest + 1 && restores_ == 0)) {
      return Fail("generations", absl::StrCat(name, " follows ", newest));
    }
    if (number <= account.reported) {
      return Fail("a generation's number is used once", absl::StrCat(name, " is new, and a worker has reported it"));
    }
    account.names[number] = ++names_;
    if (!used_.emplace(id, number).second) {
      return Fail("a generation's number is used once", absl::StrCat(name, " is new, and was one of a lost history"));
    }
    if (newest != 0 && !account.ended.contains(newest)) {
      return Fail("one publishing generation", absl::StrCat(name, " begins before ", newest, " has ended"));
    }
    const uint64_t last = account.published.empty() ? 0 : account.published.rbegin()->first;
    if (generation.resume_from().step() != last) {
      return Fail("nothing published is lost", absl::StrCat(name, " begins with step ", generation.resume_from().step(),
                                                            ", though ", last, " is published"));
    }
    const auto ranks = static_cast<uint32_t>(generation.ranks_size());
    const Resources& asked = account.resources;
    if (ranks > asked.ranks() || ranks < (asked.has_min_ranks() ? asked.min_ranks() : asked.ranks())) {
      return Fail("a gang is whole", absl::StrCat(name, " has ", ranks, " ranks"));
    }
    if (ranks % account.multiple != 0) {
      return Fail("a gang has whole groups", absl::StrCat(name, " has ", ranks, " ranks, of ", account.multiple));
    }
    const Mesh mesh = WithReplicasFor({.tensor = account.together}, ranks);
    for (const std::vector<uint32_t>& group : GroupsOf(mesh, {.axes = kTensorAxis})) {
      for (const uint32_t rank : group) {
        const std::string& first = generation.ranks(static_cast<int>(group[0])).node();
        if (generation.ranks(static_cast<int>(rank)).node() == first) continue;
        return Fail("tensor ranks are on one node", absl::StrCat("rank ", rank, " of ", name));
      }
    }
    CheckTopology(name, generation, asked);
    for (const RankPlacement& rank : generation.ranks()) {
      for (const std::string& unwanted : asked.node_selector()) {  // here all are such
        if (unwanted == absl::StrCat("node!=", rank.node())) {
          return Fail("ranks are on nodes that their job selects", absl::StrCat(name, " is on ", rank.node()));
        }
      }
      for (const uint32_t slot : rank.slots()) {
        const auto [holder, fresh] = books_.slots.emplace(std::pair(rank.node(), slot), std::pair(id, number));
        if (fresh) continue;
        return Fail("no slot used twice", absl::StrCat("slot ", slot, " of ", rank.node(), " by ", name, " and ",
                                                       Text(holder->second.first, holder->second.second)));
      }
    }
    CheckQuota(name, account);
    CheckReservations(name, generation, account);
    CheckStartsAfter(name, account);
  } else {
    const Generation& before = known->second;
    if (Order(generation.state()) < Order(before.state())) return Fail("generations", absl::StrCat(name, " went back"));
    for (int rank = 0; rank < before.ranks_size(); ++rank) {
      if (before.ranks(rank).state() == RANK_STATE_EXITED && generation.ranks(rank).state() != RANK_STATE_EXITED) {
        return Fail("generations", absl::StrCat("rank ", rank, " of ", name, " is back"));
      }
      const RankExit::Cause cause = generation.ranks(rank).exit().cause();
      const bool seen = cause == RankExit::FAILED || cause == RankExit::COMPLETED;  // other causes may be assumptions
      if (seen && running_.contains({{id, number, static_cast<uint32_t>(rank)}, NameOf(id, number)})) {
        return Fail("an exit is an exit", absl::StrCat("rank ", rank, " of ", name, " runs"));
      }
    }
  }
  if (generation.state() == GENERATION_STATE_RUNNING) account.runs_since.emplace(number, clock_->Read().steady);
  if (generation.reason() == END_REASON_PREEMPTED) CheckPreemption(id, generation, account);
  if (generation.reason() == END_REASON_RESIZED &&
      static_cast<uint32_t>(generation.ranks_size()) >= account.resources.ranks()) {
    return Fail("only a small gang is resized", name);
  }
  // A generation that is stopping has no more use of the slots of ranks that have exited.
  if (generation.state() == GENERATION_STATE_STOPPING) {
    for (const RankPlacement& rank : generation.ranks()) {
      if (rank.state() != RANK_STATE_EXITED) continue;
      for (const uint32_t slot : rank.slots()) {
        const auto held = books_.slots.find(std::pair(rank.node(), slot));
        if (held != books_.slots.end() && held->second == std::pair(id, number)) books_.slots.erase(held);
      }
    }
  }
  if (over && !account.ended.contains(number)) CheckCulprit(name, generation, account);
  if (over && account.ended.insert(number).second) {
    std::erase_if(books_.slots, [&](const auto& slot) { return slot.second == std::pair(id, number); });
  }
  account.generations[number] = std::move(generation);
}

void Judge::RowDeleted(const std::string& key) {
  if (absl::StartsWith(key, "job/")) {
    const JobId id(key.substr(4));
    JobAccount& account = books_.jobs[id];
    if (!deletable_.contains(id) || !Terminal(account.state)) {
      return Fail("no accepted job lost", absl::StrCat(id.value(), " was removed, but not by a request"));
    }
    account.deleted = true;
  } else if (absl::StartsWith(key, "reservation/")) {
    books_.reservations.erase(key.substr(12));
  } else if (absl::StartsWith(key, "run/")) {
    books_.runs.erase(key.substr(4));
  } else if (absl::StartsWith(key, "node/")) {
    Fail("rows", absl::StrCat(key, " was removed"));
  }
}

void Judge::Stored(const JobId& job, const MetricPoint& point) {
  // Virtual trainers write their generation's name into the loss.
  const auto name = static_cast<uint64_t>(point.loss());
  const auto found = books_.jobs.find(job);
  if (found == books_.jobs.end() || found->second.generations.empty()) {
    return Fail("metrics", absl::StrCat("of ", job.value(), ", which never ran"));
  }
  if (const uint64_t newest = found->second.generations.rbegin()->first; name != NameOf(job, newest)) {
    Fail("stale metrics are refused", absl::StrCat("of the generation named ", name, ", when ", Text(job, newest),
                                                   " is on disk, named ", NameOf(job, newest)));
  }
}

void Judge::DesiredSent(const Desired& desired, uint64_t& last_revision) {
  if (desired.revision() < last_revision) Fail("revisions never go back", absl::StrCat(desired.revision()));
  last_revision = desired.revision();
  for (const DesiredRank& rank : desired.ranks()) {
    if (!rank.has_run()) continue;
    const JobId id(rank.key().job());
    const auto job = books_.jobs.find(id);
    const uint64_t number = rank.key().generation();
    if (job == books_.jobs.end() || !job->second.generations.contains(number)) {
      return Fail("durable before it runs", absl::StrCat(Text(id, number), " was sent to a node, but is not on disk"));
    }
    if (job->second.ended.contains(number)) {
      return Fail("durable before it runs", absl::StrCat(Text(id, number), " has ended, and was sent to a node"));
    }
  }
}

void Judge::Accepted(const std::string& owner, const std::string& request, const JobId& job) {
  if (IsLost(job)) return;
  const auto known = books_.requests.find({owner, request});
  if (known == books_.requests.end()) {
    return Fail("accepted means durable", absl::StrCat(job.value(), " was accepted, but is not on disk"));
  }
  if (known->second != job && !books_.jobs[job].deleted) {
    Fail("no job doubled", absl::StrCat(job.value(), " was returned, but ", known->second.value(), " is on disk"));
  }
}

void Judge::Acknowledged(const Ran& ran, const std::vector<Record>& records) {
  const RankId& rank = ran.rank;
  if (NameOf(rank.job, rank.generation) != ran.name) return;  // refused: another node has the rank of this number
  const auto found = books_.jobs.find(rank.job);
  if (found == books_.jobs.end() || found->second.deleted) return;
  const JobAccount& account = found->second;
  const auto generation = account.generations.find(rank.generation);
  const bool over = account.ended.contains(rank.generation) || generation == account.generations.end();
  if (over) return;  // refused as stale
  for (const Record& record : records) {
    if (record.has_checkpoint() && rank.rank == 0) {
      const auto newest = account.published.rbegin();
      if (newest == account.published.rend() || newest->second.generation() != rank.generation ||
          newest->first < record.checkpoint().step()) {
        Fail("acknowledged means durable",
             absl::StrCat(rank.ToString(), ": the checkpoint of step ", record.checkpoint().step()));
      }
    } else if (record.has_finished() && !generation->second.ranks(static_cast<int>(rank.rank)).finished()) {
      Fail("acknowledged means durable", absl::StrCat(rank.ToString(), " has finished"));
    }
  }
}

void Judge::Read(const StateEvent& event, size_t& position) {
  const std::string bytes = event.SerializeAsString();
  for (; position < books_.stream.size(); ++position) {
    const Books::StreamEvent& next = books_.stream[position];
    if (next.bytes == bytes) {
      ++position;
      return;
    }
    // Only events of deleted jobs may be missing.
    if (next.job.empty() || !books_.jobs[next.job].deleted) {
      return Fail("streams are the history",
                  absl::StrCat("a reader got \"", event.message(), "\" and missed event ", next.sequence));
    }
  }
  Fail("streams are the history", absl::StrCat("a reader got \"", event.message(), "\", which is not committed"));
}

void Judge::Started(const Ran& ran, const std::string& node) {
  const RankId& rank = ran.rank;
  // What an earlier history started may still arrive.
  if (NameOf(rank.job, rank.generation) == 0 && restores_ == 0) {
    return Fail("durable before it runs", absl::StrCat(rank.ToString(), " was started, but is not on disk"));
  }
  running_.insert(ran);
  const auto [known, fresh] = started_.emplace(ran, node);
  if (!fresh) Fail("a rank starts once", absl::StrCat(rank.ToString(), " on ", known->second, " and ", node));
}

void Judge::KilledAsStale(const Ran& ran) {
  const RankId& rank = ran.rank;
  if (NameOf(rank.job, rank.generation) != ran.name) return;
  const auto job = books_.jobs.find(rank.job);
  if (job == books_.jobs.end() || job->second.deleted || job->second.ended.contains(rank.generation)) return;
  const auto generation = job->second.generations.find(rank.generation);
  if (generation == job->second.generations.end()) return;
  if (generation->second.ranks(static_cast<int>(rank.rank)).state() == RANK_STATE_EXITED) return;
  Fail("a desired rank is not killed", rank.ToString());
}

bool Judge::WasTaken(const std::string& folder) const {
  return std::any_of(books_.jobs.begin(), books_.jobs.end(),
                     [&](const auto& job) { return job.second.folder == folder; });
}

}  // namespace muster::simulate
