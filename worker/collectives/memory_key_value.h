// A KeyValue in this process's memory, for ranks that are threads.
#pragma once

#include <condition_variable>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "common/mutex.h"
#include "worker/collectives/key_value.h"

namespace muster::collectives {

class MemoryKeyValue final : public KeyValue {
 public:
  absl::Status Set(const std::string& name, const std::string& value) override;
  absl::StatusOr<std::string> Wait(const std::string& name, absl::Duration timeout) override;

 private:
  Mutex mutex_;
  std::condition_variable_any set_;
  std::map<std::string, std::string> values_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace muster::collectives
