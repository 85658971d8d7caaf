// Memory access between the ranks of a group on one machine and in one network namespace (process_vm_readv, "cross
// memory attach", as MPI libraries do inside a node): one copy, no socket, no thread on the other side.
//
// Meet probes whether this works, because containers, Yama, seccomp and processes that are not dumpable forbid it.
// Every rank publishes an offer in the rendezvous, reads a word of every other rank's memory, and publishes whether
// that worked. The group uses memory reads only if they worked on all ranks, so all ranks decide alike.
//
// Under Yama only its ancestors may read a process, so Meet allows every process of the same user
// (PR_SET_PTRACER_ANY), which is the rule without Yama.
//
// Thread-safe after Meet.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/collectives/control_page.h"
#include "worker/collectives/key_value.h"
#include "worker/collectives/steady.h"

namespace muster::collectives {

class Neighbours {
 public:
  struct Options {
    int rank = 0;
    int size = 1;
    std::string name;      // of the group
    bool willing = true;   // false: this rank, and so the group, declines
    SteadyPoint deadline;  // for all ranks to join
  };

  // Fails alike on every rank, and names the rank. FailedPrecondition: the ranks are on several machines, or one
  // declines. PermissionDenied: one may not read another's memory. Unavailable: a rank did not join.
  static absl::StatusOr<std::unique_ptr<Neighbours>> Meet(const Options& options, KeyValue& rendezvous);
  ~Neighbours();
  Neighbours(const Neighbours&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(others_.size()); }
  ControlPage& own() const { return **own_; }
  const ControlPage& page(int rank) const;

  // Copies `bytes` from the address `from` in another rank's memory. Unavailable: that memory is gone.
  absl::Status Read(int rank, uint64_t from, void* to, size_t bytes) const;
  // Validates data read from a rank before. OK: the data was what the rank had posted, because a rank keeps it until
  // all ranks have finished or it has published its failure. Unavailable: the rank has ended or aborted.
  absl::Status Believe(int rank) const;

  // Returns when `counter` of a rank's page, which may be the own one, has reached `number`. DeadlineExceeded: it has
  // not by `deadline`. Cancelled: this rank has failed. Unavailable: as Believe.
  absl::Status Await(int rank, ControlPage::Counter counter, uint64_t number, SteadyPoint deadline) const;

 private:
  struct Other {
    pid_t process = 0;
    int pidfd = -1;
    std::unique_ptr<MappedPage> page;
  };

  Neighbours(int rank, int size) : rank_(rank), others_(static_cast<size_t>(size)) {}
  absl::StatusOr<std::string> Offer();
  absl::Status Reach(int rank, const std::string& offer);

  const int rank_;
  std::vector<Other> others_;  // by rank
  std::unique_ptr<MappedPage> own_;
  uint64_t probe_ = 0;  // the word that the other ranks read as a probe
};

}  // namespace muster::collectives
