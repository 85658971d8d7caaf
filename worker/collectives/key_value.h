// The rendezvous store of one generation, through which ranks find each other. The trainer's implementation goes
// through its worker to the coordinator; tests keep it in memory.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace muster::collectives {

// Thread-safe.
class KeyValue {
 public:
  virtual ~KeyValue() = default;
  // Each name is set once. AlreadyExists: it has another value.
  virtual absl::Status Set(const std::string& name, const std::string& value) = 0;
  // Waits until it is set. DeadlineExceeded: not within `timeout`.
  virtual absl::StatusOr<std::string> Wait(const std::string& name, absl::Duration timeout) = 0;
};

}  // namespace muster::collectives
