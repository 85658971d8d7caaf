// Carries a Status out of code that can only throw, through LibTorch's autograd as well, which passes on what is a
// std::exception.
#pragma once

#include <exception>
#include <utility>

#include "absl/status/status.h"

namespace muster::engine {

struct Failed : std::exception {
  explicit Failed(absl::Status why) : status(std::move(why)) {}
  const char* what() const noexcept override { return "a failure of the engine, with its status"; }
  absl::Status status;
};

inline void ThrowIfBad(absl::Status status) {
  if (!status.ok()) throw Failed(std::move(status));
}

}  // namespace muster::engine
