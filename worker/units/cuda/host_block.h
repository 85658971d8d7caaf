// A block of program.h by one thread of a CPU: a loop in the place of the threads, and states joined in the order
// of simt_block.h, so results differ from a GPU's by the roundings of exp, log and fused multiplication only.
#pragma once

#include "worker/units/cuda/program.h"

namespace muster::units::programs {

template <int kThreads>
class HostBlock {
 public:
  template <typename F>
  void Each(int n, const F& f) const {
    for (int i = 0; i < n; ++i) f(i);
  }

  template <typename S, typename Step, typename Join>
  S Reduce(int n, const S& zero, const Step& step, const Join& join) const {
    S own[kThreads];
    for (S& state : own) state = zero;
    for (int begin = 0; begin < n; begin += kThreads) {
      const int end = n - begin < kThreads ? n - begin : kThreads;
      for (int thread = 0; thread < end; ++thread) own[thread] = step(own[thread], begin + thread);
    }
    for (S* warp = own; warp < own + kThreads; warp += kWarp) {
      for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
        for (int lane = 0; lane < lanes; ++lane) warp[lane] = join(warp[lane], warp[lane + lanes]);
      }
    }
    S all = own[0];
    for (int warp = 1; warp < kThreads / kWarp; ++warp) all = join(all, own[warp * kWarp]);
    return all;
  }
};

// Runs a program block by block.
template <typename Program>
void RunOnHost(const Program& program) {
  const Grid grid = program.grid();
  const HostBlock<Program::kThreads> block;
  for (int64_t y = 0; y < grid.y; ++y) {
    for (int64_t x = 0; x < grid.x; ++x) program(block, {x, y});
  }
}

}  // namespace muster::units::programs
