// What each replica keeps for itself, in checkpoints: on the same ranks, on others, and when compression is turned on
// or off. And which weights the ranks of a new job load.
#include "worker/trainer/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <set>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "models/inventory.h"
#include "strategies/hardware.h"
#include "testing/temporary_folder.h"
#include "testing/without_file_override.h"
#include "worker/collectives/memory_key_value.h"
#include "worker/collectives/threads.h"
#include "worker/engine/configure.h"
#include "worker/trainer/resume.h"

namespace muster::trainer {
namespace {

Train CompressedTrain(bool compressed) {
  Train train;
  Gpt2& g = *train.mutable_model()->mutable_gpt2();
  g.set_layers(1), g.set_heads(1), g.set_width(8), g.set_vocabulary(16), g.set_context(8);
  train.mutable_batch()->set_sequences(8);
  train.mutable_batch()->set_microbatch(1);
  train.mutable_optimizer()->mutable_sgd()->set_momentum(0.9);
  train.mutable_strategy()->mutable_ddp();
  if (!compressed) return train;
  TopK& top_k = *train.mutable_communication()->mutable_compression()->mutable_top_k();
  top_k.set_ratio(0.01), top_k.set_selection(SELECTION_EXACT), top_k.set_values(SENT_VALUES_FP32);
  top_k.set_momentum_correction(true);
  return train;
}

struct RankState {
  strategies::Layout layout;
  std::unique_ptr<engine::Engine> engine;
};
// A rank of so many, which takes no step.
RankState RankOf(const Train& train, uint32_t world, uint32_t rank, uint32_t on_node = 0) {
  Train own = train;
  if (on_node > 0) own.mutable_communication()->set_hierarchy(HIERARCHY_ALWAYS);
  const Inventory inventory = *models::MakeInventory(own);
  auto configured = engine::Configure(own, inventory, world, rank, on_node);
  EXPECT_TRUE(configured.ok()) << configured.status();
  // A group that no one else has joined.
  static const std::vector<std::unique_ptr<collectives::Group>> alone = collectives::MakeThreads(1, absl::Seconds(1));
  configured->config.groups.assign(configured->config.schedule.groups.size(), alone[0].get());
  auto engine = engine::Engine::Create(configured->config);
  EXPECT_TRUE(engine.ok()) << engine.status();
  return {*strategies::MakeLayout(own, inventory, strategies::FullNodes(world, on_node > 0 ? on_node : world, 0)),
          *std::move(engine)};
}

// Of every element: 1000 times the rank + 1, and so much for the kind.
float ValueOf(uint32_t rank, const std::string& kind) {
  return 1000.0f * static_cast<float>(rank + 1) + (kind == "momentum" ? 1.0f : 0.0f);
}

// The checkpoint that `world` ranks write whose own state has those values.
checkpoint::Checkpoint WrittenBy(const std::string& path, const Train& train, uint32_t world, uint32_t on_node = 0) {
  const checkpoint::StepName name{10, 1};
  EXPECT_TRUE(checkpoint::Begin(path, {"job"}, name).ok());
  Manifest manifest;
  for (uint32_t rank = 0; rank < world; ++rank) {
    const RankState state = RankOf(train, world, rank, on_node);
    for (engine::StateView& view : state.engine->State()) {
      if (view.replica >= 0 || view.kind == "momentum") {
        std::fill(view.values.begin(), view.values.end(), ValueOf(rank, view.kind));
      }
    }
    for (NamedState& kept : StatesOfReplicas(train, state.layout.mesh)) {
      if (rank == 0) *manifest.add_states() = std::move(kept);
    }
    if (rank > 0 && manifest.states().empty()) break;
    EXPECT_TRUE(checkpoint::WriteShard(path, name, rank, RunsToWrite(*state.engine, rank == 0, rank == 0)).ok());
    if (rank > 0) continue;
    *manifest.mutable_table() = state.layout.table;
    if (!manifest.states().empty()) manifest.set_replicas(world);
  }
  manifest.set_job("job"), manifest.set_step(10), manifest.set_generation(1);
  *manifest.mutable_inventory() = *models::MakeInventory(train);
  const auto written = checkpoint::Finish(path, manifest);
  EXPECT_TRUE(written.ok()) << written.status();
  return *checkpoint::Checkpoint::Open(path + "/" + name.Directory());
}

// The value of all elements of each kind; NaN where they differ.
std::map<std::string, float> LoadedBy(const checkpoint::Checkpoint& checkpoint, const RankState& rank) {
  const absl::Status loaded = Load(checkpoint, rank.layout, *rank.engine);
  EXPECT_TRUE(loaded.ok()) << loaded;
  std::map<std::string, float> values;
  for (const engine::StateView& view : rank.engine->State()) {
    if (view.kind == "parameter") continue;
    for (const float value : view.values) {
      const auto [at, first] = values.emplace(view.kind, value);
      if (at->second != value) at->second = NAN;
    }
  }
  return values;
}

using Values = std::map<std::string, float>;

TEST(StateOfReplicas, ComesBackOnTheSameRanks) {
  const TemporaryFolder folder;
  const Train train = CompressedTrain(true);
  const checkpoint::Checkpoint written = WrittenBy(folder.path(), train, 4);
  EXPECT_EQ(written.manifest().shards_size(), 4) << "a file of each replica";
  for (const uint32_t rank : {0u, 3u}) {
    const float own = 1000.0f * static_cast<float>(rank + 1);
    EXPECT_EQ(LoadedBy(written, RankOf(train, 4, rank)), (Values{{"residual", own}, {"momentum", own + 1}}));
  }
}

// 1000 + 2000 + 3000 + 4000 and four times 1, among those that have each element.
TEST(StateOfReplicas, IsDividedAmongOthers) {
  const TemporaryFolder folder;
  const Train train = CompressedTrain(true);
  const checkpoint::Checkpoint written = WrittenBy(folder.path(), train, 4);
  for (const uint32_t rank : {0u, 1u}) {
    EXPECT_EQ(LoadedBy(written, RankOf(train, 2, rank)), (Values{{"residual", 5000}, {"momentum", 5002}})) << rank;
  }
  EXPECT_EQ(LoadedBy(written, RankOf(train, 8, 5)), (Values{{"residual", 1250}, {"momentum", 1250.5}}));
  // Two nodes of two: each element is of two ranks, one on each.
  EXPECT_EQ(LoadedBy(written, RankOf(train, 4, 3, /*on_node=*/2)), (Values{{"residual", 5000}, {"momentum", 5002}}));
}

TEST(StateOfReplicas, OfTwoLevelsIsDividedAmongOthers) {
  const TemporaryFolder folder;
  const Train train = CompressedTrain(true);
  const checkpoint::Checkpoint written = WrittenBy(folder.path(), train, 4, /*on_node=*/2);
  EXPECT_EQ(LoadedBy(written, RankOf(train, 4, 2, 2)), (Values{{"residual", 3000}, {"momentum", 3001}}));
  // The first half of a bucket is of ranks 0 and 2, the second of 1 and 3: 1000 + 3000, and 2000 + 4000, over 2.
  const RankState flat = RankOf(train, 2, 0);
  ASSERT_TRUE(Load(written, flat.layout, *flat.engine).ok());
  std::map<float, int> seen;
  for (const engine::StateView& view : flat.engine->State()) {
    for (const float value : view.values) seen[view.kind == "residual" ? value : 2000.0f] += 1;
  }
  EXPECT_EQ(seen.size(), 2u);
  EXPECT_GT(seen[2000], 0);
  EXPECT_GT(seen[3000], 0);
}

// A bucket of the whole model is cut elsewhere than one of each unit: most ranks own other elements than before, and
// some tensors were divided. By element the ranks of node 0 had 1000 or 2000, those of node 1 3000 or 4000.
TEST(StateOfReplicas, OfTwoLevelsStaysOnItsNodeWhenBucketsChange) {
  Train of_units = CompressedTrain(true), whole = of_units;
  of_units.mutable_strategy()->mutable_ddp()->set_bucket_mib(1e-6);
  whole.mutable_strategy()->mutable_ddp()->set_bucket_mib(1000);
  using Counts = std::map<float, size_t>;  // of elements
  for (const auto& [writer, reader] : {std::pair(of_units, whole), std::pair(whole, of_units)}) {
    const TemporaryFolder folder;
    const checkpoint::Checkpoint written = WrittenBy(folder.path(), writer, 4, /*on_node=*/2);
    Counts before, after[2];
    for (uint32_t rank = 0; rank < 4; ++rank) {
      const RankState of_writer = RankOf(writer, 4, rank, 2), of_reader = RankOf(reader, 4, rank, 2);
      for (const engine::StateView& view : of_writer.engine->State()) {
        if (view.kind == "residual") before[ValueOf(rank, view.kind)] += view.values.size();
      }
      const absl::Status loaded = Load(written, of_reader.layout, *of_reader.engine);
      ASSERT_TRUE(loaded.ok()) << loaded;
      for (const engine::StateView& view : of_reader.engine->State()) {
        if (view.kind != "residual") continue;
        for (const float value : view.values) ++after[rank / 2][value];
      }
    }
    EXPECT_EQ(after[0], (Counts{{1000.0f, before[1000]}, {2000.0f, before[2000]}}));
    EXPECT_EQ(after[1], (Counts{{3000.0f, before[3000]}, {4000.0f, before[4000]}}));
    EXPECT_GT(before[1000], 0u);
    EXPECT_GT(before[2000], 0u);
  }
}

// Factors of another rank have another shape. They begin again, and what was not sent yet stays.
TEST(StateOfReplicas, FactorsOfAnotherRankBeginAgain) {
  const auto train_with = [](uint32_t rank) {
    Train train = CompressedTrain(true);
    train.mutable_communication()->mutable_compression()->mutable_power_sgd()->set_rank(rank);
    return train;
  };
  const TemporaryFolder folder;
  const checkpoint::Checkpoint written = WrittenBy(folder.path(), train_with(1), 4);
  // The optimizer's momentum is of rank 0's file.
  EXPECT_EQ(LoadedBy(written, RankOf(train_with(2), 4, 1)),
            (Values{{"residual", 2000}, {"momentum", 1001}, {"power_sgd_q", 0}}));
  EXPECT_EQ(LoadedBy(written, RankOf(train_with(2), 2, 1)),
            (Values{{"residual", 5000}, {"momentum", 1001}, {"power_sgd_q", 0}}));
}

// PowerSGD's factors, which are the same on all ranks that sum together, stay so on other ranks. Those of some rows of
// a tensor are found by the first of them.
TEST(StateOfReplicas, FactorsAreTheSameWhereRanksSumTogether) {
  Train train = CompressedTrain(true);
  train.mutable_communication()->mutable_compression()->mutable_power_sgd()->set_rank(1);
  using Factors = std::map<std::string, std::vector<float>>;
  const auto loaded = [&](const checkpoint::Checkpoint& checkpoint, uint32_t world, uint32_t rank, uint32_t on_node) {
    const RankState state = RankOf(train, world, rank, on_node);
    EXPECT_TRUE(Load(checkpoint, state.layout, *state.engine).ok());
    Factors factors;
    for (const engine::StateView& view : state.engine->State()) {
      if (view.kind == "power_sgd_q") factors[view.tensor] = {view.values.begin(), view.values.end()};
    }
    EXPECT_GE(factors.size(), 2u);
    return factors;
  };
  const TemporaryFolder flat_folder, levels_folder;
  const checkpoint::Checkpoint flat = WrittenBy(flat_folder.path(), train, 4),
                               levels = WrittenBy(levels_folder.path(), train, 4, /*on_node=*/2);
  int of_rows = 0;
  for (uint32_t rank = 0; rank < 4; ++rank) {
    for (const auto& [tensor, values] : loaded(levels, 4, rank, 2)) {
      EXPECT_EQ(values, std::vector<float>(values.size(), ValueOf(rank, "power_sgd_q"))) << tensor << " as written";
      of_rows += tensor.back() == ']' ? 1 : 0;
    }
  }
  EXPECT_GE(of_rows, 2) << "of both replicas of a place";
  EXPECT_EQ(loaded(flat, 4, 0, 2), loaded(flat, 4, 2, 2));
  EXPECT_EQ(loaded(flat, 4, 1, 2), loaded(flat, 4, 3, 2));
  EXPECT_EQ(loaded(levels, 4, 0, 0), loaded(levels, 4, 3, 0));
  for (const checkpoint::Checkpoint* checkpoint : {&flat, &levels}) {
    EXPECT_EQ(loaded(*checkpoint, 8, 1, 4), loaded(*checkpoint, 8, 5, 4));
    EXPECT_EQ(loaded(*checkpoint, 2, 0, 0), loaded(*checkpoint, 2, 1, 0));
  }
}

// By hand: GPT-2 of width 16 on two shards, of 1,648 elements of the block each. Before its fc [16, 64] are 1,024
// elements, so shard 1 begins in row 9.75 of it, and row 10 is the first that is whole.
TEST(StateOfReplicas, RowsOfAShardAreWholeOnes) {
  Train train = CompressedTrain(true);
  train.mutable_model()->mutable_gpt2()->set_width(16);
  train.mutable_strategy()->mutable_fsdp()->set_reshard(RESHARD_HYBRID);
  train.mutable_communication()->mutable_compression()->mutable_power_sgd()->set_rank(1);
  std::vector<std::string> factors[2];
  for (const uint32_t rank : {0u, 1u}) {
    const RankState state = RankOf(train, 4, rank, /*on_node=*/2);
    for (const engine::StateView& view : state.engine->State()) {
      if (view.kind == "power_sgd_q" && view.tensor.starts_with("h.0.")) factors[rank].push_back(view.tensor);
    }
  }
  EXPECT_THAT(factors[0],
              testing::ElementsAre("h.0.attn.c_attn.weight", "h.0.attn.c_proj.weight", "h.0.mlp.c_fc.weight"));
  EXPECT_THAT(factors[1], testing::ElementsAre("h.0.mlp.c_fc.weight[10:]", "h.0.mlp.c_proj.weight"));
}

// A momentum that was the optimizer's is divided among the replicas, and theirs are added up.
TEST(StateOfReplicas, MomentumIsTheOptimizersOrOfReplicas) {
  const TemporaryFolder folder, other;
  const Train compressed = CompressedTrain(true), exact = CompressedTrain(false);
  const checkpoint::Checkpoint of_optimizer = WrittenBy(folder.path(), exact, 2);
  EXPECT_EQ(of_optimizer.manifest().shards_size(), 1);
  EXPECT_EQ(LoadedBy(of_optimizer, RankOf(compressed, 4, 1)), (Values{{"residual", 0}, {"momentum", 1001.0f / 4}}));
  const checkpoint::Checkpoint of_replicas = WrittenBy(other.path(), compressed, 2);
  EXPECT_EQ(LoadedBy(of_replicas, RankOf(exact, 4, 1)), (Values{{"momentum", 3002}}));
  EXPECT_EQ(LoadedBy(of_replicas, RankOf(compressed, 1, 0)), (Values{{"momentum", 3002}}))
      << "a rank alone sums nothing";
}

// Two nodes that see the folder of a running job each in its own way: with another list of its steps, or with damage.
// Every parameter of a step is the step's number.
class InitialWeights : public testing::Test {
 protected:
  Train train_ = CompressedTrain(false);

  std::string FolderOf(uint32_t rank) const { return absl::StrCat(folder_.path(), "/node-", rank); }
  std::string ShardOf(uint32_t rank, uint64_t step) const {
    return absl::StrCat(FolderOf(rank), "/", checkpoint::StepName{step, 1}.Directory(), "/shard-00000.safetensors");
  }
  // As node `rank` sees it.
  void Write(uint32_t rank, uint64_t step) const {
    const RankState state = RankOf(train_, 1, 0);
    const std::vector<checkpoint::TensorRun> runs = ParameterRuns(*state.engine);
    for (const checkpoint::TensorRun& run : runs) {
      std::fill(run.values.begin(), run.values.end(), static_cast<float>(step));
    }
    Manifest manifest;
    manifest.set_job("job"), manifest.set_step(step), manifest.set_generation(1);
    *manifest.mutable_spec()->mutable_train() = train_;
    *manifest.mutable_inventory() = *models::MakeInventory(train_);
    *manifest.mutable_table() = state.layout.table;
    const auto written = checkpoint::Write(FolderOf(rank), manifest, runs);
    ASSERT_TRUE(written.ok()) << written.status();
  }
  // By rank: the step whose weights it has, or its error.
  std::vector<absl::StatusOr<float>> Load() const {
    const auto groups = collectives::MakeThreads(2);
    collectives::MemoryKeyValue values;
    std::vector<absl::StatusOr<float>> steps(2);
    std::vector<std::thread> ranks;
    for (uint32_t rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&, rank] { steps[rank] = LoadOn(rank, *groups[rank], values); });
    }
    for (std::thread& rank : ranks) rank.join();
    return steps;
  }

 private:
  // Where rank 0 names a folder of its node, rank 1 has its own.
  class OfNode final : public collectives::KeyValue {
   public:
    OfNode(collectives::KeyValue& values, std::string named, std::string own)
        : values_(values), named_(std::move(named)), own_(std::move(own)) {}
    absl::Status Set(const std::string& name, const std::string& value) override { return values_.Set(name, value); }
    absl::StatusOr<std::string> Wait(const std::string& name, absl::Duration timeout) override {
      const absl::StatusOr<std::string> value = values_.Wait(name, timeout);
      return value.ok() ? absl::StrReplaceAll(*value, {{named_, own_}}) : value;
    }

   private:
    collectives::KeyValue& values_;
    const std::string named_, own_;
  };

  absl::StatusOr<float> LoadOn(uint32_t rank, collectives::Group& world, collectives::KeyValue& values) const {
    Assignment assignment;
    assignment.mutable_key()->set_rank(rank);
    *assignment.mutable_spec()->mutable_train() = train_;
    assignment.mutable_spec()->mutable_train()->mutable_model()->set_from(FolderOf(rank));
    const RankState state = RankOf(train_, 2, rank);
    OfNode rendezvous(values, FolderOf(0), FolderOf(rank));
    if (absl::Status status = LoadInitial(assignment, &world, rendezvous, *state.engine); !status.ok()) return status;
    std::set<float> steps;
    for (const checkpoint::TensorRun& run : ParameterRuns(*state.engine)) {
      steps.insert(run.values.begin(), run.values.end());
    }
    EXPECT_EQ(steps.size(), 1u) << "of one step";
    return *steps.begin();
  }

  const TemporaryFolder folder_;
};

TEST_F(InitialWeights, AreOfTheStepsThatRank0Sees) {
  Write(0, 100), Write(1, 100);
  Write(1, 200);  // after rank 0 has listed the folder
  for (const absl::StatusOr<float>& step : Load()) EXPECT_EQ(step.value(), 100);
}

TEST_F(InitialWeights, AreOfAStepThatAllRanksSee) {
  Write(0, 100), Write(1, 100);
  Write(0, 200);  // the other node's cache of the folder is older
  for (const absl::StatusOr<float>& step : Load()) EXPECT_EQ(step.value(), 100);
}

TEST_F(InitialWeights, AreOfAStepThatAllRanksFindWhole) {
  for (const uint32_t damaged : {0u, 1u}) {
    for (const uint32_t rank : {0u, 1u}) {
      std::filesystem::remove_all(FolderOf(rank));
      Write(rank, 100), Write(rank, 200);
    }
    std::filesystem::resize_file(ShardOf(damaged, 200), 1000);
    for (const absl::StatusOr<float>& step : Load()) EXPECT_EQ(step.value(), 100) << damaged;
  }
}

// They would be dropped, or scaled by another number.
TEST_F(InitialWeights, HaveNoAdaptersThatTheJobDoesNotCompute) {
  Lora& lora = *train_.mutable_lora();
  lora.set_rank(2), lora.set_alpha(4);
  Write(0, 100), Write(1, 100);
  for (const absl::StatusOr<float>& step : Load()) EXPECT_EQ(step.value(), 100);
  lora.set_alpha(2);
  const auto refused = [&](const std::string& says) {
    for (const absl::StatusOr<float>& step : Load()) {
      EXPECT_TRUE(absl::IsInvalidArgument(step.status())) << step.status();
      EXPECT_TRUE(absl::StartsWith(step.status().message(), "model.from: ")) << step.status();
      EXPECT_THAT(std::string(step.status().message()), testing::HasSubstr(says));
    }
  };
  refused(
      " has an adapter of h.0.attn.c_attn.weight with rank 2 and alpha 4, and this job has one with rank 2 and alpha "
      "2");
  train_.clear_lora();
  refused(" has an adapter of h.0.attn.c_attn.weight with rank 2 and alpha 4, and this job has none there");
}

// The other one does not wait for folders that are never named.
TEST_F(InitialWeights, ARankThatMayNotListItsFolderEndsAllOfThem) {
  namespace fs = std::filesystem;
  Write(0, 100), Write(1, 100);
  fs::permissions(FolderOf(0), fs::perms::none);
  WithoutFileOverride([&] {
    const std::vector<absl::StatusOr<float>> steps = Load();
    EXPECT_EQ(steps[0].status().code(), absl::StatusCode::kPermissionDenied) << steps[0].status();
    EXPECT_EQ(steps[1].status().code(), absl::StatusCode::kUnavailable) << steps[1].status();
    for (const absl::StatusOr<float>& step : steps) {
      EXPECT_TRUE(absl::StartsWith(step.status().message(), "model.from: ")) << step.status();
    }
  });
  fs::permissions(FolderOf(0), fs::perms::owner_all);
}

}  // namespace
}  // namespace muster::trainer
