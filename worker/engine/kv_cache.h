// Tracks the tokens whose keys and values the units cache, so that each new token costs one token's compute.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "worker/units/unit.h"

namespace muster::engine {

// Not thread-safe. Call Begin, then each unit's forward with its kept(), then Done; after a failed forward, Begin
// starts with an empty cache.
class KvCache {
 public:
  // Returns the tokens to compute: those after the cached prefix, at least the last; all if the prefix differs.
  absl::Span<const uint32_t> Begin(absl::Span<const uint32_t> tokens, size_t units);
  units::Saved& kept(size_t unit) { return kept_[unit]; }
  void Done(absl::Span<const uint32_t> computed);

  // Clears the cache, because the parameters have changed.
  void Forget();

 private:
  std::vector<uint32_t> tokens_;
  std::vector<units::Saved> kept_;  // by unit
  bool done_ = true;
};

}  // namespace muster::engine
