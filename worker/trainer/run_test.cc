// A trainer process under a fake worker: what it does with its assignment, its commands and its records.
#include <signal.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/checkpoint.h"
#include "common/rank_exit.h"
#include "data/tokenizer_origin.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/wait.h"
#include "testing/without_file_override.h"
#include "worker/collectives/memory_key_value.h"
#include "worker/trainer/fake_trainer_server.h"
#include "worker/trainer/link.h"
#include "worker/trainer/loop.h"

namespace muster::trainer {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<MetricPoint> Metrics(const std::vector<Record>& records) {
  std::vector<MetricPoint> points;
  for (const Record& record : records) {
    if (record.has_metrics()) points.push_back(record.metrics());
  }
  return points;
}

std::vector<std::string> WrittenNames(const std::vector<Record>& records) {
  std::vector<std::string> names;
  for (const Record& record : records) {
    if (record.has_checkpoint()) names.push_back(record.checkpoint().directory());
  }
  return names;
}

JobSpec Endless(const Bench& bench) {
  JobSpec spec = bench.MakeJob();
  spec.mutable_train()->set_steps(1'000'000);
  spec.mutable_train()->mutable_checkpoint()->set_every_steps(1'000'000);
  return spec;
}

// Somebody changes a link after the worker has looked at the job's paths.
TEST(Run, FilesAreOpenedBelowTheRootsOnly) {
  namespace fs = std::filesystem;
  Bench bench;
  for (const char* folder : {"data", "runs/a", "elsewhere"}) fs::create_directories(bench.Path(folder));
  const std::vector<std::string> roots = {"--data-roots", bench.Path("data"), "--checkpoint-roots", bench.Path("runs")};
  fs::copy_file(bench.Path("train.bin"), bench.Path("data/train.bin"));
  fs::create_symlink("train.bin", bench.Path("data/tokens"));
  JobSpec spec = Endless(bench);
  spec.mutable_train()->mutable_checkpoint()->set_every_steps(10);
  spec.mutable_train()->mutable_data()->set_tokens(bench.Path("data/tokens"));
  spec.mutable_train()->mutable_checkpoint()->set_path(bench.Path("runs/a/checkpoints"));
  const Assignment assignment = bench.Assign(spec, 1);
  Process trainer = bench.Start(assignment, roots);
  ASSERT_TRUE(Eventually([&] { return !checkpoint::List(bench.Path("runs/a/checkpoints")).empty(); })) << trainer.Log();
  fs::rename(bench.Path("runs/a"), bench.Path("runs/b"));
  fs::create_directory_symlink(bench.Path("elsewhere"), bench.Path("runs/a"));
  EXPECT_EQ(trainer.Wait(), 1);
  EXPECT_TRUE(fs::is_empty(bench.Path("elsewhere")));

  fs::remove(bench.Path("runs/a"));
  fs::remove(bench.Path("data/tokens"));
  fs::create_symlink(bench.Path("train.bin"), bench.Path("data/tokens"));
  Process refused = bench.Start(bench.Assign(spec, 2), roots);
  EXPECT_EQ(refused.Wait(), 1);
  EXPECT_THAT(refused.LastLine(), AllOf(HasSubstr("data/tokens"), HasSubstr("is not below " + bench.Path("data")),
                                        HasSubstr("--data-roots")));
}

TEST(Run, TrainsToTheEndAndRecordsEveryStep) {
  Bench bench;
  JobSpec spec = bench.MakeJob();
  spec.mutable_train()->mutable_data()->set_validation(bench.Path("val.bin"));
  spec.mutable_train()->mutable_validation()->set_every_steps(15);
  spec.mutable_train()->mutable_validation()->set_sequences(20);
  const Assignment assignment = bench.Assign(spec, 1);
  Process trainer = bench.Start(assignment);
  ASSERT_EQ(trainer.Wait(), 0) << trainer.Log();

  const std::vector<Record> records = bench.Records(assignment);
  ASSERT_EQ(records.size(), 1u + 40 + 4 + 1);
  for (size_t i = 0; i < records.size(); ++i) EXPECT_EQ(records[i].sequence(), i + 1);
  ASSERT_TRUE(records.front().has_running());
  EXPECT_EQ(records.front().running().resumed_step(), 0u);
  EXPECT_GT(records.front().running().flops_per_second(), 1e8);
  EXPECT_EQ(records.front().running().schedule_digest(), assignment.schedule_digest());
  ASSERT_TRUE(records.back().has_finished());
  EXPECT_EQ(records.back().finished().step(), 40u);
  EXPECT_THAT(WrittenNames(records),
              ElementsAre("step-0000000010-g1", "step-0000000020-g1", "step-0000000030-g1", "step-0000000040-g1"));

  const std::vector<MetricPoint> points = Metrics(records);
  for (size_t i = 0; i < points.size(); ++i) {
    const MetricPoint& point = points[i];
    EXPECT_EQ(point.step(), i + 1);
    EXPECT_TRUE(point.has_time() && point.has_loss() && point.has_gradient_norm() && point.has_learning_rate());
    EXPECT_GT(point.step_seconds(), 0);
    EXPECT_NEAR(point.tokens_per_second() * point.step_seconds(), 8 * 16, 1e-6);
    EXPECT_GT(point.peak_memory_bytes(), 1u << 18);
    EXPECT_EQ(point.has_validation_loss(), i + 1 == 15 || i + 1 == 30 || i + 1 == 40);
  }
  EXPECT_NEAR(points[0].loss(), 5.545, 0.1) << "ln 256 before anything is learnt";
  EXPECT_LT(points[39].loss(), 4);
  EXPECT_NEAR(points[0].learning_rate(), 3e-3 / 5, 1e-9);
  EXPECT_LT(points[39].validation_loss(), points[14].validation_loss());

  // Each record holds the data cursor.
  const auto last = checkpoint::Checkpoint::Open(bench.Path("checkpoints/step-0000000040-g1")).value();
  EXPECT_EQ(last.manifest().job(), "small-x7f2");
  EXPECT_EQ(last.manifest().samples_consumed(), 40u * 8);
  EXPECT_EQ(last.manifest().spec().SerializeAsString(), spec.SerializeAsString());
  for (const char* line : {
           " info  trainer  training job=small-x7f2 generation=1 rank=0 from_step=0 steps=40 ",
           " checkpoint written job=small-x7f2 generation=1 rank=0 step=40 checkpoint=step-0000000040-g1 ",
           " finished job=small-x7f2 generation=1 rank=0 step=40\n",
       }) {
    EXPECT_THAT(trainer.Log(), HasSubstr(line));
  }
}

// With the next step issued before the result of the one before is read, as on a GPU.
TEST(Run, OneStepAheadChangesNoRecord) {
  std::vector<std::vector<Record>> runs;
  for (const bool ahead : {false, true}) {
    Bench bench;
    JobSpec spec = bench.MakeJob();
    spec.mutable_train()->mutable_data()->set_validation(bench.Path("val.bin"));
    spec.mutable_train()->mutable_validation()->set_every_steps(15);
    spec.mutable_train()->mutable_validation()->set_sequences(20);
    const Assignment assignment = bench.Assign(spec, 1);
    Process trainer =
        bench.Start(assignment, ahead ? std::vector<std::string>{"--streams"} : std::vector<std::string>());
    ASSERT_EQ(trainer.Wait(), 0) << trainer.Log();
    runs.push_back(bench.Records(assignment));
    const auto last = checkpoint::Checkpoint::Open(bench.Path("checkpoints/step-0000000040-g1")).value();
    EXPECT_EQ(last.manifest().samples_consumed(), 40u * 8);
  }
  EXPECT_EQ(WrittenNames(runs[0]), WrittenNames(runs[1]));
  const std::vector<MetricPoint> by_step = Metrics(runs[0]), ahead = Metrics(runs[1]);
  ASSERT_EQ(ahead.size(), by_step.size());
  for (size_t i = 0; i < ahead.size(); ++i) {
    EXPECT_EQ(ahead[i].step(), i + 1);
    EXPECT_NEAR(ahead[i].loss(), by_step[i].loss(), 5e-6 * by_step[i].loss());
    EXPECT_EQ(ahead[i].learning_rate(), by_step[i].learning_rate());
    EXPECT_NEAR(ahead[i].validation_loss(), by_step[i].validation_loss(), 5e-6 * by_step[i].validation_loss());
  }
}

TEST(Run, OneStepAheadStopsAfterAWholeStep) {
  for (const bool checkpoint_first : {true, false}) {
    Bench bench;
    const Assignment assignment = bench.Assign(Endless(bench), 1);
    Process trainer = bench.Start(assignment, {"--streams"});
    ASSERT_TRUE(Eventually([&] { return bench.StepOf(assignment) > 5; })) << trainer.Log();
    bench.worker().SendStop(checkpoint_first);
    ASSERT_EQ(trainer.Wait(), 0) << trainer.Log();
    const std::vector<Record> records = bench.Records(assignment);
    const std::vector<MetricPoint> points = Metrics(records);
    for (size_t i = 0; i < points.size(); ++i) ASSERT_EQ(points[i].step(), i + 1);
    if (checkpoint_first) {
      ASSERT_TRUE(records.back().has_checkpoint());
      EXPECT_EQ(records.back().checkpoint().step(), points.back().step());
    } else {
      EXPECT_THAT(WrittenNames(records), IsEmpty());
    }
  }
}

TEST(Run, WithoutCheckpointsThereAreNone) {
  Bench bench;
  JobSpec spec = bench.MakeJob();
  spec.mutable_train()->clear_checkpoint();
  spec.mutable_train()->set_steps(5);
  const Assignment assignment = bench.Assign(spec, 1);
  Process trainer = bench.Start(assignment);
  ASSERT_EQ(trainer.Wait(), 0) << trainer.Log();
  const std::vector<Record> records = bench.Records(assignment);
  EXPECT_EQ(Metrics(records).size(), 5u);
  EXPECT_TRUE(records.back().has_finished());
  EXPECT_FALSE(std::filesystem::exists(bench.Path("checkpoints")));
}

TEST(Run, StopsOnRequest) {
  for (const bool checkpoint_first : {true, false}) {
    Bench bench;
    const Assignment assignment = bench.Assign(Endless(bench), 1);
    Process trainer = bench.Start(assignment);
    ASSERT_TRUE(Eventually([&] { return bench.StepOf(assignment) > 5; })) << trainer.Log();
    bench.worker().SendStop(checkpoint_first);
    ASSERT_EQ(trainer.Wait(), 0) << trainer.Log();
    const std::vector<Record> records = bench.Records(assignment);
    EXPECT_FALSE(records.back().has_finished()) << "stopped is not completed";
    const std::vector<MetricPoint> points = Metrics(records);
    if (checkpoint_first) {
      ASSERT_TRUE(records.back().has_checkpoint());
      EXPECT_EQ(records.back().checkpoint().step(), points.back().step());
      EXPECT_EQ(bench.NewestWeights(assignment.spec()).first, points.back().step());
    } else {
      EXPECT_THAT(WrittenNames(records), IsEmpty());
    }
  }
}

TEST(Run, SigtermIsAStopWithACheckpoint) {
  Bench bench;
  const Assignment assignment = bench.Assign(Endless(bench), 1);
  Process trainer = bench.Start(assignment);
  ASSERT_TRUE(Eventually([&] { return bench.StepOf(assignment) > 5; })) << trainer.Log();
  trainer.Signal(SIGTERM);
  ASSERT_EQ(trainer.Wait(), 0) << trainer.Log();
  EXPECT_TRUE(bench.Records(assignment).back().has_checkpoint());
}

TEST(Run, StopsWhileItWaitsForItsAssignment) {
  for (const bool by_signal : {true, false}) {
    Bench bench;
    std::filesystem::create_directory(bench.Path("rank"));
    Process trainer = StartTrainer({"run", "--socket", bench.worker().socket(), "--rank-dir", bench.Path("rank"),
                                    "--job", "j", "--generation", "1", "--rank", "0"},
                                   bench.Path("log"));
    ASSERT_TRUE(Eventually([&] { return bench.worker().attaches() > 0; })) << trainer.Log();
    by_signal ? trainer.Signal(SIGTERM) : bench.worker().SendStop(true);
    EXPECT_EQ(trainer.Wait(), 0) << trainer.Log();
  }
}

// Each ends the rank before its first step, with the cause in the last line of its log.
struct Refusal {
  const char* name;
  std::function<void(const Bench&, Assignment&)> spoil;
  std::vector<std::string> says;
  bool of_node;  // another node may do
  std::string failpoints = {};
};

class Refused : public ::testing::TestWithParam<Refusal> {};

TEST_P(Refused, BeforeTheFirstStep) {
  Bench bench;
  Assignment assignment = bench.Assign(bench.MakeJob(), 1);
  GetParam().spoil(bench, assignment);
  if (!GetParam().failpoints.empty()) setenv("MUSTER_FAILPOINTS", GetParam().failpoints.c_str(), 1);
  WithoutFileOverride([&] {
    Process trainer = bench.Start(assignment);
    EXPECT_EQ(trainer.Wait(), 1);
    const std::vector<Record> records = bench.Records(assignment);
    ASSERT_EQ(records.size(), 1u);
    EXPECT_TRUE(records[0].failed().refused()) << "a restart cannot help";
    EXPECT_EQ(records[0].failed().of_node(), GetParam().of_node);
    for (const std::string& part : GetParam().says) {
      EXPECT_THAT(trainer.LastLine(), HasSubstr(part));
      EXPECT_THAT(records[0].failed().message(), HasSubstr(part));
    }
  });
  unsetenv("MUSTER_FAILPOINTS");
}

Train& TrainOf(Assignment& a) { return *a.mutable_spec()->mutable_train(); }

// Says which tokenizer made a token file.
void RecordTokenizer(const std::string& tokens, const std::string& tokenizer) {
  TokenizerOrigin origin;
  origin.set_path(tokenizer);
  origin.set_sha256(tokenizer.substr(1));
  ASSERT_TRUE(data::WriteTokenizerOrigin(tokens, origin).ok());
}

INSTANTIATE_TEST_SUITE_P(
    Run, Refused,
    ::testing::Values(
        Refusal{"ScheduleOfAnotherBuild",
                [](const Bench&, Assignment& a) { a.set_schedule_digest("0123abcd"); },
                {"this trainer (muster 0.1.0) compiles the schedule", "the coordinator's build 0123abcd"},
                true},
        Refusal{"RoleOfAnotherBuild",
                [](const Bench&, Assignment& a) { a.mutable_role()->set_replica(1); },
                {"gives rank 0 shard 0 of replica 0", "the coordinator assigned rank 0 shard 0 of replica 1"},
                true},
        Refusal{"TableOfAnotherModel",
                [](const Bench&, Assignment& a) { a.mutable_table()->mutable_units(0)->set_unit("other"); },
                {"partition table: other: the model has embedding here"},
                false},
        Refusal{"StrategyNotBuiltYet",
                [](const Bench&, Assignment& a) { TrainOf(a).mutable_strategy()->clear_kind(); },
                {"strategy: none is not in this build yet"},
                false},
        Refusal{"NoTokens",
                [](const Bench&, Assignment& a) { TrainOf(a).mutable_data()->set_tokens("/none/train.bin"); },
                {"data.tokens: /none/train.bin: no such file on this machine (paths are those of the worker)"},
                true},
        Refusal{"TokenBeyondTheVocabulary",
                [](const Bench& bench, Assignment& a) {
                  std::vector<uint16_t> tokens(1000, 7);
                  tokens[123] = 300;
                  TrainOf(a).mutable_data()->set_tokens(bench.WriteTokens("bad.bin", tokens));
                },
                {"data.tokens: ", "token 300 at position 123", "vocabulary of 256"},
                false},
        Refusal{"ValidationTooShort",
                [](const Bench& bench, Assignment& a) {
                  TrainOf(a).mutable_data()->set_validation(bench.WriteTokens("v.bin", {1, 2, 3}));
                },
                {"data.validation: ", "holds 3 tokens, but one sample needs 17"},
                false},
        Refusal{"TokensThatMayNotBeRead",
                [](const Bench& bench, Assignment&) {
                  std::filesystem::permissions(bench.Path("train.bin"), std::filesystem::perms::none);
                },
                {"data.tokens: ", "train.bin: Permission denied"},
                true},
        Refusal{"ValidationOfAnotherTokenizer",
                [](const Bench& bench, Assignment& a) {
                  RecordTokenizer(bench.Path("train.bin"), "/a"), RecordTokenizer(bench.Path("val.bin"), "/b");
                  TrainOf(a).mutable_data()->set_validation(bench.Path("val.bin"));
                },
                {"data.validation: ", "val.bin was made with the tokenizer /b (sha256 b), but ",
                 "train.bin with the tokenizer /a (sha256 a): the same ids mean different text"},
                false},
        Refusal{"FullDisk",
                [](const Bench&, Assignment&) {},
                {"claiming checkpoint.path ", "no space left on the device"},
                true,
                "checkpoint.owner.create=ENOSPC"},
        Refusal{"CheckpointPathIsAFile",
                [](const Bench& bench, Assignment& a) {
                  TrainOf(a).mutable_checkpoint()->set_path(bench.Path("train.bin"));
                },
                {"checkpoint.path ", "train.bin"},
                false},
        Refusal{"CheckpointPathIsABrokenLink",
                [](const Bench& bench, Assignment& a) {
                  std::filesystem::create_symlink("nowhere", bench.Path("link"));
                  TrainOf(a).mutable_checkpoint()->set_path(bench.Path("link"));
                },
                {"checkpoint.path ", "/link is a broken symbolic link (to nowhere)"},
                false},
        Refusal{"CheckpointPathOfAnotherJob",
                [](const Bench& bench, Assignment&) {
                  ASSERT_TRUE(checkpoint::Claim(bench.Path("checkpoints"), {.job = "other-a2b3"}).ok());
                },
                {"checkpoint.path ", "belongs to job other-a2b3"},
                false},
        Refusal{"NoSuchCheckpoint",
                [](const Bench&, Assignment& a) { a.mutable_resume_from()->set_directory("step-0000000007-g1"); },
                {"no whole checkpoint is left", "step-0000000007-g1"},
                true}),
    [](const auto& info) { return info.param.name; });

// As deploy/ installs it: the folder of a machine's packages, with LibTorch, lies beside that of the programs.
TEST(Run, LibTorchIsLookedForBesideTheProgram) {
  std::ifstream file("worker/trainer/muster-trainer", std::ios::binary);
  const std::string program((std::istreambuf_iterator<char>(file)), {});
  EXPECT_NE(program.find("$ORIGIN/../site/torch/lib:"), std::string::npos);
}

TEST(Run, VersionsThatDoNotFitEndIt) {
  Bench bench;
  bench.worker().RefuseVersions();
  Process trainer = bench.Start(bench.Assign(bench.MakeJob(), 1));
  EXPECT_EQ(trainer.Wait(), 1);
  EXPECT_THAT(trainer.LastLine(), HasSubstr("versions do not fit"));
}

TEST(Run, ALossThatIsNotFiniteNamesItsStep) {
  Bench bench;
  JobSpec spec = bench.MakeJob();
  Optimizer& optimizer = *spec.mutable_train()->mutable_optimizer();
  optimizer.mutable_sgd()->set_momentum(0);
  optimizer.set_lr(1e30);
  optimizer.set_clip_norm(0);
  optimizer.mutable_lr_schedule()->mutable_constant();
  const Assignment assignment = bench.Assign(spec, 1);
  Process trainer = bench.Start(assignment);
  EXPECT_EQ(trainer.Wait(), kNonFiniteExitCode);
  const size_t done = Metrics(bench.Records(assignment)).size();
  EXPECT_THAT(trainer.LastLine(),
              AllOf(HasSubstr(absl::StrCat("step ", done + 1, ": the loss is ")), HasSubstr("lower optimizer.lr")));
  EXPECT_FALSE(bench.Records(assignment).back().has_finished());
}

// LibTorch throws where memory or a device fails.
TEST(Run, AnExceptionIsTheLastRecord) {
  Bench bench;
  const Assignment assignment = bench.Assign(bench.MakeJob(), 1);
  std::filesystem::create_directories(bench.RankDir(assignment));
  Link::Options options;
  options.socket = bench.worker().socket();
  options.key = assignment.key();
  Link link(options);
  collectives::MemoryKeyValue rendezvous;
  const auto thrown = []() -> bool { throw std::runtime_error("CUDA error: out of memory"); };
  const absl::StatusOr<Ended> ended = TrainRank(assignment, bench.RankDir(assignment), link, rendezvous, thrown);
  EXPECT_EQ(ended.status().code(), absl::StatusCode::kInternal);
  const std::vector<Record> records = bench.Records(assignment);
  ASSERT_FALSE(records.empty());
  EXPECT_EQ(records.back().failed().message(), "CUDA error: out of memory");
  EXPECT_FALSE(records.back().failed().refused());
}

// The ranks of other nodes end at the same time, and the job is stopped for them.
TEST(Run, ARefusalIsNoStop) {
  Bench bench;
  JobSpec spec = bench.MakeJob();
  spec.mutable_train()->mutable_data()->set_tokens(bench.Path("not-on-this-node.bin"));
  const Assignment assignment = bench.Assign(spec, 1);
  std::filesystem::create_directories(bench.RankDir(assignment));
  Link::Options options;
  options.socket = bench.worker().socket();
  options.key = assignment.key();
  Link link(options);
  collectives::MemoryKeyValue rendezvous;
  const absl::StatusOr<Ended> ended =
      TrainRank(assignment, bench.RankDir(assignment), link, rendezvous, /*terminated=*/[] { return true; });
  EXPECT_EQ(ended.status().code(), absl::StatusCode::kNotFound) << ended.status();
  const std::vector<Record> records = bench.Records(assignment);
  ASSERT_FALSE(records.empty());
  EXPECT_TRUE(records.back().failed().refused());
  EXPECT_TRUE(records.back().failed().of_node());
}

TEST(Run, GoesOnWhileTheWorkerIsAway) {
  Bench bench;
  const Assignment assignment = bench.Assign(Endless(bench), 1);
  Process trainer = bench.Start(assignment);
  ASSERT_TRUE(Eventually([&] { return bench.StepOf(assignment) > 5; })) << trainer.Log();
  bench.worker().Stop();
  const uint64_t then = bench.StepOf(assignment);
  EXPECT_TRUE(Eventually([&] { return bench.StepOf(assignment) > then + 50; })) << trainer.Log();
  EXPECT_THAT(trainer.Log(), HasSubstr("training continues"));
  const int before = bench.worker().attaches();
  bench.worker().Start();
  EXPECT_TRUE(Eventually([&] { return bench.worker().attaches() > before; })) << trainer.Log();
  const uint64_t back = bench.StepOf(assignment);
  EXPECT_TRUE(Eventually([&] { return bench.worker().reported_step() > back; })) << "the doorbell rings again";
  bench.worker().SendStop(false);
  EXPECT_EQ(trainer.Wait(), 0) << trainer.Log();
  const std::vector<MetricPoint> points = Metrics(bench.Records(assignment));
  for (size_t i = 0; i < points.size(); ++i) ASSERT_EQ(points[i].step(), i + 1) << "no step was lost";
}

}  // namespace
}  // namespace muster::trainer
