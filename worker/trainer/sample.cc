#include "worker/trainer/sample.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "data/sampler.h"
#include "worker/trainer/setup.h"

namespace muster::trainer {
namespace {

constexpr uint64_t kEvaluateSequences = 64;  // at a time

absl::Status CheckOptions(const SampleOptions& options, const Inventory& inventory, const data::Tokenizer* tokenizer) {
  if (tokenizer == nullptr && inventory.vocabulary() != 256) {
    return absl::InvalidArgumentError(absl::StrCat("the model's vocabulary is ", inventory.vocabulary(),
                                                   ", not bytes: give its tokenizer with --tokenizer DIR"));
  }
  if (tokenizer != nullptr && tokenizer->vocabulary() > inventory.vocabulary()) {
    return absl::InvalidArgumentError(absl::StrCat("the tokenizer has ", tokenizer->vocabulary(),
                                                   " tokens, the model's vocabulary is ", inventory.vocabulary(),
                                                   ": they do not belong together"));
  }
  if (!(options.temperature >= 0) || !std::isfinite(options.temperature)) {
    return absl::InvalidArgumentError("temperature: must be 0 or more");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<uint32_t>> Prompt(const SampleOptions& options, const Inventory& inventory,
                                             data::Tokenizer* tokenizer) {
  std::vector<uint32_t> tokens;
  if (tokenizer == nullptr) {
    for (const char c : options.prompt) tokens.push_back(static_cast<unsigned char>(c));
    if (tokens.empty()) tokens.push_back('\n');
  } else {
    tokens = tokenizer->before_text();
    absl::Status status = tokenizer->Encode(options.prompt, tokens);
    if (tokens.empty() && tokenizer->end_of_text().has_value()) tokens.push_back(*tokenizer->end_of_text());
    if (tokens.empty() && status.ok()) status = tokenizer->Encode("\n", tokens);
    if (status.ok() && tokens.empty()) status = absl::InvalidArgumentError("the prompt has no tokens");
    if (!status.ok()) return status;
  }
  for (const uint32_t token : tokens) {
    if (token < inventory.vocabulary()) continue;
    return absl::InvalidArgumentError(absl::StrCat("the prompt has token ", token, ", the model's vocabulary is ",
                                                   inventory.vocabulary(), ": the tokenizer belongs to another model"));
  }
  return tokens;
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

absl::Status Sample(engine::Engine& engine, const Inventory& inventory, data::Tokenizer* tokenizer,
                    const SampleOptions& options, const std::function<bool(std::string_view)>& write) {
  if (absl::Status status = CheckOptions(options, inventory, tokenizer); !status.ok()) return status;
  absl::StatusOr<std::vector<uint32_t>> tokens = Prompt(options, inventory, tokenizer);
  if (!tokens.ok()) return tokens.status();
  std::mt19937_64 random(options.seed);
  for (uint64_t i = 0; i < options.tokens; ++i) {
    const size_t seen = std::min<size_t>(tokens->size(), inventory.context());
    absl::StatusOr<std::vector<float>> logits = engine.Logits(absl::MakeConstSpan(*tokens).last(seen));
    if (!logits.ok()) return logits.status();
    // 53 bits, so that every build draws the same.
    const double uniform = std::ldexp(static_cast<double>(random() >> 11), -53);
    const uint32_t token = Choose(*logits, options.temperature, options.top_k, uniform);
    tokens->push_back(token);
    if (tokenizer != nullptr && tokenizer->end_of_text() == token) return absl::OkStatus();
    const std::string text =
        tokenizer == nullptr ? std::string(1, static_cast<char>(token)) : tokenizer->Decode({&token, 1});
    if (!write(text)) return absl::OkStatus();
  }
  return absl::OkStatus();
}

absl::StatusOr<Evaluation> Evaluate(engine::Engine& engine, const Inventory& inventory, const std::string& tokens,
                                    uint64_t sequences) {
  absl::StatusOr<TokenSource> source = OpenTokens("data", tokens, inventory, DATA_ORDER_SEQUENTIAL, 0);
  if (!source.ok()) return source.status();
  const uint64_t all = source->order.samples_per_epoch();
  const uint64_t count = sequences == 0 ? all : std::min(sequences, all);
  double sum = 0;
  std::vector<uint32_t> rows;
  for (uint64_t first = 0; first < count; first += kEvaluateSequences) {
    const uint64_t batch = std::min(kEvaluateSequences, count - first);
    absl::Status read = data::ReadSamples(source->file, source->order, first, batch, rows);
    if (!read.ok()) return read;
    absl::StatusOr<double> loss =
        engine.Evaluate({.sequences = batch, .tokens = rows, .global_targets = batch * inventory.context()});
    if (!loss.ok()) return loss.status();
    sum += *loss * static_cast<double>(batch);
  }
  return Evaluation{.loss = sum / static_cast<double>(count), .tokens = count * inventory.context(), .windows = count};
}

std::string Describe(const Evaluation& evaluation, bool json) {
  const double perplexity = std::exp(evaluation.loss);
  const bool finite = std::isfinite(perplexity);
  if (json) {
    return absl::StrFormat(R"({"loss": %.9g, "perplexity": %s, "tokens": %d, "windows": %d})", evaluation.loss,
                           finite ? absl::StrFormat("%.9g", perplexity) : "null", evaluation.tokens,
                           evaluation.windows);
  }
  return absl::StrFormat("loss %.6g nats a token, perplexity %s, over %d tokens in %d windows", evaluation.loss,
                         finite ? absl::StrFormat("%.6g", perplexity) : "too large to say", evaluation.tokens,
                         evaluation.windows);
}

}  // namespace muster::trainer
