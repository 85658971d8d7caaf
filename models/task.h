// A model's task (proto/units.proto, Task): its name, the tensors of its batches, and where their samples come from.
#pragma once

#include <cstdint>
#include <string>

#include "proto/inventory.pb.h"
#include "proto/spec.pb.h"

namespace muster::models {

// Names of tasks.
inline constexpr char kLanguageModel[] = "language_model";
inline constexpr char kImageClassification[] = "image_classification";
inline constexpr char kTensors[] = "tensors";  // of custom models, which name the tensors and compute the loss

// The tensors of a batch of the first two.
inline constexpr char kInputs[] = "inputs";
inline constexpr char kTargets[] = "targets";

// The tensor of that name; one without a shape, where the task has none.
const BatchTensor& Find(const Task& task, const std::string& name);
// Elements of one sample's tensor of a batch.
uint64_t Elements(const BatchTensor& tensor);
// Of one sample: "user float [8], rating float []".
std::string DescribeSample(const Task& task);

// Targets of one sample: the tokens of a sequence, one label, or what a custom model says.
uint64_t TargetsPerSample(const Inventory& inventory);

// FLOPs of one sample's forward and backward, without recomputation: a backward takes two forwards.
double TrainingFlops(const Inventory& inventory);

// As this build writes a task of an older build, in a checkpoint or a spec of a custom model.
Task Current(const Task& task);

// Where the samples of a job come from: the field of its spec, "data.tokens", and its value.
struct DataSource {
  std::string field, path;
};
DataSource SourceOf(const std::string& task, const Data& data);

}  // namespace muster::models
