#include "worker/trainer/sample.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/data/sampler.h"
#include "worker/trainer/setup.h"

namespace muster::trainer {
namespace {

constexpr uint64_t kEvaluateSequences = 64;  // at a time

absl::Status CheckOptions(const SampleOptions& options, uint64_t vocabulary) {
  if (vocabulary != 256) {
    return absl::InvalidArgumentError(
        absl::StrCat("the model's vocabulary is ", vocabulary, ", but sampling writes bytes, a vocabulary of 256"));
  }
  if (!(options.temperature >= 0) || !std::isfinite(options.temperature)) {
    return absl::InvalidArgumentError("temperature: must be 0 or more");
  }
  return absl::OkStatus();
}

}  // namespace

uint32_t Choose(absl::Span<const float> logits, double temperature, uint32_t top_k, double uniform) {
  const auto likeliest = std::max_element(logits.begin(), logits.end());
  if (temperature == 0 || top_k == 1) return static_cast<uint32_t>(likeliest - logits.begin());
  std::vector<uint32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  if (top_k > 0 && top_k < ids.size()) {
    std::stable_sort(ids.begin(), ids.end(), [&](uint32_t a, uint32_t b) { return logits[a] > logits[b]; });
    ids.resize(top_k);
  }
  std::vector<double> weights(ids.size());
  double sum = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    weights[i] = std::exp((static_cast<double>(logits[ids[i]]) - *likeliest) / temperature);
    sum += weights[i];
  }
  double left = uniform * sum;
  for (size_t i = 0; i < ids.size(); ++i) {
    left -= weights[i];
    if (left < 0) return ids[i];
  }
  return ids.back();
}

absl::Status Sample(engine::Engine& engine, uint64_t vocabulary, uint64_t context, const SampleOptions& options,
                    const std::function<bool(char)>& write) {
  if (absl::Status status = CheckOptions(options, vocabulary); !status.ok()) return status;
  std::vector<uint32_t> tokens;
  for (const char c : options.prompt) tokens.push_back(static_cast<unsigned char>(c));
  if (tokens.empty()) tokens.push_back('\n');
  std::mt19937_64 random(options.seed);
  for (uint64_t i = 0; i < options.tokens; ++i) {
    const size_t seen = std::min<size_t>(tokens.size(), context);
    absl::StatusOr<std::vector<float>> logits = engine.Logits(absl::MakeSpan(tokens).last(seen));
    if (!logits.ok()) return logits.status();
    // 53 bits, so that every build draws the same.
    const double uniform = std::ldexp(static_cast<double>(random() >> 11), -53);
    tokens.push_back(Choose(*logits, options.temperature, options.top_k, uniform));
    if (!write(static_cast<char>(tokens.back()))) return absl::OkStatus();
  }
  return absl::OkStatus();
}

absl::StatusOr<double> MeanLoss(engine::Engine& engine, const Inventory& inventory, const std::string& tokens,
                                uint64_t sequences) {
  absl::StatusOr<TokenSource> source = OpenTokens("data", tokens, inventory, DATA_ORDER_SEQUENTIAL, 0);
  if (!source.ok()) return source.status();
  const uint64_t all = source->order.samples_per_epoch();
  const uint64_t count = sequences == 0 ? all : std::min(sequences, all);
  double sum = 0;
  std::vector<uint32_t> rows;
  for (uint64_t first = 0; first < count; first += kEvaluateSequences) {
    const uint64_t part = std::min(kEvaluateSequences, count - first);
    absl::Status read = data::ReadSamples(source->file, source->order, first, part, rows);
    if (!read.ok()) return read;
    absl::StatusOr<double> loss =
        engine.Evaluate({.sequences = part, .tokens = rows, .global_targets = part * inventory.context()});
    if (!loss.ok()) return loss.status();
    sum += *loss * static_cast<double>(part);
  }
  return sum / static_cast<double>(count);
}

}  // namespace muster::trainer
