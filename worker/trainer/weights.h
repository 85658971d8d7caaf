// Between an engine's state and a checkpoint's tensors.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/engine/engine.h"

namespace muster::trainer {

enum class Which { kParameters, kAll };

// The engine's state as parts of a shard: parameters by their names, the rest as "optimizer.<kind>.<name>". Views into
// the engine; on a GPU to be bracketed by Pull() or Push().
std::vector<checkpoint::Part> PartsOf(engine::Engine& engine, Which which);

// Reads the engine's state from the checkpoint. FailedPrecondition: it belongs to another model or optimizer.
absl::Status Load(const checkpoint::Checkpoint& checkpoint, Which which, engine::Engine& engine);

// An engine on one CPU rank with the checkpoint's parameters, to evaluate and sample; it has no optimizer state.
absl::StatusOr<std::unique_ptr<engine::Engine>> LoadForInference(const checkpoint::Checkpoint& checkpoint, int threads);

// `path` itself if it is a step's folder, else the newest whole step below it; tells damaged ones in the log.
// NotFound: no checkpoint there. DataLoss: none is whole.
absl::StatusOr<checkpoint::Checkpoint> OpenNewest(const std::string& path);

// Cores that this process may use.
int AvailableCores();

}  // namespace muster::trainer
