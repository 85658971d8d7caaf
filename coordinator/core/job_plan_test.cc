#include "coordinator/core/job_plan.h"

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "coordinator/core/world_test.h"
#include "coordinator/spec/resolve.h"

namespace muster::core {
namespace {

JobSpec Large(uint32_t ranks) {
  JobSpec spec;
  spec.set_name("large");
  spec.mutable_resources()->set_ranks(ranks);
  Train& train = *spec.mutable_train();
  train.mutable_model()->mutable_gpt2()->set_size(GPT2_SIZE_LARGE);
  train.mutable_data()->set_tokens("/t.bin");
  train.mutable_batch()->set_sequences(ranks);
  train.set_steps(1);
  return spec;
}

Slots On(uint32_t ranks, uint64_t memory_bytes) {
  return {strategies::FullNodes(ranks, 8, memory_bytes), DEVICE_CUDA, "NVIDIA H100 80GB HBM3"};
}

TEST(PlanByStrategies, NamesTheSmallestSlotThatSuits) {
  JobSpec spec = Large(2);
  spec.mutable_train()->mutable_strategy()->mutable_ddp();
  ASSERT_TRUE(spec::Resolve({}, spec).empty());
  const Planned small = *PlanByStrategies(spec, On(2, 8 * kGiB));
  ASSERT_TRUE(small.unfit.has_value());
  EXPECT_TRUE(absl::StrContains(small.unfit->why, "its slot has 8 GiB; it would fit with ")) << small.unfit->why;
  EXPECT_FALSE(PlanByStrategies(spec, On(2, small.unfit->slot_bytes))->unfit.has_value());
  EXPECT_TRUE(PlanByStrategies(spec, On(2, small.unfit->slot_bytes - 1))->unfit.has_value());
  EXPECT_FALSE(PlanByStrategies(spec, On(2, 0))->unfit.has_value()) << "not known";
  EXPECT_FALSE(small.strategy.has_value());
  EXPECT_EQ(small.digests.size(), 1u);
}

// For auto, it is the slot of the strategy that needs least, which is then chosen.
TEST(PlanByStrategies, AutoFitsWhatItNames) {
  JobSpec spec = Large(4);
  spec.mutable_train()->mutable_parallel()->set_pipeline(1);
  spec.mutable_train()->mutable_strategy()->mutable_auto_();
  ASSERT_TRUE(spec::Resolve({}, spec).empty());
  const Planned roomy = *PlanByStrategies(spec, On(4, 80 * kGiB));
  ASSERT_TRUE(roomy.strategy.has_value());
  EXPECT_FALSE(roomy.unfit.has_value());
  const Planned small = *PlanByStrategies(spec, On(4, kGiB));
  ASSERT_TRUE(small.unfit.has_value());
  const Planned least = *PlanByStrategies(spec, On(4, small.unfit->slot_bytes));
  EXPECT_FALSE(least.unfit.has_value());
  EXPECT_TRUE(least.activation_checkpointing);
  EXPECT_TRUE(least.strategy->has_fsdp()) << least.strategy_reason;
  // The trainer gets the strategy itself, and must find the same.
  *spec.mutable_train()->mutable_strategy() = *least.strategy;
  spec.mutable_train()->set_activation_checkpointing(true);
  const Planned concrete = *PlanByStrategies(spec, On(4, small.unfit->slot_bytes));
  EXPECT_EQ(concrete.digests, least.digests);
  EXPECT_EQ(concrete.table_sha256, least.table_sha256);
}

// Where stages and tensor ranks are chosen, too, not everything was planned: what does not fit may fit slots with a
// little more.
TEST(PlanByStrategies, AMixDemandsMoreThanTheSlotsThatItWasRefusedOn) {
  JobSpec spec = Large(4);
  spec.mutable_train()->mutable_strategy()->mutable_auto_();
  ASSERT_TRUE(spec::Resolve({}, spec).empty());
  Slots slots = On(4, kGiB);
  slots.ranks[2].memory_bytes = 2 * kGiB;
  const Planned small = *PlanByStrategies(spec, slots);
  ASSERT_TRUE(small.unfit.has_value());
  EXPECT_EQ(small.unfit->slot_bytes, kGiB + kGiB / 64) << small.unfit->why;
  EXPECT_TRUE(absl::StrContains(small.unfit->why, " its slot has 1 GiB")) << small.unfit->why;
  const Planned roomy = *PlanByStrategies(spec, On(4, 80 * kGiB));
  EXPECT_FALSE(roomy.unfit.has_value());
  EXPECT_TRUE(roomy.chosen.has_value());
}

TEST(PlanByStrategies, WhatOtherNodesCouldHoldWaits) {
  JobSpec spec = Large(3);
  spec.mutable_train()->mutable_strategy()->mutable_fsdp()->set_reshard(RESHARD_HYBRID);
  ASSERT_TRUE(spec::Resolve({}, spec).empty());
  Slots slots = On(3, 0);
  EXPECT_FALSE(PlanByStrategies(spec, slots)->unfit.has_value());
  slots.ranks[2].node = 1;
  const Planned uneven = *PlanByStrategies(spec, slots);
  ASSERT_TRUE(uneven.unfit.has_value());
  EXPECT_TRUE(absl::StrContains(uneven.unfit->why, "the same number of ranks on every node")) << uneven.unfit->why;
}

TEST(HasFastBf16, IsFalseForCpusThatAreNotKnown) {
  Cpu cpu;
  EXPECT_FALSE(HasFastBf16(cpu)) << "an older worker";
  cpu.set_instruction_set("AVX2");
  EXPECT_FALSE(HasFastBf16(cpu));
  cpu.set_instruction_set("AMX BF16");
  EXPECT_TRUE(HasFastBf16(cpu));
}

TEST(HardwareOf, KnowsDevicesByTheirName) {
  EXPECT_EQ(HardwareOf(DEVICE_CUDA, "NVIDIA H200").name, "h200");
  EXPECT_EQ(HardwareOf(DEVICE_CUDA, "NVIDIA GeForce RTX 4090").name, "rtx4090");
  EXPECT_EQ(HardwareOf(DEVICE_CUDA, "").name, "h100");
  EXPECT_EQ(HardwareOf(DEVICE_CPU, "AMD EPYC 7B13").name, "cpu");
  EXPECT_EQ(HardwareOf(DEVICE_CPU, "AMD EPYC 9354", /*fast_bf16=*/true).name, "cpu-bf16");
  EXPECT_EQ(HardwareOf(DEVICE_CUDA, "NVIDIA H200", /*fast_bf16=*/true).name, "h200");
}

TEST(HardwareFor, TakesTheMeasuredNetwork) {
  Slots slots = On(16, 0);
  const strategies::Hardware assumed = HardwareFor(slots);
  EXPECT_EQ(assumed.between.bytes_per_second, HardwareOf(DEVICE_CUDA, slots.model).between.bytes_per_second);
  const std::string signature = SignatureOf(slots);
  slots.network = strategies::Link{1e9, 5e-5, 5e-5};
  EXPECT_NE(SignatureOf(slots), signature) << "another plan may be the best";
  const strategies::Hardware measured = HardwareFor(slots);
  EXPECT_EQ(measured.between.bytes_per_second, 1e9) << "each GPU has a port as the one that measured";
  EXPECT_EQ(measured.between.seconds, 5e-5);
  EXPECT_EQ(measured.inside.bytes_per_second, assumed.inside.bytes_per_second);
  slots.device = DEVICE_CPU;
  EXPECT_EQ(HardwareFor(slots).between.bytes_per_second, 1e9 / 8) << "eight ranks share the node's port";
}

TEST(HardwareFor, TakesWhatACoreWasMeasuredToMoveAndCompress) {
  Slots slots{strategies::FullNodes(4, 2, 0), DEVICE_CPU, ""};
  slots.network = strategies::Link{125e6, 1e-3, 1e-3};
  EXPECT_EQ(HardwareFor(slots).core.socket_bytes_per_second, 0) << "not measured";
  const std::string signature = SignatureOf(slots);
  slots.core = {.socket_bytes_per_second = 4e8, .compressing = {.top_k = 2e-8, .power_sgd = 3e-8, .int8 = 4e-9}};
  EXPECT_NE(SignatureOf(slots), signature) << "another plan may be the best";
  const strategies::CoreRates core = HardwareFor(slots).core;
  EXPECT_EQ(core.socket_bytes_per_second, 4e8);
  EXPECT_EQ(core.compressing.top_k, 2e-8);
  EXPECT_EQ(core.compressing.power_sgd, 3e-8);
  EXPECT_EQ(core.compressing.int8, 4e-9);
  slots.device = DEVICE_CUDA;
  EXPECT_EQ(HardwareFor(slots).core.compressing.int8, 0) << "GPUs compress, not cores";
}

// A sum of 4 bytes an element over 100 Mbit/s takes 320 ns an element each way. int8 is a quarter of it, unless cores
// need longer than that to compress.
TEST(PlanJob, AutomaticCompressionDependsOnWhatACoreWasMeasuredToTake) {
  JobSpec spec = Large(2);
  spec.mutable_train()->mutable_strategy()->mutable_ddp();
  spec.mutable_train()->mutable_communication()->mutable_compression()->mutable_auto_();
  ASSERT_TRUE(spec::Resolve({}, spec).empty());
  Slots slots{strategies::FullNodes(2, 1, 0), DEVICE_CPU, ""};
  slots.network = strategies::Link{12.5e6, 1e-3, 1e-3};
  const auto compression = [&] {
    return PlanJob(spec, slots, HardwareFor(slots))->train.communication().compression().kind_case();
  };
  slots.core.compressing.int8 = 4e-9;
  EXPECT_EQ(compression(), Compression::kInt8);
  slots.core.compressing.int8 = 4e-6;
  EXPECT_EQ(compression(), Compression::kNone);
}

TEST(PlanByStrategies, BucketsGrowWithTheLatencyOfTheMeasuredNetwork) {
  JobSpec spec = Large(2);
  spec.mutable_train()->mutable_strategy()->mutable_ddp();
  ASSERT_TRUE(spec::Resolve({}, spec).empty());
  Slots slots{strategies::FullNodes(2, 1, 0), DEVICE_CPU, ""};
  slots.network = strategies::Link{125e6, 1e-3, 1e-3};
  EXPECT_FALSE(PlanByStrategies(spec, slots)->strategy.has_value()) << "the default is more than 5 x 2 x 125 kB";
  // 10 Gbit/s and 20 ms: 5 x 2 nodes x 20 ms x 1.25 GB/s are 238.4 MiB.
  slots.network = strategies::Link{1.25e9, 20e-3, 20e-3};
  const Planned far = *PlanByStrategies(spec, slots);
  ASSERT_TRUE(far.strategy.has_value());
  EXPECT_EQ(far.strategy->ddp().bucket_mib(), 239);
  EXPECT_EQ(far.strategy_reason,
            "gradients are reduced in buckets of 239 MiB, because the links between 2 nodes have 20 ms of latency at "
            "10 Gbit/s");
  // A generation keeps what it was planned with, whatever is known later.
  JobSpec again = spec;
  *again.mutable_train()->mutable_strategy() = *far.strategy;
  slots.network.reset();
  EXPECT_EQ(PlanByStrategies(again, slots)->digests, far.digests);
  EXPECT_NE(PlanByStrategies(spec, slots)->digests, far.digests);
  // What the user says counts.
  spec.mutable_train()->mutable_strategy()->mutable_ddp()->set_bucket_mib(30);
  slots.network = strategies::Link{1.25e9, 20e-3, 20e-3};
  EXPECT_FALSE(PlanByStrategies(spec, slots)->strategy.has_value());
}

}  // namespace
}  // namespace muster::core
