#include "strategies/choose.h"

#include <gtest/gtest.h>

#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "models/inventory.h"
#include "strategies/partition/flat.h"

namespace muster::strategies {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;

Train SizedGpt2(Gpt2Size size, uint32_t sequences, uint32_t microbatch) {
  Train train;
  train.mutable_model()->mutable_gpt2()->set_size(size);
  train.mutable_strategy()->mutable_auto_();
  train.mutable_batch()->set_sequences(sequences);
  train.mutable_batch()->set_microbatch(microbatch);
  train.mutable_precision()->set_compute(DTYPE_BF16);
  train.mutable_optimizer()->mutable_adamw();
  return train;
}

Choice Chosen(const Train& train, uint32_t ranks, uint64_t memory_bytes) {
  const Hardware h100 = *FindHardware("h100");
  const auto choice =
      Choose(train, *models::MakeInventory(train.model()), FullNodes(ranks, h100.ranks_per_node, memory_bytes), h100);
  EXPECT_TRUE(choice.ok()) << choice.status();
  return *choice;
}

TEST(Choose, TakesTheSimplestWhereAllFits) {
  EXPECT_EQ(NameOf(Chosen(SizedGpt2(GPT2_SIZE_SMALL, 8, 8), 1, 80 * kGiB).train()), "single");
  const Choice eight = Chosen(SizedGpt2(GPT2_SIZE_SMALL, 512, 32), 8, 80 * kGiB);
  EXPECT_EQ(NameOf(eight.train()), "ddp") << eight.reason;
  EXPECT_EQ(eight.candidates.size(), 6u);
}

TEST(Choose, NotKnownMemoryFitsEverything) {
  const Choice choice = Chosen(SizedGpt2(GPT2_SIZE_XL, 8, 1), 8, 0);
  for (const Candidate& candidate : choice.candidates) EXPECT_EQ(candidate.unfit, "");
}

// The figures are those of the candidates, so only the sentences and who gets which are literal.
TEST(Choose, SaysWhyTheOthersLost) {
  const Choice choice = Chosen(SizedGpt2(GPT2_SIZE_XL, 16, 2), 8, 20 * kGiB);
  ASSERT_TRUE(choice.fits);
  int unfit = 0, slower = 0;
  for (const Candidate& candidate : choice.candidates) {
    const double more = candidate.step_seconds - choice.candidates[choice.chosen].step_seconds;
    if (&candidate == &choice.candidates[choice.chosen]) {
      EXPECT_EQ(candidate.lost, "");
    } else if (!candidate.unfit.empty()) {
      EXPECT_EQ(candidate.lost, "does not fit: " + candidate.unfit);
      ++unfit;
    } else if (std::abs(more) < 5e-4 * choice.candidates[choice.chosen].step_seconds) {
      EXPECT_EQ(candidate.lost, kAsFast);
    } else if (more > 0) {
      EXPECT_TRUE(absl::StartsWith(candidate.lost, TimeText(more) + " more, ")) << candidate.lost;
      ++slower;
    } else {
      EXPECT_TRUE(absl::EndsWith(candidate.lost, "less simple")) << candidate.lost;
    }
  }
  EXPECT_GT(unfit, 0);
  EXPECT_GT(slower, 0);
}

// With less memory it shards more, and never chooses one that does not fit while another does.
TEST(Choose, LessMemoryNeedsMoreSharding) {
  const Train train = SizedGpt2(GPT2_SIZE_XL, 16, 2);
  size_t before = 0;
  bool some = false;
  for (const uint64_t gib : {200, 60, 40, 30, 24, 20, 16, 12, 10, 8, 6, 4, 2}) {
    const Choice choice = Chosen(train, 8, gib * kGiB);
    const bool any = std::any_of(choice.candidates.begin(), choice.candidates.end(),
                                 [](const Candidate& c) { return c.unfit.empty(); });
    EXPECT_EQ(choice.fits, any);
    if (!choice.fits) {
      const Candidate& smallest = choice.candidates[choice.chosen];
      EXPECT_TRUE(
          absl::StartsWith(choice.reason, absl::StrCat("no configuration fits; the smallest tried, ", smallest.name,
                                                       ", needs ", FormatBytes(smallest.peak_bytes), " a rank: rank ")))
          << choice.reason;
      continue;
    }
    some = true;
    EXPECT_EQ(choice.candidates[choice.chosen].unfit, "");
    EXPECT_GE(choice.chosen, before) << gib;
    before = choice.chosen;
    EXPECT_LE(SlotBytesFor(choice.candidates[choice.chosen].peak_bytes), gib * kGiB);
  }
  EXPECT_TRUE(some);
  EXPECT_GT(before, 3u) << "the smallest that fits is sharded";
  EXPECT_FALSE(Chosen(train, 8, kGiB).fits);
}

TEST(Choose, MuonIsTriedWithWholeTensorsOnly) {
  Train train = SizedGpt2(GPT2_SIZE_SMALL, 64, 8);
  const double adamw = Chosen(train, 8, 0).candidates[0].step_seconds;
  train.mutable_optimizer()->mutable_muon()->set_ns_steps(5);
  const Choice choice = Chosen(train, 8, 0);
  for (const Candidate& candidate : choice.candidates) {
    const Strategy& s = candidate.train.strategy();
    if (s.has_fsdp()) {
      EXPECT_EQ(s.fsdp().placement(), PLACEMENT_WHOLE) << NameOf(candidate.train);
    }
  }
  // Every rank of ddp orthogonalizes all matrices: by hand, 12 layers of three of 768 x 768 by 1, 3 and 4 and one of
  // 4 x 768 x 768, at 445 TFLOP/s.
  const double c = 768, products = 12 * 5 * c * c * c * (4 * (1 + 3 + 4 + 4) + 4 * 2);
  EXPECT_GT(choice.candidates[0].step_seconds, adamw + 0.9 * products / 445e12);
  EXPECT_EQ(NameOf(choice.train()), "zero 1") << choice.reason;
}

TEST(Choose, HybridIsTriedOnSeveralNodes) {
  const Choice choice = Chosen(SizedGpt2(GPT2_SIZE_XL, 64, 1), 16, 0);
  EXPECT_EQ(NameOf(choice.candidates[5].train), "fsdp hybrid");
}

TEST(Choose, KeepsWhatTheUserSaid) {
  Train train = SizedGpt2(GPT2_SIZE_SMALL, 64, 8);
  train.set_activation_checkpointing(true);
  for (const Candidate& candidate : Chosen(train, 8, 0).candidates) {
    EXPECT_TRUE(candidate.train.activation_checkpointing());
    EXPECT_EQ(candidate.train.batch().microbatch(), 8u);
  }
  train.set_activation_checkpointing(false);
  const Choice without = Chosen(train, 8, 0);
  EXPECT_EQ(without.candidates.size(), 5u);
  for (const Candidate& candidate : without.candidates) EXPECT_FALSE(candidate.train.activation_checkpointing());
}

TEST(Fit, SaysWhoDoesNotAndWhatWould) {
  Train train = SizedGpt2(GPT2_SIZE_LARGE, 16, 8);
  train.mutable_strategy()->mutable_ddp();
  const Inventory inventory = *models::MakeInventory(train.model());
  std::vector<RankPlace> ranks = FullNodes(2, 8, 64 * kGiB);
  ranks[1].memory_bytes = 14 * kGiB;
  const std::string why = WhyUnfit(*PlanMemory(train, inventory, ranks), ranks);
  EXPECT_TRUE(absl::StartsWith(why, "rank 1 needs ")) << why;
  EXPECT_TRUE(absl::StrContains(why, "its slot has 14 GiB")) << why;
  const std::string would = WhatWouldFit(train, inventory, ranks);
  EXPECT_TRUE(absl::StrContains(would, "it would fit with ")) << would;
  EXPECT_TRUE(absl::StrContains(would, "strategy fsdp full_shard with activation_checkpointing")) << would;
  ranks[1].memory_bytes = 64 * kGiB;
  EXPECT_EQ(WhyUnfit(*PlanMemory(train, inventory, ranks), ranks), "");
  ranks[1].memory_bytes = 1 << 20;
  const std::string none = WhatWouldFit(train, inventory, ranks);
  EXPECT_TRUE(absl::StartsWith(none, "no configuration fits; of the changes that were tried, ")) << none;
  EXPECT_TRUE(absl::StrContains(none, " needs least: use slots of ")) << none;
}

// Each suggestion fits when it is followed.
TEST(Fit, AdviceIsTrue) {
  Train train = SizedGpt2(GPT2_SIZE_SMALL, 64, 32);
  train.mutable_strategy()->mutable_single();
  train.mutable_batch()->set_sequences(32);
  const Inventory inventory = *models::MakeInventory(train.model());
  const std::vector<RankPlace> ranks = FullNodes(1, 1, 8 * kGiB);
  ASSERT_NE(WhyUnfit(*PlanMemory(train, inventory, ranks), ranks), "");
  const std::string would = WhatWouldFit(train, inventory, ranks);
  EXPECT_TRUE(absl::StrContains(would, "batch.microbatch 8 (")) << would;
  for (const uint32_t microbatch : {16u, 8u}) {
    train.mutable_batch()->set_microbatch(microbatch);
    EXPECT_EQ(WhyUnfit(*PlanMemory(train, inventory, ranks), ranks).empty(), microbatch == 8) << microbatch;
  }
}

// Inputs go to the host where checkpointing alone is not enough, and stay where it is.
TEST(Fit, OffloadsActivationsWhereCheckpointingIsNotEnough) {
  Train train = SizedGpt2(GPT2_SIZE_SMALL, 64, 64);
  train.mutable_strategy()->mutable_single();
  const Inventory inventory = *models::MakeInventory(train.model(), DEVICE_CUDA);
  const auto slot = [&](bool activations) {
    Train checkpointed = train;
    checkpointed.set_activation_checkpointing(true), checkpointed.mutable_offload()->set_activations(activations);
    return SlotBytesFor(PlanMemory(checkpointed, inventory, AnyPlaces(1))->peak());
  };
  ASSERT_LT(slot(true), slot(false));
  const std::string both = "activation_checkpointing: true and offload.activations: true (";
  const std::string more = WhatWouldFit(train, inventory, FullNodes(1, 1, slot(true)));
  EXPECT_TRUE(absl::StrContains(more, both)) << more;
  const std::string enough = WhatWouldFit(train, inventory, FullNodes(1, 1, slot(false)));
  EXPECT_TRUE(absl::StrContains(enough, "activation_checkpointing: true (")) << enough;
  EXPECT_FALSE(absl::StrContains(enough, "offload.activations")) << enough;
  train.set_activation_checkpointing(true);
  const std::string given = WhatWouldFit(train, inventory, FullNodes(1, 1, slot(true)));
  EXPECT_TRUE(absl::StrContains(given, "offload.activations: true (")) << given;
  EXPECT_FALSE(absl::StrContains(given, both)) << given;
}

Train Ragged(uint32_t ranks) {
  Train train = SizedGpt2(GPT2_SIZE_SMALL, ranks, 1);
  train.mutable_strategy()->mutable_fsdp()->set_reshard(RESHARD_FULL_SHARD);
  train.mutable_strategy()->mutable_fsdp()->set_placement(PLACEMENT_RAGGED);
  train.mutable_strategy()->mutable_fsdp()->set_shares(SHARES_SPEED);
  return train;
}

// The fast rank owns what fits into its slot, the slow ones the rest; without a memory limit, all by speed.
TEST(PlanMemory, SharesBySpeedAreAsLargeAsMemoryAllows) {
  const Train train = Ragged(3);
  const Inventory inventory = *models::MakeInventory(train.model());
  std::vector<RankPlace> ranks = FullNodes(3, 3, 0);
  ranks[0].flops_per_second = 8e12, ranks[1].flops_per_second = ranks[2].flops_per_second = 1e12;
  const MemoryPlan free = *PlanMemory(train, inventory, ranks);
  EXPECT_TRUE(free.held.empty());
  EXPECT_GT(free.by_shard[0].optimizer_state, 7 * free.by_shard[1].optimizer_state);

  const uint64_t fixed = free.by_shard[0].peak - free.by_shard[0].parameters - free.by_shard[0].gradients -
                         free.by_shard[0].optimizer_state;
  for (const double part : {0.2, 0.4, 0.6}) {  // of the bytes of all that is owned
    const uint64_t owning = 16 * partition::FlatElements(inventory);
    const auto peak = fixed + static_cast<uint64_t>(part * static_cast<double>(owning));
    ranks[0].memory_bytes = SlotBytesFor(peak);
    const MemoryPlan held = *PlanMemory(train, inventory, ranks);
    EXPECT_EQ(held.held, std::vector<uint32_t>{0});
    EXPECT_EQ(WhyUnfit(held, ranks), "") << part;
    EXPECT_GT(static_cast<double>(held.by_shard[0].peak), 0.95 * static_cast<double>(peak)) << "it is used, too";
    EXPECT_NEAR(
        static_cast<double>(held.by_shard[1].optimizer_state) / static_cast<double>(held.by_shard[2].optimizer_state),
        1, 0.03);
  }
  // A model that fits no slots is still reported.
  for (RankPlace& rank : ranks) rank.memory_bytes = kGiB / 2;
  EXPECT_NE(WhyUnfit(*PlanMemory(train, inventory, ranks), ranks), "");
}

// Two to three stages of a rank each, with slots that some cuts fit, against all cuts.
TEST(PlanMemory, CutsAPipelineForItsStagesMemory) {
  int moved = 0, none = 0;
  for (const uint32_t stages : {2u, 3u}) {
    Train train = SizedGpt2(GPT2_SIZE_SMALL, 4 * stages, 1);
    train.mutable_model()->mutable_gpt2()->set_layers(6);
    train.mutable_strategy()->mutable_single();
    train.mutable_parallel()->set_pipeline(stages);
    train.mutable_pipeline()->set_schedule(PIPELINE_SCHEDULE_1F1B);
    const Inventory inventory = *models::MakeInventory(train.model());
    const MemoryPlan free = *PlanMemory(train, inventory, FullNodes(stages, 8, 0));
    std::vector<std::vector<std::string>> cuts = {{}};
    for (uint32_t stage = 1; stage < stages; ++stage) {
      std::vector<std::vector<std::string>> more;
      for (const std::vector<std::string>& cut : cuts) {
        for (int u = 1; u < inventory.units_size(); ++u) {
          more.push_back(cut);
          more.back().push_back(inventory.units(u).name());
        }
      }
      cuts = more;
    }
    for (const double part : {1.0, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5}) {
      std::vector<RankPlace> ranks = FullNodes(stages, 8, 0);
      for (uint32_t rank = 0; rank < stages; ++rank) {
        const double bytes = part * static_cast<double>(SlotBytesFor(free.peak()));
        ranks[rank].memory_bytes = static_cast<uint64_t>(rank == 0 ? bytes : 0.9 * bytes);
      }
      bool any = false;
      for (const std::vector<std::string>& cut : cuts) {
        Train with = train;
        for (const std::string& name : cut) with.mutable_pipeline()->add_cut(name);
        const auto plan = PlanMemory(with, inventory, ranks);
        any |= plan.ok() && WhyUnfit(*plan, ranks).empty();
      }
      const MemoryPlan plan = *PlanMemory(train, inventory, ranks);
      const std::string why = WhyUnfit(plan, ranks);
      EXPECT_EQ(why.empty(), any) << stages << " stages, " << part << ": " << why;
      EXPECT_EQ(plan.no_cut_fits, !any);
      if (!any) {
        EXPECT_TRUE(absl::StrContains(why, absl::StrCat("; no cut into ", stages, " stages was found that fits")))
            << why;
        EXPECT_TRUE(absl::StrContains(why, "the stage lacks ")) << why;
      }
      none += any ? 0 : 1;
      moved += any && plan.layout.table_sha256 != free.layout.table_sha256 ? 1 : 0;
    }
  }
  EXPECT_GT(moved, 1);
  EXPECT_GT(none, 1);
}

// The first stage has an embedding of 131M parameters beside its layers, and not enough memory for half of these.
TEST(PlanMemory, CutsAPipelineForItsMemoryWhateverItsShares) {
  Train train;
  Llama& llama = *train.mutable_model()->mutable_llama();
  llama.set_vocabulary(128256), llama.set_context(256);
  llama.set_layers(8), llama.set_heads(8), llama.set_key_value_heads(8), llama.set_width(1024), llama.set_inner(2816);
  *train.mutable_model() = *models::Resolve(train.model());
  train.mutable_batch()->set_sequences(16), train.mutable_batch()->set_microbatch(1);
  train.mutable_optimizer()->mutable_adamw();
  train.mutable_parallel()->set_pipeline(2);
  train.mutable_pipeline()->set_schedule(PIPELINE_SCHEDULE_1F1B);
  Strategy strategy = FsdpOf(RESHARD_SHARD_GRAD_OP);
  strategy.mutable_fsdp()->set_placement(PLACEMENT_RAGGED);
  const Inventory inventory = *models::MakeInventory(train.model());
  const std::vector<RankPlace> ranks = FullNodes(4, 4, uint64_t{3328} << 20);
  for (const Shares shares : {SHARES_MEMORY, SHARES_SPEED}) {
    strategy.mutable_fsdp()->set_shares(shares);
    const Train with = With(train, strategy, false);
    EXPECT_NE(WhyUnfit(*PlanMemory(with, inventory, FullNodes(4, 4, kGiB)), FullNodes(4, 4, kGiB)), "");
    const MemoryPlan plan = *PlanMemory(with, inventory, ranks);
    EXPECT_EQ(WhyUnfit(plan, ranks), "") << Shares_Name(shares);
    Train cut = with;  // the cut that the planner does not change
    const PartitionTable table = MakeLayout(with, inventory, ranks)->table;
    const auto second = std::find_if(table.units().begin(), table.units().end(),
                                     [](const UnitPartition& unit) { return unit.stage() == 1; });
    cut.mutable_pipeline()->add_cut(second->unit());
    EXPECT_NE(WhyUnfit(*PlanMemory(cut, inventory, ranks), ranks), "") << Shares_Name(shares);
  }
}

TEST(MakeLayout, GivesAFastStageMoreWhereSharesAreBySpeed) {
  Train train = Ragged(2);
  train.mutable_parallel()->set_pipeline(2);
  const Inventory inventory = *models::MakeInventory(train.model());
  std::vector<RankPlace> ranks = FullNodes(2, 2, 0);
  const auto units = [&] {
    const PartitionTable table = MakeLayout(train, inventory, ranks)->table;
    return std::count_if(table.units().begin(), table.units().end(),
                         [](const UnitPartition& unit) { return unit.stage() == 0; });
  };
  const auto equal = units();
  ranks[0].flops_per_second = 3e12, ranks[1].flops_per_second = 1e12;
  EXPECT_GT(units(), equal + 2) << "12 layers and a head of five layers' work";
  train.mutable_strategy()->mutable_fsdp()->set_shares(SHARES_MEMORY);
  EXPECT_EQ(units(), equal);
}

TEST(MakeLayout, RefusesATableThatNoMessageHolds) {
  Train train = Ragged(1024);
  auto& gpt2 = *train.mutable_model()->mutable_gpt2();
  gpt2.set_size(GPT2_SIZE_XL);
  gpt2.set_layers(200);
  train.mutable_strategy()->mutable_fsdp()->set_placement(PLACEMENT_ROWS);
  const Inventory inventory = *models::MakeInventory(train.model());
  const absl::Status status = MakeLayout(train, inventory, AnyPlaces(1024)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(status.message(), "even has the smallest")) << status;
  EXPECT_TRUE(MakeLayout(train, inventory, AnyPlaces(256)).ok());
}

}  // namespace
}  // namespace muster::strategies
