// Shared by the server's tests: a folder, clients, and a worker daemon that is only a stream.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/rpc/rpc.h"
#include "proto/jobs_service.grpc.pb.h"
#include "proto/trust_service.grpc.pb.h"
#include "proto/workers_service.grpc.pb.h"

namespace muster::server {

// Polls until the condition is true; false after `deadline`.
bool Eventually(const std::function<bool()>& condition, absl::Duration deadline = absl::Seconds(20));

// A job of kSmallSteps steps that needs one slot and writes no checkpoints.
inline constexpr uint64_t kSmallSteps = 10;
JobSpec SmallSpec(const std::string& name);

class Client {
 public:
  // `address`: in gRPC's form.
  explicit Client(const std::string& address, std::string token = "", const rpc::Security& security = {});

  // If OK, `reply` is set.
  grpc::Status Submit(const std::string& request_id, const JobSpec& spec, SubmitReply* reply);
  // CHECK-fails unless accepted.
  std::string MustSubmit(const std::string& name);
  grpc::Status Get(const std::string& job, GetJobReply* reply);
  JobState StateOf(const std::string& job);
  // Reads until the stream ends, or until `enough` accepts the items read (then it cancels, and returns OK).
  grpc::Status Watch(const WatchRequest& request, std::vector<WatchItem>* items,
                     const std::function<bool(const std::vector<WatchItem>&)>& enough = nullptr);
  std::unique_ptr<grpc::ClientContext> Context(absl::Duration deadline = absl::Seconds(30)) const;

  Jobs::Stub& jobs() { return *jobs_; }
  Nodes::Stub& nodes() { return *nodes_; }
  Admin::Stub& admin() { return *admin_; }
  Workers::Stub& workers() { return *workers_; }
  Trust::Stub& trust() { return *trust_; }
  const std::shared_ptr<grpc::Channel>& channel() { return channel_; }

 private:
  const std::string token_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<Jobs::Stub> jobs_;
  const std::unique_ptr<Nodes::Stub> nodes_;
  const std::unique_ptr<Admin::Stub> admin_;
  const std::unique_ptr<Workers::Stub> workers_;
  const std::unique_ptr<Trust::Stub> trust_;
};

// A worker daemon's stream. It sends only what the test asks for, and keeps the newest message of each kind it
// receives.
class FakeWorker {
 public:
  // Sends Hello with one CPU slot of that memory, and after Welcome a full report that lists `running`.
  FakeWorker(const std::string& address, const std::string& node, const std::string& incarnation,
             const std::string& boot = "boot", std::vector<RankKey> running = {}, const rpc::Security& security = {},
             uint64_t memory_bytes = uint64_t{8} << 30);
  ~FakeWorker();  // breaks the stream

  bool WaitForWelcome();
  // The rank that this node should run, with a goal of that kind, and its table's hash.
  bool WaitForRun(RankKey* key, std::string* table_sha256 = nullptr);
  bool WaitForRecordsAck(uint64_t sequence);
  bool WaitForLogsAck(uint64_t offset);
  bool WaitForHeartbeat(uint64_t number);
  bool WaitForEnd(grpc::Status* status);

  void SendObserved(const RankKey& key, RankState state, RankExit::Cause cause = RankExit::CAUSE_UNSPECIFIED);
  void SendRecords(const RankKey& key, const std::vector<Record>& records);
  void SendLog(const RankKey& key, uint64_t offset, const std::string& text);
  void SendHeartbeat(uint64_t number);

  // Sends what a trainer of SmallSpec reports over a whole run: RUNNING, a metric per step, Finished, EXITED. Record
  // sequences start at 1.
  void RunToTheEnd(const RankKey& key);

 private:
  bool Wait(const std::function<bool()>& condition);
  void Send(const WorkerMessage& message);
  void Read();

  const std::vector<RankKey> running_;
  const std::unique_ptr<Workers::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<WorkerMessage, CoordinatorMessage>> stream_;

  absl::Mutex writing_;  // the reader sends the full report
  absl::Mutex mutex_;
  bool welcome_ = false;
  Desired desired_;
  uint64_t records_ack_ = 0;
  uint64_t logs_ack_ = 0;
  uint64_t heartbeat_ = 0;
  bool ended_ = false;
  grpc::Status status_;
  std::thread reader_;
};

Record MetricRecord(uint64_t sequence, uint64_t step, double loss);
Record RunningRecord(uint64_t sequence);
Record FinishedRecord(uint64_t sequence, uint64_t step);

}  // namespace muster::server
