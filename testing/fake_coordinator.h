// A coordinator for tests of what connects to one: real gRPC on a Unix socket, state in memory. It can go away and come
// back.
//
// It records a worker's messages and deduplicates like the real one; clients get the answers of a FakeStore.
//
// Thread-safe.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <grpcpp/server.h>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "proto/workers_service.grpc.pb.h"
#include "testing/fake_store.h"

namespace muster {

class FakeCoordinator final : public Workers::Service {
 public:
  struct Received {
    std::vector<Record> records;  // without repetitions
    std::string log;
    std::vector<ObservedRank> observed;  // each that differed from the one before
    bool whole = false;                  // its end was reported while it was desired: no record may follow
  };

  // `path`: of its Unix socket. `store`: for clients, not owned; null: it serves workers only.
  explicit FakeCoordinator(std::string path, FakeStore* store = nullptr) : path_(std::move(path)), store_(store) {}
  ~FakeCoordinator() override { GoAway(); }

  std::string address() const { return "unix:" + path_; }
  void Serve();
  // Breaks its streams as a killed process would: without a status. Keys of the rendezvous are lost.
  void GoAway();

  // ---- Set before Serve, or while it serves. ----
  void Want(const Desired& desired);  // sent at once
  void SetAcknowledging(bool on);     // of records; turned on, it acknowledges all that it has
  void set_answering(bool on);        // echo heartbeats
  void set_term(uint64_t term);
  void set_orphan_grace(absl::Duration grace);
  void set_refusal(const grpc::Status& status);  // of every Hello
  void set_store_id(const std::string& id);      // workers of another store are refused; empty: none is
  void SetKey(const std::string& name, const std::string& value);

  // What FetchTable answers, whatever is asked for.
  void SetTable(const grpc::Status& status, const std::string& bytes);
  // How often it was asked since then.
  int table_fetches() const;

  Received Of(const RankId& rank) const;
  // The newest state, UNSPECIFIED when there is none.
  RankState StateOf(const RankId& rank) const;
  // EXITED was reported; how.
  RankExit ExitOf(const RankId& rank) const;
  uint64_t StepOf(const RankId& rank) const;  // of the newest metrics
  StuckRanks stuck() const;                   // as reported last
  Preflight preflight() const;                // likewise; without a time: none yet
  uint64_t heartbeats() const;
  uint64_t hellos() const;
  uint64_t full_reports() const;
  Node node() const;
  bool HasKey(const std::string& name) const;
  void set_refusing_keys(bool on);  // sets of keys are answered UNAVAILABLE
  int refused_keys() const;
  std::string faults() const;  // of the worker, against the contract; empty: none

  grpc::Status Connect(grpc::ServerContext* context,
                       grpc::ServerReaderWriter<CoordinatorMessage, WorkerMessage>* stream) override;
  grpc::Status RendezvousSet(grpc::ServerContext* context, const RendezvousSetRequest* request,
                             RendezvousSetReply* reply) override;
  grpc::Status RendezvousGet(grpc::ServerContext* context, const RendezvousGetRequest* request,
                             RendezvousGetReply* reply) override;
  grpc::Status FetchTable(grpc::ServerContext* context, const FetchTableRequest* request,
                          grpc::ServerWriter<TableChunk>* writer) override;

 private:
  using Stream = grpc::ServerReaderWriter<CoordinatorMessage, WorkerMessage>;

  void Receive(const WorkerMessage& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReceiveRecords(const Records& records) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReceiveLogs(const Logs& logs) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReceiveObserved(const Observed& observed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsDesired(const RankKey& key) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Acknowledge(const RankId& rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendDesired() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Say(CoordinatorMessage message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string path_;
  FakeStore* const store_;
  std::vector<std::unique_ptr<grpc::Service>> client_services_;
  std::unique_ptr<grpc::Server> server_;

  mutable absl::Mutex mutex_;
  Stream* stream_ ABSL_GUARDED_BY(mutex_) = nullptr;
  Desired desired_ ABSL_GUARDED_BY(mutex_);
  bool acknowledging_ ABSL_GUARDED_BY(mutex_) = true;
  bool answering_ ABSL_GUARDED_BY(mutex_) = true;
  bool away_ ABSL_GUARDED_BY(mutex_) = true;
  uint64_t term_ ABSL_GUARDED_BY(mutex_) = 1;
  absl::Duration orphan_grace_ ABSL_GUARDED_BY(mutex_) = absl::Minutes(30);
  grpc::Status refusal_ ABSL_GUARDED_BY(mutex_);
  std::string store_id_ ABSL_GUARDED_BY(mutex_);
  bool refusing_keys_ ABSL_GUARDED_BY(mutex_) = false;
  int refused_keys_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, std::string> keys_ ABSL_GUARDED_BY(mutex_);
  grpc::Status table_status_ ABSL_GUARDED_BY(mutex_);
  std::string table_ ABSL_GUARDED_BY(mutex_);
  int table_fetches_ ABSL_GUARDED_BY(mutex_) = 0;

  std::map<RankId, Received> received_ ABSL_GUARDED_BY(mutex_);
  StuckRanks stuck_ ABSL_GUARDED_BY(mutex_);
  Preflight preflight_ ABSL_GUARDED_BY(mutex_);
  uint64_t heartbeats_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t hellos_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t full_reports_ ABSL_GUARDED_BY(mutex_) = 0;
  Node node_ ABSL_GUARDED_BY(mutex_);
  std::string faults_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace muster
