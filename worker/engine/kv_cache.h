// The tokens whose keys and values the units keep, so that a text that grows by a token costs a token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "worker/units/unit.h"

namespace muster::engine {

// Of one thread. Begin, then each unit's forward with its kept(), then Done; after a failed forward Begin starts
// afresh.
class KvCache {
 public:
  // Which of `tokens` are still to be computed: at least the last, and all of them unless the rest are those kept.
  absl::Span<const uint32_t> Begin(absl::Span<const uint32_t> tokens, size_t units);
  units::Saved& kept(size_t unit) { return kept_[unit]; }
  void Done(absl::Span<const uint32_t> computed);

  // Other parameters: what is kept is worth nothing.
  void Forget();

 private:
  std::vector<uint32_t> tokens_;
  std::vector<units::Saved> kept_;  // by unit
  bool done_ = true;
};

}  // namespace muster::engine
