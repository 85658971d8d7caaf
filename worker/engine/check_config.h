// Whether the engine can run what it is given, found out before anything is allocated.
#pragma once

#include "absl/status/status.h"
#include "worker/engine/engine.h"

namespace muster::engine {

// Errors as Engine::Create.
absl::Status CheckConfig(const Config& config);

}  // namespace muster::engine
