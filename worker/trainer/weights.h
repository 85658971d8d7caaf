// Copies between an engine's state and a checkpoint's tensors.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "checkpoint/checkpoint.h"
#include "strategies/compile.h"
#include "worker/engine/engine.h"

namespace muster::trainer {

// The engine's state as runs of shards: parameters and buffers under their names, what a replica has for itself as
// "replica.<number>.<kind>.<name>", the rest as "optimizer.<kind>.<name>". Views into the engine; on a GPU, Push()
// after writing them.
std::vector<checkpoint::TensorRun> ParameterRuns(engine::Engine& engine);
// What this rank writes of a checkpoint: not what a rank with another share of the model writes alike. On a GPU, Pull()
// before. `buffers`: every rank has them, and only the first one writes them. `shard`: also what all replicas have.
std::vector<checkpoint::TensorRun> RunsToWrite(engine::Engine& engine, bool buffers, bool shard);
// The rules for what each replica has for itself; empty: nothing. Equal for all ranks of a job, also for those of a
// stage that trains nothing and so keeps none of it.
std::vector<NamedState> StatesOfReplicas(const Train& train, const Mesh& mesh);

// Reads the engine's state from the checkpoint. What each replica has for itself comes from the files of its node's
// replicas if `layout`, that of the engine's ranks, is the one that the checkpoint was written with, else from all of
// them, in equal parts; what the checkpoint does not have, or in another shape, is zeros. The momentum of sgd is the
// sum of what replicas have, and the other way around. FailedPrecondition: it belongs to another model or optimizer.
// DataLoss: the data read is damaged; the state is then partly overwritten.
absl::Status Load(const checkpoint::Checkpoint& checkpoint, const strategies::Layout& layout, engine::Engine& engine);
// Only the parameters and buffers.
absl::Status LoadParameters(const checkpoint::Checkpoint& checkpoint, engine::Engine& engine);

// The parameters of an engine that has taken no step, from a folder of Hugging Face's. InvalidArgument as
// checkpoint::CheckConfig; others as checkpoint::HuggingFaceModel.
absl::Status Import(const std::string& directory, const Model& model, engine::Engine& engine);

// An error of a folder that a job names and that does not fit it: FailedPrecondition, which may be the node's, becomes
// InvalidArgument, since every node finds the same.
absl::Status AsErrorOfJob(const absl::Status& status);

// A checkpoint of step 0 below `path`, of a folder of Hugging Face's; with the normalization of its images, which
// evaluations and exports need. AlreadyExists: there are checkpoints already.
// Others as checkpoint::HuggingFaceModel and checkpoint::Write.
absl::StatusOr<checkpoint::Written> ImportCheckpoint(const std::string& directory, const std::string& path);

// Receives each damaged step folder that is skipped, with its error, and the folder that is used instead.
using OnSkipped = std::function<void(const std::string& folder, const absl::Status& error, const std::string& used)>;

// A model to evaluate, sample or export, on one CPU rank, without optimizer state.
struct InferenceModel {
  Inventory inventory;
  Data data;                                 // of the job that trained it: what was done to its samples
  std::optional<TokenizerOrigin> tokenizer;  // that made its tokens, or that of a Hugging Face folder; none: not known
  std::unique_ptr<engine::Engine> engine;
};

// `path`: a step's folder, a folder of such (the newest whole one) or one of Hugging Face's. Errors as OpenNewest and
// checkpoint::HuggingFaceModel.
//
// `library`: of a custom model, which the program's user names himself: a path that a checkpoint names is not run.
// FailedPrecondition: a custom model without a library, or a built-in one with one.
absl::StatusOr<InferenceModel> LoadForInference(const std::string& path, int threads, const std::string& library,
                                                const OnSkipped& skipped);

// Opens `path` itself if it is a step folder, else the newest intact step below it. NotFound: no checkpoint there.
// DataLoss: none is whole.
absl::StatusOr<checkpoint::Checkpoint> OpenNewest(const std::string& path, const OnSkipped& skipped);

// Cores that this process may use.
int AvailableCores();

}  // namespace muster::trainer
