#include "bench/model.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/randn.h>

#include <fstream>
#include <sstream>
#include <utility>

#include "checkpoint/safetensors.h"
#include "models/inventory.h"
#include "strategies/compile.h"
#include "strategies/compression.h"
#include "worker/tasks/language_model.h"

namespace muster::bench {

namespace {

absl::Status SetStrategy(const Dimensions& shape, Strategy& strategy) {
  const auto shard = [](auto& options, Placement placement) {
    options.set_placement(placement);
    options.set_accumulation(ACCUMULATION_REDUCE);
    options.set_prefetch(1);
  };
  if (shape.data_ranks() == 1) {
    strategy.mutable_single();
  } else if (shape.strategy == "ddp") {
    strategy.mutable_ddp();
  } else if (shape.strategy == "zero1" || shape.strategy == "zero2" || shape.strategy == "zero3") {
    strategy.mutable_zero()->set_stage(static_cast<uint32_t>(shape.strategy.back() - '0'));
    shard(*strategy.mutable_zero(), PLACEMENT_WHOLE);
  } else if (shape.strategy == "full_shard" || shape.strategy == "shard_grad_op") {
    strategy.mutable_fsdp()->set_reshard(shape.strategy == "full_shard" ? RESHARD_FULL_SHARD : RESHARD_SHARD_GRAD_OP);
    shard(*strategy.mutable_fsdp(), PLACEMENT_EVEN);
  } else if (shape.strategy == "hybrid") {
    strategy.mutable_fsdp()->set_reshard(RESHARD_HYBRID);
    strategy.mutable_fsdp()->set_shard_ranks(2);
    shard(*strategy.mutable_fsdp(), PLACEMENT_EVEN);
  } else {
    return absl::InvalidArgumentError("no such strategy: " + shape.strategy);
  }
  return absl::OkStatus();
}

template <typename Family>
void SetSizes(const Dimensions& shape, Family& model) {
  model.set_layers(shape.layers), model.set_heads(shape.heads), model.set_width(shape.width);
  model.set_vocabulary(shape.vocabulary), model.set_context(shape.context);
}

Model ModelOf(const Dimensions& shape) {
  Model model;
  if (shape.family == "gpt2") {
    SetSizes(shape, *model.mutable_gpt2());
  } else if (shape.family == "resnet") {
    model.mutable_resnet()->set_depth(shape.depth);
    model.mutable_resnet()->set_image(shape.image);
    model = *models::Resolve(model);
  } else {
    Llama& llama = *model.mutable_llama();
    SetSizes(shape, llama);
    llama.set_key_value_heads(shape.key_value_heads), llama.set_inner(shape.inner);
  }
  return model;
}

Compression CompressionOf(const std::string& text, const Optimizer& optimizer) {
  Compression compression;
  std::istringstream words(text);
  std::string kind, values, selection;
  words >> kind;
  double number = 0;
  words >> number >> values >> selection;
  if (kind == "top_k") {
    TopK& top_k = *compression.mutable_top_k();
    top_k.set_ratio(number);
    top_k.set_values(values == "fp32" ? SENT_VALUES_FP32 : values == "int8" ? SENT_VALUES_INT8 : SENT_VALUES_BF16);
    top_k.set_selection(selection == "sampled" ? SELECTION_SAMPLED : SELECTION_EXACT);
  }
  if (kind == "power_sgd") compression.mutable_power_sgd()->set_rank(static_cast<uint32_t>(number));
  if (kind == "int8") compression.mutable_int8()->set_block(static_cast<uint32_t>(number));
  strategies::FillDefaults(optimizer, compression);
  return compression;
}

}  // namespace

Sync SyncOf(uint32_t replicas, uint32_t every) {
  Sync sync;
  sync.set_replicas(replicas), sync.set_every(every);
  sync.set_fragments(1), sync.set_delay(0), sync.set_mix(0), sync.set_values(EXCHANGED_VALUES_INT8);
  sync.set_patience_seconds(60);
  sync.mutable_outer()->set_lr(0.7), sync.mutable_outer()->set_momentum(0.9), sync.mutable_outer()->set_nesterov(true);
  return sync;
}

absl::StatusOr<Train> TrainOf(const Dimensions& shape) {
  Train train;
  *train.mutable_model() = ModelOf(shape);
  if (absl::Status s = SetStrategy(shape, *train.mutable_strategy()); !s.ok()) return s;
  train.mutable_batch()->set_sequences(shape.sequences * shape.sample_ranks());
  if (shape.stages > 1) {
    train.mutable_parallel()->set_pipeline(shape.stages);
    train.mutable_pipeline()->set_schedule(shape.schedule);
    train.mutable_pipeline()->set_chunks(shape.chunks);
  }
  if (shape.tensor > 1) {
    train.mutable_parallel()->set_tensor(shape.tensor);
    train.mutable_parallel()->set_sequence_parallel(shape.sequence_parallel);
  }
  if (shape.context_ranks > 1) train.mutable_parallel()->set_context(shape.context_ranks);
  if (shape.microbatch > 0) train.mutable_batch()->set_microbatch(shape.microbatch);
  Optimizer& optimizer = *train.mutable_optimizer();
  optimizer.mutable_adamw()->set_beta1(0.9);
  optimizer.mutable_adamw()->set_beta2(0.999);
  optimizer.mutable_adamw()->set_eps(1e-8);
  optimizer.set_weight_decay(0.1);
  optimizer.set_clip_norm(1.0);
  train.set_seed(1);
  train.mutable_precision()->set_compute(shape.dtype);
  if (shape.dtype == DTYPE_FP16) {
    LossScaling& scaling = *train.mutable_precision()->mutable_loss_scaling();
    scaling.set_initial(65536), scaling.set_minimum(1), scaling.set_growth(2), scaling.set_backoff(0.5);
    scaling.set_growth_interval(2000);
  }
  if (shape.lora > 0) {
    train.mutable_lora()->set_rank(shape.lora);
    train.mutable_lora()->set_alpha(shape.lora);
  }
  if (!shape.offload_to.empty()) {
    Offload& offload = *train.mutable_offload();
    offload.set_optimizer(true), offload.set_to(shape.offload_to);
    offload.set_parameters(shape.ranks == 1 || !strategies::KeepsAllParameters(train.strategy()));
  }
  if (shape.ranks_on_node > 0) train.mutable_communication()->set_hierarchy(HIERARCHY_ALWAYS);
  *train.mutable_communication()->mutable_compression() = CompressionOf(shape.compression, train.optimizer());
  return train;
}

absl::StatusOr<engine::Configured> Configure(const Dimensions& shape) {
  const absl::StatusOr<Train> train = TrainOf(shape);
  if (!train.ok()) return train.status();
  const auto inventory = models::MakeInventory(*train, shape.cuda ? DEVICE_CUDA : DEVICE_CPU);
  if (!inventory.ok()) return inventory.status();
  auto made = engine::Configure(*train, *inventory, shape.ranks, shape.rank, shape.ranks_on_node);
  if (!made.ok()) return made.status();
  made->config.threads = shape.threads;
  made->config.cuda = shape.cuda;
  return made;
}

engine::Batch MakeBatch(const Dimensions& shape) {
  if (shape.family != "resnet") return tasks::TokenBatch(shape.sequences, MakeTokens(shape), shape.sequences);
  const int64_t n = shape.sequences, size = shape.image;
  return {.samples = shape.sequences,
          .tensors = {{models::kInputs, at::randn({n, 3, size, size})},
                      {models::kTargets, at::arange(n, at::kLong).remainder(10)}},
          .global_samples = shape.sequences};
}

std::vector<uint32_t> MakeTokens(const Dimensions& shape) {
  std::vector<uint32_t> tokens(static_cast<size_t>(shape.sequences) * (shape.context + 1));
  uint32_t state = 12345;
  for (uint32_t& token : tokens) {
    state = state * 1664525u + 1013904223u;
    token = static_cast<uint32_t>((state >> 8) % shape.vocabulary);
  }
  return tokens;
}

absl::Status Write(engine::Engine& engine, const std::vector<uint32_t>& tokens, const std::string& path) {
  checkpoint::SafetensorsHeader header;
  std::string values;
  const auto add = [&](std::string name, const char* dtype, std::vector<uint64_t> shape, const void* data,
                       size_t bytes) {
    const uint64_t begin = values.size();
    values.append(static_cast<const char*>(data), bytes);
    header.tensors.push_back({std::move(name), dtype, std::move(shape), begin, values.size()});
  };
  for (const engine::StateView& view : engine.State()) {
    if (view.kind == "parameter") add(view.tensor, "F32", view.shape, view.values.data(), 4 * view.values.size());
  }
  add("tokens", "I32", {tokens.size()}, tokens.data(), 4 * tokens.size());
  std::ofstream file(path, std::ios::binary);
  file << checkpoint::EncodeHeader(header) << values;
  file.close();
  return file ? absl::OkStatus() : absl::UnavailableError("cannot write " + path);
}

}  // namespace muster::bench
