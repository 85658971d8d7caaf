// Llama's units (proto/spec.proto, Llama; numbers as Hugging Face's LlamaForCausalLM, Qwen2ForCausalLM and
// Qwen3ForCausalLM). The residual stream is wide on every device, as GPT-2's (worker/units/gpt2/gpt2.h).
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "worker/units/language.h"
#include "worker/units/unit.h"

namespace muster::units {

// UnitMaker of the family.
absl::StatusOr<std::unique_ptr<UnitModule>> MakeLlamaUnit(const Inventory& inventory, const Unit& unit,
                                                          std::vector<Parameter> parameters,
                                                          const UnitOptions& options);

// Cosine and sine of each position's angles, [context, head width / 2], on the device of its users, in their wide
// dtype.
struct RopeTable {
  at::Tensor cosine, sine;
  at::Tensor signed_sine;  // [context, 2, head width / 2]: -sine and sine
};

// One for all units that ask for the same, as long as one of them lives.
std::shared_ptr<const RopeTable> MakeRopeTable(const Llama& model, const at::TensorOptions& options);

// A block's parameters by what they are; `of` indexes the unit's. -1: the model has none.
struct LlamaParameters {
  int input_norm = -1, q = -1, k = -1, v = -1, q_bias = -1, k_bias = -1, v_bias = -1, q_norm = -1, k_norm = -1,
      out = -1;
  int inner_norm = -1, gate = -1, up = -1, down = -1;
};
LlamaParameters ParametersOf(const Llama& model);

// With a hand-written backward, and the reference by LibTorch's operators and autograd.
std::unique_ptr<UnitModule> MakeLlamaBlock(const Llama& model, const Unit& unit, std::vector<Parameter> parameters,
                                           const LanguageShare& share, const UnitOptions& options);
std::unique_ptr<UnitModule> MakePortableLlamaBlock(const Llama& model, const Unit& unit,
                                                   std::vector<Parameter> parameters, const UnitOptions& options);

}  // namespace muster::units
