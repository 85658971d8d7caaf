// Cuts tensors into rank shares, the same for every transport.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "worker/collectives/group.h"

namespace muster::collectives {

// InvalidArgument: `size` does not divide a whole.
inline absl::Status CheckEven(const std::vector<at::Tensor>& wholes, int size) {
  for (const at::Tensor& whole : wholes) {
    if (whole.numel() % size == 0) continue;
    return absl::InvalidArgumentError(absl::StrCat(whole.numel(), " elements cannot be cut into ", size,
                                                   " equal shares: use BroadcastShares or ReduceShares"));
  }
  return absl::OkStatus();
}

// Splits each whole into one share per rank, of equal sizes. InvalidArgument: as CheckEven.
inline absl::StatusOr<std::vector<RankShare>> EvenShares(const std::vector<at::Tensor>& wholes, int size) {
  if (absl::Status even = CheckEven(wholes, size); !even.ok()) return even;
  std::vector<RankShare> shares;
  for (const at::Tensor& whole : wholes) {
    const int64_t each = whole.numel() / size;
    const at::Tensor flat = whole.view({-1});
    for (int root = 0; root < size; ++root) shares.push_back({flat.narrow(0, root * each, each), root});
  }
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
