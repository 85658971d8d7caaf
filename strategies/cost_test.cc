#include "strategies/cost.h"

#include <gtest/gtest.h>

#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/hardware_names.h"
#include "models/inventory.h"
#include "strategies/compression.h"
#include "strategies/fit.h"
#include "strategies/hardware.h"
#include "strategies/partition/flat.h"
#include "strategies/partition/table.h"

namespace muster::strategies {
namespace {

// Round numbers: a FLOP, a byte of memory, of a link and of a port take 1, 0.001, 4 and 40 ns.
Hardware Round() {
  return {.name = "round",
          .ranks_per_node = 4,
          .fp32_flops = 1e9,
          .bf16_flops = 2e9,
          .memory_bytes_per_second = 1e12,
          .inside = {250e6, 1e-6, 0.5e-6},
          .between = {25e6, 5e-6, 2e-6}};
}

Train TinyToCost() {
  Train train;
  train.mutable_model()->mutable_gpt2()->set_size(GPT2_SIZE_TINY);
  train.mutable_strategy()->mutable_single();
  train.mutable_batch()->set_sequences(8);
  train.mutable_batch()->set_microbatch(1);
  train.mutable_optimizer()->mutable_adamw();
  return train;
}

Predicted Predict(const Train& train, const std::vector<RankPlace>& ranks, const Hardware& hardware = Round()) {
  const Inventory inventory = *models::MakeInventory(train.model());
  const Layout layout = *MakeLayout(train, inventory, ranks);
  return PredictStep(train, inventory, layout, {*Compile(train, inventory, layout, 0)}, ranks, hardware)[0];
}

TEST(Hardware, HasTheNamesThatTheHelpLists) {
  EXPECT_EQ(FindHardware("x").status().message(),
            absl::StrCat("hardware: \"x\" is unknown; known: ", absl::StrJoin(kHardwareNames, ", ")));
}

TEST(PredictStep, SingleIsItsFlopsAndTheOptimizersBytes) {
  const Train train = TinyToCost();
  const Inventory inventory = *models::MakeInventory(train.model());
  double flops = 0, activations = 0;
  for (const Unit& unit : inventory.units()) {
    flops += unit.forward_flops();
    activations += static_cast<double>(unit.saved_bytes() + unit.output_bytes());
  }
  const double bytes = 4.0 * static_cast<double>(partition::FlatElements(inventory));
  const Predicted p = Predict(train, FullNodes(1, 4, 0));
  // Clipping reads the gradients; AdamW reads four arrays, writes three, and clears one.
  EXPECT_NEAR(p.timeline.seconds, 8 * 3 * (flops * 1e-9 + (activations + bytes) * 1e-12) + (1 + 8) * bytes * 1e-12,
              1e-9);
  EXPECT_EQ(p.timeline.communication, 0);
}

// All-reduce of B bytes over n ranks: 2 (n - 1) / n B over each link (Patarasuk and Yuan 2009), and the doublings.
TEST(PredictStep, DdpReducesEveryByteOnceOverTheLinks) {
  Train train = TinyToCost();
  train.mutable_strategy()->mutable_ddp()->set_bucket_mib(1000);
  const Inventory inventory = *models::MakeInventory(train.model());
  const double bytes = 4.0 * static_cast<double>(partition::FlatElements(inventory));
  for (const uint32_t ranks : {2u, 4u}) {
    const Predicted p = Predict(train, FullNodes(ranks, 4, 0));
    const double hops = ranks == 2 ? 1 : 2;
    // Two reductions (the front goes alone), and the scalars.
    EXPECT_NEAR(p.timeline.busy[2], 2.0 * (ranks - 1) / ranks * bytes * 4e-9 + 3 * 2 * hops * 1e-6, 1e-6) << ranks;
  }
  // Two nodes of four: each node's four ports together take the other node's half.
  const Predicted p = Predict(train, FullNodes(8, 4, 0));
  EXPECT_NEAR(p.timeline.busy[2], 2 * bytes / 2 / 4 * 40e-9 + 3 * 2 * (2 * 1e-6 + 5e-6), 1e-6);
}

// Two ranks of a node: a link moves the other rank's half in a gather, and a sum is twice a move.
// What a ResNet hands on is bf16 where it computes in that; a language model's residual stream is fp32.
TEST(PredictStep, StagesSendActivationsInTheirTypes) {
  Train train = TinyToCost();
  train.mutable_model()->mutable_resnet()->set_depth(18);
  *train.mutable_model() = *models::Resolve(train.model());
  train.mutable_parallel()->set_pipeline(2);
  train.mutable_pipeline()->set_schedule(PIPELINE_SCHEDULE_GPIPE);
  const Inventory inventory = *models::MakeInventory(train.model());
  const auto sent = [&](Dtype compute) {
    train.mutable_precision()->set_compute(compute);
    const std::vector<RankPlace> ranks = FullNodes(2, 1, 0);
    const Layout layout = *MakeLayout(train, inventory, ranks);
    const std::vector<RankProgram> programs = *Outline(train, inventory, layout);
    const Predicted first = PredictStep(train, inventory, layout, programs, ranks, Round())[0];
    for (size_t i = 0; i < first.costs.size(); ++i) {
      const Op& op = programs[0].schedule.ops[i];
      if (op.kind == OpKind::kSendActivation) {
        const Unit& unit = inventory.units(op.unit);
        EXPECT_NEAR(first.costs[i].work, static_cast<double>(models::OutputBytes(unit, DtypeBytes(compute))) / 25e6,
                    1e-12);
        return first.costs[i].work;
      }
    }
    ADD_FAILURE() << "nothing is sent";
    return 0.0;
  };
  EXPECT_NEAR(sent(DTYPE_BF16), sent(DTYPE_FP32) / 2, 1e-12);
}

// A block's four matrices have 12 width^2 elements, and each of their gradients is a GEMM over the tokens. What a split
// backward does beside that it does before, so both halves take as long as the whole.
TEST(PredictStep, TheSecondHalfOfABackwardIsGemmsAlone) {
  Train train = TinyToCost();
  train.mutable_parallel()->set_pipeline(2);
  const Inventory inventory = *models::MakeInventory(train.model());
  const Gpt2 model = models::Resolve(train.model())->gpt2();
  const std::vector<RankPlace> ranks = FullNodes(2, 4, 0);
  const auto seconds = [&](PipelineSchedule schedule, OpKind kind) {
    train.mutable_pipeline()->set_schedule(schedule), train.mutable_pipeline()->set_chunks(1);
    const Layout layout = *MakeLayout(train, inventory, ranks);
    const std::vector<RankProgram> programs = *Outline(train, inventory, layout);
    const Predicted first = PredictStep(train, inventory, layout, programs, ranks, Round())[0];
    for (size_t i = 0; i < first.costs.size(); ++i) {
      const Op& op = programs[0].schedule.ops[i];
      if (op.kind == kind && op.unit == 1) return first.costs[i].work;
    }
    ADD_FAILURE() << Traits(kind).name << " is missing";
    return 0.0;
  };
  const double inputs = seconds(PIPELINE_SCHEDULE_ZERO_BUBBLE, OpKind::kBackwardInputs),
               weights = seconds(PIPELINE_SCHEDULE_ZERO_BUBBLE, OpKind::kBackwardWeights);
  EXPECT_NEAR(weights, 2.0 * model.context() * 12 * model.width() * model.width() * 1e-9, 1e-12);
  EXPECT_NEAR(inputs + weights, seconds(PIPELINE_SCHEDULE_1F1B, OpKind::kBackward), 1e-12);
}

TEST(PredictStep, WhatUnitsExchangeTakesTheTimeOfCompute) {
  Train train = TinyToCost();
  train.mutable_batch()->set_microbatch(4);
  train.mutable_strategy()->mutable_ddp()->set_bucket_mib(1000);
  Inventory inventory = *models::MakeInventory(train.model());
  const std::vector<RankPlace> ranks = FullNodes(2, 4, 0);
  const auto computing = [&] {
    const Layout layout = *MakeLayout(train, inventory, ranks);
    return PredictStep(train, inventory, layout, {*Compile(train, inventory, layout, 0)}, ranks, Round())[0]
        .timeline.busy[0];
  };
  const double without = computing();
  Exchange& exchange = *inventory.mutable_units(1)->mutable_exchange();
  exchange.set_collectives(3), exchange.set_gathered_bytes(1000), exchange.set_summed_bytes(800);
  const double forward = 1000 * 4e-9 + 3 * 1e-6, backward = 2 * (400 * 4e-9 + 3 * 1e-6);
  EXPECT_NEAR(computing() - without, forward + backward, 1e-9);
  train.set_activation_checkpointing(true);
  inventory.mutable_units(1)->clear_exchange();
  const double recomputing = computing();
  *inventory.mutable_units(1)->mutable_exchange() = [] {
    Exchange again;
    again.set_collectives(3), again.set_gathered_bytes(1000), again.set_summed_bytes(800);
    return again;
  }();
  EXPECT_NEAR(computing() - recomputing, 2 * forward + backward, 1e-9);
}

// Two transfers of each block's input over the link to the host, beside the computing where they fit; the last
// microbatch has fewer sequences.
TEST(PredictStep, OffloadedActivationsTakeTheLinkToTheHost) {
  Train train = TinyToCost();
  train.mutable_batch()->set_sequences(5), train.mutable_batch()->set_microbatch(2);
  train.set_activation_checkpointing(true);
  const double without = Predict(train, FullNodes(1, 4, 0)).timeline.seconds;
  train.mutable_offload()->set_activations(true);
  Hardware hardware = Round();
  hardware.host_bytes_per_second = 1e9;
  const double bytes = 4 * 128 * 128;  // tokens of 128 floats
  const Predicted quick = Predict(train, FullNodes(1, 4, 0), hardware);
  const double transfers = 4 * 5 * 2 * bytes * 1e-9;  // 4 blocks, 5 sequences
  EXPECT_NEAR(quick.timeline.communication, transfers, 1e-9);
  EXPECT_LT(quick.timeline.exposed, 0.05 * transfers);
  EXPECT_NEAR(quick.timeline.seconds, without + quick.timeline.exposed, 1e-9);
  // On a link that is slower than the computing, the step takes as long as the transfers, nearly.
  hardware.host_bytes_per_second = 1e6;
  const Predicted slow = Predict(train, FullNodes(1, 4, 0), hardware);
  EXPECT_NEAR(slow.timeline.communication, 1000 * transfers, 1e-6);
  EXPECT_GT(slow.timeline.seconds, 1000 * transfers);
}

// The link to the host is as fast in one direction while the other one is in use. Where both have the same stream, a
// fetch waits for the offloads that were issued before it.
TEST(PredictStep, FetchesAndOffloadsOverlap) {
  Train train = TinyToCost();
  train.mutable_batch()->set_microbatch(8);
  train.set_activation_checkpointing(true);
  Offload& offload = *train.mutable_offload();
  offload.set_optimizer(true), offload.set_parameters(true), offload.set_activations(true);
  const std::vector<RankPlace> one = FullNodes(1, 4, 0);
  Hardware hardware = Round();
  // The link is what the step waits for.
  hardware.fp32_flops = 1e11, hardware.host_memory_bytes_per_second = 1e12, hardware.host_bytes_per_second = 2e6;
  const Inventory inventory = *models::MakeInventory(train.model());
  const Layout layout = *MakeLayout(train, inventory, one);
  RankProgram program = *Compile(train, inventory, layout, 0);
  const auto seconds = [&] {
    return PredictStep(train, inventory, layout, {program}, one, hardware)[0].timeline.seconds;
  };
  const double apart = seconds();
  for (Op& op : program.schedule.ops) {
    if (op.stream == Stream::kFetch) op.stream = Stream::kTransfer;
  }
  EXPECT_LT(apart, 0.75 * seconds());
}

// By the rate of the host's cores, once for each matrix, in however many buckets the update is made: 4 blocks of width
// n with matrices of 3, 1, 4 and 4 n^2 elements, of 5 iterations with 4 n^3 for each n^2 elements and 2 n^3.
TEST(PredictStep, OffloadedMuonIsComputedByTheHost) {
  Train train = TinyToCost();
  train.mutable_optimizer()->mutable_muon()->set_ns_steps(5);
  const std::vector<RankPlace> one = FullNodes(1, 4, 0);
  Hardware hardware = Round();
  hardware.host_memory_bytes_per_second = hardware.host_bytes_per_second = 1e15;
  const double n = 128, flops = 4 * 5 * (4 * (3 + 1 + 4 + 4) + 4 * 2) * n * n * n;
  const auto computing = [&] { return Predict(train, one, hardware).timeline.busy[0]; };
  hardware.bf16_flops = 1e18;
  const double free = computing();
  hardware.bf16_flops = 2e9;
  EXPECT_NEAR(computing() - free, flops / 2e9, 1e-6 * flops / 2e9) << "fp32 training: only the update is in bf16";
  train.mutable_offload()->set_optimizer(true);
  hardware.host_bf16_flops = 1e18;
  const double quick = computing();
  hardware.host_bf16_flops = 1e9;
  EXPECT_NEAR(computing() - quick, flops / 1e9, 1e-6 * flops / 1e9);
}

TEST(PredictStep, MoreRanksOfOneBatchNeverComputeLonger) {
  Train train = TinyToCost();
  double before = 1e9;
  for (const uint32_t ranks : {1u, 2u, 4u, 8u}) {
    if (ranks > 1) train.mutable_strategy()->mutable_ddp();
    const double computing = Predict(train, FullNodes(ranks, 4, 0)).timeline.busy[0];
    EXPECT_LT(computing, before);
    before = computing;
  }
}

TEST(PredictStep, FasterPartsNeverMakeItSlower) {
  Train train = TinyToCost();
  for (const int strategy : {0, 1, 2}) {
    if (strategy == 0) train.mutable_strategy()->mutable_ddp();
    if (strategy == 1) train.mutable_strategy()->mutable_zero()->set_stage(2);
    if (strategy == 2) train.mutable_strategy()->mutable_fsdp()->set_prefetch(1);
    const std::vector<RankPlace> ranks = FullNodes(8, 4, 0);
    const double base = Predict(train, ranks).timeline.seconds;
    for (const auto& change : std::vector<void (*)(Hardware&)>{
             [](Hardware& h) { h.fp32_flops *= 2; }, [](Hardware& h) { h.inside.bytes_per_second *= 2; },
             [](Hardware& h) { h.between.bytes_per_second *= 2; }, [](Hardware& h) { h.inside.seconds = 0; },
             [](Hardware& h) { h.memory_bytes_per_second *= 2; }}) {
      Hardware better = Round();
      change(better);
      EXPECT_LE(Predict(train, ranks, better).timeline.seconds, base + 1e-12);
    }
  }
}

TEST(PredictStep, Tf32IsAsFastAsTheHardwareSays) {
  Train train = TinyToCost();
  train.mutable_strategy()->mutable_single();
  const std::vector<RankPlace> one = FullNodes(1, 1, 0);
  Hardware h = Round();
  const double full = Predict(train, one, h).timeline.seconds;
  train.mutable_precision()->set_tf32(true);
  EXPECT_EQ(Predict(train, one, h).timeline.seconds, full) << "hardware without TF32";
  h.tf32_flops = 4 * h.fp32_flops;
  const double rounded = Predict(train, one, h).timeline.seconds;
  h.fp32_flops = h.tf32_flops;
  train.mutable_precision()->clear_tf32();
  EXPECT_LT(rounded, full);
  EXPECT_EQ(rounded, Predict(train, one, h).timeline.seconds);
}

TEST(PredictStep, ShardingMovesMoreThanSummingDoes) {
  Train train = TinyToCost();
  train.mutable_batch()->set_sequences(2);
  train.mutable_strategy()->mutable_ddp();
  const double ddp = Predict(train, FullNodes(2, 4, 0)).timeline.communication;
  train.mutable_strategy()->mutable_fsdp()->set_prefetch(1);
  EXPECT_GT(Predict(train, FullNodes(2, 4, 0)).timeline.communication, 1.2 * ddp);  // three halves, at most
}

TEST(PredictStep, GroupsInsideANodeDoNotUseItsPorts) {
  Train train = TinyToCost();
  train.mutable_batch()->set_sequences(64);  // gathered eight times, summed over the nodes once
  Fsdp& fsdp = *train.mutable_strategy()->mutable_fsdp();
  fsdp.set_reshard(RESHARD_HYBRID);
  fsdp.set_prefetch(1);
  const std::vector<RankPlace> ranks = FullNodes(8, 4, 0);
  Hardware quick = Round();
  quick.fp32_flops = 1e11;
  const double hybrid = Predict(train, ranks, quick).timeline.seconds;
  fsdp.set_reshard(RESHARD_FULL_SHARD);
  EXPECT_LT(hybrid, 0.8 * Predict(train, ranks, quick).timeline.seconds);
}

TEST(PredictStep, RanksShareTheCoresOfTheirNode) {
  Train train = TinyToCost();
  train.mutable_strategy()->mutable_ddp();
  Hardware h = Round();
  const double alone = Predict(train, FullNodes(4, 4, 0), h).timeline.busy[0];
  h.at_full_speed = 2;  // of four
  EXPECT_GT(Predict(train, FullNodes(4, 4, 0), h).timeline.busy[0], 1.9 * alone);
}

// NCCL: nRanks - 1 steps, nNodes - 1 of them between nodes (src/graph/tuning.cc). A sum goes up and down a tree: no
// more than log2 of them.
TEST(Cost, ARingHasAHopForEachRank) {
  const auto latency = [](uint32_t ranks, uint32_t nodes) {
    return Moved({.ranks = ranks, .nodes = nodes, .least_on_node = ranks / nodes}, Round(), 0, 0).latency;
  };
  EXPECT_NEAR(latency(2, 1), 1e-6, 1e-12);
  EXPECT_NEAR(latency(8, 1), (1 + 6 * 0.5) * 1e-6, 1e-12);
  EXPECT_NEAR(latency(2, 2), 5e-6, 1e-12);
  EXPECT_NEAR(latency(64, 8), (5 + 6 * 2 + 56 * 0.5) * 1e-6, 1e-12);
  // 1,024 H100s: 896 hops over NVLink and 127 over InfiniBand.
  const Hardware h100 = *FindHardware("h100");
  EXPECT_NEAR(Moved({.ranks = 1024, .nodes = 128, .least_on_node = 8}, h100, 0, 0).latency,
              10e-6 + 126 * 4e-6 + 896 * 1.9e-6, 1e-9);
}

// Gloo, as bench/networks.py and PyTorch's all_reduce measured it over a link with 20.7 ms of latency, four ranks on
// two nodes: 44 ms by messages between all pairs, 250 to 400 ms by a ring, whatever little it carries. By a ring two
// ranks take 60 to 80 ms, and eight on two nodes 700.
TEST(Cost, GloosRingWaitsForItsMessagesOneAfterAnother) {
  Hardware far = *FindHardware("cpu");
  far.between = {62.5e6, 20.7e-3, 20.7e-3};
  const GroupTopology four{.ranks = 4, .nodes = 2, .least_on_node = 2};
  EXPECT_NEAR(Summed(four, far, 8).latency, 44e-3, 5e-3);
  const auto sum = [&](double bytes) {
    const OpCost cost = Summed(four, far, bytes);
    return cost.latency + cost.work;
  };
  EXPECT_NEAR(sum(4e3), 0.3, 0.06);
  const GroupTopology two{.ranks = 2, .nodes = 2, .least_on_node = 1};
  EXPECT_NEAR(Summed(two, far, 4e3).latency, 0.07, 0.015);
  const GroupTopology eight{.ranks = 8, .nodes = 2, .least_on_node = 4};
  EXPECT_NEAR(Summed(eight, far, 4e3).latency, 0.7, 0.14);
  EXPECT_NEAR(sum(400e3), 0.3, 0.1);
  EXPECT_NEAR(Summed(four, far, 100e6).processor, 2 * 75e6 / far.inside.bytes_per_second, 1e-9);
  EXPECT_NEAR(sum(100e6), 0.3 + 2 * 75e6 / (2 * 62.5e6), 0.1);
  // Of gathers each rank sends its part to each other one at once.
  EXPECT_NEAR(Moved(four, far, 8, 6).latency, 44e-3, 5e-3);
}

// Four ranks on two nodes, 1 Gbit/s and 20.7 ms. Steps of a tiny GPT-2 took 43 ms longer by top_k and 495 by rings than
// without sums (docs/internals/networks.md): the loss travels with the gradients, and a ring with another one.
TEST(Cost, FarCollectivesTravelAtTheSameTime) {
  Hardware far = *FindHardware("cpu");
  far.between = {62.5e6, 20.7e-3, 20.7e-3};
  far.fp32_flops = far.memory_bytes_per_second = 1e18;  // nothing but travel takes time
  far.op_seconds = 0;
  Train train = TinyToCost();
  train.mutable_strategy()->mutable_ddp();
  const auto seconds = [&] { return Predict(train, FullNodes(4, 2, 0), far).timeline.seconds; };
  EXPECT_NEAR(seconds(), 0.495, 0.1);
  Compression& compression = *train.mutable_communication()->mutable_compression();
  compression.mutable_top_k();
  FillDefaults(train.optimizer(), compression);
  EXPECT_NEAR(seconds(), 43e-3, 9e-3);
}

// What was measured of a core replaces what its links and memory are taken to have; nothing else follows it.
TEST(Cost, MeasuredRatesOfACoreCount) {
  Hardware h = Round();
  h.sums_by_rings = true, h.sharing = Sharing::kProcessor;
  const GroupTopology apart{.ranks = 4, .nodes = 2, .least_on_node = 2}, together{.ranks = 4, .least_on_node = 4};
  EXPECT_NEAR(Summed(apart, h, 100e6).processor, 2 * 75e6 / 250e6, 1e-9);
  h.core.socket_bytes_per_second = 50e6;
  EXPECT_NEAR(Summed(apart, h, 100e6).processor, 2 * 75e6 / 50e6, 1e-9);
  EXPECT_NEAR(Moved(apart, h, 100e6, 75e6).processor, 75e6 / 50e6, 1e-9);
  EXPECT_NEAR(Summed(together, h, 100e6).work, 2 * 75e6 / 250e6, 1e-9) << "ranks of a node use no sockets";

  Train train = TinyToCost();
  train.mutable_strategy()->mutable_ddp();
  const auto processor = [&](const Hardware& hardware) {
    double all = 0;
    for (const OpCost& cost : Predict(train, FullNodes(4, 2, 0), hardware).costs)
      all += cost.processor + cost.preparing;
    return all;
  };
  const double elements = static_cast<double>(partition::FlatElements(*models::MakeInventory(train.model())));
  for (const std::string kind : {"top_k", "power_sgd", "int8"}) {
    Compression& compression = *train.mutable_communication()->mutable_compression();
    Hardware slow = h;
    if (kind == "top_k") compression.mutable_top_k(), slow.core.compressing.top_k = 1e-6;
    if (kind == "power_sgd") compression.mutable_power_sgd(), slow.core.compressing.power_sgd = 1e-6;
    if (kind == "int8") compression.mutable_int8(), slow.core.compressing.int8 = 1e-6;
    FillDefaults(train.optimizer(), compression);
    // In its place WorkOf counts less than 30 ns for each element here.
    EXPECT_NEAR(processor(slow) - processor(h), elements * 1e-6, elements * 1e-7) << kind;
    slow = h, slow.core.compressing = {.top_k = 1e-6, .power_sgd = 1e-6, .int8 = 1e-6};
    EXPECT_NEAR(processor(slow) - processor(h), elements * 1e-6, elements * 1e-7) << kind << ", and nothing twice";
  }
}

// Four ranks on two nodes, B bytes, each rank with a port. A ring brings 3/4 B into each node, over its two ports;
// trees bring half. Of two levels each rank moves half of B inside its node, and sums half of B with one rank
// elsewhere.
TEST(Cost, TwoLevelsEnterANodeOnce) {
  Train train = TinyToCost();
  train.mutable_strategy()->mutable_ddp()->set_bucket_mib(1000);
  const Inventory inventory = *models::MakeInventory(train.model());
  const double bytes = 4.0 * static_cast<double>(partition::FlatElements(inventory));
  Hardware quick = Round();
  quick.inside.seconds = quick.between.seconds = 0;
  const auto busy = [&](Hierarchy hierarchy, Stream stream) {
    train.mutable_communication()->set_hierarchy(hierarchy);
    return Predict(train, FullNodes(4, 2, 0), quick).timeline.busy[static_cast<size_t>(stream)];
  };
  EXPECT_NEAR(busy(HIERARCHY_NEVER, Stream::kReduce), 2 * bytes / 2 / 2 * 40e-9, 1e-6);
  quick.sums_by_rings = true;
  EXPECT_NEAR(busy(HIERARCHY_NEVER, Stream::kReduce), 2 * bytes * 3 / 4 / 2 * 40e-9, 1e-6);
  EXPECT_NEAR(busy(HIERARCHY_ALWAYS, Stream::kReduceBetween), 2 * (bytes / 2) / 2 * 40e-9, 1e-6);
  EXPECT_NEAR(busy(HIERARCHY_ALWAYS, Stream::kGather), bytes / 2 * 4e-9, 1e-6);
  // Of shards: gathered forward and backward and reduced, 3/4 B into a node over two ports; or half, of half of it.
  train.mutable_strategy()->mutable_fsdp()->set_reshard(RESHARD_SHARD_GRAD_OP);
  train.mutable_strategy()->mutable_fsdp()->set_placement(PLACEMENT_EVEN);
  train.mutable_batch()->set_microbatch(2);
  EXPECT_NEAR(busy(HIERARCHY_NEVER, Stream::kReduce) / (bytes * 3 / 4 / 2 * 40e-9), 1, 0.01);
  EXPECT_NEAR(busy(HIERARCHY_ALWAYS, Stream::kReduceBetween) / (bytes / 2 / 2 * 40e-9), 1, 0.01);
  EXPECT_NEAR(busy(HIERARCHY_ALWAYS, Stream::kGatherBetween) / (bytes / 2 / 2 * 40e-9), 1, 0.01);
}

// An all-gather or reduce-scatter is one op whatever the ranks; a collective of uneven shares pays for each share.
TEST(Cost, UnevenSharesPayForEach) {
  Train train = TinyToCost();
  const std::vector<RankPlace> ranks = FullNodes(4, 4, 0);
  Hardware dear = Round();
  dear.share_seconds = 1e-3;
  const auto more = [&] {
    return Predict(train, ranks, dear).timeline.busy[1] - Predict(train, ranks).timeline.busy[1];
  };
  Fsdp& fsdp = *train.mutable_strategy()->mutable_fsdp();
  fsdp.set_reshard(RESHARD_SHARD_GRAD_OP), fsdp.set_placement(PLACEMENT_EVEN), fsdp.set_prefetch(1);
  EXPECT_NEAR(more(), 0, 1e-9);
  // Each unit is gathered once; its rows are on as many ranks as there are.
  fsdp.set_placement(PLACEMENT_ROWS);
  const Inventory inventory = *models::MakeInventory(train.model());
  size_t shares = 0;
  for (const partition::OwnedUnit& unit :
       partition::OwnedUnits(MakeLayout(train, inventory, ranks)->table, inventory)) {
    shares += unit.ranges.size();
  }
  EXPECT_GT(shares, 4u * 6u);
  EXPECT_NEAR(more(), 1e-3 * static_cast<double>(shares), 1e-9);
}

// Measured by bench/ranks.py on the machine that the preset names: ddp's step, and the same step without reductions.
TEST(PredictStep, OfRanksOnTwoCoresIsWithinAFifthOfTheMeasured) {
  struct Case {
    uint32_t layers, heads, width, context, sequences, ranks;
    double seconds;
  };
  for (const Case& c :
       {Case{4, 4, 128, 128, 8, 1, 0.0693}, Case{4, 4, 128, 128, 8, 2, 0.0787}, Case{6, 6, 384, 256, 4, 2, 0.860}}) {
    Train train = TinyToCost();
    Gpt2& g = *train.mutable_model()->mutable_gpt2();
    g.set_layers(c.layers), g.set_heads(c.heads), g.set_width(c.width), g.set_vocabulary(256), g.set_context(c.context);
    train.mutable_batch()->set_sequences(c.sequences * c.ranks);
    train.mutable_batch()->set_microbatch(c.sequences);
    if (c.ranks > 1) train.mutable_strategy()->mutable_ddp();
    const double predicted = Predict(train, FullNodes(c.ranks, 2, 0), *FindHardware("cpu")).timeline.seconds;
    EXPECT_NEAR(predicted, c.seconds, 0.2 * c.seconds) << c.width << " on " << c.ranks;
  }
}

TEST(PredictStep, AThousandRanksAreQuick) {
  Train train = TinyToCost();
  train.mutable_model()->mutable_gpt2()->set_size(GPT2_SIZE_XL);
  train.mutable_batch()->set_sequences(16384);
  train.mutable_batch()->set_microbatch(16);
  train.mutable_precision()->set_compute(DTYPE_BF16);
  train.mutable_strategy()->mutable_fsdp()->set_prefetch(1);
  const Hardware h100 = *FindHardware("H100");
  const Predicted p = Predict(train, FullNodes(1024, h100.ranks_per_node, 0), h100);
  // Its FLOPs alone are 0.36 s; the gathers of 3 GB three times over eight 40 GB/s ports are 0.03 s.
  EXPECT_GT(p.timeline.seconds, 0.36);
  EXPECT_LT(p.timeline.seconds, 0.6);
  EXPECT_FALSE(FindHardware("h1").ok());
}

// All of a plan of 8 stages of 16 shards of 8 tensor ranks, in a fifth of the work that a slow core does in a second
// (Budget::Limits).
TEST(PredictStep, AMeshOfAThousandRanksTakesLittleWork) {
  Train train = TinyToCost();
  train.mutable_model()->mutable_llama()->set_size(LLAMA_SIZE_70B);
  train.mutable_model()->mutable_llama()->set_context(4096);
  *train.mutable_model() = *models::Resolve(train.model());
  train.mutable_batch()->set_sequences(8192);
  train.mutable_precision()->set_compute(DTYPE_BF16);
  train.mutable_parallel()->set_pipeline(8), train.mutable_parallel()->set_tensor(8);
  train.mutable_pipeline()->set_schedule(PIPELINE_SCHEDULE_1F1B);
  train.mutable_strategy()->mutable_fsdp()->set_reshard(RESHARD_SHARD_GRAD_OP);
  const Inventory inventory = *models::MakeInventory(train, DEVICE_CUDA);
  const Hardware h100 = *FindHardware("h100");
  const std::vector<RankPlace> ranks = FullNodes(1024, 8, 0);
  Budget budget({.work = 100'000'000 / 5});
  const auto plan = PlanMemory(train, inventory, ranks, &budget);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_GT(plan->programs[0].left_out, 0u) << "of 512 microbatches";
  ASSERT_TRUE(SpendOnTimes(plan->programs, &budget).ok());
  const auto predicted = PredictStep(train, inventory, plan->layout, plan->programs, ranks, h100);
  ASSERT_EQ(predicted.size(), 8u);
  // 6 FLOPs for each of 70.55 billion parameters and each of 8192 x 4096 tokens, on 1,024 ranks of 445 TFLOP/s: 31.2 s.
  // Exchanges of eight ranks inside each unit take longer.
  EXPECT_GT(predicted[0].timeline.seconds, 31.2);
  EXPECT_LT(predicted[0].timeline.seconds, 3 * 31.2);
  EXPECT_TRUE(CompileWhole(train, inventory, *plan, &budget).ok()) << "all of them, proven together";
}

}  // namespace
}  // namespace muster::strategies
