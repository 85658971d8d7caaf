// How GEMMs of bf16 matrices are computed on a CPU.
//
// With instructions for bf16 (AVX-512 BF16, AMX BF16), LibTorch's GEMMs are twice as fast as in fp32. Without them they
// are several times slower than fp32 (common/instruction_set.h), so these CPUs compute through fp32 panels (gemm.h), at
// about the speed of fp32.
#pragma once

#include <string>

#include "common/instruction_set.h"

namespace muster::units {

enum class Bf16Gemms { kNative, kPanels };

struct Bf16Choice {
  Bf16Gemms gemms = Bf16Gemms::kNative;
  std::string log;  // "bf16 GEMMs: native (AVX-512 BF16)"
};

// `onednn`: this LibTorch uses oneDNN, which has the native GEMMs.
Bf16Choice ChooseBf16Gemms(const UsableInstructions& instructions, bool onednn);

// For this process.
Bf16Choice ChooseBf16Gemms();

}  // namespace muster::units
