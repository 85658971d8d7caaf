// Samples text from a checkpoint and evaluates its loss.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "data/tokenizer.h"
#include "proto/job.pb.h"
#include "worker/engine/engine.h"
#include "worker/trainer/weights.h"

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

struct Evaluated {
  double loss = 0;  // mean over the targets, nats
  std::vector<NamedMetric> metrics;
  uint64_t samples = 0, targets = 0;
  std::string samples_name, targets_name;  // as tasks::Task has them
};

// "loss 2.1, perplexity 8.2, over 992 tokens in 62 windows", or a JSON object. A perplexity, the loss's exponential, is
// beyond what a double holds for a loss over 709: null in JSON.
std::string Describe(const Evaluated& evaluated, bool json);

// Over the first `samples` (0: all) of a file. Reports to `progress` how many of how many samples are done, unless it
// is null. Errors as tasks::Task::Open. InvalidArgument also: another tokenizer than the model's made it.
absl::StatusOr<Evaluated> Evaluate(InferenceModel& model, const std::string& path, uint64_t samples,
                                   const std::function<void(uint64_t done, uint64_t all)>& progress = nullptr);

}  // namespace muster::trainer
