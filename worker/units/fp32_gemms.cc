#include "worker/units/fp32_gemms.h"

#include <ATen/Context.h>

#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace muster::units {
namespace {

Fp32Choice ByMkl(absl::string_view why) { return {Fp32Gemms::kMkl, absl::StrCat("fp32 GEMMs: by MKL (", why, ")")}; }

}  // namespace

Fp32Choice ChooseFp32Gemms(const UsableInstructions& instructions, bool onednn, absl::string_view mkl_cbwr) {
  if (instructions.intel) return ByMkl("an Intel CPU");
  if (instructions.usable < InstructionSet::kAvx512) {
    return ByMkl(instructions.limited_by.empty() ? "a CPU without AVX-512" : instructions.limited_by);
  }
  if (!onednn) return ByMkl("this LibTorch is without oneDNN");
  const bool own_path = mkl_cbwr.empty() || absl::StartsWithIgnoreCase(mkl_cbwr, "AUTO") ||
                        absl::StartsWithIgnoreCase(mkl_cbwr, "AVX512");
  if (!own_path) return ByMkl(absl::StrCat("MKL_CBWR=", mkl_cbwr));
  return {Fp32Gemms::kBlocks,
          absl::StrCat("fp32 GEMMs: in blocks by oneDNN (", NameOf(instructions.usable), ", not Intel's)")};
}

Fp32Choice ChooseFp32Gemms() {
  const char* const cbwr = std::getenv("MKL_CBWR");
  return ChooseFp32Gemms(FindInstructions(), at::hasMKLDNN() && at::globalContext().userEnabledMkldnn(),
                         cbwr == nullptr ? "" : cbwr);
}

}  // namespace muster::units
