#include "common/node/peak_flops.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"

namespace muster {
namespace {

struct Peak {
  const char* word;  // of the model's name
  double half, tf32, fp32;
};

// Without sparsity, SXM where there are several: NVIDIA's data sheets "A100 Tensor Core GPU" (2021), "H100 Tensor Core
// GPU" (2023), "H200 Tensor Core GPU" (2024), and appendix A of "NVIDIA Ada GPU Architecture" (2023), with fp32
// accumulation.
constexpr Peak kPeaks[] = {
    {"a100", 312e12, 156e12, 19.5e12},
    {"h100", 989e12, 494e12, 67e12},
    {"h200", 989e12, 494e12, 67e12},
    {"4090", 165.2e12, 82.6e12, 82.6e12},
};

constexpr Peak kH100Pcie = {"", 756e12, 378e12, 51e12};

double Of(const Peak& peak, const Precision& precision) {
  if (precision.compute() == DTYPE_BF16 || precision.compute() == DTYPE_FP16) return peak.half;
  return precision.tf32() ? peak.tf32 : peak.fp32;
}

}  // namespace

std::optional<double> PeakFlops(absl::string_view model, const Precision& precision) {
  const std::vector<std::string> words = absl::StrSplit(absl::AsciiStrToLower(model), absl::ByAnyChar(" -"));
  const auto has = [&](const char* word) { return std::find(words.begin(), words.end(), word) != words.end(); };
  if (has("nvl") || has("laptop")) return std::nullopt;  // other clocks
  if (has("h100") && has("pcie")) return Of(kH100Pcie, precision);
  for (const Peak& peak : kPeaks) {
    if (has(peak.word)) return Of(peak, precision);
  }
  return std::nullopt;
}

}  // namespace muster
