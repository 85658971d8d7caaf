// The flags of a side that say what to train.
#pragma once

#include <CLI/CLI.hpp>

#include "bench/model.h"

namespace muster::bench {

inline void AddShape(CLI::App& app, Dimensions& shape) {
  app.add_option("--family", shape.family)->check(CLI::IsMember({"gpt2", "llama", "resnet"}));
  app.add_option("--depth", shape.depth);
  app.add_option("--image", shape.image);
  app.add_option("--key_value_heads", shape.key_value_heads);
  app.add_option("--inner", shape.inner);
  app.add_option("--layers", shape.layers);
  app.add_option("--heads", shape.heads);
  app.add_option("--width", shape.width);
  app.add_option("--vocabulary", shape.vocabulary);
  app.add_option("--context", shape.context);
  app.add_option("--sequences", shape.sequences, "of this rank");
  app.add_option("--microbatch", shape.microbatch);
  app.add_option("--threads", shape.threads);
  app.add_option("--ranks", shape.ranks);
  app.add_option("--rank", shape.rank);
  app.add_option("--dtype", shape.bf16, "fp32 or bf16")
      ->transform(CLI::Transformer({{"fp32", "false"}, {"bf16", "true"}}));
  app.add_option("--device", shape.cuda, "cpu or cuda")
      ->transform(CLI::Transformer({{"cpu", "false"}, {"cuda", "true"}}));
}

}  // namespace muster::bench
