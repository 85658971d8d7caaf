// Failure and the end of a DeviceGroup, on a device that does what the test says. What its collectives leave in tensors
// is in conformance_test.cc.
#include "worker/collectives/device_group.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "testing/wait.h"
#include "worker/collectives/fake_device_test.h"

namespace muster::collectives {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kSoon = absl::Milliseconds(50);
constexpr absl::Duration kNever = absl::Hours(1);

std::string Message(const absl::Status& status) { return std::string(status.message()); }

// Runs calls on threads of their own, so that a call that blocks fails the test and does not hang it.
class Aside {
 public:
  ~Aside() {
    for (std::thread& thread : threads_) thread.join();
  }
  // Whether `body` returns within 10 s.
  bool Returns(std::function<void()> body) {
    const auto returned = std::make_shared<std::atomic<bool>>(false);
    threads_.emplace_back([=] {
      body();
      *returned = true;
    });
    return Eventually([&] { return returned->load(); }, absl::Seconds(10));
  }

 private:
  std::vector<std::thread> threads_;
};

struct DeviceGroupTest : testing::Test {
  // By default only the test's own calls look: the watchdog does so every hour.
  std::unique_ptr<DeviceGroup> Make() { return MakeDeviceGroup(Options(), device.Transport()); }
  const DeviceGroupOptions& Options() {
    options.rank = 0;
    options.size = 2;
    options.count = [this] { return ++issued; };
    if (!options.diagnose) options.diagnose = [] { return "rank 1 is gone"; };
    return options;
  }

  FakeDevice device;
  DeviceGroupOptions options{
      .timeout = kNever, .drain = kTestPatience, .name_patience = absl::ZeroDuration(), .watch = kNever};
  std::atomic<uint64_t> issued = 0;
  const at::Tensor values = at::zeros({4}, at::kFloat);
};

TEST_F(DeviceGroupTest, HealthAsksForAsynchronousErrorsItself) {
  const auto group = Make();
  const auto work = group->AllReduce(values);
  EXPECT_TRUE(group->Health().ok());
  device.ready.Set(absl::UnavailableError("the network is down"));
  const absl::Status health = group->Health();
  EXPECT_EQ(health.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(health.message(), "the network is down (rank 1 is gone)");
  EXPECT_EQ(work->Wait(), health);
  EXPECT_TRUE(work->done());
  EXPECT_THAT(device.calls(), ElementsAre("begin", "record", "abort"));
}

TEST_F(DeviceGroupTest, TheWatchdogFindsAsynchronousErrors) {
  options.watch = absl::Milliseconds(1);
  const auto group = Make();
  device.ready.Set(absl::UnavailableError("the network is down"));
  ASSERT_TRUE(Eventually([&] { return device.aborted(); }));
  EXPECT_THAT(Message(group->Health()), HasSubstr("the network is down"));
}

TEST_F(DeviceGroupTest, AFailedQueryFailsTheGroupAndNotTheProcess) {
  options.watch = absl::Milliseconds(1);
  const auto group = Make();
  const auto work = group->AllReduce(values);
  device.reached.Set(absl::UnavailableError("an illegal memory access"));
  EXPECT_TRUE(work->done());
  ASSERT_TRUE(Eventually([&] { return device.aborted(); }));
  EXPECT_THAT(Message(work->Wait()), HasSubstr("all-reduce 1: an illegal memory access"));
}

TEST_F(DeviceGroupTest, AnEventThatCannotBeMadeFailsTheGroup) {
  const auto group = Make();
  device.record.Set(absl::UnavailableError("no memory for an event"));
  EXPECT_THAT(Message(group->AllReduce(values)->Wait()), HasSubstr("all-reduce 1: no memory for an event"));
  EXPECT_THAT(device.calls(), ElementsAre("begin", "record", "abort"));
}

TEST_F(DeviceGroupTest, ARankThatNeverComesFailsAtTheDeadline) {
  options.watch = absl::Milliseconds(1);
  options.timeout = kSoon;
  const auto group = Make();
  const auto first = group->AllReduce(values), second = group->AllReduce(values);
  EXPECT_FALSE(second->done());
  ASSERT_TRUE(Eventually([&] { return device.aborted(); }));
  ASSERT_TRUE(Eventually([&] { return group->Health().message().find("rank 1 is gone") != std::string::npos; }));
  EXPECT_THAT(Message(second->Wait()), HasSubstr("all-reduce 1: it was not done within 50ms (rank 1 is gone)"));
  EXPECT_TRUE(first->done() && second->done());
}

TEST_F(DeviceGroupTest, NothingBlocksWhileACollectiveIsBeingEnqueued) {
  device.begin.Set(false);
  device.ready.Set(false);
  const auto group = Make();
  std::unique_ptr<Work> work;
  std::thread issuer([&] { work = group->AllReduce(values); });
  ASSERT_TRUE(Eventually([&] { return !device.calls().empty(); }));
  absl::Status health = absl::UnknownError("not asked");
  {
    Aside aside;
    EXPECT_TRUE(aside.Returns([&] { health = group->Health(); }));
    device.ready.Set(true);
  }
  issuer.join();
  EXPECT_EQ(health, absl::OkStatus());
  EXPECT_TRUE(work->Wait().ok());
  EXPECT_THAT(device.calls(), ElementsAre("begin", "record"));
  device.reached.Set(true);
}

TEST_F(DeviceGroupTest, AnEnqueueThatDoesNotEndFailsAtTheDeadline) {
  device.begin.Set(false);
  device.ready.Set(false);
  options.timeout = kSoon;
  const auto group = Make();
  EXPECT_THAT(Message(group->AllReduce(values)->Wait()), HasSubstr("all-reduce 1: it was not done within 50ms"));
  EXPECT_THAT(device.calls(), ElementsAre("begin", "abort"));
}

TEST_F(DeviceGroupTest, AnEnqueueInProgressEndsWithTheGroup) {
  const auto group = Make();
  const auto first = group->AllReduce(values);
  device.begin.Set(false);
  device.ready.Set(false);
  absl::Status second;
  std::thread issuer([&] { second = group->AllReduce(values)->Wait(); });
  ASSERT_TRUE(Eventually([&] { return device.calls().size() == 3; }));
  device.reached.Set(absl::UnavailableError("an illegal memory access"));
  EXPECT_FALSE(group->Health().ok());
  issuer.join();
  EXPECT_THAT(Message(second), HasSubstr("all-reduce 1: an illegal memory access"));
  EXPECT_THAT(device.calls(), ElementsAre("begin", "record", "begin", "abort"));
}

TEST_F(DeviceGroupTest, TheFailureIsVisibleBeforeTheAbortBegins) {
  options.watch = absl::Milliseconds(1);
  const auto group = Make();
  const auto work = group->AllReduce(values);
  Aside aside;
  std::atomic<bool> returned = false;
  std::vector<absl::Status> during;
  bool done = false;
  device.on_abort.Set([&] {
    device.ready.Set(true);  // so that no call finds the error by itself
    EXPECT_TRUE(aside.Returns([&] {
      during = {group->Health(), work->Wait(), group->AllReduce(values)->Wait(), group->Barrier()};
      done = work->done();
    })) << "a call waited for the abort";
    returned = true;
  });
  device.ready.Set(absl::UnavailableError("the network is down"));
  ASSERT_TRUE(Eventually([&] { return returned.load(); }));
  for (const absl::Status& status : during) EXPECT_EQ(status.message(), "the network is down");
  EXPECT_TRUE(done);
}

TEST_F(DeviceGroupTest, NoCallWaitsForTheDiagnosisUnderTheLock) {
  std::atomic<bool> asked = false, go_on = false, went_on = false;
  options.diagnose = [&] {
    asked = true;
    went_on = Eventually([&] { return go_on.load(); });
    return "rank 1 is gone";
  };
  const auto group = Make();
  const auto work = group->AllReduce(values);
  device.ready.Set(absl::UnavailableError("the network is down"));
  std::thread failing([&] { EXPECT_THAT(Message(group->Health()), HasSubstr("rank 1 is gone")); });
  ASSERT_TRUE(Eventually([&] { return asked.load(); }));
  EXPECT_TRUE(device.aborted()) << "the abort comes first";
  std::vector<absl::Status> during;
  {
    Aside aside;
    EXPECT_TRUE(aside.Returns([&] { during = {group->Health(), work->Wait(), group->AllReduce(values)->Wait()}; }));
    go_on = true;
  }
  for (const absl::Status& status : during) EXPECT_EQ(status.message(), "the network is down");
  failing.join();
  EXPECT_TRUE(went_on);
  EXPECT_THAT(Message(group->Health()), HasSubstr("rank 1 is gone"));
}

TEST_F(DeviceGroupTest, ACallWithPatienceGetsTheNames) {
  options.name_patience = kTestPatience;
  std::atomic<bool> calling = false;
  absl::Status seen;
  std::thread other;
  std::unique_ptr<Group> group;
  options.diagnose = [&] {
    other = std::thread([&] {
      calling = true;
      seen = group->Health();
    });
    EXPECT_TRUE(Eventually([&] { return calling.load(); }));
    return "rank 1 is gone";
  };
  group = Make();
  device.ready.Set(absl::UnavailableError("the network is down"));
  EXPECT_FALSE(group->Health().ok());
  other.join();
  EXPECT_EQ(seen.message(), "the network is down (rank 1 is gone)");
}

TEST_F(DeviceGroupTest, TensorsAreKeptUntilTheAbortHasEnded) {
  const auto group = Make();
  group->AllReduce(values).reset();
  size_t during = 0;
  device.on_abort.Set([&] { during = values.use_count(); });
  device.ready.Set(absl::UnavailableError("the network is down"));
  EXPECT_FALSE(group->Health().ok());
  EXPECT_EQ(during, 2u);
  EXPECT_EQ(values.use_count(), 1u);
}

TEST_F(DeviceGroupTest, TensorsAreFreedWhenTheDeviceHasFinished) {
  const auto group = Make();
  group->AllReduce(values).reset();
  EXPECT_TRUE(group->Health().ok());
  EXPECT_EQ(values.use_count(), 2u);
  device.reached.Set(true);
  EXPECT_TRUE(group->Health().ok());
  EXPECT_EQ(values.use_count(), 1u);
}

// The waiting stream uses their memory again only when the device has finished. A step would need the memory of all
// that it exchanges if they stayed until the watchdog looks.
TEST_F(DeviceGroupTest, TensorsAreFreedOnceAStreamWaits) {
  const auto group = Make();
  const auto work = group->AllReduce(values);
  EXPECT_EQ(values.use_count(), 2u);
  EXPECT_TRUE(work->Wait().ok());
  EXPECT_EQ(values.use_count(), 1u);
  EXPECT_FALSE(work->done());
  EXPECT_TRUE(work->Wait().ok()) << "another stream may wait, too";
  device.reached.Set(true);
  EXPECT_TRUE(work->done());
}

// A stream that was not made to wait does not, so the device may still use them.
TEST_F(DeviceGroupTest, AWaitThatFailsKeepsTheTensorsUntilTheAbortHasEnded) {
  const auto group = Make();
  auto work = group->AllReduce(values);
  size_t during = 0;
  device.on_abort.Set([&] { during = values.use_count(); });
  device.block.Set(absl::UnavailableError("an invalid stream"));
  EXPECT_FALSE(work->Wait().ok());
  EXPECT_EQ(during, 2u);
  work.reset();
  EXPECT_EQ(values.use_count(), 1u);
}

TEST_F(DeviceGroupTest, NothingBeginsAfterAFailure) {
  const auto group = Make();
  device.ready.Set(absl::UnavailableError("the network is down"));
  EXPECT_FALSE(group->Health().ok());
  device.ready.Set(true);
  EXPECT_THAT(Message(group->AllReduce(values)->Wait()), HasSubstr("the network is down"));
  EXPECT_FALSE(group->Barrier().ok());
  EXPECT_FALSE(group->Health().ok());
  EXPECT_THAT(device.calls(), ElementsAre("abort"));
}

TEST_F(DeviceGroupTest, AWaitIsNotGoodIfTheGroupFailsMeanwhile) {
  const auto group = Make();
  const auto work = group->AllReduce(values);
  device.on_block.Set([&] {
    device.ready.Set(absl::UnavailableError("the network is down"));
    (void)group->Health();
  });
  EXPECT_THAT(Message(work->Wait()), HasSubstr("the network is down"));
}

TEST_F(DeviceGroupTest, AWaitThatTheDeviceRefusesFailsTheGroup) {
  const auto group = Make();
  const auto work = group->AllReduce(values);
  device.block.Set(absl::UnavailableError("an invalid stream"));
  EXPECT_THAT(Message(work->Wait()), HasSubstr("waiting for all-reduce 1: an invalid stream"));
  EXPECT_FALSE(group->Health().ok());
}

TEST_F(DeviceGroupTest, WhatTheDeviceCannotDoIsRefusedAndTheGroupLivesOn) {
  const auto group = Make();
  device.check.Set(absl::InvalidArgumentError("no such dtype"));
  EXPECT_EQ(group->AllReduce(values)->Wait().code(), absl::StatusCode::kInvalidArgument);
  device.check.Set(absl::OkStatus());
  EXPECT_TRUE(group->Health().ok());
  EXPECT_TRUE(group->AllReduce(values)->Wait().ok());
  EXPECT_THAT(device.calls(), ElementsAre("begin", "record"));
  device.reached.Set(true);
}

TEST_F(DeviceGroupTest, ACollectiveOfNothingIsCountedAndNotEnqueued) {
  const auto group = Make();
  const auto work = group->BroadcastShares({{values.narrow(0, 0, 0), 0}, {values.narrow(0, 4, 0), 1}});
  EXPECT_TRUE(work->done());
  EXPECT_TRUE(work->Wait().ok());
  EXPECT_EQ(issued, 1u);
  EXPECT_THAT(device.calls(), ElementsAre());
}

// NCCL's send waits for its receive on the device. The host goes on, also to Wait, which only makes a stream wait.
TEST_F(DeviceGroupTest, MessagesWithoutAPartnerDoNotHoldTheHost) {
  FakeDevice other;
  const auto down = Make();
  const auto up = MakeDeviceGroup(options, other.Transport());
  std::vector<std::unique_ptr<Work>> works;
  {
    Aside aside;
    EXPECT_TRUE(aside.Returns([&] {
      for (int i = 0; i < 3; ++i) works.push_back(down->Send(values, 1));
      works.push_back(up->Recv(values, 1));
      EXPECT_TRUE(works[0]->Wait().ok());
    }));
  }
  for (const auto& work : works) EXPECT_FALSE(work->done());
  other.reached.Set(true);
  EXPECT_TRUE(works[3]->done());
  EXPECT_FALSE(works[2]->done()) << "each group is on its own";
  device.reached.Set(true);
  for (const auto& work : works) EXPECT_TRUE(work->done());
  EXPECT_THAT(device.calls(), ElementsAre("begin", "record", "begin", "record", "begin", "record"));
  EXPECT_THAT(other.calls(), ElementsAre("begin", "record"));
}

// NCCL connects two ranks at their first message, and enqueues it only then.
TEST_F(DeviceGroupTest, AFirstMessageThatConnectsHoldsNoOtherGroup) {
  FakeDevice other;
  other.reached.Set(true);
  device.begin.Set(false);
  device.ready.Set(false);
  const auto down = Make();
  const auto up = MakeDeviceGroup(options, other.Transport());
  std::unique_ptr<Work> first;
  std::thread issuer([&] { first = down->Send(values, 1); });
  ASSERT_TRUE(Eventually([&] { return !device.calls().empty(); }));
  {
    Aside aside;
    EXPECT_TRUE(aside.Returns([&] { EXPECT_TRUE(up->Recv(values, 1)->done()); }));
    device.ready.Set(true);
  }
  issuer.join();
  EXPECT_FALSE(first->done());
  device.reached.Set(true);
}

TEST_F(DeviceGroupTest, AMessageThatNeverComesFailsAtTheDeadline) {
  options.timeout = kSoon;
  const auto group = Make();
  const auto work = group->Recv(values, 1);
  ASSERT_TRUE(Eventually([&] { return !group->Health().ok(); }));
  EXPECT_THAT(Message(work->Wait()), HasSubstr("receive 1: it was not done within 50ms (rank 1 is gone)"));
  EXPECT_THAT(device.calls(), ElementsAre("begin", "record", "abort"));
}

TEST_F(DeviceGroupTest, ABarrierReturnsWhenTheDeviceHasFinishedIt) {
  const auto group = Make();
  int queries = 0;
  device.on_query.Set([&] {
    if (++queries == 20) device.reached.Set(true);
  });
  EXPECT_TRUE(group->Barrier().ok());
  EXPECT_GE(queries, 20);
}

TEST_F(DeviceGroupTest, ABarrierHasADeadlineWithoutTheWatchdog) {
  options.timeout = kSoon;
  const auto group = Make();
  EXPECT_THAT(Message(group->Barrier()), HasSubstr("barrier 1: it was not done within 50ms (rank 1 is gone)"));
}

TEST_F(DeviceGroupTest, TheEndWaitsForTheLastCollectives) {
  auto group = Make();
  const auto work = group->AllReduce(values);
  std::atomic<int> queries = 0;
  device.on_query.Set([&] {
    if (++queries == 20) device.reached.Set(true);
  });
  group.reset();
  EXPECT_THAT(device.calls(), ElementsAre("begin", "record", "finalize", "destroy"));
  EXPECT_EQ(work->Wait().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(work->done());
}

TEST_F(DeviceGroupTest, ASplitWaitsForWhatIsInProgressAndThenForTheOtherRanks) {
  const auto group = Make();
  group->AllReduce(values).reset();
  device.split.Set(false);
  absl::StatusOr<std::unique_ptr<DeviceGroup>> part;
  std::atomic<bool> returned = false;
  std::thread splitting([&] {
    part = group->Split(3, {.rank = 1, .size = 2});
    returned = true;
  });
  absl::SleepFor(kSoon);  // if it did not wait, it would call now
  EXPECT_THAT(device.calls(), ElementsAre("begin", "record"));
  device.reached.Set(true);
  EXPECT_TRUE(Eventually([&] { return device.calls().size() > 2; }));
  EXPECT_FALSE(returned);
  device.split.Set(true);
  splitting.join();
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_THAT(device.calls(), Contains("split 3 1"));
  EXPECT_EQ((*part)->rank(), 1);
  EXPECT_TRUE(group->Health().ok());
}

TEST_F(DeviceGroupTest, ARankOfNoPartSplitsWithTheOthersAndGetsNone) {
  const auto group = Make();
  device.split.Set(false);
  absl::StatusOr<std::unique_ptr<DeviceGroup>> part = absl::InternalError("not yet");
  std::atomic<bool> returned = false;
  std::thread splitting([&] {
    part = group->Split(kNoColor, {});
    returned = true;
  });
  EXPECT_TRUE(Eventually([&] { return device.calls().size() > 1; }));
  EXPECT_FALSE(returned) << "the other ranks have not come";
  device.split.Set(true);
  splitting.join();
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_EQ(*part, nullptr);
  EXPECT_THAT(device.calls(), Each("split -1 0"));
  EXPECT_TRUE(group->Health().ok());
}

TEST_F(DeviceGroupTest, ASplitThatARankNeverJoinsFailsTheGroup) {
  options.timeout = kSoon;
  const auto group = Make();
  device.split.Set(false);
  const auto part = group->Split(0, {.rank = 0, .size = 1});
  EXPECT_EQ(part.status().message(), "a split of the group: it was not done within 50ms (rank 1 is gone)");
  EXPECT_EQ(group->Health(), part.status());
  EXPECT_EQ(device.calls().back(), "abort");
}

TEST_F(DeviceGroupTest, AnErrorOfASplitFailsTheGroup) {
  const auto group = Make();
  device.split.Set(absl::UnavailableError("NCCL: unhandled system error"));
  const auto part = group->Split(0, {.rank = 0, .size = 1});
  EXPECT_THAT(Message(part.status()), HasSubstr("a split of the group: NCCL: unhandled system error (rank 1 is gone)"));
  EXPECT_FALSE(group->Health().ok());
  EXPECT_THAT(device.calls(), ElementsAre("split 0 0", "abort"));
}

TEST_F(DeviceGroupTest, TheEndAbortsWhatDoesNotComplete) {
  options.drain = kSoon;
  auto group = Make();
  group->AllReduce(values).reset();
  group.reset();
  EXPECT_THAT(device.calls(), ElementsAre("begin", "record", "abort"));
  EXPECT_EQ(values.use_count(), 1u);
}

TEST_F(DeviceGroupTest, TheEndAbortsACommunicatorThatCannotEndCleanly) {
  device.finalize.Set(absl::UnavailableError("a rank has gone"));
  Make().reset();
  EXPECT_THAT(device.calls(), ElementsAre("finalize", "abort"));
}

TEST_F(DeviceGroupTest, TheEndDoesNotWaitForeverForACleanEnd) {
  device.finalize.Set(false);
  device.ready.Set(false);
  options.drain = kSoon;
  Make().reset();
  EXPECT_THAT(device.calls(), ElementsAre("finalize", "abort"));
}

TEST_F(DeviceGroupTest, AFailedGroupEndsWithoutASecondAbort) {
  auto group = Make();
  device.ready.Set(absl::UnavailableError("the network is down"));
  EXPECT_FALSE(group->Health().ok());
  group.reset();
  EXPECT_THAT(device.calls(), ElementsAre("abort"));
}

// For the thread sanitizer, too.
TEST_F(DeviceGroupTest, ManyThreadsSeeOneFailure) {
  options.watch = absl::Milliseconds(1);
  options.name_patience = kTestPatience;
  device.reached.Set(true);
  const auto group = Make();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] { EXPECT_TRUE(Eventually([&] { return !group->Health().ok(); })); });
  }
  absl::Status status;
  for (int i = 0; status.ok(); ++i) {
    const auto work = group->AllReduce(values);
    if (i == 50) device.ready.Set(absl::UnavailableError("the network is down"));
    (void)work->done();
    status = work->Wait();
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(status.message(), "the network is down (rank 1 is gone)");
  EXPECT_EQ(std::ranges::count(device.calls(), "abort"), 1);
}

// ---- CUDA graphs ----

// An event that is queried during a capture makes CUDA drop the capture.
TEST_F(DeviceGroupTest, NoEventIsQueriedDuringACapture) {
  options.watch = absl::Milliseconds(1);
  std::atomic<int> queries = 0;
  device.on_query.Set([&] { ++queries; });
  const auto group = Make();
  const auto before = group->AllReduce(values);
  absl::Status begun = absl::UnknownError("not yet");
  std::thread engine([&] { begun = group->BeginCapture(); });
  ASSERT_TRUE(Eventually([&] { return queries > 2; })) << "it waits for what was issued before";
  device.reached.Set(true);
  engine.join();
  ASSERT_TRUE(begun.ok()) << begun;
  device.reached.Set(absl::UnavailableError("not permitted on an event last recorded in a capturing stream"));
  queries = 0;
  const auto captured = group->AllReduce(values), second = group->AllReduce(values);
  EXPECT_TRUE(captured->Wait().ok());
  EXPECT_FALSE(captured->done());
  for (int looks = 0; looks < 20; ++looks) EXPECT_TRUE(group->Health().ok());
  absl::SleepFor(20 * options.watch);  // the watchdog looks about as often
  EXPECT_EQ(queries, 0);
  group->EndCapture();
  EXPECT_TRUE(group->Health().ok());
  EXPECT_FALSE(captured->done());
  EXPECT_EQ(queries, 0) << "nor later those that were captured";
  device.reached.Set(true);
  EXPECT_TRUE(group->Launched().ok());
  ASSERT_TRUE(Eventually([&] { return queries > 0; })) << "a launch is watched";
}

// The memory of a graph is what was in use at the same time while it was captured.
TEST_F(DeviceGroupTest, ACaptureFreesTensorsOnceAStreamWaits) {
  const auto group = Make();
  ASSERT_TRUE(group->BeginCapture().ok());
  auto work = group->AllReduce(values);
  group->AllReduce(values).reset();
  EXPECT_EQ(values.use_count(), 3u);
  EXPECT_TRUE(work->Wait().ok());
  work.reset();
  EXPECT_EQ(values.use_count(), 2u) << "no stream waits for the other one";
  group->EndCapture();
  EXPECT_EQ(values.use_count(), 1u);
}

TEST_F(DeviceGroupTest, WhatCannotBeCapturedDoesNotFailTheGroup) {
  device.reached.Set(true);
  const auto group = Make();
  ASSERT_TRUE(group->BeginCapture().ok());
  device.begin.Set(absl::UnavailableError("the stream's capture was invalidated"));
  EXPECT_THAT(Message(group->AllReduce(values)->Wait()), HasSubstr("all-reduce 1: the stream's capture was invali"));
  device.begin.Set(true);
  device.block.Set(absl::UnavailableError("no wait"));
  EXPECT_THAT(Message(group->AllReduce(values)->Wait()), HasSubstr("waiting for all-reduce 2: no wait"));
  device.block.Set(absl::OkStatus());
  group->EndCapture();
  EXPECT_TRUE(group->Health().ok());
  EXPECT_TRUE(group->AllReduce(values)->Wait().ok());
  EXPECT_FALSE(device.aborted());
  device.begin.Set(absl::UnavailableError("broken"));
  EXPECT_FALSE(group->AllReduce(values)->Wait().ok());
  EXPECT_TRUE(Eventually([&] { return device.aborted(); })) << "out of a capture it fails the group";
}

// NCCL keeps the error of a launch that failed, and then nothing can be launched any more. The group says so at once,
// and why, and not at the next look without a cause.
TEST_F(DeviceGroupTest, ACaptureThatBreaksTheCommunicatorFailsTheGroup) {
  for (const bool at_once : {true, false}) {
    FakeDevice broken;
    const auto group = MakeDeviceGroup(Options(), broken.Transport());
    ASSERT_TRUE(group->BeginCapture().ok());
    const absl::Status error = absl::UnavailableError("NCCL: unhandled cuda error");
    broken.begin.Set(at_once ? absl::StatusOr<bool>(error) : false);
    broken.ready.Set(error);
    const absl::Status failed = group->AllReduce(values)->Wait();
    EXPECT_THAT(Message(failed), AllOf(HasSubstr("all-reduce"), HasSubstr("NCCL: unhandled cuda error"),
                                       HasSubstr("cuda_graphs: false")));
    group->EndCapture();
    EXPECT_THAT(Message(group->Health()), HasSubstr("cuda_graphs: false"));
    EXPECT_TRUE(Eventually([&] { return broken.aborted(); }));
  }
}

// A communicator that fails while a graph is captured has failed.
TEST_F(DeviceGroupTest, AnErrorOfTheNetworkDuringACaptureFailsTheGroup) {
  options.watch = absl::Milliseconds(1);
  const auto group = Make();
  ASSERT_TRUE(group->BeginCapture().ok());
  device.ready.Set(absl::UnavailableError("the network is down"));
  ASSERT_TRUE(Eventually([&] { return device.aborted(); }));
  EXPECT_THAT(Message(group->AllReduce(values)->Wait()), HasSubstr("the network is down"));
  group->EndCapture();
}

TEST_F(DeviceGroupTest, AGraphHasTheDeadlineOfACollective) {
  options.watch = absl::Milliseconds(1);
  options.timeout = kSoon;
  device.reached.Set(true);
  const auto group = Make();
  ASSERT_TRUE(group->BeginCapture().ok());
  EXPECT_TRUE(group->AllReduce(values)->Wait().ok());
  group->EndCapture();
  device.reached.Set(false);
  EXPECT_TRUE(group->Launched().ok());
  ASSERT_TRUE(Eventually([&] { return device.aborted(); }));
  ASSERT_TRUE(Eventually([&] { return group->Health().message().find("rank 1 is gone") != std::string::npos; }));
  EXPECT_THAT(Message(group->Health()), HasSubstr("graph 2: it was not done within 50ms (rank 1 is gone)"));
}

// Its watchdog has ended by then, so the thread that ends the group aborts in its place.
TEST_F(DeviceGroupTest, AGroupThatFailsWhileItEndsIsAbortedThoughItHasGraphs) {
  auto group = Make();
  ASSERT_TRUE(group->BeginCapture().ok());
  group->EndCapture();
  EXPECT_TRUE(group->Launched().ok());
  device.ready.Set(absl::UnavailableError("the network is down"));
  group.reset();
  EXPECT_TRUE(device.aborted());
}

// It has seen the failure, and before it says so another thread does. The abort is the watchdog's all the same, at
// once.
TEST_F(DeviceGroupTest, AWatchdogThatComesSecondAborts) {
  options.watch = absl::Milliseconds(1);
  options.name_patience = kTestPatience;
  const auto group = Make();
  ASSERT_TRUE(group->BeginCapture().ok());
  const auto captured = group->AllReduce(values);  // done only when the group has failed
  group->EndCapture();
  absl::Status health;
  std::thread first;
  std::vector<float> memory(4);
  at::Tensor last = at::from_blob(memory.data(), {4}, [&](void*) {
    first = std::thread([&] { health = group->Health(); });
    EXPECT_TRUE(Eventually([&] { return captured->done(); }));
  });
  group->AllReduce(std::exchange(last, {})).reset();
  // The same look of the watchdog finds that the tensor is not needed any more, and the failure.
  device.on_query.Set([&] {
    device.reached.Set(true);
    device.ready.Set(absl::UnavailableError("the network is down"));
  });
  EXPECT_TRUE(Eventually([&] { return device.aborted(); }, kTestPatience / 2)) << "it waited for its own abort";
  first.join();
  EXPECT_EQ(health.message(), "the network is down (rank 1 is gone)");
}

// NCCL's abort waits for the end of the graphs, which the calling thread destroys once it knows of the failure.
TEST_F(DeviceGroupTest, TheCallerIsNotHeldUpByTheAbortOfAGraph) {
  std::atomic<bool> destroyed = false, waited = false;
  device.on_abort.Set([&] { waited = Eventually([&] { return destroyed.load(); }, absl::Seconds(10)); });
  const auto group = Make();
  ASSERT_TRUE(group->BeginCapture().ok());
  group->EndCapture();
  EXPECT_TRUE(group->Launched().ok());
  device.ready.Set(absl::UnavailableError("the network is down"));
  absl::Status health;
  Aside aside;
  ASSERT_TRUE(aside.Returns([&] { health = group->Health(); }));
  EXPECT_EQ(health.message(), "the network is down") << "and no names yet";
  destroyed = true;
  ASSERT_TRUE(Eventually([&] { return Message(group->Health()) == "the network is down (rank 1 is gone)"; }));
  EXPECT_TRUE(waited);
}

}  // namespace
}  // namespace muster::collectives
