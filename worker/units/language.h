// The first and the last unit of a language model, which families share.
#pragma once

#include <cstdint>
#include <memory>

#include "worker/units/unit.h"

namespace muster::units {

// Rows of `table` by token id; plus those of `positions` by place in the sequence, unless its value is undefined.
std::unique_ptr<UnitModule> MakeTokenEmbedding(Parameter table, Parameter positions, const UnitOptions& options);

// Layer normalisation (Ba et al. 2016), or without a bias RMSNorm (Zhang and Sennrich 2019).
struct FinalNorm {
  Parameter weight;
  Parameter bias;      // its value may be undefined
  double epsilon = 0;  // of layer normalisation: kNormEpsilon
};

// The final norm, logits by `table` [vocabulary, width], and cross entropy.
std::unique_ptr<UnitModule> MakeLanguageHead(FinalNorm norm, Parameter table, uint64_t piece_rows,
                                             const UnitOptions& options);

}  // namespace muster::units
