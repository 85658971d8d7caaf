// Validates the engine's inputs before anything is allocated or computed.
#pragma once

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "worker/engine/engine.h"

namespace muster::engine {

// Errors as Engine::Create. `runs`: whether the engine has a handler for ops of a kind.
absl::Status CheckConfig(const Config& config, absl::FunctionRef<bool(OpKind)> runs);

// InvalidArgument: the batch has the wrong size, or a token outside the vocabulary.
absl::Status CheckBatch(const Inventory& inventory, const Batch& batch);
absl::Status CheckTokens(const Inventory& inventory, absl::Span<const uint32_t> tokens);

}  // namespace muster::engine
