#include "coordinator/server/sync_calls.h"

#include <algorithm>
#include <vector>

#include "coordinator/server/shell.h"

namespace muster::server {
namespace {

// A change may be due to all ranks of a large run: others, heartbeats too, are not to wait for all of them.
constexpr size_t kCallsPerTurn = 256;

}  // namespace

std::pair<RankId, uint32_t> SyncCalls::KeyOf(const Call& call) {
  return {call.asked.rank, call.asked.request.fragment()};
}

uint64_t SyncCalls::Begin(Turn& turn, core::SyncRank asked, SteadyTime deadline, Done done) {
  const uint64_t number = next_++;
  Call call{.asked = std::move(asked), .run = {}, .deadline = deadline, .due = deadline, .done = std::move(done)};
  if (const auto older = of_rank_.find(KeyOf(call)); older != of_rank_.end()) {
    turn.AfterCommit(
        [replaced = *Take(older->second)] { replaced.done(absl::CancelledError("the rank has asked again")); });
  }
  if (const Job* job = turn.core().Stored(call.asked.rank.job)) call.run = job->spec().train().sync().run();
  Ask(turn, number, std::move(call));
  return number;
}

void SyncCalls::Ask(Turn& turn, uint64_t number, Call call) {
  const core::Outcome& outcome = turn.Handle(call.asked);
  const SteadyTime now = turn.now().steady;
  if (!outcome.status.ok() || !outcome.sync_waits_until.has_value() || call.deadline <= now) {
    absl::StatusOr<SyncReply> reply = outcome.sync;
    if (!outcome.status.ok()) reply = outcome.status;
    turn.AfterCommit([done = std::move(call.done), reply = std::move(reply)] { done(reply); });
    return;
  }
  call.due = std::min(call.deadline, *outcome.sync_waits_until);
  of_rank_[KeyOf(call)] = number;
  of_run_[call.run].insert(number);
  due_.insert({call.due, number});
  calls_.emplace(number, std::move(call));
}

std::optional<SyncCalls::Call> SyncCalls::Take(uint64_t number) {
  auto found = calls_.extract(number);
  if (found.empty()) return std::nullopt;
  Call call = std::move(found.mapped());
  of_rank_.erase(KeyOf(call));
  due_.erase({call.due, number});
  const auto run = of_run_.find(call.run);
  run->second.erase(number);
  if (run->second.empty()) of_run_.erase(run);
  return call;
}

void SyncCalls::Cancel(uint64_t number) {
  const std::optional<Call> call = Take(number);
  if (call.has_value()) call->done(absl::CancelledError("the caller disconnected"));
}

void SyncCalls::Wake(const core::AskSyncAgain& again) {
  const auto run = of_run_.find(again.run);
  if (run == of_run_.end()) return;
  for (const uint64_t number : run->second) {
    Call& call = calls_.at(number);
    if (again.source_rank.has_value() && call.asked.request.source_rank() != *again.source_rank) continue;
    due_.erase({call.due, number});
    call.due = SteadyTime();
    due_.insert({call.due, number});
  }
}

void SyncCalls::AskAgain(Turn& turn) {
  std::vector<uint64_t> numbers;
  for (const auto& [due, number] : due_) {
    if (due > turn.now().steady || numbers.size() == kCallsPerTurn) break;
    numbers.push_back(number);
  }
  for (const uint64_t number : numbers) Ask(turn, number, *Take(number));
}

void SyncCalls::EndAll(const absl::Status& why) {
  const std::map<uint64_t, Call> calls = std::exchange(calls_, {});
  of_rank_.clear();
  of_run_.clear();
  due_.clear();
  for (const auto& [number, call] : calls) call.done(why);
}

std::optional<SteadyTime> SyncCalls::NextDeadline() const {
  if (due_.empty()) return std::nullopt;
  return due_.begin()->first;
}

}  // namespace muster::server
