// A worker daemon's end of the stream (proto/workers_service.proto), for tests and benchmarks of a real coordinator. It
// sends what the test asks for, and keeps the newest message of each kind it receives.
//
//   FakeWorker worker(address, {.node = "n1"});
//   RankKey key;
//   ASSERT_TRUE(worker.WaitForRun(&key));
//   worker.SendObserved(key, RANK_STATE_RUNNING);
//
// Thousands of them fit into one process, because none has a thread. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <grpcpp/support/status.h>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/rpc/rpc.h"
#include "common/version.h"
#include "proto/workers_service.grpc.pb.h"

namespace muster {

class FakeWorker {
 public:
  struct Options {
    std::string node = "n1";
    std::string incarnation = "i1";
    std::string boot = "boot";
    uint32_t slots = 1;                         // of one core each
    uint64_t memory_bytes = uint64_t{8} << 30;  // of each slot
    std::vector<RankKey> running;               // in its first full report
    std::string store_id;                       // that its ranks belong to
    uint64_t term = 0;                          // the highest that it has seen
    Protocols protocols;                        // that it speaks
    rpc::Security security;
    bool wait_for_ready = false;  // the coordinator may not serve yet
    // Reports each desired rank as running, and each rank to stop as stopped, as soon as it receives them.
    bool obedient = false;
    // Called with true after Welcome, and with false when that stream ends. Runs on a gRPC thread and must not block.
    std::function<void(bool)> on_contact;
  };

  // Connects, sends Hello, and after Welcome a full report that lists `running`.
  FakeWorker(const std::string& address, Options options);
  ~FakeWorker();  // breaks the stream
  FakeWorker(const FakeWorker&) = delete;

  // Reconnects on a new stream; the full report lists the ranks that run now. REQUIRES: ended().
  void Connect();
  // Breaks the stream, without waiting for its end.
  void Break();
  bool welcome() const;
  std::string store_id() const;  // of the coordinator
  uint64_t term() const;         // of its last message
  uint32_t protocol() const;     // that the coordinator chose
  bool ended() const;
  Workers::Stub& stub() { return *stub_; }

  bool WaitForWelcome();
  // Returns a rank that this node should run, and its table's hash.
  bool WaitForRun(RankKey* key, std::string* table_sha256 = nullptr);
  // Waits until this node should run exactly `count` ranks, and returns them.
  bool WaitForRuns(size_t count, std::vector<RankKey>* keys);
  bool WaitForRecordsAck(uint64_t sequence);
  bool WaitForLogsAck(uint64_t offset);
  bool WaitForHeartbeat(uint64_t number);
  bool WaitForEnd(grpc::Status* status);

  void SendObserved(const RankKey& key, RankState state, RankExit::Cause cause = RankExit::CAUSE_UNSPECIFIED);
  // Reports `step` for each rank that runs, and which op it is at (ObservedRank.op); sends nothing if there is none.
  void SendStep(uint64_t step, uint64_t op = 0);
  void SendRecords(const RankKey& key, const std::vector<Record>& records);
  void SendLog(const RankKey& key, uint64_t offset, const std::string& text);
  void SendHeartbeat(uint64_t number);

  // Sends what a trainer of `steps` steps reports over a whole run: RUNNING, a metric per step, Finished, EXITED.
  // Record sequences start at 1.
  void RunToTheEnd(const RankKey& key, uint64_t steps);

 private:
  class Stream;

  bool Wait(const std::function<bool()>& condition) ABSL_LOCKS_EXCLUDED(mutex_);
  void Send(WorkerMessage message) ABSL_LOCKS_EXCLUDED(mutex_);
  void Receive(const CoordinatorMessage& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Ended(const grpc::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  const std::unique_ptr<Workers::Stub> stub_;

  mutable absl::Mutex mutex_;
  std::unique_ptr<Stream> stream_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = true;
  grpc::Status status_ ABSL_GUARDED_BY(mutex_);
  bool welcome_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t term_ ABSL_GUARDED_BY(mutex_) = 0;
  uint32_t protocol_ ABSL_GUARDED_BY(mutex_) = 0;
  std::string store_id_ ABSL_GUARDED_BY(mutex_);
  Desired desired_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, RankKey> running_ ABSL_GUARDED_BY(mutex_);  // by their bytes
  uint64_t records_ack_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t logs_ack_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t heartbeat_ ABSL_GUARDED_BY(mutex_) = 0;
};

Record MetricRecord(uint64_t sequence, uint64_t step, double loss);
Record RunningRecord(uint64_t sequence);
Record FinishedRecord(uint64_t sequence, uint64_t step);

}  // namespace muster
