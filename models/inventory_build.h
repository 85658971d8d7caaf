// For families: what their inventories have in common.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "models/family.h"
#include "proto/inventory.pb.h"

namespace muster::models {

inline constexpr double kStandardDeviation = 0.02;  // of weights at the start

// Rows of one piece of a feed-forward network whose hidden layer has `width` elements. On a CPU: enough rows for an
// efficient GEMM, few enough for the cache. On a GPU pieces are not for a cache: they are as large as GEMMs gain from,
// and small beside what is kept.
// On a GPU those of ranks that compute a unit together are shorter, because the sum of one is under way while the next
// one is computed.
inline uint64_t HiddenPieceRows(uint64_t width, Device device, const TensorShare& share) {
  if (device == DEVICE_CUDA) return share.whole() ? 8192 : 2048;
  return std::max<uint64_t>(64, (2 << 20) / (4 * width));
}

// On a GPU a sum over rows first sums each tile of so many rows, in fp32 (worker/units/cuda/row_programs.h).
inline constexpr uint64_t kGpuTileRows = 32;

// Rows of one piece of logits: a few more, because each piece reads and writes the gradient of the output's weights.
inline uint64_t LogitsPieceRows(uint64_t vocabulary, Device device) {
  return std::max<uint64_t>(64, uint64_t{device == DEVICE_CUDA ? 1024u : 64u} * (1 << 20) / (4 * vocabulary));
}

// A number of a family's message; one that has a default counts as given.
struct FamilyNumber {
  const char* name;
  bool given;
  uint32_t value;
  uint32_t max;
};

// InvalidArgument: one is missing ("layers: missing; give " and `what`), or is not 1 to its maximum.
absl::Status CheckNumbers(std::initializer_list<FamilyNumber> numbers, const char* what);

Tensor& AddTensor(Unit& unit, const std::string& name, const std::vector<uint64_t>& shape, Initialisation::Kind kind,
                  double standard_deviation = 0);

// Also sets output_bytes, which are those of all outputs.
void AddOutput(Unit& unit, const std::string& name, const std::vector<uint64_t>& shape, Activation::Type type);

BatchTensor& AddBatchTensor(Task& task, const std::string& name, BatchTensor::Type type,
                            const std::vector<uint64_t>& shape);
// The task of predicting each next token of a sequence of `context` tokens, or of a part of one.
void SetLanguageTask(Inventory& inventory, uint64_t vocabulary, uint64_t context);
// The task of naming the class of an image [channels, height, width].
void SetImageTask(Inventory& inventory, uint64_t channels, uint64_t height, uint64_t width, uint64_t classes);
// The residual stream between units of a language model, which is fp32 whatever they compute in. Where a share has a
// part of the tokens, that part.
void AddHiddenStates(Unit& unit, uint64_t tokens, uint64_t width, const TensorShare& share);
// The first and the last unit of a language model, without tensors; the inventory's task is set. `positions`: whether
// the embedding has a table of them. `norm`: elements of the last norm's vectors.
Unit& AddTokenEmbedding(Inventory& inventory, const char* kind, uint64_t width, bool positions,
                        const TensorShare& share);
Unit& AddLanguageHead(Inventory& inventory, const char* kind, uint64_t width, uint64_t norm, Device device,
                      const TensorShare& share);

// ---- Shares of a model ----

// The share's part of n things: the first parts have one more where n is not a multiple of the ranks.
struct Part {
  uint64_t begin, size;
};
Part PartOf(uint64_t n, const TensorShare& share);

// Leaves the share's part of a whole tensor: of axis `axis` of `view`, which splits dimensions of its shape.
void Cut(Tensor& tensor, const std::vector<uint64_t>& view, uint32_t axis, const TensorShare& share);

// How many parts the tokens of the residual stream have.
inline uint64_t TokenParts(const TensorShare& share) { return share.sequence_parallel ? share.ranks : 1; }

// The collectives of a transformer's block: a norm, then GEMMs by columns, then one by rows; twice. `vectors`: elements
// of vectors whose gradients each share has for a part of the rows or heads.
void AddBlockExchange(Unit& unit, uint64_t tokens, uint64_t width, uint64_t vectors, const TensorShare& share);

// Elements that stand there while attention computes: of each own token, less those that the pass holds at other times
// alone; and of each token of the whole sequence.
struct AttentionElements {
  int64_t own = 0;
  uint64_t whole = 0;
};
// Where ranks share sequences of `context` tokens: the collectives of a block whose queries see keys of `keys` elements
// a token, and the bytes of its passes, which are at least those while attention computes. `whole` is beside the keys
// and values, which are there twice: as they were gathered and in the order of the sequence, or with their gradients.
void AddContextExchange(Unit& unit, uint64_t context, uint64_t keys, const AttentionElements& forward,
                        const AttentionElements& backward, const TensorShare& share);
// How many queries of a run of tokens (models/sequence.h) LibTorch's code takes at a time.
uint64_t RunQueries(uint64_t context, const TensorShare& share);
// Bytes of the masks by which LibTorch's operator attends from a run of tokens to the keys before its end: what is
// added to the scores, and before that where it is added.
uint64_t RunMaskBytes(uint64_t context, const TensorShare& share);

// InvalidArgument: "`field`: `n` are not a multiple of ..." the ranks.
absl::Status CheckMultiple(const char* field, uint64_t n, const TensorShare& share);
// What every language model needs: rows of the vocabulary for each share, and with sequence_parallel tokens.
absl::Status CheckLanguageShare(uint64_t vocabulary, uint64_t context, const TensorShare& share);
// ModelFamily::CheckContextRanks of every language model that divides sequences.
absl::Status CheckLanguageContext(uint64_t context, const TensorShare& share);

}  // namespace muster::models
