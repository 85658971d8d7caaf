#include "strategies/compression.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "models/inventory.h"
#include "strategies/partition/table.h"
#include "strategies/schedule/mesh.h"

namespace muster::strategies {
namespace {

constexpr double kFirstRatio = 0.25;      // of a warm-up
constexpr int64_t kScaledTogether = 256;  // values of int8 that top_k sends

int64_t DividedUp(int64_t value, int64_t by) { return (value + by - 1) / by; }

int64_t ElementsOf(const GradientPart& part) {
  return std::accumulate(part.shape.begin(), part.shape.end(), int64_t{1}, std::multiplies<>());
}

int64_t TopKBytes(const TopK& top_k, int64_t elements) {
  if (elements == 0) return 0;
  const int64_t sent = SentElements(top_k, elements, top_k.warm_up_steps());
  const int lower = LowerBits(elements, sent);
  const int64_t words = DividedUp(sent * lower, 32) + DividedUp(sent + (elements >> lower) + 1, 32);
  int64_t values = 4 * sent;
  if (top_k.values() == SENT_VALUES_BF16) values = 4 * DividedUp(sent, 2);
  if (top_k.values() == SENT_VALUES_INT8) values = 4 * (DividedUp(sent, 4) + DividedUp(sent, kScaledTogether));
  return 4 + 4 * words + values;
}

}  // namespace

void FillDefaults(const Optimizer& optimizer, Compression& compression) {
  if (compression.kind_case() == Compression::KIND_NOT_SET) compression.mutable_none();
  if (compression.has_power_sgd() && !compression.power_sgd().has_rank()) compression.mutable_power_sgd()->set_rank(4);
  if (compression.has_int8() && !compression.int8().has_block()) compression.mutable_int8()->set_block(256);
  if (!compression.has_top_k()) return;
  TopK& k = *compression.mutable_top_k();
  if (!k.has_ratio()) k.set_ratio(0.01);
  if (!k.has_selection()) k.set_selection(SELECTION_EXACT);
  if (!k.has_values()) k.set_values(SENT_VALUES_BF16);
  if (!k.has_momentum_correction()) {
    k.set_momentum_correction(optimizer.has_sgd() && optimizer.sgd().momentum() > 0 && optimizer.weight_decay() == 0);
  }
  if (!k.has_warm_up_steps()) k.set_warm_up_steps(0);
}

std::string NameOf(const Compression& compression) {
  switch (compression.kind_case()) {
    case Compression::kTopK: {
      const SentValues values = compression.top_k().values();
      return absl::StrCat("top_k 1/", std::round(10 / compression.top_k().ratio()) / 10, " in ",
                          values == SENT_VALUES_FP32   ? "fp32"
                          : values == SENT_VALUES_BF16 ? "bf16"
                                                       : "int8");
    }
    case Compression::kPowerSgd:
      return absl::StrCat("power_sgd of rank ", compression.power_sgd().rank());
    case Compression::kInt8:
      return "int8";
    case Compression::kAuto:
      return "auto";
    default:
      return "none";
  }
}

bool Compresses(const Communication& communication) {
  const Compression& compression = communication.compression();
  return compression.has_top_k() || compression.has_power_sgd() || compression.has_int8();
}

bool HasSecondExchange(const Compression& compression) { return compression.has_power_sgd() || compression.has_int8(); }

bool SumsOverReplicas(const Schedule& schedule) {
  return std::any_of(schedule.ops.begin(), schedule.ops.end(),
                     [](const Op& op) { return op.kind == OpKind::kAllReduce; });
}

Optimizer AppliedOptimizer(const Train& train, bool sums) {
  Optimizer applied = train.optimizer();
  if (sums && train.communication().compression().top_k().momentum_correction()) {
    applied.mutable_sgd()->set_momentum(0);
    applied.mutable_sgd()->set_nesterov(false);
  }
  return applied;
}

std::optional<GradientPart> RowsWithin(const GradientPart& tensor, int64_t begin, int64_t end) {
  const int64_t rows = tensor.shape.empty() ? 1 : tensor.shape[0], elements = ElementsOf(tensor);
  if (elements == 0) return std::nullopt;
  const int64_t columns = elements / rows;
  const int64_t first = std::max<int64_t>(0, DividedUp(begin - tensor.begin, columns)),
                last = std::min(rows, (end - tensor.begin) / columns);
  if (tensor.begin >= end || first >= last) return std::nullopt;
  GradientPart part{tensor.begin + first * columns, tensor.shape};
  if (!part.shape.empty()) part.shape[0] = last - first;
  return part;
}

std::vector<std::vector<SummedRange>> SummedRanges(const PartitionTable& table, const Inventory& inventory,
                                                   const Op& op, uint32_t inside, uint32_t place) {
  struct Whole {
    NodePart elements;
    std::vector<GradientPart> tensors;
  };
  std::vector<std::vector<Whole>> wholes(table.shards());
  int64_t first = 0;  // of a unit, after those before
  for (int32_t u = op.unit; u < op.unit_end; ++u) {
    const Unit& unit = inventory.units(u);
    const partition::OwnedUnit trained = partition::TrainedPart(partition::OwnedUnitOf(table, inventory, u));
    std::vector<GradientPart> tensors;
    for (const partition::FlatTensor& flat : trained.flat.tensors) {
      const auto tensor = std::find_if(unit.tensors().begin(), unit.tensors().end(),
                                       [&](const Tensor& t) { return t.name() == flat.name; });
      tensors.push_back({first + static_cast<int64_t>(flat.begin), {tensor->shape().begin(), tensor->shape().end()}});
    }
    for (const partition::OwnedRange& range : trained.ranges) {
      std::vector<Whole>& of_shard = wholes[range.shard];
      const int64_t begin = first + static_cast<int64_t>(range.begin), end = first + static_cast<int64_t>(range.end);
      // Who owns everything sums units together.
      if (table.shards() > 1 || of_shard.empty()) of_shard.push_back({{begin, end}, {}});
      of_shard.back().elements.end = end;
      std::vector<GradientPart>& known = of_shard.back().tensors;
      known.insert(known.end(), tensors.begin(), tensors.end());
    }
    first += static_cast<int64_t>(trained.flat.elements);
  }
  std::vector<std::vector<SummedRange>> ranges(wholes.size());
  for (size_t shard = 0; shard < wholes.size(); ++shard) {
    for (const Whole& whole : wholes[shard]) {
      NodePart part = NodePartOf(whole.elements.end - whole.elements.begin, inside, place);
      part.begin += whole.elements.begin, part.end += whole.elements.begin;
      SummedRange& range = ranges[shard].emplace_back(SummedRange{part.end - part.begin, {}});
      for (const GradientPart& tensor : whole.tensors) {
        std::optional<GradientPart> rows = RowsWithin(tensor, part.begin, part.end);
        if (!rows.has_value()) continue;
        rows->begin -= part.begin;
        range.parts.push_back(*std::move(rows));
      }
    }
  }
  return ranges;
}

std::optional<ThinMatrices> ThinMatricesOf(const GradientPart& part, uint32_t rank) {
  if (part.shape.size() < 2) return std::nullopt;
  const int64_t rows = part.shape[0], columns = rows == 0 ? 0 : ElementsOf(part) / rows;
  const auto thin = std::min<int64_t>({rank, rows, columns});
  if (thin * (rows + columns) >= rows * columns) return std::nullopt;
  return ThinMatrices{.rows = rows, .columns = columns, .rank = thin};
}

ExchangedBytes BytesOf(const Compression& compression, int64_t elements, const std::vector<GradientPart>& parts,
                       uint32_t ranks) {
  ExchangedBytes bytes;
  if (compression.has_top_k()) bytes.first = static_cast<uint64_t>(TopKBytes(compression.top_k(), elements));
  if (compression.has_int8()) {
    const int64_t block = compression.int8().block(), each = DividedUp(DividedUp(elements, ranks), block);
    bytes.second = static_cast<uint64_t>(each * (4 + block));
    bytes.first = ranks * bytes.second;
  }
  if (compression.has_power_sgd()) {
    int64_t first = elements, second = 0;
    for (const GradientPart& part : parts) {
      const std::optional<ThinMatrices> thin = ThinMatricesOf(part, compression.power_sgd().rank());
      if (!thin.has_value()) continue;
      first += thin->rank * thin->rows - thin->rows * thin->columns;
      second += thin->rank * thin->columns;
    }
    bytes = {.first = 4 * static_cast<uint64_t>(first), .second = 4 * static_cast<uint64_t>(second)};
  }
  return bytes;
}

uint64_t SentBytes(const Compression& compression, int64_t elements, const std::vector<GradientPart>& parts,
                   uint32_t ranks) {
  const ExchangedBytes bytes = BytesOf(compression, elements, parts, ranks);
  // An all-gather hands on all parts but one; an all-reduce by a ring all but one part of each direction.
  const auto reduced = [&](uint64_t all) { return 2 * all * (ranks - 1) / ranks; };
  if (compression.has_top_k()) return bytes.first * (ranks - 1);
  if (compression.has_int8()) return bytes.first * (ranks - 1) / ranks + bytes.second * (ranks - 1);
  if (compression.has_power_sgd()) return reduced(bytes.first + bytes.second);
  return reduced(4 * static_cast<uint64_t>(elements));
}

uint64_t KeptBytes(const Compression& compression, int64_t elements, const std::vector<GradientPart>& parts,
                   uint32_t ranks) {
  const auto all = 4 * static_cast<uint64_t>(elements);
  const ExchangedBytes bytes = BytesOf(compression, elements, parts, ranks);
  if (compression.has_top_k()) {
    return (compression.top_k().momentum_correction() ? 3 : 1) * all + ranks * bytes.first;
  }
  if (compression.has_int8()) {  // in parts of whole blocks: what is to be sent, one part's sum, and the messages
    const uint64_t part = bytes.second / (4 + compression.int8().block()) * compression.int8().block();
    return all + 4 * (ranks + 1) * part + 2 * bytes.first;
  }
  // The first message twice, while it is checked. Of the size of the second one: the message, the factors, the random
  // columns, and what of both a step begins with.
  return all + 2 * bytes.first + 4 * bytes.second;
}

std::vector<std::string> StateNames(const Compression& compression) {
  if (compression.has_power_sgd()) return {"power_sgd_q", "residual"};
  if (compression.has_top_k() && compression.top_k().momentum_correction()) return {"momentum", "residual"};
  if (compression.has_top_k() || compression.has_int8()) return {"residual"};
  return {};
}

CompressionWork WorkOf(const Compression& compression) {
  // Chosen for the times that bench/compression measures, on a core with 10 GB/s of memory: bytes of memory traffic by
  // which a sum of one element takes as long.
  if (compression.has_top_k()) return {.bytes = compression.top_k().momentum_correction() ? 36.0 : 20.0};
  if (compression.has_int8()) return {.bytes = 40.0};
  if (compression.has_power_sgd()) return {.bytes = 48.0, .flops = 6.0 * compression.power_sgd().rank()};
  return {};
}

int64_t SentElements(const TopK& top_k, int64_t elements, uint64_t step) {
  double ratio = top_k.ratio();
  if (step < top_k.warm_up_steps()) {
    const double done = static_cast<double>(step) / static_cast<double>(top_k.warm_up_steps());
    ratio = kFirstRatio * std::pow(ratio / kFirstRatio, done);
  }
  return std::min(elements, std::max<int64_t>(1, std::llround(ratio * static_cast<double>(elements))));
}

int LowerBits(int64_t elements, int64_t sent) {
  return sent <= 0 ? 0 : std::max(0, static_cast<int>(std::bit_width(static_cast<uint64_t>(elements / sent))) - 1);
}

}  // namespace muster::strategies
