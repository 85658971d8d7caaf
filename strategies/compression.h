// How sums of gradients travel compressed (Communication.compression), as far as plans depend on it: sizes. The sums
// themselves: worker/compression. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "proto/inventory.pb.h"
#include "proto/partition.pb.h"
#include "proto/spec.pb.h"
#include "strategies/schedule/schedule.h"

namespace muster::strategies {

// A tensor, or some rows of one, inside a range of gradients that is summed. PowerSGD takes those with two and more
// dimensions as matrices [shape[0], the rest]; what lies between them travels as it is.
struct GradientPart {
  int64_t begin = 0;  // element of the range
  std::vector<int64_t> shape;
  friend bool operator==(const GradientPart&, const GradientPart&) = default;
};
// Of a tensor those rows that are whole in the elements [begin, end). None: there are none.
std::optional<GradientPart> RowsWithin(const GradientPart& tensor, int64_t begin, int64_t end);

// Gradients that are summed by themselves.
struct SummedRange {
  int64_t elements = 0;
  std::vector<GradientPart> parts;
};
// By shard: what a rank sums over replicas in `op`, a kAllReduce of the stage and share that `table` and `inventory`
// describe; on nodes of `inside` replicas each, the one at `place` among them.
std::vector<std::vector<SummedRange>> SummedRanges(const PartitionTable& table, const Inventory& inventory,
                                                   const Op& op, uint32_t inside, uint32_t place);

// PowerSGD's factors of a tensor: [rows, rank] and [columns, rank].
struct ThinMatrices {
  int64_t rows = 0, columns = 0, rank = 0;
};
// None: it travels as it is, since it is no matrix, or the factors are no smaller.
std::optional<ThinMatrices> ThinMatricesOf(const GradientPart& part, uint32_t rank);

// Sets what the spec leaves out. `optimizer` is resolved.
void FillDefaults(const Optimizer& optimizer, Compression& compression);
// "top_k 1/100 in bf16", "power_sgd of rank 4", "int8", "none".
std::string NameOf(const Compression& compression);

bool Compresses(const Communication& communication);
// What the update applies: without the momentum that compression has applied before, if gradients are summed over
// replicas at all.
Optimizer AppliedOptimizer(const Train& train, bool sums);
bool SumsOverReplicas(const Schedule& schedule);
// Sums need a second exchange after the first one.
bool HasSecondExchange(const Compression& compression);

// Of `elements` gradients, in bytes, once warm: what a rank contributes to an all-gather (top_k: its message; int8: its
// part of the sum), or to an all-reduce (power_sgd), in each of the two exchanges. The first of int8 is an all-to-all
// of so many bytes in all.
struct ExchangedBytes {
  uint64_t first = 0, second = 0;
};
ExchangedBytes BytesOf(const Compression& compression, int64_t elements, const std::vector<GradientPart>& parts,
                       uint32_t ranks);

// Of one sum, the bytes that leave a rank: as it is compressed, and as a ring sums it exactly.
uint64_t SentBytes(const Compression& compression, int64_t elements, const std::vector<GradientPart>& parts,
                   uint32_t ranks);

// What a rank keeps from step to step, and the messages: of one range, of so many elements, that is summed by itself.
uint64_t KeptBytes(const Compression& compression, int64_t elements, const std::vector<GradientPart>& parts,
                   uint32_t ranks);

// What of it is kept, by name; of some ranges without a part.
std::vector<std::string> StateNames(const Compression& compression);

// What a sum takes of the processor for each element.
struct CompressionWork {
  double bytes = 0;  // read and written
  double flops = 0;
};
CompressionWork WorkOf(const Compression& compression);

// Elements that a rank sends in `step` (from 0) of top_k: at least one, at most `elements`.
int64_t SentElements(const TopK& top_k, int64_t elements, uint64_t step);
// Bits of the lower halves of Elias-Fano's code for so many indices below `elements`: floor(log2(elements / sent)).
int LowerBits(int64_t elements, int64_t sent);

}  // namespace muster::strategies
