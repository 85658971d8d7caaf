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
        absl::StrCat("\"", name, "\" is already set to another value in ", NameOf(generation)));
  }
  const size_t bytes = name.size() + value.size();
  if (entry.bytes + bytes > kMaxGenerationBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(NameOf(generation), " has used up its ", kMaxGenerationBytes, " bytes of rendezvous"));
  }
  entry.bytes += bytes;
  entry.values.emplace(name, value);
  if (const auto waits = entry.waits.find(name); waits != entry.waits.end()) {
    FinishAll({waits->second.begin(), waits->second.end()}, value);
  }
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
  if (waiting.wait_count >= kMaxWaits) {
    done(absl::ResourceExhaustedError(absl::StrCat(NameOf(generation), " has ", kMaxWaits, " waits already")));
    return 0;
  }
  const uint64_t number = next_wait_++;
  ++waiting.wait_count;
  waiting.waits[name].insert(number);
  deadlines_.insert({deadline, number});
  waits_.emplace(number, Wait{generation, name, deadline, std::move(done)});
  return number;
}

// `done` may call back into this object, so the wait is removed first.
void Rendezvous::Finish(uint64_t number, absl::StatusOr<std::string> result) {
  const auto found = waits_.find(number);
  if (found == waits_.end()) return;
  const Wait wait = std::move(found->second);
  waits_.erase(found);
  deadlines_.erase({wait.deadline, number});
  // May be gone: this wait may come from a callback while its generation was ended.
  if (const auto entry = generations_.find(wait.generation); entry != generations_.end()) {
    Generation& generation = entry->second;
    --generation.wait_count;
    const auto others = generation.waits.find(wait.name);
    others->second.erase(number);
    if (others->second.empty()) generation.waits.erase(others);
    if (generation.wait_count == 0 && generation.values.empty()) generations_.erase(entry);
  }
  wait.done(std::move(result));
}

void Rendezvous::FinishAll(const std::vector<uint64_t>& numbers, const absl::StatusOr<std::string>& result) {
  for (const uint64_t number : numbers) Finish(number, result);
}

void Rendezvous::Cancel(uint64_t wait) { Finish(wait, absl::CancelledError("the caller disconnected")); }

void Rendezvous::End(const Key& generation) {
  const auto found = generations_.find(generation);
  if (found == generations_.end()) return;
  std::vector<uint64_t> numbers;
  for (const auto& [name, waits] : found->second.waits) numbers.insert(numbers.end(), waits.begin(), waits.end());
  FinishAll(numbers, absl::AbortedError(absl::StrCat(NameOf(generation), " has ended")));
  generations_.erase(generation);
}

void Rendezvous::EndAll(const absl::Status& why) {
  std::vector<uint64_t> numbers;
  for (const auto& [number, wait] : waits_) numbers.push_back(number);
  FinishAll(numbers, why);
  generations_.clear();
}

void Rendezvous::Expire(SteadyTime now) {
  std::vector<uint64_t> numbers;
  for (const auto& [deadline, number] : deadlines_) {
    if (deadline > now) break;
    numbers.push_back(number);
  }
  for (const uint64_t number : numbers) {
    const auto wait = waits_.find(number);
    if (wait == waits_.end()) continue;
    Finish(number, absl::DeadlineExceededError(absl::StrCat("\"", wait->second.name, "\" was not set in time")));
  }
}

std::optional<SteadyTime> Rendezvous::NextDeadline() const {
  if (deadlines_.empty()) return std::nullopt;
  return deadlines_.begin()->first;
}

}  // namespace muster::server
