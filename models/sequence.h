// Which tokens of a sequence each of several ranks has, where these share it (Inventory.context_ranks). Pure.
#pragma once

#include <cstdint>
#include <vector>

namespace muster::models {

// Tokens [begin, begin + size) of a sequence.
struct TokenRun {
  uint64_t begin = 0, size = 0;
  friend bool operator==(const TokenRun&, const TokenRun&) = default;
};

// Of 2 `ranks` runs of equal size, run `rank` and the one as far from the end: under causal attention a later token
// sees more keys, and so all ranks compute equally many scores. In the order of the sequence, as the rank has them: its
// token i is the i-th of these. One rank has one run. REQUIRES: 2 ranks divide `tokens`, or ranks = 1.
std::vector<TokenRun> RunsOf(uint64_t tokens, uint32_t ranks, uint32_t rank);

}  // namespace muster::models
