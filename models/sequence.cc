#include "models/sequence.h"

namespace muster::models {

std::vector<TokenRun> RunsOf(uint64_t tokens, uint32_t ranks, uint32_t rank) {
  if (ranks == 1) return {{0, tokens}};
  const uint64_t size = tokens / (2 * uint64_t{ranks});
  return {{rank * size, size}, {(2 * uint64_t{ranks} - 1 - rank) * size, size}};
}

}  // namespace muster::models
