#include "coordinator/simulate/worker_node.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/proto_time.h"
#include "coordinator/simulate/coordinator.h"
#include "coordinator/simulate/racks.h"

namespace muster::simulate {
namespace {

// Coarser than the daemon's, so that idle nodes cost little.
constexpr absl::Duration kTimer = absl::Seconds(2);
constexpr absl::Duration kHeartbeat = absl::Seconds(4);
constexpr absl::Duration kInContact = absl::Seconds(7);
constexpr absl::Duration kSoon = absl::Milliseconds(500);
constexpr absl::Duration kKillGrace = absl::Seconds(10);  // the shim's, from SIGTERM to SIGKILL
constexpr absl::Duration kDrainDeadline = absl::Seconds(30);
constexpr int kUnpublishedKept = 2;  // as checkpoint/folder.cc

// See Connection::NameGenerations.
uint64_t NameIn(const Assignment& assignment) {
  uint64_t name = 0;
  (void)absl::SimpleAtoi(assignment.host(), &name);
  return name;
}

RankExit Killed(const std::string& message, RankExit::Cause cause = RankExit::FAILED) {
  RankExit exit;
  exit.set_cause(cause);
  exit.set_signal(9);
  exit.set_message(message);
  return exit;
}

}  // namespace

size_t WorkerNode::living() const {
  return static_cast<size_t>(
      std::count_if(folders_.begin(), folders_.end(), [](const auto& folder) { return folder.second.process->alive; }));
}

size_t WorkerNode::unfinished() const { return daemon_ == nullptr ? 0 : daemon_->ranks.size(); }

void WorkerNode::StartDaemon() {
  if (daemon_ != nullptr || destroyed_) return;
  daemon_ = std::make_unique<Daemon>();
  daemon_->incarnation = absl::StrCat(id_, "-", ++incarnations_);
  daemon_->started = world_->agenda.now();
  world_->Trace([&] { return absl::StrCat(id_, ": daemon ", daemon_->incarnation, " starts"); });
  if (stored_.has_value()) {
    daemon_->term = stored_->term();
    daemon_->desired = stored_->desired();
  }
  for (const auto& [rank, folder] : folders_) {
    if (!folder.done) AddLocal(rank);
  }
  Reconcile();
  Call();
  if (!std::exchange(timer_runs_, true)) Timer();
}

void WorkerNode::KillDaemon() {
  if (daemon_ == nullptr) return;
  world_->Trace([&] { return absl::StrCat(id_, ": daemon is killed"); });
  const std::shared_ptr<Connection> connection = daemon_->connection;
  daemon_.reset();
  if (connection != nullptr) connection->Break();
}

void WorkerNode::FreezeDaemon(absl::Duration time) {
  if (daemon_ == nullptr) return;
  world_->Trace([&] { return absl::StrCat(id_, ": daemon is frozen for ", absl::FormatDuration(time)); });
  daemon_->frozen_until = world_->agenda.now() + time;
  world_->agenda.At(daemon_->frozen_until, [this] {
    if (daemon_ == nullptr || !Listens()) return;
    if (daemon_->connection != nullptr) daemon_->connection->Pump();
    SendNews(false);
    Reconcile();
  });
}

void WorkerNode::Reboot(absl::Duration down, bool folders_lost) {
  if (destroyed_) return;
  world_->Trace([&] { return absl::StrCat(id_, ": reboots", folders_lost ? ", its folders are lost" : ""); });
  // A machine without power sends nothing.
  daemon_.reset();
  ++boot_;
  holds_until_ = SteadyTime();
  for (auto& [rank, folder] : folders_) {
    folder.stuck_until = SteadyTime();
    if (folder.process->alive) folder.process->gang->EndProcess(*folder.process, Killed("", RankExit::VANISHED));
  }
  if (folders_lost) folders_.clear();
  world_->agenda.After(down, [this] { StartDaemon(); });
}

void WorkerNode::Destroy() {
  if (destroyed_) return;
  world_->Trace([&] { return absl::StrCat(id_, ": is gone for good"); });
  daemon_.reset();
  destroyed_ = true;
  for (auto& [rank, folder] : folders_) {
    if (folder.process->alive) folder.process->gang->EndProcess(*folder.process, Killed("", RankExit::VANISHED));
  }
}

void WorkerNode::SetRoute(Route route) {
  route_ = route;
  world_->Trace([&] {
    return absl::StrCat(id_, ": route up ", route_.up ? "open" : "cut", ", down ", route_.down ? "open" : "cut");
  });
  std::erase_if(connections_, [](const std::weak_ptr<Connection>& connection) { return connection.expired(); });
  const auto connections = connections_;
  for (const std::weak_ptr<Connection>& connection : connections) {
    if (const auto open = connection.lock(); open != nullptr) open->Pump();
  }
}

void WorkerNode::BreakStream() {
  if (daemon_ == nullptr || daemon_->connection == nullptr) return;
  world_->Trace([&] { return absl::StrCat(id_, ": its stream breaks"); });
  const std::shared_ptr<Connection> connection = daemon_->connection;
  connection->Break();
  Ended(connection.get(), absl::UnavailableError("broken"));
}

void WorkerNode::Leave(absl::Duration down) {
  if (daemon_ == nullptr || daemon_->leaving || !Listens()) return;
  world_->Trace([&] { return absl::StrCat(id_, ": daemon gets SIGTERM"); });
  daemon_->leaving = true;
  SendObserved(true);
  Reconcile();
  world_->agenda.After(kDrainDeadline, [this, down, incarnation = daemon_->incarnation] {
    if (daemon_ == nullptr || daemon_->incarnation != incarnation) return;
    KillDaemon();
    world_->agenda.After(down, [this] { StartDaemon(); });
  });
}

void WorkerNode::CoordinatorCrashed(bool silent) {
  if (silent || daemon_ == nullptr || daemon_->connection == nullptr) return;
  daemon_->connection->Reset();
}

bool WorkerNode::Listens() const { return daemon_ != nullptr && world_->agenda.now() >= daemon_->frozen_until; }

void WorkerNode::Timer() {
  if (destroyed_) {
    timer_runs_ = false;
    return;
  }
  world_->agenda.After(kTimer, [this] { Timer(); });
  KeepLease();
  CheckOrphans();
  if (!Listens() || daemon_->connection == nullptr) return;
  const SteadyTime now = world_->agenda.now();
  if (now - daemon_->answered >= world_->settings.detection) {
    world_->Trace([&] { return absl::StrCat(id_, ": no answer"); });
    const std::shared_ptr<Connection> connection = daemon_->connection;
    connection->Break();
    return Ended(connection.get(), absl::UnavailableError("no answer"));
  }
  if (!daemon_->welcomed) return;
  if (AnyStalled()) SendObserved(false);
  if (now - daemon_->last_heartbeat < kHeartbeat) return;
  daemon_->last_heartbeat = now;
  WorkerMessage message;
  message.mutable_heartbeat()->set_number(1);
  Send(std::move(message));
}

// As worker/agent/agent_contact.cc.
void WorkerNode::KeepLease() {
  if (!Listens()) return;
  const SteadyTime now = world_->agenda.now();
  const absl::Duration more = world_->settings.outage_grace - world_->settings.orphan_grace;
  if (daemon_->welcomed && now - daemon_->answered < kInContact) lease_ = now;
  if (now - contact_ < more) lease_ = now;
}

void WorkerNode::CheckOrphans() {
  if (world_->agenda.now() - lease_ < world_->settings.orphan_grace) return;
  for (auto& [rank, folder] : folders_) {
    if (!folder.process->alive) continue;
    world_->Count("orphan ended");
    folder.process->gang->EndProcess(*folder.process, Killed("", RankExit::ORPHANED));
  }
}

void WorkerNode::Call() {
  daemon_->connection = std::make_shared<Connection>(world_, &route_, this);
  connections_.push_back(daemon_->connection);
  daemon_->welcomed = false;
  daemon_->answered = world_->agenda.now();
  WorkerMessage message;
  message.mutable_hello()->set_term(daemon_->term);
  for (const auto& [rank, folder] : folders_) {
    uint64_t& highest = (*message.mutable_hello()->mutable_generations())[rank.job.value()];
    highest = std::max(highest, rank.generation);
  }
  Node& node = *message.mutable_hello()->mutable_node();
  node.set_id(id_);
  node.set_hostname(absl::StrCat(id_, ".host"));
  node.add_labels("rack=" + RackOf(id_));
  node.set_incarnation(daemon_->incarnation);
  node.set_boot_id(absl::StrCat(id_, "-boot-", boot_));
  for (uint32_t slot = 0; slot < slots_; ++slot) {
    node.add_slots()->set_index(slot);
    node.mutable_slots(static_cast<int>(slot))->set_device(DEVICE_CPU);
  }
  Send(std::move(message));
}

void WorkerNode::CallLater(absl::Duration delay) {
  world_->agenda.After(delay + world_->random.Between(absl::ZeroDuration(), delay / 4), [this] {
    if (daemon_ == nullptr || daemon_->connection != nullptr) return;
    if (!Listens()) return CallLater(kSoon);
    Call();
  });
}

void WorkerNode::Send(WorkerMessage message) {
  if (daemon_->connection == nullptr) return;
  daemon_->connection->SendUp(std::move(message));
}

void WorkerNode::Ended(Connection* connection, const absl::Status& why) {
  if (daemon_ == nullptr || daemon_->connection.get() != connection) return;
  world_->Trace([&] { return absl::StrCat(id_, ": stream ended: ", why.message()); });
  daemon_->connection.reset();
  const bool refused = absl::IsAlreadyExists(why) || (absl::IsCancelled(why) && !daemon_->welcomed);
  daemon_->welcomed = false;
  CallLater(refused ? absl::Seconds(10) : kSoon);
}

void WorkerNode::Received(Connection* connection, const CoordinatorMessage& message, uint64_t restores) {
  if (daemon_ == nullptr || daemon_->connection.get() != connection) return;
  if (message.term() < daemon_->term) return world_->judge.Fail("terms never go back", id_);
  daemon_->term = message.term();
  daemon_->answered = contact_ = world_->agenda.now();
  if (message.has_welcome()) {
    daemon_->welcomed = true;
    lease_ = world_->agenda.now();
    for (auto& [rank, local] : daemon_->ranks) {
      local.sent = local.acknowledged;
      local.observed.reset();
    }
    for (const auto& [rank, folder] : folders_) folder.process->gang->Resend(folder.process);
    return SendNews(true);
  }
  if (message.has_desired()) {
    daemon_->restores = restores;
    return ApplyDesired(message.desired());
  }
  if (!message.has_records_ack()) return;
  const RankId rank = agent::RankOf(message.records_ack().key());
  const auto local = daemon_->ranks.find(rank);
  const auto folder = folders_.find(rank);
  if (local == daemon_->ranks.end() || folder == folders_.end()) return;
  const uint64_t through = std::min<uint64_t>(message.records_ack().sequence(), folder->second.outbox.size());
  if (through <= local->second.acknowledged) return;
  const auto& outbox = folder->second.outbox;
  if (restores == world_->judge.restores()) {
    Folder& known = folder->second;
    if (std::exchange(known.restores, restores) != restores) known.lost = known.ever_acknowledged;
    // What a coordinator of a lost history has had counts as received.
    const uint64_t first = std::min(through, std::max(local->second.acknowledged, known.lost));
    world_->judge.Acknowledged({rank, known.process->name}, {outbox.begin() + static_cast<ptrdiff_t>(first),
                                                             outbox.begin() + static_cast<ptrdiff_t>(through)});
  }
  folder->second.ever_acknowledged = std::max(folder->second.ever_acknowledged, through);
  local->second.acknowledged = through;
  if (world_->settings.outbox_shrinks) folder->second.removed = through;
  local->second.sent = std::max(local->second.sent, through);
  SendNews(false);
}

void WorkerNode::ApplyDesired(const Desired& desired) {
  CoordinatorMessage stored;
  stored.set_term(daemon_->term);
  *stored.mutable_desired() = desired;
  stored_ = std::move(stored);
  daemon_->desired = desired;
  daemon_->fresh = true;
  for (const DesiredRank& goal : desired.ranks()) {
    const RankId rank = agent::RankOf(goal.key());
    const auto folder = folders_.find(rank);
    if (folder == folders_.end()) continue;
    if (goal.has_run() && folder->second.process->name != NameIn(goal.run())) {
      return world_->judge.Fail("a rank of a lost history is not taken for another", rank.ToString());
    }
    if (folder->second.done) {  // the coordinator lost the report of its exit
      folder->second.done = false;
      AddLocal(rank);
      Soon([this] { SendNews(false); });
    }
    if (goal.has_run()) Retain(rank, goal.run());
  }
  Reconcile();
  ReportAbsent();
}

void WorkerNode::AddLocal(const RankId& rank) {
  Local& local = daemon_->ranks[rank];
  if (const auto folder = folders_.find(rank); folder != folders_.end()) {
    local.sent = local.acknowledged = folder->second.removed;
  }
}

// Rank 0 removes old checkpoints, as checkpoint::Retain.
void WorkerNode::Retain(const RankId& rank, const Assignment& assignment) {
  const Process& process = *folders_.at(rank).process;
  if (rank.rank != 0 || !process.alive || !process.met) return;
  World::CheckpointFolder& folder = world_->folders[assignment.spec().train().checkpoint().path()];
  if (folder.owner != rank.job) return;
  std::set<std::string> published;
  std::pair<uint64_t, uint64_t> newest;  // generation, step: the order in which they were written
  for (const PublishedCheckpoint& checkpoint : assignment.published()) {
    published.insert(checkpoint.directory());
    newest = std::max(newest, {checkpoint.generation(), checkpoint.step()});
  }
  std::vector<std::pair<std::pair<uint64_t, uint64_t>, std::string>> others;  // likewise; newest first
  for (const auto& [name, step] : folder.steps) {
    if (!published.contains(name)) others.emplace_back(std::pair(step.second, step.first), name);
  }
  std::sort(others.rbegin(), others.rend());
  int unpublished = 0;
  size_t kept = folder.steps.size() - others.size();
  for (const auto& [written, name] : others) {
    const bool own = written.first == rank.generation;  // it may be published already
    const bool newer = written > newest;
    if (written.first > rank.generation || (newer && (own || ++unpublished <= kUnpublishedKept))) continue;
    if (kept < published.size()) {
      ++kept;
      continue;
    }
    folder.steps.erase(name);
  }
}

const DesiredRank* WorkerNode::DesiredOf(const RankId& rank) const {
  for (const DesiredRank& goal : daemon_->desired.ranks()) {
    if (agent::RankOf(goal.key()) == rank) return &goal;
  }
  return nullptr;
}

void WorkerNode::Reconcile() {
  if (!Listens()) return;
  std::vector<agent::LocalRank> local;
  for (const auto& [rank, state] : daemon_->ranks) {
    const Folder& folder = folders_.at(rank);
    local.push_back({rank, folder.exit.has_value(), state.termination, folder.slots, IsStuck(folder)});
  }
  const auto operations = agent::Reconcile(daemon_->desired, local, {daemon_->fresh, daemon_->leaving});
  for (const agent::Operation& operation : operations) Carry(operation);
  if (!operations.empty()) SendObserved(false);
}

void WorkerNode::Carry(const agent::Operation& operation) {
  const RankId& rank = operation.rank;
  switch (operation.kind) {
    case agent::Operation::kStart:
      return StartRank(rank);
    case agent::Operation::kStop:
      return StopRank(rank);
    case agent::Operation::kKill: {
      world_->Trace([&] { return absl::StrCat(id_, ": kills ", rank.ToString()); });
      if (daemon_->restores == world_->judge.restores()) {
        world_->judge.KilledAsStale({rank, folders_.at(rank).process->name});
      }
      daemon_->ranks.at(rank).termination = agent::Termination::kKill;
      Process& process = *folders_.at(rank).process;
      process.gang->Terminate(process);
      return KillAt(rank, kKillGrace);
    }
    case agent::Operation::kFinish:
      SendObserved(false);
      folders_.at(rank).done = true;
      daemon_->ranks.erase(rank);
      return;
  }
}

void WorkerNode::StartRank(const RankId& rank) {
  const DesiredRank* desired = DesiredOf(rank);
  world_->Trace([&] { return absl::StrCat(id_, ": starts ", rank.ToString()); });
  world_->Count("rank started");
  world_->judge.Started({rank, NameIn(desired->run())}, id_);
  Folder& folder = folders_[rank];
  folder.slots.assign(desired->run().slots().begin(), desired->run().slots().end());
  for (const auto& [other, theirs] : folders_) {
    if (other == rank || (!theirs.process->alive && !IsStuck(theirs))) continue;
    for (const uint32_t slot : theirs.slots) {
      if (std::find(folder.slots.begin(), folder.slots.end(), slot) == folder.slots.end()) continue;
      world_->judge.Fail("no slot used twice", absl::StrCat(rank.ToString(), " starts on slot ", slot, " of ", id_,
                                                            ", where ", other.ToString(), " runs"));
    }
  }
  folder.process = std::make_shared<Process>();
  folder.process->id = rank;
  folder.process->name = NameIn(desired->run());
  folder.process->node = this;
  folder.process->assignment = desired->run();
  AddLocal(rank);
  world_->gangs->Of({rank, folder.process->name}).Join(folder.process);
}

void WorkerNode::StopRank(const RankId& rank) {
  const DesiredRank* desired = DesiredOf(rank);
  muster::Stop stop;
  stop.set_checkpoint_first(true);
  absl::Duration deadline = kDrainDeadline;
  if (desired != nullptr && desired->has_stop()) {
    stop = desired->stop();
    deadline = FromProto(stop.deadline());
  }
  world_->Trace([&] { return absl::StrCat(id_, ": stops ", rank.ToString()); });
  daemon_->ranks.at(rank).termination = agent::Termination::kStop;
  Process& process = *folders_.at(rank).process;
  process.gang->Stop(process, stop);
  KillAt(rank, deadline);
}

// Simpler than the real daemon, which restarts the deadline when it is restarted.
void WorkerNode::KillAt(const RankId& rank, absl::Duration delay) {
  world_->agenda.After(delay, [this, process = folders_.at(rank).process] {
    if (!process->alive) return;
    world_->Trace([&] { return absl::StrCat(id_, ": deadline of ", process->id.ToString()); });
    process->gang->EndProcess(*process, Killed("killed at its deadline", RankExit::STOPPED));
  });
}

void WorkerNode::HoldEnds(absl::Duration time) { holds_until_ = world_->agenda.now() + time; }

void WorkerNode::Soon(std::function<void()> work) {
  world_->agenda.After(absl::Milliseconds(1), [this, work = std::move(work)] {
    if (Listens()) work();  // after a freeze or a start it checks everything anyway
  });
}

}  // namespace muster::simulate
