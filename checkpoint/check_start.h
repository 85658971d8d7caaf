// Whether a new job can start from what a folder holds: checkpoint.resume_from and model.from. The trainer asks when it
// starts, and the CLI before it submits a job.
//
// The messages of InvalidArgument begin with the folder. Thread-safe: no shared state but the disk.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/inventory.pb.h"
#include "proto/manifest.pb.h"
#include "proto/spec.pb.h"

namespace muster::checkpoint {

// Whether `job` can continue the run that wrote `manifest`. InvalidArgument: model, adapters, optimizer, seed or data
// order differ, or the run already has as many steps as the job. `job`: resolved. `directory`: for messages.
absl::Status CheckSameRun(const Manifest& manifest, const std::string& directory, const Train& job);

// Whether weights of the model `theirs` are those of the job's model. InvalidArgument: they are not. Both resolved.
absl::Status CheckWeights(const Model& theirs, const std::string& directory, const Model& job);
// Whether the job computes with every adapter of the checkpoint whose inventory is `theirs`; it may have more.
// InvalidArgument: it has none for a weight that has one there, or one of another rank or scale; names the weight.
absl::Status CheckAdapters(const Inventory& theirs, const std::string& directory, const Train& job);
// CheckWeights of a Hugging Face folder's config.json.
absl::Status CheckConfig(const Model& theirs, const std::string& directory, const Model& job);

// That made the tokens of its data; none: not known.
std::optional<TokenizerOrigin> TokenizerOf(const Manifest& manifest);

// Opens what the trainer would load from `path`, and checks it as above; reads headers, no tensors. Returns the
// manifest; an empty one for a Hugging Face folder. NotFound: `path` holds no checkpoint, or no weights. DataLoss: no
// checkpoint is whole. PermissionDenied: this process may not read it, whole or not. Others as HuggingFaceModel::Open.
absl::StatusOr<Manifest> CheckResumeFrom(const std::string& path, const Train& job);
absl::StatusOr<Manifest> CheckModelFrom(const std::string& path, const Train& job);

}  // namespace muster::checkpoint
