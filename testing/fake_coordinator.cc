#include "testing/fake_coordinator.h"

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/proto_time.h"

namespace muster {

namespace {

RankId RankOf(const RankKey& key) { return {JobId(key.job()), key.generation(), key.rank()}; }

RankKey KeyOf(const RankId& rank) {
  RankKey key;
  key.set_job(rank.job.value());
  key.set_generation(rank.generation);
  key.set_rank(rank.rank);
  return key;
}

}  // namespace

void FakeCoordinator::Serve() {
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address(), grpc::InsecureServerCredentials());
  builder.RegisterService(this);
  if (store_ != nullptr) {
    store_->SetServing(true);
    client_services_ = store_->Services();
    for (const auto& service : client_services_) builder.RegisterService(service.get());
  }
  {
    absl::MutexLock lock(&mutex_);
    away_ = false;
  }
  server_ = builder.BuildAndStart();
}

void FakeCoordinator::GoAway() {
  if (server_ == nullptr) return;
  {
    absl::MutexLock lock(&mutex_);
    away_ = true;
    keys_.clear();
  }
  if (store_ != nullptr) store_->SetServing(false);
  server_->Shutdown(std::chrono::system_clock::now());
  server_.reset();
}

void FakeCoordinator::Want(const Desired& desired) {
  absl::MutexLock lock(&mutex_);
  const uint64_t revision = desired_.revision() + 1;
  desired_ = desired;
  desired_.set_revision(revision);
  SendDesired();
}

void FakeCoordinator::SetAcknowledging(bool on) {
  absl::MutexLock lock(&mutex_);
  acknowledging_ = on;
  for (const auto& [rank, received] : received_) Acknowledge(rank);
}

void FakeCoordinator::set_answering(bool on) {
  absl::MutexLock lock(&mutex_);
  answering_ = on;
}

void FakeCoordinator::set_term(uint64_t term) {
  absl::MutexLock lock(&mutex_);
  term_ = term;
}

void FakeCoordinator::set_orphan_grace(absl::Duration grace) {
  absl::MutexLock lock(&mutex_);
  orphan_grace_ = grace;
}

void FakeCoordinator::set_refusal(const grpc::Status& status) {
  absl::MutexLock lock(&mutex_);
  refusal_ = status;
}

void FakeCoordinator::set_store_id(const std::string& id) {
  absl::MutexLock lock(&mutex_);
  store_id_ = id;
}

void FakeCoordinator::SetKey(const std::string& name, const std::string& value) {
  absl::MutexLock lock(&mutex_);
  keys_[name] = value;
}

void FakeCoordinator::set_refusing_keys(bool on) {
  absl::MutexLock lock(&mutex_);
  refusing_keys_ = on;
}

int FakeCoordinator::refused_keys() const {
  absl::MutexLock lock(&mutex_);
  return refused_keys_;
}

void FakeCoordinator::SetTable(const grpc::Status& status, const std::string& bytes) {
  absl::MutexLock lock(&mutex_);
  table_status_ = status;
  table_ = bytes;
  table_fetches_ = 0;
}

int FakeCoordinator::table_fetches() const {
  absl::MutexLock lock(&mutex_);
  return table_fetches_;
}

FakeCoordinator::Received FakeCoordinator::Of(const RankId& rank) const {
  absl::MutexLock lock(&mutex_);
  const auto received = received_.find(rank);
  return received == received_.end() ? Received() : received->second;
}

RankState FakeCoordinator::StateOf(const RankId& rank) const {
  const Received received = Of(rank);
  return received.observed.empty() ? RANK_STATE_UNSPECIFIED : received.observed.back().state();
}

RankExit FakeCoordinator::ExitOf(const RankId& rank) const {
  const Received received = Of(rank);
  return received.observed.empty() ? RankExit() : received.observed.back().exit();
}

uint64_t FakeCoordinator::StepOf(const RankId& rank) const {
  uint64_t step = 0;
  for (const Record& record : Of(rank).records) step = std::max(step, record.metrics().step());
  return step;
}

Preflight FakeCoordinator::preflight() const {
  const absl::MutexLock lock(&mutex_);
  return preflight_;
}

StuckRanks FakeCoordinator::stuck() const {
  absl::MutexLock lock(&mutex_);
  return stuck_;
}

uint64_t FakeCoordinator::heartbeats() const {
  absl::MutexLock lock(&mutex_);
  return heartbeats_;
}

uint64_t FakeCoordinator::hellos() const {
  absl::MutexLock lock(&mutex_);
  return hellos_;
}

uint64_t FakeCoordinator::full_reports() const {
  absl::MutexLock lock(&mutex_);
  return full_reports_;
}

Node FakeCoordinator::node() const {
  absl::MutexLock lock(&mutex_);
  return node_;
}

bool FakeCoordinator::HasKey(const std::string& name) const {
  absl::MutexLock lock(&mutex_);
  return keys_.contains(name);
}

std::string FakeCoordinator::faults() const {
  absl::MutexLock lock(&mutex_);
  return faults_;
}

void FakeCoordinator::Say(CoordinatorMessage message) {
  if (stream_ == nullptr) return;
  message.set_term(term_);
  stream_->Write(message);
}

void FakeCoordinator::SendDesired() {
  CoordinatorMessage message;
  *message.mutable_desired() = desired_;
  Say(std::move(message));
}

void FakeCoordinator::Acknowledge(const RankId& rank) {
  const Received& received = received_[rank];
  if (acknowledging_) {
    CoordinatorMessage records;
    *records.mutable_records_ack()->mutable_key() = KeyOf(rank);
    records.mutable_records_ack()->set_sequence(received.records.size());
    Say(std::move(records));
  }
  CoordinatorMessage logs;
  *logs.mutable_logs_ack()->mutable_key() = KeyOf(rank);
  logs.mutable_logs_ack()->set_offset(received.log.size());
  Say(std::move(logs));
}

void FakeCoordinator::ReceiveRecords(const Records& records) {
  const RankId rank = RankOf(records.key());
  Received& received = received_[rank];
  for (const Record& record : records.records()) {
    if (record.sequence() <= received.records.size()) continue;
    if (record.sequence() != received.records.size() + 1) {
      absl::StrAppend(&faults_, "record ", record.sequence(), " follows ", received.records.size(), "; ");
    }
    if (received.whole) {
      absl::StrAppend(&faults_, "record ", record.sequence(), " after EXITED; ");
    }
    received.records.push_back(record);
  }
  Acknowledge(rank);
}

void FakeCoordinator::ReceiveLogs(const Logs& logs) {
  const RankId rank = RankOf(logs.key());
  Received& received = received_[rank];
  const uint64_t offset = logs.chunk().offset();
  if (offset > received.log.size()) absl::StrAppend(&faults_, "log jumps to ", offset, "; ");
  if (offset + logs.chunk().text().size() > received.log.size()) {
    received.log += logs.chunk().text().substr(received.log.size() - offset);
  }
  Acknowledge(rank);
}

bool FakeCoordinator::IsDesired(const RankKey& key) const {
  return std::any_of(desired_.ranks().begin(), desired_.ranks().end(),
                     [&](const DesiredRank& desired) { return RankOf(desired.key()) == RankOf(key); });
}

void FakeCoordinator::ReceiveObserved(const Observed& observed) {
  full_reports_ += observed.full() ? 1 : 0;
  if (observed.full() || observed.has_stuck()) stuck_ = observed.stuck();
  if (observed.has_preflight()) preflight_ = observed.preflight();
  for (const ObservedRank& rank : observed.ranks()) {
    Received& received = received_[RankOf(rank.key())];
    if (received.observed.empty() || received.observed.back().SerializeAsString() != rank.SerializeAsString()) {
      received.observed.push_back(rank);
    }
    received.whole = rank.state() == RANK_STATE_EXITED && IsDesired(rank.key());
  }
}

void FakeCoordinator::Receive(const WorkerMessage& message) {
  if (message.has_records()) ReceiveRecords(message.records());
  if (message.has_logs()) ReceiveLogs(message.logs());
  if (message.has_observed()) ReceiveObserved(message.observed());
  if (message.has_heartbeat()) {
    ++heartbeats_;
    if (!answering_) return;
    CoordinatorMessage echo;
    *echo.mutable_heartbeat() = message.heartbeat();
    Say(std::move(echo));
  }
}

grpc::Status FakeCoordinator::Connect(grpc::ServerContext*, Stream* stream) {
  WorkerMessage message;
  if (!stream->Read(&message) || !message.has_hello()) return {grpc::StatusCode::INVALID_ARGUMENT, "no Hello"};
  {
    absl::MutexLock lock(&mutex_);
    ++hellos_;
    node_ = message.hello().node();
    if (!refusal_.ok()) return refusal_;
    const std::string& store = message.hello().store_id();
    if (!store.empty() && !store_id_.empty() && store != store_id_) {
      return {grpc::StatusCode::ABORTED, absl::StrCat("ranks of the store ", store, " at the store ", store_id_)};
    }
    stream_ = stream;
    CoordinatorMessage welcome;
    welcome.mutable_welcome()->set_coordinator_version("fake");
    *welcome.mutable_welcome()->mutable_orphan_grace() = ToProto(orphan_grace_);
    welcome.mutable_welcome()->set_store_id(store_id_);
    Say(std::move(welcome));
    SendDesired();
  }
  while (stream->Read(&message)) {
    absl::MutexLock lock(&mutex_);
    Receive(message);
  }
  absl::MutexLock lock(&mutex_);
  if (stream_ == stream) stream_ = nullptr;
  return grpc::Status::OK;
}

grpc::Status FakeCoordinator::RendezvousSet(grpc::ServerContext*, const RendezvousSetRequest* request,
                                            RendezvousSetReply*) {
  absl::MutexLock lock(&mutex_);
  if (refusing_keys_) {
    ++refused_keys_;
    return {grpc::StatusCode::UNAVAILABLE, "gone"};
  }
  keys_[request->name()] = request->value();
  return grpc::Status::OK;
}

grpc::Status FakeCoordinator::RendezvousGet(grpc::ServerContext*, const RendezvousGetRequest* request,
                                            RendezvousGetReply* reply) {
  absl::MutexLock lock(&mutex_);
  const absl::Duration wait = FromProto(request->wait());
  const auto there = [this, request]()
                         ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return away_ || keys_.contains(request->name()); };
  const bool ready = mutex_.AwaitWithTimeout(absl::Condition(&there), wait);
  if (away_) return {grpc::StatusCode::UNAVAILABLE, "gone"};
  if (!ready) {
    return {wait > absl::ZeroDuration() ? grpc::StatusCode::DEADLINE_EXCEEDED : grpc::StatusCode::NOT_FOUND, "not set"};
  }
  reply->set_value(keys_[request->name()]);
  return grpc::Status::OK;
}

grpc::Status FakeCoordinator::FetchTable(grpc::ServerContext*, const FetchTableRequest*,
                                         grpc::ServerWriter<TableChunk>* writer) {
  constexpr size_t kChunkBytes = 256 * 1024;
  absl::MutexLock lock(&mutex_);
  ++table_fetches_;
  for (size_t at = 0; at < table_.size(); at += kChunkBytes) {
    TableChunk chunk;
    chunk.set_data(table_.substr(at, kChunkBytes));
    writer->Write(chunk);
  }
  return table_status_;
}

}  // namespace muster
