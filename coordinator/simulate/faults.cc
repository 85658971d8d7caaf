#include "coordinator/simulate/faults.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/simulate/gang.h"
#include "coordinator/simulate/worker_node.h"

namespace muster::simulate {
namespace {

constexpr uint64_t kMostDestroyed = 3;

}  // namespace

void Faults::Plan(absl::Duration end) {
  Random& random = world_->random;
  const int64_t faults = random.Between(10, 30);
  for (int64_t i = 0; i < faults; ++i) {
    world_->agenda.After(random.Between(absl::Seconds(3), end - absl::Seconds(1)), [this] { One(); });
  }
  const int64_t whims = random.Between(0, 8);
  for (int64_t i = 0; i < whims; ++i) {
    world_->agenda.After(random.Between(absl::Seconds(5), end - absl::Seconds(1)), [this] { Whim(); });
  }
  PlanRare(end);
  if (world_->settings.only_coordinator_fails) return;
  for (int64_t bad = random.Percent(50) ? 0 : random.Between(1, 2); bad > 0; --bad) {
    const absl::Duration time = random.Between(absl::Seconds(20), end);
    world_->agenda.After(random.Between(absl::Seconds(1), absl::Minutes(2)), [this, time] {
      LackSomething(*world_->nodes[world_->random.Below(world_->nodes.size())], time);
    });
  }
}

void Faults::PlanRare(absl::Duration end) {
  Random& random = world_->random;
  const Settings& settings = world_->settings;
  const auto plan = [&](absl::Duration latest, std::function<void()> fault) {
    world_->agenda.After(random.Between(absl::Seconds(20), latest), std::move(fault));
  };
  for (uint64_t i = 0; i < settings.restores; ++i) plan(end - absl::Seconds(60), [this, end] { CopyAndRestore(end); });
  if (settings.long_outages) {
    for (int64_t i = random.Between(1, 3); i > 0; --i) plan(end - absl::Seconds(30), [this] { LongOutage(); });
  }
  if (settings.state_disk_fills) {
    const absl::Duration time = random.Between(absl::Seconds(30), absl::Minutes(4));
    plan(end / 2, [this, time] { FillStateDisk(time); });
  }
}

void Faults::CopyAndRestore(absl::Duration end) {
  Random& random = world_->random;
  world_->Trace([] { return "the store is copied"; });
  const absl::Duration left = end - world_->agenda.since_start();
  const absl::Duration down = random.Between(absl::Milliseconds(100), absl::Seconds(30));
  const bool silent = random.Percent(30);
  // One copy may be restored twice.
  for (int64_t times = random.Percent(20) ? 2 : 1; times > 0; --times) {
    world_->agenda.After(random.Between(absl::Seconds(1), std::max(absl::Seconds(2), left)),
                         [this, disk = world_->disk.Copy(), books = world_->judge.Copy(), down, silent] {
                           world_->Count("store restored from a copy");
                           world_->coordinator->Restore(disk, books, down, silent);
                           for (const auto& reader : *readers_) reader->StartOver();
                           for (const auto& user : *users_) {
                             world_->agenda.After(world_->random.Between(absl::Seconds(1), absl::Minutes(1)),
                                                  [user = user.get()] { user->SubmitIfLost(); });
                           }
                         });
  }
}

void Faults::LongOutage() {
  Random& random = world_->random;
  const Settings& settings = world_->settings;
  const absl::Duration time = settings.orphan_grace + random.Between(absl::Seconds(10), absl::Minutes(1));
  if (settings.only_coordinator_fails || random.Percent(50)) {
    world_->Count("coordinator away for longer than the orphan grace");
    return world_->coordinator->Kill(time, random.Percent(50));
  }
  world_->Count("nodes away for longer than the orphan grace");
  for (int64_t i = random.Between(1, 5); i > 0; --i) {
    WorkerNode& node = AnyNode();
    Partition(node);
    world_->agenda.After(time, [&node] { node.SetRoute({true, true}); });
  }
}

void Faults::FillStateDisk(absl::Duration time) {
  Random& random = world_->random;
  world_->Count("state disk full");
  // In half of the seeds the reserve is soon used up.
  const int64_t reserve = random.Percent(50) ? int64_t{16} << 20 : random.Between(1'000, 200'000);
  world_->Trace([&] { return absl::StrCat("the state disk is full, with ", reserve, " bytes in reserve"); });
  world_->disk.Fill(static_cast<uint64_t>(reserve));
  world_->agenda.After(time, [this] { world_->disk.Free(); });
}

void Faults::LackSomething(WorkerNode& node, absl::Duration time) {
  world_->Count("node lacks a mount");
  node.SetLacking(true);
  world_->agenda.After(time, [&node] { node.SetLacking(false); });
}

void Faults::UndrainAll() {
  for (const auto& node : world_->nodes) Drain(world_, node->id(), false);
  world_->agenda.After(absl::Minutes(1), [this] { UndrainAll(); });
}

WorkerNode& Faults::AnyNode() {
  // Mostly a node on which ranks run.
  if (world_->random.Percent(70)) {
    const auto living = world_->gangs->Living();
    if (!living.empty()) return *living[world_->random.Below(living.size())]->node;
  }
  return *world_->nodes[world_->random.Below(world_->nodes.size())];
}

void Faults::One() {
  if (world_->settings.only_coordinator_fails) return HitCoordinator();
  const uint64_t roll = world_->random.Below(100);
  if (roll < 20) return HitCoordinator();
  if (roll < 42) return HitDaemon();
  if (roll < 52) return HitMachine();
  if (roll < 80) return HitNetwork();
  return HitRank();
}

void Faults::HitCoordinator() {
  Random& random = world_->random;
  const absl::Duration down = random.Percent(80) ? random.Between(absl::Milliseconds(100), absl::Seconds(10))
                                                 : random.Between(absl::Seconds(10), absl::Seconds(60));
  Coordinator& coordinator = *world_->coordinator;
  switch (random.Below(5)) {
    case 0:
      world_->Count("coordinator killed");
      return coordinator.Kill(down, /*silent=*/false);
    case 1:
      world_->Count("coordinator's machine lost power");
      return coordinator.Kill(down, /*silent=*/true);
    case 2:
      world_->Count("coordinator killed before a commit");
      return coordinator.KillAtWrite(Life::Cut::kBefore, down);
    case 3:
      world_->Count("coordinator killed after a commit");
      return coordinator.KillAtWrite(Life::Cut::kAfter, down);
    default:
      world_->Count("coordinator frozen");
      return coordinator.Freeze(random.Between(absl::Seconds(1), absl::Seconds(30)));
  }
}

void Faults::HitDaemon() {
  Random& random = world_->random;
  WorkerNode& node = AnyNode();
  const absl::Duration down = random.Between(absl::Milliseconds(200), absl::Seconds(40));
  switch (random.Below(4)) {
    case 0:
    case 1:
      world_->Count("worker daemon killed");
      node.KillDaemon();
      return world_->agenda.After(down, [&node] { node.StartDaemon(); });
    case 2:
      world_->Count("worker daemon frozen");
      return node.FreezeDaemon(random.Between(absl::Seconds(1), absl::Seconds(40)));
    default:
      world_->Count("worker daemon got SIGTERM");
      return node.Leave(down);
  }
}

void Faults::HitMachine() {
  Random& random = world_->random;
  WorkerNode& node = AnyNode();
  if (destroyed_ < kMostDestroyed && random.Percent(15)) {
    ++destroyed_;
    world_->Count("machine destroyed");
    return node.Destroy();
  }
  world_->Count("machine rebooted");
  node.Reboot(random.Between(absl::Seconds(3), absl::Seconds(60)), random.Percent(50));
}

void Faults::Partition(WorkerNode& node) {
  switch (world_->random.Below(3)) {
    case 0:
      world_->Count("partition");
      return node.SetRoute({false, false});
    case 1:
      world_->Count("partition towards the coordinator");
      return node.SetRoute({false, true});
    default:
      world_->Count("partition towards the node");
      return node.SetRoute({true, false});
  }
}

void Faults::Flap(WorkerNode& node, uint64_t times) {
  if (times == 0 || healed_) return;
  const bool cut = times % 2 == 0;
  node.SetRoute(cut ? Route{false, false} : Route{true, true});
  world_->agenda.After(world_->random.Between(absl::Milliseconds(500), absl::Seconds(12)),
                       [this, &node, times] { Flap(node, times - 1); });
}

void Faults::HitNetwork() {
  Random& random = world_->random;
  const absl::Duration time = random.Between(absl::Seconds(1), absl::Seconds(90));
  switch (random.Below(6)) {
    case 0:
    case 1: {
      WorkerNode& node = AnyNode();
      Partition(node);
      return world_->agenda.After(time, [&node] { node.SetRoute({true, true}); });
    }
    case 2:  // several at once, as on one switch
      for (int i = 0; i < 5; ++i) {
        WorkerNode& node = AnyNode();
        Partition(node);
        world_->agenda.After(time, [&node] { node.SetRoute({true, true}); });
      }
      return;
    case 3:
      world_->Count("flapping network");
      return Flap(AnyNode(), 2 * random.Below(5) + 2);
    case 4:
      world_->Count("stream broken");
      return AnyNode().BreakStream();
    default:
      world_->Count("slow network");
      world_->slow_network = random.Between(absl::Milliseconds(100), absl::Seconds(6));
      return world_->agenda.After(time, [this] { world_->slow_network = absl::ZeroDuration(); });
  }
}

void Faults::HitRank() {
  Random& random = world_->random;
  if (random.Percent(10)) {
    world_->Count("disk full");
    world_->disk_full_until = world_->agenda.now() + random.Between(absl::Seconds(5), absl::Seconds(60));
    return;
  }
  if (random.Percent(10)) return world_->JumpWall(random.Between(absl::Hours(-48), absl::Hours(48)));
  if (random.Percent(10)) {
    world_->Count("node holds killed ranks");
    return AnyNode().HoldEnds(random.Between(absl::Seconds(5), absl::Minutes(5)));
  }
  const auto living = world_->gangs->Living();
  if (living.empty()) return world_->Count("no rank to hit");
  const std::shared_ptr<Process>& process = living[random.Below(living.size())];
  if (random.Percent(60)) {
    world_->Count("rank killed");
    RankExit exit;
    exit.set_cause(RankExit::FAILED);
    exit.set_signal(9);
    return process->gang->EndProcess(*process, exit);
  }
  process->gang->Freeze(*process);
  if (random.Percent(30)) return world_->Count("rank frozen for good");
  world_->Count("rank frozen");
  world_->agenda.After(random.Between(absl::Seconds(1), absl::Seconds(60)),
                       [process] { process->gang->Thaw(*process); });
}

void Faults::Whim() {
  Random& random = world_->random;
  User& user = *(*users_)[random.Below(users_->size())];
  switch (random.Below(8)) {
    case 0:
    case 1:
      user.Pause();
      return world_->agenda.After(random.Between(absl::Seconds(1), absl::Seconds(60)), [&user] { user.Resume(); });
    case 2:
      return user.Cancel();
    case 3:
      return user.Delete();
    case 4:
      return user.Submit();  // again, with the same request id
    case 5:
      return (*readers_)[random.Below(readers_->size())]->Disconnect();
    default: {
      const std::string node = AnyNode().id();
      drained_.push_back(node);
      Drain(world_, node, true);
      return world_->agenda.After(random.Between(absl::Seconds(1), absl::Seconds(90)),
                                  [this, node] { Drain(world_, node, false); });
    }
  }
}

void Faults::HealAll() {
  healed_ = true;
  world_->slow_network = absl::ZeroDuration();
  world_->disk_full_until = world_->agenda.now();
  world_->disk.Free();
  for (const auto& node : world_->nodes) {
    node->SetRoute({true, true});
    node->SetLacking(false);
    node->HoldEnds(absl::ZeroDuration());
  }
  UndrainAll();
}

}  // namespace muster::simulate
