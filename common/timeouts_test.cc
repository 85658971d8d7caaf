#include "common/timeouts.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/match.h"

namespace muster {
namespace {

constexpr absl::Duration kOrphanGrace = absl::Minutes(30);

TEST(Timeouts, AreOrderedForEveryDetection) {
  for (absl::Duration detection = absl::Seconds(1); detection <= absl::Minutes(10); detection += absl::Seconds(1)) {
    const Timeouts t = Derive(detection);
    EXPECT_TRUE(Validate(t, kOrphanGrace).ok()) << Validate(t, kOrphanGrace);
    EXPECT_GE(t.startup_grace, t.node_grace);
    EXPECT_LE(t.kill, std::max(detection, absl::Seconds(1)));
    EXPECT_LT(t.kill_grace, t.stop);
    EXPECT_LE(t.hang, t.start);
    for (const absl::Duration step : {absl::ZeroDuration(), absl::Milliseconds(1), absl::Minutes(1), absl::Hours(1)}) {
      const absl::Duration limit = HangLimit(t, step);
      EXPECT_GE(limit, t.hang);
      EXPECT_LT(limit, t.collective) << "the detector names the culprit before its peers stop waiting";
    }
  }
}

// The values that the documentation promises.
TEST(Timeouts, OfTheDefault) {
  const Timeouts t = Derive(absl::Seconds(10));
  const struct {
    const char* what;
    absl::Duration is, expected;
  } kCases[] = {
      {"kill", t.kill, absl::Seconds(2)},
      {"node_grace", t.node_grace, absl::Seconds(10)},
      {"mass_grace", t.mass_grace, absl::Minutes(5)},
      {"startup_grace", t.startup_grace, absl::Seconds(15)},
      {"kill_grace", t.kill_grace, absl::Seconds(10)},
      {"hang", t.hang, absl::Seconds(30)},
      {"stop", t.stop, absl::Seconds(30)},
      {"start", t.start, absl::Minutes(5)},
      {"collective", t.collective, absl::Minutes(10)},
      {"hang, steps of 2 s", HangLimit(t, absl::Seconds(2)), absl::Seconds(30)},
      {"hang, steps of 20 s", HangLimit(t, absl::Seconds(20)), absl::Seconds(200)},
  };
  for (const auto& test : kCases) EXPECT_EQ(test.is, test.expected) << test.what;
}

TEST(Timeouts, WhatIsNotOrderedIsNamed) {
  const Timeouts good = Derive(absl::Seconds(10));
  Timeouts hang = good, collective = good, kill = good;
  hang.hang = absl::Seconds(15);
  collective.start = absl::Minutes(20);
  kill.kill = absl::ZeroDuration();
  const struct {
    Timeouts timeouts;
    absl::Duration orphan_grace;
    const char* named;
  } kCases[] = {
      {hang, kOrphanGrace, "hang (15s) must be longer than detection and node_grace together (20s)"},
      {collective, kOrphanGrace, "collective (10m) must be longer than start (20m)"},
      {kill, kOrphanGrace, "kill (0) must be longer than zero"},
      {good, absl::Seconds(10), "orphan_grace (10s) must be longer than detection (10s)"},
  };
  for (const auto& test : kCases) {
    const absl::Status status = Validate(test.timeouts, test.orphan_grace);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(absl::StrContains(status.message(), test.named)) << status;
  }
}

TEST(Timeouts, AJobMayOnlyAllowMore) {
  Timeouts service = Derive(absl::Seconds(10));
  EXPECT_EQ(Stretch(service, absl::Seconds(1)).hang, absl::Seconds(30));
  EXPECT_EQ(Stretch(service, absl::ZeroDuration()).hang, absl::Seconds(30));
  EXPECT_EQ(Stretch(service, absl::Minutes(1)).hang, absl::Minutes(3));
  service.start = absl::Hours(1);
  const Timeouts stretched = Stretch(service, absl::Minutes(1));
  EXPECT_EQ(stretched.start, absl::Hours(1)) << "the operator's word";
  EXPECT_TRUE(Validate(stretched, kOrphanGrace).ok());
}

TEST(Timeouts, AHangIsFoundBeforeAnyAxisStopsWaiting) {
  Timeouts t = Derive(absl::Seconds(10));
  EXPECT_EQ(LeastOfAxis(t), absl::Seconds(40));
  t.axes = {{"replica", absl::Minutes(30)}, {"tensor", absl::Seconds(40)}};
  EXPECT_EQ(HangLimit(t, absl::Seconds(2)), absl::Seconds(30));
  EXPECT_EQ(HangLimit(t, absl::Seconds(20)), absl::Seconds(35)) << "not 200 s: the ranks of the axis would end first";
  t.axes.pop_back();
  EXPECT_EQ(HangLimit(t, absl::Minutes(2)), absl::Seconds(595)) << "other axes still wait 10 minutes";
  const auto rules = Rules(t);
  EXPECT_EQ(rules.size(), 11u);
  EXPECT_EQ(rules.back().what, "a collective along the replica axis fails: a peer did not arrive");
  EXPECT_EQ(rules.back().rule, "communication.timeout_seconds.replica");
  EXPECT_EQ(rules.back().time, absl::Minutes(30));
}

TEST(Timeouts, RulesAscend) {
  const auto rules = Rules(Derive(absl::Seconds(10)));
  EXPECT_EQ(rules.size(), 10u);
  EXPECT_TRUE(std::is_sorted(rules.begin(), rules.end(),
                             [](const TimeoutRule& a, const TimeoutRule& b) { return a.time < b.time; }));
  EXPECT_EQ(rules.front().time, absl::Seconds(2));
  EXPECT_EQ(rules.back().what, "a collective fails: a peer did not arrive");
}

}  // namespace
}  // namespace muster
