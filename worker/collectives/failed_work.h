// The Work of a collective that failed before it began.
#pragma once

#include <utility>

#include "worker/collectives/group.h"

namespace muster::collectives {

class FailedWork final : public Work {
 public:
  explicit FailedWork(absl::Status status) : status_(std::move(status)) {}
  absl::Status Wait() override { return status_; }
  bool done() const override { return true; }

 private:
  const absl::Status status_;
};

}  // namespace muster::collectives
