#include "cli/output/ownership.h"

#include <gtest/gtest.h>

#include <boost/property_tree/ptree.hpp>
#include <boost/property_tree/xml_parser.hpp>
#include <set>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace muster::cli {
namespace {

using boost::property_tree::ptree;

struct Rect {
  double x, y, width, height;
  std::string colour, title;
};

// Throws if the text is not XML.
std::vector<Rect> Rects(const std::string& svg, ptree* whole = nullptr) {
  std::istringstream stream(svg);
  ptree tree;
  boost::property_tree::read_xml(stream, tree);
  std::vector<Rect> rects;
  for (const auto& [name, node] : tree.get_child("svg")) {
    if (name != "rect" || !node.get_child_optional("title")) continue;
    rects.push_back({node.get<double>("<xmlattr>.x"), node.get<double>("<xmlattr>.y"),
                     node.get<double>("<xmlattr>.width"), node.get<double>("<xmlattr>.height"),
                     node.get<std::string>("<xmlattr>.fill"), node.get<std::string>("title")});
  }
  if (whole != nullptr) *whole = tree;
  return rects;
}

void AddRank(uint32_t rank, uint32_t shard, v1::PlanReply& plan) {
  v1::RankPlan& of = *plan.add_ranks();
  of.set_rank(rank), of.set_shard(shard);
}

v1::PlanReply EvenPlan(uint32_t shards, int units, uint64_t share) {
  v1::PlanReply plan;
  plan.mutable_resolved()->set_name("gpt2-tiny");
  plan.mutable_table()->set_shards(shards);
  for (int u = 0; u < units; ++u) {
    v1::UnitPartition& unit = *plan.mutable_table()->add_units();
    unit.set_unit(absl::StrCat("h.", u));
    for (uint64_t s = 0; s <= shards; ++s) unit.add_boundaries(s * share * (u == 0 ? 4 : 1));
  }
  for (uint32_t r = 0; r < shards; ++r) AddRank(r, r, plan);
  return plan;
}

TEST(OwnershipSvg, PartsFillTheirRowsAndHeightsFollowTheBytes) {
  for (const uint32_t shards : {1, 2, 64}) {
    ptree tree;
    const std::vector<Rect> rects = Rects(*OwnershipSvg(EvenPlan(shards, 3, 160'000)), &tree);
    ASSERT_EQ(rects.size(), 3 * shards);
    std::set<std::string> colours;
    double end = rects[0].x;
    for (uint32_t s = 0; s < shards; ++s) {
      EXPECT_NEAR(rects[s].x, end, 0.02);
      EXPECT_NEAR(rects[s].width, rects[0].width, 0.02);
      end = rects[s].x + rects[s].width;
      colours.insert(rects[s].colour);
      EXPECT_EQ(rects[s].colour, rects[shards + s].colour);
    }
    EXPECT_EQ(colours.size(), shards) << "each shard has its own";
    EXPECT_NEAR(rects[0].height, 4 * rects[shards].height, 0.2);
    EXPECT_GE(rects[shards].y, rects[0].y + rects[0].height) << "rows lie below one another";
    EXPECT_LE(rects.back().y + rects.back().height, tree.get<double>("svg.<xmlattr>.height"));
    EXPECT_LE(end, tree.get<double>("svg.<xmlattr>.width"));
  }
}

TEST(OwnershipSvg, LegendNamesBytesAndRanks) {
  v1::PlanReply plan = EvenPlan(2, 1, 1 << 18);
  for (uint32_t r = 2; r < 6; ++r) AddRank(r, r % 2, plan);
  const std::string svg = *OwnershipSvg(plan);
  EXPECT_TRUE(absl::StrContains(svg, ">shard 0: 4 MiB, ranks 0, 2 and 1 more<")) << svg;
  EXPECT_TRUE(absl::StrContains(svg, ">shard 1: 4 MiB, ranks 1, 3 and 1 more<")) << svg;
}

TEST(OwnershipSvg, DrawsExtents) {
  v1::PlanReply plan = EvenPlan(2, 1, 16);
  v1::UnitPartition& unit = *plan.mutable_table()->mutable_units(0);
  unit.clear_boundaries();
  for (const uint32_t shard : {0, 1, 1, 0}) {
    v1::Extent& extent = *unit.add_pieces()->add_extents();
    extent.set_shard(shard);
    extent.set_length(25);
  }
  const std::vector<Rect> rects = Rects(*OwnershipSvg(plan));
  ASSERT_EQ(rects.size(), 3u);  // the neighbors of shard 1 are merged
  EXPECT_NEAR(rects[1].width, 2 * rects[0].width, 0.02);
  EXPECT_EQ(rects[1].title, "h.0: shard 1 of 200 B, 50.00%");
}

// Two stages of two shards, and two ranks for each shard: ranks 4 and 6 hold shard 2, the first one of stage 1.
TEST(OwnershipSvg, OfAPipelineDrawsAShardForEachStageAndARowOfTheStep) {
  v1::PlanReply plan = EvenPlan(2, 2, 1 << 18);
  plan.mutable_table()->set_shards(4), plan.mutable_table()->set_stages(2);
  plan.mutable_table()->mutable_units(1)->set_stage(1);
  plan.clear_ranks();
  for (uint32_t r = 0; r < 8; ++r) AddRank(r, 2 * (r / 4) + r % 2, plan);
  for (uint32_t stage = 0; stage < 2; ++stage) {
    plan.add_stages()->set_stage(stage);
    plan.mutable_stages(static_cast<int>(stage))->set_bubble(0.25);
    for (int half = 0; half < 4; ++half) {  // two units forward, two backward
      v1::PlannedOp& op = *plan.add_ops();
      op.set_op(absl::StrCat(half < 2 ? "Forward" : "Backward", " h.", half % 2, " m0"));
      op.set_stage(stage), op.set_stream("compute");
      op.set_begin_seconds(stage + half), op.set_end_seconds(stage + half + 1);
    }
  }
  const std::string svg = *OwnershipSvg(plan);
  EXPECT_TRUE(absl::StrContains(svg, ">shard 2: 1 MiB, ranks 4 and 6<")) << svg;
  EXPECT_TRUE(absl::StrContains(svg, ">25.0% bubble<")) << svg;
  const std::vector<Rect> rects = Rects(svg);
  ASSERT_EQ(rects.size(), 8u) << "a block for each pass of each stage, and two shards of each unit";
  EXPECT_EQ(rects[0].title, "stage 0: Forward m0, 0 to 2000 ms");
  EXPECT_NEAR(rects[0].x + rects[0].width, rects[1].x, 0.02) << "the units of a pass are one block";
  EXPECT_NE(rects[0].colour, rects[1].colour);
  EXPECT_NEAR(rects[2].x - rects[0].x, rects[0].width / 2, 0.02) << "stage 1 begins a second later";
  EXPECT_GT(rects[2].y, rects[0].y);
  EXPECT_EQ(rects[6].title, "h.1: shard 2 of 1 MiB, 50.00%");
}

// Two shares of a unit, of two shards each: share 1 belongs to shards 1 and 3.
TEST(OwnershipSvg, SharesOfAUnitHaveShardsOfTheirOwn) {
  v1::PlanReply plan = EvenPlan(2, 2, 1 << 18);
  plan.mutable_table()->set_shards(4), plan.mutable_table()->set_tensor(2);
  plan.mutable_table()->mutable_units(1)->set_tensor(1);
  const std::vector<Rect> rects = Rects(*OwnershipSvg(plan));
  ASSERT_EQ(rects.size(), 4u);
  EXPECT_EQ(rects[0].title, "h.0: shard 0 of 4 MiB, 50.00%");
  EXPECT_EQ(rects[1].title, "h.0: shard 2 of 4 MiB, 50.00%");
  EXPECT_EQ(rects[2].title, "h.1: shard 1 of 1 MiB, 50.00%");
  EXPECT_EQ(rects[3].title, "h.1: shard 3 of 1 MiB, 50.00%");
}

TEST(OwnershipSvg, OfAThousandRanksStaysSmall) {
  const std::string svg = *OwnershipSvg(EvenPlan(2048, 48, 1600));
  EXPECT_LT(svg.size(), 9u << 20);
  const std::vector<Rect> rects = Rects(svg);
  EXPECT_LE(rects.size(), 48u * 701);
  EXPECT_TRUE(absl::StrContains(svg, "and 1856 more shards of "));
}

TEST(OwnershipSvg, NamesOfOthersCannotBreakIt) {
  v1::PlanReply plan = EvenPlan(2, 1, 16);
  plan.mutable_table()->mutable_units(0)->set_unit("<script>&\"\x1b[2J\n");
  plan.add_placement("a < b & c");
  const std::vector<Rect> rects = Rects(*OwnershipSvg(plan));
  EXPECT_TRUE(absl::StartsWith(rects[0].title, "<script>&\"\\x1b[2J")) << rects[0].title;
}

TEST(OwnershipSvg, NeedsATable) {
  EXPECT_EQ(OwnershipSvg(v1::PlanReply()).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace muster::cli
