#include "worker/trainer/local_steps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/notification.h"
#include "common/proto_time.h"

namespace muster::trainer {
namespace {

using ::testing::ElementsAre;

Sync SyncOf(uint32_t every, uint32_t fragments, uint32_t delay) {
  Sync sync;
  sync.set_replicas(2);
  sync.set_every(every);
  sync.set_fragments(fragments);
  sync.set_delay(delay);
  sync.set_values(EXCHANGED_VALUES_FP32);
  sync.set_patience_seconds(5);
  sync.mutable_outer()->set_lr(1);
  return sync;
}

TEST(LocalSteps, EachFragmentHasItsTurn) {
  const Sync sync = SyncOf(8, 3, 2);
  std::vector<int> begins, ends;
  for (uint64_t step = 0; step <= 18; ++step) {
    begins.push_back(static_cast<int>(BeginsAfter(sync, step).value_or(9)));
    ends.push_back(static_cast<int>(EndsAfter(sync, step).value_or(9)));
  }
  EXPECT_THAT(begins, ElementsAre(9, 9, 0, 9, 9, 1, 9, 9, 2, 9, 0, 9, 9, 1, 9, 9, 2, 9, 0));
  EXPECT_THAT(ends, ElementsAre(9, 9, 9, 9, 0, 9, 9, 1, 9, 9, 2, 9, 0, 9, 9, 1, 9, 9, 2));
  EXPECT_EQ(BeginsAfter(SyncOf(1, 1, 0), 5), 0u);
  EXPECT_EQ(EndsAfter(SyncOf(1, 1, 0), 5), 0u);
}

// Three replicas of five samples a step, each of two ranks that read three and two of them.
TEST(LocalSteps, ReplicasUseEachSampleOnce) {
  std::multiset<uint64_t> used;
  for (uint64_t step = 0; step < 4; ++step) {
    for (uint32_t replica = 0; replica < 3; ++replica) {
      for (uint64_t i = 0; i < 5; ++i) used.insert(FirstSampleOf(step * 5 * 3, 5, replica) + i);
    }
  }
  ASSERT_EQ(used.size(), 60u);
  for (uint64_t i = 0; i < 60; ++i) EXPECT_EQ(used.count(i), 1u);
}

// A parameter of one replica.
class OneParameter final : public Parameters {
 public:
  explicit OneParameter(float first) : value{first} { inventory.add_units()->add_tensors()->set_name("a"); }
  absl::StatusOr<std::vector<engine::StateView>> Pull() override {
    engine::StateView view;
    view.kind = "parameter", view.tensor = "a", view.shape = {1};
    view.values = absl::MakeSpan(value);
    return std::vector<engine::StateView>{view};
  }
  absl::Status Push() override { return absl::OkStatus(); }
  Inventory inventory;
  std::vector<float> value;
};

// Decides once two replicas hold what both offer; where a replica is `gone`, without it.
class Decider {
 public:
  absl::StatusOr<SyncReply> Ask(const SyncRequest& request, uint32_t replica) {
    absl::MutexLock lock(&mutex_);
    if (away > 0) {
      --away;
      return absl::UnavailableError("restarting");
    }
    SyncReply reply;
    reply.set_secret("s3cret");
    if (request.exchange() < exchange_ && !members_.contains(replica)) {
      reply.set_decision(SyncReply::CATCH_UP);
      reply.set_exchange(exchange_);
      for (const auto& [of, address] : applied_) AddPeer(of, address, reply);
      return reply;
    }
    if (request.exchange() == exchange_ && !request.offers()) applied_[replica] = request.address();
    if (request.exchange() == exchange_ && request.offers()) {
      offers_[replica] = {request.holds().begin(), request.holds().end()};
      addresses_[replica] = request.address();
      bool all = gone || offers_.size() == 2;
      for (const auto& [of, held] : offers_) all = all && held.size() == offers_.size();
      if (all) {
        ++exchange_;
        members_.clear();
        for (const auto& [of, held] : offers_) members_.insert(of);
        offers_.clear();
      }
    }
    if (request.exchange() < exchange_) {
      reply.set_decision(SyncReply::APPLY);
      reply.set_exchange(exchange_);
      for (const uint32_t of : members_) reply.add_members(of);
      return reply;
    }
    reply.set_decision(SyncReply::WAIT);
    for (const auto& [of, held] : offers_) AddPeer(of, addresses_[of], reply);
    return reply;
  }
  std::atomic<bool> gone = false;
  std::atomic<int> away = 0;

 private:
  static void AddPeer(uint32_t replica, const std::string& address, SyncReply& reply) {
    SyncPeer& peer = *reply.add_peers();
    peer.set_replica(replica);
    peer.set_address(address);
  }
  absl::Mutex mutex_;
  uint64_t exchange_ = 0;
  std::set<uint32_t> members_ = {0, 1};
  std::map<uint32_t, std::set<uint32_t>> offers_;
  std::map<uint32_t, std::string> addresses_, applied_;
};

struct Replica {
  Replica(uint32_t number, Sync sync, Decider& decider) : parameters(1) {
    sync.set_replica(number);
    state = OuterState::Create(&parameters, parameters.inventory, sync).value();
    steps = std::make_unique<LocalSteps>(
        LocalSteps::Options{.key = {}, .sync = sync, .host = "127.0.0.1", .layout = "", .source_rank = 0, .steps = 100},
        state.get(),
        [&decider, number](const SyncRequest& request, const Begun&) { return decider.Ask(request, number); }, [] {});
  }
  OneParameter parameters;
  std::unique_ptr<OuterState> state;
  std::unique_ptr<LocalSteps> steps;
};

// From 1, the replicas go to 0.6 and 0.2: the mean of their ways is 0.6.
TEST(LocalSteps, ReplicasMeetAtTheMeanOfTheirWays) {
  Decider decider;
  Replica one(0, SyncOf(4, 1, 0), decider), other(1, SyncOf(4, 1, 0), decider);
  ASSERT_TRUE(one.steps->Start().ok());
  ASSERT_TRUE(other.steps->Start().ok());
  one.parameters.value = {0.6f}, other.parameters.value = {0.2f};
  decider.away = 3;  // asked again until it is back
  std::thread second([&] { EXPECT_TRUE(other.steps->AfterStep(4).ok()); });
  EXPECT_TRUE(one.steps->AfterStep(4).ok());
  second.join();
  EXPECT_NEAR(one.parameters.value[0], 0.4f, 1e-6f);
  EXPECT_EQ(one.parameters.value, other.parameters.value);
  EXPECT_FALSE(one.steps->DueAfter(5));
  EXPECT_TRUE(one.steps->DueAfter(8));

  // The other one is gone: on alone. When it comes back, it has what was decided, and its own two hundredths.
  decider.gone = true;
  one.parameters.value = {0.1f};
  ASSERT_TRUE(one.steps->AfterStep(8).ok());
  EXPECT_NEAR(one.parameters.value[0], 0.1f, 1e-6f);
  other.parameters.value[0] += 0.02f;
  ASSERT_TRUE(other.steps->AfterStep(8).ok());
  EXPECT_NEAR(other.parameters.value[0], 0.12f, 1e-6f);
  EXPECT_EQ(other.state->exchange(0), 2u);
}

// Steps go on between the contribution and its result.
TEST(LocalSteps, ADelayedResultIsMixedIn) {
  Decider decider;
  Sync sync = SyncOf(4, 1, 2);
  sync.set_mix(0.5);
  Replica one(0, sync, decider), other(1, sync, decider);
  ASSERT_TRUE(one.steps->Start().ok());
  ASSERT_TRUE(other.steps->Start().ok());
  one.parameters.value = {0.6f}, other.parameters.value = {0.2f};
  ASSERT_TRUE(one.steps->AfterStep(4).ok());  // does not wait
  ASSERT_TRUE(other.steps->AfterStep(4).ok());
  EXPECT_FALSE(one.steps->DueAfter(5));
  one.parameters.value = {0.5f};
  ASSERT_TRUE(one.steps->AfterStep(6).ok());
  EXPECT_NEAR(one.parameters.value[0], 0.5f * 0.5f + 0.5f * 0.4f, 1e-6f);
  ASSERT_TRUE(other.steps->AfterStep(6).ok());
  EXPECT_NEAR(other.parameters.value[0], 0.5f * 0.2f + 0.5f * 0.4f, 1e-6f);
}

// From 1, this replica goes to 0.6. The other one goes to 0.2, restarts within the exchange, and then goes to 0.8.
TEST(LocalSteps, WhatAGenerationThatIsGoneContributedIsReplaced) {
  Decider unused;
  Replica other(1, SyncOf(4, 1, 0), unused);
  const auto server = ReplicaServer::Start("127.0.0.1", other.state.get()).value();
  server->UseSecret("s3cret");
  const auto contribute = [&](float value) {
    other.parameters.value = {value};
    server->Offer(0, 0, 1, std::make_shared<const std::string>(other.state->Contribution(0).value()));
  };
  std::vector<std::string> asked;
  const auto ask = [&](const SyncRequest& request, const Begun&) -> absl::StatusOr<SyncReply> {
    SyncReply reply;
    reply.set_secret("s3cret");
    reply.set_decision(SyncReply::WAIT);
    if (!request.offers()) return reply;
    asked.push_back(absl::StrCat(absl::StrJoin(request.holds(), ","), " of generations ",
                                 absl::StrJoin(request.held_generations(), ",")));
    if (asked.size() == 3) {
      reply.set_decision(SyncReply::APPLY);
      reply.set_exchange(1);
      for (const uint32_t member : {0, 1}) reply.add_members(member);
      return reply;
    }
    contribute(asked.size() == 1 ? 0.2f : 0.8f);
    SyncPeer& peer = *reply.add_peers();
    peer.set_replica(1);
    peer.set_address(server->address());
    peer.set_generation(asked.size());
    return reply;
  };
  OneParameter parameters(1);
  const Sync sync = SyncOf(4, 1, 0);
  const auto state = OuterState::Create(&parameters, parameters.inventory, sync).value();
  LocalSteps::Options options{
      .key = {}, .sync = sync, .host = "127.0.0.1", .layout = "", .source_rank = 0, .steps = 100};
  options.key.set_generation(7);
  LocalSteps steps(options, state.get(), ask, [] {});
  ASSERT_TRUE(steps.Start().ok());
  parameters.value = {0.6f};
  ASSERT_TRUE(steps.AfterStep(4).ok());
  EXPECT_THAT(asked, ElementsAre("0 of generations 7", "0,1 of generations 7,1", "0,1 of generations 7,2"));
  EXPECT_NEAR(parameters.value[0], 0.7f, 1e-6f);
}

// A rank that ends does not wait for the reply to a request that the coordinator holds until it has something to do.
TEST(LocalSteps, ARequestThatWaitsIsInterruptedAtTheEnd) {
  OneParameter parameters(1);
  const Sync sync = SyncOf(4, 1, 2);
  const auto state = OuterState::Create(&parameters, parameters.inventory, sync).value();
  absl::Notification interrupted;
  const auto ask = [&](const SyncRequest& request, const Begun& begun) -> absl::StatusOr<SyncReply> {
    SyncReply reply;
    reply.set_decision(SyncReply::WAIT);
    if (!request.offers()) return reply;
    EXPECT_GT(FromProto(request.wait()), absl::ZeroDuration());
    begun([&] { interrupted.Notify(); });
    EXPECT_TRUE(interrupted.WaitForNotificationWithTimeout(absl::Seconds(60)));
    begun(nullptr);
    return absl::CancelledError("interrupted");
  };
  LocalSteps steps({.key = {}, .sync = sync, .host = "127.0.0.1", .layout = "", .source_rank = 0, .steps = 100},
                   state.get(), ask, [] {});
  ASSERT_TRUE(steps.Start().ok());
  ASSERT_TRUE(steps.AfterStep(4).ok());
}

TEST(ReplicaServer, ServesOnlyWhoKnowsTheSecret) {
  OneParameter parameters(3);
  const auto state = OuterState::Create(&parameters, parameters.inventory, SyncOf(1, 1, 0)).value();
  const auto server = ReplicaServer::Start("127.0.0.1", state.get()).value();
  const uint64_t base = 0, later = 1;
  const auto code = [&](const std::string& secret, const uint64_t* of) {
    return FetchFrom(server->address(), secret, 0, of, 1, absl::Seconds(10), [](const auto&) {}).status().code();
  };
  EXPECT_EQ(code("", nullptr), absl::StatusCode::kUnauthenticated) << "none is set yet";
  server->UseSecret("s3cret");
  EXPECT_EQ(code("", nullptr), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(code("s3creT", nullptr), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(code("s3cret", nullptr), absl::StatusCode::kOk);
  EXPECT_EQ(code("s3cret", &base), absl::StatusCode::kNotFound);
  const std::string large(3'000'000, 'x');
  server->Offer(0, 0, 1, std::make_shared<const std::string>(large));
  EXPECT_EQ(FetchFrom(server->address(), "s3cret", 0, &base, 1, absl::Seconds(10), [](const auto&) {})->bytes, large);
  EXPECT_EQ(code("s3cret", &later), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace muster::trainer
