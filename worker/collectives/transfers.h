// Collectives by memory reads between ranks on one machine. A thread of each rank runs them in the order of their
// issue, overlapped with compute. It reads the other ranks' shares directly from their tensors and adds those of which
// it is the root, chunk by chunk in its cache; then it reads the other roots' results into its own tensors. There are
// no receive buffers.
//
// Wait returns only when every rank has finished, because a rank's tensors are read until then. A failing rank sets the
// flag in its control page before its tensors are reused, and readers check that flag before they accept data.
//
// Begin is called by one thread, everything else by any.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "worker/collectives/group.h"
#include "worker/collectives/neighbours.h"
#include "worker/collectives/steady.h"

namespace muster::collectives {

struct Transfer;  // one collective in progress

class Transfers {
 public:
  enum class Kind {
    kBroadcast,  // each share from its root to every rank
    kReduce,     // each share summed at its root, in the order of the ranks
    kAllReduce,  // each share summed at its root, in the order of Gloo's ring, and from there to every rank
  };

  // `timeout`: of a transfer, from its issue.
  Transfers(std::unique_ptr<Neighbours> neighbours, absl::Duration timeout);
  // Stops.
  ~Transfers();
  Transfers(const Transfers&) = delete;

  // `shares` have the same sizes, roots and dtype on every rank, and elements in at least one.
  std::shared_ptr<Transfer> Begin(Kind kind, std::vector<RankShare> shares);
  // Returns when every rank has finished it. Unavailable: the deadline passed, a rank has ended or aborted, or the
  // ranks disagree on the transfer; this rank's tensors are then no longer written.
  absl::Status Wait(const Transfer& transfer);
  // Whether Wait would return at once: every rank has finished it, it has failed, or its deadline has passed.
  bool Done(const Transfer& transfer) const;
  // For a transfer that will not be waited for: stops, unless every rank has finished it.
  void Abandon(const Transfer& transfer);
  // Fails the transfers in progress and all later ones. This rank's tensors are no longer written.
  void Stop(const absl::Status& why);

  // The first failure, or OK.
  absl::Status Failure() const;

  // After Wait: when this rank had its result; others may have read from it for longer.
  static std::chrono::steady_clock::time_point DoneAt(const Transfer& transfer);

 private:
  using Scratch = std::unique_ptr<std::byte[]>;
  // The addresses of the shares in each rank's memory.
  using Addresses = std::vector<std::vector<uint64_t>>;

  // The newest transfer that every rank has finished.
  uint64_t Over() const;
  void Publish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Forget() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Wanted() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void Run();
  absl::Status Carry(Transfer& transfer);
  absl::Status Sum(const Transfer& transfer);
  absl::Status SumChunk(const Transfer& transfer, const Addresses& theirs, size_t share, size_t begin, size_t bytes);
  absl::Status Fetch(const Transfer& transfer);
  absl::StatusOr<std::vector<uint64_t>> Ask(const Transfer& transfer, int rank, ControlPage::Counter counter);
  absl::Status Read(int rank, uint64_t from, uint64_t to, size_t bytes);
  absl::Status Await(int rank, ControlPage::Counter counter, uint64_t number, SteadyPoint deadline) const;

  void Fail(const absl::Status& why);

  const std::unique_ptr<Neighbours> neighbours_;
  const absl::Duration timeout_;
  std::array<Scratch, 2> scratch_;  // the thread's

  mutable absl::Mutex mutex_;
  std::deque<std::shared_ptr<Transfer>> transfers_
      ABSL_GUARDED_BY(mutex_);  // those that a rank may still read, in order
  uint64_t issued_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t posted_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t carried_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);  // the first

  absl::Mutex ending_;
  std::thread thread_ ABSL_GUARDED_BY(ending_);
};

}  // namespace muster::collectives
