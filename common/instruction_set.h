// The vector instructions of an x86-64 CPU, as far as they decide how fast tensor code multiplies matrices: what cpuid
// reports, less what environment variables hide from LibTorch and oneDNN. Thread-safe.
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace muster {

// Weakest first; each includes those before it.
enum class InstructionSet { kBaseline, kAvx2, kAvx512, kAvx512Bf16, kAmxBf16 };

// "x86-64", "AVX2", "AVX-512", "AVX-512 BF16", "AMX BF16": as nodes report it and users read it.
absl::string_view NameOf(InstructionSet set);
// None: no such name, for example the empty one of an older worker.
std::optional<InstructionSet> InstructionSetOfName(absl::string_view name);

// Whether there are instructions that multiply bf16. Without them a native bf16 GEMM is slower than fp32: by a factor
// of 2.6 on AVX-512, where oneDNN emulates them, and of 5 to 40 on AVX2, where LibTorch's code is scalar.
bool HasFastBf16(InstructionSet set);

struct UsableInstructions {
  InstructionSet cpu = InstructionSet::kBaseline;     // of the CPU, as far as the kernel lets programs use it
  InstructionSet usable = InstructionSet::kBaseline;  // by the tensor library: at most `cpu`
  std::string limited_by;  // the variable that hides the rest, "ONEDNN_MAX_CPU_ISA=AVX2"; empty: nothing does
  bool intel = false;      // the CPU's vendor
};

// Applies ONEDNN_MAX_CPU_ISA and ATEN_CPU_CAPABILITY, given by value; the lower one counts. oneDNN, which multiplies
// bf16, ignores LibTorch's variable. We do not, so that either one makes a job compute as on the smaller CPU. A value
// that is empty or unknown to its library is no limit.
UsableInstructions LimitInstructions(InstructionSet cpu, absl::string_view onednn_max_isa,
                                     absl::string_view aten_capability);

// Of the CPU and the environment of this process.
UsableInstructions FindInstructions();

// The value of MKL_CBWR with which MKL's fp32 GEMMs take one code path, so that equal runs give equal bits: the widest
// on this CPU. MKL has one for AVX-512 on Intel's CPUs only; by AVX2 their GEMMs take 1.7 times as long
// (bench/single_rank.py). Other CPUs with AVX-512 get AUTO: no path of other CPUs is asked for, so units may multiply
// without MKL (worker/units/fp32_gemms.h).
std::string MklCodePath(const UsableInstructions& instructions);

}  // namespace muster
