#include "worker/collectives/memory_key_value.h"

#include "absl/strings/str_cat.h"
#include "worker/collectives/steady.h"

namespace muster::collectives {

absl::Status MemoryKeyValue::Set(const std::string& name, const std::string& value) {
  const MutexLock lock(mutex_);
  const auto [entry, inserted] = values_.emplace(name, value);
  if (!inserted && entry->second != value) {
    return absl::AlreadyExistsError(absl::StrCat(name, " is set to another value"));
  }
  set_.notify_all();
  return absl::OkStatus();
}

absl::StatusOr<std::string> MemoryKeyValue::Wait(const std::string& name, absl::Duration timeout) {
  const MutexLock lock(mutex_);
  const auto is_set = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return values_.contains(name); };
  if (!set_.wait_until(mutex_, After(timeout), is_set)) {
    return absl::DeadlineExceededError(absl::StrCat(name, " was not set within ", absl::FormatDuration(timeout)));
  }
  return values_.at(name);
}

}  // namespace muster::collectives
