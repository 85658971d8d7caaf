// Validates the engine's configuration before anything is allocated or computed.
#pragma once

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "worker/engine/engine.h"

namespace muster::engine {

// Errors as Engine::Create. `runs`: whether the engine has a handler for ops of a kind.
absl::Status CheckConfig(const Config& config, absl::FunctionRef<bool(OpKind)> runs);

}  // namespace muster::engine
