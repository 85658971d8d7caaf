// Sets up a rank from its assignment. Everything that can be refused is refused here, before the first step.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/checkpoint.h"
#include "proto/inventory.pb.h"
#include "proto/manifest.pb.h"
#include "proto/records.pb.h"
#include "proto/worker.pb.h"
#include "strategies/compile.h"
#include "worker/collectives/key_value.h"
#include "worker/engine/engine.h"
#include "worker/tasks/task.h"
#include "worker/trainer/outer_state.h"
#include "worker/trainer/ranks.h"

namespace muster::trainer {

// The rank's program, compiled from the spec and the partition table that the coordinator planned with.
struct Program {
  Inventory inventory;
  strategies::Layout layout;
  strategies::RankProgram rank;
};

struct Rank {
  Ranks ranks;
  Program program;
  const tasks::Task* task = nullptr;
  std::optional<TokenizerOrigin> tokenizer;  // that made data.tokens; none: not known
  std::unique_ptr<tasks::Samples> samples;
  std::unique_ptr<tasks::Samples> validation;  // may be null
  std::unique_ptr<engine::Engine> engine;
  // Of a replica of a run with local steps, else null.
  std::unique_ptr<Parameters> parameters;
  std::unique_ptr<OuterState> outer;
  std::optional<uint64_t> resumed_step;  // none: from initialisation
  uint64_t samples_consumed = 0;         // by all replicas
  double flops_per_second = 0;           // see speed.h
  std::vector<RankLink> links;           // see Joined
};

// What ranks need to communicate, and no more.
struct Joined {
  Program program;
  Ranks ranks;
  std::vector<RankLink> links;  // as measured on the way: Assignment.measure_links
};

struct SetUpOptions {
  bool streams = false;                        // on a CPU: run steps as on a device with streams, for tests
  std::vector<std::string> plugin_roots = {};  // below which libraries of custom models may be (docs/security.md)
};

// For whom the rank writes checkpoints.
checkpoint::Holder HolderOf(const Assignment& assignment);

// Errors as tasks::Task::Open, strategies::Compile, plugins::LoadPlugin and Engine::Create. DataLoss: no published
// checkpoint is whole. FailedPrecondition: this build compiles another schedule than the coordinator's, or gives the
// rank another shard or replica (names both). InvalidArgument: the table is not one of this model, the checkpoint
// folder belongs to another job or store, or another tokenizer made data.validation or the checkpoint's data than
// data.tokens. ResourceExhausted: memory. PermissionDenied: files. Unavailable: not all ranks joined. Joining comes
// last, so a rank refuses its own errors before it waits for others. Each rank reads what it owns of a checkpoint or an
// import. The engine reports its ops to `progress`, which outlives the rank.
absl::StatusOr<Rank> SetUp(const Assignment& assignment, collectives::KeyValue& rendezvous,
                           engine::OpListener* progress, const SetUpOptions& options = {});

// Without data, checkpoints and an engine. Errors as strategies::Compile, and of the roles and the joining as SetUp.
absl::StatusOr<Joined> Join(const Assignment& assignment, collectives::KeyValue& rendezvous);

}  // namespace muster::trainer
