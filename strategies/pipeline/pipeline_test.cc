#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "models/inventory.h"
#include "strategies/partition/planners.h"
#include "strategies/partition/table.h"
#include "strategies/pipeline/orders.h"
#include "strategies/pipeline/stages.h"
#include "strategies/schedule/check.h"
#include "strategies/schedule/check_stages.h"
#include "strategies/schedule/simulate.h"

namespace muster::pipeline {
namespace {

// "F0 F1 B0", with a chunk where there are several: "F1.0".
std::string Text(const std::vector<Phase>& phases, bool chunks) {
  constexpr const char* kLetters[] = {"F", "B", "W"};
  std::vector<std::string> all;
  for (const Phase& phase : phases) {
    all.push_back(absl::StrCat(kLetters[static_cast<size_t>(phase.kind)], chunks ? absl::StrCat(phase.chunk, ".") : "",
                               phase.microbatch));
  }
  return absl::StrJoin(all, " ");
}

// Figure 3 (top) of Narayanan et al. 2021: 1F1B on four devices with eight microbatches, device 1 first.
TEST(Orders, OneForwardOneBackwardAsPublished) {
  const OrderOptions options{.stages = 4, .chunks = 1, .microbatches = 8};
  const char* const published[] = {
      "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7",
      "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7",
      "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7",
      "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7",
  };
  for (uint32_t stage = 0; stage < 4; ++stage) {
    EXPECT_EQ(Text(OneForwardOneBackward(options, stage), false), published[stage]) << stage;
  }
}

// Figure 4 (bottom): the interleaved schedule on four devices with two chunks each and eight microbatches: device 1
// begins with microbatches 1 to 4 of its first chunk and of its second one, and then 5 to 7 of the first.
TEST(Orders, InterleavedAsPublished) {
  const OrderOptions options{.stages = 4, .chunks = 2, .microbatches = 8};
  EXPECT_TRUE(absl::StartsWith(Text(OneForwardOneBackward(options, 0), true),
                               "F0.0 F0.1 F0.2 F0.3 F1.0 F1.1 F1.2 F1.3 F0.4 F0.5 F0.6 B1.0 F0.7 B1.1 F1.4 B1.2"));
  EXPECT_TRUE(absl::StartsWith(Text(OneForwardOneBackward(options, 3), true),
                               "F0.0 F0.1 F0.2 F0.3 F1.0 B1.0 F1.1 B1.1 F1.2 B1.2 F1.3 B1.3 F0.4 B0.0"));
}

// Nine microbatches on four stages: five pass both chunks, and then four.
TEST(Orders, MicrobatchesThatAreLeftOverGoWithTheFirstGroups) {
  const OrderOptions options{.stages = 4, .chunks = 2, .microbatches = 9};
  EXPECT_EQ(Text(OneForwardOneBackward(options, 3), true),
            "F0.0 F0.1 F0.2 F0.3 F0.4 F1.0 B1.0 F1.1 B1.1 F1.2 B1.2 F1.3 B1.3 F1.4 B1.4 F0.5 B0.0 F0.6 B0.1 F0.7 B0.2 "
            "F0.8 B0.3 F1.5 B0.4 F1.6 B1.5 F1.7 B1.6 F1.8 B1.7 B1.8 B0.5 B0.6 B0.7 B0.8");
  // Of many the first four groups are larger by at most one where three are left over.
  const std::vector<Phase> many = OneForwardOneBackward({.stages = 4, .chunks = 2, .microbatches = 403}, 3);
  const auto second_chunk = std::find_if(many.begin(), many.end(), [](const Phase& p) { return p.chunk == 1; });
  EXPECT_EQ(second_chunk - many.begin(), 5);
}

// Figure 3 (top) of Qi et al. 2024: ZB-H1 on four devices with eight microbatches, device 1 first.
TEST(Orders, ZeroBubbleH1AsPublished) {
  const OrderOptions options{.stages = 4, .chunks = 1, .microbatches = 8};
  const char* const published[] = {
      "F0 F1 F2 F3 B0 W0 F4 B1 W1 F5 B2 W2 F6 B3 W3 F7 B4 W4 B5 W5 B6 W6 B7 W7",
      "F0 F1 F2 B0 F3 B1 W0 F4 B2 W1 F5 B3 W2 F6 B4 W3 F7 B5 W4 B6 W5 B7 W6 W7",
      "F0 F1 B0 F2 B1 F3 B2 W0 F4 B3 W1 F5 B4 W2 F6 B5 W3 F7 B6 W4 B7 W5 W6 W7",
      "F0 B0 F1 B1 F2 B2 F3 B3 W0 F4 B4 W1 F5 B5 W2 F6 B6 W3 F7 B7 W4 W5 W6 W7",
  };
  for (uint32_t stage = 0; stage < 4; ++stage) {
    EXPECT_EQ(Text(ZeroBubbleH1(options, stage), false), published[stage]) << stage;
  }
}

// What PyTorch 2.11's ScheduleZBVZeroBubble computes for four ranks and eight microbatches, its chunks p and 7 - p as 0
// and 1.
TEST(Orders, ZeroBubbleVAsInPyTorch) {
  const OrderOptions options{.stages = 4, .chunks = 2, .microbatches = 8};
  const char* const published[] = {
      "F0.0 F0.1 F0.2 F0.3 F0.4 F0.5 F0.6 F1.0 B1.0 W1.0 F1.1 B1.1 W1.1 F1.2 B1.2 W1.2 F1.3 B1.3 "
      "W1.3 F0.7 B0.0 W0.0 F1.4 B1.4 W1.4 B0.1 W0.1 F1.5 B1.5 W1.5 B0.2 W0.2 F1.6 B1.6 W1.6 B0.3 "
      "W0.3 F1.7 B1.7 W1.7 B0.4 W0.4 B0.5 W0.5 B0.6 W0.6 B0.7 W0.7",
      "F0.0 F0.1 F0.2 F0.3 F0.4 F1.0 F0.5 F1.1 B1.0 W1.0 F1.2 B1.1 W1.1 F1.3 B1.2 W1.2 F0.6 B0.0 "
      "W0.0 F1.4 B1.3 W1.3 F0.7 B0.1 W0.1 F1.5 B1.4 W1.4 B0.2 W0.2 F1.6 B1.5 W1.5 B0.3 W0.3 F1.7 "
      "B1.6 W1.6 B0.4 B1.7 B0.5 W0.4 B0.6 W0.5 B0.7 W0.6 W1.7 W0.7",
      "F0.0 F0.1 F0.2 F1.0 F0.3 F1.1 F0.4 F1.2 B1.0 W1.0 F1.3 B1.1 W1.1 F0.5 B0.0 W0.0 F1.4 B1.2 "
      "W1.2 F0.6 B0.1 W0.1 F1.5 B1.3 W1.3 F0.7 B0.2 W0.2 F1.6 B1.4 W1.4 B0.3 W0.3 F1.7 B1.5 W1.5 "
      "B0.4 B1.6 B0.5 B1.7 B0.6 W0.4 B0.7 W0.5 W1.6 W1.7 W0.6 W0.7",
      "F0.0 F1.0 F0.1 F1.1 F0.2 F1.2 F0.3 F1.3 B1.0 W1.0 F0.4 B0.0 W0.0 F1.4 B1.1 W1.1 F0.5 B0.1 "
      "W0.1 F1.5 B1.2 W1.2 F0.6 B0.2 W0.2 F1.6 B1.3 W1.3 F0.7 B0.3 W0.3 F1.7 B1.4 W1.4 B0.4 B1.5 "
      "B0.5 B1.6 B0.6 B1.7 B0.7 W0.4 W1.5 W1.6 W1.7 W0.5 W0.6 W0.7",
  };
  for (uint32_t stage = 0; stage < 4; ++stage) {
    EXPECT_EQ(Text(ZeroBubbleV(options, stage), true), published[stage]) << stage;
  }
}

TEST(Orders, GPipe) {
  EXPECT_EQ(Text(GPipe({.stages = 4, .chunks = 1, .microbatches = 3}), false), "F0 F1 F2 B0 B1 B2");
}

// The head borrows the embedding.
Inventory Tied(uint32_t layers) {
  Model model;
  model.mutable_gpt2()->set_size(GPT2_SIZE_TINY);
  model.mutable_gpt2()->set_layers(layers);
  return *models::MakeInventory(model);
}

Inventory Untied(uint32_t layers) {
  Inventory inventory = Tied(layers);
  Unit& head = *inventory.mutable_units(inventory.units_size() - 1);
  *head.add_tensors() = inventory.units(0).tensors(0);
  head.mutable_tensors(head.tensors_size() - 1)->set_name("lm_head.weight");
  head.clear_borrows();
  return inventory;
}

TEST(Stages, ACutIsReadByTheUnitsNames) {
  const Inventory inventory = Untied(4);
  Train train;
  train.mutable_parallel()->set_pipeline(2);
  train.mutable_pipeline()->add_cut("h.1");
  EXPECT_EQ(StagesOf(train, inventory).value(), (StageOfUnit{0, 0, 1, 1, 1, 1}));
  train.mutable_pipeline()->set_schedule(PIPELINE_SCHEDULE_INTERLEAVED);
  train.mutable_pipeline()->set_chunks(2);
  train.mutable_pipeline()->clear_cut();
  for (const char* name : {"h.0", "h.2", "h.3"}) train.mutable_pipeline()->add_cut(name);
  EXPECT_EQ(StagesOf(train, inventory).value(), (StageOfUnit{0, 1, 1, 0, 1, 1}));
  struct Case {
    std::vector<std::string> cut;
    std::string why;
  };
  for (const Case& test : std::vector<Case>{{{"h.0"}, "names 1 units"},
                                            {{"h.0", "h.9", "h.3"}, "the model has no unit h.9"},
                                            {{"h.2", "h.1", "h.3"}, "h.1 does not come after h.2"},
                                            {{"embedding", "h.1", "h.3"}, "embedding does not come after embedding"}}) {
    train.mutable_pipeline()->clear_cut();
    for (const std::string& name : test.cut) train.mutable_pipeline()->add_cut(name);
    const std::string message(StagesOf(train, inventory).status().message());
    EXPECT_TRUE(absl::StartsWith(message, "pipeline.cut: ")) << message;
    EXPECT_TRUE(absl::StrContains(message, test.why)) << message;
  }
  train.mutable_parallel()->set_pipeline(4);
  EXPECT_TRUE(absl::StrContains(StagesOf(train, inventory).status().message(), "8 chunks of a model of 6 units"));
}

TEST(Stages, TablesAreJoinedAndTakenApart) {
  const Inventory inventory = Untied(4);
  const StageOfUnit stages = {0, 0, 1, 0, 1, 1};
  std::vector<PartitionTable> tables;
  for (uint32_t stage = 0; stage < 2; ++stage) {
    const Inventory own = StageInventory(inventory, stages, stage);
    tables.push_back(stage == 0 ? partition::Even(own, 3) : partition::Rows(own, 3));
  }
  const PartitionTable joined = Join(tables, stages);
  EXPECT_EQ(partition::Check(joined, inventory), absl::OkStatus());
  EXPECT_EQ(joined.shards(), 6u);
  EXPECT_EQ(StagesOf(joined), stages);
  for (uint32_t stage = 0; stage < 2; ++stage) {
    EXPECT_EQ(partition::TableOf(joined, stage).SerializeAsString(), tables[stage].SerializeAsString());
  }
  for (const partition::OwnedRange& range : partition::OwnedUnitOf(joined, inventory, 2).ranges) {
    EXPECT_GE(range.shard, 3u) << "a unit of stage 1";
  }
  PartitionTable wrong = joined;
  wrong.mutable_units(2)->set_stage(0);
  EXPECT_FALSE(partition::Check(wrong, inventory).ok()) << "extents of shards of another stage";
  wrong = joined;
  wrong.set_stages(3), wrong.set_shards(9);
  EXPECT_TRUE(absl::StrContains(partition::Check(wrong, inventory).message(), "stage 2 of 3 has no unit"));
}

TEST(Stages, AnInventoryOfAStageKnowsItsPlaceInTheModel) {
  const Inventory inventory = Untied(4), own = StageInventory(inventory, {0, 1, 0, 0, 1, 1}, 1);
  ASSERT_EQ(own.units_size(), 3);
  EXPECT_EQ(own.units(0).name(), "h.0");
  EXPECT_EQ(models::ModelUnit(own, 0), 1);
  EXPECT_EQ(models::ModelUnit(own, 2), 5);
  EXPECT_EQ(models::ModelUnits(own), 6);
  ASSERT_EQ(own.chunks_size(), 2);
  EXPECT_EQ(own.chunks(1).begin(), 1u);
  EXPECT_EQ(own.chunks(1).input_bytes(), inventory.units(3).output_bytes());
}

StageOfUnit EvenStages(const Inventory& model, const OrderOptions& order, PipelineSchedule kind) {
  StageOfUnit stages;
  const std::vector<int> begins = CutEvenly(model, order.stages * order.chunks);
  for (int u = 0, c = -1; u < model.units_size(); ++u) {
    if (c + 1 < static_cast<int>(begins.size()) && begins[c + 1] == u) ++c;
    const uint32_t stage = StageOfChunk(kind, static_cast<uint32_t>(c), order.stages);
    stages.emplace_back(stage, u > 0 && begins[static_cast<size_t>(c)] == u && stages.back().stage == stage);
  }
  return stages;
}

// A step of every stage of a random pipeline, each with the same recipe.
struct Pipeline {
  std::vector<Inventory> inventories;
  std::vector<Schedule> schedules, evaluations;

  Pipeline(const Inventory& model, const OrderOptions& order, PipelineSchedule kind, ScheduleRecipe recipe) {
    const StageOfUnit stages = EvenStages(model, order, kind);
    recipe.microbatches = static_cast<int32_t>(order.microbatches);
    for (uint32_t stage = 0; stage < order.stages; ++stage) {
      inventories.push_back(StageInventory(model, stages, stage));
      StageEdges edges = EdgesOf(model, stages, stage);
      recipe.groups = edges.groups, recipe.edges = edges.of_chunk, recipe.tied = edges.of_tied;
      recipe.order = OrderOf(kind, order, stage);
      schedules.push_back(Build(inventories.back(), recipe));
      evaluations.push_back(BuildEvaluation(inventories.back(), recipe));
    }
  }

  absl::Status Proven() const {
    std::vector<StageSchedule> training, evaluation;
    for (size_t p = 0; p < schedules.size(); ++p) {
      if (absl::Status s = Check(schedules[p], inventories[p]); !s.ok()) return s;
      if (absl::Status s = Check(evaluations[p], inventories[p]); !s.ok()) return s;
      training.push_back({&schedules[p], &inventories[p]});
      evaluation.push_back({&evaluations[p], &inventories[p]});
    }
    if (absl::Status s = CheckStages(training); !s.ok()) return s;
    return CheckStages(evaluation);
  }
};

ScheduleRecipe RandomRecipe(std::mt19937& random) {
  ScheduleRecipe recipe;
  recipe.sharded = random() % 2 == 0;
  recipe.replicated = random() % 2 == 0;
  if (recipe.sharded) {
    recipe.parameters = static_cast<Parameters>(1 + random() % 3);
    recipe.gradients = static_cast<Gradients>(random() % 2);
  }
  recipe.recompute = random() % 2 == 0;
  recipe.prefetch = static_cast<int32_t>(random() % 3);
  recipe.gather_bytes = random() % 2 == 0 ? 0 : 1 << 20;
  recipe.reduce_bytes = random() % 2 == 0 ? 0 : 4 << 20;
  return recipe;
}

TEST(Pipelines, EveryShapeIsProven) {
  std::mt19937 random(5);
  for (int i = 0; i < 400; ++i) {
    const bool several = random() % 3 == 0;
    const OrderOptions order{.stages = 2 + static_cast<uint32_t>(random() % 4),
                             .chunks = several ? 2 + static_cast<uint32_t>(random() % 2) : 1,
                             .microbatches = 1 + static_cast<uint32_t>(random() % 11)};
    const bool in_a_v = several && order.chunks == 2 && random() % 2 == 0;
    const PipelineSchedule kind = in_a_v              ? PIPELINE_SCHEDULE_ZERO_BUBBLE
                                  : several           ? PIPELINE_SCHEDULE_INTERLEAVED
                                  : random() % 3 == 0 ? PIPELINE_SCHEDULE_GPIPE
                                  : random() % 2 == 0 ? PIPELINE_SCHEDULE_ZERO_BUBBLE
                                                      : PIPELINE_SCHEDULE_1F1B;
    const uint32_t units = order.stages * order.chunks;
    const uint32_t layers = units + static_cast<uint32_t>(random() % 4);
    Inventory model = random() % 2 == 0 ? Tied(layers) : Untied(layers);
    // As of units with adapters, no backward is split.
    for (Unit& unit : *model.mutable_units()) i % 2 == 0 ? unit.clear_deferred_bytes() : void();
    const Pipeline pipeline(model, order, kind, RandomRecipe(random));
    ASSERT_EQ(pipeline.Proven(), absl::OkStatus()) << i << ": " << order.stages << " stages, " << order.chunks
                                                   << " chunks, " << order.microbatches << " microbatches";
  }
}

// Unit `user` borrows a tensor of unit `owner`.
void Tie(Inventory& model, int owner, int user, int tensor = 0) {
  Borrow& borrow = *model.mutable_units(user)->add_borrows();
  borrow.set_unit(model.units(owner).name());
  borrow.set_tensor(model.units(owner).tensors(tensor).name());
}

TEST(Ties, OverAnEdgeAreOfOneUnitAtEachEnd) {
  struct Edge {
    int owner, user, tensor;
  };
  struct Case {
    std::vector<Edge> ties;
    std::string why;  // empty: they are fine
  };
  // embedding, h.0 | h.1, h.2 | h.3, head
  const StageOfUnit stages = {0, 0, 1, 1, 2, 2};
  const std::vector<Case> cases = {
      {{{0, 5, 0}}, ""},
      {{{0, 5, 0}, {0, 5, 1}}, ""},  // two tensors of one unit
      {{{0, 1, 0}, {0, 5, 0}}, ""},  // on its own stage as well
      {{{0, 3, 0}, {0, 5, 0}}, ""},  // to two stages
      {{{0, 5, 0}, {2, 5, 0}}, ""},  // from two stages
      {{{0, 4, 0}, {1, 5, 0}}, ""},  // a pair each
      {{{0, 5, 0}, {1, 4, 0}}, ""},
      {{{0, 4, 0}, {0, 5, 0}}, "units h.3 and head on stage 2 both borrow wte.weight of unit embedding on stage 0"},
      {{{0, 4, 0}, {0, 5, 1}},
       "units h.3 and head on stage 2 both borrow wte.weight and wpe.weight of unit embedding on stage 0"},
      {{{2, 5, 0}, {3, 5, 0}},
       "unit head on stage 2 borrows h.2.ln_1.weight and h.1.ln_1.weight of units h.2 and h.1 on stage 1"},
  };
  for (const Case& test : cases) {
    Inventory model = Untied(4);
    for (const Edge& tie : test.ties) Tie(model, tie.owner, tie.user, tie.tensor);
    const absl::Status status = CheckTies(model, stages);
    EXPECT_EQ(status.ok(), test.why.empty()) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), test.why)) << status << "\nexpected: " << test.why;
    if (status.ok()) continue;
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_TRUE(absl::StartsWith(status.message(), "parallel.pipeline: ")) << status;
    EXPECT_TRUE(absl::EndsWith(status.message(), "use another pipeline.cut, or no pipeline")) << status;
    EXPECT_EQ(CheckTies(model, StageOfUnit(6)), absl::OkStatus()) << "on one stage";
  }
}

// Owners anywhere in their stage, which is gathered or not, and reduced with its neighbors or alone.
TEST(Ties, OfAllUnitsAreProven) {
  std::mt19937 random(9);
  int ties = 0, together = 0;
  for (int i = 0; i < 400; ++i) {
    const OrderOptions order{.stages = 2 + static_cast<uint32_t>(random() % 3),
                             .microbatches = 1 + static_cast<uint32_t>(random() % 5)};
    const PipelineSchedule kind = random() % 2 == 0 ? PIPELINE_SCHEDULE_GPIPE : PIPELINE_SCHEDULE_1F1B;
    Inventory model = Untied(2 * order.stages + static_cast<uint32_t>(random() % 4));
    const StageOfUnit stages = EvenStages(model, order, kind);
    const auto units = static_cast<uint32_t>(model.units_size());
    int tied = 0;
    for (int tries = 0; tries < 6; ++tries) {
      const int owner = static_cast<int>(random() % (units - 1));
      const int user = owner + 1 + static_cast<int>(random() % (units - 1 - static_cast<uint32_t>(owner)));
      Inventory more = model;
      Tie(more, owner, user, tries % 2);
      const auto& borrows = model.units(user).borrows();
      const bool twice = std::any_of(borrows.begin(), borrows.end(), [&](const Borrow& b) {
        return b.tensor() == more.units(user).borrows(more.units(user).borrows_size() - 1).tensor();
      });
      if (twice || stages[owner].stage == stages[user].stage || !CheckTies(more, stages).ok()) continue;
      model = more, ++tied;
    }
    ties += tied, together += tied > 1 ? 1 : 0;
    if (random() % 3 == 0) {
      for (Tensor& tensor : *model.mutable_units(0)->mutable_tensors()) tensor.set_frozen(true);
    }
    const Pipeline pipeline(model, order, kind, RandomRecipe(random));
    ASSERT_EQ(pipeline.Proven(), absl::OkStatus())
        << i << ": " << order.stages << " stages, " << order.microbatches << " microbatches, " << tied << " ties";
  }
  EXPECT_GT(ties, 400);
  EXPECT_GT(together, 100);
}

// The stages must not take one owner's gradient for another's.
TEST(CheckStages, RefusesTiesThatChangePlaces) {
  Inventory model = Untied(4);
  Tie(model, 0, 4), Tie(model, 1, 5);
  const Pipeline right(model, {.stages = 2, .chunks = 1, .microbatches = 2}, PIPELINE_SCHEDULE_1F1B, {});
  ASSERT_EQ(right.Proven(), absl::OkStatus());
  for (const OpKind kind : {OpKind::kReceiveTied, OpKind::kSendTiedGradient}) {
    Pipeline wrong = right;
    std::vector<Op*> moves;
    for (Op& op : wrong.schedules[1].ops) {
      if (op.kind == kind) moves.push_back(&op);
    }
    ASSERT_EQ(moves.size(), 2u);
    std::swap(moves[0]->unit, moves[1]->unit), std::swap(moves[0]->unit_end, moves[1]->unit_end);
    std::vector<StageSchedule> stages;
    for (size_t p = 0; p < 2; ++p) stages.push_back({&wrong.schedules[p], &wrong.inventories[p]});
    EXPECT_TRUE(absl::StrContains(CheckStages(stages).message(), "issues")) << CheckStages(stages);
  }
}

// At most stages - stage microbatches are between forward and backward (Narayanan et al. 2021, section 2.2.1), and one
// more waits in a slot.
TEST(Pipelines, OneForwardOneBackwardKeepsFewActivations) {
  const Pipeline pipeline(Untied(6), {.stages = 4, .chunks = 1, .microbatches = 16}, PIPELINE_SCHEDULE_1F1B, {});
  for (size_t stage = 0; stage < 4; ++stage) {
    int live = 0, most = 0;
    for (const Op& op : pipeline.schedules[stage].ops) {
      if (op.unit != 0) continue;
      if (op.kind == OpKind::kForward) most = std::max(most, ++live);
      if (op.kind == OpKind::kBackward) --live;
    }
    EXPECT_EQ(most, 4 - static_cast<int>(stage));
    EXPECT_LE(pipeline.schedules[stage].activation_slots, most + 2) << stage;
  }
}

// All activations wait in slots for their backwards, the first two gradients in further ones, and each later gradient
// in the one of two that is free: those of the first two microbatches.
TEST(Pipelines, GPipeReceivesIntoTheFirstFreeSlots) {
  const auto slots = [](uint32_t microbatches) {
    const Pipeline pipeline(Untied(1), {.stages = 3, .chunks = 1, .microbatches = microbatches},
                            PIPELINE_SCHEDULE_GPIPE, {});
    std::vector<int32_t> all;
    for (const Op& op : pipeline.schedules[1].ops) {
      if (Traits(op.kind).slots == SlotPool::kActivations) all.push_back(op.slot);
    }
    EXPECT_EQ(pipeline.schedules[1].activation_slots, static_cast<int32_t>(microbatches) + 2);
    return all;
  };
  EXPECT_EQ(slots(6), (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 0, 1}));
  const std::vector<int32_t> many = slots(50'000);
  ASSERT_EQ(many.size(), 100'000u);
  EXPECT_EQ(many[49'999], 49'999);
  EXPECT_EQ(many[50'000], 50'000);
  EXPECT_EQ(many[50'001], 50'001);
  EXPECT_EQ(many[50'002], 0);
  EXPECT_EQ(many[99'999], 1);
}

// A microbatch is kept until the gradients of its weights: on every stage at most as many as on the first one of 1F1B
// (Qi et al. 2024, section 2.3). What a split backward keeps in between is counted.
TEST(Pipelines, ZeroBubbleH1KeepsAsManyAsTheFirstStageOf1F1B) {
  const Inventory model = Untied(6);
  const Pipeline pipeline(model, {.stages = 4, .chunks = 1, .microbatches = 16}, PIPELINE_SCHEDULE_ZERO_BUBBLE, {});
  for (size_t stage = 0; stage < 4; ++stage) {
    const int32_t block = stage == 0 ? 1 : 0;
    ASSERT_TRUE(SplitsBackward(pipeline.inventories[stage].units(block)));
    int live = 0, most = 0;
    for (const Op& op : pipeline.schedules[stage].ops) {
      if (op.unit != block) continue;
      if (op.kind == OpKind::kForward) most = std::max(most, ++live);
      if (op.kind == OpKind::kBackwardWeights) --live;
      EXPECT_NE(op.kind, OpKind::kBackward);
    }
    EXPECT_EQ(most, 4) << stage;
    EXPECT_EQ(live, 0) << stage;
  }
}

TEST(Pipelines, AHalfBackwardIsRefused) {
  const Pipeline right(Untied(5), {.stages = 2, .chunks = 1, .microbatches = 3}, PIPELINE_SCHEDULE_ZERO_BUBBLE, {});
  ASSERT_EQ(right.Proven(), absl::OkStatus());
  for (const OpKind kind : {OpKind::kBackwardInputs, OpKind::kBackwardWeights}) {
    for (size_t i = 0; i < right.schedules[0].ops.size(); ++i) {
      if (right.schedules[0].ops[i].kind != kind) continue;
      Pipeline wrong = right;
      wrong.schedules[0].ops[i] = {.kind = OpKind::kSnapshot, .stream = Stream::kCompute};
      EXPECT_NE(wrong.Proven(), absl::OkStatus()) << i;
      wrong = right;  // the halves change places
      for (Op& op : wrong.schedules[0].ops) {
        if (op.unit != right.schedules[0].ops[i].unit || op.microbatch != right.schedules[0].ops[i].microbatch)
          continue;
        if (op.kind == OpKind::kBackwardInputs) {
          op.kind = OpKind::kBackwardWeights;
        } else if (op.kind == OpKind::kBackwardWeights) {
          op.kind = OpKind::kBackwardInputs;
        }
      }
      EXPECT_NE(wrong.Proven(), absl::OkStatus()) << i;
    }
  }
}

// All passes take one unit of time: the bubble of 1F1B is (P - 1)(F + B + W), that of ZB-H1 (P - 1)(F + B - W) (Qi et
// al. 2024, section 2.3). With recomputation a forward comes before each B, on the critical path.
TEST(Pipelines, TheBubbleIsThePublishedOne) {
  constexpr uint32_t kStages = 4, kMicrobatches = 12;
  // As many blocks a stage, so that stages are equal: embedding and head are free, and go with the first and last.
  Inventory model = Untied(8);
  for (Unit& unit : *model.mutable_units()) unit.set_forward_flops(unit.kind() == "gpt2.block" ? 1 : 1e-3);
  const auto seconds = [&](PipelineSchedule kind, bool recompute, uint32_t chunks = 1) {
    ScheduleRecipe recipe;
    recipe.recompute = recompute;
    const Pipeline pipeline(model, {.stages = kStages, .chunks = chunks, .microbatches = kMicrobatches}, kind, recipe);
    std::vector<std::vector<OpCost>> costs;
    std::vector<StageCosts> stages;
    for (size_t p = 0; p < kStages; ++p) {
      std::vector<OpCost>& of = costs.emplace_back();
      for (const Op& op : pipeline.schedules[p].ops) {
        const bool block = op.unit >= 0 && pipeline.inventories[p].units(op.unit).kind() == "gpt2.block";
        of.push_back({.work = block ? Traits(op.kind).forwards / 2 : 0});  // two blocks a stage
      }
    }
    for (size_t p = 0; p < kStages; ++p) stages.push_back({&pipeline.schedules[p], &costs[p]});
    return SimulateStages(stages, Sharing::kLinks)[0].seconds;
  };
  EXPECT_NEAR(seconds(PIPELINE_SCHEDULE_1F1B, false), 3 * kMicrobatches + (kStages - 1) * 3, 1e-9);
  EXPECT_NEAR(seconds(PIPELINE_SCHEDULE_ZERO_BUBBLE, false), 3 * kMicrobatches + (kStages - 1) * 1, 1e-9);
  // In a V the last stage begins P - 1 chunks of half a stage after the first, and no one waits any more.
  EXPECT_NEAR(seconds(PIPELINE_SCHEDULE_ZERO_BUBBLE, false, 2), 3 * kMicrobatches + (kStages - 1) * 0.5, 1e-9);
  EXPECT_NEAR(seconds(PIPELINE_SCHEDULE_1F1B, true), 4 * kMicrobatches + (kStages - 1) * 4, 1e-9);
  EXPECT_NEAR(seconds(PIPELINE_SCHEDULE_ZERO_BUBBLE, true), 4 * kMicrobatches + (kStages - 1) * 2, 1e-9);
}

// Every op of an edge and every wait is needed.
TEST(Pipelines, NothingOfAnEdgeIsNeedless) {
  struct Case {
    uint32_t chunks;
    Inventory model;
    ScheduleRecipe recipe;
    PipelineSchedule kind = PIPELINE_SCHEDULE_INTERLEAVED;
  };
  const ScheduleRecipe freed{
      .parameters = Parameters::kFreed, .gradients = Gradients::kOwned, .sharded = true, .replicated = true};
  for (const auto& [chunks, model, recipe, kind] :
       std::vector<Case>{{1, Untied(5), {}},
                         {2, Untied(5), {}},
                         {1, Tied(5), {}},
                         {2, Tied(5), {}},
                         {2, Tied(5), freed},
                         {1, Untied(5), {}, PIPELINE_SCHEDULE_ZERO_BUBBLE},
                         {1, Tied(5), {}, PIPELINE_SCHEDULE_ZERO_BUBBLE},
                         {1, Tied(5), freed, PIPELINE_SCHEDULE_ZERO_BUBBLE},
                         {2, Untied(5), {}, PIPELINE_SCHEDULE_ZERO_BUBBLE},
                         {2, Tied(5), freed, PIPELINE_SCHEDULE_ZERO_BUBBLE}}) {
    const OrderOptions order{.stages = 2, .chunks = chunks, .microbatches = 5};
    const Pipeline right(model, order, kind, recipe);
    ASSERT_EQ(right.Proven(), absl::OkStatus());
    int removed = 0;
    for (size_t p = 0; p < right.schedules.size(); ++p) {
      for (size_t i = 0; i < right.schedules[p].ops.size(); ++i) {
        const Op& op = right.schedules[p].ops[i];
        if (Traits(op.kind).edge != EdgeUse::kNone) {
          Pipeline wrong = right;
          wrong.schedules[p].ops[i] = {.kind = OpKind::kSnapshot, .stream = op.stream, .waits = op.waits};
          EXPECT_NE(wrong.Proven(), absl::OkStatus()) << Print(op, right.inventories[p]);
        }
        for (size_t w = 0; w < op.waits.size(); ++w) {
          Pipeline wrong = right;
          wrong.schedules[p].ops[i].waits.erase(wrong.schedules[p].ops[i].waits.begin() + static_cast<long>(w));
          EXPECT_NE(wrong.Proven(), absl::OkStatus()) << "stage " << p << ", op " << i << " without waiting for "
                                                      << op.waits[w] << ": " << Print(op, right.inventories[p]);
          ++removed;
        }
      }
    }
    EXPECT_GT(removed, 30);
  }
}

TEST(CheckStages, RefusesWhatDoesNotFit) {
  const Pipeline right(Untied(4), {.stages = 2, .chunks = 1, .microbatches = 3}, PIPELINE_SCHEDULE_1F1B, {});
  ASSERT_EQ(right.Proven(), absl::OkStatus());
  struct Case {
    std::string why;
    std::function<void(Pipeline&)> spoil;
  };
  const auto find = [](Schedule& s, OpKind kind, int32_t microbatch) {
    return std::find_if(s.ops.begin(), s.ops.end(),
                        [&](const Op& op) { return op.kind == kind && op.microbatch == microbatch; });
  };
  const std::vector<Case> cases = {
      {"stage 0 issues SendActivation h.1 m1",
       [&](Pipeline& p) {
         find(p.schedules[0], OpKind::kSendActivation, 0)->microbatch = 7;
         find(p.schedules[0], OpKind::kSendActivation, 1)->microbatch = 0;
         find(p.schedules[0], OpKind::kSendActivation, 7)->microbatch = 1;
       }},
      {"issues nothing",
       [&](Pipeline& p) { p.schedules[1].ops.erase(find(p.schedules[1], OpKind::kReceiveActivation, 2)); }},
      {"another stage of its group has none",
       [&](Pipeline& p) { find(p.schedules[1], OpKind::kReduceScalars, -1)->group = kShardGroup; }},
      {"issues SendActivation", [&](Pipeline& p) { p.inventories[1].mutable_chunks(0)->set_input_bytes(4); }},
      // Each waits for the other: stage 1 sends the first gradient only after it has received everything.
      {"the stages block each other",
       [&](Pipeline& p) {
         Schedule& s = p.schedules[1];
         const auto send = find(s, OpKind::kSendGradient, 0), last = find(s, OpKind::kReceiveActivation, 2);
         send->waits.push_back(static_cast<int32_t>(last - s.ops.begin()));
         Schedule& first = p.schedules[0];
         const auto forward = find(first, OpKind::kForward, 2), gradient = find(first, OpKind::kReceiveGradient, 0);
         forward->waits.push_back(static_cast<int32_t>(gradient - first.ops.begin()));
       }},
  };
  for (const Case& test : cases) {
    Pipeline wrong = right;
    test.spoil(wrong);
    std::vector<StageSchedule> stages;
    for (size_t p = 0; p < 2; ++p) stages.push_back({&wrong.schedules[p], &wrong.inventories[p]});
    const std::string message(CheckStages(stages).message());
    EXPECT_TRUE(absl::StrContains(message, test.why)) << message << "\nexpected: " << test.why;
  }
}

TEST(Edges, EachOnceAndTheSameOnBothSides) {
  const StageOfUnit interleaved = {0, 1, 2, 0, 1, 2};
  const std::vector<GroupSpec> all = Edges(Untied(4), interleaved);
  ASSERT_EQ(all.size(), 6u) << "0 to 1, 1 to 2, 2 to 0, and back";
  EXPECT_EQ(Print(all[4]), "stage 2 to 0");
  for (uint32_t stage = 0; stage < 3; ++stage) {
    const StageEdges own = EdgesOf(Untied(4), interleaved, stage);
    for (size_t g = kGroups; g < own.groups.size(); ++g) {
      EXPECT_NE(std::find(all.begin(), all.end(), own.groups[g]), all.end());
      EXPECT_TRUE(own.groups[g].from == static_cast<int32_t>(stage) || own.groups[g].to == static_cast<int32_t>(stage));
    }
  }
  const StageEdges first = EdgesOf(Untied(4), interleaved, 0);
  ASSERT_EQ(first.of_chunk.size(), 2u);
  EXPECT_EQ(first.of_chunk[0].receive, -1) << "the model begins there";
  EXPECT_EQ(Print(first.groups[static_cast<size_t>(first.of_chunk[1].receive)]), "stage 2 to 0");
  EXPECT_TRUE(EdgesOf(Untied(1), {0, 0, 0}, 0).of_chunk.empty());
}

}  // namespace
}  // namespace muster::pipeline
