#include "coordinator/server/traces.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace muster::server {
namespace {

bool Complete(const RankTrace& rank) { return !rank.steps().empty() && rank.steps().rbegin()->last(); }

}  // namespace

void Traces::Begin(const Key& generation, uint64_t request_id, const std::vector<uint32_t>& ranks, SteadyTime deadline,
                   Done done) {
  Wait& wait = waits_[request_id];
  wait = {generation, deadline, std::move(done), {}};
  for (const uint32_t rank : ranks) wait.ranks[rank].set_rank(rank);
}

void Traces::Add(const RankId& rank, StepTrace step) {
  const uint64_t request_id = step.request_id();
  const auto wait = waits_.find(request_id);
  if (wait == waits_.end() || wait->second.generation != Key{rank.job, rank.generation}) return;
  const auto its = wait->second.ranks.find(rank.rank);
  if (its == wait->second.ranks.end() || Complete(its->second)) return;
  *its->second.add_steps() = std::move(step);
  const auto& all = wait->second.ranks;
  if (std::all_of(all.begin(), all.end(), [](const auto& entry) { return Complete(entry.second); })) {
    Finish(request_id, absl::OkStatus());
  }
}

// `done` may call back into this object, so the wait is removed first.
void Traces::Finish(uint64_t request_id, const absl::Status& status) {
  const auto found = waits_.find(request_id);
  if (found == waits_.end()) return;
  Wait wait = std::move(found->second);
  waits_.erase(found);
  Result result{.status = status, .ranks = {}, .missing = {}};
  for (auto& [rank, trace] : wait.ranks) {
    if (!Complete(trace)) result.missing.push_back(rank);
    result.ranks.push_back(std::move(trace));
  }
  wait.done(std::move(result));
}

template <typename Matches>
void Traces::FinishAll(const Matches& matches, const absl::Status& status) {
  std::vector<uint64_t> requests;
  for (const auto& [request_id, wait] : waits_) {
    if (matches(wait)) requests.push_back(request_id);
  }
  for (const uint64_t request_id : requests) Finish(request_id, status);
}

void Traces::Cancel(uint64_t request_id) { Finish(request_id, absl::CancelledError("the caller disconnected")); }

void Traces::End(const Key& generation) {
  FinishAll([&](const Wait& wait) { return wait.generation == generation; },
            absl::AbortedError(absl::StrCat("generation ", generation.second, " of job ", generation.first.value(),
                                            " ended before its ranks reported all steps")));
}

void Traces::EndAll(const absl::Status& why) {
  FinishAll([](const Wait&) { return true; }, why);
}

void Traces::Expire(SteadyTime now) {
  FinishAll([&](const Wait& wait) { return wait.deadline <= now; }, absl::OkStatus());
}

std::optional<SteadyTime> Traces::NextDeadline() const {
  std::optional<SteadyTime> next;
  for (const auto& [request_id, wait] : waits_) {
    if (!next.has_value() || wait.deadline < *next) next = wait.deadline;
  }
  return next;
}

}  // namespace muster::server
