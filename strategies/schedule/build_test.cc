#include "strategies/schedule/build.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "models/inventory.h"
#include "strategies/partition/flat.h"
#include "strategies/schedule/check.h"
#include "strategies/schedule/layers_test.h"

namespace muster {
namespace {

std::vector<std::string> Lines(const Schedule& schedule, const Inventory& inventory) {
  return absl::StrSplit(Print(schedule, inventory), '\n', absl::SkipEmpty());
}

ScheduleRecipe FullShard() {
  return {.parameters = Parameters::kFreed, .gradients = Gradients::kOwned, .sharded = true};
}

TEST(Build, FullShardGathersAheadAndReducesBehind) {
  const Inventory inventory = Layers(2);
  EXPECT_THAT(
      Lines(Build(inventory, FullShard()), inventory),
      testing::ElementsAre("Gather embedding on gather in shards slot 2",          // 0
                           "Gather h.0 on gather in shards slot 0",                // 1
                           "Forward embedding m0 after 0",                         // 2
                           "Release embedding",                                    // 3
                           "Gather h.1 on gather in shards slot 1",                // 4
                           "Forward h.0 m0 after 1",                               // 5
                           "Release h.0",                                          // 6
                           "Gather embedding on gather in shards slot 2 after 3",  // 7: the head borrows from it
                           "Gather head on gather in shards slot 3",               // 8
                           "Forward h.1 m0 after 4",                               // 9: used again at once, so kept
                           "Gather h.0 on gather in shards slot 0 after 6",        // 10
                           "Forward head m0 after 8",                              // 11: and so after 7
                           "OpenGradients head slot 1",                            // 12
                           "OpenGradients embedding slot 2",                       // 13: the head adds to it
                           "Backward head m0",                                     // 14
                           "Release embedding",                                    // 15
                           "Release head",                                         // 16
                           "ReduceScalars on reduce in world after 14",            // 17
                           "Reduce head on reduce in shards after 14",             // 18
                           "OpenGradients h.1 slot 0",                             // 19
                           "Backward h.1 m0",                                      // 20
                           "Release h.1",                                          // 21
                           "Reduce h.1 on reduce in shards after 20",              // 22
                           "OpenGradients h.0 slot 1 after 18",                    // 23
                           "Backward h.0 m0 after 10",                             // 24
                           "Release h.0",                                          // 25
                           "Reduce h.0 on reduce in shards after 24",              // 26
                           "Backward embedding m0",                                // 27: reads no parameter
                           "Reduce embedding on reduce in shards after 27",        // 28
                           "GradientNorm in model after 28",                       // 29
                           "OptimizerStep"                                         // 30
                           ));
}

// At the end of the list of groups.
ScheduleRecipe WithShardLevels(ScheduleRecipe recipe) {
  recipe.groups.push_back({.axes = kShardsInside}), recipe.groups.push_back({.axes = kShardsBetween});
  recipe.shard_levels = {.inside = kGroups, .between = kGroups + 1};
  return recipe;
}
ScheduleRecipe WithReplicaLevels(ScheduleRecipe recipe) {
  const auto first = static_cast<int32_t>(recipe.groups.size());
  recipe.groups.push_back({.axes = kReplicasInside}), recipe.groups.push_back({.axes = kReplicasBetween});
  recipe.groups.push_back({.axes = kReplicasInside, .channel = Channel::kSums});
  recipe.replica_levels = {.inside = first, .between = first + 1, .sums = first + 2};
  return recipe;
}

// What is gathered between nodes is completed inside them, and what is reduced inside is completed between: the gather
// of the next unit, and the reduction of the one before, travel meanwhile.
TEST(Build, TwoLevelsGatherBetweenNodesFirstAndReduceInsideThemFirst) {
  const Inventory inventory = Layers(1);
  EXPECT_THAT(
      Lines(Build(inventory, WithShardLevels(FullShard())), inventory),
      testing::ElementsAre("GatherBetween embedding on gather between nodes in shards between nodes slot 1",  // 0
                           "Gather embedding on gather in shards of a node slot 1 after 0",                   // 1
                           "GatherBetween h.0 on gather between nodes in shards between nodes slot 0",        // 2
                           "Gather h.0 on gather in shards of a node slot 0 after 2",                         // 3
                           "Forward embedding m0 after 1",                                                    // 4
                           "GatherBetween head on gather between nodes in shards between nodes slot 2",       // 5
                           "Gather head on gather in shards of a node slot 2 after 5",                        // 6
                           "Forward h.0 m0 after 3",                                                          // 7
                           "Forward head m0 after 6",                                                         // 8
                           "OpenGradients head slot 2",                                                       // 9
                           "OpenGradients embedding slot 1",                                                  // 10
                           "Backward head m0",                                                                // 11
                           "Release embedding",                                                               // 12
                           "Release head",                                                                    // 13
                           "ReduceScalars on reduce in world after 11",                                       // 14
                           "ReduceInside head on reduce in shards of a node after 11",                        // 15
                           "Reduce head on reduce between nodes in shards between nodes after 15",            // 16
                           "OpenGradients h.0 slot 0",                                                        // 17
                           "Backward h.0 m0",                                                                 // 18
                           "Release h.0",                                                                     // 19
                           "ReduceInside h.0 on reduce in shards of a node after 18",                         // 20
                           "Reduce h.0 on reduce between nodes in shards between nodes after 20",             // 21
                           "Backward embedding m0",                                                           // 22
                           "ReduceInside embedding on reduce in shards of a node after 22",                   // 23
                           "Reduce embedding on reduce between nodes in shards between nodes after 23",       // 24
                           "GradientNorm in model after 24",                                                  // 25
                           "OptimizerStep"                                                                    // 26
                           ));
}

TEST(Build, SumsOverReplicasAreScatteredSummedAndGathered) {
  const Inventory inventory = Layers(1);
  const std::vector<std::string> lines = Lines(Build(inventory, WithReplicaLevels({.replicated = true})), inventory);
  EXPECT_THAT(std::vector<std::string>(lines.begin() + 3, lines.begin() + 8),
              testing::ElementsAre("Backward head m0",                          // 3
                                   "ReduceScalars on reduce in world after 3",  // 4
                                   "ScatterGradients head on reduce in replicas of a node after 3",
                                   "AllReduce head on reduce between nodes in replicas between nodes after 5",
                                   "GatherGradients head on gather in replicas of a node, sums after 6"));
}

// The second exchange of a bucket comes when the first one of the next bucket is under way.
TEST(Build, SumsOfTwoExchangesFinishOneBucketLater) {
  const Inventory inventory = Layers(1);
  const Schedule flat = Build(inventory, {.replicated = true, .two_exchanges = true});
  EXPECT_TRUE(flat.two_exchanges);
  EXPECT_EQ(Check(flat, inventory), absl::OkStatus());
  const std::vector<std::string> lines = Lines(flat, inventory);
  EXPECT_THAT(std::vector<std::string>(lines.begin() + 3, lines.end()),
              testing::ElementsAre("Backward head m0",                                    // 3
                                   "ReduceScalars on reduce in world after 3",            // 4
                                   "AllReduce head on reduce in replicas after 3",        // 5
                                   "Backward h.0 m0",                                     // 6
                                   "AllReduce h.0 on reduce in replicas after 6",         // 7
                                   "FinishSum head on reduce in replicas after 5",        // 8
                                   "Backward embedding m0",                               // 9
                                   "AllReduce embedding on reduce in replicas after 9",   // 10
                                   "FinishSum h.0 on reduce in replicas after 7",         // 11
                                   "FinishSum embedding on reduce in replicas after 10",  // 12
                                   "GradientNorm after 12", "OptimizerStep"));
  const Schedule levels =
      Build(inventory, WithReplicaLevels({.replicated = true, .two_exchanges = true, .reduce_bytes = 1u << 30}));
  EXPECT_EQ(Check(levels, inventory), absl::OkStatus());
  const std::vector<std::string> one = Lines(levels, inventory);
  EXPECT_THAT(
      std::vector<std::string>(one.begin() + 7, one.end()),
      testing::ElementsAre("ScatterGradients embedding..head on reduce in replicas of a node after 6",             // 7
                           "AllReduce embedding..head on reduce between nodes in replicas between nodes after 7",  // 8
                           "FinishSum embedding..head on reduce between nodes in replicas between nodes after 8",  // 9
                           "GatherGradients embedding..head on gather in replicas of a node, sums after 9",        // 10
                           "GradientNorm after 10", "OptimizerStep"));
}

// The head borrows from the embedding, which is gathered for its backward, too.
TEST(Build, AFrozenFrontIsGatheredForItsForwardAlone) {
  const Inventory inventory = Frozen(Layers(2), 0, 2);
  EXPECT_THAT(
      Lines(Build(inventory, FullShard()), inventory),
      testing::ElementsAre("Gather embedding on gather in shards slot 2",          // 0
                           "Gather h.0 on gather in shards slot 0",                // 1
                           "Forward embedding m0 after 0",                         // 2
                           "Release embedding",                                    // 3
                           "Gather h.1 on gather in shards slot 1",                // 4
                           "Forward h.0 m0 after 1",                               // 5
                           "Release h.0",                                          // 6
                           "Gather embedding on gather in shards slot 2 after 3",  // 7: the head borrows from it
                           "Gather head on gather in shards slot 0 after 6",       // 8
                           "Forward h.1 m0 after 4",                               // 9: used again at once, so kept
                           "Forward head m0 after 8",                              // 10
                           "OpenGradients head slot 1",  // 11: and none of the embedding, which is frozen
                           "Backward head m0",           // 12
                           "Release embedding",          // 13
                           "Release head",               // 14
                           "ReduceScalars on reduce in world after 12",  // 15
                           "Reduce head on reduce in shards after 12",   // 16
                           "OpenGradients h.1 slot 0",                   // 17
                           "Backward h.1 m0",                            // 18: the first one that is trained
                           "Release h.1",                                // 19
                           "Reduce h.1 on reduce in shards after 18",    // 20
                           "GradientNorm in model after 20",             // 21
                           "OptimizerStep"                               // 22
                           ));
}

// One rank, whose gradients and perhaps parameters are in host memory.
ScheduleRecipe Alone(Offloaded offloaded) {
  return {.parameters = offloaded == Offloaded::kParameters ? Parameters::kFreed : Parameters::kWhole,
          .gradients = Gradients::kOwned,
          .offloaded = offloaded};
}

TEST(Build, OneRankFetchesParametersAndOffloadsGradients) {
  const Inventory inventory = Layers(1);
  EXPECT_THAT(Lines(Build(inventory, Alone(Offloaded::kParameters)), inventory),
              testing::ElementsAre("Fetch embedding on fetch slot 1",            // 0
                                   "Fetch h.0 on fetch slot 0",                  // 1
                                   "Forward embedding m0 after 0",               // 2: and kept for the head
                                   "Fetch head on fetch slot 2",                 // 3
                                   "Forward h.0 m0 after 1",                     // 4
                                   "Forward head m0 after 3",                    // 5
                                   "OpenGradients head slot 2",                  // 6
                                   "OpenGradients embedding slot 1",             // 7
                                   "Backward head m0",                           // 8
                                   "Release embedding",                          // 9
                                   "Release head",                               // 10
                                   "Offload head m0 on transfer after 8",        // 11
                                   "OpenGradients h.0 slot 0",                   // 12
                                   "Backward h.0 m0",                            // 13
                                   "Release h.0",                                // 14
                                   "Offload h.0 m0 on transfer after 13",        // 15
                                   "Backward embedding m0",                      // 16
                                   "Offload embedding m0 on transfer after 16",  // 17
                                   "GradientNorm after 17",                      // 18
                                   "OptimizerStep embedding",                    // 19
                                   "OptimizerStep h.0",                          // 20
                                   "OptimizerStep head"));                       // 21
}

// The device keeps its part of the parameters: it is fetched after each bucket's step, beside the next one's.
TEST(Build, ShardsAreFetchedAfterTheirStepOnTheHost) {
  const Inventory inventory = Layers(1);
  ScheduleRecipe recipe = FullShard();
  recipe.offloaded = Offloaded::kOptimizer;
  std::vector<std::string> lines = Lines(Build(inventory, recipe), inventory);
  const auto norm =
      std::find_if(lines.begin(), lines.end(), [](const std::string& l) { return l.starts_with("Grad"); });
  ASSERT_NE(norm, lines.end());
  const auto at = [&](int i) { return std::to_string(norm - lines.begin() + i); };
  EXPECT_THAT(std::vector<std::string>(norm - 2, lines.end()),
              testing::ElementsAre(
                  "Reduce embedding on reduce in shards after " + at(-3),
                  "Offload embedding m0 on transfer after " + at(-2), "GradientNorm in model after " + at(-1),
                  "OptimizerStep embedding", "Fetch embedding on fetch after " + at(1), "OptimizerStep h.0",
                  "Fetch h.0 on fetch after " + at(3), "OptimizerStep head", "Fetch head on fetch after " + at(5)));
}

// Regression: each step of a bucket was compared with every op that offloads a gradient, here 16,384 with 262,144,
// which took many seconds. Four ops for each unit and microbatch come before the norm.
TEST(Check, StepsOfManyBucketsTakeLittleTime) {
  Inventory inventory;
  for (int u = 0; u < 16'384; ++u) {
    Unit& unit = *inventory.add_units();
    unit.set_name(std::to_string(u));
    unit.add_tensors()->add_shape(64);
  }
  ScheduleRecipe recipe = Alone(Offloaded::kOptimizer);
  recipe.microbatches = 16;
  Schedule schedule = Build(inventory, recipe);
  EXPECT_EQ(std::count_if(schedule.ops.begin(), schedule.ops.end(),
                          [](const Op& op) { return op.kind == OpKind::kOptimizerStep; }),
            16'384);
  EXPECT_EQ(Check(schedule, inventory), absl::OkStatus());
  // The last step, on a stream of its own, waits for nothing.
  Op& step = schedule.ops[schedule.ops.size() - 2];
  ASSERT_EQ(step.kind, OpKind::kOptimizerStep);
  step.stream = Stream::kReduce, step.waits.clear();
  const absl::Status refused = Check(schedule, inventory);
  EXPECT_TRUE(absl::StrContains(refused.message(), "does not wait for op 1048575 (Offload 0 m15")) << refused;
}

// Each input is on the host from its unit's forward to the backward of the unit after it. The head keeps only its input
// anyway, so there is nothing to recompute.
TEST(Build, InputsOfRecomputedUnitsAreOffloadedInBetween) {
  const Inventory inventory = Layers(3);
  const Schedule schedule = Build(inventory, {.microbatches = 2, .recompute = true, .offload_inputs = true});
  EXPECT_EQ(schedule.input_slots, 2);
  EXPECT_EQ(schedule.host_input_slots, 3);
  const std::vector<std::string> lines = Lines(schedule, inventory);
  EXPECT_THAT(std::vector<std::string>(lines.begin(), lines.begin() + 27),
              testing::ElementsAre("Forward embedding m0",                              // 0
                                   "Forward h.0 m0",                                    // 1
                                   "OffloadInput h.0 m0 on transfer slot 0 after 0",    // 2: beside the forward
                                   "Forward h.1 m0",                                    // 3
                                   "OffloadInput h.1 m0 on transfer slot 1 after 1",    // 4
                                   "ReleaseInput h.0 m0 after 2",                       // 5
                                   "Forward h.2 m0",                                    // 6
                                   "OffloadInput h.2 m0 on transfer slot 2 after 3",    // 7
                                   "ReleaseInput h.1 m0 after 4",                       // 8
                                   "Forward head m0",                                   // 9
                                   "ReleaseInput h.2 m0 after 7",                       // 10
                                   "FetchInput h.2 m0 on fetch slot 0 after 7",         // 11
                                   "Backward head m0",                                  // 12
                                   "FetchInput h.1 m0 on fetch slot 1 after 4",         // 13
                                   "Recompute h.2 m0 after 11",                         // 14
                                   "Backward h.2 m0",                                   // 15
                                   "FetchInput h.0 m0 on fetch slot 0 after 15",        // 16: and so after 2
                                   "Recompute h.1 m0 after 13",                         // 17
                                   "Backward h.1 m0",                                   // 18
                                   "Recompute h.0 m0 after 16",                         // 19
                                   "Backward h.0 m0",                                   // 20
                                   "Backward embedding m0",                             // 21
                                   "Forward embedding m1",                              // 22
                                   "Forward h.0 m1",                                    // 23
                                   "OffloadInput h.0 m1 on transfer slot 0 after 22",   // 24: and so after 16
                                   "Forward h.1 m1",                                    // 25
                                   "OffloadInput h.1 m1 on transfer slot 1 after 23"))  // 26
      << Print(schedule, inventory);
}

// Where the first unit keeps its output, as autograd does, the input of the second one stays on the device.
TEST(Build, AnInputThatTheUnitBeforeKeepsIsNotOffloaded) {
  Inventory inventory = Layers(3);
  const auto offloaded = [&] {
    std::vector<int32_t> units;
    const Schedule schedule = Build(inventory, {.recompute = true, .offload_inputs = true});
    EXPECT_EQ(Check(schedule, inventory), absl::OkStatus());
    for (const Op& op : schedule.ops) {
      if (op.kind == OpKind::kOffloadInput) units.push_back(op.unit);
    }
    return units;
  };
  EXPECT_THAT(offloaded(), testing::ElementsAre(1, 2, 3));
  inventory.mutable_units(0)->set_frees_output(false);
  EXPECT_THAT(offloaded(), testing::ElementsAre(2, 3));
  // A unit without a backward keeps nothing.
  inventory = Frozen(inventory, 0, 1);
  EXPECT_THAT(offloaded(), testing::ElementsAre(1, 2, 3));
}

// The last reductions overlap nothing, so small buckets are flushed early there, wherever the backward ends.
TEST(Build, SmallBucketsAreFlushedWhereTheBackwardEnds) {
  const auto reduced = [](const Inventory& inventory) {
    std::vector<std::pair<int32_t, int32_t>> spans;
    for (const Op& op : Build(inventory, {.replicated = true, .reduce_bytes = 5 << 20}).ops) {
      if (op.kind == OpKind::kAllReduce) spans.emplace_back(op.unit, op.unit_end);
    }
    return spans;
  };
  // A block has 0.76 MiB.
  const std::vector<std::pair<int32_t, int32_t>> whole = {{6, 14}, {2, 6}, {0, 2}}, upper = {{8, 14}, {6, 8}};
  EXPECT_EQ(reduced(Layers(12)), whole);
  EXPECT_EQ(reduced(Frozen(Layers(12), 0, 6)), upper);
}

// Nothing is frozen, or the first units, or one in the middle.
Inventory RandomLayers(std::mt19937& random, uint32_t most) {
  const int layers = 1 + static_cast<int>(random() % most);
  Inventory inventory = Layers(static_cast<uint32_t>(layers));
  if (random() % 2 == 0)
    inventory = Frozen(inventory, 0, 1 + static_cast<int>(random() % static_cast<uint32_t>(layers + 1)));
  const int middle = 1 + static_cast<int>(random() % static_cast<uint32_t>(layers));
  return random() % 4 == 0 ? Frozen(inventory, middle, middle + 1) : inventory;
}

ScheduleRecipe Random(std::mt19937& random) {
  ScheduleRecipe recipe;
  recipe.microbatches = 1 + static_cast<int32_t>(random() % 4);
  recipe.sharded = random() % 4 != 0;
  recipe.replicated = !recipe.sharded || random() % 2 == 0;
  if (recipe.sharded) {
    recipe.parameters = static_cast<Parameters>(1 + random() % 3);
    recipe.gradients = static_cast<Gradients>(random() % 2);
  }
  if (random() % 3 == 0) {
    const bool kept = recipe.parameters == Parameters::kWhole || recipe.parameters == Parameters::kUpdated;
    recipe.offloaded = kept || random() % 2 == 0 ? Offloaded::kOptimizer : Offloaded::kParameters;
    if (random() % 4 == 0) recipe = Alone(recipe.offloaded);
  }
  recipe.recompute = random() % 2 == 0;
  recipe.offload_inputs = recipe.recompute && random() % 2 == 0;
  recipe.prefetch = static_cast<int32_t>(random() % 5);
  recipe.gather_bytes = random() % 2 == 0 ? 0 : random() % (8 << 20);
  recipe.reduce_bytes = random() % 2 == 0 ? 0 : random() % (8 << 20);
  if (recipe.sharded && random() % 2 == 0) recipe = WithShardLevels(recipe);
  if (recipe.replicated && random() % 2 == 0) recipe = WithReplicaLevels(recipe);
  recipe.two_exchanges = recipe.replicated && recipe.offloaded == Offloaded::kNothing && random() % 3 == 0;
  return recipe;
}

TEST(Build, EveryShapeIsProven) {
  std::mt19937 random(11);
  for (int i = 0; i < 1000; ++i) {
    const Inventory inventory = RandomLayers(random, 12);
    const ScheduleRecipe recipe = Random(random);
    const Schedule schedule = Build(inventory, recipe);
    ASSERT_EQ(Check(schedule, inventory), absl::OkStatus()) << i << "\n" << Print(schedule, inventory);
    const Schedule evaluation = BuildEvaluation(inventory, recipe);
    ASSERT_EQ(Check(evaluation, inventory), absl::OkStatus()) << i;
    std::map<int32_t, int32_t> slots;
    for (const Op& op : schedule.ops) {
      if (op.kind == OpKind::kGather) slots[op.unit] = op.slot;
    }
    for (const Op& op : evaluation.ops) {
      ASSERT_TRUE(op.kind != OpKind::kGather || op.slot == slots.at(op.unit)) << i;
    }
    EXPECT_EQ(Digest(schedule), Digest(Build(inventory, recipe)));
  }
}

// Every wait is needed: without any one of them a rule is broken.
TEST(Build, NoWaitIsForgottenOrNeedless) {
  std::mt19937 random(5);
  int all = 0;
  for (int i = 0; i < 30; ++i) {
    const Inventory inventory = RandomLayers(random, 4);
    const Schedule schedule = Build(inventory, Random(random));
    for (size_t o = 0; o < schedule.ops.size(); ++o) {
      for (size_t w = 0; w < schedule.ops[o].waits.size(); ++w) {
        ++all;
        Schedule spoilt = schedule;
        spoilt.ops[o].waits.erase(spoilt.ops[o].waits.begin() + static_cast<std::ptrdiff_t>(w));
        EXPECT_FALSE(Check(spoilt, inventory).ok()) << i << ": op " << o << ": " << Print(schedule.ops[o], inventory)
                                                    << " need not wait for " << schedule.ops[o].waits[w];
      }
    }
  }
  EXPECT_GT(all, 300);
}

// At any time: the gathered units, and their bytes.
struct Resident {
  size_t units = 0;
  uint64_t bytes = 0;
};
Resident MostResident(const Schedule& schedule, const Inventory& inventory, bool blocks = false) {
  Resident most;
  std::set<int32_t> now;
  for (const Op& op : schedule.ops) {
    for (int32_t u = op.unit; u < op.unit_end; ++u) {
      if (op.kind == OpKind::kGather) now.insert(u);
      if (op.kind == OpKind::kRelease) now.erase(u);
    }
    uint64_t bytes = 0;
    for (const int32_t u : now) bytes += 4 * partition::Flatten(inventory.units(u)).elements;
    const auto ends = blocks ? now.count(0) + now.count(inventory.units_size() - 1) : 0;
    most.units = std::max(most.units, now.size() - ends);
    most.bytes = std::max(most.bytes, bytes);
  }
  return most;
}

uint64_t SlotBytes(const Schedule& schedule, const Inventory& inventory) {
  std::map<int32_t, uint64_t> slots;
  for (const Op& op : schedule.ops) {
    if (op.kind != OpKind::kGather) continue;
    uint64_t bytes = 0;
    for (int32_t u = op.unit; u < op.unit_end; ++u) bytes += 4 * partition::Flatten(inventory.units(u)).elements;
    slots[op.slot] = std::max(slots[op.slot], bytes);
  }
  uint64_t sum = 0;
  for (const auto& [slot, bytes] : slots) sum += bytes;
  return sum;
}

// The blocks are the units of the steady state; around the head, in slots of their own, are the head and the embedding
// that it borrows from.
TEST(Build, FullShardHoldsTwoUnitsAtPrefetchOne) {
  for (const uint32_t layers : {2u, 3u, 12u, 40u}) {
    const Inventory inventory = Layers(layers);
    const auto bytes = [&](int32_t u) { return 4 * partition::Flatten(inventory.units(u)).elements; };
    const uint64_t ends = bytes(0) + bytes(inventory.units_size() - 1);
    for (const int32_t microbatches : {1, 3}) {
      ScheduleRecipe recipe = FullShard();
      recipe.microbatches = microbatches;
      const Schedule schedule = Build(inventory, recipe);
      EXPECT_LE(MostResident(schedule, inventory, /*blocks=*/true).units, 2u) << layers;
      EXPECT_LE(MostResident(schedule, inventory).bytes, 2 * bytes(1) + ends) << layers;
      EXPECT_LE(SlotBytes(schedule, inventory), 2 * bytes(1) + ends) << layers;
      EXPECT_LE(MostResident(BuildEvaluation(inventory, recipe), inventory).bytes, 2 * bytes(1)) << layers;
    }
  }
}

TEST(Build, PrefetchOfNothingHoldsOneUnitAndWhatTheHeadBorrows) {
  const Inventory inventory = Layers(6);
  ScheduleRecipe recipe = FullShard();
  recipe.prefetch = 0;
  EXPECT_EQ(MostResident(Build(inventory, recipe), inventory).units, 2u);
}

TEST(Build, HeldGradientsAreReducedOnceAndOwnedOnesInEachMicrobatch) {
  const Inventory inventory = Layers(3);
  const auto reductions = [&](Gradients gradients) {
    ScheduleRecipe recipe = FullShard();
    recipe.microbatches = 4;
    recipe.gradients = gradients;
    const Schedule schedule = Build(inventory, recipe);
    return std::count_if(schedule.ops.begin(), schedule.ops.end(),
                         [](const Op& op) { return op.kind == OpKind::kReduce; });
  };
  EXPECT_EQ(reductions(Gradients::kWhole), inventory.units_size());
  EXPECT_EQ(reductions(Gradients::kOwned), 4 * inventory.units_size());
}

TEST(Build, KeptParametersAreGatheredOnceAStep) {
  const Inventory inventory = Layers(3);
  ScheduleRecipe recipe = FullShard();
  recipe.parameters = Parameters::kKept;
  recipe.microbatches = 3;
  const Schedule schedule = Build(inventory, recipe);
  EXPECT_EQ(
      std::count_if(schedule.ops.begin(), schedule.ops.end(), [](const Op& op) { return op.kind == OpKind::kGather; }),
      inventory.units_size());
}

TEST(Build, WrappedUnitsTravelTogether) {
  const Inventory inventory = Layers(8);
  ScheduleRecipe recipe = FullShard();
  recipe.gather_bytes = 3 * 4 * partition::Flatten(inventory.units(1)).elements;
  const Schedule schedule = Build(inventory, recipe);
  std::set<std::pair<int32_t, int32_t>> gathered, reduced;
  for (const Op& op : schedule.ops) {
    if (op.kind == OpKind::kGather) gathered.insert({op.unit, op.unit_end});
    if (op.kind == OpKind::kReduce) reduced.insert({op.unit, op.unit_end});
  }
  EXPECT_EQ(gathered, reduced);
  EXPECT_EQ(gathered, (std::set<std::pair<int32_t, int32_t>>{{0, 3}, {3, 6}, {6, 9}, {9, 10}}));
}

// One broken schedule for each rule about slots, gradients and replicas.
// In training on several ranks, and nowhere else.
TEST(Build, PassesOfUnitsThatExchangeNameTheirGroup) {
  const Inventory inventory = Exchanging();
  const ScheduleRecipe recipe{.microbatches = 2, .replicated = true, .recompute = true};
  const Schedule schedule = Build(inventory, recipe);
  int passes = 0;
  for (const Op& op : schedule.ops) {
    if (Traits(op.kind).pass == Pass::kNone) continue;
    EXPECT_EQ(op.group, op.unit == 1 || op.unit == 2 ? kExchangeGroup : -1) << Print(op, inventory);
    passes += op.group == kExchangeGroup ? 1 : 0;
  }
  EXPECT_EQ(passes, 2 * 2 * 3) << "microbatches, units, and forward, recomputation and backward";
  EXPECT_TRUE(UsesGroup(schedule, kExchangeGroup));
  EXPECT_FALSE(UsesGroup(BuildEvaluation(inventory, recipe), kExchangeGroup));
  EXPECT_FALSE(UsesGroup(Build(inventory, {}), kExchangeGroup)) << "one rank";
}

// The front's forwards exchange, and nothing goes back through it.
TEST(Build, AFrozenFrontExchangesForwardOnly) {
  const Inventory inventory = Frozen(Exchanging(), 0, 2);
  const Schedule schedule = Build(inventory, {.replicated = true, .recompute = true});
  EXPECT_EQ(Check(schedule, inventory), absl::OkStatus());
  std::vector<std::string> exchanges;
  for (const Op& op : schedule.ops) {
    if (op.group == kExchangeGroup)
      exchanges.push_back(std::string(Traits(op.kind).name) + " " + std::to_string(op.unit));
  }
  EXPECT_THAT(exchanges, testing::ElementsAre("Forward 1", "Forward 2", "Recompute 2", "Backward 2"));
}

TEST(Check, RefusesAPassWithoutItsGroupAndAGroupWithoutAnExchange) {
  const Inventory inventory = Exchanging();
  const Schedule right = Build(inventory, {.replicated = true});
  ASSERT_EQ(Check(right, inventory), absl::OkStatus());
  EXPECT_TRUE(absl::StrContains(Check(right, Layers(2)).message(), "the unit exchanges nothing"));
  for (size_t i = 0; i < right.ops.size(); ++i) {
    if (right.ops[i].group != kExchangeGroup) continue;
    Schedule wrong = right;
    for (const int32_t group : {-1, kWorldGroup}) {
      wrong.ops[i].group = group;
      EXPECT_TRUE(absl::StrContains(Check(wrong, inventory).message(), "the unit exchanges with other ranks"));
      EXPECT_NE(CollectivesDigest(right, kExchangeGroup), CollectivesDigest(wrong, kExchangeGroup));
    }
  }
}

// The nth such op.
std::vector<Op>::iterator Find(Schedule& s, OpKind kind, int32_t unit, int nth = 0) {
  return std::find_if(s.ops.begin(), s.ops.end(),
                      [&](const Op& op) { return op.kind == kind && op.unit == unit && nth-- == 0; });
}
// Keeps the waits of others valid: replaces the op by one that does nothing.
void Drop(std::vector<Op>::iterator op) { *op = {.kind = OpKind::kSnapshot, .stream = op->stream, .waits = op->waits}; }
// Each waits for what the other waited for.
void Swap(std::vector<Op>::iterator a, std::vector<Op>::iterator b) {
  std::iter_swap(a, b);
  std::swap(a->waits, b->waits);
}
struct Spoilt {
  std::string rule;
  std::function<void(Schedule&)> spoil;
};

TEST(Check, RefusesWhatTwoLevelsCanGetWrong) {
  const Inventory inventory = Layers(3);
  ScheduleRecipe recipe = FullShard();
  recipe.replicated = true;
  recipe = WithReplicaLevels(WithShardLevels(recipe));
  const std::vector<Spoilt> cases = {
      {"not what was gathered between nodes", [&](Schedule& s) { Drop(Find(s, OpKind::kGatherBetween, 1)); }},
      {"not what was gathered between nodes",
       [&](Schedule& s) { Swap(Find(s, OpKind::kGatherBetween, 1), Find(s, OpKind::kGather, 1)); }},
      {"within nodes, but not between them", [&](Schedule& s) { Find(s, OpKind::kGather, 1)->group = kShardGroup; }},
      {"not the ranks of one place", [&](Schedule& s) { Find(s, OpKind::kGatherBetween, 1)->group = kShardGroup; }},
      {"gathered twice",
       [&](Schedule& s) { s.ops.insert(Find(s, OpKind::kGather, 1), *Find(s, OpKind::kGatherBetween, 1)); }},
      {"not the ranks of a node", [&](Schedule& s) { Find(s, OpKind::kReduceInside, 1)->group = kShardGroup; }},
      {"reduced between nodes, or inside them, alone", [&](Schedule& s) { Drop(Find(s, OpKind::kReduceInside, 1)); }},
      {"reduced between nodes, or inside them, alone",
       [&](Schedule& s) { Find(s, OpKind::kReduce, 1)->group = kShardGroup; }},
      {"is not reduced to its owners", [&](Schedule& s) { Drop(Find(s, OpKind::kReduce, 1)); }},
      {"reduced inside nodes twice",
       [&](Schedule& s) { s.ops.insert(Find(s, OpKind::kReduce, 1), *Find(s, OpKind::kReduceInside, 1)); }},
      {"there is nothing to reduce",
       [&](Schedule& s) { s.ops.insert(Find(s, OpKind::kGradientNorm, -1), *Find(s, OpKind::kReduceInside, 1)); }},
      {"not the replicas of a node",
       [&](Schedule& s) { Find(s, OpKind::kScatterGradients, 1)->group = kReplicaGroup; }},
      {"is not scattered over its node", [&](Schedule& s) { Drop(Find(s, OpKind::kScatterGradients, 1)); }},
      {"is not summed between nodes", [&](Schedule& s) { Drop(Find(s, OpKind::kAllReduce, 1)); }},
      {"or not gathered after it", [&](Schedule& s) { Drop(Find(s, OpKind::kGatherGradients, 1)); }},
      {"comes twice",
       [&](Schedule& s) { s.ops.insert(Find(s, OpKind::kGradientNorm, -1), *Find(s, OpKind::kScatterGradients, 1)); }},
      {"or comes twice",
       [&](Schedule& s) { s.ops.insert(Find(s, OpKind::kGatherGradients, 1), *Find(s, OpKind::kAllReduce, 1)); }},
      {"does not wait for", [&](Schedule& s) { Find(s, OpKind::kGather, 1)->waits.clear(); }},
      {"does not wait for", [&](Schedule& s) { Find(s, OpKind::kReduce, 1)->waits.clear(); }},
      {"does not wait for", [&](Schedule& s) { Find(s, OpKind::kScatterGradients, 1)->waits.clear(); }},
      {"does not wait for", [&](Schedule& s) { Find(s, OpKind::kAllReduce, 1)->waits.clear(); }},
      {"does not wait for", [&](Schedule& s) { Find(s, OpKind::kGatherGradients, 1)->waits.clear(); }},
      {"is being reduced",  // before the last backward that adds to it
       [&](Schedule& s) {
         Op early = *Find(s, OpKind::kReduceInside, 0);
         const auto head = Find(s, OpKind::kBackward, 4);
         early.waits = {static_cast<int32_t>(head - s.ops.begin())};
         *Find(s, OpKind::kReduceScalars, -1) = early;
       }},
      {"not summed over the shards", [&](Schedule& s) { Find(s, OpKind::kGradientNorm, -1)->group = kGroups; }},
  };
  for (const Spoilt& test : cases) {
    Schedule schedule = Build(inventory, recipe);
    ASSERT_EQ(Check(schedule, inventory), absl::OkStatus());
    test.spoil(schedule);
    EXPECT_THAT(std::string(Check(schedule, inventory).message()), testing::HasSubstr(test.rule));
  }
}

TEST(Check, RefusesWhatTwoExchangesCanGetWrong) {
  const Inventory inventory = Layers(3);
  ScheduleRecipe recipe = FullShard();
  recipe.replicated = recipe.two_exchanges = true;
  const ScheduleRecipe levels = WithReplicaLevels(recipe);
  const std::vector<Spoilt> cases = {
      {"is not finished", [](Schedule& s) { Drop(Find(s, OpKind::kFinishSum, 1)); }},
      {"is not finished",  // when the norm is taken
       [](Schedule& s) { Swap(Find(s, OpKind::kFinishSum, 0), Find(s, OpKind::kGradientNorm, -1)); }},
      {"has no such sum to finish", [](Schedule& s) { s.two_exchanges = false; }},
      {"has no such sum to finish",
       [](Schedule& s) { s.ops.insert(Find(s, OpKind::kGradientNorm, -1), *Find(s, OpKind::kFinishSum, 1)); }},
      {"has no such sum to finish",
       [](Schedule& s) { Swap(Find(s, OpKind::kFinishSum, 1), Find(s, OpKind::kAllReduce, 1)); }},
      {"has no such sum to finish", [](Schedule& s) { Find(s, OpKind::kFinishSum, 1)->group = kShardGroup; }},
      {"has no such sum to finish", [](Schedule& s) { ++Find(s, OpKind::kFinishSum, 1)->unit_end; }},
      {"does not wait for", [](Schedule& s) { Find(s, OpKind::kFinishSum, 1)->waits.clear(); }},
  };
  for (const bool two_levels : {false, true}) {
    for (const Spoilt& test : cases) {
      Schedule schedule = Build(inventory, two_levels ? levels : recipe);
      ASSERT_EQ(Check(schedule, inventory), absl::OkStatus());
      test.spoil(schedule);
      EXPECT_THAT(std::string(Check(schedule, inventory).message()), testing::HasSubstr(test.rule)) << two_levels;
    }
  }
}

TEST(Check, RefusesWhatShardingCanGetWrong) {
  const Inventory inventory = Layers(3);
  ScheduleRecipe recipe = FullShard();
  recipe.replicated = true;
  recipe.microbatches = 2;
  const std::vector<Spoilt> cases = {
      {"has another one elsewhere",
       [&](Schedule& s) { ++s.slots, Find(s, OpKind::kGather, 1, 1)->slot = s.slots - 1; }},
      {"has another one elsewhere",
       [&](Schedule& s) { ++s.gradient_slots, Find(s, OpKind::kOpenGradients, 2, 1)->slot = s.gradient_slots - 1; }},
      {"no such slot", [&](Schedule& s) { Find(s, OpKind::kOpenGradients, 1)->slot = s.gradient_slots; }},
      {"are not open", [&](Schedule& s) { Drop(Find(s, OpKind::kOpenGradients, 1)); }},
      {"opened twice",
       [&](Schedule& s) {
         Op again = *Find(s, OpKind::kOpenGradients, 1);
         again.waits.clear();
         *Find(s, OpKind::kRelease, 1, 1) = again;
       }},
      {"still held by",
       [&](Schedule& s) {
         for (Op& op : s.ops) {
           if (op.kind == OpKind::kOpenGradients && op.unit == 1) op.slot = Find(s, OpKind::kOpenGradients, 0)->slot;
         }
       }},
      {"does not wait for", [&](Schedule& s) { Find(s, OpKind::kOpenGradients, 1, 1)->waits.clear(); }},
      {"is not summed over replicas", [&](Schedule& s) { Drop(Find(s, OpKind::kAllReduce, 2)); }},
      {"has been summed over replicas",
       [&](Schedule& s) { Swap(Find(s, OpKind::kAllReduce, 2), Find(s, OpKind::kReduce, 2, 1)); }},
      {"is not reduced to its owners",
       [&](Schedule& s) {
         ScheduleRecipe one = recipe;
         one.microbatches = 1;
         s = Build(inventory, one);
         Swap(Find(s, OpKind::kAllReduce, 2), Find(s, OpKind::kReduce, 2));
       }},
      {"comes twice", [&](Schedule& s) { s.ops.insert(s.ops.end() - 2, *Find(s, OpKind::kAllReduce, 2)); }},
      {"enters none", [&](Schedule& s) { Drop(Find(s, OpKind::kReduce, 0, 1)), Drop(Find(s, OpKind::kAllReduce, 0)); }},
      {"releases not what was gathered together",
       [&](Schedule& s) {
         for (Op& op : s.ops) {
           if (op.kind == OpKind::kGather && op.unit == 1) op.unit_end = 3;
           const Op nothing{.kind = OpKind::kSnapshot, .stream = op.stream};
           if (op.kind == OpKind::kGather && op.unit == 2) op = nothing;
         }
       }},
      {"are not gathered",
       [&](Schedule& s) { Find(s, OpKind::kGather, 1)->unit_end = 1, Drop(Find(s, OpKind::kGather, 1)); }},
      {"left gathered", [&](Schedule& s) { Drop(Find(s, OpKind::kRelease, 1, 3)); }},
      {"is in no slot and is reduced again",
       [&](Schedule& s) {
         ScheduleRecipe held = recipe;
         held.gradients = Gradients::kWhole;
         held.replicated = false;
         held.microbatches = 2;
         s = Build(inventory, held);
         // Also after the first microbatch's backward.
         Op early = *Find(s, OpKind::kReduce, 4);
         const auto first = Find(s, OpKind::kBackward, 4);
         early.waits = {static_cast<int32_t>(first - s.ops.begin())};
         for (Op& op : s.ops) {
           for (int32_t& w : op.waits) w += w > early.waits[0] ? 1 : 0;
         }
         s.ops.insert(first + 1, early);
       }},
  };
  for (const Spoilt& c : cases) {
    Schedule schedule = Build(inventory, recipe);
    ASSERT_EQ(Check(schedule, inventory), absl::OkStatus());
    c.spoil(schedule);
    const absl::Status status = Check(schedule, inventory);
    EXPECT_TRUE(absl::StrContains(status.message(), c.rule)) << c.rule << ": " << status;
  }
}

}  // namespace
}  // namespace muster
