// What units exchange inside their passes, and what ends such a pass.
#include "worker/engine/exchanges.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "models/inventory.h"
#include "worker/collectives/threads.h"
#include "worker/engine/configure.h"
#include "worker/engine/engine.h"
#include "worker/engine/failed.h"

namespace muster::engine {
namespace {

TEST(Exchanges, GatherInRankOrderAndSum) {
  const auto groups = collectives::MakeThreads(3);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      Exchanges exchanges(groups[static_cast<size_t>(rank)].get());
      Exchange declared;
      declared.set_collectives(1), declared.set_gathered_bytes(8), declared.set_summed_bytes(12);
      exchanges.Begin();
      const at::Tensor all = exchanges.Gather(at::full({2}, rank, at::kFloat));
      EXPECT_TRUE(all.equal(at::arange(3, at::kFloat).view({3, 1}).expand({3, 2})));
      EXPECT_NO_THROW(exchanges.End(declared, Pass::kForward));
      EXPECT_NO_THROW(exchanges.End(declared, Pass::kRecompute));
      EXPECT_THROW(exchanges.End(declared, Pass::kBackward), Failed);
      exchanges.Begin();
      const at::Tensor sum = at::full({3}, rank + 1, at::kFloat);
      exchanges.Sum(sum);
      EXPECT_TRUE(sum.equal(at::full({3}, 6, at::kFloat)));
      EXPECT_NO_THROW(exchanges.End(declared, Pass::kBackward));
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

// A group of one rank whose collectives take a while.
class Slow final : public collectives::Group {
 public:
  static constexpr std::chrono::milliseconds kWhile{2};
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::unique_ptr<collectives::Work> AllReduce(at::Tensor) override { return std::make_unique<Waits>(); }
  std::unique_ptr<collectives::Work> AllGather(std::vector<at::Tensor>) override { return std::make_unique<Waits>(); }
  std::unique_ptr<collectives::Work> ReduceScatter(std::vector<at::Tensor>) override { return nullptr; }
  std::unique_ptr<collectives::Work> Broadcast(at::Tensor, int) override { return nullptr; }
  std::unique_ptr<collectives::Work> BroadcastShares(std::vector<collectives::RankShare>) override { return nullptr; }
  std::unique_ptr<collectives::Work> ReduceShares(std::vector<collectives::RankShare>) override { return nullptr; }
  std::unique_ptr<collectives::Work> Send(at::Tensor, int) override { return nullptr; }
  std::unique_ptr<collectives::Work> Recv(at::Tensor, int) override { return nullptr; }
  absl::Status Barrier() override { return absl::OkStatus(); }
  absl::Status Health() override { return absl::OkStatus(); }

 private:
  class Waits final : public collectives::Work {
   public:
    absl::Status Wait() override {
      for (const auto end = std::chrono::steady_clock::now() + kWhile; std::chrono::steady_clock::now() < end;) {
      }
      return absl::OkStatus();
    }
    bool done() const override { return false; }
  };
};

TEST(Exchanges, CountTheTimeThatTheyWait) {
  Slow group;
  Exchanges exchanges(&group);
  exchanges.Gather(at::ones({2}));
  exchanges.Sum(at::ones({2}));
  EXPECT_GE(exchanges.TakeWaitedSeconds(), 4e-3);
  EXPECT_EQ(exchanges.TakeWaitedSeconds(), 0);
}

// Rank 0 of two; `groups` are its groups, by number.
Config SynchronizedResnet() {
  Train train;
  Resnet& m = *train.mutable_model()->mutable_resnet();
  m.set_depth(8), m.set_width(4), m.set_image(8), m.set_sync_batch_norm(true);
  *train.mutable_model() = models::Resolve(train.model()).value();
  train.mutable_strategy()->mutable_ddp()->set_bucket_mib(1);
  train.mutable_batch()->set_sequences(6);
  train.mutable_batch()->set_microbatch(3);
  train.mutable_optimizer()->mutable_sgd()->set_momentum(0.9);
  return Configure(train, *models::MakeInventory(train.model()), 2, 0)->config;
}

absl::Status TakeAStep(const Config& config) {
  const auto engine = Engine::Create(config).value();
  const at::Tensor pixels = at::arange(3 * 3 * 64, at::kFloat).mul(0.37f).sin().view({3, 3, 8, 8});
  return engine
      ->Step({.samples = 3,
              .tensors = {{models::kInputs, pixels}, {models::kTargets, at::arange(3, at::kLong)}},
              .global_samples = 6},
             0.05)
      .status();
}

// The other rank stops before the first collective, in the middle of the forward, and before the backward, where the
// failure comes through autograd.
TEST(Exchanges, ARankThatIsGoneEndsThePassAndIsNamedWithIt) {
  const std::vector<int64_t> channels = {4, 4, 4, 8, 8, 16, 16};  // of the normalizations in their order
  const std::pair<size_t, const char*> cases[] = {{0, "rank 0, step 1, Forward stem m0 in exchange"},
                                                  {4, "rank 0, step 1, Forward layer2.0 m0 in exchange"},
                                                  {7, "rank 0, step 1, Backward layer3.0 m0 in exchange"}};
  for (const auto& [gathers, says] : cases) {
    const auto world = collectives::MakeThreads(2), exchange = collectives::MakeThreads(2, absl::Milliseconds(300));
    std::thread other([&, most = gathers] {
      // As a rank without samples.
      for (size_t i = 0; i < most; ++i) {
        EXPECT_TRUE(exchange[1]->AllGather({at::zeros({2 * (2 * channels[i] + 1)})})->Wait().ok());
      }
    });
    Config config = SynchronizedResnet();
    config.groups = {world[0].get(), nullptr, world[0].get(), exchange[0].get()};
    const absl::Status status = TakeAStep(config);
    other.join();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_TRUE(absl::StartsWith(status.message(), says)) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "rank 1")) << status;
  }
}

// Each number that a unit must keep to: a plan that prices something else is wrong.
TEST(Exchanges, MustBeWhatTheInventoryDeclares) {
  const auto group = collectives::MakeThreads(1);  // in place of two ranks: the other one adds nothing
  const auto step = [&](const std::function<void(Exchange&)>& spoil) {
    Config config = SynchronizedResnet();
    config.groups = {group[0].get(), nullptr, group[0].get(), group[0].get()};
    spoil(*config.inventory.mutable_units(1)->mutable_exchange());
    return TakeAStep(config);
  };
  EXPECT_EQ(step([](Exchange&) {}), absl::OkStatus());
  const std::pair<std::function<void(Exchange&)>, const char*> cases[] = {
      {[](Exchange& e) { e.set_collectives(3); }, "Forward layer1.0 m0 in exchange: the unit exchanged 72 gathered"},
      {[](Exchange& e) { e.set_gathered_bytes(4); }, "Forward layer1.0 m0 in exchange: the unit exchanged 72 gathered"},
      {[](Exchange& e) { e.set_summed_bytes(4); }, "0 gathered and 64 summed bytes in 2 collectives; the inventory"}};
  for (const auto& [spoil, says] : cases) {
    const absl::Status status = step(spoil);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_TRUE(absl::StrContains(status.message(), says)) << status;
  }
}

}  // namespace
}  // namespace muster::engine
