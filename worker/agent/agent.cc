#include "worker/agent/agent.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/file/durable_file.h"
#include "common/file/read_file.h"
#include "common/file/store_files.h"
#include "common/instruction_set.h"
#include "common/log/log.h"
#include "common/node/not_ready.h"
#include "common/proto_time.h"
#include "common/rpc/rpc.h"

namespace muster::agent {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(200);
constexpr absl::Duration kFoldersInterval = absl::Seconds(10);
// How long ranks wait for the removal of what ended ones have left. The coordinator waits for a minute.
constexpr absl::Duration kClearPatience = absl::Seconds(20);
// After a drain: how long to wait for the coordinator to acknowledge the last records.
constexpr absl::Duration kFarewell = absl::Seconds(5);
// How long a stream may take to close cleanly.
constexpr absl::Duration kGoodbye = absl::Seconds(1);

}  // namespace

Agent::Agent(AgentOptions options, Node node, EventLoop* loop)
    : options_(std::move(options)),
      node_(std::move(node)),
      loop_(loop),
      checks_({.paths = {.data_roots = options_.data_roots,
                         .checkpoint_roots = options_.checkpoint_roots,
                         .own = {options_.state_dir, options_.run_dir}},
               .plugin_roots = options_.plugin_roots,
               .users = options_.users},
              loop, [this] { Reconcile(); }),
      pruner_(options_.run_dir, loop, [this](const RankId& id) { return ranks_.contains(id); }) {
  start_context_.trainer = options_.trainer;
  start_context_.socket = options_.run_dir + "/trainer.sock";
  start_context_.slots.assign(node_.slots().begin(), node_.slots().end());
  start_context_.kill_grace = options_.kill_grace;
  start_context_.variables = options_.variables;
  start_context_.interface = options_.interface;
  start_context_.exec = options_.exec;
  start_context_.container_command = options_.container_command;
  start_context_.plugin_roots = options_.plugin_roots;
  start_context_.data_roots = options_.data_roots;
  start_context_.checkpoint_roots = options_.checkpoint_roots;
  start_context_.mkl_code_path = MklCodePath(FindInstructions());
  for (char** variable = environ; *variable != nullptr; ++variable) start_context_.inherited.emplace_back(*variable);
}

Agent::~Agent() {
  if (trainers_ != nullptr) trainers_->Shutdown();
}

WorkerView Agent::View() const {
  WorkerView view;
  view.log_bytes_dropped = log_bytes_dropped_;
  for (const auto& [id, rank] : ranks_) {
    ++(!rank->stuck().empty() ? view.ranks_stuck : rank->ended() ? view.ranks_ended : view.ranks_running);
    view.log_bytes_dropped += rank->feed().log_bytes_dropped();
  }
  view.connected = contact_ == Contact::kWelcomed;
  view.foreign_store = foreign_store_;
  view.contact_age = loop_->now().steady - last_contact_;
  return view;
}

absl::Status Agent::Start() {
  last_contact_ = loop_->now().steady;
  absl::StatusOr<std::unique_ptr<rundir::Lease>> lease = rundir::Lease::Open(options_.run_dir, true);
  if (!lease.ok()) return lease.status();
  lease_ = *std::move(lease);
  rpc::KeepCallbackThreads();
  const std::shared_ptr<grpc::Channel> channel = rpc::Dial(options_.coordinator, options_.security);
  tables_ = std::make_unique<Tables>(loop_, channel, options_.token, options_.state_dir + "/tables", [this] {
    AssignAll();
    Reconcile();
  });
  relay_ = std::make_unique<Relay>(loop_, channel, options_.token, options_.run_dir);
  absl::StatusOr<std::string> store_id = ReadStoreId(options_.state_dir);
  if (!store_id.ok()) return store_id.status();
  store_id_ = *std::move(store_id);
  LoadDesired();
  AdoptAll();
  pruner_.Prune({});
  stream_ = std::make_unique<CoordinatorStream>(
      loop_, channel, options_.token,
      CoordinatorStream::Handler{[this](const CoordinatorMessage& message) { Received(message); },
                                 [this](const absl::Status& why) { Ended(why); }});
  absl::StatusOr<std::unique_ptr<TrainerServer>> trainers =
      TrainerServer::Start(options_.run_dir, options_.users.switches(), loop_, this);
  if (!trainers.ok()) return trainers.status();
  trainers_ = *std::move(trainers);
  preflights_ = std::make_unique<Preflights>(PreflightOptions{.kind = options_.preflight,
                                                              .trainer = options_.trainer,
                                                              .host = options_.host,
                                                              .state_dir = options_.state_dir,
                                                              .run_dir = options_.run_dir,
                                                              .data_roots = options_.data_roots,
                                                              .checkpoint_roots = options_.checkpoint_roots},
                                             loop_, [this](Preflight found) { Checked(std::move(found)); });
  use_ = std::make_unique<NodeUseWatch>(ReadMachine(), start_context_.slots);
  CheckAgain();
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
  const absl::StatusOr<std::string> stored = ReadWhole(options_.state_dir + "/desired.pb");
  if (!stored.ok()) return;
  CoordinatorMessage message;
  if (!message.ParseFromString(*stored)) {
    LogWarn("desired.pb is damaged; waiting for the coordinator to send the desired state",
            {{"folder", options_.state_dir}});
    return;
  }
  term_ = message.term();
  desired_ = message.desired();
  KeepTables();
}

void Agent::AdoptAll() {
  for (const rundir::RankDir& dir : rundir::RankDir::List(options_.run_dir)) {
    if (dir.IsDone()) continue;
    auto rank = std::make_unique<Rank>(dir);
    if (!rank->Adopt(loop_->now())) continue;  // restarted or removed once the coordinator sends the desired state
    LogInfo("rank adopted", {dir.rank(), {"ended", rank->ended()}});
    relay_->Adopt(dir.rank());
    if (rank->ended()) relay_->RankEnded(dir.rank());
    AddRank(std::move(rank));
  }
  Reconcile();
}

void Agent::AddRank(std::unique_ptr<Rank> rank) {
  if (const DesiredRank* desired = DesiredOf(rank->id()); desired != nullptr && desired->has_run()) {
    rank->Assign(AssignmentOf(*desired), tables_->Find(desired->run().table_sha256()));
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
    SendUpdates();
    Reconcile();
  });
}

const DesiredRank* Agent::DesiredOf(const RankId& id) const {
  for (const DesiredRank& desired : desired_.ranks()) {
    if (RankOf(desired.key()) == id) return &desired;
  }
  return nullptr;
}

Assignment Agent::AssignmentOf(const DesiredRank& desired) const {
  Assignment assignment = desired.run();
  *assignment.mutable_key() = desired.key();
  assignment.set_cores(CoresOf(assignment, start_context_.slots));
  assignment.set_host(options_.host);
  assignment.set_store_id(store_id_);
  return assignment;
}

void Agent::AssignAll() {
  for (const DesiredRank& desired : desired_.ranks()) {
    const auto rank = ranks_.find(RankOf(desired.key()));
    if (rank == ranks_.end() || !desired.has_run()) continue;
    rank->second->Assign(AssignmentOf(desired), tables_->Find(desired.run().table_sha256()));
  }
}

void Agent::KeepTables() {
  std::map<std::string, RankKey> tables;
  for (const DesiredRank& rank : desired_.ranks()) {
    if (!rank.run().table_sha256().empty()) tables[rank.run().table_sha256()] = rank.key();
  }
  tables_->Keep(tables);
}

bool Agent::HasTable(const DesiredRank& desired) const {
  const std::string& sha256 = desired.run().table_sha256();
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
  for (const auto& [id, rank] : ranks_) {
    const bool ended = rank->ended();
    rank->Tick(now);
    if (!ended && rank->ended()) relay_->RankEnded(id);
  }
  Heartbeat();
  SendUpdates();
  Reconcile();
  if (now.steady - folders_checked_ >= kFoldersInterval && ProblemsOf(preflight_).empty()) {
    LookForRoom(/*write=*/false);
  }
  if (!finishing_) return;
  const bool all_ended =
      std::all_of(ranks_.begin(), ranks_.end(), [](const auto& entry) { return entry.second->ended(); });
  const bool all_reported = std::all_of(ranks_.begin(), ranks_.end(), [](const auto& entry) {
    return entry.second->observed.has_value() && entry.second->observed->state() == RANK_STATE_EXITED;
  });
  if (all_ended && (all_reported || contact_ != Contact::kWelcomed || now.steady >= finish_by_)) return Stop();
  if (now.steady >= finish_by_ + kFarewell) {
    LogError("some ranks did not end in time; the next daemon adopts them");
    Stop();
  }
}

void Agent::ApplyDesired(const Desired& desired) {
  CoordinatorMessage stored;
  stored.set_term(term_);
  *stored.mutable_desired() = desired;
  const std::string path = options_.state_dir + "/desired.pb";
  // Store the desired state before starting anything, so that every rank with a folder is in it.
  if (absl::Status status = WriteDurably(path, stored.SerializeAsString()); !status.ok()) {
    LogError("cannot store the desired state", {{"error", status}});
  }
  desired_ = desired;
  std::erase_if(not_started_, [this](const auto& entry) { return DesiredOf(entry.first) == nullptr; });
  checks_.Keep([this](const RankId& id) { return DesiredOf(id) != nullptr; });
  const bool first = !std::exchange(fresh_, true);
  KeepTables();
  TakeBackDone();
  if (first) RemoveUnspawned();
  AssignAll();
  Reconcile();
  ReportAbsent();
  if (desired_.preflight() > preflight_.number()) CheckAgain();
}

// Reports a finished rank again if it is in the desired state: the coordinator lost the report of its end.
void Agent::TakeBackDone() {
  for (const DesiredRank& desired : desired_.ranks()) {
    const rundir::RankDir dir(options_.run_dir, RankOf(desired.key()));
    if (ranks_.contains(dir.rank()) || !dir.IsDone()) continue;
    auto rank = std::make_unique<Rank>(dir);
    if (rank->Adopt(loop_->now())) AddRank(std::move(rank));
  }
}

// Removes folders that an earlier daemon made for ranks that never started and are no longer desired.
void Agent::RemoveUnspawned() {
  for (const rundir::RankDir& dir : rundir::RankDir::List(options_.run_dir)) {
    if (dir.IsDone() || ranks_.contains(dir.rank()) || DesiredOf(dir.rank()) != nullptr) continue;
    if (absl::Status status = dir.Remove(); !status.ok()) {
      LogWarn("cannot remove the folder of a rank that never started", {dir.rank(), {"error", status}});
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
      LogInfo("rank is no longer desired; killing it", {operation.rank});
      return ranks_.at(operation.rank)->Kill(loop_->now());
    case Operation::kFinish:
      return FinishRank(operation.rank);
  }
}

void Agent::StartRank(const RankId& id) {
  const DesiredRank* desired = DesiredOf(id);
  if (!HasTable(*desired)) return;  // starts when the table arrives
  if (not_started_.contains(id)) return;
  if (clearing_since_.has_value() && LacksRoom(id, /*write=*/false)) return;
  const Assignment assignment = AssignmentOf(*desired);
  const std::optional<RankChecks::Answer> user = MayStart(id, assignment);
  if (!user.has_value()) return;
  if (LacksRoom(id, /*write=*/true)) return;
  std::vector<uint32_t> local;
  for (const DesiredRank& other : desired_.ranks()) {
    if (other.key().job() == id.job.value() && other.key().generation() == id.generation) {
      local.push_back(other.key().rank());
    }
  }
  std::sort(local.begin(), local.end());
  auto rank = std::make_unique<Rank>(rundir::RankDir(options_.run_dir, id));
  LogInfo("starting rank", {id});
  if (!user->ok()) {
    rank->Refuse(user->status(), loop_->now());
    return AddRank(std::move(rank));
  }
  StartContext context = start_context_;
  if (assignment.spec().has_exec()) {
    std::map<uint32_t, std::vector<uint32_t>> slots;  // by rank
    for (const DesiredRank& other : desired_.ranks()) {
      if (other.key().job() != id.job.value() || other.key().generation() != id.generation) continue;
      slots[other.key().rank()].assign(other.run().slots().begin(), other.run().slots().end());
    }
    for (const auto& [number, own] : slots) {
      context.local_slots.insert(context.local_slots.end(), own.begin(), own.end());
    }
  }
  rank->Start(MakeStart(assignment, local, rank->dir(), context, **user), options_.step_binary, loop_->now());
  AddRank(std::move(rank));
}

bool Agent::LacksRoom(const RankId& id, bool write) {
  const Room room = LookForRoom(write);
  if (room == Room::kNo) {
    not_started_[id] = absl::StrCat("rank ", id.rank, " was not started: ", ProblemsOf(preflight_));
    ReportAbsent();
  }
  return room != Room::kYes;
}

Agent::Room Agent::LookForRoom(bool write) {
  const SteadyTime now = loop_->now().steady;
  folders_checked_ = now;
  Preflight own = CheckOwnFolders(options_.state_dir, options_.run_dir, write);
  if (ProblemsOf(own).empty()) return Room::kYes;
  if (clearing_since_.has_value()) {
    if (now - *clearing_since_ < kClearPatience) return Room::kLater;
  } else if (!cleared_at_.has_value() || now - *cleared_at_ >= kFoldersInterval) {
    clearing_since_ = now;
    pruner_.Prune({.folders = 0, .bytes = 0}, [this] { Cleared(); });
    return Room::kLater;
  }
  own.set_number(preflight_.number());
  for (const PreflightCheck& other : preflight_.checks()) {
    const bool anew = std::any_of(own.checks().begin(), own.checks().end(),
                                  [&](const PreflightCheck& check) { return check.name() == other.name(); });
    if (!anew) *own.add_checks() = other;
  }
  Checked(std::move(own));
  return Room::kNo;
}

void Agent::Cleared() {
  clearing_since_.reset();
  cleared_at_ = loop_->now().steady;
  Reconcile();
  if (ProblemsOf(preflight_).empty()) {
    LookForRoom(/*write=*/true);
  } else if (!preflights_->on()) {
    CheckAgain();
  }
}

std::optional<RankChecks::Answer> Agent::MayStart(const RankId& id, const Assignment& assignment) {
  if (absl::Status status = CheckProgram(assignment); !status.ok()) return status;
  return checks_.Ask(id, assignment);
}

absl::Status Agent::CheckProgram(const Assignment& assignment) const {
  if (!assignment.spec().has_exec()) return absl::OkStatus();
  if (options_.exec.empty()) {
    return absl::FailedPreconditionError(
        "workload: exec: this node runs no programs of users; its administrator allows them by muster-worker "
        "--exec-jobs on (docs/security.md)");
  }
  if (assignment.spec().exec().image().empty() || !options_.container_command.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "image: this node runs no images: it has no podman, and its muster-worker no --container-command (docs/exec.md)");
}

void Agent::StopRank(Rank& rank) {
  const DesiredRank* desired = DesiredOf(rank.id());
  muster::Stop stop;
  if (desired != nullptr && desired->has_stop()) {
    stop = desired->stop();
  } else {  // this daemon ends
    stop.set_reason(END_REASON_DRAINED);
    stop.set_checkpoint_first(true);
    *stop.mutable_deadline() = ToProto(options_.drain_deadline);
  }
  LogInfo(
      "stopping rank",
      {rank.id(), {"reason", absl::AsciiStrToLower(absl::StripPrefix(EndReason_Name(stop.reason()), "END_REASON_"))}});
  rank.Stop(stop, loop_->now());
}

void Agent::FinishRank(const RankId& id) {
  const auto rank = ranks_.find(id);
  SendObserved(/*full=*/false);  // report its end, if not yet reported
  if (absl::Status status = rank->second->dir().MarkDone(); !status.ok()) {
    LogWarn("cannot mark the rank as done", {id, {"error", status}});
  }
  relay_->RankEnded(id);
  log_bytes_dropped_ += rank->second->feed().log_bytes_dropped();
  ranks_.erase(rank);
  pruner_.Prune({});
}

void Agent::Finish() {
  if (finishing_) return;
  if (options_.handover) {
    LogInfo("ending; the ranks are left to the next daemon", {{"ranks", ranks_.size()}});
    return Stop();
  }
  LogInfo("draining; stopping the ranks", {{"ranks", ranks_.size()}});
  finishing_ = true;
  finish_by_ = loop_->now().steady + options_.drain_deadline;
  SendObserved(/*full=*/true);  // report that this node is leaving
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
  SendUpdatesLater();
  const uint64_t sent = rank->second->feed().MayHaveSent(sequence);
  return contact_ == Contact::kWelcomed ? sequence : sent;
}

void Agent::Set(const SetRequest& request, ValueCallback done) { relay_->Set(request, std::move(done)); }

std::function<void()> Agent::Sync(const SyncRequest& request, std::function<void(absl::StatusOr<SyncReply>)> done) {
  return relay_->Sync(request, std::move(done));
}

void Agent::Get(const GetRequest& request, ValueCallback done) { relay_->Get(request, std::move(done)); }

std::function<void()> Agent::Wait(const WaitRequest& request, ValueCallback done) {
  return relay_->Wait(request, std::move(done));
}

}  // namespace muster::agent
