// Ranks that are threads of a test, each with its assignment, its engine and its shard of a small model. They do not
// join: all their groups are one between threads.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "models/inventory.h"
#include "proto/worker.pb.h"
#include "strategies/hardware.h"
#include "worker/collectives/memory_key_value.h"
#include "worker/collectives/threads.h"
#include "worker/engine/configure.h"
#include "worker/trainer/setup.h"

namespace muster::trainer {

class ThreadRanks {
 public:
  // Each writes checkpoints to `path`, after every step.
  ThreadRanks(uint32_t world, const std::string& path) : members_(world) {
    Train train;
    Gpt2& g = *train.mutable_model()->mutable_gpt2();
    g.set_layers(1), g.set_heads(1), g.set_width(8), g.set_vocabulary(16), g.set_context(8);
    train.mutable_batch()->set_sequences(8);
    train.mutable_batch()->set_microbatch(1);
    train.mutable_optimizer()->mutable_sgd()->set_momentum(0.9);
    train.mutable_strategy()->mutable_fsdp();
    train.mutable_checkpoint()->set_path(path);
    train.mutable_checkpoint()->set_every_steps(1);
    train.set_steps(100);
    const Inventory inventory = *models::MakeInventory(train);
    auto groups = collectives::MakeThreads(static_cast<int>(world), absl::Seconds(60));
    for (uint32_t rank = 0; rank < world; ++rank) {
      Member& member = members_[rank];
      member.assignment.mutable_key()->set_job("job");
      member.assignment.mutable_key()->set_generation(1);
      member.assignment.mutable_key()->set_rank(rank);
      member.assignment.set_world(world);
      member.assignment.set_device(DEVICE_CPU);
      *member.assignment.mutable_spec()->mutable_train() = train;
      Rank& made = member.rank;
      made.program.inventory = inventory;
      made.program.layout = *strategies::MakeLayout(train, inventory, strategies::FullNodes(world, world, 0));
      made.ranks.owned.push_back(std::move(groups[rank]));
      auto configured = engine::Configure(train, inventory, world, rank);
      EXPECT_TRUE(configured.ok()) << configured.status();
      configured->config.groups.assign(configured->config.schedule.groups.size(), group(rank));
      made.ranks.groups.assign(kGroups, group(rank));
      auto engine = engine::Engine::Create(configured->config);
      EXPECT_TRUE(engine.ok()) << engine.status();
      made.engine = *std::move(engine);
    }
  }

  Assignment& assignment(uint32_t rank) { return members_[rank].assignment; }
  Train& train(uint32_t rank) { return *assignment(rank).mutable_spec()->mutable_train(); }
  Rank& rank(uint32_t rank) { return members_[rank].rank; }
  collectives::Group* group(uint32_t rank) { return members_[rank].rank.ranks.owned[0].get(); }
  collectives::KeyValue& rendezvous() { return rendezvous_; }

  // Every element of the rank's state, as a step changes it.
  void Set(uint32_t rank, float value) {
    for (engine::StateView& view : members_[rank].rank.engine->State()) {
      std::fill(view.values.begin(), view.values.end(), value);
    }
  }

  // What `body` returns on each rank; they run at the same time.
  std::vector<absl::Status> OnEach(const std::function<absl::Status(uint32_t rank)>& body) {
    std::vector<absl::Status> returned(members_.size());
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < members_.size(); ++rank) {
      threads.emplace_back([&, rank] { returned[rank] = body(rank); });
    }
    for (std::thread& thread : threads) thread.join();
    return returned;
  }

 private:
  struct Member {
    Assignment assignment;
    Rank rank;
  };
  std::vector<Member> members_;
  collectives::MemoryKeyValue rendezvous_;
};

}  // namespace muster::trainer
