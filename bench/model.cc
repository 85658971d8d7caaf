#include "bench/model.h"

#include "models/inventory.h"
#include "strategies/compile.h"

namespace muster::bench {

absl::StatusOr<engine::Config> MakeConfig(const Shape& shape, uint64_t* planned_bytes) {
  engine::Config config;
  config.threads = shape.threads;
  Gpt2& model = *config.train.mutable_model()->mutable_gpt2();
  model.set_layers(shape.layers), model.set_heads(shape.heads), model.set_width(shape.width);
  model.set_vocabulary(shape.vocabulary), model.set_context(shape.context);
  if (shape.ranks > 1) {
    config.train.mutable_strategy()->mutable_ddp();
  } else {
    config.train.mutable_strategy()->mutable_single();
  }
  config.train.mutable_batch()->set_sequences(shape.sequences * shape.ranks);
  if (shape.microbatch > 0) config.train.mutable_batch()->set_microbatch(shape.microbatch);
  Optimizer& optimizer = *config.train.mutable_optimizer();
  optimizer.mutable_adamw()->set_beta1(0.9);
  optimizer.mutable_adamw()->set_beta2(0.999);
  optimizer.mutable_adamw()->set_eps(1e-8);
  optimizer.set_weight_decay(0.1);
  optimizer.set_clip_norm(1.0);
  config.train.set_seed(1);
  config.train.mutable_precision()->set_compute(shape.bf16 ? DTYPE_BF16 : DTYPE_FP32);
  auto inventory = models::MakeInventory(config.train.model());
  if (!inventory.ok()) return inventory.status();
  config.inventory = *std::move(inventory);
  const auto layout = strategies::MakeLayout(config.train, config.inventory, shape.ranks);
  if (!layout.ok()) return layout.status();
  const auto program = strategies::Compile(config.train, config.inventory, *layout, shape.rank);
  if (!program.ok()) return program.status();
  config.table = layout->table;
  config.role = layout->roles[shape.rank];
  config.schedule = program->schedule;
  *planned_bytes = program->memory.peak;
  return config;
}

std::vector<uint32_t> MakeTokens(const Shape& shape) {
  std::vector<uint32_t> tokens(static_cast<size_t>(shape.sequences) * (shape.context + 1));
  uint32_t state = 12345;
  for (uint32_t& token : tokens) {
    state = state * 1664525u + 1013904223u;
    token = static_cast<uint32_t>((state >> 8) % shape.vocabulary);
  }
  return tokens;
}

}  // namespace muster::bench
