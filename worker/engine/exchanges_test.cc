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
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "models/inventory.h"
#include "worker/collectives/threads.h"
#include "worker/engine/configure.h"
#include "worker/engine/engine.h"
#include "worker/engine/failed.h"
#include "worker/engine/group_of_others_test.h"
#include "worker/engine/tensor_exchanges.h"

namespace muster::engine {
namespace {

TEST(Exchanges, GatherInRankOrderAndSum) {
  const auto groups = collectives::MakeThreads(3);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      Recorder recorder(/*cuda=*/false);
      Exchanges exchanges(groups[static_cast<size_t>(rank)].get(), &recorder, /*progress=*/nullptr);
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
  Recorder recorder(/*cuda=*/false);
  Exchanges exchanges(&group, &recorder, /*progress=*/nullptr);
  exchanges.Gather(at::ones({2}));
  exchanges.Sum(at::ones({2}));
  EXPECT_GE(exchanges.TakeWaitedSeconds(), 4e-3);
  EXPECT_EQ(exchanges.TakeWaitedSeconds(), 0);
}

struct Seen {
  std::string name;
  double begin, end;  // milliseconds
  bool exchange;
};
std::vector<Seen> SpansOf(Recorder& recorder) {
  std::vector<Seen> seen;
  for (const OpSpan& span : recorder.Take()) {
    const auto ms = [](SteadyPoint at) {
      return std::chrono::duration<double, std::milli>(at.time_since_epoch()).count();
    };
    seen.push_back({span.name, ms(span.begin), ms(span.end), span.exchange});
  }
  return seen;
}

// A trace tells waiting from computing: a sum is under way for 2 ms of computing and 2 ms of waiting, then a gather for
// 2 ms of waiting.
TEST(TensorExchanges, AreSpansInsideTheOp) {
  Slow group;
  Recorder recorder(/*cuda=*/false);
  TensorExchanges exchanges(&group, "others", &recorder, /*progress=*/nullptr);
  const auto compute = [] { EXPECT_TRUE(Slow().AllReduce({})->Wait().ok()); };
  recorder.Start();
  recorder.Begin();
  exchanges.StartSum(at::ones({2}));
  compute();
  exchanges.Finish();
  exchanges.Gather(at::ones({1}), at::ones({1}));
  compute();
  exchanges.Finish();  // of nothing
  recorder.End("Forward");
  const std::vector<Seen> spans = SpansOf(recorder);
  std::vector<std::string> names;
  for (const Seen& span : spans) names.push_back(span.name);
  ASSERT_EQ(names, (std::vector<std::string>{"Wait", "AllReduce", "Wait", "AllGather", "Forward"}));
  const Seen &wait = spans[0], &sum = spans[1], &second_wait = spans[2], &gather = spans[3], &op = spans[4];
  for (const Seen* span : {&wait, &sum, &second_wait, &gather}) EXPECT_TRUE(span->exchange) << span->name;
  EXPECT_FALSE(op.exchange);
  EXPECT_GE(wait.end - wait.begin, 2);
  EXPECT_GE(wait.begin - sum.begin, 2) << "it is under way while the op computes";
  EXPECT_GE(sum.end, wait.end);
  EXPECT_GE(second_wait.begin, sum.end);
  EXPECT_GE(second_wait.begin, gather.begin);
  EXPECT_GE(gather.end, second_wait.end);
  EXPECT_LE(op.begin, sum.begin);
  EXPECT_GE(op.end, gather.end + 2);
  // What becomes part of a graph is not recorded, and neither is anything without a trace.
  recorder.Start();
  recorder.Begin();
  {
    const Recorder::Pause outer(&recorder);
    { const Recorder::Pause inner(&recorder); }
    exchanges.Sum(at::ones({2}));
  }
  recorder.End("Prepare");
  ASSERT_EQ(recorder.Take().size(), 1u);
  exchanges.Sum(at::ones({2}));
  EXPECT_TRUE(recorder.Take().empty());
  EXPECT_GE(exchanges.TakeWaitedSeconds(), 8e-3);
}

// Before the waits: a rank that hangs in one of them has begun as many as those that wait for it.
TEST(Exchanges, ShowEachWaitOnTheProgressPage) {
  struct Waits final : OpListener {
    void Begin(int32_t, OpKind) override {}
    void WaitFor(int32_t, OpKind) override {}
    void EndWait(int32_t, OpKind) override {}
    void EndStep() override {}
    void Exchange() override { ++begun; }
    int begun = 0;
  } waits;
  struct Work final : collectives::Work {
    explicit Work(const Waits* seen) : seen(seen) {}
    absl::Status Wait() override {
      EXPECT_EQ(seen->begun, 1);
      return absl::OkStatus();
    }
    bool done() const override { return true; }
    const Waits* seen;
  };
  struct Group final : GroupOfOthers {
    explicit Group(const Waits* seen) : GroupOfOthers(0, 2), seen(seen) {}
    std::unique_ptr<collectives::Work> AllReduce(at::Tensor) override { return std::make_unique<Work>(seen); }
    const Waits* seen;
  } group(&waits);
  Recorder recorder(/*cuda=*/false);
  TensorExchanges shares(&group, "others", &recorder, &waits);
  TensorExchanges tokens(&group, "others", &recorder, &waits);
  shares.StartSum(at::ones({2}));
  shares.StartSum(at::ones({2}));
  EXPECT_EQ(waits.begun, 0) << "it computes";
  shares.Finish();
  EXPECT_EQ(waits.begun, 1);
  shares.Finish();
  EXPECT_EQ(waits.begun, 1) << "of nothing";
  waits.begun = 0;
  tokens.Sum(at::ones({2}));
  EXPECT_EQ(waits.begun, 1);
  waits.begun = 0;
  Exchanges samples(&group, &recorder, &waits);
  samples.Sum(at::ones({2}));
  EXPECT_EQ(waits.begun, 1);
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

// A pass of two samples, with three targets each, on the first of two tensor ranks. Of each sample it sums 16 bytes,
// contributes 8 to an all-gather and receives 12 of a scattered sum; and it sums 4 bytes of any number of samples.
struct TensorPass {
  std::vector<int64_t> sums = {8, 1};  // elements of each
  std::vector<int64_t> gathers = {4};  // this rank's
  std::vector<int64_t> scatters = {12};
  bool finishes = true;
};

// Empty: it is what is declared.
std::string RunPass(const TensorPass& pass, const Unit& unit, Pass kind = Pass::kForward, bool evaluation = false,
                    bool narrow = false, int64_t samples = 2) {
  Inventory inventory;
  inventory.mutable_task()->set_targets_per_sample(3);
  GroupOfOthers group(0, 2);
  Recorder recorder(/*cuda=*/false);
  TensorExchanges exchanges(&group, "others", &recorder, /*progress=*/nullptr);
  exchanges.Begin();
  for (const int64_t elements : pass.sums) exchanges.Sum(at::zeros({elements}));
  for (const int64_t elements : pass.gathers) exchanges.Gather(at::zeros({elements}), at::zeros({2 * elements}));
  for (const int64_t elements : pass.scatters) exchanges.StartSumScattered(at::zeros({elements}));
  if (pass.finishes) exchanges.Finish();
  try {
    exchanges.End(unit.tensor_exchange(), inventory, unit, kind, evaluation, narrow, samples);
  } catch (const Failed& failed) {
    EXPECT_EQ(failed.status.code(), absl::StatusCode::kInternal);
    return std::string(failed.status.message());
  }
  return "";
}

Unit UnitThatExchanges() {
  Unit unit;
  TensorExchange::Pass& forward = *unit.mutable_tensor_exchange()->mutable_forward();
  forward.set_collectives(4);
  forward.set_summed_bytes(16), forward.set_gathered_bytes(8), forward.set_scattered_bytes(12);
  forward.set_constant_bytes(4);
  return unit;
}

TEST(TensorExchanges, MustBeWhatTheInventoryDeclares) {
  const Unit unit = UnitThatExchanges();
  EXPECT_EQ(RunPass({}, unit), "");
  EXPECT_EQ(RunPass({}, unit, Pass::kRecompute), "");
  const std::pair<TensorPass, const char*> cases[] = {
      // Too few, the same bytes in fewer, too many, the same bytes in more.
      {{.sums = {8}}, "the unit summed 32, gathered 16 and scattered 24 bytes in 3 collectives with others"},
      {{.sums = {9}}, "the unit summed 36, gathered 16 and scattered 24 bytes in 3 collectives with others"},
      {{.sums = {8, 1, 1}}, "the unit summed 40, gathered 16 and scattered 24 bytes in 5 collectives with others"},
      {{.sums = {4, 4, 1}}, "the unit summed 36, gathered 16 and scattered 24 bytes in 5 collectives with others"},
      // As many, of another size.
      {{.sums = {8, 2}}, "the unit summed 40, gathered 16 and scattered 24 bytes in 4 collectives with others"},
      {{.sums = {7, 1}}, "the unit summed 32, gathered 16 and scattered 24 bytes in 4 collectives with others"},
      {{.gathers = {5}}, "the unit summed 36, gathered 20 and scattered 24 bytes in 4 collectives with others"},
      {{.gathers = {3}}, "the unit summed 36, gathered 12 and scattered 24 bytes in 4 collectives with others"},
      {{.scatters = {14}}, "the unit summed 36, gathered 16 and scattered 28 bytes in 4 collectives with others"},
      {{.scatters = {10}}, "the unit summed 36, gathered 16 and scattered 20 bytes in 4 collectives with others"},
      // A sum in place of an all-gather, and one that no Finish waited for.
      {{.sums = {8, 1, 4}, .gathers = {}}, "the unit summed 52, gathered 0 and scattered 24 bytes in 4 collectives"},
      {{.finishes = false}, "the unit summed 36, gathered 16 and scattered 24 bytes in 4 collectives with others"}};
  for (const auto& [pass, says] : cases) {
    const std::string refused = RunPass(pass, unit);
    EXPECT_TRUE(absl::StartsWith(refused, says)) << refused;
    EXPECT_TRUE(absl::EndsWith(refused, "the inventory declares 36, 16 and 24 in 4")) << refused;
  }
}

TEST(TensorExchanges, OfEachPassHaveTheirOwnDeclaration) {
  Unit unit = UnitThatExchanges();
  unit.mutable_tensor_exchange()->mutable_backward()->set_collectives(1);
  unit.mutable_tensor_exchange()->mutable_backward()->set_summed_bytes(20);
  unit.mutable_tensor_exchange()->mutable_evaluation()->set_collectives(2);
  unit.mutable_tensor_exchange()->mutable_evaluation()->set_gathered_bytes(12);
  const TensorPass backward = {.sums = {10}, .gathers = {}, .scatters = {}};
  const TensorPass evaluation = {.sums = {}, .gathers = {4, 2}, .scatters = {}};
  EXPECT_EQ(RunPass(backward, unit, Pass::kBackward), "");
  EXPECT_EQ(RunPass(evaluation, unit, Pass::kForward, /*evaluation=*/true), "");
  EXPECT_NE(RunPass({}, unit, Pass::kBackward), "");
  EXPECT_NE(RunPass(backward, unit), "");
  EXPECT_NE(RunPass(evaluation, unit), "");
  EXPECT_NE(RunPass({}, unit, Pass::kForward, /*evaluation=*/true), "");
}

// 6 rows by at most 2 are three pieces of 2. Each has a collective, and so has each of the three chunks of a sum.
TEST(TensorExchanges, GrowWithThePiecesOfTheRows) {
  Unit unit;
  unit.set_piece_rows(2);
  TensorExchange::Pass& forward = *unit.mutable_tensor_exchange()->mutable_forward();
  forward.set_collectives(1), forward.set_piece_collectives(1), forward.set_chunked_collectives(1);
  forward.set_summed_bytes(16);
  TensorPass pass = {.sums = {1, 1, 1, 1, 1, 1, 2}, .gathers = {}, .scatters = {}};
  EXPECT_EQ(RunPass(pass, unit), "");
  pass.sums = {1, 1, 1, 1, 1, 3};
  EXPECT_NE(RunPass(pass, unit), "");
  unit.set_piece_rows(3);  // two pieces
  EXPECT_NE(RunPass(pass, unit), "");
  pass.sums = {1, 1, 1, 1, 4};
  EXPECT_EQ(RunPass(pass, unit), "");
}

// What GEMMs compute in two bytes has half of the declared ones, and what they do not has all of them.
TEST(TensorExchanges, OfTwoBytesHaveHalfToAllOfWhatIsDeclared) {
  const Unit unit = UnitThatExchanges();
  const auto narrow = [&](const TensorPass& pass) {
    return RunPass(pass, unit, Pass::kForward, /*evaluation=*/false, /*narrow=*/true);
  };
  const TensorPass half = {.sums = {4, 1}, .gathers = {2}, .scatters = {6}};
  EXPECT_EQ(narrow(half), "");
  EXPECT_EQ(narrow({}), "");
  EXPECT_NE(RunPass(half, unit), "");
  EXPECT_NE(narrow({.sums = {3, 1}, .gathers = {2}, .scatters = {6}}), "");
  EXPECT_NE(narrow({.sums = {4, 1}, .gathers = {1}, .scatters = {6}}), "");
  EXPECT_NE(narrow({.sums = {4, 1}, .gathers = {2}, .scatters = {4}}), "");
  EXPECT_NE(narrow({.sums = {9, 1}, .gathers = {2}, .scatters = {6}}), "");
}

TEST(TensorExchanges, OfNoSamplesAreNone) {
  const Unit unit = UnitThatExchanges();
  EXPECT_EQ(RunPass({.sums = {}, .gathers = {}, .scatters = {}}, unit, Pass::kForward, false, false, 0), "");
  EXPECT_NE(RunPass({.sums = {1}, .gathers = {}, .scatters = {}}, unit, Pass::kForward, false, false, 0), "");
}

}  // namespace
}  // namespace muster::engine
