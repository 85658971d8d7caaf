// Every strategy in the ways of running that a GPU has, on CPUs: the queue with streams, the row programs of GPUs,
// the units of LibTorch's operators, updates that the device decides, groups that hand out nothing before all have
// waited, and the narrow types.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "strategies/schedule/check.h"
#include "worker/engine/group_of_others_test.h"
#include "worker/engine/strategy_trials_test.h"
#include "worker/tasks/language_model.h"

namespace muster::engine {
namespace {

struct Mode {
  std::string name;
  bool adversarial;
  std::function<void(Config&)> set;
};

const std::vector<Mode>& Modes() {
  static const auto* const all = new std::vector<Mode>{
      {"host queue, adversarial", true, [](Config& c) { c.check_accesses = true; }},
      {"streams, adversarial", true, [](Config& c) { c.check_accesses = c.streams = true; }},
      {"portable", false, [](Config& c) { c.portable = true; }},
      {"row programs of GPUs, streams", false, [](Config& c) { c.device_rows = c.streams = true; }},
      {"decided on the device", false, [](Config& c) { c.decide_on_device = true; }},
  };
  return *all;
}

TEST(Modes, TrainAsOneRankDoes) {
  const Curve alone = Train({.name = "single", .choose = Single});
  for (const Mode& mode : Modes()) {
    for (const auto& [name, choose] : Strategies()) {
      const Trial trial{.name = absl::StrCat(name, ", ", mode.name),
                        .choose = choose,
                        .ranks = 4,
                        .microbatch = 1,
                        .adversarial = mode.adversarial,
                        .set = mode.set};
      ExpectSame(trial, Train(trial), alone);
    }
  }
}

// Rotary positions, grouped heads, a window in two of three layers; as one rank by the CPU's own code.
TEST(Modes, RowProgramsTrainALlamaAsOneRankDoes) {
  Trial single{.name = "single", .choose = Single, .sgd = true, .model = LlamaTrialModel(), .sgd_limit = 3e-6};
  for (const bool norms_of_heads : {false, true}) {
    single.model.mutable_llama()->set_qk_norm(norms_of_heads);
    const Curve alone = Train(single);
    for (const auto& [name, choose] : Strategies()) {
      if (norms_of_heads && name != "full_shard") continue;
      Trial trial = single;
      trial.name = absl::StrCat(name, ", llama, row programs of GPUs"), trial.choose = choose;
      trial.ranks = 4, trial.microbatch = 1;
      trial.set = [](Config& c) { c.device_rows = c.streams = c.decide_on_device = true; };
      ExpectSame(trial, Train(trial), alone);
    }
  }
}

// Units that exchange inside their passes, while collectives of other groups are in flight.
TEST(Modes, SynchronizedBatchNormTrainsAsOneRankDoes) {
  Trial single{.name = "single", .choose = Single, .microbatch = 4, .sgd = true};
  single.model = ResnetTrialModel(), single.sgd_limit = 3e-6;
  single.as_ranks = 4, single.as_microbatch = 1;
  const Curve alone = Train(single, {.steps = kResnetSteps});
  for (const Mode& mode : Modes()) {
    for (const auto& [name, choose] : Strategies()) {
      Trial trial = single;
      trial.name = absl::StrCat(name, ", synchronized, ", mode.name), trial.choose = choose;
      trial.ranks = 4, trial.microbatch = 1, trial.as_ranks = 0;
      trial.adversarial = mode.adversarial, trial.set = mode.set;
      ExpectSame(trial, Train(trial, {.steps = kResnetSteps}), alone);
    }
  }
}

// Where only a part is trained, and values are dropped.
TEST(Modes, AdaptersTrainAsOneRankDoes) {
  const auto adapted = [](const Choose& choose) -> Choose {
    return [=](::muster::Train& train) {
      choose(train);
      train.mutable_lora()->set_rank(2), train.mutable_lora()->set_alpha(2);
      train.add_freeze("!ln_f.*");
      train.mutable_dropout()->set_residual(0.1), train.mutable_dropout()->set_attention(0.1);
    };
  };
  const Trial single{.name = "single", .choose = adapted(Single), .sgd = true, .sgd_limit = 3e-6};
  const Curve alone = Train(single);
  for (const Mode& mode : Modes()) {
    for (const auto& [name, choose] : Strategies()) {
      if (name != "zero 2" && name != "zero 3 ragged" && name != "full_shard wrapped" && name != "hybrid") continue;
      Trial trial = single;
      trial.name = absl::StrCat(name, ", adapters, ", mode.name), trial.choose = adapted(choose);
      trial.ranks = 4, trial.microbatch = 1, trial.adversarial = mode.adversarial, trial.set = mode.set;
      ExpectSame(trial, Train(trial), alone);
    }
  }
}

// Several ranks against one rank, both in bf16 or fp16: what is left is the order of sums. A rank that never updates
// has an error of 1, and one that updates by other gradients one of 0.3 or more.
TEST(Modes, NarrowTypesUpdateAsOneRankDoes) {
  struct Case {
    bool device_rows;
    Dtype compute, reduce;
    bool llama = false;
  };
  for (const auto& [device_rows, compute, reduce, llama] : {Case{false, DTYPE_BF16, DTYPE_FP32},
                                                            {true, DTYPE_BF16, DTYPE_FP32},
                                                            {true, DTYPE_BF16, DTYPE_BF16},
                                                            {false, DTYPE_FP16, DTYPE_FP32},
                                                            {true, DTYPE_FP16, DTYPE_FP16},
                                                            {true, DTYPE_BF16, DTYPE_FP32, true}}) {
    Trial single{.name = "single", .choose = Single, .sgd = true, .compute = compute};
    if (llama) single.model = LlamaTrialModel();
    single.set = [rows = device_rows](Config& c) { c.device_rows = c.decide_on_device = rows; };
    const Curve alone = Train(single), initial = Train(single, {.steps = 0});
    for (const auto& [name, choose] : Strategies()) {
      Trial trial = single;
      trial.name = absl::StrCat(name, llama ? ", llama" : "", device_rows ? ", row programs of GPUs" : "", ", ",
                                Dtype_Name(compute), ", reduced in ", Dtype_Name(reduce));
      trial.choose = choose, trial.ranks = 4, trial.microbatch = 1, trial.reduce = reduce;
      const Curve seen = Train(trial);
      EXPECT_LE(UpdateError(seen, alone, initial), 0.05) << trial.name;
      EXPECT_GT(UpdateError(seen, alone, initial), 0) << trial.name << ": it was not computed by four ranks";
    }
  }
}

// A loss scale at which gradients overflow, on some ranks only: all ranks skip the same steps and lower it alike.
TEST(Modes, EveryRankSkipsTheStepsThatOverflow) {
  for (const auto& [name, choose] : Strategies()) {
    if (name != "ddp" && name != "zero 2" && name != "zero 3 ragged" && name != "full_shard" && name != "hybrid")
      continue;
    for (const bool ahead : {false, true}) {
      Trial trial{.name = name, .choose = choose, .ranks = 4, .microbatch = 1, .compute = DTYPE_FP16};
      trial.loss_scale = 0x1p26, trial.ahead = ahead;
      trial.set = [=](Config& c) { c.decide_on_device = c.streams = ahead; };
      const Curve seen = Train(trial);  // which compares the ranks
      ASSERT_EQ(seen.loss_scales.size(), static_cast<size_t>(kSteps)) << name;
      EXPECT_EQ(seen.loss_scales.front(), 0x1p26) << name;
      EXPECT_LT(seen.loss_scales.back(), 0x1p24) << name << ": nothing overflowed";
      EXPECT_GT(seen.loss_scales.back(), 0x1p10) << name;
      EXPECT_EQ(seen.loss_scales[kSteps - 5], seen.loss_scales.back()) << name << ": training goes on";
      EXPECT_TRUE(std::isfinite(seen.norms.back())) << name;
    }
  }
}

// What an update writes beside the master weights are the bits that rebuilding all of it from them gives: in whole
// parameters, in what is gathered in place, by the program of GPUs and by other optimizers, and after skipped steps.
TEST(Modes, UpdatesWriteWhatIsComputedWith) {
  constexpr Leg kShort{.steps = 8};
  const auto expect_same = [&](Trial trial) {
    trial.ranks = 4, trial.microbatch = 1, trial.loss_scale = 0x1p22;
    const Curve seen = Train(trial, kShort);
    trial.rebuilds = true;
    const Curve rebuilt = Train(trial, kShort);
    EXPECT_EQ(seen.losses, rebuilt.losses) << trial.name;
    EXPECT_EQ(seen.evaluation, rebuilt.evaluation) << trial.name;
    EXPECT_TRUE(seen.state == rebuilt.state) << trial.name << ": weights or state";
    EXPECT_EQ(seen.norms.front() == 0, trial.compute == DTYPE_FP16) << trial.name << ": skipped";
    EXPECT_NE(seen.norms.back(), 0) << trial.name << ": still skipped";
  };
  for (const auto& [name, choose] : Strategies()) {
    if (name != "ddp" && name != "zero 1" && name != "zero 2") continue;
    for (const Dtype compute : {DTYPE_BF16, DTYPE_FP16}) {
      for (const bool programs : {false, true}) {
        Trial trial{.name = absl::StrCat(name, ", ", Dtype_Name(compute), programs ? ", programs" : "")};
        trial.choose = choose, trial.compute = compute;
        trial.set = [=](Config& c) { c.check_accesses = true, c.device_rows = c.streams = programs; };
        expect_same(trial);
      }
    }
    for (const std::string optimizer : {"lion", "muon", "adafactor"}) {
      Trial trial{.name = absl::StrCat(name, ", ", optimizer), .choose = choose, .compute = DTYPE_BF16};
      trial.optimizer = optimizer;
      trial.set = [](Config& c) { c.check_accesses = c.device_rows = c.decide_on_device = true; };
      expect_same(trial);
    }
    Trial adapters{.name = absl::StrCat(name, ", adapters"), .compute = DTYPE_FP16};
    adapters.choose = [choose = choose](::muster::Train& train) {
      choose(train);
      train.mutable_lora()->set_rank(2), train.mutable_lora()->set_alpha(2);
    };
    adapters.set = [](Config& c) { c.check_accesses = c.device_rows = true; };
    expect_same(adapters);
  }
}

// The next step is issued before the result of the one before is read. Groups hand out nothing early, and each op waits
// for those of the step before.
TEST(Modes, OneStepAheadGivesTheSameBits) {
  for (const auto& choose : {Choose(FsdpOf(RESHARD_FULL_SHARD)), Choose(ZeroStage(2))}) {
    Trial trial{.name = "by step", .choose = choose, .ranks = 4, .microbatch = 1, .adversarial = true};
    trial.set = [](Config& c) { c.check_accesses = c.streams = true; };
    const Curve by_step = Train(trial);
    trial.name = "one step ahead", trial.ahead = true;
    const Curve ahead = Train(trial);
    EXPECT_EQ(ahead.losses, by_step.losses);
    EXPECT_EQ(ahead.norms, by_step.norms);
    EXPECT_EQ(ahead.state, by_step.state);
  }
}

// The same bits with recorded steps.
void ExpectSameRecorded(Trial trial) {
  constexpr Leg kLeg{.steps = 8};
  trial.scheduled = true;
  const Curve usual = Train(trial, kLeg);
  trial.name += ", recorded";
  trial.set = [set = trial.set](Config& c) { set(c), c.recorded = true; };
  const Curve seen = Train(trial, kLeg);
  EXPECT_EQ(seen.losses, usual.losses) << trial.name;
  EXPECT_EQ(seen.norms, usual.norms) << trial.name;
  EXPECT_EQ(seen.loss_scales, usual.loss_scales) << trial.name;
  EXPECT_EQ(seen.evaluation, usual.evaluation) << trial.name;
  EXPECT_TRUE(seen.state == usual.state) << trial.name << ": weights or state";
  EXPECT_EQ(seen.norms.front() == 0, trial.compute == DTYPE_FP16) << trial.name << ": skipped";
}

// Whatever the tasks of later steps read of the host is what it was in the first. Another rate in each step, dropout,
// clipping, microbatches, a loss scale that overflows, recomputation.
TEST(Modes, RecordedStepsGiveTheSameBits) {
  const auto dropping = [](const Choose& choose) -> Choose {
    return [=](::muster::Train& train) {
      choose(train);
      train.mutable_dropout()->set_embedding(0.1);
      train.mutable_dropout()->set_residual(0.1), train.mutable_dropout()->set_attention(0.1);
    };
  };
  struct Case {
    std::string name;
    Trial trial;
    std::function<void(Config&)> set;
  };
  const auto streams = [](Config& c) { c.streams = true; };
  const auto rows = [](Config& c) { c.device_rows = c.streams = true; };
  const std::vector<Case> cases = {
      {"adamw", {}, streams},
      {"programs", {.ahead = true}, rows},
      {"llama, bf16, programs", {.compute = DTYPE_BF16, .model = LlamaTrialModel()}, rows},
      {"portable, host queue", {}, [](Config& c) { c.portable = c.decide_on_device = true; }},
      {"fp16 that overflows", {.compute = DTYPE_FP16, .loss_scale = 0x1p22, .ahead = true}, rows},
      {"sgd, adversarial", {.sgd = true, .adversarial = true}, [](Config& c) { c.check_accesses = c.streams = true; }},
  };
  std::vector<std::pair<std::string, Choose>> strategies = Strategies();
  strategies.emplace_back("single", Single);
  for (const Case& each : cases) {
    for (const auto& [name, choose] : strategies) {
      Trial trial = each.trial;
      trial.name = absl::StrCat(name, ", ", each.name), trial.choose = dropping(choose);
      trial.ranks = name == "single" ? 1 : 4, trial.microbatch = 1, trial.set = each.set;
      ExpectSameRecorded(trial);
    }
  }
}

// Stages that keep what they send until another pass, shares of units, parts of sequences, statistics over ranks,
// weights in bf16.
TEST(Modes, RecordedStepsOfDividedModelsGiveTheSameBits) {
  const auto streams = [](Config& c) { c.streams = true; };
  const auto on_stages = [](PipelineSchedule schedule, uint32_t chunks) {
    return [=](::muster::Train& t) {
      FsdpOf(RESHARD_FULL_SHARD)(t);
      t.mutable_pipeline()->set_schedule(schedule), t.mutable_pipeline()->set_chunks(chunks);
    };
  };
  Model even = TrialModel();
  even.mutable_gpt2()->set_heads(4), even.mutable_gpt2()->set_width(40);
  std::vector<Trial> trials = {
      {.name = "interleaved stages", .choose = on_stages(PIPELINE_SCHEDULE_INTERLEAVED, 2), .ranks = 4, .stages = 2},
      {.name = "zero bubble", .choose = on_stages(PIPELINE_SCHEDULE_ZERO_BUBBLE, 1), .ranks = 4, .stages = 2},
      {.name = "shares of units", .choose = FsdpOf(RESHARD_FULL_SHARD), .ranks = 4, .model = even, .tensor = 2},
      {.name = "parts of sequences", .choose = FsdpOf(RESHARD_FULL_SHARD), .ranks = 4, .context = 2},
      {.name = "synchronized statistics",
       .choose = FsdpOf(RESHARD_FULL_SHARD),
       .ranks = 4,
       .sgd = true,
       .model = ResnetTrialModel()},
      {.name = "bf16 weights",
       .choose = FsdpOf(RESHARD_FULL_SHARD),
       .ranks = 4,
       .compute = DTYPE_BF16,
       .params = DTYPE_BF16},
  };
  for (Trial& trial : trials) {
    for (const bool ahead : {false, true}) {
      trial.microbatch = 1, trial.adversarial = ahead, trial.ahead = ahead, trial.set = streams;
      ExpectSameRecorded(trial);
    }
  }
}

// Batches of other sizes, an evaluation between steps, and progress that is set as after a restart.
TEST(Modes, AnotherShapeIsRecordedAnew) {
  const auto train = [](bool recorded) {
    const ::muster::Train train = MakeTrain({.name = "single", .choose = Single});
    Config config = Configure(train, *models::MakeInventory(train.model()), 1, 0)->config;
    config.streams = true, config.recorded = recorded;
    const auto engine = Engine::Create(config).value();
    std::vector<double> losses;
    for (const uint32_t samples : {7, 7, 4, 4, 7, 1, 7}) {
      const std::vector<uint32_t> tokens = Sequences(losses.size());
      const auto own = absl::MakeSpan(tokens).first(samples * (kContext + 1));
      const Batch batch = tasks::TokenBatch(samples, own, samples);
      losses.push_back(engine->Step(batch, 0x1p-10)->loss);
      losses.push_back(engine->Evaluate(batch)->loss);
      EXPECT_TRUE(engine->SetProgress(engine->step() + 10, engine->update_state()).ok());
    }
    return losses;
  };
  EXPECT_EQ(train(true), train(false));
}

TEST(Modes, WhatCannotBeRecordedIsRefused) {
  const auto refused = [](const std::function<void(::muster::Train&)>& choose, bool streams = true) {
    const ::muster::Train train = MakeTrain({.name = "single", .choose = choose});
    Config config = Configure(train, *models::MakeInventory(train.model()), 1, 0)->config;
    config.streams = streams, config.recorded = true;
    return std::string(Engine::Create(config).status().message());
  };
  EXPECT_EQ(refused(Single), "");
  EXPECT_EQ(refused(Single, false), "the step cannot be recorded: the host decides about the update");
  const auto lion = [](::muster::Train& t) { Single(t), t.mutable_optimizer()->mutable_lion(); };
  EXPECT_EQ(refused(lion),
            "the step cannot be recorded: this optimizer computes with the learning rate on the host; adamw and sgd "
            "do not");
  const auto offload = [](::muster::Train& t) { Single(t), t.mutable_offload()->set_optimizer(true); };
  EXPECT_EQ(refused(offload), "the step cannot be recorded: offload copies by the host, which waits for the device");
}

std::unique_ptr<Engine> OnStreams(const Trial& trial = {.name = "single", .choose = Single}) {
  const ::muster::Train train = MakeTrain(trial);
  Config config = Configure(train, *models::MakeInventory(train.model()), 1, 0)->config;
  config.streams = true;
  return Engine::Create(config).value();
}

std::vector<float> WeightsOf(Engine& engine) {
  EXPECT_TRUE(engine.Pull().ok());
  std::vector<float> all;
  for (const StateView& view : engine.State()) all.insert(all.end(), view.values.begin(), view.values.end());
  return all;
}

TEST(Modes, AStepIssuedAfterOneThatIsNotFiniteUpdatesNothing) {
  const auto engine = OnStreams();
  const std::vector<uint32_t> tokens = Sequences(0);
  const Batch batch = tasks::TokenBatch(kSequences, tokens, kSequences);
  ASSERT_TRUE(engine->Step(batch, kAdamRate).ok());
  std::vector<StateView> state = engine->State();
  ASSERT_TRUE(engine->Pull().ok());
  const float first = state[0].values[0];
  state[0].values[0] = std::nanf("");
  ASSERT_TRUE(engine->Push().ok());
  const std::vector<float> before = WeightsOf(*engine);
  ASSERT_TRUE(engine->Issue(batch, kAdamRate).ok());
  ASSERT_TRUE(engine->Issue(batch, kAdamRate).ok());
  EXPECT_EQ(engine->Await().status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(engine->in_flight(), 0) << "those after it are dropped";
  const std::vector<float> after = WeightsOf(*engine);
  for (size_t i = 1; i < after.size(); ++i) ASSERT_EQ(after[i], before[i]) << i;
  // Once the cause is mended, training goes on.
  state = engine->State();
  state[0].values[0] = first;
  ASSERT_TRUE(engine->Push().ok());
  ASSERT_TRUE(engine->Step(batch, kAdamRate).ok());
  EXPECT_EQ(engine->step(), 2u);
  EXPECT_NE(WeightsOf(*engine)[1], before[1]);
}

// Also where the host decides, and the step after the failed one would be finite: one token's embedding is not, and
// only the first batch has the token.
TEST(Modes, AFiniteStepAfterOneThatIsNotUpdatesNothing) {
  constexpr uint32_t kBroken = 5;
  for (const bool offloaded : {false, true}) {
    const auto engine = OnStreams({.name = "single",
                                   .choose =
                                       [=](::muster::Train& train) {
                                         Single(train);
                                         train.mutable_offload()->set_optimizer(offloaded);
                                       },
                                   .model = LlamaTrialModel()});
    for (StateView& view : engine->State()) {
      if (view.kind == "parameter" && view.tensor == "model.embed_tokens.weight") {
        view.values[kBroken * view.shape[1]] = std::nanf("");
      }
    }
    ASSERT_TRUE(engine->Push().ok());
    const std::vector<float> before = WeightsOf(*engine);
    std::vector<uint32_t> with = Sequences(0), without = with;
    with[0] = kBroken;
    std::replace(without.begin(), without.end(), kBroken, kBroken + 1);
    ASSERT_TRUE(engine->Issue(tasks::TokenBatch(kSequences, with, kSequences), kAdamRate).ok());
    ASSERT_TRUE(engine->Issue(tasks::TokenBatch(kSequences, without, kSequences), kAdamRate).ok());
    EXPECT_EQ(engine->Await().status().code(), absl::StatusCode::kOutOfRange);
    const std::vector<float> after = WeightsOf(*engine);
    for (size_t i = 0; i < after.size(); ++i) {
      ASSERT_TRUE(after[i] == before[i] || std::isnan(before[i])) << i << (offloaded ? ", offloaded" : "");
    }
    EXPECT_TRUE(engine->Step(tasks::TokenBatch(kSequences, without, kSequences), kAdamRate).ok());
    EXPECT_NE(WeightsOf(*engine), before);
  }
}

TEST(Modes, WhatNeedsTheModelWaitsForTheStepsInFlight) {
  const auto engine = OnStreams();
  const std::vector<uint32_t> tokens = Sequences(0);
  const Batch batch = tasks::TokenBatch(kSequences, tokens, kSequences);
  EXPECT_EQ(engine->Await().status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(engine->most_in_flight(), 2);
  ASSERT_TRUE(engine->Issue(batch, kAdamRate).ok());
  ASSERT_TRUE(engine->Issue(batch, kAdamRate).ok());
  const absl::StatusCode refused = absl::StatusCode::kFailedPrecondition;
  EXPECT_EQ(engine->Issue(batch, kAdamRate).code(), refused) << "a third";
  EXPECT_EQ(engine->Evaluate(batch).status().code(), refused);
  EXPECT_EQ(tasks::NextToken(engine.get()).Logits(absl::MakeSpan(tokens).first(2)).status().code(), refused);
  EXPECT_EQ(engine->Pull().code(), refused);
  EXPECT_EQ(engine->Push().code(), refused);
  ASSERT_TRUE(engine->Await().ok());
  EXPECT_EQ(engine->step(), 1u);
  EXPECT_EQ(engine->in_flight(), 1);
  ASSERT_TRUE(engine->Await().ok());
  EXPECT_TRUE(engine->Evaluate(batch).ok());
}

// What is loaded reaches the device, and what is saved comes from it, by copies in host memory.
TEST(Modes, GoOnFromACopyOfTheState) {
  const auto copies = [](Config& c) { c.streams = true; };
  const Trial whole{.name = "whole", .choose = Strategies()[0].second, .ranks = 2, .microbatch = 4, .set = copies};
  Trial shards = whole;
  shards.choose = FsdpOf(RESHARD_FULL_SHARD);
  const Curve half = Train(whole, {.steps = kSteps / 2});
  Curve rest = Train(shards, {.from = &half, .first = kSteps / 2, .steps = kSteps / 2});
  rest.losses.insert(rest.losses.begin(), half.losses.begin(), half.losses.end());
  rest.norms.insert(rest.norms.begin(), half.norms.begin(), half.norms.end());
  ExpectSame(shards, rest, Train({.name = "single", .choose = Single}));
}

// The ops of the next step touch nothing that is being copied before its update does, which waits for the copies' end.
TEST(Modes, OnlyTheUpdateWaitsForCopiesOfTheState) {
  for (const auto& [name, choose] : Strategies()) {
    for (const Dtype compute : {DTYPE_FP32, DTYPE_BF16}) {
      Trial trial{.name = absl::StrCat(name, ", ", Dtype_Name(compute)), .choose = choose, .ranks = 4, .microbatch = 1};
      trial.compute = compute, trial.step_beside_copies = true;
      trial.set = [](Config& c) { c.check_accesses = c.streams = true; };
      const Curve seen = Train(trial, {.steps = 2});
      EXPECT_EQ(seen.losses.size(), 2u) << trial.name;
    }
  }
}

// ---- Waits ----

struct Wait {
  bool evaluation;
  size_t op, wait;
};

std::vector<Wait> WaitsOf(const Config& config) {
  std::vector<Wait> waits;
  for (const bool evaluation : {false, true}) {
    const Schedule& schedule = evaluation ? config.evaluation : config.schedule;
    for (size_t o = 0; o < schedule.ops.size(); ++o) {
      for (size_t w = 0; w < schedule.ops[o].waits.size(); ++w) waits.push_back({evaluation, o, w});
    }
  }
  return waits;
}

void Remove(const Wait& wait, Config& config) {
  Op& op = (wait.evaluation ? config.evaluation : config.schedule).ops[wait.op];
  op.waits.erase(op.waits.begin() + static_cast<std::ptrdiff_t>(wait.wait));
}

// Whether op `later` comes after op `earlier` where each stream runs its ops one after another, as on a device: by a
// search along streams and waits.
bool OrderedOnStreams(const Schedule& schedule, int32_t earlier, int32_t later) {
  std::vector<int32_t> open = {later};
  std::set<int32_t> seen;
  while (!open.empty()) {
    const int32_t at = open.back();
    open.pop_back();
    if (at == earlier) return true;
    if (at < earlier || !seen.insert(at).second) continue;
    const Op& op = schedule.ops[at];
    open.insert(open.end(), op.waits.begin(), op.waits.end());
    int32_t before = at - 1;
    while (before >= 0 && schedule.ops[before].stream != op.stream) --before;
    if (before >= 0) open.push_back(before);
  }
  return false;
}

// What rank 0 sees of a step and an evaluation on four ranks.
absl::Status RunOnce(const Trial& trial, const std::function<void(Config&)>& spoil, StepResult* result = nullptr) {
  const ::muster::Train train = MakeTrain(trial);
  const Inventory inventory = *models::MakeInventory(train.model());
  const auto layout = strategies::MakeLayout(train, inventory, strategies::AnyPlaces(trial.ranks));
  const Groups groups(inventory, *layout, trial.adversarial);
  std::vector<absl::Status> statuses(trial.ranks);
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < trial.ranks; ++rank) {
    threads.emplace_back([&, rank] {
      Config config = Configure(train, inventory, trial.ranks, rank)->config;
      config.groups = groups.of[rank];
      config.poison = config.unproven = true;
      if (trial.set) trial.set(config);
      spoil(config);
      const auto engine = Engine::Create(config);
      ASSERT_TRUE(engine.ok()) << engine.status();
      const auto step = TakeStep(trial, rank, **engine);
      if (step.ok() && rank == 0 && result != nullptr) *result = *step;
      statuses[rank] = step.status();
      if (!step.ok()) return;
      const std::vector<uint32_t> all = Sequences(1000);
      const auto own = absl::MakeSpan(all).subspan(rank * (kContext + 1), kContext + 1);
      statuses[rank] = (*engine)->Evaluate(tasks::TokenBatch(1, own, 4)).status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses[0];
}

// On a GPU the waits for an aborted collective are good, and so are the numbers that it leaves: only the group knows.
TEST(Modes, NothingIsGoodAfterACollectiveWasAborted) {
  using Act = std::function<absl::Status(const Trial&, Engine&)>;
  const std::vector<std::pair<const char*, Act>> acts = {
      {"a step", [](const Trial& trial, Engine& engine) { return TakeStep(trial, 0, engine).status(); }},
      {"an evaluation",
       [](const Trial& trial, Engine& engine) { return engine.Evaluate(TrialBatch(trial, 1000, 5, 0)).status(); }},
      {"a copy for a checkpoint", [](const Trial&, Engine& engine) { return engine.Pull(); }},
  };
  for (const auto& [name, choose] : Strategies()) {
    for (const auto& [what, act] : acts) {
      SCOPED_TRACE(testing::Message() << name << ", " << what);
      const Trial trial{.name = name, .choose = choose, .ranks = 4, .microbatch = 1};
      const ::muster::Train train = MakeTrain(trial);
      Configured configured = *Configure(train, *models::MakeInventory(train), trial.ranks, 0);
      absl::Status health;
      const MeshGroups groups = *MakeGroups(
          configured.mesh, configured.config.schedule.groups, 0, [&](const GroupSpec&, const Membership& own) {
            return std::make_unique<GroupOfOthers>(static_cast<int>(own.index), static_cast<int>(own.size), &health);
          });
      configured.config.groups = groups.by_number;
      configured.config.unproven = true;
      const auto engine = Engine::Create(configured.config).value();
      const absl::Status before = act(trial, *engine);
      ASSERT_TRUE(before.ok()) << before;
      health = absl::UnavailableError("rank 2 is gone");
      const absl::Status after = act(trial, *engine);
      EXPECT_EQ(after.code(), absl::StatusCode::kUnavailable) << after;
      EXPECT_TRUE(absl::StrContains(after.message(), "rank 2 is gone")) << after;
    }
  }
}

// A step and an evaluation of one rank alone, whose numbers mean nothing: what it sees of the order of accesses.
absl::Status RunAlone(const Trial& trial, const Mesh& mesh, uint32_t rank, Config config) {
  const MeshGroups groups =
      *MakeGroups(mesh, config.schedule.groups, rank, [](const GroupSpec&, const Membership& own) {
        return std::make_unique<GroupOfOthers>(static_cast<int>(own.index), static_cast<int>(own.size));
      });
  config.groups = groups.by_number;
  config.unproven = config.check_accesses = true;
  const auto engine = Engine::Create(config);
  if (!engine.ok()) return engine.status();
  const auto step = TakeStep(trial, rank, **engine);
  const auto refused = [](const absl::Status& status) { return !status.ok() && !absl::IsOutOfRange(status); };
  if (refused(step.status())) return step.status();
  const auto evaluation = (*engine)->Evaluate(TrialBatch(trial, 1000, 5, rank));
  return refused(evaluation.status()) ? evaluation.status() : absl::OkStatus();  // not finite: means nothing, either
}

struct WaitCounts {
  int all = 0, redundant = 0, at_the_end = 0;
};

// What the checker wants waited for although nothing that follows in the schedule touches the memory: the next
// schedule's ops, which do, begin after all of these. A gradient of a tied tensor on its way at the step's end; a
// release of what has no slot.
bool WaitsForTheEnd(const Schedule& schedule, const Op& op, const Op& awaited) {
  if (op.kind == OpKind::kGradientNorm) return awaited.kind == OpKind::kSendTiedGradient;
  return op.kind == OpKind::kRelease && awaited.kind == OpKind::kSendTied &&
         std::none_of(schedule.ops.begin(), schedule.ops.end(), [&](const Op& gather) {
           return gather.kind == OpKind::kGather && gather.slot >= 0 && gather.unit <= op.unit &&
                  op.unit < gather.unit_end;
         });
}

// Each wait of each stage's program, removed alone, is seen by what the ops touch in memory on some rank of the stage,
// in both queues. On devices a stream runs its ops one after another, which makes a wait redundant where the op that is
// waited for comes before along streams and other waits (OrderedOnStreams finds a way): it is there for CPUs, where ops
// of a stream may overlap. On CPUs none is redundant.
void ExpectEveryWaitIsSeen(const Trial& trial, WaitCounts& counts) {
  const ::muster::Train train = MakeTrain(trial);
  const Inventory inventory = *models::MakeInventory(train);
  const uint32_t of_stage = trial.ranks / trial.stages;
  for (uint32_t stage = 0; stage < trial.stages; ++stage) {
    std::vector<Configured> ranks;
    for (uint32_t r = 0; r < of_stage; ++r) {
      ranks.push_back(*Configure(train, inventory, trial.ranks, stage * of_stage + r, trial.ranks_on_node));
    }
    const Config& proven = ranks[0].config;
    for (const bool streams : {false, true}) {
      // On the first rank that refuses; OK: on none.
      const auto run = [&](const std::function<void(Config&)>& spoil) {
        absl::Status seen;
        for (uint32_t r = 0; r < of_stage && seen.ok(); ++r) {
          Config config = ranks[r].config;
          config.streams = streams;
          spoil(config);
          seen = RunAlone(trial, ranks[r].mesh, stage * of_stage + r, std::move(config));
        }
        return seen;
      };
      ASSERT_EQ(run([](Config&) {}), absl::OkStatus()) << trial.name;
      for (const Wait& wait : WaitsOf(proven)) {
        const Op& op = (wait.evaluation ? proven.evaluation : proven.schedule).ops[wait.op];
        const int32_t awaited = op.waits[wait.wait];
        const std::string what = absl::StrCat(
            trial.name, ", stage ", stage, streams ? ", streams" : ", host", wait.evaluation ? ", evaluation" : "",
            ": op ", wait.op, ": ", Print(op, proven.inventory), " without ", awaited, ": ",
            Print((wait.evaluation ? proven.evaluation : proven.schedule).ops[awaited], proven.inventory));
        Config spoilt = proven;
        Remove(wait, spoilt);
        const Schedule& after = wait.evaluation ? spoilt.evaluation : spoilt.schedule;
        EXPECT_FALSE(Check(after, proven.inventory).ok()) << what;
        const bool ordered = streams && OrderedOnStreams(after, awaited, static_cast<int32_t>(wait.op));
        const absl::Status seen = run([&](Config& c) { Remove(wait, c); });
        const bool at_the_end = !ordered && WaitsForTheEnd(after, op, after.ops[awaited]);
        EXPECT_EQ(seen.code(), ordered || at_the_end ? absl::StatusCode::kOk : absl::StatusCode::kFailedPrecondition)
            << what << ": " << seen;
        ++counts.all, counts.redundant += ordered ? 1 : 0, counts.at_the_end += at_the_end ? 1 : 0;
      }
    }
  }
}

TEST(Modes, EveryWaitThatIsRemovedIsSeen) {
  std::vector<std::pair<std::string, Choose>> all = Strategies();
  for (const bool parameters : {false, true}) {
    all.emplace_back(parameters ? "full_shard, parameters offloaded" : "full_shard, offloaded",
                     FsdpOf(RESHARD_FULL_SHARD, [=](::muster::Train& train, Fsdp&) {
                       train.mutable_offload()->set_optimizer(true),
                           train.mutable_offload()->set_parameters(parameters);
                     }));
  }
  all.emplace_back("full_shard, all offloaded", FsdpOf(RESHARD_FULL_SHARD, [](::muster::Train& train, Fsdp&) {
                     train.set_activation_checkpointing(true);
                     Offload& offload = *train.mutable_offload();
                     offload.set_optimizer(true), offload.set_parameters(true), offload.set_activations(true);
                   }));
  all.emplace_back("ddp, activations offloaded", [](::muster::Train& train) {
    train.mutable_strategy()->mutable_ddp()->set_bucket_mib(0.05);
    train.set_activation_checkpointing(true);
    train.mutable_offload()->set_activations(true);
  });
  WaitCounts counts;
  for (const auto& [name, choose] : all) {
    ExpectEveryWaitIsSeen({.name = name, .choose = choose, .ranks = 4, .microbatch = 1}, counts);
  }
  // Two levels, of shards, of replicas, and of what is offloaded.
  for (const auto& [name, choose] : all) {
    if (name != "ddp" && name != "zero 2" && name != "full_shard" && name != "full_shard, all offloaded") continue;
    ExpectEveryWaitIsSeen(
        {.name = name + ", levels", .choose = choose, .ranks = 4, .microbatch = 1, .ranks_on_node = 2}, counts);
  }
  EXPECT_GT(counts.all, 1000);
  EXPECT_LT(counts.redundant, counts.all / 6);
  EXPECT_EQ(counts.at_the_end, 0);
  RecordProperty("waits", counts.all), RecordProperty("redundant_on_streams", counts.redundant);
  RecordProperty("at_the_end", counts.at_the_end);
}

// Ranks that compute a unit together or share sequences, and the stages of pipelines, each with its own program.
TEST(Modes, EveryWaitThatIsRemovedFromADividedModelIsSeen) {
  Model even = TrialModel();
  even.mutable_gpt2()->set_heads(4), even.mutable_gpt2()->set_width(40);
  Model deep = even;
  deep.mutable_gpt2()->set_layers(6);  // eight units
  const auto by = [](PipelineSchedule schedule, uint32_t chunks, const Choose& choose) -> Choose {
    return [=](::muster::Train& t) {
      choose(t);
      t.mutable_pipeline()->set_schedule(schedule), t.mutable_pipeline()->set_chunks(chunks);
    };
  };
  const Choose full_shard = FsdpOf(RESHARD_FULL_SHARD);
  std::vector<Trial> trials = {
      {.name = "tensor", .choose = Single, .ranks = 2, .model = even, .tensor = 2},
      {.name = "tensor, by tokens",
       .choose = [=](::muster::Train& t) { full_shard(t), t.mutable_parallel()->set_sequence_parallel(true); },
       .ranks = 4,
       .model = even,
       .tensor = 2},
      {.name = "context, tensor", .choose = full_shard, .ranks = 4, .model = even, .tensor = 2, .context = 2},
  };
  struct Order {
    const char* name;
    PipelineSchedule schedule;
    uint32_t chunks;
  };
  for (const Order& order :
       {Order{"gpipe", PIPELINE_SCHEDULE_GPIPE, 1}, Order{"1f1b", PIPELINE_SCHEDULE_1F1B, 1},
        Order{"interleaved", PIPELINE_SCHEDULE_INTERLEAVED, 2}, Order{"zero bubble", PIPELINE_SCHEDULE_ZERO_BUBBLE, 1},
        Order{"zero bubble in a V", PIPELINE_SCHEDULE_ZERO_BUBBLE, 2}}) {
    for (const uint32_t stages : {2u, 4u}) {
      trials.push_back({.name = absl::StrCat(order.name, " on ", stages),
                        .choose = by(order.schedule, order.chunks, Single),
                        .ranks = stages,
                        .model = deep,
                        .stages = stages});
    }
    for (const auto& [name, choose] : Strategies()) {
      if (name != "ddp" && name != "zero 2" && name != "full_shard recomputed") continue;
      trials.push_back({.name = absl::StrCat(order.name, ", ", name),
                        .choose = by(order.schedule, order.chunks, choose),
                        .ranks = 4,
                        .model = even,
                        .stages = 2});
    }
  }
  trials.push_back({.name = "1f1b, tensor",
                    .choose = by(PIPELINE_SCHEDULE_1F1B, 1, full_shard),
                    .ranks = 8,
                    .model = even,
                    .stages = 2,
                    .tensor = 2});
  WaitCounts counts;
  for (Trial& trial : trials) {
    trial.microbatch = 1;
    ExpectEveryWaitIsSeen(trial, counts);
  }
  EXPECT_GT(counts.all, 2000);
  EXPECT_LT(counts.redundant, counts.all / 6);
  EXPECT_LT(counts.at_the_end, counts.all / 50);
  RecordProperty("waits", counts.all), RecordProperty("redundant_on_streams", counts.redundant);
  RecordProperty("at_the_end", counts.at_the_end);
}

// Without any check, a wait for a collective that is removed shows in the numbers.
TEST(Modes, AForgottenCollectiveShowsInTheNumbers) {
  for (const auto& [name, choose] : Strategies()) {
    const Trial trial{.name = name, .choose = choose, .ranks = 4, .microbatch = 1, .adversarial = true};
    const ::muster::Train train = MakeTrain(trial);
    const Inventory inventory = *models::MakeInventory(train.model());
    const Config proven = Configure(train, inventory, trial.ranks, 0)->config;
    StepResult right;
    ASSERT_EQ(RunOnce(
                  trial, [](Config&) {}, &right),
              absl::OkStatus())
        << name;
    for (const Wait& wait : WaitsOf(proven)) {
      const std::vector<Op>& ops = (wait.evaluation ? proven.evaluation : proven.schedule).ops;
      const Op& awaited = ops[static_cast<size_t>(ops[wait.op].waits[wait.wait])];
      if (awaited.stream == Stream::kCompute || awaited.stream == ops[wait.op].stream) continue;
      StepResult result;
      const absl::Status status = RunOnce(
          trial, [&](Config& c) { Remove(wait, c); }, &result);
      EXPECT_TRUE(!status.ok() || result.loss != right.loss || result.gradient_norm != right.gradient_norm)
          << name << ": op " << wait.op << ": " << Print(ops[wait.op], inventory);
    }
  }
}

}  // namespace
}  // namespace muster::engine
