// What a trained model says: text and losses from a checkpoint.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/engine/engine.h"

namespace muster::trainer {

struct SampleOptions {
  std::string prompt;  // bytes are tokens; empty: begin behind a line's end
  uint64_t tokens = 200;
  double temperature = 0.8;  // 0: always the likeliest
  uint32_t top_k = 0;        // only among the k likeliest; 0: all
  uint64_t seed = 1;
};

// Calls `write` with each sampled byte; stops early when that returns false. `vocabulary` and `context` are the
// model's. InvalidArgument: options out of range, or a vocabulary that is not bytes.
absl::Status Sample(engine::Engine& engine, uint64_t vocabulary, uint64_t context, const SampleOptions& options,
                    const std::function<bool(char)>& write);

// One token id out of logits. `uniform` in [0, 1). Ties go to the lower id.
uint32_t Choose(absl::Span<const float> logits, double temperature, uint32_t top_k, double uniform);

// Mean loss in nats over the first `sequences` windows (0: all) of a token file. Errors as data::TokenFile.
absl::StatusOr<double> MeanLoss(engine::Engine& engine, const Inventory& inventory, const std::string& tokens,
                                uint64_t sequences);

}  // namespace muster::trainer
