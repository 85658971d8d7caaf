#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "models/inventory.h"
#include "strategies/schedule/build.h"
#include "strategies/schedule/check.h"
#include "strategies/schedule/layers_test.h"
#include "strategies/schedule/memory.h"

namespace muster {
namespace {

Schedule Single(const Inventory& inventory, int32_t microbatches) {
  return Build(inventory, {.microbatches = microbatches});
}

TEST(Schedule, PrintsOneOpALine) {
  const std::vector<std::string> lines =
      absl::StrSplit(Print(Single(Layers(1), 2), Layers(1)), '\n', absl::SkipEmpty());
  EXPECT_EQ(lines,
            (std::vector<std::string>{"Forward embedding m0", "Forward h.0 m0", "Forward head m0", "Backward head m0",
                                      "Backward h.0 m0", "Backward embedding m0", "Forward embedding m1",
                                      "Forward h.0 m1", "Forward head m1", "Backward head m1", "Backward h.0 m1",
                                      "Backward embedding m1", "GradientNorm", "OptimizerStep"}));
}

TEST(Schedule, DigestIsPinnedAndSeesEveryField) {
  const Schedule base = Single(Layers(1), 1);
  // A change of this number means that coordinators and trainers of different builds refuse each other: raise
  // kProtocol.
  EXPECT_EQ(Digest(base), "e7f5453a0c7ca663de19bb7293db3eee7dad5a76ead6df2ed4fa6d095153a198");
  const std::vector<std::function<void(Schedule&)>> changes = {
      [](Schedule& s) { s.slots = 1; },
      [](Schedule& s) { s.gradient_slots = 1; },
      [](Schedule& s) { s.input_slots = 1; },
      [](Schedule& s) { s.host_input_slots = 1; },
      [](Schedule& s) { s.microbatches = 2; },
      [](Schedule& s) { s.two_exchanges = true; },
      [](Schedule& s) { s.ops[0].kind = OpKind::kGather; },
      [](Schedule& s) { s.ops[0].unit = 1; },
      [](Schedule& s) { s.ops[0].unit_end = 1; },
      [](Schedule& s) { s.ops[0].microbatch = 1; },
      [](Schedule& s) { s.ops[0].stream = Stream::kReduce; },
      [](Schedule& s) { s.ops[0].group = 0; },
      [](Schedule& s) { s.ops[0].slot = 0; },
      [](Schedule& s) { s.ops[0].even = true; },
      [](Schedule& s) { s.ops[1].waits = {0}; },
      [](Schedule& s) { s.ops.pop_back(); },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    Schedule changed = base;
    changes[i](changed);
    EXPECT_NE(Digest(changed), Digest(base)) << i;
  }
}

TEST(Check, AcceptsSingleForRandomModels) {
  std::mt19937 random(7);
  for (int i = 0; i < 200; ++i) {
    const Inventory inventory = Layers(1 + random() % 20);
    const Schedule schedule = Single(inventory, 1 + static_cast<int32_t>(random() % 9));
    ASSERT_TRUE(Check(schedule, inventory).ok());
  }
}

// One broken schedule per rule. Units: 0 embedding, 1 h.0, 2 head (borrows from 0); ops 0..2 forward, 3..5 backward,
// 6 clip, 7 step.
TEST(Check, RefusesEachBrokenRule) {
  struct Case {
    std::string rule;
    std::function<void(Schedule&)> spoil;
  };
  const auto insert = [](Schedule& s, size_t at, Op op) { s.ops.insert(s.ops.begin() + static_cast<long>(at), op); };
  const auto erase = [](Schedule& s, size_t at) { s.ops.erase(s.ops.begin() + static_cast<long>(at)); };
  const Op gather0{.kind = OpKind::kGather, .unit = 0, .unit_end = 1},
      gather1{.kind = OpKind::kGather, .unit = 1, .unit_end = 2, .slot = 0};
  const Op release0{.kind = OpKind::kRelease, .unit = 0, .unit_end = 1},
      release1{.kind = OpKind::kRelease, .unit = 1, .unit_end = 2};
  const std::vector<Case> cases = {
      {"no such unit", [](Schedule& s) { s.ops[0].unit = 3; }},
      {"no such microbatch", [](Schedule& s) { s.ops[0].microbatch = 1; }},
      {"no such slot", [&](Schedule& s) { insert(s, 0, gather1); }},
      {"not before it", [](Schedule& s) { s.ops[2].waits = {2}; }},
      {"forward out of order", [](Schedule& s) { std::swap(s.ops[0], s.ops[1]); }},
      {"forward out of order", [&](Schedule& s) { insert(s, 1, s.ops[0]); }},
      {"backward before its forward", [](Schedule& s) { std::swap(s.ops[2], s.ops[3]); }},
      {"backward out of order", [](Schedule& s) { std::swap(s.ops[3], s.ops[4]); }},
      {"steps before the last backward", [&](Schedule& s) { erase(s, 6), std::swap(s.ops[5], s.ops[6]); }},
      {"without the gradients' norm", [&](Schedule& s) { erase(s, 6); }},
      {"clips before the last backward", [](Schedule& s) { std::swap(s.ops[5], s.ops[6]); }},
      {"clips before the last backward", [&](Schedule& s) { erase(s, 5); }},
      {"no optimizer step", [&](Schedule& s) { erase(s, 7); }},
      {"after the optimizer's step", [&](Schedule& s) { s.ops.push_back(s.ops[7]); }},
      {"gathered twice", [&](Schedule& s) { insert(s, 0, gather0), insert(s, 0, gather0); }},
      {"left gathered", [&](Schedule& s) { insert(s, 0, gather0); }},
      {"not gathered", [&](Schedule& s) { s.ops.push_back(release1); }},
      {"parameters of embedding are not gathered",
       [&](Schedule& s) { insert(s, 0, gather0), insert(s, 2, release0); }},  // the head borrows them
      {"parameters of h.0 are not gathered",
       [&](Schedule& s) { s.slots = 1, insert(s, 1, gather1), insert(s, 3, release1); }},  // its backward needs them
      {"still held by h.0",
       [&](Schedule& s) {
         s.slots = 1;
         insert(s, 0, gather1);
         insert(s, 0, {.kind = OpKind::kGather, .unit = 2, .unit_end = 3, .slot = 0});
         std::swap(s.ops[0], s.ops[1]);
       }},
      {"enters none",
       [&](Schedule& s) { insert(s, 4, {.kind = OpKind::kReduce, .unit = 2, .unit_end = 3, .group = 0}); }},
      {"nothing to reduce",
       [&](Schedule& s) { insert(s, 3, {.kind = OpKind::kReduce, .unit = 0, .unit_end = 3, .group = 0}); }},
      // A second reduction of the head would add its gradients twice.
      {"nothing to reduce of head",
       [&](Schedule& s) {
         insert(s, 4, {.kind = OpKind::kReduce, .unit = 2, .unit_end = 3, .group = 0});
         insert(s, 7, {.kind = OpKind::kReduce, .unit = 0, .unit_end = 3, .group = 0});
       }},
      // The head's part of the tied embedding must not be left out when it comes after the embedding's reduction.
      {"gradient of embedding from embedding m0 enters none",
       [&](Schedule& s) {
         insert(s, 4, {.kind = OpKind::kReduce, .unit = 0, .unit_end = 1, .group = 0});
         insert(s, 6, {.kind = OpKind::kReduce, .unit = 1, .unit_end = 3, .group = 0});
       }},
      {"recomputed after",
       [&](Schedule& s) { insert(s, 6, {.kind = OpKind::kRecompute, .unit = 0, .microbatch = 0}); }},
      {"no such unit", [&](Schedule& s) { insert(s, 0, {.kind = OpKind::kSendActivation, .unit = 3}); }},
      {"no such slot", [](Schedule& s) { s.ops[0].slot = -2; }},
      {"no such slot", [](Schedule& s) { s.slots = 1, s.ops[0].slot = 0; }},  // a forward takes none
      {"no such unit", [&](Schedule& s) { insert(s, 0, {.kind = OpKind::kOffload}); }},
      {"no such microbatch", [&](Schedule& s) { insert(s, 0, {.kind = OpKind::kReceiveActivation, .unit = 0}); }},
      {"needs a group", [&](Schedule& s) { insert(s, 6, {.kind = OpKind::kReduceScalars}); }},
      {"no such group", [&](Schedule& s) { insert(s, 6, {.kind = OpKind::kReduceScalars, .group = kGroups}); }},
      {"is not a collective", [](Schedule& s) { s.ops[7].group = 0; }},
      {"the unit exchanges nothing", [](Schedule& s) { s.ops[0].group = kExchangeGroup; }},
      {"recomputed before",
       [&](Schedule& s) { insert(s, 0, {.kind = OpKind::kRecompute, .unit = 0, .microbatch = 0}); }},
  };
  const Inventory inventory = Layers(1);
  for (const Case& c : cases) {
    Schedule schedule = Single(inventory, 1);
    c.spoil(schedule);
    const absl::Status status = Check(schedule, inventory);
    EXPECT_TRUE(absl::StrContains(status.message(), c.rule)) << c.rule << ": " << status;
  }
}

// Units: 0 embedding and 1 h.0, which are frozen, 2 h.1, 3 head; ops 0 to 3 forward, 4 and 5 backward, 6 norm, 7 step.
TEST(Check, WantsTheBackwardsOfTheUnitsFromTheFirstTrainedOneOn) {
  const Inventory inventory = Frozen(Layers(2), 0, 2);
  const Schedule right = Single(inventory, 1);
  ASSERT_EQ(right.ops.size(), 8u);
  EXPECT_EQ(Check(right, inventory), absl::OkStatus());
  const auto with = [&](size_t at, OpKind kind, int32_t unit) {
    Schedule s = right;
    s.ops.insert(s.ops.begin() + static_cast<long>(at), Op{.kind = kind, .unit = unit, .microbatch = 0});
    return s;
  };
  Schedule short_of_one = right;
  short_of_one.ops.erase(short_of_one.ops.begin() + 5);
  for (const auto& [rule, schedule] : std::vector<std::pair<std::string, Schedule>>{
           {"order: neither the unit nor one before it is trained", with(6, OpKind::kBackward, 1)},
           {"order: neither the unit nor one before it is trained", with(5, OpKind::kRecompute, 1)},
           {"order: neither the unit nor one before it is trained", Single(Layers(2), 1)},
           {"clips before the last backward", short_of_one}}) {
    const absl::Status status = Check(schedule, inventory);
    EXPECT_TRUE(absl::StrContains(status.message(), rule)) << rule << ": " << status;
  }
  EXPECT_TRUE(absl::StrContains(Check(right, Layers(2)).message(), "clips before the last backward"));
}

// Its output comes from units that are not trained, and its own backward is never awaited.
TEST(Check, NothingIsReducedOfAUnitWithoutTensorsBeforeTheFirstTrainedOne) {
  Inventory inventory = Layers(2);
  inventory.mutable_units(0)->clear_tensors(), inventory.mutable_units(3)->clear_borrows();
  for (const Gradients gradients : {Gradients::kWhole, Gradients::kOwned}) {
    const ScheduleRecipe recipe{.gradients = gradients, .sharded = true, .gather_bytes = 1 << 20};
    EXPECT_EQ(Check(Build(inventory, recipe), inventory), absl::OkStatus());
  }
}

TEST(Check, AcceptsGatherAndReduceInTheirPlaces) {
  const Inventory inventory = Layers(1);
  Schedule s = Single(inventory, 1);
  s.slots = 1;
  std::vector<Op> ops;
  for (const Op& op : s.ops) {
    if (op.unit == 1) ops.push_back({.kind = OpKind::kGather, .unit = 1, .unit_end = 2, .slot = 0});
    ops.push_back(op);
    if (op.unit == 1) ops.push_back({.kind = OpKind::kRelease, .unit = 1, .unit_end = 2});
    if (op.kind == OpKind::kBackward)
      ops.push_back({.kind = OpKind::kReduce, .unit = op.unit, .unit_end = op.unit + 1, .group = 0});
    if (op.kind == OpKind::kBackward && op.unit == 2) ops.push_back({.kind = OpKind::kReduceScalars, .group = 0});
    if (op.kind == OpKind::kGradientNorm) ops.back().group = 0;
  }
  s.ops = ops;
  EXPECT_EQ(Check(s, inventory), absl::OkStatus());
}

// What each rule of offloading refuses, in a schedule that is right.
TEST(Check, RefusesWhatOffloadingCanGetWrong) {
  const Inventory inventory = Layers(2);
  const ScheduleRecipe alone{
      .parameters = Parameters::kFreed, .gradients = Gradients::kOwned, .offloaded = Offloaded::kParameters};
  ScheduleRecipe shards = alone, replicas = alone, resident = alone;
  shards.sharded = true;
  replicas.sharded = replicas.replicated = true, replicas.microbatches = 2;
  resident.parameters = Parameters::kWhole, resident.offloaded = Offloaded::kOptimizer;
  using Is = std::function<bool(const Op&)>;
  const auto last = [](Schedule& s, const Is& is) {
    const auto found = std::find_if(s.ops.rbegin(), s.ops.rend(), is);
    EXPECT_NE(found, s.ops.rend());
    return std::prev(found.base());
  };
  const auto of = [](OpKind kind) -> Is { return [=](const Op& op) { return op.kind == kind; }; };
  // Without an op that others wait for, these wait for the one before it.
  const auto erase = [&](Schedule& s, std::vector<Op>::iterator op) {
    const auto at = static_cast<int32_t>(op - s.ops.begin());
    s.ops.erase(op);
    for (Op& other : s.ops) {
      for (int32_t& w : other.waits) w -= w >= at ? 1 : 0;
    }
  };
  struct Case {
    std::string rule;
    ScheduleRecipe recipe;
    std::function<void(Schedule&)> spoil;
  };
  const std::vector<Case> cases = {
      {"does not wait for", alone, [&](Schedule& s) { erase(s, last(s, of(OpKind::kOffload))); }},
      {"not what was opened together", alone,
       [&](Schedule& s) {
         const auto middle = last(s, [](const Op& op) { return op.kind == OpKind::kOffload && op.unit == 1; });
         middle->unit_end = 3;
       }},
      {"is in no host memory", shards, [&](Schedule& s) { erase(s, last(s, of(OpKind::kOffload))); }},
      {"is in no host memory", replicas, [&](Schedule& s) { erase(s, last(s, of(OpKind::kOffload))); }},
      {"nothing of embedding was reduced", shards,
       [&](Schedule& s) {
         const auto offload = last(s, of(OpKind::kOffload));
         s.ops.insert(offload, *offload);
       }},
      {"are not gathered", alone, [&](Schedule& s) { erase(s, last(s, of(OpKind::kFetch))); }},
      {"is not fetched", shards, [&](Schedule& s) { erase(s, last(s, of(OpKind::kFetch))); }},
      {"fetched twice", alone, [&](Schedule& s) { s.ops.insert(s.ops.begin(), s.ops[0]); }},
      {"before the step", resident, [&](Schedule& s) { erase(s, last(s, of(OpKind::kFetch))); }},
      {"without a slot before its step", resident,
       [&](Schedule& s) {
         s.ops.insert(s.ops.begin(), {.kind = OpKind::kFetch, .stream = Stream::kFetch, .unit = 0, .unit_end = 1});
       }},
      {"has stepped", alone, [&](Schedule& s) { s.ops.push_back(s.ops.back()); }},
      {"has none", alone, [&](Schedule& s) { s.ops.pop_back(); }},
      {"empty or too long", alone, [&](Schedule& s) { s.ops.back().unit_end = -1; }},
      {"after the optimizer's step", alone, [&](Schedule& s) { s.ops.push_back({.kind = OpKind::kOptimizerStep}); }},
  };
  for (const Case& c : cases) {
    Schedule schedule = Build(inventory, c.recipe);
    ASSERT_EQ(Check(schedule, inventory), absl::OkStatus());
    c.spoil(schedule);
    const absl::Status status = Check(schedule, inventory);
    EXPECT_TRUE(absl::StrContains(status.message(), c.rule)) << c.rule << ": " << status;
  }
}

// What each rule about inputs refuses: the schedule of build_test.cc of three blocks, with two microbatches.
TEST(Check, RefusesWhatOffloadingInputsCanGetWrong) {
  const Inventory inventory = Layers(3);
  const auto find = [](Schedule& s, OpKind kind, int32_t unit, int32_t microbatch = 0) {
    return std::find_if(s.ops.begin(), s.ops.end(), [&](const Op& op) {
      return op.kind == kind && op.unit == unit && op.microbatch == microbatch;
    });
  };
  // Keeps the waits of others valid.
  const auto drop = [](std::vector<Op>::iterator op) {
    *op = {.kind = OpKind::kSnapshot, .stream = op->stream, .waits = op->waits};
  };
  const auto insert = [](Schedule& s, std::vector<Op>::iterator before, Op op) {
    const auto at = static_cast<int32_t>(before - s.ops.begin());
    for (Op& other : s.ops) {
      for (int32_t& w : other.waits) w += w >= at ? 1 : 0;
    }
    s.ops.insert(s.ops.begin() + at, std::move(op));
  };
  constexpr OpKind offload = OpKind::kOffloadInput, release = OpKind::kReleaseInput, fetch = OpKind::kFetchInput,
                   recompute = OpKind::kRecompute;
  struct Case {
    std::string rule;
    std::function<void(Schedule&)> spoil;
  };
  const std::vector<Case> cases = {
      {"the unit does not keep its input", [&](Schedule& s) { find(s, offload, 3)->unit = 4; }},
      {"the unit does not keep its input",
       [&](Schedule& s) {
         for (const int32_t m : {0, 1}) drop(find(s, recompute, 2, m));
       }},
      {"not offloaded right after its forward", [&](Schedule& s) { find(s, offload, 2)->unit = 1; }},
      {"not offloaded right after its forward", [&](Schedule& s) { find(s, offload, 1)->microbatch = 1; }},
      {"offloaded twice",
       [&](Schedule& s) {
         const Op again = *find(s, offload, 1);
         insert(s, find(s, OpKind::kForward, 2), again);
       }},
      {"more than 2 wait on the device", [&](Schedule& s) { drop(find(s, release, 1)); }},
      {"has no slot", [&](Schedule& s) { find(s, offload, 1)->slot = -1; }},
      {"has no slot", [&](Schedule& s) { find(s, fetch, 1)->slot = -1; }},
      {"no such slot", [&](Schedule& s) { find(s, offload, 1)->slot = 3; }},
      {"no such slot", [&](Schedule& s) { find(s, fetch, 1)->slot = 2; }},
      {"h.0 has another slot elsewhere", [&](Schedule& s) { ++s.host_input_slots, find(s, offload, 1, 1)->slot = 3; }},
      {"h.0 has another slot elsewhere", [&](Schedule& s) { ++s.input_slots, find(s, fetch, 1, 1)->slot = 2; }},
      {"its slot is still held by h.0 m0", [&](Schedule& s) { find(s, offload, 2)->slot = 0; }},
      {"its slot is still held by h.2 m0", [&](Schedule& s) { find(s, fetch, 2)->slot = 0; }},
      {"released, but not offloaded", [&](Schedule& s) { find(s, release, 1)->unit = 3; }},
      {"released twice", [&](Schedule& s) { find(s, release, 2)->unit = 1; }},
      {"fetched, but not offloaded", [&](Schedule& s) { find(s, fetch, 3)->unit = 4; }},
      {"fetched before its release", [&](Schedule& s) { drop(find(s, release, 3)); }},
      {"fetched twice", [&](Schedule& s) { find(s, fetch, 2)->unit = 3; }},
      {"that of h.1 m0 is not fetched", [&](Schedule& s) { drop(find(s, fetch, 2)); }},
      {"does not wait for op 0 (Forward embedding m0)", [&](Schedule& s) { find(s, offload, 1)->waits.clear(); }},
      {"does not wait for op 2 (OffloadInput h.0 m0", [&](Schedule& s) { find(s, release, 1)->waits.clear(); }},
      {"does not wait for op 7 (OffloadInput h.2 m0", [&](Schedule& s) { find(s, fetch, 3)->waits.clear(); }},
      {"does not wait for op 15 (Backward h.2 m0)", [&](Schedule& s) { find(s, fetch, 1)->waits = {8}; }},
      {"does not wait for op 16 (FetchInput h.0 m0", [&](Schedule& s) { find(s, recompute, 1)->waits.clear(); }},
      // The host's slot: the second microbatch's offload, were it not for the forward before it.
      {"does not wait for op 16 (FetchInput h.0 m0",
       [&](Schedule& s) { find(s, recompute, 1)->stream = Stream::kReduce, find(s, offload, 1, 1)->waits = {22}; }},
      {"comes after the optimizer's step", [&](Schedule& s) { s.ops.push_back(*find(s, release, 1)); }},
      {"is left in host memory",
       [&](Schedule& s) {
         s = BuildEvaluation(inventory, {});
         s.host_input_slots = 1;
         const Op backward{.kind = recompute, .unit = 1, .microbatch = 0};
         const Op its{
             .kind = offload, .stream = Stream::kTransfer, .unit = 1, .microbatch = 0, .slot = 0, .waits = {0}};
         insert(s, find(s, OpKind::kForward, 2), backward);
         insert(s, find(s, OpKind::kForward, 2), its);
       }},
  };
  for (const Case& c : cases) {
    Schedule schedule = Build(inventory, {.microbatches = 2, .recompute = true, .offload_inputs = true});
    ASSERT_EQ(Check(schedule, inventory), absl::OkStatus());
    c.spoil(schedule);
    const absl::Status status = Check(schedule, inventory);
    EXPECT_TRUE(absl::StrContains(status.message(), c.rule)) << c.rule << ": " << status;
  }
}

// Ops that compute keep their order; for others only the waits count. Here: 0 gather h.0, 1 forward embedding, 2
// forward h.0, 3 forward head, 4 backward head, 5 backward h.0, 6 release h.0, 7 backward embedding, 8 gather head, 9
// release head, 10 reduce, 11 scalars, 12 clip, 13 step.
Schedule AcrossStreams() {
  Schedule s = Single(Layers(1), 1);
  s.slots = 1;
  std::vector<Op> ops = {{.kind = OpKind::kGather, .stream = Stream::kGather, .unit = 1, .unit_end = 2, .slot = 0}};
  ops.insert(ops.end(), s.ops.begin(), s.ops.begin() + 5);
  ops[2].waits = {0};
  ops.push_back({.kind = OpKind::kRelease, .unit = 1, .unit_end = 2});
  ops.push_back(s.ops[5]);
  ops.push_back(
      {.kind = OpKind::kGather, .stream = Stream::kGather, .unit = 1, .unit_end = 2, .slot = 0, .waits = {6}});
  ops.push_back({.kind = OpKind::kRelease, .stream = Stream::kGather, .unit = 1, .unit_end = 2, .waits = {8}});
  ops.push_back(
      {.kind = OpKind::kReduce, .stream = Stream::kReduce, .unit = 0, .unit_end = 3, .group = 0, .waits = {7}});
  ops.push_back({.kind = OpKind::kReduceScalars, .stream = Stream::kReduce, .group = 0, .waits = {4}});
  ops.push_back({.kind = OpKind::kGradientNorm, .group = 0, .waits = {11}});
  ops.push_back({.kind = OpKind::kOptimizerStep});
  s.ops = ops;
  return s;
}

TEST(Check, AcceptsWhatIsOrderedAcrossStreams) { EXPECT_EQ(Check(AcrossStreams(), Layers(1)), absl::OkStatus()); }

TEST(Check, RefusesEachMissingWait) {
  struct Case {
    std::string rule;
    std::function<void(Schedule&)> spoil;
  };
  const std::vector<Case> cases = {
      {"(Forward h.0 m0 after 1): streams: does not wait for op 0", [](Schedule& s) { s.ops[2].waits = {1}; }},
      {"does not wait for op 6", [](Schedule& s) { s.ops[8].waits = {5}; }},  // the slot is still in use
      {"does not wait for op 2",
       [](Schedule& s) {
         s.ops[6].stream = Stream::kTransfer;
         s.ops[6].waits = {0};
       }},
      {"does not wait for op 7", [](Schedule& s) { s.ops[10].waits = {5}; }},  // a gradient not yet there
      {"does not wait for op 10", [](Schedule& s) { s.ops[12].waits = {}; }},
      {"does not wait for op 10", [](Schedule& s) { s.ops[11].stream = Stream::kTransfer; }},  // past another stream
  };
  for (const Case& c : cases) {
    Schedule schedule = AcrossStreams();
    c.spoil(schedule);
    const absl::Status status = Check(schedule, Layers(1));
    EXPECT_TRUE(absl::StrContains(status.message(), c.rule)) << c.rule << ": " << status;
  }
}

// Ops of a stream end in their order, so the norm needs no wait for a reduction before the last one of each stream.
TEST(Check, TheNormWaitsForTheLastReductionOfEachStream) {
  const auto check = [](Stream later, Stream scalars, const Waits& waits) {
    Schedule s = AcrossStreams();
    s.ops[10].unit_end = 1;
    s.ops.insert(s.ops.begin() + 11,
                 {.kind = OpKind::kReduce, .stream = later, .unit = 1, .unit_end = 3, .group = 0, .waits = {7}});
    s.ops[12].stream = scalars, s.ops[13].waits = waits;
    return Check(s, Layers(1));
  };
  constexpr Stream reduce = Stream::kReduce, between = Stream::kReduceBetween, transfer = Stream::kTransfer;
  EXPECT_EQ(check(reduce, transfer, {11, 12}), absl::OkStatus());
  EXPECT_EQ(check(between, transfer, {10, 11, 12}), absl::OkStatus());
  EXPECT_EQ(check(between, reduce, {11, 12}), absl::OkStatus()) << "the scalars end after op 10";
  struct Case {
    Stream later, scalars;
    Waits waits;
    std::string rule;
  };
  for (const Case& c : std::vector<Case>{{reduce, transfer, {10, 12}, "does not wait for op 11"},
                                         {between, transfer, {10, 12}, "does not wait for op 11"},
                                         {between, transfer, {11, 12}, "does not wait for op 10"},
                                         {between, reduce, {12}, "does not wait for op 11"}}) {
    const absl::Status status = check(c.later, c.scalars, c.waits);
    EXPECT_TRUE(absl::StrContains(status.message(), c.rule)) << c.rule << ": " << status;
  }
}

// The loss is complete after the last backward of the last unit, and the step decides by the sum over ranks.
TEST(Check, RefusesScalarsInTheWrongPlace) {
  struct Case {
    std::string rule;
    std::function<void(Schedule&)> spoil;
  };
  // 10 reduce, 11 scalars, 12 clip, 13 step.
  const auto nothing = [](Op& op) { op = {.kind = OpKind::kSnapshot, .stream = op.stream, .waits = op.waits}; };
  const std::vector<Case> cases = {
      {"(OptimizerStep): scalars: read before their sum over ranks", [&](Schedule& s) { nothing(s.ops[11]); }},
      {"scalars: summed twice", [&](Schedule& s) { s.ops[9] = s.ops[11], s.ops[9].waits = {8}; }},
      {"scalars: summed before the last loss",
       [&](Schedule& s) { s.ops[11].waits.clear(), std::swap(s.ops[4], s.ops[11]); }},
      {"(ReduceScalars on reduce in world after 2): streams: does not wait for op 3 (Forward head m0)",
       [&](Schedule& s) { s.ops[11].waits = {2}; }},
      {"(OptimizerStep after 10): streams: does not wait for op 11",
       [&](Schedule& s) {
         s.ops[11].stream = Stream::kTransfer, s.ops[11].waits = {7};
         s.ops[12].waits = {10}, s.ops[13].waits = {10};
       }},
      {"groups: the norm is not summed", [&](Schedule& s) { s.ops[12].group = -1; }},
      {"groups: the norm is not summed", [&](Schedule& s) { s.ops[12].group = kReplicaGroup; }},
      {"groups: the norm is not summed",
       [&](Schedule& s) { s.ops[10].kind = OpKind::kAllReduce; }},  // then every rank has the whole gradient
  };
  for (const Case& c : cases) {
    Schedule schedule = AcrossStreams();
    c.spoil(schedule);
    const absl::Status status = Check(schedule, Layers(1));
    EXPECT_TRUE(absl::StrContains(status.message(), c.rule)) << c.rule << ": " << status;
  }
}

TEST(CollectivesDigest, DiffersForRanksThatDisagree) {
  const Schedule s = Build(Layers(1), {.sharded = true});
  const auto digest = [](const Schedule& of) { return CollectivesDigest(of, kShardGroup); };
  Schedule other = s;
  const auto is_reduce = [](const Op& op) { return op.kind == OpKind::kReduce; };
  const auto first = std::find_if(other.ops.begin(), other.ops.end(), is_reduce);
  ASSERT_NE(first, other.ops.end());
  first->unit_end -= 1;
  EXPECT_NE(digest(other), digest(s)) << "of other units";
  other.ops.erase(first);
  EXPECT_NE(digest(other), digest(s)) << "one less";
  other = s;
  other.ops.insert(other.ops.begin(), {.kind = OpKind::kForward, .unit = 0, .microbatch = 0});
  EXPECT_EQ(digest(other), digest(s)) << "only collectives of the group count";
  other.ops[0].group = kContextTensorGroup;  // one in each
  for (const int32_t group : {kTensorGroup, kContextGroup}) {
    EXPECT_NE(CollectivesDigest(other, group), CollectivesDigest(s, group)) << group;
  }
}

TEST(CollectivesDigest, IsEqualForTheSameCollectives) {
  const Schedule s = AcrossStreams();
  Schedule other = s;
  other.ops.erase(other.ops.begin() + 4);  // a forward
  EXPECT_EQ(CollectivesDigest(other, kWorldGroup), CollectivesDigest(s, kWorldGroup));
  for (const auto& spoil : std::vector<std::function<void(Op&)>>{
           [](Op& op) { op.kind = OpKind::kAllReduce; }, [](Op& op) { op.unit_end -= 1; },
           [](Op& op) { op.group = kReplicaGroup; }, [](Op& op) { op.even = !op.even; }}) {
    other = s;
    spoil(other.ops[10]);
    EXPECT_NE(CollectivesDigest(other, s.ops[10].group), CollectivesDigest(s, s.ops[10].group));
  }
}

TEST(Memory, AccumulationCostsNothingAndLayersDo) {
  const uint64_t one = PeakActivationBytes(Single(Layers(4), 1), Layers(4), 8);
  EXPECT_EQ(PeakActivationBytes(Single(Layers(4), 5), Layers(4), 8), one);
  EXPECT_GT(PeakActivationBytes(Single(Layers(8), 1), Layers(8), 8), one);
  // Twice the sequences take twice the bytes, except for what is computed in pieces.
  const uint64_t two = PeakActivationBytes(Single(Layers(4), 1), Layers(4), 16);
  EXPECT_LT(two, 2 * one);
  EXPECT_GT(two, 2 * one - (8 << 20));
}

// By hand, with two blocks b of saved S, output O, the embedding's token ids e and the head's input O.
TEST(Memory, RecomputationKeepsInputs) {
  const Inventory inventory = Layers(2);
  const Schedule plain = Single(inventory, 1), recompute = Build(inventory, {.recompute = true});
  const std::vector<uint64_t> a = ActivationBytes(plain, inventory, 1), b = ActivationBytes(recompute, inventory, 1);
  const Unit& block = inventory.units(1);
  const uint64_t e = inventory.units(0).saved_bytes(), saved = block.saved_bytes(), output = block.output_bytes();
  const uint64_t piece = models::PieceRows(models::TargetsPerSample(inventory), block.piece_rows());
  const uint64_t forward = block.forward_bytes() + block.forward_piece_bytes() * piece;
  ASSERT_EQ(plain.ops[2].unit, 2);  // Forward h.1, after the embedding and h.0
  EXPECT_EQ(a[2], e + 2 * saved + output + forward);
  EXPECT_EQ(b[2], e + output + saved + output + forward) << "of h.0 only the input is left";
  ASSERT_EQ(recompute.ops[5].kind, OpKind::kRecompute);  // h.1, after the head's backward
  EXPECT_EQ(b[5], e + output + saved + 2 * output + forward);
  EXPECT_EQ(b[6], e + output + saved + output + block.backward_bytes() + block.backward_piece_bytes() * piece);
  // At the end nothing is left but the embedding's token ids while its own backward runs.
  EXPECT_EQ(b[9], e + inventory.units(0).output_bytes());
  EXPECT_EQ(b[10], 0u);
  EXPECT_EQ(a.back(), 0u);
}

// By hand, of three blocks of which two are frozen, with the embedding.
TEST(Memory, AFrozenFrontKeepsNothing) {
  const Inventory inventory = Frozen(Layers(3), 0, 3);
  for (const bool recompute : {false, true}) {
    const Schedule schedule = Build(inventory, {.recompute = recompute});
    const std::vector<uint64_t> bytes = ActivationBytes(schedule, inventory, 1);
    const Unit& block = inventory.units(1);
    const uint64_t piece = models::PieceRows(models::TargetsPerSample(inventory), block.piece_rows());
    const uint64_t forward =
        block.saved_bytes() + block.output_bytes() + block.forward_bytes() + block.forward_piece_bytes() * piece;
    for (const size_t op : {1, 2, 3}) {
      ASSERT_EQ(Print(schedule.ops[op], inventory), absl::StrCat("Forward h.", op - 1, " m0"));
      EXPECT_EQ(bytes[op], forward) << "nothing of the units before it";
    }
    const size_t last = recompute ? 8 : 7;
    ASSERT_EQ(Print(schedule.ops[last - 1], inventory), "Backward h.2 m0");
    EXPECT_EQ(bytes[last - 1], block.saved_bytes() + block.output_bytes() + block.backward_bytes() +
                                   block.backward_piece_bytes() * piece);
    EXPECT_EQ(bytes[last], 0u);
  }
}

// By hand, of three blocks: forward two inputs, back none beside the slots.
TEST(Memory, OffloadedInputsLeaveTheDevice) {
  const Inventory inventory = Layers(3);
  const Schedule schedule = Build(inventory, {.recompute = true, .offload_inputs = true});
  constexpr uint64_t kSequences = 5;
  const std::vector<uint64_t> bytes = ActivationBytes(schedule, inventory, kSequences);
  const Unit& block = inventory.units(1);
  const uint64_t e = kSequences * inventory.units(0).saved_bytes(), saved = kSequences * block.saved_bytes(),
                 output = kSequences * block.output_bytes();
  ASSERT_EQ(Print(schedule.ops[8], inventory), "ReleaseInput h.1 m0 after 4");
  EXPECT_EQ(bytes[7], e + 2 * output) << "h.1's and h.2's while h.2's is offloaded";
  EXPECT_EQ(bytes[8], e + 2 * output);
  EXPECT_EQ(bytes[11], e + output) << "the head's input, while h.2's comes back into its slot";
  const uint64_t piece = models::PieceRows(kSequences * models::TargetsPerSample(inventory), block.piece_rows());
  ASSERT_EQ(Print(schedule.ops[18], inventory), "Backward h.1 m0");
  EXPECT_EQ(bytes[18],
            e + saved - output + output + kSequences * block.backward_bytes() + block.backward_piece_bytes() * piece)
      << "what h.1 saves but for its input, and the gradient of its output";
  EXPECT_EQ(bytes.back(), 0u);
  // What both tiers have beside that: two inputs and three.
  EXPECT_EQ(InputSlots(schedule, SlotPool::kInputs, inventory, kSequences), (std::vector<uint64_t>(2, output)));
  EXPECT_EQ(InputSlots(schedule, SlotPool::kHostInputs, inventory, kSequences), (std::vector<uint64_t>(3, output)));
}

TEST(Memory, AnEvaluationKeepsNothing) {
  const Inventory inventory = Layers(6);
  EXPECT_EQ(PeakActivationBytes(BuildEvaluation(inventory, {}), inventory, 4),
            PeakActivationBytes(BuildEvaluation(Layers(1), {}), Layers(1), 4));
  EXPECT_LT(PeakActivationBytes(BuildEvaluation(inventory, {}), inventory, 4),
            PeakActivationBytes(Single(inventory, 1), inventory, 4));
}

TEST(Memory, ASlotIsAsLargeAsTheLargestThatIsPutThere) {
  Schedule schedule{.slots = 2, .gradient_slots = 1};
  schedule.ops = {{.kind = OpKind::kGather, .unit = 0, .unit_end = 2, .slot = 0},
                  {.kind = OpKind::kGather, .unit = 2, .unit_end = 3, .slot = 1},
                  {.kind = OpKind::kGather, .unit = 3, .unit_end = 4, .slot = 0},
                  {.kind = OpKind::kGather, .unit = 4, .unit_end = 5},  // in place
                  {.kind = OpKind::kOpenGradients, .unit = 1, .unit_end = 3, .slot = 0}};
  const std::vector<uint64_t> units = {16, 32, 64, 80, 4096};
  EXPECT_EQ(GatherSlots(schedule, units), (std::vector<uint64_t>{80, 64}));
  EXPECT_EQ(GradientSlots(schedule, units), (std::vector<uint64_t>{96}));
}

}  // namespace
}  // namespace muster
