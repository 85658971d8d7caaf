// Ranks that share each sequence, as threads of this test that run the trainer's whole loop: what each reads, and that
// together they train and go on as one rank does.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "worker/collectives/memory_key_value.h"
#include "worker/trainer/fake_trainer_server.h"
#include "worker/trainer/link.h"
#include "worker/trainer/loop.h"
#include "worker/trainer/sample.h"
#include "worker/trainer/setup.h"
#include "worker/trainer/weights.h"

namespace muster::trainer {
namespace {

struct Shape {
  uint32_t ranks = 1, context = 1, tensor = 1;
};

// Every third step validates and leaves a checkpoint.
JobSpec JobOn(const Bench& bench, const Shape& shape, uint64_t steps) {
  JobSpec spec = bench.MakeJob();
  Train& train = *spec.mutable_train();
  if (shape.ranks > shape.tensor) {
    train.mutable_strategy()->mutable_zero()->set_stage(2);
    train.mutable_strategy()->mutable_zero()->set_placement(PLACEMENT_RAGGED);
  }
  if (shape.context > 1) train.mutable_parallel()->set_context(shape.context);
  if (shape.tensor > 1) train.mutable_parallel()->set_tensor(shape.tensor);
  train.mutable_optimizer()->mutable_lr_schedule()->mutable_constant();
  train.mutable_data()->set_validation(bench.Path("val.bin"));
  train.mutable_validation()->set_every_steps(3);
  train.mutable_validation()->set_sequences(5);
  train.mutable_checkpoint()->set_every_steps(3);
  train.mutable_batch()->set_microbatch(2);
  train.set_steps(steps);
  return spec;
}

// What rank 0 reports of a generation, which goes on from the checkpoints before it.
std::vector<MetricPoint> MetricsOn(Bench& bench, const JobSpec& spec, const Shape& shape, uint64_t generation) {
  collectives::MemoryKeyValue rendezvous;
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < shape.ranks; ++rank) {
    threads.emplace_back([&, rank] {
      Assignment assignment = bench.Assign(spec, generation, shape.ranks, rank);
      if (generation > 1) bench.Publish(assignment);
      std::filesystem::create_directories(bench.RankDir(assignment));
      Link::Options options;
      options.socket = bench.worker().socket();
      options.key = assignment.key();
      Link link(options);
      const auto ended = TrainRank(assignment, bench.RankDir(assignment), link, rendezvous, [] { return false; }, {});
      ASSERT_TRUE(ended.ok()) << "rank " << rank << ": " << ended.status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<MetricPoint> points;
  for (const Record& record : bench.Records(bench.Assign(spec, generation, shape.ranks, 0))) {
    if (record.has_metrics()) points.push_back(record.metrics());
  }
  return points;
}

void ExpectSame(const MetricPoint& seen, const MetricPoint& expected) {
  EXPECT_EQ(seen.step(), expected.step());
  EXPECT_NEAR(seen.loss(), expected.loss(), 1e-5 * expected.loss()) << seen.step();
  EXPECT_NEAR(seen.gradient_norm(), expected.gradient_norm(), 1e-4 * expected.gradient_norm()) << seen.step();
  EXPECT_EQ(seen.has_validation_loss(), expected.has_validation_loss()) << seen.step();
  EXPECT_NEAR(seen.validation_loss(), expected.validation_loss(), 1e-5 * expected.validation_loss()) << seen.step();
  EXPECT_NEAR(seen.tokens_per_second() * seen.step_seconds(), 8 * 16, 1e-6) << "of all of them";
  const double flops = expected.model_flops_per_second() * expected.step_seconds();
  EXPECT_NEAR(seen.model_flops_per_second() * seen.step_seconds(), flops, 1e-3 * flops) << "of all of them";
}

// Two pairs of ranks: token k is k, a sample has 16 and a step four samples.
TEST(ContextRanks, ReadTheirTokensOfTheSamplesThatTheyShare) {
  std::vector<uint16_t> tokens(129);
  std::iota(tokens.begin(), tokens.end(), 0);
  Bench bench;
  JobSpec spec = JobOn(bench, {4, 2}, 1);
  Train& train = *spec.mutable_train();
  train.mutable_data()->set_tokens(bench.WriteTokens("places.bin", tokens));
  train.mutable_data()->set_order(DATA_ORDER_SEQUENTIAL);
  train.mutable_batch()->set_sequences(4);
  const struct {
    uint64_t first;                 // of the samples
    std::vector<int64_t> of_first;  // inputs of that one
  } kRanks[] = {{0, {0, 1, 2, 3, 12, 13, 14, 15}},
                {0, {4, 5, 6, 7, 8, 9, 10, 11}},
                {2, {32, 33, 34, 35, 44, 45, 46, 47}},
                {2, {36, 37, 38, 39, 40, 41, 42, 43}}};
  collectives::MemoryKeyValue rendezvous;
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      const absl::StatusOr<Rank> made = trainer::SetUp(bench.Assign(spec, 1, 4, rank), rendezvous, nullptr);
      ASSERT_TRUE(made.ok()) << made.status();
      const strategies::Share share = strategies::ShareOf(4, made->program.layout.mesh, rank);
      EXPECT_EQ(share.first, kRanks[rank].first) << rank;
      EXPECT_EQ(share.sequences, 2u) << rank;
      const engine::Batch batch = made->samples->Read(share.first, share.sequences).value();
      const at::Tensor inputs = batch.tensors["inputs"], targets = batch.tensors["targets"];
      ASSERT_EQ(inputs.sizes(), (std::vector<int64_t>{2, 8})) << rank;
      for (size_t i = 0; i < 8; ++i) {
        const int64_t place = kRanks[rank].of_first[i], at = static_cast<int64_t>(i);
        EXPECT_EQ(inputs[0][at].item<int64_t>(), place) << rank;
        EXPECT_EQ(inputs[1][at].item<int64_t>(), place + 16) << rank << ": of the next sample";
        EXPECT_EQ(targets[0][at].item<int64_t>(), place + 1) << rank;
      }
      EXPECT_TRUE(made->ranks.groups[kWorldGroup]->Barrier().ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Two pairs that share sequences, then one rank, then two tensor ranks whose pairs do: each goes on from what the ones
// before it have written.
TEST(ContextRanks, TrainAndGoOnAsOneRankDoes) {
  Bench bench;
  const Shape shapes[] = {{4, 2}, {}, {4, 2, 2}};
  std::vector<MetricPoint> seen;
  double evaluated = 0;
  for (uint64_t generation = 1; generation <= 3; ++generation) {
    const Shape& shape = shapes[generation - 1];
    for (MetricPoint& point : MetricsOn(bench, JobOn(bench, shape, 3 * generation), shape, generation))
      seen.push_back(std::move(point));
    if (generation > 1) continue;
    auto model = LoadForInference(bench.Path("checkpoints"), 1, "", [](auto&&...) {});
    ASSERT_TRUE(model.ok()) << model.status();
    const absl::StatusOr<Evaluated> found = Evaluate(*model, bench.Path("val.bin"), 5, nullptr);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(found->targets, 5u * 16);
    evaluated = found->loss;
    std::string text;
    ASSERT_EQ(
        Sample(*model->engine, model->inventory, nullptr, {.prompt = "the quick brown", .tokens = 20, .temperature = 0},
               [&](std::string_view more) { return text += more, true; }),
        absl::OkStatus());
    EXPECT_EQ(text.size(), 20u) << "beyond what one of the ranks has, and beyond the context";
  }
  Bench other;
  const std::vector<MetricPoint> expected = MetricsOn(other, JobOn(other, {}, 9), {}, 1);
  ASSERT_EQ(seen.size(), 9u);
  ASSERT_EQ(expected.size(), 9u);
  for (size_t i = 0; i < 9; ++i) ExpectSame(seen[i], expected[i]);
  EXPECT_NEAR(evaluated, expected[2].validation_loss(), 1e-5 * evaluated);
}

}  // namespace
}  // namespace muster::trainer
