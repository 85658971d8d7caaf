#include "bench/model.h"

#include "models/inventory.h"
#include "worker/engine/configure.h"

namespace muster::bench {

absl::StatusOr<engine::Config> MakeConfig(const Shape& shape, uint64_t* planned_bytes) {
  engine::Config config;
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
  const auto inventory = models::MakeInventory(config.train.model());
  if (!inventory.ok()) return inventory.status();
  auto made = engine::Configure(config.train, *inventory, shape.ranks, shape.rank);
  if (!made.ok()) return made.status();
  *planned_bytes = made->memory.peak;
  made->config.threads = shape.threads;
  return std::move(made->config);
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
