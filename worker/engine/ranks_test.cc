// Several ranks (threads of this process) give the same losses, gradient norms and weights as one rank.
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "models/inventory.h"
#include "strategies/compile.h"
#include "worker/collectives/threads.h"
#include "worker/engine/configure.h"
#include "worker/engine/engine.h"
#include "worker/tasks/language_model.h"
#include "worker/units/row_check.h"

namespace muster::engine {
namespace {

constexpr uint64_t kTrialContext = 16, kTrialVocabulary = 61;
constexpr int kSteps = 50;

struct Trial {
  uint32_t ranks = 1;
  uint32_t sequences = 8;   // a step, over all ranks
  uint32_t microbatch = 8;  // of a rank
  bool sgd = false;
  double bucket_mib = 0.05;  // a few buckets

  std::string Name() const {
    return absl::StrCat(ranks, " ranks, ", sequences, " by ", microbatch, sgd ? ", SGD" : ", AdamW");
  }
};

Config MakeConfig(const Trial& trial, uint32_t rank) {
  Config config;
  Gpt2& g = *config.train.mutable_model()->mutable_gpt2();
  g.set_layers(2), g.set_heads(2), g.set_width(36), g.set_vocabulary(kTrialVocabulary), g.set_context(kTrialContext);
  if (trial.ranks > 1) {
    config.train.mutable_strategy()->mutable_ddp()->set_bucket_mib(trial.bucket_mib);
  } else {
    config.train.mutable_strategy()->mutable_single();
  }
  config.train.mutable_batch()->set_sequences(trial.sequences);
  config.train.mutable_batch()->set_microbatch(trial.microbatch);
  Optimizer& o = *config.train.mutable_optimizer();
  if (trial.sgd) {
    o.mutable_sgd()->set_momentum(0.9);
  } else {
    o.mutable_adamw()->set_beta1(0.9);
    o.mutable_adamw()->set_beta2(0.999);
    o.mutable_adamw()->set_eps(1e-8);
  }
  o.set_weight_decay(0.1);
  o.set_clip_norm(1.0);
  config.train.set_seed(3);
  return Configure(config.train, *models::MakeInventory(config.train.model()), trial.ranks, rank)->config;
}

// The batch of a step, for any number of ranks.
std::vector<uint32_t> Sequences(uint64_t sequences, uint64_t step) {
  std::mt19937 random(static_cast<uint32_t>(step));
  std::vector<uint32_t> tokens(sequences * (kTrialContext + 1));
  for (uint32_t& t : tokens) t = static_cast<uint32_t>(random() % kTrialVocabulary);
  return tokens;
}

// Calls `body` for each rank on a thread of its own.
void OnRanks(const Trial& trial, const std::function<void(uint32_t, Engine&)>& body,
             absl::Duration timeout = absl::Seconds(60)) {
  const auto groups = collectives::MakeThreads(static_cast<int>(trial.ranks), timeout);
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < trial.ranks; ++rank) {
    threads.emplace_back([&, rank] {
      Config config = MakeConfig(trial, rank);
      if (trial.ranks > 1) config.groups = {groups[rank].get(), nullptr, groups[rank].get()};
      const auto engine = Engine::Create(config);
      ASSERT_TRUE(engine.ok()) << engine.status();
      body(rank, **engine);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

absl::StatusOr<StepResult> TakeStep(const Trial& trial, uint32_t rank, Engine& engine, const Votes& votes = {}) {
  const std::vector<uint32_t> all = Sequences(trial.sequences, engine.step());
  const strategies::Share share = strategies::ShareOf(trial.sequences, trial.ranks, rank);
  const auto own =
      absl::MakeSpan(all).subspan(share.first * (kTrialContext + 1), share.sequences * (kTrialContext + 1));
  return engine.Step(tasks::TokenBatch(share.sequences, own, trial.sequences), trial.sgd ? 0.1 : 1e-3, votes);
}

struct Curve {
  std::vector<double> losses, norms;
  std::vector<float> weights;
};

// Each rank's results.
std::vector<Curve> Train(const Trial& trial) {
  std::vector<Curve> curves(trial.ranks);
  OnRanks(trial, [&](uint32_t rank, Engine& engine) {
    Curve& curve = curves[rank];
    for (int step = 0; step < kSteps; ++step) {
      const auto result = TakeStep(trial, rank, engine);
      ASSERT_TRUE(result.ok()) << result.status();
      curve.losses.push_back(result->loss);
      curve.norms.push_back(result->gradient_norm);
    }
    for (const StateView& view : engine.State()) {
      if (view.kind == "parameter") curve.weights.insert(curve.weights.end(), view.values.begin(), view.values.end());
    }
  });
  return curves;
}

double Relative(const std::vector<double>& a, const std::vector<double>& b) {
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]) / std::abs(b[i]));
  return most;
}

double Distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - b[i], 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference / norm);
}

// Limits that real mistakes exceed (a forgotten division by the ranks, a gradient reduced twice or too early).
void ExpectSame(const Curve& seen, const Curve& expected, bool sgd, const std::string& what) {
  ASSERT_EQ(seen.losses.size(), expected.losses.size()) << what;
  EXPECT_LE(Relative(seen.losses, expected.losses), 5e-6) << what;
  EXPECT_LE(Relative(seen.norms, expected.norms), 3e-5) << what;
  EXPECT_LE(Distance(seen.weights, expected.weights), sgd ? 1e-6 : 6e-5) << what;
}

TEST(Ranks, TrainAsOneDoes) {
  for (const bool sgd : {false, true}) {
    // 8 divides by 1, 2 and 4; 7 by none. Accumulation 1 and 3, and what follows where a rank has less.
    for (const auto& [sequences, parts] : std::vector<std::pair<uint32_t, uint32_t>>{{8, 1}, {8, 3}, {7, 1}, {7, 3}}) {
      const Curve alone = Train({.ranks = 1, .sequences = sequences, .microbatch = sequences, .sgd = sgd})[0];
      for (const uint32_t ranks : {2u, 3u, 4u}) {
        const uint32_t share = (sequences + ranks - 1) / ranks;
        const Trial trial{ranks, sequences, (share + parts - 1) / parts, sgd};
        const std::vector<Curve> curves = Train(trial);
        ExpectSame(curves[0], alone, sgd, trial.Name());
        for (const Curve& curve : curves) {
          EXPECT_EQ(curve.losses, curves[0].losses) << trial.Name();
          EXPECT_EQ(curve.weights, curves[0].weights) << trial.Name() << ": replicas differ";
        }
      }
    }
  }
}

TEST(Ranks, WithoutASequenceTakePartAllTheSame) {
  const Curve alone = Train({.ranks = 1, .sequences = 2})[0];
  ExpectSame(Train({.ranks = 4, .sequences = 2})[3], alone, false, "two of four ranks have nothing");
}

TEST(Ranks, TheBucketsSizeChangesNothing) {
  const Trial one{.ranks = 2, .bucket_mib = 1000}, each{.ranks = 2, .bucket_mib = 1e-6};
  EXPECT_EQ(Train(one)[0].weights, Train(each)[1].weights);
}

TEST(Ranks, EqualRunsAreBitEqual) {
  const Trial trial{.ranks = 3, .sequences = 7, .microbatch = 2};
  EXPECT_EQ(Train(trial)[0].weights, Train(trial)[2].weights);
}

TEST(Ranks, VotesReachAllAfterTheSameStep) {
  const Trial trial{.ranks = 3, .sequences = 6};
  OnRanks(trial, [&](uint32_t rank, Engine& engine) {
    for (int step = 0; step < 4; ++step) {
      Votes own;
      if (rank == 1 && step == 2) own.stop = 1;
      if (rank == 0 && step >= 1) own.checkpoint = 1;
      if (step == 3) own.stop_without_checkpoint = 1024;  // as many as a rank of a large job would see
      const auto result = TakeStep(trial, rank, engine, own);
      ASSERT_TRUE(result.ok()) << result.status();
      const Votes all{.stop = step == 2 ? 1u : 0u,
                      .stop_without_checkpoint = step == 3 ? 3 * 1024u : 0u,
                      .checkpoint = step >= 1 ? 1u : 0u};
      EXPECT_EQ(result->votes, all) << step;
    }
  });
}

TEST(Ranks, EvaluateTogether) {
  const std::vector<uint32_t> all = Sequences(5, 1);
  double alone = 0;
  OnRanks({.ranks = 1},
          [&](uint32_t, Engine& engine) { alone = engine.Evaluate(tasks::TokenBatch(5, all, 5)).value().loss; });
  const Trial trial{.ranks = 3};
  OnRanks(trial, [&](uint32_t rank, Engine& engine) {
    const strategies::Share share = strategies::ShareOf(5, 3, rank);
    const auto own =
        absl::MakeSpan(all).subspan(share.first * (kTrialContext + 1), share.sequences * (kTrialContext + 1));
    EXPECT_NEAR(engine.Evaluate(tasks::TokenBatch(share.sequences, own, 5)).value().loss, alone, 1e-6 * alone);
  });
}

TEST(Ranks, OneThatNeverComesIsNamedWithStepAndOp) {
  const Trial trial{.ranks = 2};
  OnRanks(
      trial,
      [&](uint32_t rank, Engine& engine) {
        ASSERT_TRUE(TakeStep(trial, rank, engine).ok());
        if (rank == 1) return;
        const absl::Status status = TakeStep(trial, rank, engine).status();
        EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
        EXPECT_THAT(std::string(status.message()), testing::HasSubstr("rank 0, step 2, GradientNorm after "));
        EXPECT_THAT(std::string(status.message()), testing::HasSubstr(": waiting for "));
        EXPECT_THAT(std::string(status.message()), testing::HasSubstr("rank 1 did not come"));
        EXPECT_EQ(TakeStep(trial, rank, engine).status().code(), absl::StatusCode::kUnavailable);
      },
      absl::Milliseconds(300));
}

// What each rank would choose by its own times differs; all take rank 0's choice.
TEST(Ranks, AgreeOnAttention) {
  const std::vector<std::string>& names = units::AttentionNames();
  for (size_t first = 0; first < names.size(); ++first) {
    const auto groups = collectives::MakeThreads(3);
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        Config config = MakeConfig({.ranks = 3}, rank);
        config.groups = {groups[rank].get(), nullptr, groups[rank].get()};
        config.try_attention = [&, rank](const units::AttentionShape&) {
          EXPECT_EQ(rank, 0u) << "only rank 0 tries";
          return units::AttentionChoice{.name = names[first], .trials = {}};
        };
        const auto engine = Engine::Create(config);
        ASSERT_TRUE(engine.ok()) << engine.status();
        EXPECT_EQ((*engine)->attention(), names[first]);
        ASSERT_TRUE((*engine)->UseAttention(names[0]).ok());
        EXPECT_EQ((*engine)->attention(), names[0]);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

// On two ranks that do not train. `attention` is what both of them then have.
void ExpectAttention(const ::muster::Train& train, int tries, const std::string& attention) {
  const Inventory inventory = *models::MakeInventory(train.model());
  const auto world = collectives::MakeThreads(2), others = collectives::MakeThreads(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      Config config = Configure(train, inventory, 2, static_cast<uint32_t>(rank))->config;
      config.groups.assign(config.schedule.groups.size(), others[rank].get());
      config.groups[kWorldGroup] = world[rank].get();
      config.try_attention = [&, rank](const units::AttentionShape& shape) {
        EXPECT_EQ(rank, tries);
        EXPECT_EQ(shape.heads, 2);
        return units::AttentionChoice{.name = "flash", .trials = {}};
      };
      config.check_rows = [] { return absl::OkStatus(); };
      const auto engine = Engine::Create(config);
      ASSERT_TRUE(engine.ok()) << engine.status();
      EXPECT_EQ((*engine)->attention(), attention) << rank;
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Ranks, TheFirstStageWithAttentionChoosesForAll) {
  ::muster::Train train = MakeConfig({}, 0).train;
  train.mutable_parallel()->set_pipeline(2);
  train.mutable_pipeline()->set_schedule(PIPELINE_SCHEDULE_1F1B);
  train.mutable_pipeline()->set_chunks(1);
  train.mutable_pipeline()->add_cut("h.1");
  ExpectAttention(train, /*tries=*/0, "flash");
  train.mutable_pipeline()->set_cut(0, "h.0");  // the first stage has the embedding alone
  ExpectAttention(train, /*tries=*/1, "flash");
  train.mutable_pipeline()->set_cut(0, "head");
  ExpectAttention(train, /*tries=*/0, "flash");
}

TEST(Ranks, WithoutAttentionNoRankTriesIt) {
  ::muster::Train train = MakeConfig({.ranks = 2}, 0).train;
  Resnet& m = *train.mutable_model()->mutable_resnet();
  m.set_depth(8), m.set_width(3), m.set_image(8), m.set_classes(6);
  *train.mutable_model() = *models::Resolve(train.model());
  ExpectAttention(train, /*tries=*/-1, units::AttentionNames().back());
}

// The trial has the model's own heads of queries, of keys and values, and the window of most of its blocks.
TEST(Ranks, AttentionIsTriedWithTheShapeOfMostBlocks) {
  const auto tried = [](const Model& model, Dtype compute) {
    Config config;
    *config.train.mutable_model() = model;
    config.train.mutable_strategy()->mutable_single();
    config.train.mutable_batch()->set_sequences(6);
    config.train.mutable_batch()->set_microbatch(3);
    config.train.mutable_precision()->set_compute(compute);
    config.train.set_deterministic(false);
    config.train.mutable_optimizer()->mutable_sgd();
    config = Configure(config.train, *models::MakeInventory(model), 1, 0)->config;
    units::AttentionShape shape;
    config.try_attention = [&](const units::AttentionShape& given) {
      shape = given;
      return units::AttentionChoice{.name = "flash", .trials = {}};
    };
    EXPECT_TRUE(Engine::Create(config).ok());
    return shape;
  };
  Model llama, gpt2;
  Llama& m = *llama.mutable_llama();
  m.set_layers(3), m.set_heads(6), m.set_key_value_heads(2), m.set_width(24), m.set_head_width(10), m.set_inner(20);
  m.set_vocabulary(32), m.set_context(16), m.set_window(5), m.add_full_layers(1);
  units::AttentionShape shape = tried(llama, DTYPE_BF16);
  EXPECT_EQ(shape.sequences, 3);
  EXPECT_EQ(shape.tokens, 16);
  EXPECT_EQ(shape.heads, 6);
  EXPECT_EQ(shape.key_value_heads, 2);
  EXPECT_EQ(shape.width, 10);
  EXPECT_EQ(shape.window, 5);
  EXPECT_EQ(shape.dtype, at::kBFloat16);
  EXPECT_FALSE(shape.deterministic);
  m.add_full_layers(2);
  EXPECT_EQ(tried(llama, DTYPE_FP32).window, 0) << "two of three attend to all";
  Gpt2& g = *gpt2.mutable_gpt2();
  g.set_layers(1), g.set_heads(3), g.set_width(12), g.set_vocabulary(32), g.set_context(8);
  shape = tried(gpt2, DTYPE_FP32);
  EXPECT_EQ(shape.heads, 3);
  EXPECT_EQ(shape.key_value_heads, 0) << "as many as of queries";
  EXPECT_EQ(shape.width, 4);
}

// Row programs that are wrong on one GPU must not make ranks compute by different code.
TEST(Ranks, AllTakeRankZerosCheckOfTheRowPrograms) {
  const Trial trial{.ranks = 3};
  // The gradient norm of a step by three ranks, and their notes.
  const auto run = [&](const std::function<absl::Status()>& check, std::vector<std::string>* notes = nullptr) {
    const auto groups = collectives::MakeThreads(3);
    std::vector<double> norms(3);
    std::vector<std::thread> threads;
    if (notes != nullptr) notes->resize(3);
    for (uint32_t rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        Config config = MakeConfig(trial, rank);
        config.groups = {groups[rank].get(), nullptr, groups[rank].get()};
        config.try_attention = [](const units::AttentionShape&) {
          return units::AttentionChoice{.name = "flash", .trials = {}};
        };
        config.device_rows = true, config.portable = check == nullptr;
        config.check_rows = [&, rank] {
          EXPECT_EQ(rank, 0u) << "only rank 0 checks";
          return check();
        };
        const auto engine = Engine::Create(config);
        ASSERT_TRUE(engine.ok()) << engine.status();
        const auto result = TakeStep(trial, rank, **engine);
        ASSERT_TRUE(result.ok()) << result.status();
        norms[rank] = result->gradient_norm;
        if (notes != nullptr) (*notes)[rank] = absl::StrJoin((*engine)->Notes(), "; ");
      });
    }
    for (std::thread& thread : threads) thread.join();
    return norms[0];
  };
  std::vector<std::string> notes;
  const double portable = run(nullptr), programs = run([] { return absl::OkStatus(); }, &notes);
  EXPECT_NE(programs, portable) << "this test cannot see which units run";
  for (const std::string& note : notes) EXPECT_THAT(note, testing::Not(testing::HasSubstr("operators alone")));
  EXPECT_EQ(run([] { return absl::InternalError("row program Norm is off by 0.5"); }, &notes), portable);
  EXPECT_THAT(notes[0], testing::HasSubstr("Norm is off by 0.5"));
  for (const std::string& note : notes) EXPECT_THAT(note, testing::HasSubstr("operators alone"));
  const auto cannot_run = []() -> absl::Status {
    TORCH_CHECK(false, "no kernel image is available");
    return absl::OkStatus();
  };
  EXPECT_EQ(run(cannot_run, &notes), portable);
  EXPECT_THAT(notes[0], testing::HasSubstr("no kernel image is available"));
}

// On a CPU the programs run by a loop.
TEST(Ranks, TheRowProgramsPassTheirCheck) {
  Config config = MakeConfig({}, 0);
  config.try_attention = [](const units::AttentionShape&) {
    return units::AttentionChoice{.name = "flash", .trials = {}};
  };
  config.check_rows = [] { return units::CheckRowPrograms(at::kCPU); };
  config.device_rows = true;
  const auto engine = Engine::Create(config);
  ASSERT_TRUE(engine.ok()) << engine.status();
  // Of attention and of GEMMs.
  EXPECT_EQ((*engine)->Notes().size(), 2u) << absl::StrJoin((*engine)->Notes(), "; ");
}

TEST(Ranks, AScheduleOfGroupsNeedsThem) {
  EXPECT_EQ(Engine::Create(MakeConfig({.ranks = 2}, 0)).status().code(), absl::StatusCode::kInvalidArgument);
  const auto groups = collectives::MakeThreads(2);
  Config config = MakeConfig({.ranks = 2}, 0);
  config.groups = {groups[0].get(), nullptr, groups[0].get()};
  for (Op& op : config.schedule.ops) {
    if (op.kind == OpKind::kReduceScalars) {  // the first unit once more
      op.kind = OpKind::kAllReduce;
      op.unit = 0;
      op.unit_end = 1;
    }
  }
  EXPECT_FALSE(Engine::Create(config).ok());
}

}  // namespace
}  // namespace muster::engine
