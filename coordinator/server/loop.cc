#include "coordinator/server/loop.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "common/random_text.h"

namespace muster::server {
namespace {

constexpr size_t kWorkPerTurn = 256;

}  // namespace

// What the core asks for goes to the pool, and comes back in a turn.
class Loop::PooledPlans final : public CorePlans {
 public:
  explicit PooledPlans(Loop* loop) : loop_(loop) {}

  void Request(const core::RequestPlan& request) override {
    PlanQuestion question{request.spec, {request.slots, core::HardwareFor(request.slots)}};
    tickets_[request.key] =
        loop_->plans_.Ask(std::move(question), PlanPool::Core(),
                          [this, key = request.key](const PlanPool::Answer& answer) { Answer(key, answer); });
  }

  void Cancel(const std::string& key) override {
    const auto ticket = tickets_.extract(key);
    if (!ticket.empty()) loop_->plans_.Cancel(ticket.mapped());
  }

 private:
  // On any thread.
  void Answer(const std::string& key, const PlanPool::Answer& answer) {
    if (absl::IsUnavailable(answer.status())) return;  // shutting down
    core::PlanReady ready{key, nullptr};
    if (answer.ok()) {
      ready.plan = (*answer)->planned;
    } else {
      ready.plan = answer.status();
    }
    loop_->Post([this, ready = std::move(ready)](Turn& turn) {
      tickets_.erase(ready.key);
      turn.Handle(ready);
    });
  }

  Loop* const loop_;
  std::map<std::string, uint64_t> tickets_;  // by key; of the loop's thread
};

Loop::Loop(const LoopOptions& options, const Clock* clock)
    : clock_(clock), plans_(options.plans), core_plans_(std::make_unique<PooledPlans>(this)) {}

absl::StatusOr<std::unique_ptr<Loop>> Loop::Start(LoopOptions options, const Clock* clock) {
  const absl::StatusOr<std::string> digits = RandomText(6, "0123456789");
  if (!digits.ok()) return digits.status();
  uint64_t random = 0;
  if (!absl::SimpleAtoi(*digits, &random)) return absl::InternalError("random digits are not a number");
  options.core.numbers_skipped += random;
  absl::StatusOr<std::unique_ptr<Ledger>> ledger = Ledger::Open(options.state_dir, options.history, options.audit_kept);
  if (!ledger.ok()) return ledger.status();
  std::unique_ptr<Loop> loop(new Loop(options, clock));
  absl::StatusOr<std::unique_ptr<Shell>> shell =
      Shell::Start(options, clock, loop->core_plans_.get(), *std::move(ledger));
  if (!shell.ok()) return shell.status();
  loop->shell_ = *std::move(shell);
  loop->thread_ = std::thread([loop = loop.get()] { loop->Run(); });
  return loop;
}

Loop::~Loop() { Stop(); }

void Loop::Post(std::function<void(Turn&)> work) {
  const MutexLock lock(mutex_);
  queue_.push_back(std::move(work));
  changed_.notify_one();
}

void Loop::Drain() {
  Post([](Turn& turn) {
    turn.AfterCommit([&turn] {
      const absl::Status why = absl::UnavailableError("the coordinator is shutting down; try again in a moment");
      turn.workers().CloseAll(why);
      turn.watches().CloseAll(why);
      turn.rendezvous().EndAll(why);
      turn.sync_calls().EndAll(why);
      turn.traces().EndAll(why);
    });
  });
}

void Loop::Stop() {
  plans_.Stop();
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

bool Loop::TakeWork(bool wait, std::deque<std::function<void(Turn&)>>& work) {
  const absl::Duration timeout = wait ? shell_->NextDeadline() - clock_->Read().steady : absl::ZeroDuration();
  const MutexLock lock(mutex_);
  const auto deadline = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(timeout);
  while (wait && !stopping_ && queue_.empty()) {
    if (changed_.wait_until(mutex_, deadline) == std::cv_status::timeout) break;
  }
  if (stopping_ && queue_.empty()) return false;
  const size_t count = std::min(queue_.size(), kWorkPerTurn);
  work.assign(std::make_move_iterator(queue_.begin()), std::make_move_iterator(queue_.begin() + count));
  queue_.erase(queue_.begin(), queue_.begin() + count);
  return true;
}

void Loop::Run() {
  std::deque<std::function<void(Turn&)>> work;
  while (TakeWork(/*wait=*/!shell_->readers_wait(), work)) shell_->DoTurn(std::exchange(work, {}));
  shell_->Finish();
}

}  // namespace muster::server
