#include "worker/trainer/speed.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <vector>

#include "common/log/log.h"
#include "worker/engine/dtype.h"
#include "worker/units/gemm.h"

namespace muster::trainer {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kCpuRows = 256, kCudaRows = 4096;
constexpr std::chrono::milliseconds kLong(20);
constexpr size_t kLeast = 3, kMost = 1000;

double Measure(const Gemm& gemm) {
  const c10::AutoGradMode off(false);
  const int64_t rows = gemm.cuda ? kCudaRows : kCpuRows;
  const auto options = at::TensorOptions(engine::ScalarTypeOf(gemm.dtype)).device(gemm.cuda ? at::kCUDA : at::kCPU);
  const at::Tensor a = at::zeros({rows, gemm.width}, options);
  const at::Tensor b = at::zeros({gemm.width, 4 * gemm.width}, options);
  const at::Tensor c = at::zeros({rows, 4 * gemm.width}, options);
  const units::Gemms gemms(units::ChooseBf16Gemms().gemms, units::ChooseFp32Gemms().gemms);  // as the rank's engine
  // Copying an element to the host waits for the device.
  const auto once = [&] {
    gemms.Compute(a, b, c);
    if (gemm.cuda) (void)c.view({-1})[0].item<float>();
  };
  once();  // chooses and compiles kernels
  std::vector<double> seconds;
  const Clock::time_point end = Clock::now() + kLong;
  while (seconds.size() < kLeast || (Clock::now() < end && seconds.size() < kMost)) {
    const Clock::time_point begin = Clock::now();
    once();
    seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  const double flops = 2.0 * static_cast<double>(rows * gemm.width) * 4.0 * static_cast<double>(gemm.width);
  return *middle > 0 ? flops / *middle : 0;
}

}  // namespace

double MeasureSpeed(const Gemm& gemm) {
  try {
    return Measure(gemm);
  } catch (const std::exception& e) {
    LogWarn("cannot measure the speed of GEMMs", {{"error", e.what()}});
    return 0;
  }
}

}  // namespace muster::trainer
