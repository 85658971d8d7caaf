#include "cli/output/timeline.h"

#include <gtest/gtest.h>

#include <boost/property_tree/ptree.hpp>
#include <boost/property_tree/xml_parser.hpp>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace muster::cli {
namespace {

// Two stages, a microbatch: stage 0 forwards in the first second and sends in half of the next one, stage 1 computes
// forward, the gradient of its input and those of its weights from 1.5 s on, and stage 0 goes back.
v1::PlanReply TwoStages() {
  v1::PlanReply plan;
  plan.mutable_resolved()->set_name("a <b>");
  plan.set_strategy("2 stages by zero_bubble, single, microbatch 1");
  plan.add_ranks(), plan.add_ranks();
  plan.mutable_simulated()->set_step_seconds(5), plan.mutable_simulated()->set_hardware("h100");
  for (uint32_t stage = 0; stage < 2; ++stage) {
    v1::StagePlan& of = *plan.add_stages();
    of.set_stage(stage), of.set_bubble(0.4);
  }
  const auto add = [&](uint32_t stage, const char* op, const char* stream, double begin, double end) {
    v1::PlannedOp& planned = *plan.add_ops();
    planned.set_stage(stage), planned.set_op(op), planned.set_stream(stream);
    planned.set_begin_seconds(begin), planned.set_end_seconds(end);
  };
  add(0, "Forward h.0 m0", "compute", 0, 0.5), add(0, "Forward h.1 m0", "compute", 0.5, 1);
  add(0, "SendActivation h.1 m0", "send activations", 1, 1.5);
  add(1, "ReceiveActivation h.2 m0", "receive activations", 1, 1.5);
  add(1, "Forward h.2 m0 in tensor", "compute", 1.5, 2.5), add(1, "BackwardInputs h.2 m0", "compute", 2.5, 3.5);
  add(1, "BackwardWeights h.2 m0", "compute", 3.5, 4.5);
  add(0, "Backward h.1 m0", "compute", 4, 5);
  add(0, "Reduce h.0", "reduce", 4.5, 5);
  return plan;
}

struct Block {
  double x, y, width, height;
  std::string fill, title;
};
std::vector<Block> BlocksIn(const std::string& svg) {
  std::istringstream stream(svg);
  boost::property_tree::ptree tree;
  boost::property_tree::read_xml(stream, tree);  // throws if it is not XML
  std::vector<Block> blocks;
  for (const auto& [name, node] : tree.get_child("svg")) {
    if (name != "rect" || !node.get_child_optional("title")) continue;
    blocks.push_back({node.get<double>("<xmlattr>.x"), node.get<double>("<xmlattr>.y"),
                      node.get<double>("<xmlattr>.width"), node.get<double>("<xmlattr>.height"),
                      node.get<std::string>("<xmlattr>.fill"), node.get<std::string>("title")});
  }
  return blocks;
}

TEST(TimelineSvg, HasARowOfBlocksForEachStage) {
  const std::string svg = *TimelineSvg(TwoStages());
  const std::vector<Block> blocks = BlocksIn(svg);
  ASSERT_EQ(blocks.size(), 8u);
  const char* const titles[] = {"stage 0: Forward m0, 0 to 1000 ms",
                                "stage 0: Backward m0, 4000 to 5000 ms",
                                "stage 0: send activations, 1000 to 1500 ms",
                                "stage 0: reduce, 4500 to 5000 ms",
                                "stage 1: Forward m0, 1500 to 2500 ms",
                                "stage 1: BackwardInputs m0, 2500 to 3500 ms",
                                "stage 1: BackwardWeights m0, 3500 to 4500 ms",
                                "stage 1: receive activations, 1000 to 1500 ms"};
  const double second = blocks[0].width;
  for (size_t i = 0; i < blocks.size(); ++i) EXPECT_EQ(blocks[i].title, titles[i]);
  EXPECT_NEAR(blocks[1].x - blocks[0].x, 4 * second, 0.02) << "the gap is the bubble";
  EXPECT_NEAR(blocks[4].x - blocks[0].x, 1.5 * second, 0.02);
  EXPECT_GT(blocks[4].y, blocks[3].y) << "below stage 0";
  EXPECT_GT(blocks[2].y, blocks[0].y) << "communication is below computing";
  EXPECT_LT(blocks[2].height, blocks[0].height);
  EXPECT_EQ(blocks[1].fill, blocks[5].fill) << "both go back";
  EXPECT_NE(blocks[5].fill, blocks[6].fill);
  EXPECT_NE(blocks[0].fill, blocks[1].fill);
  EXPECT_EQ(blocks[2].fill, blocks[7].fill);
  EXPECT_NE(blocks[2].fill, blocks[3].fill) << "between stages, and inside one";
  for (const char* text : {">stage 0<", ">stage 1<", ">40.0% bubble<", ">0<", ">5000<", ">gradients of weights<",
                           "a step of 5000 ms predicted on h100<", "a &lt;b&gt;: "}) {
    EXPECT_TRUE(absl::StrContains(svg, text)) << text << "\n" << svg;
  }
}

// Interleaved: h.0 and h.2 on stage 0. The second chunk is lighter, and the legend says so; it names no colors that are
// not there. What is shorter than a pixel is still seen, and a step of many microbatches is drawn wider.
TEST(TimelineSvg, ChunksLookDifferent) {
  v1::PlanReply plan = TwoStages();
  plan.set_strategy("fsdp shard_grad_op");
  plan.mutable_resolved()->mutable_train()->mutable_pipeline()->set_schedule(PIPELINE_SCHEDULE_INTERLEAVED);
  plan.mutable_resolved()->mutable_train()->mutable_pipeline()->set_chunks(2);
  plan.mutable_stages(0)->add_chunks("h.0 to h.1"), plan.mutable_stages(0)->add_chunks("h.2 to h.3");
  plan.clear_ops();
  const auto add = [&](const char* op, const char* stream, double begin, double end) {
    v1::PlannedOp& planned = *plan.add_ops();
    planned.set_op(op), planned.set_stream(stream), planned.set_begin_seconds(begin), planned.set_end_seconds(end);
  };
  add("Forward h.0 m0", "compute", 0, 1), add("Forward h.1 m0", "compute", 1, 2);
  add("SendActivation h.1 m0", "send activations", 2, 2 + 1e-9);
  add("Forward h.2 m0", "compute", 2, 3), add("Forward h.3 m0", "compute", 3, 4);
  add("Backward h.3 m0", "compute", 4, 5), add("Backward h.1 m0", "compute", 5, 6);
  const std::string svg = *TimelineSvg(plan);
  const std::vector<Block> blocks = BlocksIn(svg);
  ASSERT_EQ(blocks.size(), 5u) << svg;
  EXPECT_EQ(blocks[1].title, "stage 0: Forward m0 of chunk 1, 2000 to 4000 ms");
  EXPECT_NE(blocks[0].fill, blocks[1].fill);
  EXPECT_NE(blocks[2].fill, blocks[3].fill);
  EXPECT_GT(blocks[4].width, 0.5);
  for (const char* text :
       {">lighter: later chunks of a stage<", ", 2 stages by interleaved of 2 chunks, fsdp shard_grad_op",
        ">activations and gradients between stages<"}) {
    EXPECT_TRUE(absl::StrContains(svg, text)) << text << "\n" << svg;
  }
  EXPECT_FALSE(absl::StrContains(svg, "gradients of weights")) << svg;
  const auto width = [](const std::string& of) { return std::stod(of.substr(of.find(" width=\"") + 8)); };
  for (int m = 0; m < 400; ++m) add("Forward h.0 m1", "compute", 6 + 0.01 * m, 6.005 + 0.01 * m);
  EXPECT_GT(width(*TimelineSvg(plan)), 2 * width(svg));
}

TEST(TimelineSvg, OfALongStepSaysHowMuchIsShown) {
  v1::PlanReply plan = TwoStages();
  plan.mutable_simulated()->set_step_seconds(50);
  EXPECT_TRUE(absl::StrContains(*TimelineSvg(plan), "; shown are its first 5000 ms<")) << *TimelineSvg(plan);
}

TEST(TimelineSvg, WithoutAPipelineThereIsOneRow) {
  v1::PlanReply plan = TwoStages();
  plan.clear_stages();
  const std::string svg = *TimelineSvg(plan);
  EXPECT_TRUE(absl::StrContains(svg, ">every rank<")) << svg;
  EXPECT_EQ(BlocksIn(svg).size(), 4u);
}

TEST(TimelineSvg, NeedsOps) { EXPECT_EQ(TimelineSvg(v1::PlanReply()).status().code(), absl::StatusCode::kNotFound); }

}  // namespace
}  // namespace muster::cli
