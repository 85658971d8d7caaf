// GPT-2's three kinds of units (Radford et al. 2019; numbers as Hugging Face's GPT2LMHeadModel with dropout 0).
#pragma once

#include <memory>
#include <vector>

#include "worker/units/unit.h"

namespace muster::units {

std::unique_ptr<UnitModule> MakeGpt2Embedding(std::vector<Parameter> parameters);  // wte, wpe
// The block by LibTorch's autograd, for any device and dtype, and one with a hand-written backward for CPUs: fp32 and
// float64.
std::unique_ptr<UnitModule> MakeGpt2Block(std::vector<Parameter> parameters, int64_t heads);
std::unique_ptr<UnitModule> MakeCpuGpt2Block(std::vector<Parameter> parameters, int64_t heads, uint64_t piece_rows);
// ln_f weight and bias, borrowed wte. `portable`: by LibTorch's operators alone, as any device has them.
std::unique_ptr<UnitModule> MakeGpt2Head(std::vector<Parameter> parameters, uint64_t piece_rows, bool portable);

}  // namespace muster::units
