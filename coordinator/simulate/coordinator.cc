#include "coordinator/simulate/coordinator.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/simulate/plans.h"
#include "coordinator/simulate/worker_node.h"

namespace muster::simulate {
namespace {

constexpr absl::Duration kCallTimeout = absl::Seconds(3);
constexpr absl::Duration kRestart = absl::Seconds(2);  // its supervisor's, after it could not start

}  // namespace

void Coordinator::Start() {
  if (up()) return;
  if (!world_->disk.HasRoom()) {
    silent_ = false;
    return world_->agenda.After(kRestart, [this] { Start(); });
  }
  life_ = std::make_shared<Life>([this] { Crashed(); });
  silent_ = false;
  posted_.clear();
  frozen_until_ = SteadyTime();
  server::LoopOptions options;
  options.state_dir = "state";
  options.core = world_->settings.core;
  options.core.numbers_skipped += world_->random.Between(1, 1'000'000);
  options.workers.detection = world_->settings.detection;
  options.workers.orphan_grace = world_->settings.orphan_grace;
  shell_.reset();
  plans_ = std::make_unique<SlowPlans>(world_);
  auto ledger = server::Ledger::Over(world_->disk.OpenState(life_), world_->disk.OpenHistory(life_));
  absl::Status status = ledger.status();
  if (ledger.ok()) {
    auto shell = server::Shell::Start(options, world_->agenda.clock(), plans_.get(), *std::move(ledger));
    status = shell.status();
    if (shell.ok()) shell_ = *std::move(shell);
  }
  if (!status.ok()) return world_->judge.Fail("recovery", status.ToString());
  world_->Trace([] { return "coordinator starts"; });
  world_->judge.CoordinatorStarted();
  wake_at_.reset();
  Wake(world_->agenda.now());
}

void Coordinator::Crashed() {
  world_->Trace([] { return "coordinator crashes at a write"; });
  // The shell is still on the stack.
  world_->agenda.After(absl::ZeroDuration(), [this] {
    for (const auto& node : world_->nodes) node->CoordinatorCrashed(silent_);
    world_->agenda.After(down_, [this] { Start(); });
  });
}

void Coordinator::Kill(absl::Duration down, bool silent) {
  if (!up()) return;
  world_->Trace([&] { return absl::StrCat("coordinator is killed", silent ? ", silently" : ""); });
  life_->Kill();
  silent_ = silent;
  for (const auto& node : world_->nodes) node->CoordinatorCrashed(silent);
  world_->agenda.After(down, [this] { Start(); });
}

void Coordinator::Restore(Disk::Content disk, Books books, absl::Duration down, bool silent) {
  Kill(down, silent);
  world_->Trace([] { return "a copy of the store is restored"; });
  world_->disk.Restore(std::move(disk));
  world_->judge.Restored(std::move(books));
}

void Coordinator::KillAtWrite(Life::Cut cut, absl::Duration down) {
  if (!up()) return;
  down_ = down;
  silent_ = false;
  life_->CrashAtNextWrite(cut);
}

void Coordinator::Freeze(absl::Duration time) {
  if (!up()) return;
  world_->Trace([&] { return absl::StrCat("coordinator is frozen for ", absl::FormatDuration(time)); });
  frozen_until_ = world_->agenda.now() + time;
  Wake(frozen_until_);
}

void Coordinator::Post(std::function<void(server::Turn&)> work) {
  posted_.push_back(std::move(work));
  // Calls within the same millisecond share a turn.
  if (!in_turn_) Wake(std::max(frozen_until_, world_->agenda.now() + absl::Milliseconds(1)));
}

void Coordinator::Wake(SteadyTime when) {
  if (wake_at_.has_value() && *wake_at_ <= when && *wake_at_ >= frozen_until_) return;
  wake_at_ = when;
  world_->agenda.At(when, [this, wake = ++wakes_] {
    if (wake != wakes_ || !up()) return;
    wake_at_.reset();
    if (world_->agenda.now() < frozen_until_) return Wake(frozen_until_);
    DoTurn();
  });
}

void Coordinator::DoTurn() {
  in_turn_ = true;
  shell_->DoTurn(std::exchange(posted_, {}));
  in_turn_ = false;
  if (!up()) return;
  const SteadyTime soon = world_->agenda.now() + absl::Milliseconds(1);
  Wake(!posted_.empty() || shell_->readers_wait() ? soon : std::max(soon, shell_->NextDeadline()));
}

void Coordinator::Call(const std::function<void(server::Turn&, const Reply&)>& work, bool reachable,
                       const Reply& reply) {
  World* const world = world_;
  const auto done = std::make_shared<bool>(false);
  const auto once = [done, reply](const absl::Status& status) {
    if (!std::exchange(*done, true)) reply(status);
  };
  world->agenda.After(kCallTimeout, [once] { once(absl::UnavailableError("no answer")); });
  if (!reachable) return;
  if (world->random.Percent(world->settings.lost_calls_percent)) return world->Count("request lost");
  const absl::Duration there = world->random.Between(absl::Milliseconds(1), absl::Milliseconds(50));
  const absl::Duration back = world->random.Between(absl::Milliseconds(1), absl::Milliseconds(50));
  const bool lost = world->random.Percent(world->settings.lost_calls_percent);
  world->agenda.After(there, [=, this] {
    if (!up()) return;
    Post([=, life = life_](server::Turn& turn) {
      work(turn, [=](const absl::Status& status) {
        if (!life->alive()) return;
        if (lost) return world->Count("reply lost");
        world->agenda.After(back, [once, status] { once(status); });
      });
    });
  });
}

}  // namespace muster::simulate
