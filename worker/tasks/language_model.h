// Predicting the next token of a sequence: samples are windows of a token file, one token longer than the context. Each
// of the ranks that share sequences has its runs of a sample's tokens (models/sequence.h) and their targets.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/tasks/task.h"

namespace muster::tasks {

const Task& LanguageModelTask();

// `windows`: token ids [samples, context + 1], row-major; position t predicts t + 1. Inputs and targets [samples,
// context / ranks] are those of `rank` of so many ranks that share each sequence. REQUIRES: as models::RunsOf.
engine::Batch TokenBatch(uint64_t samples, absl::Span<const uint32_t> windows, uint64_t global_samples,
                         uint32_t ranks = 1, uint32_t rank = 0);

// Predicts the next token of a text that grows, computing only what is new with the units' cache of keys and values.
// Not thread-safe.
class NextToken {
 public:
  explicit NextToken(engine::Engine* engine) : engine_(engine) {}

  // Logits [vocabulary] after the last of `tokens` (1..context tokens). Errors as Engine::Predict.
  absl::StatusOr<std::vector<float>> Logits(absl::Span<const uint32_t> tokens);

 private:
  engine::Engine* const engine_;
  engine::Cache cache_;
  std::vector<uint32_t> cached_;  // the tokens in the cache
};

}  // namespace muster::tasks
