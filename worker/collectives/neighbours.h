// The ranks of a group that are all on one machine, in one network namespace, and may read each other's memory
// (process_vm_readv, "cross memory attach", as MPI libraries do inside a node): one copy, no socket, no thread of the
// other side.
//
// Whether they may is tried, not guessed: containers, Yama, seccomp and processes that are not dumpable forbid it.
// Every rank offers itself in the rendezvous, reads a word of every other, and says there whether it could; the group
// goes this way only if all of them could, so all ranks decide alike.
//
// Under Yama a process may be read by its ancestors only, so Meet allows it to every process of the same user
// (PR_SET_PTRACER_ANY), which is the rule where there is no Yama.
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
    bool willing = true;   // false: this rank declines, and so the group
    SteadyPoint deadline;  // for all ranks to come
  };

  // On every rank alike, saying which: FailedPrecondition, the ranks are on several machines or one declines;
  // PermissionDenied, one may not read another's memory. Unavailable: a rank did not come.
  static absl::StatusOr<std::unique_ptr<Neighbours>> Meet(const Options& options, KeyValue& rendezvous);
  ~Neighbours();
  Neighbours(const Neighbours&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(others_.size()); }
  ControlPage& own() const { return **own_; }
  const ControlPage& page(int rank) const;

  // Copies `bytes` at the address `from` of another rank's memory. Unavailable: it has no such memory any more.
  absl::Status Read(int rank, uint64_t from, void* to, size_t bytes) const;
  // Unavailable: the rank has ended or given up. If OK, what was read of it before was what it had posted: it keeps
  // that until everybody has finished or it has said that it gave up, and its process id was its own.
  absl::Status Believe(int rank) const;

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
  uint64_t probe_ = 0;  // what the others read first: in this process's own memory, like what they read later
};

}  // namespace muster::collectives
