// A task: how the samples of a model's batches are read, and which metrics an evaluation reports. The inventory says
// what a batch is (proto/inventory.proto, Task).
//
//   const Task* task = TaskOf(inventory).value();
//   auto samples = task->Open(inventory, {.field = "data.validation", .path = path, .data = train.data()}).value();
//   engine::Batch batch = samples->Read(/*first=*/0, /*count=*/64).value();
//   batch.global_samples = 64;
//   std::vector<NamedMetric> metrics = task->Metrics(engine->Evaluate(batch).value());
//
// A new task is a file here, one line in the list of task.cc, its batch in models/inventory_build.h, and
// the field of its data in models/task.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/inventory.pb.h"
#include "proto/job.pb.h"
#include "proto/spec.pb.h"
#include "worker/engine/batch.h"
#include "worker/engine/engine.h"

namespace muster::tasks {

// The samples of a job's data: sample k is a pure function of (data, options, k). Thread-safe: no method changes it.
class Samples {
 public:
  virtual ~Samples() = default;

  virtual uint64_t samples_per_epoch() const = 0;
  // Samples [first, first + count), without global_samples. DataLoss: a file became shorter, or the disk fails.
  virtual absl::StatusOr<engine::Batch> Read(uint64_t first, uint64_t count) const = 0;
};

struct SourceOptions {
  std::string field;          // of the spec, for messages: "data.tokens"
  std::string path;           // of a file, or a pattern
  Data data;                  // resolved
  uint64_t seed = 0;          // of the order, and of what is random in a sample
  bool evaluation = true;     // in the file's order, and unchanged
  uint32_t context_rank = 0;  // of models::ContextRanks(inventory): whose tokens of each sequence (models::RunsOf)
};

class Task {
 public:
  virtual ~Task() = default;

  virtual std::string name() const = 0;  // as Task::name in the inventory
  // Opens data and checks that it belongs to the model. Messages begin with the field. NotFound: no file matches.
  // InvalidArgument: too short or not such a file. OutOfRange: a token or label that the model does not have.
  virtual absl::StatusOr<std::unique_ptr<Samples>> Open(const Inventory& inventory,
                                                        const SourceOptions& options) const = 0;
  // The metrics of an evaluation beside the loss, those of `inventory`'s task and those that follow from the loss.
  virtual std::vector<NamedMetric> Metrics(const Inventory& inventory, const engine::Evaluation& evaluation) const = 0;
  // What it calls a sample and a target in the plural: "windows" and "tokens".
  virtual std::string samples_name() const = 0;
  virtual std::string targets_name() const = 0;
};

// Unimplemented: this build has no such task.
absl::StatusOr<const Task*> TaskOf(const Inventory& inventory);

// The metrics that the last unit computes, by their names in the inventory.
std::vector<NamedMetric> TaskMetrics(const Inventory& inventory, const engine::Evaluation& evaluation);

}  // namespace muster::tasks
