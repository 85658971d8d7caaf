#include "worker/trainer/pulse.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace muster::trainer {
namespace {

constexpr absl::Duration kHeartbeat = absl::Milliseconds(250);
constexpr auto kRelaxed = std::memory_order_relaxed;  // readers use each field on its own

}  // namespace

absl::StatusOr<std::unique_ptr<Pulse>> Pulse::Start(const std::string& rank_dir, absl::Duration patience) {
  absl::StatusOr<std::unique_ptr<rundir::ProgressPage>> page = rundir::ProgressPage::Create(rank_dir);
  if (!page.ok()) return page.status();
  return std::unique_ptr<Pulse>(new Pulse(*std::move(page), patience));
}

Pulse::Pulse(std::unique_ptr<rundir::ProgressPage> page, absl::Duration patience)
    : page_(std::move(page)), most_heartbeats_(absl::IDivDuration(patience, kHeartbeat, &patience)) {
  (*page_)->op_exchanges.store(1, kRelaxed);
  Enter(rundir::kLoading);
  thread_ = std::thread([this] { Heartbeat(); });
}

Pulse::~Pulse() {
  {
    const MutexLock lock(mutex_);
    ending_ = true;
  }
  ended_.notify_one();
  thread_.join();
}

void Pulse::Enter(rundir::Stage stage) {
  rundir::Progress& page = *page_->operator->();
  heartbeats_at_stage_.store(0, kRelaxed);
  page.op_issued.store(0, kRelaxed);
  page.op_completed.store(0, kRelaxed);
  page.stage.store(stage, kRelaxed);
  ForgetExchanges();
}

void Pulse::FinishStep(uint64_t step) { (*page_)->step.store(step, kRelaxed); }

void Pulse::Show(int32_t completed, OpKind kind) {
  rundir::Progress& page = *page_->operator->();
  page.op_completed.store(static_cast<uint64_t>(completed), kRelaxed);
  page.stage.store(rundir::kOps + static_cast<uint64_t>(kind), kRelaxed);
}

void Pulse::Begin(int32_t index, OpKind kind) {
  ForgetExchanges();
  (*page_)->op_issued.store(static_cast<uint64_t>(index) + 1, kRelaxed);
  Show(index, kind);
}

void Pulse::ForgetExchanges() {
  if (std::exchange(exchanges_, 0) > 0) (*page_)->op_exchanges.store(1, kRelaxed);
}

void Pulse::Exchange() { (*page_)->op_exchanges.store(++exchanges_ + 1, kRelaxed); }

void Pulse::WaitFor(int32_t earlier, OpKind kind) { Show(earlier, kind); }

void Pulse::EndWait(int32_t index, OpKind kind) { Show(index, kind); }

// Waits by the steady clock: a change of the wall clock must not make a rank look stalled.
void Pulse::Heartbeat() {
  const MutexLock lock(mutex_);
  while (true) {
    const auto next = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(kHeartbeat);
    while (!ending_ && ended_.wait_until(mutex_, next) == std::cv_status::no_timeout) continue;
    if (ending_) return;
    rundir::Progress& page = *page_->operator->();
    page.heartbeat.fetch_add(1, kRelaxed);
    const bool between_steps = page.stage.load(kRelaxed) < rundir::kOps;
    if (between_steps && heartbeats_at_stage_.fetch_add(1, kRelaxed) < most_heartbeats_)
      page.alive_at_stage.fetch_add(1, kRelaxed);
  }
}

}  // namespace muster::trainer
