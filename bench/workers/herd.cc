#include "bench/workers/herd.h"

#include <grpcpp/grpcpp.h>

#include <deque>
#include <functional>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/rpc/rpc.h"
#include "common/rpc/self_owned.h"
#include "common/version.h"
#include "proto/workers_service.grpc.pb.h"

namespace muster::bench {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(20);
constexpr absl::Duration kHeartbeat = absl::Seconds(1);
constexpr absl::Duration kCallAgain = absl::Milliseconds(500);

ObservedRank Seen(const RankKey& key, RankState state) {
  ObservedRank rank;
  *rank.mutable_key() = key;
  rank.set_state(state);
  if (state == RANK_STATE_EXITED) rank.mutable_exit()->set_cause(RankExit::STOPPED);
  return rank;
}

}  // namespace

// One attempt. gRPC calls it; operations start under the member's mutex.
class Herd::Session final : public grpc::ClientBidiReactor<WorkerMessage, CoordinatorMessage>,
                            public rpc::SelfOwned<Session> {
 public:
  explicit Session(std::shared_ptr<Member> member) : member_(std::move(member)) {}
  void Start(Workers::Stub* stub, WorkerMessage hello);
  void Send(WorkerMessage message);  // under the member's mutex
  void Cancel() { context_.TryCancel(); }

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  const std::shared_ptr<Member> member_;
  grpc::ClientContext context_;
  CoordinatorMessage incoming_;
  std::deque<WorkerMessage> outgoing_;  // the first is being written
};

class Herd::Member : public std::enable_shared_from_this<Member> {
 public:
  Member(Herd* herd, const std::string& address, int number)
      : herd_(herd), stub_(Workers::NewStub(rpc::Dial(address))) {
    Node& node = *hello_.mutable_hello()->mutable_node();
    hello_.mutable_hello()->set_protocol(kProtocol);
    node.set_id(absl::StrCat("node-", number));
    node.set_hostname(node.id());
    node.set_boot_id(node.id());
    node.set_incarnation("bench");
    node.set_version(kVersion);
    Slot& slot = *node.add_slots();
    slot.set_device(DEVICE_CPU);
    slot.set_cores(1);
    slot.set_memory_bytes(uint64_t{8} << 30);
    share_ = number % 1000 / 4000.0;
  }

  // Sends the heartbeat or makes the call that is due.
  void Tick(absl::Time now) {
    absl::MutexLock lock(&mutex_);
    if (ending_ || now < due_) return;
    if (session_ == nullptr) {
      due_ = absl::InfiniteFuture();
      session_ = Session::Make(shared_from_this()).get();  // until Ended
      session_->Start(stub_.get(), hello_);
    } else if (welcome_) {
      due_ = now + kHeartbeat;
      WorkerMessage heartbeat;
      heartbeat.mutable_heartbeat()->set_number(++heartbeats_);
      session_->Send(std::move(heartbeat));
      if (running_.empty()) return;
      WorkerMessage progress;
      for (const auto& [name, key] : running_) {
        ObservedRank& rank = *progress.mutable_observed()->add_ranks() = Seen(key, RANK_STATE_RUNNING);
        rank.set_step(heartbeats_);
      }
      session_->Send(std::move(progress));
    }
  }
  void End() {
    absl::MutexLock lock(&mutex_);
    ending_ = true;
    if (session_ != nullptr) session_->Cancel();
  }
  bool ended() const {
    absl::MutexLock lock(&mutex_);
    return session_ == nullptr;
  }

  void Receive(const CoordinatorMessage& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    WorkerMessage report;
    if (message.has_welcome()) {
      welcome_ = true;
      due_ = absl::Now() + kHeartbeat;
      herd_->Contact(1);
      report.mutable_observed()->set_full(true);
      for (const auto& [name, key] : running_) {
        *report.mutable_observed()->add_ranks() = Seen(key, RANK_STATE_RUNNING);
      }
    }
    for (const DesiredRank& rank : message.desired().ranks()) {
      const std::string name = rank.key().SerializeAsString();
      if (rank.has_stop()) {
        running_.erase(name);
        *report.mutable_observed()->add_ranks() = Seen(rank.key(), RANK_STATE_EXITED);
      } else if (running_.emplace(name, rank.key()).second) {
        *report.mutable_observed()->add_ranks() = Seen(rank.key(), RANK_STATE_RUNNING);
      }
    }
    if (report.has_observed()) session_->Send(std::move(report));
  }
  void Ended() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    session_ = nullptr;
    if (std::exchange(welcome_, false)) herd_->Contact(-1);
    due_ = absl::Now() + kCallAgain * (1 + share_);
  }

  mutable absl::Mutex mutex_;

 private:
  Herd* const herd_;
  const std::unique_ptr<Workers::Stub> stub_;
  WorkerMessage hello_;
  double share_ = 0;
  absl::Time due_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  Session* session_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool welcome_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t heartbeats_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, RankKey> running_ ABSL_GUARDED_BY(mutex_);
};

void Herd::Session::Start(Workers::Stub* stub, WorkerMessage hello) {
  rpc::AddCallMetadata("", context_);
  stub->async()->Connect(&context_, this);
  StartRead(&incoming_);
  outgoing_.push_back(std::move(hello));
  StartWrite(&outgoing_.front());
  StartCall();
}

void Herd::Session::Send(WorkerMessage message) {
  outgoing_.push_back(std::move(message));
  if (outgoing_.size() == 1) StartWrite(&outgoing_.front());
}

void Herd::Session::OnReadDone(bool ok) {
  if (!ok) return;
  absl::MutexLock lock(&member_->mutex_);
  member_->Receive(incoming_);
  incoming_.Clear();
  StartRead(&incoming_);
}

void Herd::Session::OnWriteDone(bool ok) {
  absl::MutexLock lock(&member_->mutex_);
  if (!ok) return;  // pending messages stay unsent, and no operation follows
  outgoing_.pop_front();
  if (!outgoing_.empty()) StartWrite(&outgoing_.front());
}

void Herd::Session::OnDone(const grpc::Status&) {
  {
    absl::MutexLock lock(&member_->mutex_);
    member_->Ended();
  }
  Release();
}

Herd::Herd(const std::string& address, int count) {
  members_.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) members_.push_back(std::make_shared<Member>(this, address, i));
  timer_ = std::thread([this] { KeepTime(); });
}

Herd::~Herd() {
  {
    absl::MutexLock lock(&mutex_);
    ending_ = true;
  }
  timer_.join();
  for (const auto& member : members_) member->End();
  for (const auto& member : members_) {
    while (!member->ended()) absl::SleepFor(kTick);
  }
}

void Herd::Contact(int change) {
  absl::MutexLock lock(&mutex_);
  in_contact_ += change;
}

bool Herd::WaitForContact(int count, absl::Duration patience) {
  absl::MutexLock lock(&mutex_);
  const auto enough = [this, count] { return in_contact_ >= count; };
  return mutex_.AwaitWithTimeout(absl::Condition(&enough), patience);
}

void Herd::KeepTime() {
  while (true) {
    for (const auto& member : members_) member->Tick(absl::Now());
    absl::MutexLock lock(&mutex_);
    if (mutex_.AwaitWithTimeout(absl::Condition(&ending_), kTick)) return;
  }
}

}  // namespace muster::bench
