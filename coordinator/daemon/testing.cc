#include "coordinator/daemon/testing.h"

#include <stdlib.h>

#include <cstdio>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/rpc/rpc.h"
#include "common/version.h"

namespace muster::server {

bool Eventually(const std::function<bool()>& condition, absl::Duration deadline) {
  const absl::Time end = absl::Now() + deadline;
  while (!condition()) {
    if (absl::Now() > end) return false;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return true;
}

JobSpec SmallSpec(const std::string& name) {
  JobSpec spec;
  spec.set_api_version("muster/v1");
  spec.set_kind("Job");
  spec.set_name(name);
  spec.mutable_train()->mutable_model()->mutable_gpt2()->set_size(GPT2_SIZE_TINY);
  spec.mutable_train()->mutable_data()->set_tokens("/data/train.bin");
  spec.mutable_train()->set_steps(kSmallSteps);
  return spec;
}

Client::Client(const std::string& address, std::string token, const rpc::Security& security)
    : token_(std::move(token)),
      channel_(rpc::Dial(address, security)),
      jobs_(Jobs::NewStub(channel_)),
      nodes_(Nodes::NewStub(channel_)),
      admin_(Admin::NewStub(channel_)),
      workers_(Workers::NewStub(channel_)),
      trust_(Trust::NewStub(channel_)) {}

std::unique_ptr<grpc::ClientContext> Client::Context(absl::Duration deadline) const {
  auto context = std::make_unique<grpc::ClientContext>();
  context->set_deadline(absl::ToChronoTime(absl::Now() + deadline));
  rpc::AddCallMetadata(token_, *context);
  return context;
}

grpc::Status Client::Submit(const std::string& request_id, const JobSpec& spec, SubmitReply* reply) {
  SubmitRequest request;
  request.set_request_id(request_id);
  *request.mutable_spec() = spec;
  return jobs_->Submit(Context().get(), request, reply);
}

std::string Client::MustSubmit(const std::string& name) {
  SubmitReply reply;
  const grpc::Status status = Submit(absl::StrCat("request-", name), SmallSpec(name), &reply);
  if (!status.ok()) {
    std::fprintf(stderr, "Submit: %s\n", status.error_message().c_str());
    std::abort();
  }
  return reply.job().id();
}

grpc::Status Client::Get(const std::string& job, GetJobReply* reply) {
  GetJobRequest request;
  request.set_job(job);
  return jobs_->Get(Context().get(), request, reply);
}

JobState Client::StateOf(const std::string& job) {
  GetJobReply reply;
  return Get(job, &reply).ok() ? reply.job().state() : JOB_STATE_UNSPECIFIED;
}

grpc::Status Client::Watch(const WatchRequest& request, std::vector<WatchItem>* items,
                           const std::function<bool(const std::vector<WatchItem>&)>& enough) {
  const std::unique_ptr<grpc::ClientContext> context = Context();
  const auto reader = jobs_->Watch(context.get(), request);
  WatchItem item;
  bool cancelled = false;
  while (!cancelled && reader->Read(&item)) {
    items->push_back(item);
    if (enough == nullptr || !enough(*items)) continue;
    context->TryCancel();
    cancelled = true;
  }
  const grpc::Status status = reader->Finish();
  return cancelled ? grpc::Status::OK : status;
}

FakeWorker::FakeWorker(const std::string& address, const std::string& node, const std::string& incarnation,
                       const std::string& boot, std::vector<RankKey> running, const rpc::Security& security,
                       uint64_t memory_bytes)
    : running_(std::move(running)), stub_(Workers::NewStub(rpc::Dial(address, security))) {
  rpc::AddCallMetadata("", context_);
  stream_ = stub_->Connect(&context_);
  WorkerMessage message;
  Hello& hello = *message.mutable_hello();
  hello.set_protocol(kProtocol);
  hello.mutable_node()->set_id(node);
  hello.mutable_node()->set_hostname(absl::StrCat("host-of-", boot));
  hello.mutable_node()->set_incarnation(incarnation);
  hello.mutable_node()->set_boot_id(boot);
  hello.mutable_node()->set_version(kVersion);
  Slot& slot = *hello.mutable_node()->add_slots();
  slot.set_device(DEVICE_CPU);
  slot.set_cores(1);
  slot.set_memory_bytes(memory_bytes);
  Send(message);
  reader_ = std::thread([this] { Read(); });
}

FakeWorker::~FakeWorker() {
  context_.TryCancel();
  reader_.join();
}

void FakeWorker::Send(const WorkerMessage& message) {
  absl::MutexLock lock(&writing_);
  stream_->Write(message);
}

void FakeWorker::Read() {
  CoordinatorMessage message;
  while (stream_->Read(&message)) {
    if (message.has_welcome()) {
      WorkerMessage report;
      report.mutable_observed()->set_full(true);
      for (const RankKey& key : running_) {
        ObservedRank& rank = *report.mutable_observed()->add_ranks();
        *rank.mutable_key() = key;
        rank.set_state(RANK_STATE_RUNNING);
      }
      Send(report);
    }
    absl::MutexLock lock(&mutex_);
    welcome_ |= message.has_welcome();
    if (message.has_desired()) desired_ = message.desired();
    if (message.has_records_ack()) records_ack_ = std::max(records_ack_, message.records_ack().sequence());
    if (message.has_logs_ack()) logs_ack_ = std::max(logs_ack_, message.logs_ack().offset());
    if (message.has_heartbeat()) heartbeat_ = message.heartbeat().number();
  }
  const grpc::Status status = stream_->Finish();
  absl::MutexLock lock(&mutex_);
  status_ = status;
  ended_ = true;
}

bool FakeWorker::Wait(const std::function<bool()>& condition) {
  absl::MutexLock lock(&mutex_);
  return mutex_.AwaitWithTimeout(absl::Condition(&condition), absl::Seconds(20));
}

bool FakeWorker::WaitForWelcome() {
  return Wait([this] { return welcome_; });
}

bool FakeWorker::WaitForRun(RankKey* key, std::string* table_sha256) {
  return Wait([this, key, table_sha256] {
    for (const DesiredRank& rank : desired_.ranks()) {
      if (!rank.has_run()) continue;
      *key = rank.key();
      if (table_sha256 != nullptr) *table_sha256 = rank.run().table_sha256();
      return true;
    }
    return false;
  });
}

bool FakeWorker::WaitForRecordsAck(uint64_t sequence) {
  return Wait([this, sequence] { return records_ack_ >= sequence; });
}

bool FakeWorker::WaitForLogsAck(uint64_t offset) {
  return Wait([this, offset] { return logs_ack_ >= offset; });
}

bool FakeWorker::WaitForHeartbeat(uint64_t number) {
  return Wait([this, number] { return heartbeat_ == number; });
}

bool FakeWorker::WaitForEnd(grpc::Status* status) {
  return Wait([this, status] {
    *status = status_;
    return ended_;
  });
}

void FakeWorker::SendObserved(const RankKey& key, RankState state, RankExit::Cause cause) {
  WorkerMessage message;
  ObservedRank& rank = *message.mutable_observed()->add_ranks();
  *rank.mutable_key() = key;
  rank.set_state(state);
  if (cause != RankExit::CAUSE_UNSPECIFIED) rank.mutable_exit()->set_cause(cause);
  Send(message);
}

void FakeWorker::SendRecords(const RankKey& key, const std::vector<Record>& records) {
  WorkerMessage message;
  *message.mutable_records()->mutable_key() = key;
  for (const Record& record : records) *message.mutable_records()->add_records() = record;
  Send(message);
}

void FakeWorker::SendLog(const RankKey& key, uint64_t offset, const std::string& text) {
  WorkerMessage message;
  *message.mutable_logs()->mutable_key() = key;
  message.mutable_logs()->mutable_chunk()->set_offset(offset);
  message.mutable_logs()->mutable_chunk()->set_text(text);
  Send(message);
}

void FakeWorker::SendHeartbeat(uint64_t number) {
  WorkerMessage message;
  message.mutable_heartbeat()->set_number(number);
  Send(message);
}

void FakeWorker::RunToTheEnd(const RankKey& key) {
  constexpr uint64_t steps = kSmallSteps;
  SendObserved(key, RANK_STATE_STARTING);
  std::vector<Record> records = {RunningRecord(1)};
  for (uint64_t step = 1; step <= steps; ++step) records.push_back(MetricRecord(step + 1, step, 5.0 / step));
  records.push_back(FinishedRecord(steps + 2, steps));
  SendObserved(key, RANK_STATE_RUNNING);
  SendRecords(key, records);
  SendLog(key, 0, "hello\nbye\n");
  WaitForRecordsAck(steps + 2);  // a worker waits for it too
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

}  // namespace muster::server
