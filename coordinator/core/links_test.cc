// Which links a generation measures, what is kept of them, and what depends on them.
#include "coordinator/core/links.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "coordinator/core/world_test.h"

namespace muster::core {
namespace {

using ::testing::HasSubstr;

// Nodes n0, n1, ... with a slot each, and a job with a rank on each.
JobId StartOn(World& w, int nodes, const std::string& name = "wide") {
  for (int i = 0; i < nodes; ++i) {
    const NodeId id(absl::StrCat("n", i));
    if (!w.core->GetNode(id).ok()) w.Do(NodeConnected{Hello(id.value(), 1)});
  }
  return w.Submit(Gang(name, static_cast<uint32_t>(nodes)));
}

std::vector<std::pair<uint32_t, uint32_t>> AskedFor(World& w, const JobId& id) {
  std::vector<std::pair<uint32_t, uint32_t>> pairs;
  const Generation generation = w.Newest(id);
  for (const LinkPair& pair : generation.measure_links()) pairs.emplace_back(pair.first(), pair.second());
  return pairs;
}

Outcome ReportLink(World& w, const JobId& id, uint32_t from, uint32_t to, double bytes_per_second,
                   double latency_seconds = 1e-3) {
  RankRecord event{{id, w.Newest(id).number(), from}, {}};
  RankLink& link = *event.record.mutable_running()->add_links();
  link.set_to(to);
  link.set_bytes_per_second(bytes_per_second);
  link.set_latency_seconds(latency_seconds);
  return w.Do(event);
}

void ReportBoth(World& w, const JobId& id, double bytes_per_second, double latency_seconds = 1e-3) {
  ReportLink(w, id, 0, 1, bytes_per_second, latency_seconds);
  ReportLink(w, id, 1, 0, bytes_per_second, latency_seconds);
}

void EndJob(World& w, const JobId& id) {
  for (int rank = 0; rank < w.Newest(id).ranks_size(); ++rank) w.FinishRank(id, static_cast<uint32_t>(rank));
  ASSERT_EQ(w.State(id), JOB_STATE_COMPLETED);
}

std::string MessageOf(const Outcome& outcome, const std::string& kind) {
  for (const StateEvent& event : outcome.events) {
    if (event.kind() == kind) return event.message();
  }
  return "";
}

TEST(Links, RanksOfOneNodeMeasureNothing) {
  World w(AnyWorld());
  w.Do(NodeConnected{Hello("n0", 2)});
  EXPECT_TRUE(AskedFor(w, w.Submit(Gang("narrow", 2))).empty());
}

TEST(Links, TheLowestRanksOfAllPairsOfNodesMeasureInRoundsWithoutACommonRank) {
  for (const int nodes : {2, 3, 5, 8}) {
    World w(AnyWorld());
    const auto pairs = AskedFor(w, StartOn(w, nodes));
    EXPECT_EQ(pairs.size(), static_cast<size_t>(nodes * (nodes - 1) / 2));
    EXPECT_EQ(std::set(pairs.begin(), pairs.end()).size(), pairs.size()) << "each once";
    // Taken greedily, each rank is busy for as few rounds as possible: nodes - 1, or nodes if their number is odd.
    std::map<uint32_t, int> busy;
    int rounds = 0;
    for (const auto& [a, b] : pairs) {
      EXPECT_LT(a, b);
      const int round = std::max(busy[a], busy[b]) + 1;
      busy[a] = busy[b] = round;
      rounds = std::max(rounds, round);
    }
    EXPECT_EQ(rounds, nodes % 2 == 0 ? nodes - 1 : nodes);
  }
  World w(AnyWorld());
  w.Do(NodeConnected{Hello("n0", 2)});
  w.Do(NodeConnected{Hello("n1", 2)});
  EXPECT_EQ(AskedFor(w, w.Submit(Gang("two-each", 4))), (std::vector<std::pair<uint32_t, uint32_t>>{{0, 2}}));
}

TEST(Links, OfManyNodesNeighborsMeasure) {
  World w(AnyWorld());
  const auto pairs = AskedFor(w, StartOn(w, 12));
  ASSERT_EQ(pairs.size(), 12u);
  for (uint32_t i = 0; i < 12; ++i) {
    const std::pair<uint32_t, uint32_t> next(std::min(i, (i + 1) % 12), std::max(i, (i + 1) % 12));
    EXPECT_THAT(pairs, testing::Contains(next));
  }
}

TEST(Links, AreMeasuredAgainOnlyAfterAnHourOrARestart) {
  World w(AnyWorld());
  JobId id = StartOn(w, 2);
  const Assignment sent = w.core->DesiredFor(NodeId("n1")).ranks(0).run();
  ASSERT_EQ(sent.measure_links_size(), 1);
  EXPECT_EQ(sent.measure_links(0).second(), 1u);
  World three(AnyWorld());
  StartOn(three, 3);
  const Assignment last = three.core->DesiredFor(NodeId("n2")).ranks(0).run();
  ASSERT_EQ(last.measure_links_size(), 2) << "only its own";
  for (const LinkPair& pair : last.measure_links()) EXPECT_EQ(pair.second(), 2u);
  ReportBoth(w, id, 12e6);
  EndJob(w, id);
  w.clock.Advance(absl::Minutes(59));
  id = StartOn(w, 2);
  EXPECT_TRUE(AskedFor(w, id).empty()) << "both directions are known";
  EndJob(w, id);
  w.clock.Advance(absl::Minutes(2));
  id = StartOn(w, 2);
  EXPECT_EQ(AskedFor(w, id).size(), 1u);
  ReportLink(w, id, 0, 1, 12.2e6);
  EndJob(w, id);
  id = StartOn(w, 2);
  EXPECT_EQ(AskedFor(w, id).size(), 1u) << "one direction is not known";
  ReportBoth(w, id, 12.4e6);
  EndJob(w, id);
  w.Restart();
  for (const char* node : {"n0", "n1"}) w.Return(Hello(node, 1));
  id = StartOn(w, 2);
  EXPECT_EQ(AskedFor(w, id).size(), 1u);
  // The figures outlive it.
  const Node node = w.core->GetNode(NodeId("n0")).value();
  ASSERT_EQ(node.links_size(), 1);
  EXPECT_EQ(node.links(0).node(), "n1");
  EXPECT_EQ(node.links(0).bytes_per_second(), 12.4e6);
  EXPECT_EQ(node.links(0).usual_bytes_per_second(), 12.2e6);
}

TEST(Links, ANodeCannotBringFiguresAlong) {
  World w(AnyWorld());
  Node node = Hello("n0", 1);
  node.add_links()->set_node("n1");
  w.Do(NodeConnected{node});
  EXPECT_EQ(w.core->GetNode(NodeId("n0"))->links_size(), 0);
}

TEST(Links, ALinkBelowHalfOfItsMedianIsAnEventUntilItRecovers) {
  World w(AnyWorld());
  const auto measure = [&](double bytes_per_second) {
    const JobId id = StartOn(w, 2);
    EXPECT_EQ(AskedFor(w, id).size(), 1u);
    Outcome out = ReportLink(w, id, 0, 1, bytes_per_second);
    ReportLink(w, id, 1, 0, 12.5e6);
    EndJob(w, id);
    return out;
  };
  w.options.links_valid_for = absl::ZeroDuration();
  w.Restart();
  for (const double fine : {12e6, 12.5e6, 13e6, 6.3e6}) {
    const Outcome out = measure(fine);
    EXPECT_EQ(MessageOf(out, "link.slow"), "") << fine;
  }
  EXPECT_EQ(
      MessageOf(measure(1.25e6), "link.slow"),
      "the link from n0 to n1 is slow: 10 Mbit/s with 1 ms of latency, usually 100 Mbit/s; look for other traffic, "
      "errors and the speed of the interfaces there");
  EXPECT_EQ(MessageOf(measure(12e6), "link.recovered"),
            "the link from n0 to n1 is no longer slow: 96 Mbit/s with 1 ms of latency, usually 96 Mbit/s");
  EXPECT_EQ(MessageOf(measure(12e6), "link.recovered"), "");
}

TEST(Links, ASlowOneIsMeasuredAgainSoon) {
  World w(AnyWorld());
  JobId id = StartOn(w, 2);
  ReportBoth(w, id, 12e6);
  EndJob(w, id);
  w.clock.Advance(absl::Hours(2));
  id = StartOn(w, 2);
  ReportBoth(w, id, 1e6);
  EndJob(w, id);
  id = StartOn(w, 2);
  EXPECT_EQ(AskedFor(w, id).size(), 1u);
}

TEST(Links, ARecordThatIsSentAgainChangesNothing) {
  World w(AnyWorld());
  const JobId id = StartOn(w, 2);
  ReportLink(w, id, 0, 1, 12e6);
  ReportLink(w, id, 0, 1, 1e6);
  const std::string once = w.core->GetNode(NodeId("n0"))->SerializeAsString();
  const Outcome again = ReportLink(w, id, 0, 1, 1e6);
  EXPECT_TRUE(again.rows.empty() && again.events.empty());
  EXPECT_EQ(w.core->GetNode(NodeId("n0"))->SerializeAsString(), once);
}

TEST(Links, NonsenseIsLeftOut) {
  World w(AnyWorld());
  const JobId id = StartOn(w, 2);
  for (const double nonsense : {0.0, -1.0, std::numeric_limits<double>::infinity(), std::nan("")}) {
    ReportLink(w, id, 0, 1, nonsense);
    ReportLink(w, id, 0, 1, 1e6, nonsense);
  }
  ReportLink(w, id, 0, 0, 1e6);
  ReportLink(w, id, 0, 7, 1e6);
  EXPECT_EQ(w.core->GetNode(NodeId("n0"))->links_size(), 0);
}

TEST(Links, OfANodeAreBounded) {
  World w(AnyWorld());
  const JobId id = StartOn(w, 300);
  for (uint32_t to = 1; to < 300; ++to) {
    w.clock.Advance(absl::Seconds(1));
    ReportLink(w, id, 0, to, 1e6);
  }
  const Node node = w.core->GetNode(NodeId("n0")).value();
  EXPECT_EQ(node.links_size(), 256);
  std::set<std::string> names;
  for (const NodeLink& link : node.links()) names.insert(link.node());
  EXPECT_TRUE(names.contains("n299") && !names.contains("n1")) << "the oldest goes first";
}

// Or a node of that name that joins later would have another machine's figures.
TEST(Links, ToAForgottenNodeAreForgotten) {
  World w(AnyWorld());
  const JobId id = StartOn(w, 2);
  ReportBoth(w, id, 1e6);
  EXPECT_EQ(w.core->GetNode(NodeId("n0"))->links_size(), 1);
  EndJob(w, id);
  w.Do(NodeDisconnected{NodeId("n1"), Incarnation("i1")});
  w.clock.Advance(absl::Minutes(1));
  w.Do(Tick{});
  ASSERT_TRUE(w.Do(ForgetNode{NodeId("n1")}).status.ok());
  EXPECT_EQ(w.core->GetNode(NodeId("n0"))->links_size(), 0);
}

TEST(Links, TheSlowestOneIsWhatLaterGenerationsArePlannedWith) {
  World w(AnyWorld());
  const JobId id = StartOn(w, 3);
  EXPECT_FALSE(w.core->WouldPlace(Gang("next", 3)).slots.network.has_value());
  for (uint32_t from = 0; from < 3; ++from) {
    for (uint32_t to = 0; to < 3; ++to) {
      if (from != to) ReportLink(w, id, from, to, from == 2 && to == 1 ? 1.234e6 : 5e7, from == 0 ? 2.468e-3 : 1e-3);
    }
  }
  const Slots slots = w.core->WouldPlace(Gang("next", 3)).slots;
  ASSERT_TRUE(slots.network.has_value());
  EXPECT_DOUBLE_EQ(slots.network->bytes_per_second, 1.2e6) << "rounded";
  EXPECT_DOUBLE_EQ(slots.network->seconds, 2.5e-3);
  // A generation keeps what it was planned for, also for a plan that is made again after a restart.
  EndJob(w, id);
  const JobId next = StartOn(w, 3);
  ReportLink(w, next, 2, 1, 1e5);
  ReportLink(w, next, 2, 1, 1.1e5);
  w.Restart();
  const std::optional<strategies::Link> kept = PlacedSlots(w.Newest(next)).network;
  ASSERT_TRUE(kept.has_value());
  EXPECT_DOUBLE_EQ(kept->bytes_per_second, 1.2e6);
  EXPECT_DOUBLE_EQ(kept->seconds, 2.5e-3);
  EXPECT_EQ(w.core->ListLinks(id).size(), 6u);
  EXPECT_EQ(w.core->ListLinks(id)[0].from(), "n0");
  EXPECT_FALSE(w.core->WouldPlace(Gang("one", 1)).slots.network.has_value());
}

CoreRates RatesOf(double sockets, double top_k, double power_sgd, double int8) {
  CoreRates core;
  core.set_socket_bytes_per_second(sockets);
  core.set_top_k_seconds(top_k);
  core.set_power_sgd_seconds(power_sgd);
  core.set_int8_seconds(int8);
  return core;
}

Outcome ReportWithCore(World& w, const JobId& id, uint32_t from, double bytes_per_second, const CoreRates& core) {
  RankRecord event{{id, w.Newest(id).number(), from}, {}};
  RankLink& link = *event.record.mutable_running()->add_links();
  link.set_to(1 - from);
  link.set_bytes_per_second(bytes_per_second);
  link.set_latency_seconds(1e-3);
  *link.mutable_core() = core;
  return w.Do(event);
}

TEST(Links, TheSlowestCoreIsWhatLaterGenerationsArePlannedWith) {
  World w(AnyWorld());
  const JobId id = StartOn(w, 2);
  ReportBoth(w, id, 1e7);
  EXPECT_EQ(w.core->WouldPlace(Gang("next", 2)).slots.core.socket_bytes_per_second, 0) << "older workers";
  ReportWithCore(w, id, 0, 1.1e7, RatesOf(8.04e8, 2.04e-8, 5e-8, 3e-9));
  ReportWithCore(w, id, 1, 1.2e7, RatesOf(4.04e8, 1.04e-8, 6.02e-8, 4.04e-9));
  const Node node = w.core->GetNode(NodeId("n0")).value();
  EXPECT_EQ(node.links(0).core().socket_bytes_per_second(), 8.04e8);
  const auto check = [](const strategies::CoreRates& core) {
    EXPECT_DOUBLE_EQ(core.socket_bytes_per_second, 4e8) << "rounded";
    EXPECT_DOUBLE_EQ(core.compressing.top_k, 2e-8);
    EXPECT_DOUBLE_EQ(core.compressing.power_sgd, 6e-8);
    EXPECT_DOUBLE_EQ(core.compressing.int8, 4e-9);
  };
  check(w.core->WouldPlace(Gang("next", 2)).slots.core);
  // A generation keeps what it was planned for, also for a plan that is made again after a restart.
  EndJob(w, id);
  const JobId next = StartOn(w, 2);
  ReportWithCore(w, next, 0, 1.3e7, RatesOf(1e8, 1e-7, 1e-7, 1e-7));
  w.Restart();
  check(PlacedSlots(w.Newest(next)).core);
}

TEST(Links, WhatACoreTakesIsKeptUntilItIsMeasuredAgain) {
  World w(AnyWorld());
  const JobId id = StartOn(w, 2);
  ReportWithCore(w, id, 0, 1e7, RatesOf(8e8, 2e-8, 5e-8, 3e-9));
  ReportLink(w, id, 0, 1, 1.1e7);  // by a rank on a GPU, or of an older worker
  double next = 1.2e7;             // what repeats the figures of a link is no new report
  for (const double nonsense : {0.0, -1.0, std::numeric_limits<double>::infinity(), std::nan("")}) {
    ReportWithCore(w, id, 0, next += 1e6, RatesOf(nonsense, nonsense, nonsense, nonsense));
  }
  const CoreRates core = w.core->GetNode(NodeId("n0"))->links(0).core();
  EXPECT_EQ(core.SerializeAsString(), RatesOf(8e8, 2e-8, 5e-8, 3e-9).SerializeAsString());
}

// Predicted times, and with them what is chosen by them, depend on all of it.
TEST(Links, APlanThatIsMadeAgainIsForTheSameSlots) {
  World w(AnyWorld());
  for (const char* node : {"n0", "n1"}) {
    NodeConnected event{Hello(node, 1)};
    event.node.mutable_slots(0)->set_model("some model");
    event.node.mutable_cpu()->set_instruction_set("AMX BF16");
    w.Do(event);
  }
  const std::string before = SignatureOf(w.core->WouldPlace(Gang("next", 2)).slots);
  EXPECT_THAT(before, HasSubstr("some model bf16"));
  const JobId id = w.Submit(Gang("next", 2));
  w.Restart();
  EXPECT_EQ(SignatureOf(PlacedSlots(w.Newest(id))), before);
}

}  // namespace
}  // namespace muster::core
