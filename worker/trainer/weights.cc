#include "worker/trainer/weights.h"

#include <sched.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checkpoint/check_start.h"
#include "checkpoint/hugging_face.h"
#include "data/tokenizer.h"
#include "models/inventory.h"
#include "models/tuning.h"
#include "strategies/compression.h"
#include "strategies/partition/planners.h"
#include "strategies/partition/table.h"
#include "worker/engine/configure.h"
#include "worker/plugins/library.h"

namespace muster::trainer {
namespace {

constexpr uint32_t kInferenceSequences = 4;  // per batch

}  // namespace

namespace {

std::string RunName(const engine::StateView& view) {
  if (view.kind == "parameter" || view.kind == "buffer") return view.tensor;
  if (view.replica >= 0) return absl::StrCat("replica.", view.replica, ".", view.kind, ".", view.tensor);
  return absl::StrCat("optimizer.", view.kind, ".", view.tensor);
}

checkpoint::TensorRun RunOf(engine::StateView view) {
  std::string name = RunName(view);
  return {std::move(name), std::move(view.shape), view.begin, view.values, view.bf16, view.box};
}

constexpr char kMomentum[] = "momentum";  // of sgd: the optimizer's, or of each replica

// Adds what all replicas of the checkpoint had, divided by `among`.
absl::Status AddSum(const checkpoint::Checkpoint& checkpoint, uint32_t among, engine::StateView view,
                    checkpoint::BlockScratch& scratch) {
  for (uint32_t replica = 0; replica < checkpoint.manifest().replicas(); ++replica) {
    view.replica = static_cast<int32_t>(replica);
    if (absl::Status status = checkpoint.Add(RunOf(view), scratch); !status.ok()) return status;
  }
  for (float& value : view.values) value /= static_cast<float>(among);
  return absl::OkStatus();
}

// Reads what the replicas of one node had, each element of one of them. Which one depends on how gradients were cut
// into buckets, and so on the network: it may differ from one generation to the next.
absl::Status ReadOfNode(const checkpoint::Checkpoint& checkpoint, uint32_t replicas_inside, engine::StateView view,
                        checkpoint::BlockScratch& scratch) {
  const auto replica = static_cast<uint32_t>(view.replica);
  const uint32_t first = replica - NodePlaceOf(replica, replicas_inside).place;
  for (uint32_t on_node = first; on_node < first + replicas_inside; ++on_node) {
    view.replica = static_cast<int32_t>(on_node);
    if (absl::Status status = checkpoint.ReadHeld(RunOf(view), scratch); !status.ok()) return status;
  }
  return absl::OkStatus();
}

// What a replica has for itself: what its node had, or its part of what all had. A momentum that was the optimizer's is
// the sum of theirs.
absl::Status LoadOfReplica(const checkpoint::Checkpoint& checkpoint, bool same, const Mesh& mesh,
                           const engine::StateView& view, checkpoint::BlockScratch& scratch) {
  std::fill(view.values.begin(), view.values.end(), 0.0f);
  engine::StateView all = view;
  all.replica = -1;
  if (const checkpoint::TensorRun run = RunOf(all); view.kind == kMomentum && checkpoint.Has(run.name)) {
    if (absl::Status status = checkpoint.Read(run, scratch); !status.ok()) return status;
  } else if (same) {
    return ReadOfNode(checkpoint, mesh.replicas_inside, view, scratch);
  }
  return AddSum(checkpoint, mesh.replicas_between(), view, scratch);
}

}  // namespace

std::vector<checkpoint::TensorRun> ParameterRuns(engine::Engine& engine) {
  std::vector<checkpoint::TensorRun> runs;
  for (engine::StateView& view : engine.State()) {
    if (view.kind == "parameter" || view.kind == "buffer") runs.push_back(RunOf(std::move(view)));
  }
  return runs;
}

std::vector<checkpoint::TensorRun> RunsToWrite(engine::Engine& engine, bool buffers, bool shard) {
  std::vector<checkpoint::TensorRun> runs;
  for (engine::StateView& view : engine.State()) {
    const bool own = view.replica >= 0;
    if (view.counts && (own || shard) && (buffers || view.kind != "buffer")) runs.push_back(RunOf(std::move(view)));
  }
  return runs;
}

std::vector<NamedState> StatesOfReplicas(const Train& train, const Mesh& mesh) {
  if (mesh.replica == 1) return {};
  std::vector<NamedState> states;
  for (std::string& name : strategies::StateNames(train.communication().compression())) {
    NamedState& state = states.emplace_back();
    state.set_name(std::move(name));
    state.set_rule(NamedState::SUM);
  }
  return states;
}

absl::Status Load(const checkpoint::Checkpoint& checkpoint, const strategies::Layout& layout, engine::Engine& engine) {
  checkpoint::BlockScratch scratch;
  const Manifest& manifest = checkpoint.manifest();
  const Mesh& mesh = layout.mesh;
  const bool same =
      manifest.replicas() == mesh.replica && partition::TableSha256(manifest.table()) == layout.table_sha256;
  for (const engine::StateView& view : engine.State()) {
    absl::Status status = absl::OkStatus();
    const checkpoint::TensorRun run = RunOf(view);
    if (view.replica >= 0) {
      status = LoadOfReplica(checkpoint, same, mesh, view, scratch);
    } else if (view.kind == kMomentum && manifest.replicas() > 0 && !checkpoint.Has(run.name)) {
      std::fill(view.values.begin(), view.values.end(), 0.0f);
      status = AddSum(checkpoint, /*among=*/1, view, scratch);
    } else {
      status = checkpoint.Read(run, scratch);
    }
    if (!status.ok()) return status;
  }
  return engine.Push();
}

absl::Status LoadParameters(const checkpoint::Checkpoint& checkpoint, engine::Engine& engine) {
  checkpoint::BlockScratch scratch;
  std::set<std::string> there;
  for (const Unit& unit : checkpoint.manifest().inventory().units()) {
    for (const Tensor& tensor : unit.tensors()) there.insert(tensor.name());
  }
  for (const checkpoint::TensorRun& run : ParameterRuns(engine)) {
    // Adapters of a model that had none begin as they are.
    if (models::IsAdapter(run.name) && !there.contains(run.name)) continue;
    if (absl::Status status = checkpoint.Read(run, scratch); !status.ok()) return status;
  }
  return engine.Push();
}

absl::Status Import(const std::string& directory, const Model& model, engine::Engine& engine) {
  const absl::StatusOr<checkpoint::HuggingFaceModel> from = checkpoint::HuggingFaceModel::Open(directory);
  if (!from.ok()) return from.status();
  if (absl::Status status = checkpoint::CheckConfig(from->model(), directory, model); !status.ok()) return status;
  for (const checkpoint::TensorRun& run : ParameterRuns(engine)) {
    if (models::IsAdapter(run.name)) continue;
    if (absl::Status status = from->Read(run); !status.ok()) return status;
  }
  return engine.Push();
}

namespace {

absl::StatusOr<std::shared_ptr<plugin::Model>> LoadNamed(const Model& model, const std::string& library) {
  const bool custom = model.has_custom();
  if (custom && library.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "this model computes with a library, which is code: name it by --library if you trust it; it was trained with ",
        model.custom().library()));
  }
  if (!custom && !library.empty()) return absl::FailedPreconditionError("--library: this model needs none");
  return plugins::LoadPlugin(model, {.roots = {}, .named = library});
}

// Independent of how it was trained: one rank holds the whole model, and plain SGD keeps no state.
absl::StatusOr<std::unique_ptr<engine::Engine>> MakeEngine(const Inventory& inventory, const Train& train, int threads,
                                                           const std::string& library) {
  absl::StatusOr<std::shared_ptr<plugin::Model>> plugin = LoadNamed(train.model(), library);
  if (!plugin.ok()) return plugin.status();
  Train alone = train;
  alone.mutable_strategy()->mutable_single();
  alone.mutable_optimizer()->mutable_sgd()->set_momentum(0);
  alone.mutable_precision()->set_compute(DTYPE_FP32);  // the weights as they are
  alone.mutable_precision()->set_params(DTYPE_FP32);
  alone.clear_offload();
  absl::StatusOr<engine::Configured> made = engine::Configure(alone, inventory);
  if (!made.ok()) return made.status();
  made->config.threads = threads;
  made->config.plugin = *std::move(plugin);
  return engine::Engine::Create(made->config);
}

// `train`: what it takes to run it.
absl::StatusOr<InferenceModel> LoadHuggingFace(const std::string& path, int threads, const std::string& library,
                                               Train& train) {
  absl::StatusOr<Model> config = checkpoint::ReadHuggingFaceConfig(path);
  if (!config.ok()) return config.status();
  *train.mutable_model() = *std::move(config);
  train.mutable_batch()->set_sequences(kInferenceSequences);
  train.mutable_batch()->set_microbatch(kInferenceSequences);
  train.mutable_precision()->set_compute(DTYPE_FP32);
  train.mutable_precision()->set_reduce(DTYPE_FP32);
  const absl::StatusOr<Model> resolved = models::Resolve(train.model());
  if (!resolved.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(path, "/config.json: ", resolved.status().message()));
  }
  *train.mutable_model() = *resolved;
  absl::StatusOr<Inventory> inventory = models::MakeInventory(*resolved);
  if (!inventory.ok()) return inventory.status();
  absl::StatusOr<std::unique_ptr<engine::Engine>> engine = MakeEngine(*inventory, train, threads, library);
  if (!engine.ok()) return engine.status();
  if (absl::Status status = Import(path, *resolved, **engine); !status.ok()) return status;
  absl::StatusOr<Data> data = checkpoint::ReadPreprocessing(path);
  if (!data.ok()) return data.status();
  std::optional<TokenizerOrigin> origin;
  if (const auto tokenizer = data::Tokenizer::Load(path); tokenizer.ok()) origin = (*tokenizer)->origin();
  return InferenceModel{*std::move(inventory), *std::move(data), std::move(origin), *std::move(engine)};
}

}  // namespace

absl::Status AsErrorOfJob(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) ? absl::InvalidArgumentError(status.message()) : status;
}

absl::StatusOr<InferenceModel> LoadForInference(const std::string& path, int threads, const std::string& library,
                                                const OnSkipped& skipped) {
  std::error_code error;
  if (std::filesystem::exists(absl::StrCat(path, "/", checkpoint::kConfigFile), error)) {
    Train train;
    return LoadHuggingFace(path, threads, library, train);
  }
  const absl::StatusOr<checkpoint::Checkpoint> checkpoint = OpenNewest(path, skipped);
  if (!checkpoint.ok()) return checkpoint.status();
  Train train = checkpoint->manifest().spec().train();
  train.clear_parallel(), train.clear_pipeline();
  // Not the manifest's own inventory: another build may have written it.
  absl::StatusOr<Inventory> inventory = models::MakeInventory(train);
  if (!inventory.ok()) return inventory.status();
  absl::StatusOr<std::unique_ptr<engine::Engine>> engine = MakeEngine(*inventory, train, threads, library);
  if (!engine.ok()) return engine.status();
  if (absl::Status status = LoadParameters(*checkpoint, **engine); !status.ok()) return status;
  return InferenceModel{*std::move(inventory), train.data(), checkpoint::TokenizerOf(checkpoint->manifest()),
                        *std::move(engine)};
}

absl::StatusOr<checkpoint::Written> ImportCheckpoint(const std::string& directory, const std::string& path) {
  if (!checkpoint::List(path).empty()) {
    return absl::AlreadyExistsError(absl::StrCat(path, " holds checkpoints already: name another folder"));
  }
  Manifest manifest;
  const absl::StatusOr<InferenceModel> model =
      LoadHuggingFace(directory, AvailableCores(), "", *manifest.mutable_spec()->mutable_train());
  if (!model.ok()) return model.status();
  *manifest.mutable_inventory() = model->inventory;
  *manifest.mutable_spec()->mutable_train()->mutable_data() = model->data;
  if (model->tokenizer.has_value()) *manifest.mutable_tokenizer() = *model->tokenizer;
  *manifest.mutable_table() = partition::Replicated(model->inventory);
  if (absl::Status status = model->engine->Pull(); !status.ok()) return status;
  return checkpoint::Write(path, std::move(manifest), ParameterRuns(*model->engine));
}

absl::StatusOr<checkpoint::Checkpoint> OpenNewest(const std::string& path, const OnSkipped& skipped) {
  if (absl::Status status = checkpoint::CheckListable(path); !status.ok()) return status;
  const std::vector<std::string> folders = checkpoint::StepFolders(path);
  if (folders.empty()) {
    return absl::NotFoundError(absl::StrCat(
        path,
        " is not a checkpoint and holds none: expected a folder named like step-0000000100-g1, or the folder that "
        "holds such folders"));
  }
  absl::StatusOr<checkpoint::Opened> opened = checkpoint::OpenFirstWhole(folders);
  if (!opened.ok()) return opened.status();
  for (size_t i = 0; i < opened->damaged.size(); ++i) {
    skipped(folders[i], opened->damaged[i], opened->checkpoint.directory());
  }
  return std::move(opened->checkpoint);
}

int AvailableCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

}  // namespace muster::trainer
