#include "coordinator/server/rendezvous.h"

#include <vector>

#include "absl/strings/str_cat.h"

namespace muster::server {
namespace {

std::string NameOf(const Rendezvous::Key& generation) {
  return absl::StrCat("generation ", generation.second, " of job ", generation.first.value());
}

absl::Status CheckName(const std::string& name) {
  if (!name.empty() && name.size() <= Rendezvous::kMaxNameBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("a rendezvous name has 1 to ", Rendezvous::kMaxNameBytes,
                                                 " characters, this one has ", name.size()));
}

}  // namespace

absl::Status Rendezvous::Set(const Key& generation, const std::string& name, const std::string& value) {
  if (absl::Status status = CheckName(name); !status.ok()) return status;
  if (value.size() > kMaxValueBytes) {
    return absl::ResourceExhaustedError(absl::StrCat("the rendezvous value of \"", name, "\" has ", value.size(),
                                                     " bytes, at most ", kMaxValueBytes, " are allowed"));
  }
  Generation& entry = generations_[generation];
  const auto found = entry.values.find(name);
  if (found != entry.values.end()) {
    if (found->second == value) return absl::OkStatus();
    return absl::AlreadyExistsError(
        absl::StrCat("\"", name, "\" was set before to another value in ", NameOf(generation)));
  }
  const size_t bytes = name.size() + value.size();
  if (entry.bytes + bytes > kMaxGenerationBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(NameOf(generation), " has used up its ", kMaxGenerationBytes, " bytes of rendezvous"));
  }
  entry.bytes += bytes;
  entry.values.emplace(name, value);
  FinishAll([&](const Wait& wait) { return wait.generation == generation && wait.name == name; }, value);
  return absl::OkStatus();
}

uint64_t Rendezvous::Get(const Key& generation, const std::string& name, SteadyTime deadline, SteadyTime now,
                         Done done) {
  if (absl::Status status = CheckName(name); !status.ok()) {
    done(status);
    return 0;
  }
  const auto entry = generations_.find(generation);
  if (entry != generations_.end()) {
    const auto value = entry->second.values.find(name);
    if (value != entry->second.values.end()) {
      done(value->second);
      return 0;
    }
  }
  if (deadline <= now) {
    done(absl::NotFoundError(absl::StrCat("\"", name, "\" is not set in ", NameOf(generation))));
    return 0;
  }
  Generation& waiting = generations_[generation];
  if (waiting.waits >= kMaxWaits) {
    done(absl::ResourceExhaustedError(absl::StrCat(NameOf(generation), " has ", kMaxWaits, " waits already")));
    return 0;
  }
  ++waiting.waits;
  waits_.emplace(next_wait_, Wait{generation, name, deadline, std::move(done)});
  return next_wait_++;
}

// `done` may call back into this object, so the wait is gone before.
void Rendezvous::Finish(std::map<uint64_t, Wait>::iterator wait, absl::StatusOr<std::string> result) {
  const Key generation = wait->second.generation;
  const Done done = std::move(wait->second.done);
  waits_.erase(wait);
  --generations_.at(generation).waits;
  DropIfEmpty(generation);
  done(std::move(result));
}

void Rendezvous::DropIfEmpty(const Key& generation) {
  const auto found = generations_.find(generation);
  if (found != generations_.end() && found->second.waits == 0 && found->second.values.empty()) {
    generations_.erase(found);
  }
}

template <typename Matches>
void Rendezvous::FinishAll(const Matches& matches, const absl::StatusOr<std::string>& result) {
  std::vector<uint64_t> numbers;
  for (const auto& [number, wait] : waits_) {
    if (matches(wait)) numbers.push_back(number);
  }
  for (const uint64_t number : numbers) {
    const auto wait = waits_.find(number);
    if (wait != waits_.end()) Finish(wait, result);
  }
}

void Rendezvous::Cancel(uint64_t wait) {
  const auto found = waits_.find(wait);
  if (found != waits_.end()) Finish(found, absl::CancelledError("the caller has gone"));
}

void Rendezvous::End(const Key& generation) {
  FinishAll([&](const Wait& wait) { return wait.generation == generation; },
            absl::AbortedError(absl::StrCat(NameOf(generation), " has ended")));
  generations_.erase(generation);
}

void Rendezvous::EndAll(const absl::Status& why) {
  FinishAll([](const Wait&) { return true; }, why);
  generations_.clear();
}

void Rendezvous::Expire(SteadyTime now) {
  FinishAll([&](const Wait& wait) { return wait.deadline <= now; },
            absl::DeadlineExceededError("the rendezvous name was not set in time; its rank may not have started"));
}

std::optional<SteadyTime> Rendezvous::NextDeadline() const {
  std::optional<SteadyTime> next;
  for (const auto& [number, wait] : waits_) {
    if (!next.has_value() || wait.deadline < *next) next = wait.deadline;
  }
  return next;
}

}  // namespace muster::server
