// GPT-2's three kinds of units (Radford et al. 2019; numbers as Hugging Face's GPT2LMHeadModel with dropout 0).
#pragma once

#include <memory>
#include <vector>

#include "worker/units/unit.h"

// On every device, what flows between units, the residual stream, is fp32 also where the parameters are bf16: it keeps
// its precision, as under PyTorch's autocast. Within a unit, what a norm gives and a GEMM takes and gives is in the
// parameters' dtype.
namespace muster::units {

// UnitMaker of the family.
absl::StatusOr<std::unique_ptr<UnitModule>> MakeGpt2Unit(const Inventory& inventory, const Unit& unit,
                                                         std::vector<Parameter> parameters, const UnitOptions& options);

// The block with a hand-written backward, and the reference by LibTorch's operators and autograd.
std::unique_ptr<UnitModule> MakeGpt2Block(const Unit& unit, std::vector<Parameter> parameters, int64_t heads,
                                          bool sequence_parallel, const UnitOptions& options);
std::unique_ptr<UnitModule> MakePortableGpt2Block(const Unit& unit, std::vector<Parameter> parameters, int64_t heads,
                                                  const UnitOptions& options);

}  // namespace muster::units
