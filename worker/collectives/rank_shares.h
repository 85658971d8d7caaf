// Cuts tensors into rank shares, the same for every transport.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "worker/collectives/group.h"

namespace muster::collectives {

// Splits `all` into equal shares of `each` elements per rank.
inline std::vector<RankShare> Even(const at::Tensor& all, int64_t each, int size) {
  std::vector<RankShare> shares;
  for (int root = 0; root < size; ++root) shares.push_back({all.narrow(0, root * each, each), root});
  return shares;
}

// Whether direct messages between the ranks move no more data than Gloo's own algorithm per share (a ring or a tree).
// This holds unless one root owns nearly everything. 42 MB in 32 shares on two cores, in milliseconds, direct against
// Gloo: reduced over 2 ranks 13 / 39, over 4 ranks 34 / 118; broadcast to 4 ranks 24 / 45.
inline bool Straight(const std::vector<RankShare>& shares, int size) {
  int64_t all = 0;
  std::vector<int64_t> of_root(static_cast<size_t>(size));
  for (const RankShare& share : shares) {
    all += share.values.numel();
    of_root[static_cast<size_t>(share.root)] += share.values.numel();
  }
  return *std::max_element(of_root.begin(), of_root.end()) * (size - 1) <= 2 * all;
}

}  // namespace muster::collectives
