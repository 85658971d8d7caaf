// The first and the last unit of a language model, which families share.
#pragma once

#include <cstdint>
#include <memory>

#include "worker/units/unit.h"

namespace muster::units {

// Which part a rank has, of ranks that compute each unit together (Context::tensor).
struct LanguageShare {
  int64_t rank = 0;
  int64_t first_id = 0;            // of its rows of the vocabulary
  int64_t vocabulary = 0;          // of all ranks; 0: this rank has all
  bool sequence_parallel = false;  // between units it has a part of the tokens
};
LanguageShare LanguageShareOf(const Inventory& inventory);

// Rows of `table` by token id; plus those of `positions` by place in the sequence, unless its value is undefined.
std::unique_ptr<UnitModule> MakeTokenEmbedding(Parameter table, Parameter positions, const LanguageShare& share,
                                               const UnitOptions& options);

// Layer normalisation (Ba et al. 2016), or without a bias RMSNorm (Zhang and Sennrich 2019).
struct FinalNorm {
  Parameter weight;
  Parameter bias;      // its value may be undefined
  double epsilon = 0;  // of layer normalisation: kNormEpsilon
};

// On piece_rows, in bf16 on a CPU: twice the rows take the same memory, and each block's embedding gradient is a
// separate bf16 GEMM that is then added to the fp32 one.
inline constexpr uint64_t kNarrowRowFactor = 2;
// Logits are padded to a multiple of this many columns. Otherwise a vocabulary like 50,257 leaves tensor cores unused,
// and on a CPU the GEMM takes a third longer because rows do not start at a cache line. Padding columns are masked or
// skipped; the embedding has no rows for them.
inline constexpr int64_t kAlignedLogits = 64;

// The final norm, logits by `table` [vocabulary, width], and cross entropy.
std::unique_ptr<UnitModule> MakeLanguageHead(FinalNorm norm, Parameter table, uint64_t piece_rows,
                                             const LanguageShare& share, const UnitOptions& options);
// The same of a share of the vocabulary.
std::unique_ptr<UnitModule> MakeVocabularyHead(FinalNorm norm, Parameter table, uint64_t piece_rows,
                                               const LanguageShare& share, const UnitOptions& options);

}  // namespace muster::units
