#include "worker/engine/queue.h"

#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "models/inventory.h"
#include "worker/engine/stream_queue.h"

namespace muster::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A collective that is done when the test says so, or when it is waited for.
struct Control {
  std::set<int32_t> done;  // ops
  std::map<int32_t, absl::Status> fails;
};
class ControlledWork final : public collectives::Work {
 public:
  ControlledWork(Control& control, int32_t op) : control_(control), op_(op) {}
  absl::Status Wait() override {
    control_.done.insert(op_);
    return control_.fails.contains(op_) ? control_.fails.at(op_) : absl::OkStatus();
  }
  bool done() const override { return control_.done.contains(op_); }

 private:
  Control& control_;
  const int32_t op_;
};

class Listener final : public OpListener {
 public:
  void Begin(int32_t, OpKind) override {}
  void WaitFor(int32_t earlier, OpKind) override { waits.push_back(earlier); }
  void EndWait(int32_t index, OpKind) override { ends.push_back(index); }
  void EndStep() override {}
  std::vector<int32_t> waits, ends;
};

class Ops {
 public:
  using After = std::initializer_list<int32_t>;
  Ops& Compute(After waits = {}) {
    Op& op = Add(OpKind::kBackward, 0, waits);
    op.microbatch = 0;
    return *this;
  }
  Ops& Reduce(int32_t unit, After waits = {}) {
    Add(OpKind::kReduce, unit, waits).group = kShardGroup;
    return *this;
  }
  Ops& AllReduce(int32_t unit, After waits = {}) {
    Add(OpKind::kAllReduce, unit, waits).group = kReplicaGroup;
    return *this;
  }
  Ops& Offload(int32_t unit, After waits = {}) {
    Add(OpKind::kOffload, unit, waits);
    return *this;
  }
  Ops& Gather(int32_t unit, After waits = {}) {
    Add(OpKind::kGather, unit, waits).group = kShardGroup;
    return *this;
  }
  Ops& On(Stream stream) {
    ops_.back().stream = stream;
    return *this;
  }
  const std::vector<Op>& all() const { return ops_; }

 private:
  Op& Add(OpKind kind, int32_t unit, After waits) {
    Op& op = ops_.emplace_back();
    op.kind = kind, op.unit = unit, op.unit_end = unit + 1;
    op.stream = Traits(kind).stream;
    for (const int32_t w : waits) op.waits.push_back(w);
    return op;
  }
  std::vector<Op> ops_;
};

class QueueTest : public ::testing::Test {
 protected:
  QueueTest() {
    Model model;
    model.mutable_gpt2()->set_size(GPT2_SIZE_TINY);
    inventory_ = *models::MakeInventory(model);
  }

  void Begin(Queue& queue, const Ops& ops) {
    schedule_.ops = ops.all();
    queue.Begin(schedule_, &listener_);
  }
  // Collectives are those with a group.
  absl::Status Post(Queue& queue, int32_t index, std::vector<Access> accesses = {}, bool on_host = false,
                    bool changes_state = false) {
    Task task;
    task.on_host = on_host, task.changes_state = changes_state;
    task.begin = [this, index] {
      log_.push_back(absl::StrCat("begin ", index));
      Works works;
      if (schedule_.ops[index].group >= 0) works.push_back(std::make_unique<ControlledWork>(control_, index));
      return works;
    };
    task.end = [this, index] { log_.push_back(absl::StrCat("end ", index)); };
    task.accesses = [accesses] { return accesses; };
    return queue.Post(index, std::move(task));
  }
  std::vector<std::string> Log() { return std::exchange(log_, {}); }

  Inventory inventory_;
  Recorder recorder_{false};
  Schedule schedule_;
  Control control_;
  Listener listener_;
  std::vector<std::string> log_;
};

// Hybrid sharding: the sum over replicas of what was reduced to its owner begins beside the computing.
TEST_F(QueueTest, AChainOfCollectivesGoesOnByItself) {
  const auto queue = MakeHostQueue({.inventory = &inventory_, .recorder = &recorder_});
  Begin(*queue, Ops().Compute().Reduce(1, {0}).AllReduce(1, {1}).Compute().Compute().Compute().Compute({2}));
  for (int32_t i = 0; i <= 3; ++i) ASSERT_TRUE(Post(*queue, i).ok());
  EXPECT_THAT(Log(), ElementsAre("begin 0", "end 0", "begin 1", "begin 3", "end 3"));
  control_.done.insert(1);
  ASSERT_TRUE(Post(*queue, 4).ok());
  EXPECT_THAT(Log(), ElementsAre("end 1", "begin 2", "begin 4", "end 4"));
  ASSERT_TRUE(Post(*queue, 5).ok());
  EXPECT_THAT(Log(), ElementsAre("begin 5", "end 5"));
  EXPECT_THAT(listener_.waits, IsEmpty());
  ASSERT_TRUE(Post(*queue, 6).ok());
  EXPECT_THAT(Log(), ElementsAre("end 2", "begin 6", "end 6"));
  EXPECT_THAT(listener_.waits, ElementsAre(2));
  EXPECT_THAT(listener_.ends, ElementsAre(6));
}

// Who waits for the end of a chain starts what was put off, in order.
TEST_F(QueueTest, WaitingStartsWhatWasPutOff) {
  const auto queue = MakeHostQueue({.inventory = &inventory_, .recorder = &recorder_});
  Begin(*queue, Ops().Reduce(2).AllReduce(2, {0}).Reduce(1).AllReduce(1, {2}).Compute({3}));
  for (int32_t i = 0; i <= 4; ++i) ASSERT_TRUE(Post(*queue, i).ok());
  EXPECT_THAT(Log(), ElementsAre("begin 0", "begin 2", "end 0", "begin 1", "end 1", "end 2", "begin 3", "end 3",
                                 "begin 4", "end 4"));
  EXPECT_THAT(listener_.waits, ElementsAre(0, 1, 2, 3));
}

// A copy has no work to wait for: it ends with what it waited for, while someone waits for it.
TEST_F(QueueTest, WhatEndsAtOnceIsNotStartedTwice) {
  const auto queue = MakeHostQueue({.inventory = &inventory_, .recorder = &recorder_});
  Begin(*queue, Ops().Reduce(2).Offload(2, {0}).Reduce(1).Offload(1, {2}).Compute({3}));
  for (int32_t i = 0; i <= 4; ++i) ASSERT_TRUE(Post(*queue, i).ok());
  EXPECT_THAT(Log(), ElementsAre("begin 0", "begin 2", "end 0", "begin 1", "end 1", "end 2", "begin 3", "end 3",
                                 "begin 4", "end 4"));
}

// Ranks whose reductions are done in another order issue the same collectives in each group.
TEST_F(QueueTest, AGroupKeepsItsOrderAndOthersGoOn) {
  const auto queue = MakeHostQueue({.inventory = &inventory_, .recorder = &recorder_});
  Begin(*queue, Ops().Reduce(2).AllReduce(2, {0}).AllReduce(1).Gather(3).Compute().Compute({3}));
  control_.done.insert(3);
  for (int32_t i = 0; i <= 4; ++i) ASSERT_TRUE(Post(*queue, i).ok());
  EXPECT_THAT(Log(), ElementsAre("begin 0", "begin 3", "end 3", "begin 4", "end 4")) << "2 comes after 1";
  ASSERT_TRUE(Post(*queue, 5).ok());
  EXPECT_THAT(Log(), ElementsAre("begin 5", "end 5"));
  ASSERT_TRUE(queue->Finish().ok());
  EXPECT_THAT(Log(), ElementsAre("end 0", "begin 1", "begin 2", "end 1", "end 2"));
}

// Also where one that comes before waits after another op of its stream that is under way.
TEST_F(QueueTest, AGroupKeepsItsOrderWhenOneOfItIsNeeded) {
  const auto queue = MakeHostQueue({.inventory = &inventory_, .recorder = &recorder_});
  Begin(*queue, Ops().AllReduce(0).On(Stream::kReduceBetween).Gather(0).Gather(1, {0}).Reduce(1).Compute({3}));
  for (int32_t i = 0; i <= 4; ++i) ASSERT_TRUE(Post(*queue, i).ok());
  EXPECT_THAT(Log(), ElementsAre("begin 0", "begin 1", "end 0", "begin 2", "begin 3", "end 3", "begin 4", "end 4"));
}

TEST_F(QueueTest, EndsOfAStreamKeepTheirOrder) {
  const auto queue = MakeHostQueue({.inventory = &inventory_, .recorder = &recorder_});
  Begin(*queue, Ops().Reduce(2).Reduce(1).Compute().Compute({0}).Compute());
  control_.done.insert(1);
  for (int32_t i = 0; i <= 2; ++i) ASSERT_TRUE(Post(*queue, i).ok());
  EXPECT_THAT(Log(), ElementsAre("begin 0", "begin 1", "begin 2", "end 2"));
  ASSERT_TRUE(Post(*queue, 3).ok());
  EXPECT_THAT(Log(), ElementsAre("end 0", "end 1", "begin 3", "end 3"));
}

TEST_F(QueueTest, AFailureNamesTheOp) {
  for (const bool streams : {false, true}) {
    const QueueOptions options{.inventory = &inventory_, .recorder = &recorder_};
    const auto queue = streams ? MakeStreamQueue(options, MakeInlineStreams()) : MakeHostQueue(options);
    Begin(*queue, Ops().Reduce(1).Compute({0}));
    control_.fails[0] = absl::UnavailableError("rank 3 is gone");
    absl::Status status = Post(*queue, 0);
    if (status.ok()) status = Post(*queue, 1);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(status.message()), HasSubstr("waiting for Reduce h.0 on reduce in shards: rank 3 is gone"));
  }
}

// ---- Streams ----

// A device that comes to a mark after it was asked so many times.
class SlowStreams final : public Streams {
 public:
  explicit SlowStreams(std::map<Mark, int> asked) : asked_(std::move(asked)) {}
  absl::Status Begin() override { return absl::OkStatus(); }
  absl::StatusOr<Mark> Run(Stream stream, absl::Span<const Mark> after, absl::FunctionRef<void()> work) override {
    after_.emplace_back(after.begin(), after.end());
    work();
    return after_.size() - 1;
  }
  absl::Status Copy(absl::FunctionRef<void()> first, absl::FunctionRef<void()> rest) override {
    first(), rest();
    return absl::OkStatus();
  }
  absl::Status AfterCopy() override {
    ++after_copies_;
    return absl::OkStatus();
  }
  absl::StatusOr<bool> Copied() override { return true; }
  bool captures() const override { return true; }
  absl::Status BeginCapture() override { return absl::OkStatus(); }
  void Forget(Mark mark) override { forgotten_ = mark; }
  absl::StatusOr<bool> Reached(Mark mark) override {
    if (mark == broken_) return absl::InternalError("an illegal memory access");
    const bool is = asked_[mark]-- <= 0;
    if (is && reached_) reached_(mark);
    return is;
  }

  std::vector<std::vector<Mark>> after_;  // by mark
  int after_copies_ = 0;
  Mark broken_ = 1000;
  std::optional<Mark> forgotten_;
  std::function<void(Mark)> reached_;

 private:
  std::map<Mark, int> asked_;
};

TEST_F(QueueTest, TheDeviceIsAskedForTheEarliestOpThatIsNotDone) {
  auto streams = std::make_unique<SlowStreams>(std::map<Streams::Mark, int>{{1, 3}, {3, 1}});
  SlowStreams& device = *streams;
  const auto queue = MakeStreamQueue({.inventory = &inventory_, .recorder = &recorder_}, std::move(streams));
  Begin(*queue, Ops().Compute().Reduce(1, {0}).AllReduce(1, {1}).Compute({2}));
  for (int32_t i = 0; i <= 3; ++i) ASSERT_TRUE(Post(*queue, i).ok());
  EXPECT_THAT(device.after_, ElementsAre(IsEmpty(), ElementsAre(0), IsEmpty(), ElementsAre(2)))
      << "ops of one stream need no mark";
  ASSERT_TRUE(queue->Finish().ok());
  EXPECT_THAT(listener_.waits, ElementsAre(1, 3));
  device.broken_ = 6;
  Begin(*queue, Ops().Compute().Reduce(1, {0}).AllReduce(1, {1}).Compute({2}));
  for (int32_t i = 0; i <= 3; ++i) ASSERT_TRUE(Post(*queue, i).ok());
  EXPECT_THAT(std::string(queue->Finish().message()),
              HasSubstr("waiting for AllReduce h.0 on reduce in replicas after 1: an illegal memory access"));
}

TEST_F(QueueTest, FinishWaitsForTheEarliestOfTheSchedulesInFlight) {
  auto streams = std::make_unique<SlowStreams>(std::map<Streams::Mark, int>{{1, 2}, {2, 1}});
  SlowStreams& device = *streams;
  const auto queue = MakeStreamQueue({.inventory = &inventory_, .recorder = &recorder_}, std::move(streams));
  ASSERT_TRUE(queue->runs_ahead());
  for (int step = 0; step < 2; ++step) {
    Begin(*queue, Ops().Compute().Reduce(1, {0}));
    for (int32_t i = 0; i <= 1; ++i) ASSERT_TRUE(Post(*queue, i).ok());
  }
  EXPECT_THAT(device.after_, ElementsAre(IsEmpty(), ElementsAre(0), IsEmpty(), ElementsAre(2)));
  ASSERT_TRUE(queue->Finish().ok());
  EXPECT_THAT(listener_.waits, ElementsAre(1));
  EXPECT_EQ(device.forgotten_, 1u);
  ASSERT_TRUE(queue->Finish().ok());
  EXPECT_THAT(listener_.waits, ElementsAre(1, 0));
  EXPECT_EQ(device.forgotten_, 3u);
}

// A capture that ends early, by an error or with the queue, leaves nothing paused.
TEST_F(QueueTest, ACaptureThatDoesNotEndPausesNoRecord) {
  for (const bool abandons : {true, false}) {
    auto queue = MakeStreamQueue({.inventory = &inventory_, .recorder = &recorder_},
                                 std::make_unique<SlowStreams>(std::map<Streams::Mark, int>{}));
    recorder_.Start();
    schedule_.ops = Ops().Compute().all();
    ASSERT_TRUE(queue->BeginCapture(schedule_).ok());
    EXPECT_FALSE(recorder_.on());
    if (abandons) {
      queue->Abandon();
    } else {
      queue = nullptr;
    }
    EXPECT_TRUE(recorder_.on()) << abandons;
  }
}

// What reads host memory that the device writes begins only when the device is there.
TEST_F(QueueTest, WorkOfTheHostWaitsForTheDevice) {
  auto streams = std::make_unique<SlowStreams>(std::map<Streams::Mark, int>{{1, 3}, {2, 2}});
  SlowStreams& device = *streams;
  const auto queue = MakeStreamQueue({.inventory = &inventory_, .recorder = &recorder_}, std::move(streams));
  Begin(*queue, Ops().Compute().Offload(1, {0}).Compute().Compute({1}).Compute());
  device.reached_ = [this](Streams::Mark mark) { log_.push_back(absl::StrCat("reached ", mark)); };
  for (int32_t i = 0; i <= 2; ++i) ASSERT_TRUE(Post(*queue, i).ok());
  Log();
  ASSERT_TRUE(Post(*queue, 3, {}, /*on_host=*/true).ok());
  EXPECT_THAT(Log(), ElementsAre("reached 1", "reached 2", "begin 3", "end 3"));
  EXPECT_THAT(listener_.waits, ElementsAre(1, 2));
  EXPECT_THAT(listener_.ends, ElementsAre(3));
  device.broken_ = 3;
  EXPECT_THAT(std::string(Post(*queue, 4, {}, /*on_host=*/true).message()), HasSubstr("an illegal memory access"));
}

// A copy reads what was computed before it; later schedules' ops go on meanwhile, and the first one that changes what
// is copied makes kCompute wait, once.
TEST_F(QueueTest, WhatChangesTheStateWaitsForItsCopy) {
  const at::Tensor weights = at::zeros({64}), other = at::zeros({64}), copy = at::zeros({64});
  const auto accesses = [&] { return std::vector<Access>{Reads(weights), Writes(copy)}; };
  for (const bool says_so : {true, false}) {
    auto streams = std::make_unique<SlowStreams>(std::map<Streams::Mark, int>{});
    SlowStreams& device = *streams;
    const auto queue =
        MakeStreamQueue({.inventory = &inventory_, .recorder = &recorder_, .check_accesses = true}, std::move(streams));
    Begin(*queue, Ops().Compute());
    ASSERT_TRUE(Post(*queue, 0, {Writes(weights)}, false, /*changes_state=*/true).ok());
    ASSERT_TRUE(queue->Finish().ok());
    EXPECT_EQ(device.after_copies_, 0) << "there was none yet";
    ASSERT_TRUE(queue->Copy([&] { log_.push_back("first"); }, [&] { log_.push_back("rest"); }, accesses).ok());
    Log();
    Begin(*queue, Ops().Compute().Compute().Gather(1).Compute());
    ASSERT_TRUE(Post(*queue, 0, {Reads(weights), Writes(other)}).ok());
    EXPECT_EQ(device.after_copies_, 0);
    const absl::Status changed = Post(*queue, 1, {Writes(weights)}, false, says_so);
    if (!says_so) {
      EXPECT_THAT(std::string(changed.message()), HasSubstr("writes memory that the state's copy reads"));
      continue;
    }
    ASSERT_TRUE(changed.ok()) << changed;
    ASSERT_TRUE(Post(*queue, 2).ok());
    ASSERT_TRUE(Post(*queue, 3, {Writes(weights), Reads(copy)}, false, says_so).ok());
    EXPECT_EQ(device.after_copies_, 1);
  }
}

// As a device goes on: a stage of a pipeline issues its next receive before it computes what the other stage needs.
TEST_F(QueueTest, AStreamOfTheHostWaitsWhenAnOpNeedsIt) {
  const auto queue = MakeStreamQueue({.inventory = &inventory_, .recorder = &recorder_}, MakeInlineStreams());
  Begin(*queue, Ops().Gather(1).Gather(2).Compute().Compute({0}).Reduce(1, {3}));
  for (int32_t i = 0; i <= 2; ++i) ASSERT_TRUE(Post(*queue, i).ok());
  EXPECT_THAT(Log(), ElementsAre("begin 0", "begin 1", "begin 2", "end 2"));
  ASSERT_TRUE(Post(*queue, 3).ok());
  EXPECT_THAT(Log(), ElementsAre("end 0", "begin 3", "end 3"));
  ASSERT_TRUE(Post(*queue, 4).ok());
  ASSERT_TRUE(queue->Finish().ok());
  EXPECT_THAT(Log(), ElementsAre("begin 4", "end 1", "end 4"));
}

// ---- The order of accesses ----

TEST_F(QueueTest, AnOpThatDoesNotWaitIsRefused) {
  const at::Tensor slot = at::zeros({64}), other = at::zeros({64});
  for (const bool streams : {false, true}) {
    const QueueOptions options{.inventory = &inventory_, .recorder = &recorder_, .check_accesses = true};
    const auto queue = streams ? MakeStreamQueue(options, MakeInlineStreams()) : MakeHostQueue(options);
    Begin(*queue, Ops().Gather(1).Compute().Compute({0}));
    ASSERT_TRUE(Post(*queue, 0, {Writes(slot)}).ok());
    ASSERT_TRUE(Post(*queue, 1, {Reads(other), Writes(other)}).ok());
    ASSERT_TRUE(Post(*queue, 2, {Reads(slot.narrow(0, 60, 4))}).ok());
    Begin(*queue, Ops().Gather(1).Compute());
    ASSERT_TRUE(Post(*queue, 0, {Writes(slot)}).ok()) << "what another step did is over";
    const absl::Status refused = Post(*queue, 1, {Reads(slot.narrow(0, 60, 4))});
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(refused.message()), HasSubstr("reads memory that Gather h.0 on gather in shards writes"));
    queue->Abandon();
  }
}

TEST(AccessOrder, Table) {
  const at::Tensor memory = at::zeros({64});
  const auto reads = std::vector<Access>{Reads(memory.narrow(0, 0, 32))},
             writes = std::vector<Access>{Writes(memory.narrow(0, 16, 32))},
             beside = std::vector<Access>{Writes(memory.narrow(0, 32, 32))};
  using Clock = AccessOrder::Clock;
  const auto code = [](const absl::StatusOr<Clock>& clock) { return clock.status().code(); };
  {
    AccessOrder order(false);
    const Clock first = *order.Run("a", Stream::kGather, {}, reads);
    EXPECT_TRUE(order.Run("reads too", Stream::kCompute, {}, reads).ok());
    EXPECT_TRUE(order.Run("elsewhere", Stream::kReduce, {}, beside).ok());
    EXPECT_EQ(code(order.Run("waits for one of two", Stream::kTransfer, {first}, writes)),
              absl::StatusCode::kFailedPrecondition);
  }
  {
    AccessOrder order(false);
    const Clock a = *order.Run("a", Stream::kGather, {}, writes);
    const Clock b = *order.Run("b", Stream::kCompute, {a}, {});
    EXPECT_TRUE(order.Run("c", Stream::kReduce, {b}, writes).ok()) << "what is waited for has waited";
  }
  for (const bool in_order : {false, true}) {
    AccessOrder order(in_order);
    ASSERT_TRUE(order.Run("a", Stream::kReduce, {}, writes).ok());
    EXPECT_EQ(order.Run("b", Stream::kReduce, {}, writes).ok(), in_order) << "of one stream";
    AccessOrder compute(in_order);
    ASSERT_TRUE(compute.Run("a", Stream::kCompute, {}, writes).ok());
    EXPECT_TRUE(compute.Run("b", Stream::kCompute, {}, writes).ok());
  }
  {
    AccessOrder order(false);  // the ends of a stream are in order
    ASSERT_TRUE(order.Run("a", Stream::kReduce, {}, writes).ok());
    const Clock b = *order.Run("b", Stream::kReduce, {}, {});
    EXPECT_TRUE(order.Run("c", Stream::kCompute, {b}, writes).ok());
  }
  {
    AccessOrder order(false);
    ASSERT_TRUE(order.Run("a", Stream::kReduce, {}, writes).ok());
    order.Fence();
    EXPECT_TRUE(order.Run("b", Stream::kCompute, {}, writes).ok());
  }
}

}  // namespace
}  // namespace muster::engine
