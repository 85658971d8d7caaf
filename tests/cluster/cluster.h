// A whole service of real processes for a test: coordinator, worker daemons, shims, trainers, driven by the CLI as a
// user drives it. Everything is in one temporary folder and ends with the object.
//
//   Cluster cluster;
//   cluster.StartCoordinator();
//   cluster.StartWorker(0, /*slots=*/1);
//   const Ran ran = cluster.Muster({"submit", "-d", cluster.WriteJob({}), "-o", "name"});
//
// Not thread-safe. Failures to start are GoogleTest failures with the daemon's log.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include "absl/time/time.h"
#include "cli/client.h"

namespace muster::cluster {

struct Ran {
  int exit_code = -1;  // 128 + signal if it was killed by one
  std::string out;
  std::string err;
};

// A job of about a second: 2 layers, width 32, context 16, byte vocabulary.
struct JobOptions {
  std::string name = "small";
  int steps = 40;
  int checkpoint_every = 10;
  int priority = 0;
  int sequences = 4;        // per step; microbatches of 2
  std::string checkpoints;  // checkpoint.path; empty: CheckpointPath(name)
  std::string extra;        // YAML lines at the end
};

class Cluster {
 public:
  Cluster();
  ~Cluster();
  Cluster(const Cluster&) = delete;

  const std::string& folder() const { return folder_; }
  // In a folder of its own, so that a test may open folder() to other users.
  std::string address() const { return "unix:" + folder_ + "/socket/c.sock"; }

  // Flags of later starts, e.g. "--orphan-grace=2s".
  std::vector<std::string> coordinator_flags;
  std::vector<std::string> worker_flags;
  std::string coordinator_state;  // its state folder; empty: always the same one
  // The address that workers dial; empty: address().
  std::string worker_coordinator;
  // Environment of everything that starts later, including the CLI: "NAME=value".
  std::vector<std::string> environment;
  // A prefix for the command of a daemon ("coordinator", "w0"), e.g. to start it in another host's network.
  std::function<std::vector<std::string>(const std::string& name)> prefix;

  void StartCoordinator();
  void StartWorker(int index, int slots);
  // Sends SIGKILL, and waits until the process is gone.
  void KillCoordinator();
  void KillWorker(int index);
  // Sends SIGTERM; returns the exit code.
  int StopCoordinator();
  int StopWorker(int index);

  // Runs the CLI against this cluster's coordinator.
  Ran Muster(const std::vector<std::string>& arguments, absl::Duration deadline = absl::Seconds(120));
  // The same for a line of bash that runs `muster`, in the caller's folder.
  Ran Shell(const std::string& line, const std::string& folder, absl::Duration deadline = absl::Seconds(120));
  nlohmann::json MusterJson(std::vector<std::string> arguments);

  // Writes <name>.yaml beside a token file of real English and returns its path.
  std::string WriteJob(const JobOptions& options);
  // Submits it detached and returns the job's id.
  std::string Submit(const JobOptions& options);
  nlohmann::json Job(const std::string& id);
  // These and WaitFor... call the coordinator from this process: a process of the CLI for each poll takes more of the
  // machine than the job.
  std::string State(const std::string& id);    // "running"
  uint64_t Generation(const std::string& id);  // the newest
  // Polls until the job is in that state; a test failure at the deadline, or if it ends otherwise.
  bool WaitForState(const std::string& id, const std::string& state, absl::Duration deadline = absl::Minutes(5));
  bool WaitForStep(const std::string& id, uint64_t step, absl::Duration deadline = absl::Minutes(5));
  // Cancels a job that runs, and waits until it has ended.
  void Cancel(const std::string& id);

  // Of a job; without an id: of all jobs and nodes. In order.
  std::vector<nlohmann::json> Events(const std::string& id = "");
  // Nodes that counted as lost since then, and ranks of the job that counted as hung. Each may have cost a generation,
  // and on a busy machine a pause of a daemon or of a trainer is enough for one.
  uint64_t LostOrHung(const std::string& id, absl::Time since = absl::InfinitePast());

  // Of all metrics that the coordinator has received, in order; a step that was repeated appears again.
  std::vector<uint64_t> Steps(const std::string& id);
  // The metrics of every step that the coordinator has received, in order; of a repeated step the last.
  std::vector<double> Losses(const std::string& id);

  // -1: not running.
  pid_t CoordinatorPid() const { return coordinator_.pid; }
  pid_t WorkerPid(int index) const;
  // Where a worker keeps its ranks; for all workers that were ever started.
  std::string RunDir(int index) const;
  std::vector<std::string> RunDirs() const;
  // Pids of live trainers, and of muster-exec in their place, in order.
  std::vector<pid_t> Trainers() const;
  // SHA-256 of the shards in the newest checkpoint of a job's checkpoint folder, and its step.
  std::pair<uint64_t, std::string> FinalWeights(const std::string& name) const;
  std::string CheckpointPath(const std::string& name) const { return folder_ + "/checkpoints-" + name; }

 private:
  struct Daemon {
    pid_t pid = -1;
    std::string log;
  };
  Ran Run(const std::vector<std::string>& argv, absl::Duration deadline);
  v1::GetJobReply GetJob(const std::string& id);  // empty if the coordinator did not answer
  Daemon Spawn(const std::vector<std::string>& command, const std::string& name);
  int WaitFor(Daemon& daemon, absl::Duration deadline);
  std::string LogTail(const std::string& path) const;

  std::string folder_;
  std::unique_ptr<cli::Client> client_;
  Daemon coordinator_;
  std::map<int, Daemon> workers_;
};

// 64-bit numbers are strings in protobuf's JSON.
uint64_t Number(const nlohmann::json& value);

}  // namespace muster::cluster
