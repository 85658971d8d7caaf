// The engine uses the memory that the plan predicts for a rank of a sharded model.
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "models/inventory.h"
#include "strategies/schedule/memory.h"
#include "testing/optimizers.h"
#include "worker/collectives/group.h"
#include "worker/engine/configure.h"
#include "worker/engine/cpu_allocator.h"
#include "worker/engine/engine.h"
#include "worker/engine/group_of_others_test.h"
#include "worker/tasks/language_model.h"

namespace muster::engine {
namespace {

// Whose other ranks have the same as this one: what is gathered is whole.
class Echo final : public GroupOfOthers {
 public:
  using GroupOfOthers::GroupOfOthers;
  std::unique_ptr<collectives::Work> AllGather(std::vector<at::Tensor> wholes) override {
    for (const at::Tensor& whole : wholes) {
      const at::Tensor ranks = whole.view({size(), -1});
      ranks.copy_(ranks[rank()].clone().expand_as(ranks));
    }
    return Done();
  }
};

struct Sharded {
  std::string name;
  std::function<void(::muster::Train&)> choose;
  uint32_t ranks, rank, layers, width, vocabulary;
  uint32_t context = 1;  // that share each sequence
};

::muster::Train TrainOf(const Sharded& sharded) {
  ::muster::Train train;
  Gpt2& g = *train.mutable_model()->mutable_gpt2();
  g.set_layers(sharded.layers), g.set_heads(1), g.set_width(sharded.width);
  g.set_vocabulary(sharded.vocabulary), g.set_context(64);
  train.mutable_batch()->set_sequences(2 * sharded.ranks / sharded.context);
  train.mutable_batch()->set_microbatch(1);
  train.mutable_optimizer()->mutable_adamw()->set_beta1(0.9);
  train.mutable_optimizer()->mutable_adamw()->set_beta2(0.999);
  train.mutable_optimizer()->mutable_adamw()->set_eps(1e-8);
  train.mutable_optimizer()->set_clip_norm(1.0);
  train.mutable_parallel()->set_context(sharded.context);
  sharded.choose(train);
  return train;
}

std::function<void(::muster::Train&)> ZeroOf(uint32_t stage, Placement placement) {
  return [=](::muster::Train& train) {
    Zero& zero = *train.mutable_strategy()->mutable_zero();
    zero.set_stage(stage);
    zero.set_placement(placement);
    zero.set_prefetch(1);
  };
}

std::function<void(::muster::Train&)> FsdpOf(Reshard reshard, Accumulation accumulation, bool recompute) {
  return [=](::muster::Train& train) {
    Fsdp& fsdp = *train.mutable_strategy()->mutable_fsdp();
    fsdp.set_reshard(reshard);
    fsdp.set_placement(PLACEMENT_EVEN);
    fsdp.set_accumulation(accumulation);
    fsdp.set_prefetch(1);
    train.set_activation_checkpointing(recompute);
  };
}

// Persistent bytes to the byte, the peak within a tenth.
TEST(Memory, ShardsTakeWhatThePlanSays) {
  std::vector<Sharded> all = {
      {"zero 1", ZeroOf(1, PLACEMENT_WHOLE), 3, 1, 4, 74, 1001},
      {"zero 2", ZeroOf(2, PLACEMENT_RAGGED), 2, 0, 4, 101, 503},
      {"zero 3", ZeroOf(3, PLACEMENT_WHOLE), 2, 1, 6, 128, 256},
      {"full_shard", FsdpOf(RESHARD_FULL_SHARD, ACCUMULATION_REDUCE, false), 4, 3, 9, 133, 2000},
      {"full_shard recomputed", FsdpOf(RESHARD_FULL_SHARD, ACCUMULATION_REDUCE, true), 2, 0, 6, 160, 300},
      {"full_shard hold", FsdpOf(RESHARD_FULL_SHARD, ACCUMULATION_HOLD, false), 2, 1, 4, 192, 777},
      {"shard_grad_op", FsdpOf(RESHARD_SHARD_GRAD_OP, ACCUMULATION_REDUCE, false), 3, 2, 6, 191, 5003},
  };
  all.push_back({"hybrid, reduced in bf16",
                 [](::muster::Train& train) {
                   FsdpOf(RESHARD_HYBRID, ACCUMULATION_REDUCE, false)(train);
                   train.mutable_strategy()->mutable_fsdp()->set_shard_ranks(2);
                   train.mutable_precision()->set_reduce(DTYPE_BF16);
                 },
                 4, 3, 7, 177, 1009});
  const auto offloaded = [](bool parameters, Dtype compute, const std::function<void(::muster::Train&)>& choose) {
    return [=](::muster::Train& train) {
      choose(train);
      train.mutable_offload()->set_optimizer(true), train.mutable_offload()->set_parameters(parameters);
      train.mutable_precision()->set_compute(compute);
    };
  };
  const auto full = FsdpOf(RESHARD_FULL_SHARD, ACCUMULATION_REDUCE, false);
  all.push_back({"zero 1, offloaded", offloaded(false, DTYPE_FP32, ZeroOf(1, PLACEMENT_WHOLE)), 3, 1, 4, 74, 1001});
  all.push_back({"full_shard, offloaded", offloaded(false, DTYPE_FP32, full), 2, 1, 6, 128, 256});
  all.push_back({"full_shard, parameters offloaded", offloaded(true, DTYPE_FP32, full), 2, 0, 6, 160, 300});
  all.push_back({"full_shard, in bf16, offloaded", offloaded(false, DTYPE_BF16, full), 2, 1, 6, 160, 300});
  all.push_back({"full_shard, in bf16, parameters offloaded", offloaded(true, DTYPE_BF16, full), 2, 0, 6, 160, 300});
  for (const bool offloads : {false, true}) {
    for (const auto& [name, choose] : std::vector<std::pair<std::string, std::function<void(::muster::Train&)>>>{
             {"zero 1", ZeroOf(1, PLACEMENT_WHOLE)}, {"zero 3", ZeroOf(3, PLACEMENT_WHOLE)}, {"full_shard", full}}) {
      all.push_back({absl::StrCat(name, ", weights in bf16", offloads ? ", offloaded" : ""),
                     [=](::muster::Train& train) {
                       choose(train);
                       train.mutable_precision()->set_compute(DTYPE_BF16);
                       train.mutable_precision()->set_params(DTYPE_BF16);
                       if (offloads) train.mutable_offload()->set_optimizer(true);
                     },
                     2, 1, 6, 160, 300});
    }
  }
  all.push_back({"hybrid, offloaded",
                 [=](::muster::Train& train) {
                   offloaded(true, DTYPE_FP32, FsdpOf(RESHARD_HYBRID, ACCUMULATION_REDUCE, false))(train);
                   train.mutable_strategy()->mutable_fsdp()->set_shard_ranks(2);
                 },
                 4, 3, 7, 177, 1009});
  const auto activations = [](const std::function<void(::muster::Train&)>& choose) {
    return [=](::muster::Train& train) {
      choose(train);
      train.set_activation_checkpointing(true), train.mutable_offload()->set_activations(true);
    };
  };
  all.push_back({"ddp, activations offloaded", activations([](::muster::Train& train) {
                   train.mutable_strategy()->mutable_ddp()->set_bucket_mib(1);
                 }),
                 2, 0, 9, 128, 256});
  all.push_back({"full_shard, activations offloaded", activations(full), 2, 0, 6, 160, 300});
  all.push_back({"full_shard, all offloaded", activations(offloaded(true, DTYPE_FP32, full)), 2, 1, 6, 128, 256});
  all.push_back({"zero 1, in bf16, optimizer and activations offloaded",
                 activations(offloaded(false, DTYPE_BF16, ZeroOf(1, PLACEMENT_WHOLE))), 3, 1, 6, 128, 256});
  const auto with = [](const std::string& optimizer, const std::function<void(::muster::Train&)>& choose) {
    return [=](::muster::Train& train) {
      *train.mutable_optimizer() = OptimizerOf(optimizer, 1e-3);
      train.mutable_optimizer()->set_clip_norm(1.0);
      choose(train);
      if (train.strategy().has_fsdp()) train.mutable_strategy()->mutable_fsdp()->set_placement(PLACEMENT_WHOLE);
    };
  };
  all.push_back({"zero 1, muon", with("muon", ZeroOf(1, PLACEMENT_WHOLE)), 3, 1, 4, 74, 1001});
  all.push_back({"zero 3, muon", with("muon", ZeroOf(3, PLACEMENT_WHOLE)), 2, 1, 6, 128, 256});
  all.push_back({"full_shard, muon", with("muon", full), 4, 3, 9, 133, 2000});
  all.push_back({"zero 2, adafactor", with("adafactor", ZeroOf(2, PLACEMENT_WHOLE)), 3, 1, 4, 74, 1001});
  all.push_back({"full_shard, adafactor", with("adafactor", full), 4, 3, 9, 133, 2000});
  for (const std::string optimizer : {"muon", "adafactor"}) {
    all.push_back({absl::StrCat("full_shard, ", optimizer, ", offloaded"),
                   [=](::muster::Train& train) {
                     with(optimizer, full)(train);
                     train.mutable_offload()->set_optimizer(true);
                   },
                   4, 3, 9, 133, 2000});
  }
  const auto narrow = [](const std::function<void(::muster::Train&)>& choose) {
    return [=](::muster::Train& train) {
      choose(train);
      train.mutable_precision()->set_compute(DTYPE_BF16), train.mutable_precision()->set_params(DTYPE_BF16);
    };
  };
  for (uint32_t rank = 0; rank < 4; ++rank) {  // one of them has the embedding
    all.push_back({absl::StrCat("full_shard, muon, weights in bf16, rank ", rank), narrow(with("muon", full)), 4, rank,
                   9, 133, 2000});
  }
  all.push_back({"full_shard, adafactor, weights in bf16", narrow(with("adafactor", full)), 4, 3, 9, 133, 2000});
  for (const bool recompute : {false, true}) {
    all.push_back({absl::StrCat("full_shard", recompute ? " recomputed" : "", ", two share sequences"),
                   FsdpOf(RESHARD_FULL_SHARD, ACCUMULATION_REDUCE, recompute), 4, 3, 9, 133, 2000, 2});
    all.push_back({absl::StrCat("full_shard", recompute ? " recomputed" : "", ", all share sequences"),
                   FsdpOf(RESHARD_FULL_SHARD, ACCUMULATION_REDUCE, recompute), 4, 1, 6, 160, 300, 4});
  }
  // What is frozen has 2 bytes in bf16.
  const size_t trained_whole = all.size();
  for (const Dtype compute : {DTYPE_FP32, DTYPE_BF16}) {
    for (const auto& [name, choose] : std::vector<std::pair<std::string, std::function<void(::muster::Train&)>>>{
             {"ddp", [](::muster::Train& train) { train.mutable_strategy()->mutable_ddp()->set_bucket_mib(1); }},
             {"zero 2", ZeroOf(2, PLACEMENT_RAGGED)},
             {"zero 3", ZeroOf(3, PLACEMENT_WHOLE)},
             {"full_shard", FsdpOf(RESHARD_FULL_SHARD, ACCUMULATION_REDUCE, false)}}) {
      all.push_back({absl::StrCat(name, " with adapters, ", Dtype_Name(compute)),
                     [compute, choose](::muster::Train& train) {
                       choose(train);
                       train.mutable_precision()->set_compute(compute);
                       train.mutable_lora()->set_rank(2), train.mutable_lora()->set_alpha(2);
                       train.add_freeze("!h.1.ln_1.*");
                     },
                     3, 1, 4, 101, 503});
    }
  }
  for (const auto& [name, choose] : std::vector<std::pair<std::string, std::function<void(::muster::Train&)>>>{
           {"ddp", [](::muster::Train& train) { train.mutable_strategy()->mutable_ddp()->set_bucket_mib(1); }},
           {"zero 2", ZeroOf(2, PLACEMENT_RAGGED)},
           {"zero 3", ZeroOf(3, PLACEMENT_WHOLE)},
           {"full_shard", FsdpOf(RESHARD_FULL_SHARD, ACCUMULATION_REDUCE, false)},
           {"full_shard recomputed", FsdpOf(RESHARD_FULL_SHARD, ACCUMULATION_REDUCE, true)},
           {"shard_grad_op", FsdpOf(RESHARD_SHARD_GRAD_OP, ACCUMULATION_REDUCE, false)}}) {
    all.push_back({name + " behind a frozen front",
                   [choose](::muster::Train& train) {
                     choose(train);
                     for (const char* pattern : {"*", "!h.4.*", "!h.5.*", "!ln_f.*"}) train.add_freeze(pattern);
                   },
                   3, 1, 6, 101, 503});
  }
  for (size_t i = all.size(); i-- > trained_whole;) {
    if (!all[i].name.starts_with("full_shard")) continue;
    Sharded its = all[i];
    its.name += ", offloaded", its.ranks = 2;
    its.choose = [choose = its.choose](::muster::Train& train) {
      choose(train);
      train.mutable_offload()->set_optimizer(true), train.mutable_offload()->set_parameters(true);
    };
    all.push_back(its);
  }
  const auto configure = [](const Sharded& sharded) {
    const ::muster::Train train = TrainOf(sharded);
    return Configure(train, *models::MakeInventory(train), sharded.ranks, sharded.rank).value();
  };
  InstallCpuAllocator();
  for (size_t i = 0; i < all.size(); ++i) {
    const Sharded& sharded = all[i];
    // The gradients of a unit's frozen vectors go to a scratch, which the plan leaves out.
    uint64_t scratch = i < trained_whole ? 0 : 6 << 10;
    ResetCpuMemoryPeak();
    Configured made = configure(sharded);
    GroupOfOthers group(static_cast<int>(sharded.rank), static_cast<int>(sharded.ranks));
    const bool replicas = made.config.table.shards() < sharded.ranks;
    const uint32_t part = sharded.rank % sharded.context;
    Echo sharers(static_cast<int>(part), static_cast<int>(sharded.context));
    made.config.groups = {&group, &group, replicas ? &group : nullptr, nullptr, &group};
    made.config.groups.resize(kGroups);
    if (sharded.context > 1) made.config.groups[kContextGroup] = &sharers;
    made.config.bf16_gemms = units::Bf16Gemms::kPanels;  // which the plan has
    const uint64_t before = CpuMemoryUse().bytes;
    auto engine = Engine::Create(made.config).value();
    const strategies::Memory& m = made.memory;
    const std::vector<uint64_t> inputs =
        InputSlots(made.config.schedule, SlotPool::kInputs, made.config.inventory, /*sequences=*/1);
    const uint64_t planned = m.parameters + m.gradients + m.optimizer_state + m.gather_buffers + m.reduce_buffers +
                             std::accumulate(inputs.begin(), inputs.end(), uint64_t{0});
    // What decides about an update, and of each bucket with AdamW its number of steps.
    const bool offloads = made.config.train.offload().optimizer();
    const auto buckets =
        static_cast<uint64_t>(std::count_if(made.config.schedule.ops.begin(), made.config.schedule.ops.end(),
                                            [](const Op& op) { return op.kind == OpKind::kOptimizerStep; }));
    const uint64_t counters = made.config.train.optimizer().has_adafactor() ? 64 : 64 + 64 * buckets;
    // Each block of weights in bf16 counts its steps by itself.
    if (made.config.train.precision().params() == DTYPE_BF16) scratch = 4 << 10;
    EXPECT_GE(CpuMemoryUse().bytes - before, planned + counters) << sharded.name;
    EXPECT_LE(CpuMemoryUse().bytes - before, planned + counters + scratch) << sharded.name;
    EXPECT_EQ(engine->host_memory_bytes(), m.host) << sharded.name;
    EXPECT_EQ(offloads || made.config.train.offload().activations(), m.host > 0) << sharded.name;
    EXPECT_EQ(made.config.train.offload().activations(), inputs.size() == 2) << sharded.name;
    const std::vector<uint32_t> tokens(2 * 65, 1);
    for (int step = 0; step < 2; ++step) {
      const auto result =
          engine->Step(tasks::TokenBatch(2, tokens, 2 * sharded.ranks / sharded.context, sharded.context, part), 1e-4);
      ASSERT_TRUE(result.ok()) << result.status();
    }
    const double peak = static_cast<double>(engine->peak_memory_bytes() - before), most = static_cast<double>(m.peak);
    EXPECT_LE(peak, 1.1 * most) << sharded.name;
    // In narrow types the plan is a bound (memory_test.cc).
    if (made.config.train.precision().compute() != DTYPE_BF16) {
      EXPECT_GE(peak, 0.9 * most) << sharded.name;
    }
  }
}

// With short sequences a step takes most memory where it sums the embedding, which is most of the model.
TEST(Memory, CompressedSumsTakeNoMoreThanPlanned) {
  InstallCpuAllocator();
  const Sharded sharded{"ddp, power_sgd",
                        [](::muster::Train& train) {
                          train.mutable_model()->mutable_gpt2()->set_context(8);
                          train.mutable_strategy()->mutable_ddp()->set_bucket_mib(1);
                          train.mutable_communication()->mutable_compression()->mutable_power_sgd()->set_rank(4);
                        },
                        2,
                        0,
                        2,
                        64,
                        20011};
  ResetCpuMemoryPeak();
  const ::muster::Train train = TrainOf(sharded);
  Configured made = Configure(train, *models::MakeInventory(train), sharded.ranks, sharded.rank).value();
  GroupOfOthers group(static_cast<int>(sharded.rank), static_cast<int>(sharded.ranks));
  made.config.groups.assign(5, &group);
  const uint64_t before = CpuMemoryUse().bytes;
  auto engine = Engine::Create(made.config).value();
  const std::vector<uint32_t> tokens(2 * 9, 1);
  for (int step = 0; step < 2; ++step) {
    const auto result = engine->Step(tasks::TokenBatch(2, tokens, 2 * sharded.ranks), 1e-4);
    ASSERT_TRUE(result.ok()) << result.status();
  }
  const double peak = static_cast<double>(engine->peak_memory_bytes() - before),
               planned = static_cast<double>(made.memory.peak);
  EXPECT_LE(peak, planned);
  EXPECT_GE(peak, 0.9 * planned);
}

// Of each stage, whose neighbors send zeros. What a split backward keeps between its halves is most of it.
TEST(Memory, AStageOfAPipelineTakesWhatThePlanSays) {
  InstallCpuAllocator();
  const struct {
    std::string name;
    PipelineSchedule schedule;
    uint32_t chunks;
    bool recompute;
    uint32_t tensor = 1;  // ranks that compute each unit, of which the first one is here
    bool sequence_parallel = false;
    uint32_t context = 1;  // ranks that share sequences
  } cases[] = {{"1f1b", PIPELINE_SCHEDULE_1F1B, 1, false},
               {"ZB-H1", PIPELINE_SCHEDULE_ZERO_BUBBLE, 1, false},
               {"ZB-H1, recomputed", PIPELINE_SCHEDULE_ZERO_BUBBLE, 1, true},
               {"ZB-V", PIPELINE_SCHEDULE_ZERO_BUBBLE, 2, false},
               {"1f1b, tensor", PIPELINE_SCHEDULE_1F1B, 1, false, 2},
               {"1f1b, by tokens", PIPELINE_SCHEDULE_1F1B, 1, false, 2, true},
               {"ZB-H1, tensor", PIPELINE_SCHEDULE_ZERO_BUBBLE, 1, false, 2},
               {"ZB-H1, by tokens", PIPELINE_SCHEDULE_ZERO_BUBBLE, 1, false, 2, true},
               {"ZB-H1, tensor, recomputed", PIPELINE_SCHEDULE_ZERO_BUBBLE, 1, true, 2},
               {"ZB-V, by tokens", PIPELINE_SCHEDULE_ZERO_BUBBLE, 2, false, 2, true},
               {"1f1b, context", PIPELINE_SCHEDULE_1F1B, 1, false, 1, false, 2},
               {"1f1b, context, recomputed", PIPELINE_SCHEDULE_1F1B, 1, true, 1, false, 4},
               {"ZB-H1, context", PIPELINE_SCHEDULE_ZERO_BUBBLE, 1, false, 1, false, 2},
               {"1f1b, context, tensor", PIPELINE_SCHEDULE_1F1B, 1, false, 2, false, 2},
               {"ZB-V, context, by tokens", PIPELINE_SCHEDULE_ZERO_BUBBLE, 2, false, 2, true, 2}};
  for (const auto& c : cases) {
    for (const uint32_t place : {0u, 1u}) {
      const uint32_t of_stage = c.tensor * c.context, rank = place * of_stage, ranks = 2 * of_stage;
      const Sharded stage{c.name,
                          [&](::muster::Train& train) {
                            train.mutable_strategy()->mutable_single();
                            if (c.context > 1) train.mutable_strategy()->mutable_ddp()->set_bucket_mib(1);
                            train.mutable_model()->mutable_gpt2()->set_heads(c.tensor);
                            train.mutable_parallel()->set_pipeline(2), train.mutable_parallel()->set_tensor(c.tensor);
                            train.mutable_parallel()->set_sequence_parallel(c.sequence_parallel);
                            train.mutable_parallel()->set_context(c.context);
                            train.mutable_pipeline()->set_schedule(c.schedule);
                            train.mutable_pipeline()->set_chunks(c.chunks);
                            train.set_activation_checkpointing(c.recompute);
                            train.mutable_batch()->set_sequences(24), train.mutable_batch()->set_microbatch(4);
                          },
                          ranks,
                          rank,
                          6,
                          64,
                          256};
      ResetCpuMemoryPeak();
      const ::muster::Train train = TrainOf(stage);
      Configured made = Configure(train, *models::MakeInventory(train), ranks, rank).value();
      GroupOfOthers group(static_cast<int>(place), 2);
      Echo tensor(0, 2), context(0, static_cast<int>(c.context));
      made.config.groups.assign(made.config.schedule.groups.size(), &group);
      if (c.tensor > 1) made.config.groups[kTensorGroup] = &tensor;
      if (c.context > 1) made.config.groups[kContextGroup] = &context;
      const uint64_t before = CpuMemoryUse().bytes;
      auto engine = Engine::Create(made.config).value();
      const std::vector<uint32_t> tokens(24 * 65, 1);
      for (int step = 0; step < 2; ++step) {
        const auto result = engine->Step(tasks::TokenBatch(24, tokens, 24, c.context), 1e-4);
        ASSERT_TRUE(result.ok()) << result.status();
      }
      const double peak = static_cast<double>(engine->peak_memory_bytes() - before),
                   planned = static_cast<double>(made.memory.peak);
      EXPECT_LE(peak, 1.02 * planned) << c.name << ", stage " << place;
      // The first half of a backward frees what it has read as it goes; the plan counts all of it and what is deferred.
      EXPECT_GE(peak, (c.schedule == PIPELINE_SCHEDULE_1F1B ? 0.9 : 0.85) * planned) << c.name << ", stage " << place;
    }
  }
}

// By products, as on a GPU: matrices of 128 queries of eight heads to 512 keys are most of it.
TEST(Memory, DropoutOfAttentionToSequencesTakesWhatThePlanForAGpuSays) {
  InstallCpuAllocator();
  for (const bool recompute : {false, true}) {
    const Sharded sharded{"ddp, dropout of weights, two share sequences",
                          [&](::muster::Train& train) {
                            train.mutable_strategy()->mutable_ddp()->set_bucket_mib(1);
                            train.mutable_model()->mutable_gpt2()->set_heads(8);
                            train.mutable_model()->mutable_gpt2()->set_context(512);
                            train.mutable_dropout()->set_attention(0.1);
                            train.set_activation_checkpointing(recompute);
                          },
                          2,
                          0,
                          2,
                          32,
                          64,
                          2};
    ResetCpuMemoryPeak();
    const ::muster::Train train = TrainOf(sharded);
    Configured made = Configure(train, *models::MakeInventory(train, DEVICE_CUDA), 2, 0).value();
    made.config.device_rows = true;
    GroupOfOthers group(0, 2);
    Echo sharers(0, 2);
    made.config.groups.assign(made.config.schedule.groups.size(), &group);
    made.config.groups[kContextGroup] = &sharers;
    const uint64_t before = CpuMemoryUse().bytes;
    auto engine = Engine::Create(made.config).value();
    const std::vector<uint32_t> tokens(2 * 513, 1);
    for (int step = 0; step < 2; ++step) {
      const auto result = engine->Step(tasks::TokenBatch(2, tokens, 2, 2, 0), 1e-4);
      ASSERT_TRUE(result.ok()) << result.status();
    }
    const double peak = static_cast<double>(engine->peak_memory_bytes() - before),
                 planned = static_cast<double>(made.memory.peak - made.memory.fixed);
    EXPECT_LE(peak, 1.03 * planned) << recompute;
    EXPECT_GE(peak, 0.9 * planned) << recompute;
  }
}

// As on a GPU, where the device may still send the last outputs of a step when the next one is issued.
TEST(Memory, AStageThatRunsAStepAheadTakesNoMore) {
  InstallCpuAllocator();
  const Batch batch = tasks::TokenBatch(24, std::vector<uint32_t>(24 * 65, 1), 24);
  for (const auto& [schedule, chunks] :
       {std::pair(PIPELINE_SCHEDULE_1F1B, 1), std::pair(PIPELINE_SCHEDULE_ZERO_BUBBLE, 2)}) {
    for (const uint32_t rank : {0u, 1u}) {
      const Sharded stage{"ahead",
                          [&, schedule = schedule, chunks = chunks](::muster::Train& train) {
                            train.mutable_strategy()->mutable_single();
                            train.mutable_parallel()->set_pipeline(2);
                            train.mutable_pipeline()->set_schedule(schedule);
                            train.mutable_pipeline()->set_chunks(chunks);
                            train.mutable_batch()->set_sequences(24), train.mutable_batch()->set_microbatch(4);
                          },
                          2,
                          rank,
                          6,
                          64,
                          256};
      const ::muster::Train train = TrainOf(stage);
      uint64_t planned = 0;
      const auto peak = [&](int in_flight) {
        ResetCpuMemoryPeak();
        Configured made = Configure(train, *models::MakeInventory(train), 2, rank).value();
        made.config.streams = true;
        planned = made.memory.peak;
        GroupOfOthers group(static_cast<int>(rank), 2);
        made.config.groups.assign(made.config.schedule.groups.size(), &group);
        const uint64_t before = CpuMemoryUse().bytes;
        const auto engine = Engine::Create(made.config).value();
        for (int steps = 0; steps < 4; steps += in_flight) {
          for (int i = 0; i < in_flight; ++i) EXPECT_TRUE(engine->Issue(batch, 1e-4).ok());
          for (int i = 0; i < in_flight; ++i) EXPECT_TRUE(engine->Await().ok());
        }
        return engine->peak_memory_bytes() - before;
      };
      const uint64_t alone = peak(1), ahead = peak(2), results = 4 << 10;
      EXPECT_LE(ahead, alone + results) << PipelineSchedule_Name(schedule) << ", stage " << rank;
      EXPECT_LE(static_cast<double>(ahead), 1.02 * static_cast<double>(planned))
          << PipelineSchedule_Name(schedule) << ", stage " << rank;
    }
  }
}

// In which layouts convolutions compute is oneDNN's choice (memory_test.cc), so a twentieth.
TEST(Memory, ASynchronizedResnetTakesWhatThePlanSays) {
  InstallCpuAllocator();
  const struct {
    uint32_t depth, width, image;
    ResnetStem stem;
  } cases[] = {{20, 16, 32, RESNET_STEM_CIFAR}, {18, 32, 32, RESNET_STEM_CIFAR}, {50, 16, 64, RESNET_STEM_IMAGENET}};
  for (const auto& c : cases) {
    ResetCpuMemoryPeak();
    constexpr int64_t kImages = 16;
    ::muster::Train train;
    Resnet& m = *train.mutable_model()->mutable_resnet();
    m.set_depth(c.depth), m.set_width(c.width), m.set_image(c.image), m.set_stem(c.stem), m.set_sync_batch_norm(true);
    *train.mutable_model() = models::Resolve(train.model()).value();
    train.mutable_strategy()->mutable_ddp()->set_bucket_mib(1);
    train.mutable_batch()->set_sequences(2 * kImages);
    train.mutable_optimizer()->mutable_sgd()->set_momentum(0.9);
    Configured made = Configure(train, *models::MakeInventory(train.model()), 2, 1).value();
    GroupOfOthers group(1, 2);
    Echo exchange(1, 2);
    made.config.groups = {&group, nullptr, &group, &exchange, nullptr};
    const uint64_t before = CpuMemoryUse().bytes;
    auto engine = Engine::Create(made.config).value();
    {
      const Batch batch{.samples = kImages,
                        .tensors = {{models::kInputs, at::arange(kImages * 3 * c.image * c.image, at::kFloat)
                                                          .sin_()
                                                          .view({kImages, 3, c.image, c.image})},
                                    {models::kTargets, at::zeros({kImages}, at::kLong)}},
                        .global_samples = 2 * kImages};
      for (int i = 0; i < 2; ++i) ASSERT_TRUE(engine->Step(batch, 1e-4).ok());
    }
    const double planned = static_cast<double>(made.memory.peak);
    EXPECT_NEAR(static_cast<double>(engine->peak_memory_bytes() - before) / planned, 1, 0.05) << c.depth;
  }
}

}  // namespace
}  // namespace muster::engine
