// A process group with the collectives that schedules need. Three implementations pass one conformance test
// (conformance_test.cc): NCCL on GPUs (nccl.h), Gloo on CPUs (gloo.h), threads of one process (threads.h).
//
//   std::unique_ptr<Group> group = MakeGloo(options).value();
//   std::unique_ptr<Work> sum = group->AllReduce(gradients);
//   ...                                                         // compute continues
//   absl::Status done = sum->Wait();
//
// Every rank of a group issues the same collectives in the same order, with the same sizes and dtypes; zero elements
// are a size like any other. Sums are over ranks; nothing is divided. Tensors are contiguous, on the group's device,
// and stay alive and untouched until the Work has been waited for. On a GPU, a tensor that was allocated on another
// stream than the one that waits must be kept until that stream waits, too: LibTorch's allocator reuses its memory
// there. A group is used by one thread; its Works by any.
//
// Every collective has a deadline, the group's `timeout` from its issue. After the deadline, or when a peer is lost,
// Wait returns Unavailable and names the peers that are gone or lag. A failed group stays failed.
//
// No call waits for other ranks, with one exception: NCCL connects the ranks of a group when it uses an algorithm for
// the first time, and two ranks at their first message in a direction. That call returns only when all of them have
// come, or at the deadline. Connect does this ahead of time.
//
// On a GPU, Wait cannot report a failure that comes later, and the kernels of an aborted collective end early: their
// results are garbage that looks finite. So ask Health after each read-back to the host, before the values are used.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"

namespace muster::collectives {

// A collective in progress. Dropping it before it is done may fail the group, because peers may still read its tensors.
class Work {
 public:
  virtual ~Work() = default;
  // On a CPU: returns when it is done. On a GPU: makes the current stream wait for it and returns at once; a later call
  // of the group returns its failure.
  virtual absl::Status Wait() = 0;
  // Never blocks. On a CPU, true: Wait returns at once, with the result or the failure. On a GPU, true: the device has
  // finished it, or it has failed. False is no promise that polling ends: some transports (Gloo's messages) make
  // progress, or can be asked, only in Wait.
  virtual bool done() const = 0;
  // After Wait, on a CPU: when it was done.
  virtual std::optional<std::chrono::steady_clock::time_point> done_at() const { return std::nullopt; }
};

// One rank's share of a tensor: `values`, maybe empty, owned by rank `root`.
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
  // In place, one collective for all `wholes`. Each is [size * n], with an n of its own, maybe 0; rank r's range is the
  // n elements from r * n. AllGather copies each rank's range to every rank; ReduceScatter leaves rank r the sum over
  // ranks in its range and overwrites the others. Between CPUs bit-equal to BroadcastShares and ReduceShares of the
  // same ranges. InvalidArgument, from Wait: `size` does not divide a whole; the group stays usable.
  virtual std::unique_ptr<Work> AllGather(std::vector<at::Tensor> wholes) = 0;
  virtual std::unique_ptr<Work> ReduceScatter(std::vector<at::Tensor> wholes) = 0;
  // In place, from `root`.
  virtual std::unique_ptr<Work> Broadcast(at::Tensor values, int root) = 0;
  // All-gather and reduce-scatter of uneven shares as one collective: each share is broadcast from, or summed at, its
  // root. A reduction overwrites the share on the other ranks. Between CPUs sums are in rank order.
  virtual std::unique_ptr<Work> BroadcastShares(std::vector<RankShare> shares) = 0;
  virtual std::unique_ptr<Work> ReduceShares(std::vector<RankShare> shares) = 0;
  // Between two ranks; those of one pair and direction match in order, with the same size and dtype. Either may be
  // issued long before the other, and many be in flight. Between CPUs a Send is done when the receiver has the message,
  // so not before its Recv is issued; NCCL may buffer a small one. On a GPU either occupies the communication stream
  // until the other is there, and all later work of the group waits behind it: opposite directions, and other pairs of
  // ranks, take groups of their own.
  virtual std::unique_ptr<Work> Send(at::Tensor values, int to) = 0;
  virtual std::unique_ptr<Work> Recv(at::Tensor values, int from) = 0;
  // `send` and `receive` are [size * n], and may not overlap: rank r's n elements from s * n go to rank s, where they
  // lie from r * n. InvalidArgument, from Wait: `size` does not divide them, or they differ; the group stays usable.
  std::unique_ptr<Work> AllToAll(const at::Tensor& send, const at::Tensor& receive);
  // Returns when every rank has called it.
  virtual absl::Status Barrier() = 0;

  // The group's failure, or OK. Asked after a read-back to the host that itself came after the waits of all collectives
  // so far, OK means that those collectives delivered their results; if one was aborted, it is the failure. Asks the
  // transport, so it may find a failure that no one has seen yet. Thread-safe.
  virtual absl::Status Health() = 0;

  // Of a CUDA graph with this group's collectives; nothing on a CPU. What is issued and waited for between BeginCapture
  // and EndCapture becomes part of a graph and does not run. No other thread may issue, and every rank captures the
  // same collectives and launches the graph equally often, or none does. BeginCapture first waits until the device has
  // finished all collectives so far, because no event of theirs may be queried during a capture; errors as Wait. What
  // fails during a capture fails the capture and not the group, unless the communicator itself has failed.
  //
  // Launched is called after each launch, with its stream as the current one: the deadline of a collective then holds
  // for the whole graph. When the group fails, its Abort ends only once its graphs are destroyed, so after any error
  // destroy them before anything else is waited for.
  virtual absl::Status BeginCapture() { return absl::OkStatus(); }
  virtual void EndCapture() {}
  virtual absl::Status Launched() { return absl::OkStatus(); }

 private:
  // By messages between all pairs of ranks.
  virtual std::unique_ptr<Work> IssueAllToAll(const at::Tensor& send, const at::Tensor& receive);
};

// Called by ranks `from` and `to` at once: sends one element, so that later messages in this direction are issued
// without waiting for the other rank. The token is on `device`. Errors are those of Send and Recv, and are final.
absl::Status Connect(Group& group, int from, int to, c10::Device device);

}  // namespace muster::collectives
