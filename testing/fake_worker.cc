#include "testing/fake_worker.h"

#include <grpcpp/client_context.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/version.h"
#include "testing/wait.h"

namespace muster {
namespace {

ObservedRank Seen(const RankKey& key, RankState state, RankExit::Cause cause = RankExit::CAUSE_UNSPECIFIED) {
  ObservedRank rank;
  *rank.mutable_key() = key;
  rank.set_state(state);
  if (cause != RankExit::CAUSE_UNSPECIFIED) rank.mutable_exit()->set_cause(cause);
  return rank;
}

WorkerMessage HelloOf(const FakeWorker::Options& options) {
  WorkerMessage message;
  Hello& hello = *message.mutable_hello();
  hello.set_protocol(options.protocols.newest);
  hello.set_oldest_protocol(options.protocols.oldest);
  hello.set_store_id(options.store_id);
  hello.set_term(options.term);
  Node& node = *hello.mutable_node();
  node.set_id(options.node);
  node.set_hostname(absl::StrCat("host-of-", options.boot));
  node.set_incarnation(options.incarnation);
  node.set_boot_id(options.boot);
  node.set_version(kVersion);
  for (uint32_t i = 0; i < options.slots; ++i) {
    Slot& slot = *node.add_slots();
    slot.set_index(i);
    slot.set_device(DEVICE_CPU);
    slot.set_cores(1);
    slot.set_memory_bytes(options.memory_bytes);
  }
  return message;
}

}  // namespace

// One connection. gRPC calls it; operations are started under the worker's mutex. Tests send from their own threads,
// which a reactor allows only while it has a hold: that one ends with the last read.
class FakeWorker::Stream final : public grpc::ClientBidiReactor<WorkerMessage, CoordinatorMessage> {
 public:
  explicit Stream(FakeWorker* worker) : worker_(worker) {
    rpc::AddCallMetadata("", context_);
    context_.set_wait_for_ready(worker->options_.wait_for_ready);
    worker->stub_->async()->Connect(&context_, this);
    StartRead(&incoming_);
    outgoing_.push_back(HelloOf(worker->options_));
    StartWrite(&outgoing_.front());
    AddHold();
    StartCall();
  }

  // Under the mutex. A message to a stream that has ended is dropped.
  void Send(WorkerMessage message) {
    if (closed_) return;
    outgoing_.push_back(std::move(message));
    if (outgoing_.size() == 1) StartWrite(&outgoing_.front());
  }
  void Cancel() { context_.TryCancel(); }

  void OnReadDone(bool ok) override {
    if (!ok) return Close();
    absl::MutexLock lock(&worker_->mutex_);
    worker_->Receive(incoming_);
    incoming_.Clear();
    StartRead(&incoming_);
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return;  // the queue stays unsent
    absl::MutexLock lock(&worker_->mutex_);
    outgoing_.pop_front();
    if (!outgoing_.empty()) StartWrite(&outgoing_.front());
  }
  void OnDone(const grpc::Status& status) override {
    absl::MutexLock lock(&worker_->mutex_);
    worker_->Ended(status);  // this may be deleted from now on
  }

 private:
  void Close() {
    {
      absl::MutexLock lock(&worker_->mutex_);
      closed_ = true;
    }
    RemoveHold();
  }

  FakeWorker* const worker_;
  grpc::ClientContext context_;
  CoordinatorMessage incoming_;
  std::deque<WorkerMessage> outgoing_;  // the first is being written
  bool closed_ = false;
};

FakeWorker::FakeWorker(const std::string& address, Options options)
    : options_(std::move(options)), stub_(Workers::NewStub(rpc::Dial(address, options_.security))) {
  for (const RankKey& key : options_.running) running_[key.SerializeAsString()] = key;
  Connect();
}

FakeWorker::~FakeWorker() {
  absl::MutexLock lock(&mutex_);
  if (!ended_) stream_->Cancel();
  mutex_.Await(absl::Condition(&ended_));
}

void FakeWorker::Connect() {
  absl::MutexLock lock(&mutex_);
  welcome_ = false;
  ended_ = false;
  stream_ = std::make_unique<Stream>(this);
}

void FakeWorker::Break() {
  absl::MutexLock lock(&mutex_);
  if (!ended_) stream_->Cancel();
}

bool FakeWorker::welcome() const {
  absl::MutexLock lock(&mutex_);
  return welcome_;
}

uint64_t FakeWorker::term() const {
  absl::MutexLock lock(&mutex_);
  return term_;
}

uint32_t FakeWorker::protocol() const {
  absl::MutexLock lock(&mutex_);
  return protocol_;
}

std::string FakeWorker::store_id() const {
  absl::MutexLock lock(&mutex_);
  return store_id_;
}

bool FakeWorker::ended() const {
  absl::MutexLock lock(&mutex_);
  return ended_;
}

void FakeWorker::Send(WorkerMessage message) {
  absl::MutexLock lock(&mutex_);
  if (!ended_) stream_->Send(std::move(message));
}

void FakeWorker::Receive(const CoordinatorMessage& message) {
  WorkerMessage report;
  term_ = message.term();
  if (message.has_welcome()) {
    welcome_ = true;
    store_id_ = message.welcome().store_id();
    protocol_ = message.welcome().protocol();
    report.mutable_observed()->set_full(true);
    for (const auto& [name, key] : running_) *report.mutable_observed()->add_ranks() = Seen(key, RANK_STATE_RUNNING);
    if (options_.on_contact) options_.on_contact(true);
  }
  if (message.has_desired()) desired_ = message.desired();
  if (message.has_records_ack()) records_ack_ = std::max(records_ack_, message.records_ack().sequence());
  if (message.has_logs_ack()) logs_ack_ = std::max(logs_ack_, message.logs_ack().offset());
  if (message.has_heartbeat()) heartbeat_ = message.heartbeat().number();
  if (options_.obedient) {
    for (const DesiredRank& rank : message.desired().ranks()) {
      const std::string name = rank.key().SerializeAsString();
      if (rank.has_stop()) {
        running_.erase(name);
        *report.mutable_observed()->add_ranks() = Seen(rank.key(), RANK_STATE_EXITED, RankExit::STOPPED);
      } else if (running_.emplace(name, rank.key()).second) {
        *report.mutable_observed()->add_ranks() = Seen(rank.key(), RANK_STATE_RUNNING);
      }
    }
  }
  if (report.has_observed()) stream_->Send(std::move(report));
}

void FakeWorker::Ended(const grpc::Status& status) {
  status_ = status;
  ended_ = true;
  if (welcome_ && options_.on_contact) options_.on_contact(false);
}

bool FakeWorker::Wait(const std::function<bool()>& condition) {
  absl::MutexLock lock(&mutex_);
  return mutex_.AwaitWithTimeout(absl::Condition(&condition), kTestPatience);
}

bool FakeWorker::WaitForWelcome() {
  return Wait([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return welcome_; });
}

bool FakeWorker::WaitForRun(RankKey* key, std::string* table_sha256) {
  return Wait([this, key, table_sha256]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (const DesiredRank& rank : desired_.ranks()) {
      if (!rank.has_run()) continue;
      *key = rank.key();
      if (table_sha256 != nullptr) *table_sha256 = rank.run().table_sha256();
      return true;
    }
    return false;
  });
}

bool FakeWorker::WaitForRuns(size_t count, std::vector<RankKey>* keys) {
  return Wait([this, count, keys]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    keys->clear();
    for (const DesiredRank& rank : desired_.ranks()) keys->push_back(rank.key());
    return keys->size() == count && (count == 0 || desired_.ranks(0).has_run());
  });
}

bool FakeWorker::WaitForRecordsAck(uint64_t sequence) {
  return Wait([this, sequence]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return records_ack_ >= sequence; });
}

bool FakeWorker::WaitForLogsAck(uint64_t offset) {
  return Wait([this, offset]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return logs_ack_ >= offset; });
}

bool FakeWorker::WaitForHeartbeat(uint64_t number) {
  return Wait([this, number]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return heartbeat_ == number; });
}

bool FakeWorker::WaitForEnd(grpc::Status* status) {
  return Wait([this, status]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    *status = status_;
    return ended_;
  });
}

void FakeWorker::SendObserved(const RankKey& key, RankState state, RankExit::Cause cause) {
  WorkerMessage message;
  *message.mutable_observed()->add_ranks() = Seen(key, state, cause);
  Send(std::move(message));
}

void FakeWorker::SendStep(uint64_t step, uint64_t op) {
  WorkerMessage message;
  absl::MutexLock lock(&mutex_);
  if (ended_ || running_.empty()) return;
  for (const auto& [name, key] : running_) {
    ObservedRank& rank = *message.mutable_observed()->add_ranks() = Seen(key, RANK_STATE_RUNNING);
    rank.set_step(step);
    rank.set_op(op);
  }
  stream_->Send(std::move(message));
}

void FakeWorker::SendRecords(const RankKey& key, const std::vector<Record>& records) {
  WorkerMessage message;
  *message.mutable_records()->mutable_key() = key;
  for (const Record& record : records) *message.mutable_records()->add_records() = record;
  Send(std::move(message));
}

void FakeWorker::SendLog(const RankKey& key, uint64_t offset, const std::string& text) {
  WorkerMessage message;
  *message.mutable_logs()->mutable_key() = key;
  message.mutable_logs()->mutable_chunk()->set_offset(offset);
  message.mutable_logs()->mutable_chunk()->set_text(text);
  Send(std::move(message));
}

void FakeWorker::SendHeartbeat(uint64_t number) {
  WorkerMessage message;
  message.mutable_heartbeat()->set_number(number);
  Send(std::move(message));
}

void FakeWorker::RunToTheEnd(const RankKey& key, uint64_t steps) {
  SendObserved(key, RANK_STATE_STARTING);
  std::vector<Record> records = {RunningRecord(1)};
  for (uint64_t step = 1; step <= steps; ++step) {
    records.push_back(MetricRecord(step + 1, step, 5.0 / static_cast<double>(step)));
  }
  records.push_back(FinishedRecord(steps + 2, steps));
  SendObserved(key, RANK_STATE_RUNNING);
  SendRecords(key, records);
  SendLog(key, 0, "hello\nbye\n");
  WaitForRecordsAck(steps + 2);  // as a worker does
  WaitForLogsAck(10);
  SendObserved(key, RANK_STATE_EXITED, RankExit::COMPLETED);
}

Record MetricRecord(uint64_t sequence, uint64_t step, double loss) {
  Record record;
  record.set_sequence(sequence);
  record.mutable_metrics()->set_step(step);
  record.mutable_metrics()->set_loss(loss);
  return record;
}

Record RunningRecord(uint64_t sequence) {
  Record record;
  record.set_sequence(sequence);
  record.mutable_running();
  return record;
}

Record FinishedRecord(uint64_t sequence, uint64_t step) {
  Record record;
  record.set_sequence(sequence);
  record.mutable_finished()->set_step(step);
  return record;
}

}  // namespace muster
