// The engine uses the memory that the plan predicts for a rank of a sharded model.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "models/inventory.h"
#include "worker/collectives/group.h"
#include "worker/engine/configure.h"
#include "worker/engine/cpu_allocator.h"
#include "worker/engine/engine.h"
#include "worker/tasks/language_model.h"

namespace muster::engine {
namespace {

// A group whose collectives finish at once: a rank's memory does not depend on the other ranks.
class Mute final : public collectives::Group {
 public:
  Mute(int rank, int size) : rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::unique_ptr<collectives::Work> AllReduce(at::Tensor) override { return std::make_unique<Done>(); }
  std::unique_ptr<collectives::Work> AllGather(std::vector<at::Tensor>) override { return std::make_unique<Done>(); }
  std::unique_ptr<collectives::Work> ReduceScatter(std::vector<at::Tensor>) override {
    return std::make_unique<Done>();
  }
  std::unique_ptr<collectives::Work> Broadcast(at::Tensor, int) override { return std::make_unique<Done>(); }
  std::unique_ptr<collectives::Work> BroadcastShares(std::vector<collectives::RankShare>) override {
    return std::make_unique<Done>();
  }
  std::unique_ptr<collectives::Work> ReduceShares(std::vector<collectives::RankShare>) override {
    return std::make_unique<Done>();
  }
  std::unique_ptr<collectives::Work> Send(at::Tensor, int) override { return std::make_unique<Done>(); }
  std::unique_ptr<collectives::Work> Recv(at::Tensor, int) override { return std::make_unique<Done>(); }
  absl::Status Barrier() override { return absl::OkStatus(); }
  absl::Status Health() override { return absl::OkStatus(); }

 private:
  class Done final : public collectives::Work {
   public:
    absl::Status Wait() override { return absl::OkStatus(); }
    bool done() const override { return true; }
  };
  const int rank_, size_;
};

struct Sharded {
  std::string name;
  std::function<void(::muster::Train&)> choose;
  uint32_t ranks, rank, layers, width, vocabulary;
};

::muster::Train TrainOf(const Sharded& sharded) {
  ::muster::Train train;
  Gpt2& g = *train.mutable_model()->mutable_gpt2();
  g.set_layers(sharded.layers), g.set_heads(1), g.set_width(sharded.width);
  g.set_vocabulary(sharded.vocabulary), g.set_context(64);
  train.mutable_batch()->set_sequences(2 * sharded.ranks);
  train.mutable_batch()->set_microbatch(1);
  train.mutable_optimizer()->mutable_adamw()->set_beta1(0.9);
  train.mutable_optimizer()->mutable_adamw()->set_beta2(0.999);
  train.mutable_optimizer()->mutable_adamw()->set_eps(1e-8);
  train.mutable_optimizer()->set_clip_norm(1.0);
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
  const auto configure = [](const Sharded& sharded) {
    const ::muster::Train train = TrainOf(sharded);
    return Configure(train, *models::MakeInventory(train.model()), sharded.ranks, sharded.rank).value();
  };
  InstallCpuAllocator();
  for (const Sharded& sharded : all) {
    ResetCpuMemoryPeak();
    Configured made = configure(sharded);
    Mute group(static_cast<int>(sharded.rank), static_cast<int>(sharded.ranks));
    const bool replicas = made.config.table.shards() < sharded.ranks;
    made.config.groups = {&group, &group, replicas ? &group : nullptr};
    const uint64_t before = CpuMemoryUse().bytes;
    auto engine = Engine::Create(made.config).value();
    const strategies::Memory& m = made.memory;
    const uint64_t planned = m.parameters + m.gradients + m.optimizer_state + m.gather_buffers + m.reduce_buffers;
    constexpr uint64_t kCounter = 64;  // AdamW's number of steps
    EXPECT_EQ(CpuMemoryUse().bytes - before, planned + kCounter) << sharded.name;
    const std::vector<uint32_t> tokens(2 * 65, 1);
    for (int step = 0; step < 2; ++step) {
      const auto result = engine->Step(tasks::TokenBatch(2, tokens, 2 * sharded.ranks), 1e-4);
      ASSERT_TRUE(result.ok()) << result.status();
    }
    EXPECT_NEAR(static_cast<double>(engine->peak_memory_bytes() - before), static_cast<double>(m.peak),
                0.1 * static_cast<double>(m.peak))
        << sharded.name;
  }
}

}  // namespace
}  // namespace muster::engine
