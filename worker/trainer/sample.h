// Samples text from a checkpoint and evaluates its loss.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "data/tokenizer.h"
#include "worker/engine/engine.h"

namespace muster::trainer {

struct SampleOptions {
  std::string prompt;  // empty: start after the end of a text, or after a newline
  uint64_t tokens = 200;
  double temperature = 0.8;  // 0: always the likeliest
  uint32_t top_k = 0;        // only among the k likeliest; 0: all
  uint64_t seed = 1;
};

// Calls `write` with the text of each sampled token (which may be part of a character); stops early when that returns
// false, or at the tokenizer's end of text. The prompt begins as the tokenizer's template says (Llama 3:
// <|begin_of_text|>). `tokenizer`: of the model's tokens; none: they are bytes.
// InvalidArgument: options out of range, a prompt with tokens that the model does not have, a `tokenizer`
// with more tokens than the model, or none for a model whose vocabulary is not bytes.
absl::Status Sample(engine::Engine& engine, const Inventory& inventory, data::Tokenizer* tokenizer,
                    const SampleOptions& options, const std::function<bool(std::string_view)>& write);

// One token id out of logits. `uniform` in [0, 1). Ties go to the lower id.
uint32_t Choose(absl::Span<const float> logits, double temperature, uint32_t top_k, double uniform);

struct Evaluation {
  double loss = 0;       // mean over the tokens, nats
  uint64_t tokens = 0;   // predicted tokens
  uint64_t windows = 0;  // of context + 1 tokens; consecutive windows share one token
};

// "loss 2.1 nats a token, perplexity 8.2, over 992 tokens in 62 windows", or a JSON object. The perplexity, the loss's
// exponential, is beyond what a double holds for a loss over 709: null in JSON.
std::string Describe(const Evaluation& evaluation, bool json);

// Over the first `sequences` windows (0: all) of a token file. Errors as data::TokenFile.
absl::StatusOr<Evaluation> Evaluate(engine::Engine& engine, const Inventory& inventory, const std::string& tokens,
                                    uint64_t sequences);

}  // namespace muster::trainer
