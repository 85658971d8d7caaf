// Steps that are captured as a graph and launched, on a device that is a CPU (fake_stream_driver_test.h): the same bits
// as steps that run op by op, and the order of calls, failures and fallbacks that a GPU would see. All but the driver
// is what runs on a GPU.
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "testing/wait.h"
#include "worker/collectives/device_group.h"
#include "worker/collectives/fake_device_test.h"
#include "worker/engine/fake_stream_driver_test.h"
#include "worker/engine/strategy_trials_test.h"
#include "worker/engine/stream_queue.h"

TORCH_LIBRARY_IMPL(_, Fake, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&muster::engine::PutOnTape>()); }

namespace muster::engine {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Lt;
using ::testing::Not;
using ::testing::StartsWith;

// ---- Streams ----

class EventStreamsTest : public ::testing::Test {
 protected:
  absl::StatusOr<Streams::Mark> Run(Stream stream, std::vector<Streams::Mark> after = {}) {
    return streams_->Run(stream, after, [] {});
  }
  FakeDriverLog log_;
  std::unique_ptr<Streams> streams_ = MakeEventStreams(std::make_unique<FakeStreamDriver>(log_));
};

TEST_F(EventStreamsTest, ACaptureTakesInAllStreamsAndJoinsThem) {
  log_.all = true;
  ASSERT_TRUE(streams_->BeginCapture().ok());
  std::vector<std::string> expected = {"begin capture", "record event 0 on 0"};
  for (size_t s = 1; s < kStreams; ++s) expected.push_back(absl::StrCat(s, " waits for event 0"));
  EXPECT_EQ(std::exchange(log_.calls, {}), expected);
  const auto gathered = Run(Stream::kGather);
  ASSERT_TRUE(Run(Stream::kCompute, {*gathered}).ok());
  EXPECT_THAT(std::exchange(log_.calls, {}), ElementsAre("work on 1", "record event 1 on 1", "0 waits for event 1",
                                                         "work on 0", "record event 2 on 0"));
  ASSERT_TRUE(streams_->EndCapture().ok());
  expected.clear();
  for (size_t s = 1; s < kStreams; ++s) {
    expected.push_back(absl::StrCat("record event ", s + 2, " on ", s));
    expected.push_back(absl::StrCat("0 waits for event ", s + 2));
  }
  expected.insert(expected.end(), {"end capture", "graph", "destroy graph"});
  EXPECT_EQ(log_.calls, expected);
}

// A copy waits for what was computed; of the steps that follow, only the update waits for it.
TEST_F(EventStreamsTest, ACopyRunsBesideTheStepsThatFollow) {
  log_.all = true;
  ASSERT_TRUE(streams_->Copy([] {}, [] {}).ok());
  EXPECT_THAT(std::exchange(log_.calls, {}),
              ElementsAre("work on 0", "record event 0 on 0", absl::StrCat(kStreams, " waits for event 0"),
                          absl::StrCat("work on ", kStreams), absl::StrCat("record event 1 on ", kStreams)));
  ASSERT_TRUE(streams_->Begin().ok());
  ASSERT_TRUE(Run(Stream::kCompute).ok());
  for (const std::string& call : std::exchange(log_.calls, {})) {
    EXPECT_THAT(call, Not(AnyOf(HasSubstr("event 1 "), EndsWith("event 1"), StartsWith(absl::StrCat(kStreams, " ")),
                                EndsWith(absl::StrCat("on ", kStreams)))));
  }
  ASSERT_TRUE(streams_->AfterCopy().ok());
  EXPECT_THAT(std::exchange(log_.calls, {}), ElementsAre("0 waits for event 1"));
  EXPECT_TRUE(streams_->Copied().value());
  ASSERT_TRUE(streams_->Copy([] {}, [] {}).ok());
  EXPECT_THAT(log_.calls, Contains("record event 0 on 0")) << "the same events again";
}

// Events of a capture are recorded anew before they are queried, and marks from before it stay.
TEST_F(EventStreamsTest, GoOnAfterACapture) {
  const auto before = Run(Stream::kGather);
  ASSERT_TRUE(streams_->BeginCapture().ok());
  ASSERT_TRUE(Run(Stream::kCompute).ok());
  ASSERT_TRUE(streams_->EndCapture().ok());
  EXPECT_TRUE(streams_->Reached(*before).value());
  ASSERT_TRUE(streams_->Begin().ok());
  const auto after = Run(Stream::kReduce, {*before});
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_TRUE(streams_->Reached(*after).value());
}

// What CUDA does not allow.
TEST_F(EventStreamsTest, TheFakeEnforcesTheRules) {
  const auto message = [](const auto& result) { return std::string(result.status().message()); };
  const auto before = Run(Stream::kGather);
  ASSERT_TRUE(streams_->BeginCapture().ok());
  EXPECT_EQ(message(Run(Stream::kCompute, {*before})), "a captured stream waits for an event from before");
  EXPECT_EQ(message(streams_->EndCapture()), "a captured stream waits for an event from before");
  ASSERT_TRUE(streams_->BeginCapture().ok());
  EXPECT_EQ(message(streams_->Reached(*before)), "an event is queried during a capture");
  EXPECT_EQ(message(streams_->EndCapture()), "an event is queried during a capture");
  ASSERT_TRUE(streams_->BeginCapture().ok());
  EXPECT_THROW(at::zeros({1}).item<float>(), c10::Error);
  ASSERT_TRUE(streams_->EndCapture().ok());

  FakeStreamDriver driver(log_);
  const StreamDriver::Event event = *driver.MakeEvent();
  ASSERT_TRUE(driver.BeginCapture().ok());
  ASSERT_TRUE(driver.Record(event, Stream::kCompute).ok());
  ASSERT_TRUE(driver.Wait(Stream::kGather, event).ok());
  driver.With(Stream::kGather, [] {});
  EXPECT_EQ(message(driver.EndCapture()), "a stream was not joined");
  EXPECT_EQ(message(driver.Query(event)), "an event of a capture is queried");
  ASSERT_TRUE(driver.BeginCapture().ok());
  driver.With(Stream::kGather, [] {});
  EXPECT_EQ(message(driver.EndCapture()), "work on a stream that is not captured");
}

// ---- Steps ----

constexpr int kGraphSteps = 8;
constexpr Leg kLeg{.steps = kGraphSteps};

// A trial on devices with graphs, one for each rank.
struct OnDevices {
  explicit OnDevices(Trial of) : trial(std::move(of)), logs(trial.ranks) {
    trial.scheduled = true;
    trial.set = [this, set = trial.set](Config& config) {
      if (set) set(config);
      config.streams = config.portable = config.recorded = true;
      config.stream_driver = [this, rank = config.rank] { return std::make_unique<FakeStreamDriver>(logs[rank]); };
      const MutexLock lock(mutex);
      std::map<collectives::Group*, TapedGroup*> taped;
      for (collectives::Group*& group : config.groups) {
        if (group == nullptr) continue;
        TapedGroup*& one = taped[group];
        if (one == nullptr) one = groups.emplace_back(std::make_unique<TapedGroup>(group)).get();
        group = one;
      }
    };
  }
  Curve Train() {
    trial.name += ", graphs";
    return muster::engine::Train(trial, kLeg);
  }

  Trial trial;
  std::vector<FakeDriverLog> logs;  // by rank
  Mutex mutex;
  std::vector<std::unique_ptr<TapedGroup>> groups;
};

Trial Plainly(Trial trial) {
  trial.scheduled = true;
  trial.set = [](Config& config) { config.streams = config.portable = true; };
  return trial;
}

void ExpectEqual(const Trial& trial, const Curve& seen, const Curve& plain) {
  EXPECT_EQ(seen.losses, plain.losses) << trial.name;
  EXPECT_EQ(seen.norms, plain.norms) << trial.name;
  EXPECT_EQ(seen.loss_scales, plain.loss_scales) << trial.name;
  EXPECT_EQ(seen.evaluation, plain.evaluation) << trial.name;
  EXPECT_TRUE(seen.state == plain.state) << trial.name << ": weights or state";
}

// Another learning rate in each step, clipping, microbatches, a loss scale that overflows and skips steps, a step
// ahead.
TEST(Graphs, LaunchedStepsGiveTheSameBits) {
  std::vector<std::pair<std::string, Choose>> strategies = Strategies();
  strategies.emplace_back("single", Single);
  const std::vector<Trial> cases = {
      {.name = "adamw", .microbatch = 1},
      {.name = "sgd", .microbatch = 1, .sgd = true, .ahead = true},
      {.name = "reduced in fp16, which overflows", .microbatch = 2, .reduce = DTYPE_FP16, .loss_scale = 0x1p20},
  };
  for (const Trial& each : cases) {
    for (const auto& [name, choose] : strategies) {
      Trial trial = each;
      trial.name = absl::StrCat(name, ", ", each.name), trial.choose = choose;
      trial.ranks = name == "single" ? 1 : 4;
      OnDevices devices(trial);
      const Curve seen = devices.Train();
      ExpectEqual(devices.trial, seen, Train(Plainly(trial), kLeg));
      EXPECT_EQ(seen.norms.front() == 0, trial.reduce == DTYPE_FP16 && trial.ranks > 1) << trial.name << ": skipped";
      if (trial.reduce == DTYPE_FP16 && trial.ranks > 1) {
        const auto skipped = std::count(seen.norms.begin(), seen.norms.end(), 0);
        EXPECT_THAT(skipped, AllOf(Ge(2), Lt(kGraphSteps))) << trial.name << ": launches were skipped, too, not all";
      }
      for (FakeDriverLog& log : devices.logs) {
        EXPECT_EQ(log.Count("begin capture"), 1) << trial.name;
        EXPECT_EQ(log.Count("launch"), kGraphSteps - 1) << trial.name << ": all but the first";
        EXPECT_EQ(log.Count("destroy graph"), 1) << trial.name;
      }
      for (const auto& group : devices.groups) EXPECT_EQ(group->launched, kGraphSteps - 1) << trial.name;
    }
  }
}

// On one rank or on all: no rank launches, and all go on op by op.
TEST(Graphs, WhatCannotBeCapturedRunsOpByOp) {
  const Trial trial{.name = "full_shard", .choose = FsdpOf(RESHARD_FULL_SHARD), .ranks = 4, .microbatch = 1};
  const Curve plain = Train(Plainly(trial), kLeg);
  const absl::Status error = absl::InternalError("cudaErrorStreamCaptureInvalidated");
  for (const char* const where : {"begin", "end", "work"}) {
    OnDevices devices(trial);
    devices.trial.name = absl::StrCat("fails at ", where);
    FakeDriverLog& log = devices.logs[2];
    (where[0] == 'b' ? log.begin : where[0] == 'e' ? log.end : log.work) = error;
    ExpectEqual(devices.trial, devices.Train(), plain);
    for (FakeDriverLog& each : devices.logs) {
      EXPECT_EQ(each.Count("begin capture"), 1) << where;
      EXPECT_EQ(each.Count("launch"), 0) << where;
      EXPECT_EQ(each.Count("graph"), each.Count("destroy graph")) << where;
    }
  }
}

class OneRankGraphs : public ::testing::Test {
 protected:
  std::unique_ptr<Engine> Make(bool graphs, const std::function<void(Config&)>& set = nullptr) {
    const ::muster::Train train = MakeTrain({.name = "single", .choose = Single});
    Config config = Configure(train, *models::MakeInventory(train.model()), 1, 0)->config;
    config.streams = config.portable = true;
    config.recorded = graphs;
    if (graphs) config.stream_driver = [this] { return std::make_unique<FakeStreamDriver>(log_); };
    if (set) set(config);
    return Engine::Create(config).value();
  }
  static Batch BatchOf(uint64_t step, uint32_t samples) {
    const std::vector<uint32_t> tokens = Sequences(step);
    return tasks::TokenBatch(samples, absl::MakeSpan(tokens).first(samples * (kContext + 1)), samples);
  }
  FakeDriverLog log_;
};

// A batch of another size, and evaluations, run op by op and do not cost the graph.
TEST_F(OneRankGraphs, OtherShapesRunOpByOp) {
  const auto train = [&](bool graphs) {
    const auto engine = Make(graphs);
    std::vector<double> losses;
    for (const uint32_t samples : {4, 7, 7, 7, 4, 7, 1, 7}) {
      const Batch batch = BatchOf(losses.size(), samples);
      losses.push_back(engine->Step(batch, 0x1p-10)->loss);
      losses.push_back(engine->Evaluate(batch)->loss);
      EXPECT_TRUE(engine->SetProgress(engine->step() + 10, engine->update_state()).ok());
    }
    return losses;
  };
  EXPECT_EQ(train(true), train(false));
  EXPECT_EQ(log_.Count("begin capture"), 1);
  EXPECT_EQ(log_.Count("launch"), 4) << "steps 3, 4, 6 and 8";
}

TEST_F(OneRankGraphs, TheNoteOfTheStepSaysWhatBecameOfTheCapture) {
  const auto notes = [&] {
    const auto engine = Make(true);
    std::vector<std::string> all;
    for (uint64_t step = 0; step < 3; ++step) all.push_back(engine->Step(BatchOf(step, 7), 0x1p-10)->note);
    return all;
  };
  EXPECT_THAT(notes(), ElementsAre("", "from this step on, a step is one launch of a CUDA graph", ""));
  log_.work = absl::InternalError("not permitted");
  EXPECT_THAT(notes(),
              ElementsAre("", AllOf(HasSubstr("go on without a CUDA graph: "), HasSubstr(": not permitted")), ""));
}

// NaN images in a step that runs op by op, and in one that is a launch: the run equals one that never had them.
TEST(Graphs, SkippedLaunchesLeaveRunningStatisticsAsTheyWere) {
  Trial trial{.name = "images", .choose = Single, .microbatch = 3, .sgd = true, .model = ResnetTrialModel()};
  ::muster::Train train = MakeTrain(trial);
  train.mutable_on_nonfinite()->mutable_skip()->set_steps(3);
  FakeDriverLog log;
  const auto state = [&](bool nan) {
    Config config = Configure(train, *models::MakeInventory(train.model()), 1, 0)->config;
    config.streams = config.portable = config.recorded = true;
    config.stream_driver = [&] { return std::make_unique<FakeStreamDriver>(log); };
    const auto engine = Engine::Create(config).value();
    for (const uint64_t step : {0, 1, 2}) {
      const Batch batch = TrialBatch(trial, step, kSequences, 0);
      const at::Tensor images = batch.tensors[models::kInputs], good = images.clone();
      if (nan) {
        images[kSequences - 1].fill_(std::nanf(""));
        EXPECT_TRUE(engine->Step(batch, kSgdRate).value().skipped) << step;
        images.copy_(good);
      }
      EXPECT_FALSE(engine->Step(batch, kSgdRate).value().skipped) << step;
    }
    EXPECT_TRUE(engine->Pull().ok());
    std::map<std::string, std::vector<float>> found;
    for (const StateView& view : engine->State()) {
      found[StateName(view)].assign(view.values.begin(), view.values.end());
    }
    return found;
  };
  EXPECT_EQ(state(true), state(false));
  EXPECT_EQ(log.Count("launch"), 5 + 2) << "all but each engine's first step";
}

class SeenOps final : public OpListener {
 public:
  void Begin(int32_t index, OpKind kind) override { seen.emplace_back(index, kind); }
  void WaitFor(int32_t, OpKind) override {}
  void EndWait(int32_t, OpKind) override {}
  void EndStep() override {}
  std::vector<std::pair<int32_t, OpKind>> seen;
};

// Inside of a graph there is no progress by op: the page shows an op that has no name, and a trace one span.
TEST_F(OneRankGraphs, ProgressIsByTheStep) {
  SeenOps ops;
  const auto engine = Make(true, [&](Config& config) { config.progress = &ops; });
  ASSERT_TRUE(engine->Step(BatchOf(0, 7), 0x1p-10).ok());
  const int32_t last = ops.seen.back().first;
  EXPECT_EQ(ops.seen.size(), static_cast<size_t>(last) + 1) << "each op, and the result";
  ops.seen.clear();
  engine->Record();
  ASSERT_TRUE(engine->Step(BatchOf(1, 7), 0x1p-10).ok());
  for (const auto& op : ops.seen) EXPECT_EQ(op, std::pair(last, OpKind::kEnd));
  std::vector<std::string> spans;
  for (const OpSpan& span : engine->TakeRecord()) spans.push_back(span.name);
  EXPECT_THAT(spans, ElementsAre("Prepare", "the step before", "the graph of the step", "the step's result"));
}

// ---- Copies of the state ----

// What is saved is what the steps before left, though the device copies it as late as it may, beside the next step.
TEST(Copies, TheNextStepDoesNotChangeWhatIsBeingCopied) {
  std::vector<std::pair<std::string, Choose>> strategies = Strategies();
  strategies.emplace_back("single", Single);
  for (const auto& [name, choose] : strategies) {
    for (const bool images : {false, true}) {  // whose passes change running statistics
      for (const bool graphs : {false, true}) {
        Trial trial{.name = absl::StrCat(name, images ? ", images" : "", graphs ? ", graphs" : "")};
        trial.choose = choose, trial.ranks = name == "single" ? 1 : 4, trial.microbatch = 1;
        if (images) trial.model = ResnetTrialModel(), trial.sgd = true;
        OnDevices devices(trial);
        devices.trial.set = [set = devices.trial.set, graphs](Config& c) { set(c), c.recorded = graphs; };
        const Curve before = muster::engine::Train(devices.trial, {.steps = 4});
        OnDevices beside(trial);
        beside.trial.set = [set = beside.trial.set, graphs](Config& c) { set(c), c.recorded = graphs; };
        beside.trial.step_beside_copies = true;
        const Curve seen = muster::engine::Train(beside.trial, {.steps = 4});
        EXPECT_TRUE(seen.state == before.state) << trial.name;
        for (FakeDriverLog& log : beside.logs) EXPECT_EQ(log.Count("launch"), graphs ? 4 : 0) << trial.name;
      }
    }
  }
}

// ---- Failure of a group while a graph is in flight ----

// NCCL's abort waits until the graphs with its collectives are destroyed.
TEST(GraphsOfAFailedGroup, AreDestroyedSoThatTheAbortEnds) {
  FakeDriverLog log;
  collectives::FakeDevice device;
  device.reached.Set(true);
  bool destroyed = false;
  device.on_abort.Set(
      [&] { destroyed = Eventually([&] { return log.Count("destroy graph") == 1; }, absl::Seconds(10)); });
  uint64_t issued = 0;
  const auto group = collectives::MakeDeviceGroup({.rank = 0,
                                                   .size = 2,
                                                   .drain = kTestPatience,
                                                   .name_patience = absl::Seconds(1),
                                                   .watch = absl::Hours(1),
                                                   .count = [&] { return ++issued; },
                                                   .diagnose = [] { return "rank 1 is gone"; }},
                                                  device.Transport());
  TapedGroup taped(group.get());
  const Trial trial{.name = "ddp", .choose = Strategies().front().second, .ranks = 2};
  const ::muster::Train train = MakeTrain(trial);
  Config config = Configure(train, *models::MakeInventory(train.model()), 2, 0)->config;
  config.streams = config.portable = config.recorded = true;
  config.stream_driver = [&] { return std::make_unique<FakeStreamDriver>(log); };
  config.groups[kWorldGroup] = config.groups[kReplicaGroup] = &taped;
  const auto engine = Engine::Create(config).value();
  for (int step = 0; step < 3; ++step) {
    const auto result = TakeStep(trial, 0, *engine);
    ASSERT_TRUE(result.ok()) << result.status();
  }
  EXPECT_EQ(log.Count("launch"), 2);
  ASSERT_TRUE(IssueStep(trial, 0, *engine).ok());
  device.ready.Set(absl::UnavailableError("the network is down"));
  const auto result = engine->Await();
  EXPECT_EQ(result.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("the network is down (rank 1 is gone)"));
  EXPECT_TRUE(destroyed) << "the abort waited for a graph that no one destroyed";
}

// A group that cannot begin a capture has failed; those before it in the list have begun theirs, and end it.
TEST(GraphsOfAFailedGroup, ACaptureThatDoesNotBeginEndsForEveryGroup) {
  FakeDriverLog log;
  collectives::FakeDevice devices[2];
  uint64_t issued = 0;
  std::unique_ptr<collectives::DeviceGroup> groups[2];
  std::unique_ptr<TapedGroup> taped[2];
  for (const int i : {0, 1}) {
    devices[i].reached.Set(true);
    groups[i] = collectives::MakeDeviceGroup({.rank = 0,
                                              .size = 2,
                                              .drain = kTestPatience,
                                              .name_patience = absl::ZeroDuration(),
                                              .watch = absl::Hours(1),
                                              .count = [&] { return ++issued; },
                                              .diagnose = [] { return "rank 1 is gone"; }},
                                             devices[i].Transport());
    taped[i] = std::make_unique<TapedGroup>(groups[i].get());
  }
  const Trial trial{.name = "ddp", .choose = Strategies().front().second, .ranks = 2};
  const ::muster::Train train = MakeTrain(trial);
  Config config = Configure(train, *models::MakeInventory(train.model()), 2, 0)->config;
  config.streams = config.portable = config.recorded = true;
  config.stream_driver = [&] { return std::make_unique<FakeStreamDriver>(log); };
  config.groups[kWorldGroup] = taped[0].get();
  config.groups[kReplicaGroup] = taped[1].get();
  const auto engine = Engine::Create(config).value();
  ASSERT_TRUE(TakeStep(trial, 0, *engine).ok());
  ASSERT_TRUE(groups[0]->AllReduce(at::zeros({1}))->done());
  devices[1].ready.Set(absl::UnavailableError("the network is down"));
  const absl::Status issued_step = IssueStep(trial, 0, *engine);
  EXPECT_THAT(std::string(issued_step.message()), HasSubstr("the network is down (rank 1 is gone)"));
  EXPECT_EQ(log.Count("begin capture"), 0);
  EXPECT_TRUE(groups[0]->AllReduce(at::zeros({1}))->done()) << "what is captured is never done";
}

}  // namespace
}  // namespace muster::engine
