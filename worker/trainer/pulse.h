// Writes the trainer's progress page: the current stage and op, and heartbeats that show that the process runs.
//
//   auto pulse = Pulse::Start(rank_dir, patience).value();
//   pulse->Enter(rundir::kReading);
//   engine->Step(...);  // with config.progress = pulse.get()
//   pulse->FinishStep(engine->step());
//
// Owns a heartbeat thread. Enter, FinishStep and the engine's callbacks must come from one thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "worker/engine/op_listener.h"
#include "worker/rundir/progress.h"

namespace muster::trainer {

class Pulse final : public engine::OpListener {
 public:
  // Starts in kLoading. A stage counts as progress for at most `patience`. Errors as ProgressPage::Create.
  static absl::StatusOr<std::unique_ptr<Pulse>> Start(const std::string& rank_dir, absl::Duration patience);
  ~Pulse() override;

  void Enter(rundir::Stage stage);
  void FinishStep(uint64_t step);

  // ---- engine::OpListener ----
  void Begin(int32_t index, OpKind kind) override;
  void WaitFor(int32_t earlier, OpKind kind) override;
  void EndWait(int32_t index, OpKind kind) override;
  void Exchange() override;
  void EndStep() override { Enter(rundir::kReporting); }

 private:
  Pulse(std::unique_ptr<rundir::ProgressPage> page, absl::Duration patience);
  void Heartbeat();
  void Show(int32_t completed, OpKind kind);
  void ForgetExchanges();

  const std::unique_ptr<rundir::ProgressPage> page_;
  const int64_t most_heartbeats_;  // per stage
  uint64_t exchanges_ = 0;         // of the current op
  std::atomic<int64_t> heartbeats_at_stage_ = 0;
  Mutex mutex_;
  std::condition_variable_any ended_;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses the other members
};

}  // namespace muster::trainer
