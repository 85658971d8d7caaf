// The models that bench/ measures, built as the trainer builds them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/engine/configure.h"
#include "worker/engine/engine.h"

namespace muster::bench {

struct Dimensions {
  std::string family = "gpt2";              // or llama, whose head is not tied, or resnet with a stem for small images
  uint32_t depth = 0, image = 0;            // of resnet
  uint32_t key_value_heads = 0, inner = 0;  // of llama
  uint32_t lora = 0;                        // rank of adapters of all linear layers; 0: none
  uint32_t layers = 4, heads = 4, width = 128, vocabulary = 256, context = 128, sequences = 8, microbatch = 0;
  uint32_t ranks = 1, rank = 0;  // `sequences` is the share of those that train on the same samples
  std::string compression;       // of sums: "top_k 0.01 bf16 exact", "power_sgd 4", "int8 256"; empty: none
  uint32_t ranks_on_node = 0;    // with gathers and reductions of two levels; 0: one node
  uint32_t stages = 1;           // of a pipeline, each of ranks / stages ranks
  PipelineSchedule schedule = PIPELINE_SCHEDULE_1F1B;
  uint32_t chunks = 1;
  uint32_t tensor = 1;  // ranks that compute each unit together, with parts of the tokens between units if
  bool sequence_parallel = false;
  uint32_t context_ranks = 1;    // that share each sequence
  std::string strategy = "ddp";  // where there are several ranks: ddp, zero1, zero2, zero3, full_shard, shard_grad_op,
                                 // hybrid
  int threads = 1;
  Dtype dtype = DTYPE_FP32;  // of computing
  bool cuda = false;         // on the first GPU that the process sees
  std::string offload_to;    // a folder, for all state and where the strategy frees them parameters; empty: none

  uint32_t data_ranks() const { return ranks / stages / tensor; }
  uint32_t sample_ranks() const { return data_ranks() / context_ranks; }
};

// A resolved spec. InvalidArgument: no such strategy.
absl::StatusOr<Train> TrainOf(const Dimensions& shape);

// Resolved local steps with a single fragment, in int8, without a delay.
Sync SyncOf(uint32_t replicas, uint32_t every);

// The configuration of an engine for AdamW training with clipping, on one rank or by the strategy. Errors as
// strategies::Compile; InvalidArgument: no such strategy.
absl::StatusOr<engine::Configured> Configure(const Dimensions& shape);

// One batch, the same in every run.
engine::Batch MakeBatch(const Dimensions& shape);
// Token ids of one.
std::vector<uint32_t> MakeTokens(const Dimensions& shape);

// Writes the weights of an engine that has the whole model, and "tokens", for a peer to read with safetensors.
absl::Status Write(engine::Engine& engine, const std::vector<uint32_t>& tokens, const std::string& path);

}  // namespace muster::bench
