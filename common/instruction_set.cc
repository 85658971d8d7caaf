#include "common/instruction_set.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace muster {
namespace {

constexpr std::array<std::pair<InstructionSet, absl::string_view>, 5> kInstructionSetNames = {{
    {InstructionSet::kBaseline, "x86-64"},
    {InstructionSet::kAvx2, "AVX2"},
    {InstructionSet::kAvx512, "AVX-512"},
    {InstructionSet::kAvx512Bf16, "AVX-512 BF16"},
    {InstructionSet::kAmxBf16, "AMX BF16"},
}};

InstructionSet CpuInstructionSet() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return InstructionSet::kBaseline;
  // What oneDNN calls avx512_core.
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq")) {
    return InstructionSet::kAvx2;
  }
  if (__builtin_cpu_supports("amx-bf16") && __builtin_cpu_supports("amx-tile")) return InstructionSet::kAmxBf16;
  return __builtin_cpu_supports("avx512bf16") ? InstructionSet::kAvx512Bf16 : InstructionSet::kAvx512;
#else
  return InstructionSet::kBaseline;
#endif
}

// oneDNN 3's values of ONEDNN_MAX_CPU_ISA (dev_guide_cpu_dispatcher_control), which it compares without case.
InstructionSet OnednnLimit(absl::string_view value) {
  const std::string isa = absl::AsciiStrToLower(value);
  if (isa == "sse41" || isa == "avx") return InstructionSet::kBaseline;
  if (isa == "avx2" || isa == "avx2_vnni" || isa == "avx2_vnni_2") return InstructionSet::kAvx2;
  if (isa == "avx512_core" || isa == "avx512_core_vnni") return InstructionSet::kAvx512;
  if (isa == "avx512_core_bf16" || isa == "avx512_core_fp16" || isa == "avx10_1_512")
    return InstructionSet::kAvx512Bf16;
  return InstructionSet::kAmxBf16;
}

// LibTorch's values of ATEN_CPU_CAPABILITY; "avx512" is its highest and hides nothing from oneDNN.
InstructionSet AtenLimit(absl::string_view value) {
  if (value == "default") return InstructionSet::kBaseline;
  if (value == "avx2") return InstructionSet::kAvx2;
  return InstructionSet::kAmxBf16;
}

absl::string_view Variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

absl::string_view NameOf(InstructionSet set) { return kInstructionSetNames.at(static_cast<size_t>(set)).second; }

std::optional<InstructionSet> InstructionSetOfName(absl::string_view name) {
  for (const auto& [set, its_name] : kInstructionSetNames) {
    if (its_name == name) return set;
  }
  return std::nullopt;
}

bool HasFastBf16(InstructionSet set) { return set >= InstructionSet::kAvx512Bf16; }

UsableInstructions LimitInstructions(InstructionSet cpu, absl::string_view onednn_max_isa,
                                     absl::string_view aten_capability) {
  const InstructionSet onednn = OnednnLimit(onednn_max_isa), aten = AtenLimit(aten_capability);
  UsableInstructions found{.cpu = cpu, .usable = std::min({cpu, onednn, aten}), .limited_by = ""};
  if (found.usable == cpu) return found;
  found.limited_by = onednn <= aten ? absl::StrCat("ONEDNN_MAX_CPU_ISA=", onednn_max_isa)
                                    : absl::StrCat("ATEN_CPU_CAPABILITY=", aten_capability);
  return found;
}

UsableInstructions FindInstructions() {
  absl::string_view onednn = Variable("ONEDNN_MAX_CPU_ISA");
  if (onednn.empty()) onednn = Variable("DNNL_MAX_CPU_ISA");  // its older name, which oneDNN reads too
  return LimitInstructions(CpuInstructionSet(), onednn, Variable("ATEN_CPU_CAPABILITY"));
}

}  // namespace muster
