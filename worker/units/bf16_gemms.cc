#include "worker/units/bf16_gemms.h"

#include <ATen/Context.h>

#include "absl/strings/str_cat.h"

namespace muster::units {

Bf16Choice ChooseBf16Gemms(const UsableInstructions& instructions, bool onednn) {
  if (!onednn) return {Bf16Gemms::kPanels, "bf16 GEMMs: through fp32 panels (this LibTorch is without oneDNN)"};
  if (HasFastBf16(instructions.usable)) {
    return {Bf16Gemms::kNative, absl::StrCat("bf16 GEMMs: native (", NameOf(instructions.usable), ")")};
  }
  const std::string why = instructions.limited_by.empty()
                              ? absl::StrCat("this CPU has ", NameOf(instructions.cpu), " only")
                              : absl::StrCat(instructions.limited_by, " hides this CPU's ", NameOf(instructions.cpu));
  return {Bf16Gemms::kPanels, absl::StrCat("bf16 GEMMs: through fp32 panels (", why,
                                           "), about as fast as fp32; faster ones need AVX-512 BF16 or AMX BF16")};
}

Bf16Choice ChooseBf16Gemms() {
  return ChooseBf16Gemms(FindInstructions(), at::hasMKLDNN() && at::globalContext().userEnabledMkldnn());
}

}  // namespace muster::units
