// Times the ops of a rank that compute, and makes each take as long as on a part of a core, for stages of a pipeline
// that are more than the machine has cores. An op takes the processor time that its thread used over that part: where
// it ended earlier, the rank sleeps before it goes on, so what the op made is sent no earlier. Whoever gets at least
// that part of a core is therefore as fast as if it had exactly so much, whatever else the core does meanwhile.
//
//   PacedOps ops(0.4);
//   config.progress = &ops;
//   ... a step ...
//   ops.Take();
//
// For engines that compute on the calling thread alone: CPUs, one thread a rank. Not thread-safe.
#pragma once

#include <time.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

#include "strategies/schedule/ops.h"
#include "worker/engine/op_listener.h"

namespace muster::bench {

class PacedOps final : public engine::OpListener {
 public:
  struct Span {
    int32_t op;
    std::chrono::duration<double> begin, end;  // of the clock that all processes of the machine share
  };

  // `share` of a core, above 0; 1: nothing sleeps.
  explicit PacedOps(double share) : share_(share) {}

  void Begin(int32_t index, OpKind kind) override {
    End();
    op_ = index;
    computes_ = Traits(kind).stream == Stream::kCompute;
    sums_ = Traits(kind).scalar_bytes > 0;
    Start();
  }
  void WaitFor(int32_t, OpKind) override {}
  void EndWait(int32_t, OpKind) override { Start(); }
  void EndStep() override { End(); }

  // Those that computed since the last Take. One that sums over ranks is as long as it computes, without its wait for
  // them.
  std::vector<Span> Take() { return std::exchange(spans_, {}); }

 private:
  using Seconds = std::chrono::duration<double>;

  static Seconds Now(clockid_t clock) {
    timespec now = {};
    clock_gettime(clock, &now);
    return Seconds(static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec));
  }

  void Start() { begin_ = Now(CLOCK_MONOTONIC), used_ = Now(CLOCK_THREAD_CPUTIME_ID); }

  void End() {
    if (!std::exchange(computes_, false)) return;
    const Seconds until = begin_ + (Now(CLOCK_THREAD_CPUTIME_ID) - used_) / share_;
    if (share_ < 1) {
      timespec at = {};
      at.tv_sec = static_cast<time_t>(until.count());
      at.tv_nsec = static_cast<int64_t>(1e9 * (until.count() - static_cast<double>(at.tv_sec)));
      while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, nullptr) == EINTR) {
      }
    }
    spans_.push_back({op_, begin_, sums_ ? until : Now(CLOCK_MONOTONIC)});
  }

  const double share_;
  int32_t op_ = -1;
  bool computes_ = false, sums_ = false;  // the op that began last and has not ended; over ranks
  Seconds begin_{}, used_{};              // of it: the time, and its thread's processor time
  std::vector<Span> spans_;
};

}  // namespace muster::bench
