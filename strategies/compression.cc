#include "strategies/compression.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "models/inventory.h"

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
  return all + 2 * bytes.first + ranks * bytes.second;
}

CompressionWork WorkOf(const Compression& compression) {
  // Chosen for the times that bench/compression measures, on a core with 10 GB/s of memory: bytes of memory traffic by
  // which a sum of one element takes as long.
  if (compression.has_top_k()) return {.bytes = compression.top_k().momentum_correction() ? 36.0 : 20.0};
  if (compression.has_int8()) return {.bytes = 40.0};
  if (compression.has_power_sgd()) return {.bytes = 48.0, .flops = 6.0 * compression.power_sgd().rank()};
  return {};
}

std::vector<GradientPart> GradientParts(const Inventory& inventory, int32_t unit, int32_t unit_end) {
  std::vector<GradientPart> parts;
  int64_t begin = 0;
  for (int32_t u = unit; u < unit_end; ++u) {
    for (const Tensor& tensor : inventory.units(u).tensors()) {
      if (tensor.frozen()) continue;
      const GradientPart& part =
          parts.emplace_back(GradientPart{begin, {tensor.shape().begin(), tensor.shape().end()}});
      begin += ElementsOf(part);
    }
  }
  return parts;
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
