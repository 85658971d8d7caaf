// What ranks do together: a process group with the collectives that schedules need. Three implementations, one
// conformance test (conformance_test.cc): NCCL on GPUs (nccl.h), Gloo on CPUs (gloo.h), threads of one process
// (threads.h).
//
//   std::unique_ptr<Group> group = MakeGloo(options).value();
//   std::unique_ptr<Work> sum = group->AllReduce(gradients);
//   ...                                                         // compute goes on
//   absl::Status done = sum->Wait();
//
// Every rank of a group issues the same collectives in the same order, with the same sizes and dtypes; zero elements
// are a size like any other. Sums are over ranks; nothing is divided. Tensors are contiguous, on the group's device,
// and stay alive and untouched until the Work has been waited for. A group is used by one thread; its Works by any.
//
// Every collective has a deadline, the group's `timeout` from its issue: then, and when a peer is lost, Wait returns
// Unavailable naming the peers that are gone or behind. A group that failed once fails from then on.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"

namespace muster::collectives {

// One collective under way. Dropped before it is done, it may end the group: nobody would know then when its tensors
// are read no more.
class Work {
 public:
  virtual ~Work() = default;
  // On a CPU: returns when it is done. On a GPU: makes the current stream wait for it and returns at once; its failure
  // is told by a later call of the group.
  virtual absl::Status Wait() = 0;
  // After Wait, on a CPU: when it was done.
  virtual std::optional<std::chrono::steady_clock::time_point> done_at() const { return std::nullopt; }
};

// A share of something that ranks hold together: `values` of rank `root`, maybe none.
struct RankShare {
  at::Tensor values;
  int root = 0;
};

class Group {
 public:
  virtual ~Group() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // In place, the sum on every rank.
  virtual std::unique_ptr<Work> AllReduce(at::Tensor values) = 0;
  // `all` is [size * own.numel()]; rank r's `own` comes to lie at r * own.numel(). `own` may be that very place.
  virtual std::unique_ptr<Work> AllGather(at::Tensor own, at::Tensor all) = 0;
  // The other way: rank r gets the sum over ranks of its range of `all`, which is destroyed.
  virtual std::unique_ptr<Work> ReduceScatter(at::Tensor all, at::Tensor own) = 0;
  // In place, from `root`.
  virtual std::unique_ptr<Work> Broadcast(at::Tensor values, int root) = 0;
  // The all-gather and reduce-scatter of uneven shares: each part from, or summed to, its root, as one collective. What
  // other ranks than the root hold of a reduced part is destroyed.
  virtual std::unique_ptr<Work> BroadcastParts(std::vector<RankShare> parts) = 0;
  virtual std::unique_ptr<Work> ReduceParts(std::vector<RankShare> parts) = 0;
  // Between two ranks; those of one pair and direction match in order.
  virtual std::unique_ptr<Work> Send(at::Tensor values, int to) = 0;
  virtual std::unique_ptr<Work> Recv(at::Tensor values, int from) = 0;
  // Returns when every rank has called it.
  virtual absl::Status Barrier() = 0;
};

}  // namespace muster::collectives
