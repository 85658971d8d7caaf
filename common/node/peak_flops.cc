#include "common/node/peak_flops.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

namespace muster {
namespace {

struct Peak {
  const char* name;  // a part of the model's name
  double half, tf32, fp32;
};

// Without sparsity, SXM where there are several: NVIDIA's data sheets "A100 Tensor Core GPU" (2021), "H100 Tensor Core
// GPU" (2023), "H200 Tensor Core GPU" (2024), and appendix A of "NVIDIA Ada GPU Architecture" (2023), with fp32
// accumulation.
constexpr Peak kPeaks[] = {
    {"a100", 312e12, 156e12, 19.5e12}, {"h100 pcie", 756e12, 378e12, 51e12}, {"h100", 989e12, 494e12, 67e12},
    {"h200", 989e12, 494e12, 67e12},   {"4090", 165.2e12, 82.6e12, 82.6e12},
};

}  // namespace

std::optional<double> PeakFlops(absl::string_view model, const Precision& precision) {
  const std::string lower = absl::AsciiStrToLower(model);
  for (const Peak& peak : kPeaks) {
    if (!absl::StrContains(lower, peak.name)) continue;
    if (precision.compute() == DTYPE_BF16 || precision.compute() == DTYPE_FP16) return peak.half;
    return precision.tf32() ? peak.tf32 : peak.fp32;
  }
  return std::nullopt;
}

}  // namespace muster
