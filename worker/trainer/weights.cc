#include "worker/trainer/weights.h"

#include <sched.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "strategies/compile.h"

namespace muster::trainer {

std::vector<checkpoint::Part> PartsOf(engine::Engine& engine, Which which) {
  std::vector<checkpoint::Part> parts;
  for (engine::StateView& view : engine.State()) {
    const bool parameter = view.kind == "parameter";
    if (!parameter && which == Which::kParameters) continue;
    parts.push_back({parameter ? view.tensor : absl::StrCat("optimizer.", view.kind, ".", view.tensor),
                     std::move(view.shape), view.begin, view.values});
  }
  return parts;
}

absl::Status Load(const checkpoint::Checkpoint& checkpoint, Which which, engine::Engine& engine) {
  for (const checkpoint::Part& part : PartsOf(engine, which)) {
    if (absl::Status status = checkpoint.Read(part); !status.ok()) return status;
  }
  return engine.Push();
}

absl::StatusOr<std::unique_ptr<engine::Engine>> LoadForInference(const checkpoint::Checkpoint& checkpoint,
                                                                 int threads) {
  engine::Config config;
  config.inventory = checkpoint.manifest().inventory();
  config.train = checkpoint.manifest().spec().train();
  config.threads = threads;
  // However it was trained: here one rank holds all of it, and plain SGD keeps no state.
  config.train.mutable_strategy()->mutable_single();
  config.train.mutable_optimizer()->mutable_sgd()->set_momentum(0);
  const absl::StatusOr<strategies::Layout> layout = strategies::MakeLayout(config.train, config.inventory, 1);
  if (!layout.ok()) return layout.status();
  absl::StatusOr<strategies::RankProgram> program = strategies::Compile(config.train, config.inventory, *layout, 0);
  if (!program.ok()) return program.status();
  config.table = layout->table;
  config.role = layout->roles[0];
  config.schedule = std::move(program->schedule);
  absl::StatusOr<std::unique_ptr<engine::Engine>> engine = engine::Engine::Create(config);
  if (!engine.ok()) return engine.status();
  if (absl::Status status = Load(checkpoint, Which::kParameters, **engine); !status.ok()) return status;
  return engine;
}

absl::StatusOr<checkpoint::Checkpoint> OpenNewest(const std::string& path) {
  std::error_code error;
  if (std::filesystem::exists(absl::StrCat(path, "/", checkpoint::kManifestFile), error)) {
    return checkpoint::Checkpoint::Open(path);
  }
  std::vector<std::string> names;
  for (const checkpoint::StepName& step : checkpoint::List(path)) names.push_back(step.Directory());
  if (names.empty()) {
    return absl::NotFoundError(absl::StrCat(
        path, " is no checkpoint and holds none: expected a folder named like step-0000000100-g1, or one of such"));
  }
  absl::StatusOr<checkpoint::Opened> opened = checkpoint::OpenFirstWhole(path, names);
  if (!opened.ok()) return opened.status();
  for (const absl::Status& damaged : opened->damaged) {
    spdlog::error("damaged checkpoint passed over: {}", std::string(damaged.message()));
  }
  return std::move(opened->checkpoint);
}

int AvailableCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

}  // namespace muster::trainer
