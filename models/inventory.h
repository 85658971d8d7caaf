// Model families as inventories: names, shapes, initialization, FLOPs and bytes, without a tensor library.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "models/task.h"
#include "proto/inventory.pb.h"
#include "proto/spec.pb.h"

namespace muster::models {

// `model` with every number of its family filled in (for most families: a size's defaults under the given overrides).
// InvalidArgument: a number is missing or does not fit (heads must divide width); the message begins with the field's
// path below `model`, e.g. "heads: 5 does not divide width 128".
absl::StatusOr<Model> Resolve(const Model& model);

// The inventory of a resolved model. Tensors are the same for every device; rows of pieces and bytes are those of the
// units' implementation for `device`, which is DEVICE_CUDA or else a CPU.
absl::StatusOr<Inventory> MakeInventory(const Model& model, Device device = DEVICE_CPU);

// Of the model that a job trains: with what it freezes, with its adapters, and of one part of each sequence where ranks
// share them (parallel.context). InvalidArgument also: a message that begins with "freeze" or "lora" (models/tuning.h),
// "parallel.tensor", "parallel.context", or "precision.compute". `train` is resolved.
absl::StatusOr<Inventory> MakeInventory(const Train& train, Device device = DEVICE_CPU);

// Says in a whole model's inventory that ranks compute its units together, as `train` has it (parallel.tensor).
// InvalidArgument: they cannot; "parallel.tensor: " and which number stands in the way.
absl::Status Divide(const Train& train, Inventory& inventory);

// How many ranks compute each unit of the model together.
uint32_t TensorRanks(const Inventory& inventory);

// How many ranks share each sequence; and, where they do, the targets of a whole sample: those of all of them.
uint32_t ContextRanks(const Inventory& inventory);
uint64_t WholeTargetsPerSample(const Inventory& inventory);

// Whether the inventory is what one of them computes.
bool IsShare(const Inventory& inventory);

// What all parts of a model have in common. The units are not copied first: parts x units may be millions.
Inventory WithoutUnits(const Inventory& inventory);

// What one of them computes, of the whole model's inventory: its part of each tensor that is cut (Tensor.box), the
// others whole, and the FLOPs, bytes and collectives of that. `inventory` itself if TensorRanks is 1. REQUIRES: rank <
// TensorRanks.
Inventory ShareOf(const Inventory& inventory, uint32_t rank);

// Elements of all tensors, each counted once.
uint64_t Parameters(const Inventory& inventory);
uint64_t Elements(const Tensor& tensor);

// Whether the rank of this share counts the tensor in sums over ranks, and writes it: it has a part of its own of it,
// or is the first of those that have the same.
bool Counts(const Inventory& inventory, const Tensor& tensor);

// Those of them that are trained.
uint64_t TrainedParameters(const Inventory& inventory);

// The unit at which the backward ends: the first one that has a trained tensor or borrows one. Nothing before it needs
// a gradient. The last unit if nothing is trained: the loss comes with its backward.
int FirstTrained(const Inventory& inventory);

// Elements of all buffers.
uint64_t Buffers(const Inventory& inventory);

// Whether what a step computes depends on its microbatches and on how many ranks compute them, beyond rounding: a unit
// normalizes by the samples of a microbatch. Such units keep running statistics, or exchange sums.
bool DependsOnMicrobatches(const Inventory& inventory);

// The number of a unit in the whole model, of an inventory of all units or of a stage's (Inventory.chunks); and how
// many units that has.
int ModelUnit(const Inventory& inventory, int unit);
int ModelUnits(const Inventory& inventory);

// Of one sample of all that a unit hands to the next one, where computing takes `compute_bytes` an element.
uint64_t OutputBytes(const google::protobuf::RepeatedPtrField<Activation>& outputs, uint64_t compute_bytes);
uint64_t OutputBytes(const Unit& unit, uint64_t compute_bytes);

// Whether the inventory says what goes from each unit to the next, as a cut between ranks needs. FailedPrecondition: a
// unit does not, or its numbers contradict each other; names it.
absl::Status CheckOutputs(const Inventory& inventory);

// Whether a tensor of units(unit) is a matrix between the model's input and its output: it has two dimensions or more,
// and the unit is neither the first, which reads the inputs (an embedding, a stem), nor the last, which computes the
// loss (a head).
bool IsHiddenMatrix(const Inventory& inventory, int unit, const Tensor& tensor);

// The smaller side of the largest matrix among the units between the first and the last one, or of all if there are no
// others: what a typical GEMM of the model multiplies by.
uint64_t TypicalWidth(const Inventory& inventory);

// Rows of each piece but the last when `rows` are computed at most `most` (0: no limit) at a time: pieces of about
// equal size.
uint64_t PieceRows(uint64_t rows, uint64_t most);
// In how many chunks `ranks` that compute a unit together exchange `rows`, of which each computes so many pieces
// (TensorExchange.Pass.chunked_collectives): more overlap better, and each costs its latency. At least 1.
uint64_t RowChunks(uint64_t rows, uint64_t pieces, uint64_t ranks);

// How attention within a window of `window` keys goes by LibTorch's operator (worker/units/operator_attention.h):
// blocks of queries, each with some keys before its first one, under a mask [queries, before + queries]. Multiples of
// 16 where there are enough tokens, so that kernels can read each row of the mask in place.
struct WindowBlocks {
  uint64_t queries, before;
};
WindowBlocks BlocksOfWindow(uint64_t tokens, uint64_t window);

// How many queries of a run of tokens (models/sequence.h) LibTorch's operator takes at a time: its mask has as many
// rows, each as long as the keys that they see.
inline constexpr uint64_t kMaskedQueries = 1024;

// The fp32 panels through which GEMMs go on a CPU without instructions for their dtype (worker/units/gemm.h): three of
// 1,024 x 1,024.
inline constexpr uint64_t kPanelBytes = uint64_t{12} << 20;

// The most that a training step in bf16 or fp16 takes beyond what the inventory states, which counts fp32. On a CPU
// with native bf16 GEMMs that is the largest tensor's gradient in bf16, before it is added to the fp32 gradient;
// without, it is the panels. On a GPU it is nothing: its GEMMs add to the fp32 gradient.
uint64_t NarrowBytes(const Inventory& inventory);

}  // namespace muster::models
