// For tests: a fake worker daemon, a trainer process, and a small job to run.
//
//   Bench bench;                                         // a temporary folder, token files, a fake worker
//   JobSpec spec = bench.MakeJob();
//   Process trainer = bench.Start(bench.Assign(spec, /*generation=*/1));
//   EXPECT_EQ(trainer.Wait(), 0);
//
// A failure of the bench itself ends the test program with a message.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/records.pb.h"
#include "proto/worker.pb.h"
#include "testing/temporary_folder.h"

namespace muster::trainer {

// Serves the Trainer service on a Unix socket. Thread-safe.
class FakeTrainerServer {
 public:
  explicit FakeTrainerServer(std::string socket);
  ~FakeTrainerServer();
  const std::string& socket() const;

  void Start();
  void Stop();  // breaks every stream

  // Sent at once on open streams, and first on new ones.
  void Assign(const Assignment& assignment);
  void SendStop(bool checkpoint_first);
  // Whether the worker is connected to a coordinator, which may then receive every record. Initially false.
  void Contact(bool contact);
  // Attach fails with FAILED_PRECONDITION.
  void RefuseVersions();

  int attaches() const;  // streams opened so far
  uint64_t reported_step() const;
  int reports() const;  // calls so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A process with the environment that the worker daemon gives a trainer, plus MUSTER_FAILPOINTS and the variables that
// limit the instruction set.
class Process {
 public:
  // Output goes to files beginning with `log`.
  Process(std::vector<std::string> argv, std::string log);
  Process(Process&& other) noexcept;
  Process& operator=(Process&&) = delete;
  ~Process();  // kills it

  // The exit code, or 128 + the signal's number; -1, and its log on stderr, after the deadline.
  int Wait(absl::Duration deadline = absl::Seconds(120));
  void Signal(int signal);
  bool Running();
  pid_t pid() const { return pid_; }
  std::string Output() const;  // stdout
  std::string Log() const;     // stderr
  std::string LastLine() const;

 private:
  bool Reap();
  std::string log_;
  pid_t pid_ = -1;
  std::optional<int> exit_;
};

// muster-trainer with these arguments.
Process StartTrainer(std::vector<std::string> arguments, std::string log);

class Bench {
 public:
  Bench();

  std::string Path(const std::string& name) const { return folder_.path() + "/" + name; }
  FakeTrainerServer& worker() { return worker_; }

  // Writes a token file.
  std::string WriteTokens(const std::string& name, const std::vector<uint16_t>& tokens) const;

  // Resolved: GPT-2 of 2 layers, width 32, context 16, bytes; AdamW; checkpoints in Path("checkpoints").
  JobSpec MakeJob() const;
  // The assignment that a coordinator would send to one of `world` ranks.
  Assignment Assign(const JobSpec& spec, uint64_t generation, uint32_t world = 1, uint32_t rank = 0) const;
  // Marks the job's checkpoints as published; the assignment resumes from the newest.
  void Publish(Assignment& assignment) const;
  // `more`: further arguments of `muster-trainer run`.
  Process Start(const Assignment& assignment, const std::vector<std::string>& more = {});

  std::string RankDir(const Assignment& assignment) const;
  std::vector<Record> Records(const Assignment& assignment) const;
  uint64_t StepOf(const Assignment& assignment) const;  // from its progress page; 0: no page yet
  // SHA-256 of the shard of the newest checkpoint, and its step.
  std::pair<uint64_t, std::string> NewestWeights(const JobSpec& spec) const;

 private:
  TemporaryFolder folder_;
  FakeTrainerServer worker_;
};

}  // namespace muster::trainer
