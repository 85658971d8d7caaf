// A block of program.h by threads that run at once, in warps of 32, as on a GPU.
//
// `Hardware` is what CUDA's intrinsics give: thread(), Sync() of the block, ShuffleDown(value, lanes) and First(value)
// within a warp, and Shared<S>() for a value of each warp. launch.cu has them as intrinsics; row_programs_test.cc has
// them by threads of a CPU, to prove this file where there is no GPU.
#pragma once

#include "worker/units/cuda/program.h"

namespace muster::units::programs {

template <int kThreads, typename Hardware>
class SimtBlock {
  static_assert(kThreads % kWarp == 0 && kThreads <= 1024);

 public:
  MUSTER_PROGRAM explicit SimtBlock(const Hardware& hardware) : hardware_(hardware) {}

  template <typename F>
  MUSTER_PROGRAM void Each(int n, const F& f) const {
    for (int i = hardware_.thread(); i < n; i += kThreads) f(i);
  }

  template <typename S, typename Step, typename Join>
  MUSTER_PROGRAM S Reduce(int n, const S& zero, const Step& step, const Join& join) const {
    S own = zero;
    for (int i = hardware_.thread(); i < n; i += kThreads) own = step(own, i);
    for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) own = join(own, hardware_.ShuffleDown(own, lanes));
    if constexpr (kThreads == kWarp) {
      return hardware_.First(own);
    } else {
      S* const warps = hardware_.template Shared<S>();
      hardware_.Sync();  // all have read the previous result
      if (hardware_.thread() % kWarp == 0) warps[hardware_.thread() / kWarp] = own;
      hardware_.Sync();
      // Every thread joins in the same order, so all have the same bits.
      S all = warps[0];
      for (int warp = 1; warp < kThreads / kWarp; ++warp) all = join(all, warps[warp]);
      return all;
    }
  }

 private:
  const Hardware& hardware_;
};

}  // namespace muster::units::programs
