// A coordinator and workers on this machine, for one user: `muster local`.
//
// Below the state folder: coordinator/ and worker-N/ with the daemons' own files (worker-N is the node node-N), and
// NAME.pid, NAME.log and, of workers, NAME.slots for each daemon.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/config.h"
#include "cli/local/process.h"
#include "proto/job.pb.h"

namespace muster::cli {

struct LocalFolders {
  std::string state;    // $XDG_STATE_HOME/muster/local
  std::string runtime;  // holds the coordinator's socket
  std::string bin;      // holds muster-coordinator and muster-worker

  std::string Address() const { return "unix:" + runtime + "/coordinator.sock"; }
};

struct LocalDaemon {
  std::string name;                  // "coordinator", "worker-0"
  std::optional<ProcessId> process;  // nothing: it does not run
  std::string log;
  // Of one that runs: why no command reaches it, "the coordinator at unix:/c.sock did not answer within 5s". Empty: it
  // is reached, or was not asked.
  std::string unreachable;
};

struct LocalOptions {
  std::optional<int> nodes;  // nothing: as many as there were, else one
  int slots = 0;             // of each; 0: the worker's default
  std::string plugin_roots;  // absolute folders, with commas; empty: workers load no libraries
  // Where the coordinator serves metrics: 127.0.0.1:9464; worker-N serves them at the port N + 1 after. Empty: nowhere.
  std::string metrics_address;
  absl::Duration timeout = absl::Seconds(30);
};

class LocalService {
 public:
  // `say` receives one line for each action.
  LocalService(LocalFolders folders, std::function<void(const std::string&)> say)
      : folders_(std::move(folders)), say_(std::move(say)) {}

  // Starts the daemons that do not run and waits until the coordinator answers and `nodes` nodes are live. Leaves
  // running daemons alone. Each worker is a node of its own, node-0 and so on, with its own folders and its share of
  // the cores (ShareOfCores).
  // FailedPrecondition: another number of nodes or slots runs, or a daemon that serves metrics elsewhere; or as Check.
  // InvalidArgument: a socket's path would be too long. NotFound: a program is missing. Unavailable: a daemon ended at
  // once; the message has the end of its log. DeadlineExceeded. Internal: a worker's check of the machine found a
  // problem, so that its node takes no ranks. Aborted: another `local` command is at work.
  absl::Status Up(const LocalOptions& options);

  // Sends SIGTERM to the workers, which drain, then to the coordinator. DeadlineExceeded names the daemons that still
  // run; with `force` they are killed instead. Touches only processes that Up started. FailedPrecondition: none runs,
  // and another process listens at the address. Cancelled: `interrupted` became true; the message says what still runs,
  // and another Down finishes.
  absl::Status Down(absl::Duration timeout, bool force, const std::function<bool()>& interrupted);

  // Whether the coordinator that the state folder knows is the one that clients reach. FailedPrecondition: it runs, but
  // its socket's file is gone, as after a cleaner of /tmp; or another process listens at the address, as after a change
  // of HOME.
  absl::Status Check() const;

  // The daemons that were started here, the coordinator first.
  std::vector<LocalDaemon> List() const;

  // The same, and which of them are unreachable: a coordinator that runs is asked for its nodes, for at most `timeout`.
  std::vector<LocalDaemon> Look(absl::Duration timeout) const;

 private:
  std::string PidFile(const std::string& name) const { return folders_.state + "/" + name + ".pid"; }
  std::string SlotsFile(const std::string& name) const { return folders_.state + "/" + name + ".slots"; }
  void Forget(const std::string& name) const;  // the files of a daemon that does not run
  std::string LogFile(const std::string& name) const { return folders_.state + "/" + name + ".log"; }
  std::optional<ProcessId> Running(const std::string& name) const;
  absl::Status WhyNotLocked(const absl::Status& status) const;
  absl::Status StartCoordinator(const LocalOptions& options);
  // Whether `process` was started to serve metrics there. FailedPrecondition.
  absl::Status CheckMetricsOf(const std::string& name, const ProcessId& process, const std::string& address) const;
  // The number of workers to run.
  absl::StatusOr<int> DecideNodes(const LocalOptions& options) const;
  absl::Status CheckSocketPaths(int nodes) const;
  std::string RunFolder(const std::string& worker) const;
  absl::Status StartWorker(int index, int nodes, const LocalOptions& options);
  absl::Status Start(const std::string& name, const std::string& program, const std::vector<std::string>& arguments,
                     const std::vector<int>& cores = {});
  absl::Status WaitUntilServing(absl::Time deadline);
  absl::Status WaitUntilLive(int nodes, absl::Time began, absl::Time deadline);
  // Removes nodes of an earlier, larger service, whose slots would count else.
  void ForgetNodesAfter(int nodes);
  // Whether a job has ranks; true if the coordinator does not answer.
  bool MayHaveRanks() const;
  // Whether the node's worker was started by this call, at `began` or later, and has not reported a check since then.
  bool IsStale(const v1::Node& node, absl::Time began) const;
  // FailedPrecondition: a node has another number of slots than `wanted` (0: any).
  absl::Status CheckSlots(int wanted);
  // Unavailable if a daemon started by this call has exited. Forgets it if it never ran before.
  absl::Status CheckStarted() const;
  // `later`: what the caller stops after these, which an interruption leaves alone.
  absl::Status Stop(const std::vector<LocalDaemon>& daemons, const std::vector<LocalDaemon>& later,
                    absl::Duration timeout, bool force, const std::function<bool()>& interrupted);

  struct Started {
    std::string name;
    ProcessId process;
    uint64_t log_begin = 0;
    bool known = false;  // it ran before, and comes back
  };

  const LocalFolders folders_;
  const std::function<void(const std::string&)> say_;
  std::vector<Started> started_;
};

}  // namespace muster::cli
