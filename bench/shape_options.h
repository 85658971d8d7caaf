// The flags of a side that say what to train.
#pragma once

#include <CLI/CLI.hpp>

#include <map>
#include <string>

#include "bench/model.h"

namespace muster::bench {

inline void AddShape(CLI::App& app, Dimensions& shape) {
  app.add_option("--family", shape.family)->check(CLI::IsMember({"gpt2", "llama", "resnet"}));
  app.add_option("--depth", shape.depth);
  app.add_option("--image", shape.image);
  app.add_option("--key-value-heads,--key_value_heads", shape.key_value_heads);
  app.add_option("--inner", shape.inner);
  app.add_option("--lora", shape.lora, "rank of adapters; 0: none");
  app.add_option("--layers", shape.layers);
  app.add_option("--heads", shape.heads);
  app.add_option("--width", shape.width);
  app.add_option("--vocabulary", shape.vocabulary);
  app.add_option("--context", shape.context);
  app.add_option("--sequences", shape.sequences, "of this rank, and of those that train with it on the same samples");
  app.add_option("--microbatch", shape.microbatch);
  app.add_option("--threads", shape.threads);
  app.add_option("--ranks", shape.ranks);
  app.add_option("--rank", shape.rank);
  app.add_option("--compression", shape.compression, "top_k RATIO VALUES SELECTION, power_sgd RANK or int8 BLOCK");
  app.add_option("--ranks-on-node,--ranks_on_node", shape.ranks_on_node,
                 "gather and reduce inside nodes, then between them");
  app.add_option("--stages", shape.stages, "of a pipeline");
  app.add_option("--schedule", shape.schedule, "of a pipeline: gpipe, 1f1b, interleaved or zero_bubble")
      ->transform(
          CLI::Transformer(std::map<std::string, PipelineSchedule>{{"gpipe", PIPELINE_SCHEDULE_GPIPE},
                                                                   {"1f1b", PIPELINE_SCHEDULE_1F1B},
                                                                   {"interleaved", PIPELINE_SCHEDULE_INTERLEAVED},
                                                                   {"zero_bubble", PIPELINE_SCHEDULE_ZERO_BUBBLE}}));
  app.add_option("--chunks", shape.chunks, "of the model, on each stage");
  app.add_option("--tensor", shape.tensor, "ranks that compute each unit together");
  app.add_flag("--sequence-parallel,--sequence_parallel", shape.sequence_parallel);
  app.add_option("--context-ranks,--context_ranks", shape.context_ranks, "ranks that share each sequence");
  app.add_option("--dtype", shape.dtype, "fp32, bf16 or fp16")
      ->transform(CLI::Transformer(
          std::map<std::string, Dtype>{{"fp32", DTYPE_FP32}, {"bf16", DTYPE_BF16}, {"fp16", DTYPE_FP16}}));
  app.add_option("--offload-to,--offload_to", shape.offload_to, "a folder for the state; empty: it stays in memory");
  app.add_option("--device", shape.cuda, "cpu or cuda")
      ->transform(CLI::Transformer({{"cpu", "false"}, {"cuda", "true"}}));
}

}  // namespace muster::bench
