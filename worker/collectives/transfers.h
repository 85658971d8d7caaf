// Collectives between neighbours. A thread of each rank carries them out in the order of their issue, while the rank
// computes: it reads the other ranks' parts straight from their tensors, adds what it is the root of, chunk by chunk in
// its cache, and reads what others are the roots of straight into its own tensors. Nothing is received into buffers.
//
// A rank's tensors are read until every rank has finished; only then does Wait return. A rank that fails says so in its
// control page before anybody uses its tensors for anything else, and whoever read them looks there before it believes
// what it read.
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

struct Transfer;  // one collective under way

class Transfers {
 public:
  enum class Kind {
    kBroadcast,  // each part from its root to every rank
    kReduce,     // each part summed at its root, in the order of the ranks
    kAllReduce,  // each part summed at its root, in the order of Gloo's ring, and from there to every rank
  };

  // `timeout`: of a transfer, from its issue.
  Transfers(std::unique_ptr<Neighbours> neighbours, absl::Duration timeout);
  // Stops.
  ~Transfers();
  Transfers(const Transfers&) = delete;

  // `parts` have the same sizes, roots and dtype on every rank, and elements in at least one.
  std::shared_ptr<Transfer> Begin(Kind kind, std::vector<RankShare> parts);
  // Returns when every rank has finished it. Unavailable: not in time, a rank has ended or given up, or ranks disagree
  // on what they transfer; then nothing is read into this rank's tensors any more.
  absl::Status Wait(const Transfer& transfer);
  // Nobody will wait for it: stops, unless every rank has finished it.
  void Abandon(const Transfer& transfer);
  // Gives up whatever is under way, and what comes after. Nothing is read into this rank's tensors any more.
  void Stop(const absl::Status& why);

  // When this rank had all that it needed, after Wait; others may have read from it for longer.
  static std::chrono::steady_clock::time_point DoneAt(const Transfer& transfer);

 private:
  using Scratch = std::unique_ptr<std::byte[]>;
  // Where the parts lie in the memory of each rank that was asked.
  using Addresses = std::vector<std::vector<uint64_t>>;

  // Up to this number, every rank has finished.
  uint64_t Over() const;
  void Publish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Forget() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Wanted() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void Run();
  absl::Status Carry(Transfer& transfer);
  absl::Status Sum(const Transfer& transfer);
  absl::Status SumChunk(const Transfer& transfer, const Addresses& theirs, size_t part, size_t begin, size_t bytes);
  absl::Status Fetch(const Transfer& transfer);
  absl::StatusOr<std::vector<uint64_t>> Ask(const Transfer& transfer, int rank, ControlPage::Counter counter);
  absl::Status Read(int rank, uint64_t from, uint64_t to, size_t bytes);
  absl::Status Await(int rank, ControlPage::Counter counter, uint64_t number, SteadyPoint deadline) const;

  void Fail(const absl::Status& why);
  absl::Status Failure() const;

  const std::unique_ptr<Neighbours> neighbours_;
  const absl::Duration timeout_;
  std::array<Scratch, 2> scratch_;  // the thread's

  mutable absl::Mutex mutex_;
  std::deque<std::shared_ptr<Transfer>> transfers_ ABSL_GUARDED_BY(mutex_);  // those that somebody may read, in order
  uint64_t issued_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t posted_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t carried_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);  // the first

  absl::Mutex ending_;
  std::thread thread_ ABSL_GUARDED_BY(ending_);
};

}  // namespace muster::collectives
