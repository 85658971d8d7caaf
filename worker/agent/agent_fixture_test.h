// For tests: real worker daemons, shims and fake trainers around a fake coordinator, in a folder of their own.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "common/ids.h"
#include "proto/worker.pb.h"
#include "testing/fake_coordinator.h"
#include "testing/temporary_folder.h"
#include "testing/wait.h"
#include "worker/rundir/rundir.h"

namespace muster::agent {

class AgentTest : public ::testing::Test {
 protected:
  AgentTest();
  ~AgentTest() override;  // ends every process that the test started
  void TearDown() override;

  // ---- The daemon. ----
  void StartWorker(const std::vector<std::string>& more_flags = {});
  void KillWorker();          // SIGKILL
  int EndWorker(int signal);  // its exit code, -1 if a signal ended it
  int WaitWorker();           // likewise, when it ends by itself
  pid_t worker_pid() const { return worker_; }
  // A daemon whose end is waited for, and what it wrote to stderr.
  int RunWorker(const std::vector<std::string>& more_flags, std::string& errors);
  std::string trainer() const;

  // ---- Requests. `behaviour`: see fake_trainer.cc. ----
  static RankId Id(const std::string& job, uint32_t rank = 0) { return {JobId(job), 1, rank}; }
  static DesiredRank Run(const RankId& rank, const std::string& behaviour, uint64_t steps = 0);
  static DesiredRank StopRequest(const RankId& rank, bool checkpoint_first, absl::Duration deadline);
  void Want(const std::vector<DesiredRank>& ranks);
  // Serves, starts the daemon, and requests one rank of the job named like its behaviour (no steps: it runs until it is
  // stopped); waits until the coordinator has received that step.
  RankId StartRank(const std::string& behaviour, uint64_t steps, uint64_t until_step);

  rundir::RankDir Dir(const RankId& rank) const { return {run_, rank}; }
  rundir::Processes ProcessesOf(const RankId& rank);  // once they are there
  bool Exited(const RankId& rank) const { return coordinator_.StateOf(rank) == RANK_STATE_EXITED; }
  // RUNNING, then metrics of steps 1..n, then Finished.
  void ExpectWholeHistory(const RankId& rank, uint64_t steps);
  // Of a rank without end ("count" with no steps): stops it with a checkpoint, waits for its exit, and expects RUNNING,
  // metrics of every step, and the checkpoint of the last one.
  void StopAndExpectWholeHistory(const RankId& rank);

  TemporaryFolder folder_;
  const std::string run_;
  FakeCoordinator coordinator_;
  std::vector<std::string> launcher_;  // what starts the daemon, with its arguments; empty: nothing does

 private:
  std::vector<std::string> Arguments(const std::vector<std::string>& more_flags) const;
  pid_t worker_ = 0;
};

}  // namespace muster::agent
