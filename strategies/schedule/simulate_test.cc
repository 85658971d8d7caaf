#include "strategies/schedule/simulate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "models/inventory.h"
#include "strategies/schedule/build.h"

namespace muster {
namespace {

Op Compute(Waits waits = {}) {
  return {.kind = OpKind::kForward, .unit = 0, .microbatch = 0, .waits = std::move(waits)};
}
Op Collective(Stream stream, Waits waits = {}) {
  return {.kind = OpKind::kReduce, .stream = stream, .unit = 0, .unit_end = 1, .group = 1, .waits = std::move(waits)};
}

// Known by hand: begin and end of each op.
TEST(Simulate, Table) {
  using Times = std::vector<std::pair<double, double>>;
  struct Case {
    const char* name;
    std::vector<Op> ops;
    std::vector<OpCost> costs;
    Sharing sharing;
    Times times;
    double communication, exposed;
  };
  const Sharing links = Sharing::kLinks, processor = Sharing::kProcessor;
  const std::vector<Case> cases = {
      {"one after another", {Compute(), Compute()}, {{1, 2}, {0, 3}}, links, {{0, 3}, {3, 6}}, 0, 0},
      {"a collective overlaps compute",
       {Compute(), Collective(Stream::kReduce, {0}), Compute()},
       {{0, 1}, {1, 2}, {0, 4}},
       links,
       {{0, 1}, {1, 4}, {1, 5}},
       3,
       0},
      {"what is not overlapped is exposed",
       {Compute(), Collective(Stream::kReduce, {0}), Compute(), Compute({1})},
       {{0, 1}, {0, 5}, {0, 2}, {0, 1}},
       links,
       {{0, 1}, {1, 6}, {1, 3}, {6, 7}},
       5,
       3},
      {"two collectives share the links, compute does not",
       {Collective(Stream::kGather), Collective(Stream::kReduce), Compute()},
       {{0, 2}, {0, 3}, {0, 4}},
       links,
       {{0, 4}, {0, 5}, {0, 4}},  // 2 at half speed, then 1 alone
       5,
       1},
      {"latencies are not shared",
       {Collective(Stream::kGather), Collective(Stream::kReduce)},
       {{2, 0}, {0, 3}},
       links,
       {{0, 2}, {0, 3}},
       3,
       3},
      {"all share a processor",
       {Compute(), Collective(Stream::kReduce), Compute()},
       {{0, 2}, {0, 3}, {0, 1}},
       processor,
       {{0, 4}, {0, 6}, {4, 6}},
       6,
       0},
      {"what moves bytes takes its part of the processor",
       {Compute(), Collective(Stream::kReduce)},
       {{0, 3}, {0, 4, /*network=*/true, /*processor=*/2}},
       processor,
       {{0, 5}, {0, 4}},  // half speed while it travels
       4,
       0},
      {"and is slower than the network where the processor is",
       {Collective(Stream::kReduce)},
       {{0, 2, /*network=*/true, /*processor=*/3}},
       processor,
       {{0, 3}},
       3,
       3},
      {"an op is prepared while the one before it travels",
       {Collective(Stream::kReduce), Collective(Stream::kReduce)},
       {{0, 4, /*network=*/true, 0, /*preparing=*/1}, {0, 4, /*network=*/true, 0, /*preparing=*/2}},
       processor,
       {{1, 5}, {5, 9}},
       9,
       9},
      {"what prepares an op shares the processor with what computes",
       {Compute(), Collective(Stream::kReduce)},
       {{0, 2}, {0, 1, /*network=*/true, 0, /*preparing=*/2}},
       processor,
       {{0, 4}, {4, 5}},
       5,
       1},
      {"and begins when what the op waits for has ended",
       {Compute(), Collective(Stream::kReduce, {0}), Compute()},
       {{0, 2}, {0, 3, /*network=*/true, /*processor=*/3, /*preparing=*/1}, {0, 4}},
       processor,
       {{0, 2}, {4, 10}, {2, 10}},  // half speed by turns with the preparation, then with the bytes
       8,
       0},
      {"an op may begin while one before it waits, and shares the links with it",
       {Collective(Stream::kReduce), Collective(Stream::kReduce)},
       {{3, 2, /*network=*/true}, {3, 2, /*network=*/true, 0, 0, /*in_flight=*/2}},
       processor,
       {{0, 7}, {0, 7}},
       7,
       7},
      {"but ends after it",
       {Collective(Stream::kReduce), Collective(Stream::kReduce), Compute({1})},
       {{5, 0}, {1, 0, /*network=*/true, 0, 0, /*in_flight=*/2}, {0, 1}},
       processor,
       {{0, 5}, {0, 5}, {5, 6}},
       5,
       5},
      {"and not with more than so many",
       {Collective(Stream::kReduce), Collective(Stream::kReduce), Collective(Stream::kReduce)},
       {{2, 0}, {4, 0, /*network=*/true, 0, 0, /*in_flight=*/2}, {1, 0, /*network=*/true, 0, 0, /*in_flight=*/2}},
       processor,
       {{0, 2}, {0, 4}, {2, 4}},
       4,
       4},
      {"ops without cost let others begin at once",
       {Compute(), Collective(Stream::kReduce, {0}), Compute({1})},
       {{0, 0}, {0, 0}, {0, 1}},
       links,
       {{0, 0}, {0, 0}, {0, 1}},
       0,
       0},
  };
  for (const Case& c : cases) {
    const Timeline t = Simulate({.ops = c.ops}, c.costs, c.sharing);
    Times times;
    double last = 0;
    for (const OpTime& op : t.ops) times.emplace_back(op.begin, op.end), last = std::max(last, op.end);
    EXPECT_EQ(times, c.times) << c.name;
    EXPECT_EQ(t.seconds, last) << c.name;
    EXPECT_EQ(t.communication, c.communication) << c.name;
    EXPECT_EQ(t.exposed, c.exposed) << c.name;
  }
}

// Over random schedules and costs: no op overtakes its waits or its stream, no stream is busier than the step is long,
// and the step is no longer than all ops in sequence.
TEST(Simulate, KeepsTheOrderOfStreamsAndWaits) {
  std::mt19937 random(11);
  Model model;
  model.mutable_gpt2()->set_size(GPT2_SIZE_TINY);
  for (int i = 0; i < 60; ++i) {
    model.mutable_gpt2()->set_layers(1 + random() % 8);
    const Inventory inventory = *models::MakeInventory(model);
    ScheduleRecipe shape{.microbatches = 1 + static_cast<int32_t>(random() % 3),
                         .parameters = static_cast<Parameters>(random() % 4),
                         .gradients = static_cast<Gradients>(random() % 2),
                         .sharded = true,
                         .replicated = random() % 2 == 0,
                         .recompute = random() % 2 == 0,
                         .prefetch = static_cast<int32_t>(random() % 3)};
    const Schedule schedule = Build(inventory, shape);
    std::vector<OpCost> costs;
    double all = 0, computing = 0;
    for (const Op& op : schedule.ops) {
      costs.push_back({static_cast<double>(random() % 3), static_cast<double>(random() % 5)});
      if (op.stream == Stream::kReduce) {
        costs.back().preparing = static_cast<double>(random() % 3);
        costs.back().in_flight = 1 + static_cast<uint32_t>(random() % 2);
      }
      all += costs.back().preparing + costs.back().latency + costs.back().work;
      if (op.stream == Stream::kCompute) computing += costs.back().latency + costs.back().work;
    }
    for (const Sharing sharing : {Sharing::kLinks, Sharing::kProcessor}) {
      const Timeline t = Simulate(schedule, costs, sharing);
      std::array<double, kStreams> last{};
      for (size_t op = 0; op < schedule.ops.size(); ++op) {
        double& before = last[static_cast<size_t>(schedule.ops[op].stream)];
        ASSERT_GE(costs[op].in_flight > 1 ? t.ops[op].end : t.ops[op].begin, before);
        before = t.ops[op].end;
        for (const int32_t wait : schedule.ops[op].waits) ASSERT_GE(t.ops[op].begin, t.ops[wait].end);
      }
      EXPECT_GE(t.seconds, computing - 1e-9);
      EXPECT_LE(t.seconds, all + 1e-9);
      for (const double busy : t.busy) EXPECT_LE(busy, t.seconds + 1e-9);
      EXPECT_LE(t.exposed, t.communication);
      EXPECT_NEAR(t.busy[0] + t.exposed, t.seconds, 1e-9) << "it computes, or waits for others";
    }
  }
}

}  // namespace
}  // namespace muster
