#include "worker/trainer/link.h"

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "testing/wait.h"
#include "worker/trainer/fake_trainer_server.h"

namespace muster::trainer {
namespace {

Link::Options OptionsFor(Bench& bench) {
  Link::Options options{.socket = bench.worker().socket(), .max_backoff = absl::Milliseconds(300)};
  options.key.set_job("small-x7f2");
  options.key.set_generation(1);
  return options;
}

const auto never = [] { return false; };

TEST(Link, ReceivesAssignmentsAndStops) {
  Bench bench;
  Link link(OptionsFor(bench));
  Assignment assignment = bench.Assign(bench.MakeJob(), 1);
  bench.worker().Assign(assignment);
  EXPECT_EQ(link.WaitForAssignment(never)->SerializeAsString(), assignment.SerializeAsString());
  EXPECT_EQ(link.Newest().assignments, 1u);
  assignment.add_published()->set_directory("step-0000000010-g1");
  bench.worker().Assign(assignment);
  EXPECT_TRUE(Eventually([&] { return link.Newest().published.size() == 1; }));
  EXPECT_FALSE(link.Newest().stop.has_value());
  bench.worker().SendStop(true);
  EXPECT_TRUE(Eventually([&] { return link.Newest().stop.has_value(); }));
  EXPECT_TRUE(link.Newest().stop->checkpoint_first());
}

TEST(Link, WaitsForAWorkerThatComesLater) {
  Bench bench;
  bench.worker().Stop();
  Link link(OptionsFor(bench));
  int asked = 0;
  EXPECT_EQ(link.WaitForAssignment([&] { return ++asked > 5; }).status().code(), absl::StatusCode::kCancelled);
  bench.worker().Assign(bench.Assign(bench.MakeJob(), 1));
  bench.worker().Start();
  EXPECT_TRUE(link.WaitForAssignment(never).ok());
}

TEST(Link, ManyRingsAreFewCallsAndTheLastArrives) {
  Bench bench;
  Link link(OptionsFor(bench));
  const absl::Time begin = absl::Now();
  for (uint64_t i = 1; i <= 20'000; ++i) link.Ring(i, i);
  const absl::Duration ringing = absl::Now() - begin;
  EXPECT_TRUE(Eventually([&] { return bench.worker().reported_step() == 20'000; }));
  const double seconds = absl::ToDoubleSeconds(absl::Now() - begin);
  EXPECT_LE(bench.worker().reports(), 2 + seconds * 5);
  EXPECT_LT(ringing, kTestPatience) << "no ring waits for a call: there are five a second";
}

TEST(Link, KnowsWhichRecordsWereNotDelivered) {
  Bench bench;
  bench.worker().Contact(true);
  Link link(OptionsFor(bench));
  const auto undelivered = [&](uint64_t after, uint64_t until) {
    return Eventually([&] {
      const Link::Received received = link.Newest();
      return received.undelivered_after == after && received.undelivered_until == until;
    });
  };
  link.Ring(5, 1);
  EXPECT_TRUE(undelivered(5, 5)) << "while connected, every record may be delivered";
  bench.worker().Contact(false);
  link.Ring(8, 2);
  EXPECT_TRUE(undelivered(5, 8));
  bench.worker().Stop();
  link.Ring(10, 3);
  EXPECT_TRUE(undelivered(10, 10)) << "it may have read the outbox before it went";
  link.Ring(12, 4);
  EXPECT_TRUE(undelivered(10, 12)) << "the worker has been away since";
}

TEST(Link, EndsAtOnceWhateverItIsDoing) {
  Bench bench;
  for (int i = 0; i < 20; ++i) {
    auto link = std::make_unique<Link>(OptionsFor(bench));
    link->Ring(1, 1);
    if (i % 2 == 0) {
      EXPECT_TRUE(Eventually([&] { return bench.worker().attaches() > i / 2; }));
    }
    if (i == 15) bench.worker().Stop();
    const absl::Time begin = absl::Now();
    link.reset();
    EXPECT_LT(absl::Now() - begin, kTestPatience) << "the command stream has no deadline";
    if (i == 15) break;
  }
}

}  // namespace
}  // namespace muster::trainer
