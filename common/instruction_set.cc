#include "common/instruction_set.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

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

#if defined(__x86_64__)
// On a CPU with AVX, so it has xgetbv. clang 14's __builtin_cpu_supports does not know AMX.
bool HasAmxBf16() {
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24;  // of edx, leaf 7
  constexpr unsigned kTileState = 3u << 17;               // of XCR0: the kernel saves the registers
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 || (~edx & (kBf16 | kTile)) != 0) return false;
  unsigned low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & kTileState) == kTileState;
}
#endif

InstructionSet CpuInstructionSet() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return InstructionSet::kBaseline;
  // What oneDNN calls avx512_core.
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq")) {
    return InstructionSet::kAvx2;
  }
  if (HasAmxBf16()) return InstructionSet::kAmxBf16;
  return __builtin_cpu_supports("avx512bf16") ? InstructionSet::kAvx512Bf16 : InstructionSet::kAvx512;
#else
  return InstructionSet::kBaseline;
#endif
}

bool IsIntel() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return __builtin_cpu_is("intel") != 0;
#else
  return false;
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
  UsableInstructions found = LimitInstructions(CpuInstructionSet(), onednn, Variable("ATEN_CPU_CAPABILITY"));
  found.intel = IsIntel();
  return found;
}

std::string MklCodePath(const UsableInstructions& instructions) {
  if (instructions.usable < InstructionSet::kAvx512) return "AVX2";
  return instructions.intel ? "AVX512" : "AUTO";
}

}  // namespace muster
