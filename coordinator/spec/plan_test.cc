#include "coordinator/spec/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "coordinator/spec/good_spec_test.h"
#include "coordinator/spec/resolve.h"
#include "models/custom/custom.h"
#include "models/inventory.h"
#include "models/inventory_build.h"
#include "models/task.h"

namespace muster::spec {
namespace {

PlanReply Planned(const JobSpec& spec, uint64_t memory_bytes = 0) {
  PlanFor on = AnySlots(spec, *strategies::FindHardware("h100"));
  for (RankPlace& rank : on.slots.ranks) rank.memory_bytes = memory_bytes;
  on.ops = true;
  const auto plan = MakePlan(spec, on);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan->reply;
}

TEST(Plan, OfALongScheduleShowsTheBeginning) {
  JobSpec spec = Good();
  spec.mutable_train()->mutable_batch()->set_sequences(5000);
  spec.mutable_train()->mutable_batch()->set_microbatch(1);
  ASSERT_TRUE(Resolve({}, spec).empty());
  const PlanReply plan = Planned(spec);
  EXPECT_LT(plan.schedule().size(), 300u * 1024);
  EXPECT_TRUE(absl::EndsWith(plan.schedule(), " more ops\n")) << plan.schedule().substr(plan.schedule().size() - 80);
}

TEST(Plan, SaysWhoOwnsWhat) {
  JobSpec spec = Good();
  spec.mutable_resources()->set_ranks(3);
  spec.mutable_train()->mutable_strategy()->mutable_zero()->set_placement(PLACEMENT_RAGGED);
  ASSERT_TRUE(Resolve({}, spec).empty());
  const PlanReply plan = Planned(spec);
  EXPECT_EQ(plan.table().shards(), 3u);
  EXPECT_EQ(plan.table().units_size(), 6);
  ASSERT_GE(plan.placement_size(), 3);
  EXPECT_TRUE(absl::StartsWith(plan.placement(0), "3 shards own ")) << plan.placement(0);
}

TEST(Plan, OfAPipelineShowsItsStages) {
  JobSpec spec = Good();
  Staged(spec, 4, 2);
  Train& train = *spec.mutable_train();
  train.mutable_strategy()->mutable_fsdp();
  train.mutable_batch()->set_sequences(16);
  train.mutable_batch()->set_microbatch(1);
  train.mutable_pipeline()->add_cut("layers.1");
  ASSERT_TRUE(Resolve({}, spec).empty());
  const PlanReply plan = Planned(spec);
  EXPECT_EQ(plan.microbatches(), 8u) << "of 8 sequences for each of two ranks";
  ASSERT_EQ(plan.stages_size(), 2);
  EXPECT_THAT(plan.stages(0).chunks(), testing::ElementsAre("embedding to layers.0"));
  EXPECT_THAT(plan.stages(1).chunks(), testing::ElementsAre("layers.1 to head"));
  EXPECT_EQ(plan.stages(0).parameters() + plan.stages(1).parameters(), plan.parameters());
  EXPECT_NEAR(plan.stages(0).flops_share() + plan.stages(1).flops_share(), 1, 1e-9);
  EXPECT_GT(plan.stages(1).flops_share(), plan.stages(0).flops_share());
  for (const StagePlan& stage : plan.stages()) {
    EXPECT_GT(stage.bubble(), 0);
    EXPECT_LT(stage.bubble(), 1);
    EXPECT_NEAR(stage.bubble(), 1 - stage.compute_seconds() / plan.simulated().step_seconds(), 1e-9);
    EXPECT_EQ(stage.sent_bytes(), 8u * 128 * 128 * 4) << "8 sequences of 128 tokens, width 128, in fp32";
    EXPECT_EQ(plan.ranks(static_cast<int>(2 * stage.stage())).stage(), stage.stage());
    EXPECT_LE(plan.ranks(static_cast<int>(2 * stage.stage())).peak_bytes(), stage.peak_bytes());
  }
  EXPECT_NE(plan.stages(0).schedule_digest(), plan.stages(1).schedule_digest());
  EXPECT_EQ(plan.schedule_digest(), plan.stages(0).schedule_digest());
  const size_t second = plan.schedule().find("\nstage 1:\n");
  ASSERT_NE(second, std::string::npos);
  const size_t receives = plan.schedule().find("\nReceiveActivation layers.1 m0");
  ASSERT_NE(receives, std::string::npos);
  EXPECT_GT(receives, second) << "the first stage receives no activations";
  EXPECT_EQ(plan.ops(0).stage(), 0u);
  EXPECT_EQ(plan.ops(plan.ops_size() - 1).stage(), 1u);
  const auto has = [](const auto& lines, const char* part) {
    return std::any_of(lines.begin(), lines.end(), [&](const std::string& l) { return absl::StrContains(l, part); });
  };
  EXPECT_TRUE(has(plan.placement(),
                  "2 stages of 2 ranks: each lies on one node; activations and gradients cross nodes "
                  "at 0 of 1 boundary between stages"))
      << plan.DebugString();
  EXPECT_TRUE(has(plan.placement(), "1.00 × its share")) << "each of two shards has half of a unit of its stage";
  EXPECT_TRUE(has(plan.placement(), "each unit is divided into equal parts")) << plan.DebugString();
  EXPECT_FALSE(has(plan.notes(), "stages idle in every step"));
  // Three nodes in the middle of stages; and fewer microbatches than stages.
  train.mutable_batch()->set_microbatch(8);
  PlanFor on = AnySlots(spec, *strategies::FindHardware("h100"));
  for (size_t rank = 0; rank < 4; ++rank) on.slots.ranks[rank].node = static_cast<uint32_t>(rank + 1) / 2;
  const PlanReply spread = MakePlan(spec, on)->reply;
  EXPECT_TRUE(has(spread.placement(), "2 lie on several nodes; activations and gradients cross nodes at 1 of 1"));
  EXPECT_TRUE(has(spread.notes(), "1 microbatch a step for 2 stages: stages idle in every step"));
}

TEST(Plan, SaysWhetherThereAreTwoLevels) {
  JobSpec spec = Good();
  spec.mutable_resources()->set_ranks(4);
  spec.mutable_train()->mutable_strategy()->mutable_fsdp();
  spec.mutable_train()->mutable_communication()->set_hierarchy(HIERARCHY_ALWAYS);
  ASSERT_TRUE(Resolve({}, spec).empty());
  const auto last = [&](const std::vector<uint32_t>& nodes) {
    PlanFor on = AnySlots(spec, *strategies::FindHardware("cpu"));
    for (size_t rank = 0; rank < 4; ++rank) on.slots.ranks[rank].node = nodes[rank];
    const PlanReply plan = MakePlan(spec, on)->reply;
    return plan.placement(plan.placement_size() - 1);
  };
  EXPECT_EQ(
      last({0, 0, 1, 1}),
      "two levels: gathers and reductions of 4 ranks run inside 2 nodes, among 2 ranks, and between them, among 2");
  EXPECT_EQ(last({0, 0, 0, 1}), "hierarchy: always has no effect: the nodes have different numbers of ranks");
  EXPECT_THAT(last({0, 1, 2, 3}),
              testing::HasSubstr("hierarchy: always has no effect: each group that gathers or reduces together "));
  EXPECT_THAT(last({0, 0, 0, 0}), testing::Not(testing::HasSubstr("hierarchy")));
}

TEST(Plan, SaysWhatCompressionSaves) {
  JobSpec spec = Good();
  spec.mutable_resources()->set_ranks(4);
  spec.mutable_train()->mutable_strategy()->mutable_ddp();
  Compression& compression = *spec.mutable_train()->mutable_communication()->mutable_compression();
  compression.mutable_top_k()->set_values(SENT_VALUES_FP32);
  ASSERT_TRUE(Resolve({}, spec).empty());
  const auto notes = [&] {
    const PlanReply plan = MakePlan(spec, AnySlots(spec, *strategies::FindHardware("cpu")))->reply;
    return absl::StrJoin(plan.notes(), "\n");
  };
  // Of 4 ranks a ring sends 3/2 of the 0.86 million gradients of 4 bytes from each; an all-gather three messages of one
  // in a hundred, of 32 bits and about 8 2/3 each.
  EXPECT_THAT(notes(), testing::HasSubstr("sums over replicas travel as top_k 1/100 in fp32: a rank sends "));
  const double elements = static_cast<double>(models::Parameters(*models::MakeInventory(spec.train())));
  uint64_t sent = 0, exact = 0;
  ASSERT_EQ(std::sscanf(notes().c_str() + notes().find("sends"), "sends %lu KiB a step instead of %lu", &sent, &exact),
            2);
  EXPECT_NEAR(static_cast<double>(sent) * 1024, 3 * elements / 100 * (32 + 8.67) / 8, 0.02 * elements / 100 * 15);
  spec.mutable_train()->mutable_strategy()->mutable_zero()->set_stage(1);
  EXPECT_THAT(notes(), testing::HasSubstr("communication.compression has no effect: no gradients are summed over"));
}

// Two blocks of 12 width^2 + 13 width parameters and the last norm are trained on the second stage, whose two ranks
// send each gradient once as fp32; a checkpoint has weights, two states of AdamW and the residual, 16 bytes of each.
// The first stage has no gradients.
TEST(Plan, SaysWhatCompressionSavesBehindAFrozenStage) {
  JobSpec spec = Good();
  spec.mutable_resources()->set_ranks(4);
  Train& train = *spec.mutable_train();
  train.mutable_strategy()->mutable_ddp();
  train.mutable_parallel()->set_pipeline(2);
  train.mutable_pipeline()->add_cut("h.2");
  for (const char* frozen : {"wte*", "wpe*", "h.0.*", "h.1.*"}) train.add_freeze(frozen);
  train.mutable_communication()->mutable_compression()->mutable_top_k()->set_values(SENT_VALUES_FP32);
  ASSERT_TRUE(Resolve({}, spec).empty());
  train.mutable_checkpoint()->set_path("/c");
  const PlanReply plan = MakePlan(spec, AnySlots(spec, *strategies::FindHardware("cpu")))->reply;
  const std::string notes = absl::StrJoin(plan.notes(), "\n");
  constexpr double kTrained = 2 * (12 * 128 * 128 + 13 * 128) + 2 * 128;
  EXPECT_THAT(notes, testing::HasSubstr("sums over replicas travel as top_k 1/100 in fp32: a rank sends "));
  EXPECT_THAT(notes, testing::HasSubstr(absl::StrFormat("instead of %.2f MiB", 4 * kTrained / (1 << 20))));
  EXPECT_THAT(notes, testing::HasSubstr(absl::StrFormat("a copy of up to %.2f MiB a rank", 16 * kTrained / (1 << 20))));
}

// GPT-2's embedding is its head's, too: the stage that owns it sends it, and the other one sends its gradient back.
TEST(Plan, CountsWhatTiedTensorsTakeOfAnEdge) {
  JobSpec spec = Good();
  spec.mutable_resources()->set_ranks(2);
  Train& train = *spec.mutable_train();
  train.mutable_parallel()->set_pipeline(2);
  train.mutable_precision()->set_compute(DTYPE_BF16);
  ASSERT_TRUE(Resolve({}, spec).empty());
  const PlanReply plan = Planned(spec);
  ASSERT_EQ(plan.stages_size(), 2);
  constexpr uint64_t kActivations = 8 * 128 * 128 * 4;  // sequences, tokens, width, fp32
  const uint64_t embedding = train.model().gpt2().vocabulary() * 128;
  EXPECT_EQ(plan.stages(0).sent_bytes(), kActivations + 2 * embedding);
  EXPECT_EQ(plan.stages(1).sent_bytes(), kActivations + 4 * embedding);
}

// With ZB-V the last stage has both middle chunks of the model, so it sends nothing between them. One boundary takes 8
// sequences of 128 tokens, width 128, in fp32: 524,288 bytes each way.
TEST(Plan, CountsWhatStagesOfSeveralChunksSend) {
  const auto sent = [](uint32_t stages, PipelineSchedule schedule) {
    JobSpec spec = Good();
    Pipeline& pipeline = Staged(spec, stages, stages);
    pipeline.set_schedule(schedule), pipeline.set_chunks(2);
    EXPECT_TRUE(Resolve({}, spec).empty());
    const PlanReply plan = Planned(spec);
    std::vector<uint64_t> bytes;
    for (const StagePlan& stage : plan.stages()) bytes.push_back(stage.sent_bytes());
    return bytes;
  };
  EXPECT_THAT(sent(2, PIPELINE_SCHEDULE_ZERO_BUBBLE), testing::ElementsAre(1'048'576, 1'048'576));
  EXPECT_THAT(sent(3, PIPELINE_SCHEDULE_ZERO_BUBBLE), testing::ElementsAre(1'048'576, 2'097'152, 1'048'576));
  EXPECT_THAT(sent(2, PIPELINE_SCHEDULE_INTERLEAVED), testing::ElementsAre(1'572'864, 1'572'864));
}

// More microbatches leave less of the step idle; a stage of several chunks even less (Narayanan et al. 2021, 2.2).
TEST(Plan, BubblesShrinkAsTheyShould) {
  const auto bubble = [](uint32_t microbatches, PipelineSchedule schedule) {
    JobSpec spec = Good();
    Staged(spec, 2, 2).set_schedule(schedule);
    // Layers of equal work, so large that nothing but they counts.
    Llama& llama = *spec.mutable_train()->mutable_model()->mutable_llama();
    llama.clear_size();
    llama.set_layers(14), llama.set_heads(16), llama.set_width(2048), llama.set_inner(8192), llama.set_context(2048);
    llama.set_vocabulary(256);
    spec.mutable_train()->mutable_batch()->set_sequences(microbatches);
    spec.mutable_train()->mutable_batch()->set_microbatch(1);
    EXPECT_TRUE(Resolve({}, spec).empty());
    const PlanReply plan = Planned(spec);
    return std::max(plan.stages(0).bubble(), plan.stages(1).bubble());
  };
  // (P - 1) / (M + P - 1) of the step.
  EXPECT_NEAR(bubble(4, PIPELINE_SCHEDULE_1F1B), 1.0 / 5, 0.03);
  EXPECT_NEAR(bubble(16, PIPELINE_SCHEDULE_1F1B), 1.0 / 17, 0.03);
  EXPECT_NEAR(bubble(4, PIPELINE_SCHEDULE_GPIPE), 1.0 / 5, 0.03);
  // (P - 1) / (V M + P - 1)
  EXPECT_NEAR(bubble(4, PIPELINE_SCHEDULE_INTERLEAVED), 1.0 / 9, 0.04);
  // ZB-H1, where forward and both halves of the backward take the same time: (P - 1) / (3 M + P - 1) (Qi et al. 2024)
  EXPECT_NEAR(bubble(4, PIPELINE_SCHEDULE_ZERO_BUBBLE), 1.0 / 13, 0.03);
}

TEST(Plan, ChoosesTheStrategyOfAPipelinesStages) {
  JobSpec spec = Good();
  Staged(spec, 8, 2);
  spec.mutable_train()->mutable_strategy()->mutable_auto_();
  spec.mutable_train()->mutable_batch()->set_sequences(64);
  ASSERT_TRUE(Resolve({}, spec).empty());
  for (const uint32_t on_node : {1u, 2u, 3u, 8u}) {
    PlanFor on = AnySlots(spec, *strategies::FindHardware("h100"));
    for (uint32_t rank = 0; rank < 8; ++rank) on.slots.ranks[rank].node = rank / on_node;
    const auto plan = MakePlan(spec, on);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->reply.stages_size(), 2);
    const bool hybrid = std::any_of(plan->reply.candidates().begin(), plan->reply.candidates().end(),
                                    [](const CandidatePlan& c) { return c.strategy() == "fsdp hybrid"; });
    EXPECT_EQ(hybrid, on_node == 2) << "only there each stage is on two nodes of two ranks";
  }
  Staged(spec, 2, 2);
  spec.mutable_train()->mutable_strategy()->mutable_auto_();
  spec.mutable_train()->mutable_batch()->clear_microbatch();
  ASSERT_TRUE(Resolve({}, spec).empty());
  EXPECT_TRUE(absl::StartsWith(Planned(spec).strategy(), "single"));
}

TEST(Plan, SaysBySpeedWhoOwnsWhat) {
  JobSpec spec = Good();
  spec.mutable_resources()->set_ranks(3);
  Fsdp& fsdp = *spec.mutable_train()->mutable_strategy()->mutable_fsdp();
  fsdp.set_placement(PLACEMENT_RAGGED);
  fsdp.set_shares(SHARES_SPEED);
  ASSERT_TRUE(Resolve({}, spec).empty());
  const auto line = [&](const PlanFor& on) { return MakePlan(spec, on)->reply.placement().rbegin()[0]; };
  PlanFor on = AnySlots(spec, *strategies::FindHardware("cpu"));
  EXPECT_TRUE(absl::StrContains(line(on), "none is known yet")) << line(on);
  on.slots.ranks[0].flops_per_second = 90e9;
  on.slots.ranks[2].flops_per_second = 30e9;
  const PlanReply plan = MakePlan(spec, on)->reply;
  EXPECT_EQ(line(on),
            "shares by measured speed, 30 to 90 GFLOP/s; of 1 rank it is not known, which counts as the mean");
  EXPECT_TRUE(absl::StrContains(plan.placement(0), "× its share of the speed")) << plan.placement(0);
  EXPECT_NEAR(
      static_cast<double>(plan.ranks(0).optimizer_bytes()) / static_cast<double>(plan.ranks(2).optimizer_bytes()), 3,
      0.1);
  on.slots.ranks[0].memory_bytes = 20 << 20;
  EXPECT_TRUE(absl::StrContains(line(on), "; shard 0 is held to what")) << line(on);
}

TEST(Bf16Notes, NameNodesByHowTheyCompute) {
  std::map<std::string, Cpu> cpus;
  cpus["a"].set_instruction_set("AVX-512 BF16");
  cpus["b"].set_instruction_set("AVX2");
  cpus["c"].set_instruction_set("AVX2");
  cpus["c"].set_limited_by("ONEDNN_MAX_CPU_ISA=AVX2");
  cpus["older"];
  EXPECT_THAT(
      Bf16Notes(cpus),
      testing::ElementsAre("bf16 GEMMs are native on a (AVX-512 BF16)",
                           "bf16 GEMMs go through fp32 panels, at about the speed of fp32, on b (AVX2), c (AVX2 "
                           "by ONEDNN_MAX_CPU_ISA=AVX2)"));
  cpus.erase("a");
  cpus["d"].set_instruction_set("AVX-512");
  cpus["e"].set_instruction_set("AVX2");
  EXPECT_THAT(Bf16Notes(cpus), testing::ElementsAre(testing::EndsWith("d (AVX-512) and 1 more")));
  EXPECT_THAT(Bf16Notes({}), testing::IsEmpty());
}

TEST(Plan, NotesWhatANondeterministicJobGivesUp) {
  const auto note = testing::Contains(testing::HasSubstr("deterministic: false: GPUs may use kernels whose sums"));
  const auto notes = [](std::optional<bool> deterministic, Device device) {
    JobSpec spec = Good();
    spec.mutable_resources()->set_device(device);
    if (deterministic.has_value()) spec.mutable_train()->set_deterministic(*deterministic);
    EXPECT_TRUE(Resolve({}, spec).empty());
    return Planned(spec).notes();
  };
  EXPECT_THAT(notes(false, DEVICE_CUDA), note);
  EXPECT_THAT(notes(false, DEVICE_AUTO), note);
  EXPECT_THAT(notes(false, DEVICE_CPU), testing::Not(note)) << "CPUs compute the same bits anyway";
  EXPECT_THAT(notes(true, DEVICE_CUDA), testing::Not(note));
  EXPECT_THAT(notes(std::nullopt, DEVICE_CUDA), testing::Not(note));
}

TEST(Plan, SaysWhatCudaGraphsCost) {
  const auto note = testing::Contains(testing::HasSubstr("cuda_graphs: true has not run on a GPU yet"));
  const auto notes = [](bool graphs, Device device) {
    JobSpec spec = Good();
    spec.mutable_resources()->set_device(device);
    spec.mutable_train()->set_cuda_graphs(graphs);
    EXPECT_TRUE(Resolve({}, spec).empty());
    return Planned(spec).notes();
  };
  EXPECT_THAT(notes(true, DEVICE_CUDA), note);
  EXPECT_THAT(notes(true, DEVICE_CPU), testing::Not(note)) << "CPUs have none";
  EXPECT_THAT(notes(false, DEVICE_CUDA), testing::Not(note));
}

TEST(Plan, SaysWhichRanksAreIdle) {
  const auto notes = [](uint32_t ranks, uint32_t sequences) {
    JobSpec spec = Good();
    spec.mutable_resources()->set_ranks(ranks);
    spec.mutable_train()->mutable_strategy()->mutable_ddp();
    spec.mutable_train()->mutable_batch()->set_sequences(sequences);
    spec.mutable_train()->mutable_batch()->set_microbatch(1);
    EXPECT_TRUE(Resolve({}, spec).empty());
    return Planned(spec).notes();
  };
  EXPECT_THAT(notes(4, 3), testing::Contains("1 of 4 ranks is idle in every step: batch.sequences is 3 for 4 ranks; "
                                             "raise it to at least 4, or lower resources.ranks"));
  EXPECT_THAT(notes(4, 4), testing::Not(testing::Contains(testing::HasSubstr("idle"))));
}

// Two groups of two ranks, each of which computes half of every sequence of its group.
TEST(Plan, OfRanksThatShareSequences) {
  const auto resolved = [](uint32_t context, uint32_t sequences) {
    JobSpec spec = Good();
    spec.mutable_resources()->set_ranks(4);
    spec.mutable_train()->mutable_strategy()->mutable_ddp();
    spec.mutable_train()->mutable_parallel()->set_context(context);
    spec.mutable_train()->mutable_batch()->set_sequences(sequences);
    spec.mutable_train()->mutable_batch()->set_microbatch(1);
    EXPECT_TRUE(Resolve({}, spec).empty());
    return spec;
  };
  const PlanReply whole = Planned(resolved(1, 4)), halves = Planned(resolved(2, 4));
  EXPECT_EQ(halves.tokens_per_step(), 4u * 128);
  EXPECT_EQ(whole.microbatches(), 1u);
  EXPECT_EQ(halves.microbatches(), 2u) << "of 2 sequences for each group";
  EXPECT_EQ(halves.parameters(), 842'496u);
  EXPECT_NEAR(halves.flops_per_step() / whole.flops_per_step(), 1, 1e-9);
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(halves.ranks(rank).parameter_bytes(), whole.ranks(rank).parameter_bytes());
    EXPECT_EQ(halves.ranks(rank).optimizer_bytes(), whole.ranks(rank).optimizer_bytes());
    // Of half as many tokens, and of the keys and values of all of them in one layer.
    const double share = static_cast<double>(halves.ranks(rank).activation_bytes()) /
                         static_cast<double>(whole.ranks(rank).activation_bytes());
    EXPECT_GE(share, 0.5);
    EXPECT_LE(share, 0.7);
  }
  EXPECT_GT(halves.simulated().exchanged_seconds(), 0);
  EXPECT_THAT(halves.placement(), testing::Contains("each sequence is divided among 2 ranks, which share a node"));
  EXPECT_THAT(whole.placement(), testing::Not(testing::Contains(testing::HasSubstr("each sequence"))));
  EXPECT_THAT(Planned(resolved(2, 1)).notes(),
              testing::Contains("2 of 4 ranks are idle in every step: batch.sequences is 1 for 2 groups of ranks; "
                                "raise it to at least 2, or lower resources.ranks"));
  const JobSpec spec = resolved(2, 4);
  PlanFor on = AnySlots(spec, *strategies::FindHardware("h100"));
  for (uint32_t rank = 0; rank < 4; ++rank) on.slots.ranks[rank].node = rank < 3 ? 0 : 1;
  EXPECT_THAT(MakePlan(spec, on)->reply.placement(),
              testing::Contains("each sequence is divided among 2 ranks, and 1 of 2 such groups lie on several nodes"));
}

TEST(Plan, SaysHowFp32IsComputedOnGpus) {
  const auto notes = [](bool tf32, Dtype compute, Device device) {
    JobSpec spec = Good();
    spec.mutable_resources()->set_device(device);
    spec.mutable_train()->mutable_precision()->set_compute(compute);
    if (tf32) spec.mutable_train()->mutable_precision()->set_tf32(true);
    EXPECT_TRUE(Resolve({}, spec).empty());
    return Planned(spec).notes();
  };
  const auto full = testing::Contains(testing::HasSubstr("fp32 GEMMs on GPUs run without tensor cores"));
  const auto rounded = testing::Contains(testing::HasSubstr("precision.tf32: true: fp32 GEMMs on GPUs round"));
  EXPECT_THAT(notes(false, DTYPE_FP32, DEVICE_CUDA), full);
  EXPECT_THAT(notes(true, DTYPE_FP32, DEVICE_CUDA), testing::AllOf(rounded, testing::Not(full)));
  for (const auto& other : {notes(false, DTYPE_BF16, DEVICE_CUDA), notes(true, DTYPE_FP32, DEVICE_CPU)}) {
    EXPECT_THAT(other, testing::AllOf(testing::Not(rounded), testing::Not(full)));
  }
}

TEST(Plan, CountsWhatAStepCosts) {
  JobSpec spec = Good();
  spec.mutable_train()->mutable_batch()->set_microbatch(3);
  ASSERT_TRUE(Resolve({}, spec).empty());
  const PlanReply plan = Planned(spec);
  EXPECT_EQ(plan.parameters(), 842'496u);
  EXPECT_EQ(plan.tokens_per_step(), 8u * 128);
  EXPECT_EQ(plan.microbatches(), 3u);
  ASSERT_EQ(plan.ranks_size(), 1);
  EXPECT_GE(plan.ranks(0).parameter_bytes(), 4 * plan.parameters());
  EXPECT_EQ(plan.ranks(0).peak_bytes(), plan.ranks(0).parameter_bytes() + plan.ranks(0).gradient_bytes() +
                                            plan.ranks(0).optimizer_bytes() + plan.ranks(0).activation_bytes());
  EXPECT_TRUE(absl::StartsWith(plan.schedule(), "Forward embedding m0\n"));
  // 6 N FLOPs a token, and attention's share on top.
  EXPECT_NEAR(plan.flops_per_step() / (6.0 * plan.parameters() * plan.tokens_per_step()), 1.1, 0.15);
}

// A frozen block has two thirds less to compute, and nothing of it is kept.
TEST(Plan, AFrozenFrontTakesNoBackwardAndNoActivations) {
  const auto plan_of = [](const std::vector<std::string>& freeze) {
    JobSpec spec = Good();
    for (const std::string& pattern : freeze) spec.mutable_train()->add_freeze(pattern);
    EXPECT_TRUE(Resolve({}, spec).empty());
    return Planned(spec);
  };
  const PlanReply all = plan_of({}), behind = plan_of({"*", "!h.3.*", "!ln_f.*"}), in_front = plan_of({"h.0.*"});
  EXPECT_EQ(in_front.flops_per_step(), all.flops_per_step()) << "the embedding's gradient goes through it";
  EXPECT_EQ(in_front.ranks(0).activation_bytes(), all.ranks(0).activation_bytes());
  const Inventory inventory = *models::MakeInventory(Good().train().model());
  const Unit& block = inventory.units(1);
  const double forward = inventory.units(0).forward_flops() + 3 * block.forward_flops();
  const uint64_t samples = all.samples_per_step();
  EXPECT_NEAR(all.flops_per_step() - behind.flops_per_step(), 2 * forward * static_cast<double>(samples), 1e3);
  EXPECT_EQ(all.ranks(0).activation_bytes() - behind.ranks(0).activation_bytes(),
            samples / all.microbatches() * (3 * block.saved_bytes() + inventory.units(0).saved_bytes()));
  EXPECT_THAT(behind.schedule(), testing::Not(testing::HasSubstr("Backward h.2")));
}

TEST(Plan, SaysWhatACheckpointCopies) {
  JobSpec spec = Good();
  spec.mutable_resources()->set_ranks(2);
  spec.mutable_train()->mutable_strategy()->mutable_fsdp();
  ASSERT_TRUE(Resolve({}, spec).empty());
  EXPECT_THAT(Planned(spec).notes(), testing::IsEmpty());
  spec.mutable_train()->mutable_checkpoint()->set_path("/c");
  // Half of 842,496 parameters with two states of AdamW, 12 bytes each.
  EXPECT_THAT(Planned(spec).notes(), testing::ElementsAre(testing::HasSubstr("a copy of up to 4.82 MiB a rank")));
  spec.mutable_train()->mutable_checkpoint()->set_async(false);
  EXPECT_THAT(Planned(spec).notes(), testing::IsEmpty());
}

TEST(Plan, SaysWhatReplicasExchange) {
  JobSpec spec = Good();
  spec.mutable_resources()->set_ranks(2);
  spec.mutable_train()->mutable_strategy()->mutable_ddp();
  spec.mutable_train()->mutable_sync()->set_every(50);
  ASSERT_TRUE(Resolve({}, spec).empty());
  PlanReply plan = Planned(spec);
  // A byte and a 64th of a scale for each of 842,496 parameters; a momentum and an outer parameter of four bytes each.
  EXPECT_THAT(plan.notes(),
              testing::Contains("2 replicas of 2 ranks train by themselves; a rank sends 836 KiB to each other replica "
                                "every 50 steps, and keeps 6.43 MiB for that in host memory"));
  const double step = plan.simulated().step_seconds(), exchange = plan.simulated().exchange_seconds();
  EXPECT_GT(exchange, 0);
  EXPECT_DOUBLE_EQ(plan.simulated().mean_step_seconds(), step + exchange / 50);

  spec.mutable_train()->clear_sync();
  EXPECT_EQ(Planned(spec).simulated().mean_step_seconds(), 0);
}

TEST(Plan, OpsHaveTimesAndTheMemoryWhoseMostIsThePeak) {
  JobSpec spec = Good();
  spec.mutable_resources()->set_ranks(4);
  spec.mutable_train()->mutable_strategy()->mutable_fsdp();
  ASSERT_TRUE(Resolve({}, spec).empty());
  const PlanReply plan = Planned(spec);
  uint64_t most = 0;
  double last = 0;
  for (const PlannedOp& op : plan.ops()) {
    most = std::max(most, op.memory_bytes());
    last = std::max(last, op.end_seconds());
    EXPECT_LE(op.begin_seconds(), op.end_seconds());
  }
  EXPECT_EQ(most, plan.ranks(0).peak_bytes());
  EXPECT_EQ(last, plan.simulated().step_seconds());
  EXPECT_EQ(plan.strategy(), "fsdp full_shard");
  EXPECT_GT(plan.ranks(0).gather_bytes(), 0u);
  EXPECT_EQ(plan.ranks(3).shard(), 3u);
  EXPECT_EQ(plan.unfit(), "");
}

TEST(Plan, SaysWhetherLinksWereMeasured) {
  JobSpec spec = Good();
  spec.mutable_resources()->set_ranks(2);
  spec.mutable_train()->mutable_strategy()->mutable_ddp();
  ASSERT_TRUE(Resolve({}, spec).empty());
  core::Slots placed{.ranks = strategies::FullNodes(2, 1, 0), .device = DEVICE_CPU};
  const auto simulated = [&](const PlanAssumptions& assumptions) {
    return MakePlan(spec, *SlotsToPlanFor(spec, placed, assumptions))->reply.simulated();
  };
  const Simulated believed = simulated({});
  EXPECT_EQ(believed.network(), "believed: 4.8 Gbit/s and 150 us");
  placed.network = strategies::Link{1.25e6, 1e-3, 1e-3};
  const Simulated measured = simulated({});
  EXPECT_EQ(measured.network(), "measured: 10 Mbit/s and 1 ms");
  // Two ranks exchange all gradients once in each direction; most of the step is that.
  const double gradients = 4.0 * static_cast<double>(models::Parameters(*models::MakeInventory(spec.train())));
  EXPECT_GT(measured.step_seconds(), gradients / 1.25e6);
  EXPECT_LT(measured.step_seconds(), 1.5 * gradients / 1.25e6 + believed.step_seconds());
  placed.core = {.socket_bytes_per_second = 5e8, .compressing = {.int8 = 4e-9}};
  EXPECT_EQ(
      simulated({}).network(),
      "measured: 10 Mbit/s and 1 ms; a core moves 4 Gbit/s over sockets; a core compresses a million gradients to "
      "int8 in 4 ms");
  EXPECT_EQ(simulated({.hardware = "cpu"}).network(), "believed: 4.8 Gbit/s and 150 us");
  placed.ranks = strategies::FullNodes(2, 2, 0);
  placed.network.reset();
  EXPECT_EQ(simulated({}).network(), "") << "one node";
}

TEST(Plan, IsMadeForTheSlotsThatAreThereUnlessTheCallerAssumesOthers) {
  JobSpec spec;
  spec.mutable_resources()->set_ranks(8);
  const core::Slots placed{.ranks = {{0, 1000}, {1, 2000}}, .device = DEVICE_CUDA, .model = "NVIDIA H200"};

  PlanFor on = *SlotsToPlanFor(spec, placed, {});
  EXPECT_EQ(on.hardware.name, "h200");
  ASSERT_EQ(on.slots.ranks.size(), 2u);
  EXPECT_EQ(on.slots.ranks[1].memory_bytes, 2000u);

  on = *SlotsToPlanFor(spec, placed, {.hardware = "a100", .ops = true});
  EXPECT_EQ(on.hardware.name, "a100");
  EXPECT_EQ(on.slots.ranks.size(), 2u) << "times for other hardware, on the same nodes";
  EXPECT_TRUE(on.ops);

  const core::Slots cpus{.ranks = {{0, 1000}, {1, 2000}}, .device = DEVICE_CPU};
  on = *SlotsToPlanFor(spec, cpus, {.hardware = "a100"});
  ASSERT_EQ(on.slots.ranks.size(), 8u) << "on nodes with GPUs, of which nothing is known";
  EXPECT_EQ(on.slots.ranks[7].node, 0u);
  EXPECT_EQ(SlotsToPlanFor(spec, cpus, {.hardware = "cpu-bf16"})->slots.ranks.size(), 2u);

  on = *SlotsToPlanFor(spec, placed, {.memory_bytes = 5000});
  EXPECT_EQ(on.hardware.name, "h200");
  ASSERT_EQ(on.slots.ranks.size(), 8u) << "all of its ranks, on unknown nodes";
  EXPECT_EQ(on.slots.ranks[7].memory_bytes, 5000u);

  on = *SlotsToPlanFor(spec, {.device = DEVICE_CPU}, {});
  EXPECT_EQ(on.hardware.name, "cpu");
  ASSERT_EQ(on.slots.ranks.size(), 8u) << "there are too few slots";
  EXPECT_EQ(on.slots.ranks[0].memory_bytes, 0u);

  EXPECT_EQ(SlotsToPlanFor(spec, placed, {.hardware = "abacus"}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Plan, OfWhatDoesNotFitSaysWhatWould) {
  JobSpec spec = Good();
  spec.mutable_train()->mutable_model()->mutable_gpt2()->set_size(GPT2_SIZE_SMALL);
  ASSERT_TRUE(Resolve({}, spec).empty());
  const PlanReply plan = Planned(spec, uint64_t{4} << 30);
  EXPECT_TRUE(absl::StrContains(plan.unfit(), "its slot has 4 GiB")) << plan.unfit();
  EXPECT_TRUE(absl::StrContains(plan.unfit(), "it would fit with ")) << plan.unfit();
}

TEST(Plan, OfAutoShowsTheCandidates) {
  JobSpec spec = Good();
  spec.mutable_resources()->set_ranks(2);
  spec.mutable_train()->mutable_strategy()->mutable_auto_();
  JobSpec one_stage = spec;
  one_stage.mutable_train()->mutable_parallel()->set_pipeline(1);
  ASSERT_TRUE(Resolve({}, one_stage).empty());
  EXPECT_TRUE(one_stage.train().strategy().has_auto_()) << "until it is placed";
  const PlanReply plan = Planned(one_stage);
  EXPECT_EQ(plan.candidates_size(), 6);
  EXPECT_TRUE(absl::StartsWith(plan.strategy_reason(), plan.strategy())) << plan.strategy_reason();
  // Without parallel, of stages and tensor ranks, too.
  ASSERT_TRUE(Resolve({}, spec).empty());
  const auto shows = [](const PlanReply& of, const char* part) {
    return std::any_of(of.candidates().begin(), of.candidates().end(),
                       [&](const CandidatePlan& c) { return absl::StrContains(c.strategy(), part); });
  };
  const PlanReply all = Planned(spec);
  EXPECT_TRUE(shows(all, "2 stages by "));
  EXPECT_TRUE(shows(all, "tensor 2"));
  EXPECT_FALSE(shows(all, "context 2"));
  spec.mutable_train()->mutable_batch()->set_sequences(1);
  EXPECT_TRUE(shows(Planned(spec), "context 2")) << "one of two ranks would be idle";
}

// What is tried for a job, on slots that hold everything and on slots that hold nothing, a spec may also say itself:
// what ranks refuse, Resolve does.
TEST(Plan, AutoTriesOnlyWhatASpecMaySay) {
  struct Case {
    const char* name;
    std::function<void(Train&)> change;
  };
  const auto compression = [](Train& train) -> Compression& {
    return *train.mutable_communication()->mutable_compression();
  };
  const std::vector<Case> cases = {
      {"nothing", [](Train&) {}},
      {"top_k", [&](Train& train) { compression(train).mutable_top_k(); }},
      {"power_sgd", [&](Train& train) { compression(train).mutable_power_sgd(); }},
      {"int8", [&](Train& train) { compression(train).mutable_int8(); }},
      {"compression auto", [&](Train& train) { compression(train).mutable_auto_(); }},
      {"hierarchy auto", [](Train& train) { train.mutable_communication()->set_hierarchy(HIERARCHY_AUTO); }},
      {"cuda_graphs", [](Train& train) { train.set_cuda_graphs(true); }},
      {"lora", [](Train& train) { train.mutable_lora(); }},
      {"dropout", [](Train& train) { train.mutable_dropout()->set_attention(0.1); }},
      {"muon", [](Train& train) { train.mutable_optimizer()->mutable_muon(); }},
      {"adafactor", [](Train& train) { train.mutable_optimizer()->mutable_adafactor(); }},
      {"fp16", [](Train& train) { train.mutable_precision()->set_compute(DTYPE_FP16); }},
      {"offloaded parameters", [](Train& train) { train.mutable_offload()->set_parameters(true); }},
      {"offloaded activations",
       [](Train& train) {
         train.set_activation_checkpointing(true);
         train.mutable_offload()->set_activations(true);
       }},
      {"resnet",
       [](Train& train) {
         train.mutable_model()->mutable_resnet()->set_depth(8);
         train.mutable_data()->clear_tokens();
         train.mutable_data()->set_images("/images.bin");
       }},
      {"custom",
       [](Train& train) {
         Custom& custom = *train.mutable_model()->mutable_custom();
         custom.set_library("/opt/models/librated.so");
         Task& task = *custom.mutable_task();
         task.set_name(models::kTensors);
         task.set_targets_per_sample(1);
         models::AddBatchTensor(task, "user", BatchTensor::FLOAT, {8}).set_input(true);
         for (const char* name : {"first", "second"}) {
           Unit& unit = *custom.add_units();
           unit.set_name(name);
           unit.set_kind(models::kCustomKind);
           models::AddTensor(unit, absl::StrCat(name, ".weight"), {8}, Initialisation::ZEROS).set_decay(false);
         }
         train.mutable_data()->clear_tokens();
         train.mutable_data()->set_tensors("/ratings-*.safetensors");
       }},
  };
  for (const Case& c : cases) {
    JobSpec spec = Good();
    spec.mutable_resources()->set_ranks(8);
    spec.mutable_resources()->set_device(DEVICE_CUDA);
    Train& train = *spec.mutable_train();
    train.mutable_strategy()->mutable_auto_();
    train.mutable_batch()->set_sequences(32);
    c.change(train);
    ASSERT_TRUE(Resolve({}, spec).empty()) << c.name;
    ASSERT_TRUE(spec.train().parallel().auto_()) << c.name;
    for (const uint64_t memory_bytes : {0, 1}) {
      PlanFor on = AnySlots(spec, *strategies::FindHardware("h100"), memory_bytes);
      for (uint32_t rank = 0; rank < 8; ++rank) on.slots.ranks[rank].node = rank / 4;
      const auto plan = core::PlanJob(spec, on.slots, on.hardware);
      ASSERT_TRUE(plan.ok()) << c.name << plan.status();
      ASSERT_TRUE(plan->choice.has_value()) << c.name;
      EXPECT_EQ(models::ContextRanks(plan->inventory), plan->train.parallel().context()) << c.name;
      EXPECT_EQ(models::TensorRanks(plan->inventory), plan->train.parallel().tensor()) << c.name;
      std::vector<Train> tried = {plan->train};
      for (const strategies::Candidate& candidate : plan->choice->candidates) tried.push_back(candidate.train);
      EXPECT_GT(tried.size(), 1u) << c.name;
      for (const Train& way : tried) {
        JobSpec said = spec;
        *said.mutable_train() = way;
        // Chosen last: none, beside what it does not go with.
        if (compression(*said.mutable_train()).has_auto_()) compression(*said.mutable_train()).mutable_none();
        for (const SpecError& error : Resolve({}, said)) {
          // A spec that names such a strategy is mistaken; for auto there is nothing to compress then.
          if (absl::StrContains(error.message(), "compresses sums of gradients over replicas")) continue;
          ADD_FAILURE() << c.name << ", " << memory_bytes << ": " << error.path() << ": " << error.message() << "\n"
                        << way.ShortDebugString();
        }
      }
    }
  }
}

// "strategy fsdp full_shard with activation_checkpointing and batch.microbatch 2": what advice names, set in a spec.
void Follow(const std::string& advice, JobSpec& spec) {
  Train& train = *spec.mutable_train();
  for (const absl::string_view change : absl::StrSplit(absl::StrReplaceAll(advice, {{", ", " and "}}), " and ")) {
    std::vector<std::string> words = absl::StrSplit(change, ' ');
    if (words[0] == "activation_checkpointing:" || words.back() == "activation_checkpointing") {
      train.set_activation_checkpointing(true);
    }
    if (words[0] == "strategy") {
      Strategy& strategy = *train.mutable_strategy();
      strategy.Clear();
      if (words[1] == "zero") strategy.mutable_zero()->set_stage(static_cast<uint32_t>(std::stoul(words[2])));
      Reshard reshard = RESHARD_UNSPECIFIED;
      if (words[1] == "fsdp") {
        EXPECT_TRUE(Reshard_Parse("RESHARD_" + absl::AsciiStrToUpper(words[2]), &reshard)) << advice;
        strategy.mutable_fsdp()->set_reshard(reshard);
      }
      EXPECT_TRUE(strategy.has_zero() || strategy.has_fsdp()) << advice;
    } else if (words[0] == "batch.microbatch") {
      train.mutable_batch()->set_microbatch(static_cast<uint32_t>(std::stoul(words[1])));
    } else if (words[0] == "resources.ranks") {
      spec.mutable_resources()->set_ranks(static_cast<uint32_t>(std::stoul(words[1])));
    } else if (words[0] == "offload.optimizer:") {
      train.mutable_offload()->set_optimizer(true);
    } else if (words[0] == "offload.parameters:") {
      train.mutable_offload()->set_parameters(true);
    } else if (words[0] == "offload.activations:") {
      train.mutable_offload()->set_activations(true);
    } else {
      EXPECT_EQ(words[0], "activation_checkpointing:") << advice;
    }
  }
}

// What would fit smaller slots, and where nothing does what needs least, a spec may also say itself, and then it fits.
TEST(Plan, AdvisesOnlyWhatASpecMaySay) {
  struct Case {
    const char* name;
    std::function<void(Train&)> change;
  };
  const auto compression = [](Train& train) -> Compression& {
    return *train.mutable_communication()->mutable_compression();
  };
  const std::vector<Case> cases = {
      {"nothing", [](Train&) {}},
      {"top_k", [&](Train& train) { compression(train).mutable_top_k(); }},
      {"power_sgd", [&](Train& train) { compression(train).mutable_power_sgd(); }},
      {"int8 of hybrid",
       [&](Train& train) {
         compression(train).mutable_int8();
         train.mutable_strategy()->mutable_fsdp()->set_reshard(RESHARD_HYBRID);
       }},
      {"compression auto", [&](Train& train) { compression(train).mutable_auto_(); }},
      {"cuda_graphs", [](Train& train) { train.set_cuda_graphs(true); }},
      {"sync", [](Train& train) { train.mutable_sync()->set_every(50); }},
      {"full_shard", [](Train& train) { train.mutable_strategy()->mutable_fsdp(); }},
      {"recomputation", [](Train& train) { train.set_activation_checkpointing(true); }},
      {"a pipeline",
       [](Train& train) {
         train.mutable_model()->mutable_llama()->set_size(LLAMA_SIZE_TINY);
         train.mutable_parallel()->set_pipeline(2);
       }},
      {"tensor ranks", [](Train& train) { train.mutable_parallel()->set_tensor(2); }},
      {"resnet",
       [](Train& train) {
         train.mutable_model()->mutable_resnet()->set_depth(50);
         train.mutable_data()->clear_tokens();
         train.mutable_data()->set_images("/images.bin");
       }},
  };
  const auto on_nodes = [](const JobSpec& spec, uint64_t memory_bytes) {
    PlanFor on = AnySlots(spec, *strategies::FindHardware("h100"), memory_bytes);
    for (size_t rank = 0; rank < on.slots.ranks.size(); ++rank) {
      on.slots.ranks[rank].node = static_cast<uint32_t>(rank / 4);
    }
    return core::PlanJob(spec, on.slots, on.hardware);
  };
  for (const Case& c : cases) {
    JobSpec asked = Good();
    asked.mutable_resources()->set_ranks(8);
    asked.mutable_resources()->set_device(DEVICE_CUDA);
    Train& train = *asked.mutable_train();
    train.mutable_model()->mutable_gpt2()->set_size(GPT2_SIZE_SMALL);
    train.mutable_batch()->set_sequences(128);
    train.mutable_strategy()->mutable_ddp();
    c.change(train);
    // As written, and with a microbatch of its own.
    for (const bool set_microbatch : {false, true}) {
      if (set_microbatch) train.mutable_batch()->set_microbatch(16);
      JobSpec spec = asked;
      ASSERT_TRUE(Resolve({}, spec).empty()) << c.name;
      const auto fits = on_nodes(spec, 0);
      ASSERT_TRUE(fits.ok()) << c.name << fits.status();
      size_t advised = 0;
      for (const double part : {0.95, 0.8, 0.6, 0.4, 0.25, 0.12, 0.01}) {
        const double slot = part * static_cast<double>(strategies::SlotBytesFor(fits->memory_plan.peak()));
        const auto plan = on_nodes(spec, static_cast<uint64_t>(slot));
        ASSERT_TRUE(plan.ok()) << c.name << plan.status();
        ASSERT_TRUE(plan->unfit.has_value()) << c.name << ", " << part;
        absl::string_view text = plan->unfit->advice;
        const bool would_fit = absl::ConsumePrefix(&text, "it would fit with ");
        if (!would_fit) {
          ASSERT_TRUE(absl::ConsumePrefix(&text, "no configuration fits; of the changes that were tried, ")) << text;
          text = text.substr(0, text.find(" needs least"));
        }
        for (const absl::string_view piece : absl::StrSplit(text, ", or ")) {
          const std::string advice(piece.substr(0, piece.find(" (")));
          const std::string of = absl::StrCat(c.name, ", ", part, ": ", advice);
          JobSpec followed = asked;
          Follow(advice, followed);
          const std::vector<SpecError> errors = Resolve({}, followed);
          for (const SpecError& error : errors) {
            ADD_FAILURE() << of << ": " << error.path() << ": " << error.message();
          }
          if (!errors.empty() || !would_fit) continue;
          const auto then = on_nodes(followed, static_cast<uint64_t>(slot));
          ASSERT_TRUE(then.ok()) << of << then.status();
          EXPECT_FALSE(then->unfit.has_value()) << of << ": " << then->unfit->why;
          ++advised;
        }
      }
      EXPECT_GT(advised, 2u) << c.name;
    }
  }
}

TEST(Plan, OfParallelAutoShowsTheMixesAndWhyTheyLost) {
  JobSpec spec = Good();
  Staged(spec, 4, 2);
  Train& train = *spec.mutable_train();
  train.clear_pipeline(), train.clear_parallel();
  train.mutable_parallel()->set_auto_(true);
  train.mutable_batch()->set_sequences(32);
  ASSERT_TRUE(Resolve({}, spec).empty());
  const PlanReply plan = Planned(spec);
  ASSERT_GE(plan.candidates_size(), 5);
  int chosen = 0;
  for (const CandidatePlan& candidate : plan.candidates()) {
    EXPECT_EQ(candidate.lost().empty(), candidate.strategy() == plan.strategy()) << candidate.strategy();
    chosen += candidate.lost().empty() ? 1 : 0;
  }
  EXPECT_EQ(chosen, 1);
  EXPECT_TRUE(absl::StartsWith(plan.strategy_reason(), plan.strategy())) << plan.strategy_reason();
  EXPECT_GT(plan.microbatches(), 0u);
}

}  // namespace
}  // namespace muster::spec
