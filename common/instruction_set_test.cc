#include "common/instruction_set.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

namespace muster {
namespace {

using enum InstructionSet;

TEST(InstructionSet, NamesAreReadBack) {
  for (const InstructionSet set : {kBaseline, kAvx2, kAvx512, kAvx512Bf16, kAmxBf16}) {
    EXPECT_EQ(InstructionSetOfName(NameOf(set)), set);
  }
  EXPECT_EQ(NameOf(kAvx512Bf16), "AVX-512 BF16");
  EXPECT_FALSE(InstructionSetOfName("").has_value());
  EXPECT_FALSE(InstructionSetOfName("avx2").has_value());
}

TEST(InstructionSet, OnlyInstructionsForBf16MakeItFast) {
  EXPECT_FALSE(HasFastBf16(kBaseline));
  EXPECT_FALSE(HasFastBf16(kAvx2));
  EXPECT_FALSE(HasFastBf16(kAvx512));
  EXPECT_TRUE(HasFastBf16(kAvx512Bf16));
  EXPECT_TRUE(HasFastBf16(kAmxBf16));
}

// "AVX512" is a value for Intel's CPUs (MKL's developer guide, "Specifying Code Branches").
TEST(InstructionSet, MklTakesTheWidestPathThatItHas) {
  EXPECT_EQ(MklCodePath({.cpu = kAmxBf16, .usable = kAmxBf16, .limited_by = "", .intel = true}), "AVX512");
  EXPECT_EQ(MklCodePath({.cpu = kAvx512, .usable = kAvx512, .limited_by = "", .intel = true}), "AVX512");
  EXPECT_EQ(MklCodePath({.cpu = kAmxBf16, .usable = kAvx2, .limited_by = "", .intel = true}), "AVX2");
  EXPECT_EQ(MklCodePath({.cpu = kAvx2, .usable = kAvx2, .limited_by = "", .intel = true}), "AVX2");
  EXPECT_EQ(MklCodePath({.cpu = kAvx512Bf16, .usable = kAvx512Bf16, .limited_by = "", .intel = false}), "AUTO");
  EXPECT_EQ(MklCodePath({.cpu = kAvx512Bf16, .usable = kAvx2, .limited_by = "", .intel = false}), "AVX2");
}

TEST(InstructionSet, VariablesHideWhatTheCpuHas) {
  struct Case {
    InstructionSet cpu;
    std::string onednn, aten;
    InstructionSet usable;
    std::string limited_by;
  };
  for (const Case& c : {
           Case{kAvx512Bf16, "", "", kAvx512Bf16, ""},
           Case{kAvx512Bf16, "AVX2", "", kAvx2, "ONEDNN_MAX_CPU_ISA=AVX2"},
           Case{kAvx512Bf16, "", "avx2", kAvx2, "ATEN_CPU_CAPABILITY=avx2"},
           Case{kAvx512Bf16, "AVX2", "avx2", kAvx2, "ONEDNN_MAX_CPU_ISA=AVX2"},
           Case{kAvx512Bf16, "avx512_core", "avx2", kAvx2, "ATEN_CPU_CAPABILITY=avx2"},
           Case{kAvx512Bf16, "avx512_core_vnni", "avx512", kAvx512, "ONEDNN_MAX_CPU_ISA=avx512_core_vnni"},
           Case{kAvx512Bf16, "SSE41", "", kBaseline, "ONEDNN_MAX_CPU_ISA=SSE41"},
           Case{kAmxBf16, "AVX512_CORE_FP16", "", kAvx512Bf16, "ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16"},
           Case{kAmxBf16, "AVX512_CORE_AMX", "avx512", kAmxBf16, ""},
           // Nothing is hidden that the CPU has not.
           Case{kAvx2, "AVX512_CORE_BF16", "avx512", kAvx2, ""},
           Case{kAvx2, "AVX2", "avx2", kAvx2, ""},
           // Values that the libraries do not know limit nothing.
           Case{kAvx512Bf16, "fastest", "avx3", kAvx512Bf16, ""},
       }) {
    const UsableInstructions found = LimitInstructions(c.cpu, c.onednn, c.aten);
    EXPECT_EQ(found.cpu, c.cpu);
    EXPECT_EQ(found.usable, c.usable) << c.onednn << " " << c.aten;
    EXPECT_EQ(found.limited_by, c.limited_by);
  }
}

// The kernel's own list of what this CPU has, which it too takes from cpuid.
TEST(InstructionSet, OfThisCpuIsWhatTheKernelSays) {
  std::ifstream info("/proc/cpuinfo");
  std::stringstream text;
  text << info.rdbuf();
  const auto has = [all = text.str()](const std::string& flag) { return all.find(" " + flag) != std::string::npos; };
  const InstructionSet cpu = FindInstructions().cpu;
  EXPECT_EQ(cpu >= kAvx2, has("avx2"));
  EXPECT_EQ(cpu >= kAvx512, has("avx512bw") && has("avx512vl") && has("avx512dq"));
  EXPECT_EQ(cpu >= kAvx512Bf16, has("avx512_bf16") || has("amx_bf16"));
  EXPECT_EQ(cpu == kAmxBf16, has("amx_bf16"));
}

}  // namespace
}  // namespace muster
