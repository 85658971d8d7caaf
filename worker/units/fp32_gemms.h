// How GEMMs of fp32 matrices are computed on a CPU: by MKL, or in blocks by oneDNN's kernel (blocked_gemm.h).
//
// Blocks are a tenth faster on AMD's CPUs with AVX-512, for which MKL has no code of its own. On Intel's, and on CPUs
// without AVX-512, MKL computes. So it does where MKL_CBWR names a code path that other CPUs have, since a job that
// asks for their bits says that (docs/networks.md).
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "common/instruction_set.h"

namespace muster::units {

enum class Fp32Gemms { kMkl, kBlocks };

struct Fp32Choice {
  Fp32Gemms gemms = Fp32Gemms::kMkl;
  std::string log;  // "fp32 GEMMs: in blocks by oneDNN (AVX-512 BF16, not Intel's)"
};

// `onednn`: this LibTorch uses oneDNN. `mkl_cbwr`: the variable's value; empty: it is not set.
Fp32Choice ChooseFp32Gemms(const UsableInstructions& instructions, bool onednn, absl::string_view mkl_cbwr);

// For this process.
Fp32Choice ChooseFp32Gemms();

}  // namespace muster::units
