#include "worker/agent/agent.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/proto_time.h"
#include "common/rpc/rpc.h"
#include "worker/agent/prune.h"
#include "worker/rundir/durable_file.h"

namespace muster::agent {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(200);
// After a drain: for the coordinator to take the last records.
constexpr absl::Duration kFarewell = absl::Seconds(5);
// For a stream to end in good order.
constexpr absl::Duration kGoodbye = absl::Seconds(1);

}  // namespace

Agent::Agent(AgentOptions options, Node node, EventLoop* loop)
    : options_(std::move(options)), node_(std::move(node)), loop_(loop) {
  start_context_.trainer = options_.trainer;
  start_context_.socket = options_.run_dir + "/trainer.sock";
  start_context_.slots.assign(node_.slots().begin(), node_.slots().end());
  start_context_.kill_grace = options_.kill_grace;
  for (char** variable = environ; *variable != nullptr; ++variable) start_context_.inherited.emplace_back(*variable);
}

Agent::~Agent() {
  if (trainers_ != nullptr) trainers_->Shutdown();
}

WorkerView Agent::View() const {
  WorkerView view;
  view.log_bytes_dropped = log_bytes_dropped_;
  for (const auto& [id, rank] : ranks_) {
    ++(rank->ended() ? view.ranks_ended : view.ranks_running);
    view.log_bytes_dropped += rank->feed().log_bytes_dropped();
  }
  view.connected = contact_ == Contact::kWelcomed;
  view.contact_age = loop_->now().steady - heard_;
  return view;
}

absl::Status Agent::Start() {
  heard_ = loop_->now().steady;
  absl::StatusOr<std::unique_ptr<rundir::Lease>> lease = rundir::Lease::Open(options_.run_dir, true);
  if (!lease.ok()) return lease.status();
  lease_ = *std::move(lease);
  const std::shared_ptr<grpc::Channel> channel = rpc::Dial(options_.coordinator, options_.security);
  tables_ = std::make_unique<Tables>(loop_, channel, options_.token, options_.state_dir + "/tables", [this] {
    AssignAll();
    Reconcile();
  });
  relay_ = std::make_unique<Relay>(loop_, channel, options_.token, options_.run_dir);
  LoadDesired();
  PruneDone(options_.run_dir, {});
  AdoptAll();
  stream_ = std::make_unique<CoordinatorStream>(
      loop_, channel, options_.token,
      CoordinatorStream::Handler{[this](const CoordinatorMessage& message) { Received(message); },
                                 [this](const absl::Status& why) { Ended(why); }});
  absl::StatusOr<std::unique_ptr<TrainerServer>> trainers = TrainerServer::Start(options_.run_dir, loop_, this);
  if (!trainers.ok()) return trainers.status();
  trainers_ = *std::move(trainers);
  Call();
  ScheduleTick();
  return absl::OkStatus();
}

void Agent::UseSecurity(const rpc::Security& security) {
  const std::shared_ptr<grpc::Channel> channel = rpc::Dial(options_.coordinator, security);
  stream_->UseChannel(channel);
  relay_->UseChannel(channel);
  tables_->UseChannel(channel);
}

void Agent::LoadDesired() {
  const absl::StatusOr<std::string> stored = rundir::ReadWhole(options_.state_dir + "/desired.pb");
  if (!stored.ok()) return;
  CoordinatorMessage message;
  if (!message.ParseFromString(*stored)) {
    spdlog::warn("{}/desired.pb is damaged; waiting for the coordinator's word", options_.state_dir);
    return;
  }
  term_ = message.term();
  desired_ = message.desired();
  WantTables();
}

void Agent::AdoptAll() {
  for (const rundir::RankDir& dir : rundir::RankDir::List(options_.run_dir)) {
    if (dir.IsDone()) continue;
    auto rank = std::make_unique<Rank>(dir);
    if (!rank->Adopt()) continue;  // started again if it is wanted still, else removed: the coordinator will say
    spdlog::info("found {}: {}", dir.rank().ToString(), rank->ended() ? "ended" : "running; adopted");
    relay_->Adopt(dir.rank());
    if (rank->ended()) relay_->RankEnded(dir.rank());
    AddRank(std::move(rank));
  }
  Reconcile();
}

void Agent::AddRank(std::unique_ptr<Rank> rank) {
  if (const DesiredRank* wanted = WantedOf(rank->id()); wanted != nullptr && wanted->has_run()) {
    rank->Assign(AssignmentOf(*wanted), tables_->Find(wanted->run().table_sha256()));
  }
  Watch(*rank);
  ranks_[rank->id()] = std::move(rank);
}

void Agent::Watch(Rank& rank) {
  if (rank.fd() < 0) return;
  loop_->Watch(rank.fd(), [this, &rank] {
    loop_->Unwatch(rank.fd());
    rank.HandleShimEnd(loop_->now());
    Watch(rank);  // if another shim was found
    if (rank.ended()) relay_->RankEnded(rank.id());
    SendNews();
    Reconcile();
  });
}

const DesiredRank* Agent::WantedOf(const RankId& id) const {
  for (const DesiredRank& wanted : desired_.ranks()) {
    if (RankOf(wanted.key()) == id) return &wanted;
  }
  return nullptr;
}

Assignment Agent::AssignmentOf(const DesiredRank& wanted) const {
  Assignment assignment = wanted.run();
  *assignment.mutable_key() = wanted.key();
  assignment.set_cores(CoresOf(assignment, start_context_.slots));
  assignment.set_host(options_.host);
  return assignment;
}

void Agent::AssignAll() {
  for (const DesiredRank& wanted : desired_.ranks()) {
    const auto rank = ranks_.find(RankOf(wanted.key()));
    if (rank == ranks_.end() || !wanted.has_run()) continue;
    rank->second->Assign(AssignmentOf(wanted), tables_->Find(wanted.run().table_sha256()));
  }
}

void Agent::WantTables() {
  std::map<std::string, RankKey> wanted;
  for (const DesiredRank& rank : desired_.ranks()) {
    if (!rank.run().table_sha256().empty()) wanted[rank.run().table_sha256()] = rank.key();
  }
  tables_->Want(wanted);
}

bool Agent::HasTable(const DesiredRank& wanted) const {
  const std::string& sha256 = wanted.run().table_sha256();
  return sha256.empty() || tables_->Find(sha256) != nullptr;
}

void Agent::ScheduleTick() {
  loop_->PostAfter(kTick, [this] {
    Tick();
    ScheduleTick();
  });
}

void Agent::Tick() {
  const Now now = loop_->now();
  for (const auto& [id, rank] : ranks_) rank->Tick(now);
  Heartbeat();
  SendNews();
  Reconcile();
  if (!finishing_) return;
  const bool all_ended =
      std::all_of(ranks_.begin(), ranks_.end(), [](const auto& entry) { return entry.second->ended(); });
  const bool all_told = std::all_of(ranks_.begin(), ranks_.end(), [](const auto& entry) {
    return entry.second->observed.has_value() && entry.second->observed->state() == RANK_STATE_EXITED;
  });
  if (all_ended && (all_told || contact_ != Contact::kWelcomed || now.steady >= finish_by_)) return Stop();
  if (now.steady >= finish_by_ + kFarewell) {
    spdlog::error("some ranks did not end in time; the next daemon adopts them");
    Stop();
  }
}

void Agent::ApplyDesired(const Desired& desired) {
  CoordinatorMessage stored;
  stored.set_term(term_);
  *stored.mutable_desired() = desired;
  const std::string path = options_.state_dir + "/desired.pb";
  // Before anything starts: a rank whose folder is there was in what is stored.
  if (absl::Status status = rundir::WriteDurably(path, stored.SerializeAsString()); !status.ok()) {
    spdlog::error("cannot keep what the coordinator wants: {}", std::string(status.message()));
  }
  desired_ = desired;
  const bool first = !std::exchange(fresh_, true);
  WantTables();
  TakeBackDone();
  if (first) RemoveUnspawned();
  AssignAll();
  Reconcile();
  ReportAbsent();
}

// A rank that was done with and is wanted again (the coordinator lost the news of its end): it is reported again.
void Agent::TakeBackDone() {
  for (const DesiredRank& wanted : desired_.ranks()) {
    const rundir::RankDir dir(options_.run_dir, RankOf(wanted.key()));
    if (ranks_.contains(dir.rank()) || !dir.IsDone()) continue;
    auto rank = std::make_unique<Rank>(dir);
    if (rank->Adopt()) AddRank(std::move(rank));
  }
}

// Folders that an earlier daemon made for ranks that never started, and that are not wanted any more.
void Agent::RemoveUnspawned() {
  for (const rundir::RankDir& dir : rundir::RankDir::List(options_.run_dir)) {
    if (dir.IsDone() || ranks_.contains(dir.rank()) || WantedOf(dir.rank()) != nullptr) continue;
    if (absl::Status status = dir.Remove(); !status.ok()) {
      spdlog::warn("cannot remove {}: {}", dir.path(), std::string(status.message()));
    }
  }
}

void Agent::Reconcile() {
  std::vector<LocalRank> local;
  for (const auto& [id, rank] : ranks_) local.push_back(rank->AsLocal());
  const std::vector<Operation> operations = agent::Reconcile(desired_, local, {fresh_, finishing_});
  for (const Operation& operation : operations) Carry(operation);
  if (!operations.empty()) SendObserved(/*full=*/false);
}

void Agent::Carry(const Operation& operation) {
  switch (operation.kind) {
    case Operation::kStart:
      return StartRank(operation.rank);
    case Operation::kStop:
      return StopRank(*ranks_.at(operation.rank));
    case Operation::kKill:
      spdlog::info("{} is not wanted any more; ending it", operation.rank.ToString());
      return ranks_.at(operation.rank)->Kill(loop_->now());
    case Operation::kFinish:
      return FinishRank(operation.rank);
  }
}

void Agent::StartRank(const RankId& id) {
  const DesiredRank* wanted = WantedOf(id);
  if (!HasTable(*wanted)) return;  // once it has come
  std::vector<uint32_t> local;
  for (const DesiredRank& other : desired_.ranks()) {
    if (other.key().job() == id.job.value() && other.key().generation() == id.generation) {
      local.push_back(other.key().rank());
    }
  }
  std::sort(local.begin(), local.end());
  const Assignment assignment = AssignmentOf(*wanted);
  auto rank = std::make_unique<Rank>(rundir::RankDir(options_.run_dir, id));
  spdlog::info("starting {}", id.ToString());
  rank->Start(MakeStart(assignment, local, rank->dir(), start_context_), options_.step_binary, loop_->now());
  AddRank(std::move(rank));
}

void Agent::StopRank(Rank& rank) {
  const DesiredRank* wanted = WantedOf(rank.id());
  muster::Stop stop;
  if (wanted != nullptr && wanted->has_stop()) {
    stop = wanted->stop();
  } else {  // this daemon ends
    stop.set_reason(END_REASON_DRAINED);
    stop.set_checkpoint_first(true);
    *stop.mutable_deadline() = ToProto(options_.drain_deadline);
  }
  spdlog::info("stopping {} ({})", rank.id().ToString(), EndReason_Name(stop.reason()));
  rank.Stop(stop, loop_->now());
}

void Agent::FinishRank(const RankId& id) {
  const auto rank = ranks_.find(id);
  SendObserved(/*full=*/false);  // its end, if that was not said yet
  if (absl::Status status = rank->second->dir().MarkDone(); !status.ok()) {
    spdlog::warn("cannot mark {} as done: {}", id.ToString(), std::string(status.message()));
  }
  relay_->RankEnded(id);
  log_bytes_dropped_ += rank->second->feed().log_bytes_dropped();
  ranks_.erase(rank);
  PruneDone(options_.run_dir, {});
}

void Agent::Finish() {
  if (finishing_) return;
  if (options_.handover) {
    spdlog::info("ending; {} ranks are left to the next daemon", ranks_.size());
    return Stop();
  }
  spdlog::info("draining: stopping {} ranks", ranks_.size());
  finishing_ = true;
  finish_by_ = loop_->now().steady + options_.drain_deadline;
  SendObserved(/*full=*/true);  // that it is leaving
  Reconcile();
}

void Agent::Stop() {
  if (std::exchange(leaving_, true)) return;
  if (!stream_->is_open()) return loop_->Stop();
  stream_->Close();
  loop_->PostAfter(kGoodbye, [this] { loop_->Stop(); });
}

void Agent::Attached(const RankId& id, std::shared_ptr<CommandStream> commands) {
  const auto rank = ranks_.find(id);
  if (rank == ranks_.end()) return commands->Close(absl::UnavailableError("the worker does not know this rank yet"));
  rank->second->Attach(std::move(commands));
}

void Agent::Detached(const RankId& id, const CommandStream* commands) {
  if (const auto rank = ranks_.find(id); rank != ranks_.end()) rank->second->Detach(commands);
}

uint64_t Agent::Reported(const RankId& id, uint64_t step, uint64_t sequence) {
  const auto rank = ranks_.find(id);
  if (rank == ranks_.end()) return sequence;
  rank->second->ReportStep(step);
  RingLater();
  const uint64_t sent = rank->second->feed().MayHaveSent(sequence);
  return contact_ == Contact::kWelcomed ? sequence : sent;
}

void Agent::Set(const SetRequest& request, ValueCallback done) { relay_->Set(request, std::move(done)); }

void Agent::Get(const GetRequest& request, ValueCallback done) { relay_->Get(request, std::move(done)); }

std::function<void()> Agent::Wait(const WaitRequest& request, ValueCallback done) {
  return relay_->Wait(request, std::move(done));
}

}  // namespace muster::agent
