#include "cli/spec/sample_job.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_replace.h"
#include "cli/spec/writer.h"

namespace muster::cli {
namespace {

constexpr char kTemplate[] = R"(# A Muster job. Relative paths are meant from this file's folder, as the workers see it.
#   muster validate FILE    checks it               muster plan FILE      shows what it would need
#   muster submit FILE      runs it                 muster schema         describes every field to editors
apiVersion: muster/v1
kind: Job
name: @NAME@

model:
  family: @FAMILY@
  size: @SIZE@
  # layers: @LAYERS@
  # context: @CONTEXT@

# Token files. From text: muster data prepare text.txt train.bin --validation val.bin
data:
  tokens: @TOKENS@
@VALIDATION@  # order: shuffled

strategy:
  kind: single

# With several ranks: stages of a pipeline, each with some of the layers; the strategy then holds inside each stage.
# parallel: {pipeline: 2}
# pipeline: {schedule: 1f1b}   # or gpipe, interleaved (chunks: 2 or more), zero_bubble (chunks: 1 or 2)

resources:
  ranks: 1
  # device: auto

# Sequences of one step over all ranks. A smaller microbatch takes less memory and the same steps.
batch:
  sequences: 8
  # microbatch: 4

precision:
  compute: fp32
  # reduce: fp32
  # params: fp32               # bf16, with compute: bf16: 2 bytes a trained weight, without a master in fp32
  # tf32: false                # true: fp32 GEMMs on GPUs are faster and round their inputs to 10 bits of mantissa

optimizer:
  kind: adamw
  lr: 1e-3
  # weight_decay: 0.1
  # beta1: 0.9
  # beta2: 0.999
  # eps: 1e-8
  # clip_norm: 1.0
  lr_schedule:
    kind: cosine
    warmup_steps: 50
    # min_lr: 1e-4

# Optimizer steps in all.
steps: 1000
# seed: 1
# offload: {optimizer: true}   # gradients and optimizer state in host memory; also: parameters, activations
# deterministic: true          # false: on GPUs also kernels whose sums depend on timing, which are faster
# communication: {hierarchy: auto}  # or always, never: in and between nodes; also compression, timeout_seconds
# cuda_graphs: false           # true: on GPUs a step is one launch; has not run on a GPU yet

# Needs data.validation; a part of it is used each time.
# validation: {every_steps: 100, sequences: 64}

# Training resumes from the newest one after a fault, a pause or a drained node. Without it, it starts anew.
checkpoint:
  path: runs/{job}             # of this job alone: {job} is its id, {name} its name; "" for no checkpoints
  every_steps: 100
  # keep: 2
  # resume_from: runs/other    # continue from another job's newest checkpoint; any strategy, any number of ranks

# Restarts without progress before the job fails; higher priorities run first.
# max_restarts: 3
# priority: 0
# time_limit: 48h              # then it stops with a checkpoint; lets it use slots that are reserved for a larger job

# Variables of every rank: NCCL, libfabric, UCX, InfiniBand, CUDA.
# env: [{name: NCCL_DEBUG, value: WARN}]
)";

// As a YAML scalar: quoted only where a plain scalar would read as something else.
std::string Scalar(const std::string& text) {
  const std::string line = ToYaml(nlohmann::ordered_json{{"k", text}});
  return line.substr(3, line.size() - 4);
}

}  // namespace

std::string WriteSampleJob(const SampleJob& job) {
  const size_t colon = job.model.find(':');
  const std::string family = job.model.substr(0, colon);
  const std::string size = colon == std::string::npos ? "tiny" : job.model.substr(colon + 1);
  const bool tiny = size == "tiny";
  return absl::StrReplaceAll(
      kTemplate, {{"@NAME@", Scalar(job.name)},
                  {"@FAMILY@", Scalar(family)},
                  {"@SIZE@", Scalar(size)},
                  {"@LAYERS@", tiny ? "4" : "12"},
                  {"@CONTEXT@", tiny ? "128" : "1024"},
                  {"@TOKENS@", Scalar(job.tokens)},
                  {"@VALIDATION@", job.validation.empty() ? "  # validation: val.bin\n"
                                                          : "  validation: " + Scalar(job.validation) + "\n"}});
}

}  // namespace muster::cli
