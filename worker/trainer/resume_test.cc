// After a kill, a full disk or a damaged checkpoint, a trainer ends with the weights of an undisturbed run.
#include <signal.h>
#include <sys/resource.h>

#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/adopt.h"
#include "checkpoint/checkpoint.h"
#include "data/tokenizer_origin.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/inventory.h"
#include "testing/wait.h"
#include "testing/without_file_override.h"
#include "worker/trainer/fake_trainer_server.h"

namespace muster::trainer {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint64_t kSteps = 300;

JobSpec TheJob(const Bench& bench) {
  JobSpec spec = bench.MakeJob();
  spec.mutable_train()->set_steps(kSteps);
  spec.mutable_train()->mutable_checkpoint()->set_every_steps(20);
  return spec;
}

// One run serves all tests.
const std::string& Undisturbed() {
  static const std::string weights = [] {
    Bench bench;
    const Assignment assignment = bench.Assign(TheJob(bench), 1);
    Process trainer = bench.Start(assignment);
    EXPECT_EQ(trainer.Wait(), 0) << trainer.Log();
    const auto [step, sum] = bench.NewestWeights(assignment.spec());
    EXPECT_EQ(step, kSteps);
    return sum;
  }();
  return weights;
}

void ExpectSameEnd(const Bench& bench, const JobSpec& spec) {
  const auto [step, sum] = bench.NewestWeights(spec);
  EXPECT_EQ(step, kSteps);
  EXPECT_EQ(sum, Undisturbed());
}

TEST(Resume, KilledAtSeveralStepsEndsWithTheSameWeights) {
  Bench bench;
  const JobSpec spec = TheJob(bench);
  uint64_t generation = 0;
  uint64_t begun_at = 0;
  for (const uint64_t step : {3, 41, 60, 85, 199}) {
    Assignment assignment = bench.Assign(spec, ++generation);
    bench.Publish(assignment);
    Process trainer = bench.Start(assignment);
    ASSERT_TRUE(Eventually([&] { return bench.StepOf(assignment) >= step || !trainer.Running(); }));
    ASSERT_TRUE(trainer.Running()) << trainer.Log();
    trainer.Signal(SIGKILL);
    EXPECT_EQ(trainer.Wait(), 128 + SIGKILL);
    const std::vector<Record> records = bench.Records(assignment);
    ASSERT_FALSE(records.empty());
    begun_at = records.front().running().resumed_step();
    EXPECT_EQ(begun_at, assignment.resume_from().step());
  }
  EXPECT_GE(begun_at, 60u);
  Assignment assignment = bench.Assign(spec, ++generation);
  bench.Publish(assignment);
  Process trainer = bench.Start(assignment);
  ASSERT_EQ(trainer.Wait(), 0) << trainer.Log();
  ExpectSameEnd(bench, spec);
  const auto last = checkpoint::Checkpoint::Open(
      absl::StrCat(bench.Path("checkpoints/"), checkpoint::StepName{kSteps, generation}.Directory()));
  EXPECT_EQ(last.value().manifest().samples_consumed(), kSteps * 8);
}

// Frozen weights are in bf16 in memory, in the host's copy of a checkpoint and when they are read, and fp32 in files.
TEST(Resume, AdaptersOverFrozenWeightsInBf16EndWithTheSameWeights) {
  const auto job = [](const Bench& bench) {
    JobSpec spec = TheJob(bench);
    Train& train = *spec.mutable_train();
    train.set_steps(80);
    train.mutable_precision()->set_compute(DTYPE_BF16);
    train.mutable_lora()->set_rank(2), train.mutable_lora()->set_alpha(2);
    return spec;
  };
  Bench undisturbed, disturbed;
  Process whole = undisturbed.Start(undisturbed.Assign(job(undisturbed), 1));
  ASSERT_EQ(whole.Wait(), 0) << whole.Log();
  const JobSpec spec = job(disturbed);
  Assignment assignment = disturbed.Assign(spec, 1);
  Process first = disturbed.Start(assignment);
  // A checkpoint is written beside later steps, on a busy machine for many of them.
  ASSERT_TRUE(Eventually([&] { return disturbed.NewestWeights(spec).first >= 20 || !first.Running(); }));
  first.Signal(SIGKILL);
  first.Wait();
  assignment = disturbed.Assign(spec, 2);
  disturbed.Publish(assignment);
  ASSERT_GE(assignment.resume_from().step(), 20u);
  Process second = disturbed.Start(assignment);
  ASSERT_EQ(second.Wait(), 0) << second.Log();
  EXPECT_EQ(disturbed.NewestWeights(spec), undisturbed.NewestWeights(job(undisturbed)));
}

TEST(Resume, StoppedAndResumedEndsWithTheSameWeights) {
  Bench bench;
  const JobSpec spec = TheJob(bench);
  Assignment assignment = bench.Assign(spec, 1);
  Process trainer = bench.Start(assignment);
  ASSERT_TRUE(Eventually([&] { return bench.StepOf(assignment) >= 33; })) << trainer.Log();
  trainer.Signal(SIGTERM);
  ASSERT_EQ(trainer.Wait(), 0) << trainer.Log();
  const uint64_t stopped = bench.NewestWeights(spec).first;
  EXPECT_GE(stopped, 33u);
  assignment = bench.Assign(spec, 2);
  bench.Publish(assignment);
  Process again = bench.Start(assignment);
  ASSERT_EQ(again.Wait(), 0) << again.Log();
  EXPECT_EQ(bench.Records(assignment).front().running().resumed_step(), stopped);
  ExpectSameEnd(bench, spec);
}

// The job's first generation, killed; the newest of its checkpoints is then cut. All of them, newest first.
std::vector<checkpoint::StepName> KillAndDamageTheNewest(Bench& bench, const JobSpec& spec) {
  const Assignment assignment = bench.Assign(spec, 1);
  Process trainer = bench.Start(assignment);
  EXPECT_TRUE(Eventually([&] { return bench.StepOf(assignment) >= 65; })) << trainer.Log();
  trainer.Signal(SIGKILL);
  trainer.Wait();
  auto steps = checkpoint::List(bench.Path("checkpoints"));
  if (!steps.empty()) {
    fs::resize_file(absl::StrCat(bench.Path("checkpoints/"), steps[0].Directory(), "/shard-00000.safetensors"), 5000);
  }
  return steps;
}

TEST(Resume, ADamagedCheckpointIsPassedOverLoudly) {
  Bench bench;
  const JobSpec spec = TheJob(bench);
  const auto steps = KillAndDamageTheNewest(bench, spec);
  ASSERT_GE(steps.size(), 2u);
  Assignment assignment = bench.Assign(spec, 2);
  bench.Publish(assignment);
  ASSERT_EQ(assignment.resume_from().directory(), steps[0].Directory());
  Process again = bench.Start(assignment);
  ASSERT_EQ(again.Wait(), 0) << again.Log();
  EXPECT_THAT(again.Log(), AllOf(HasSubstr("corrupt checkpoint skipped"), HasSubstr("it was cut"),
                                 HasSubstr(absl::StrCat(steps[0].Directory(), "/shard-00000.safetensors"))));
  EXPECT_EQ(bench.Records(assignment).front().running().resumed_step(), steps[1].step);
  ExpectSameEnd(bench, spec);
}

// It is whole: going on from an older one would throw steps away because of a mode.
TEST(Resume, ACheckpointThatMayNotBeReadIsNotPassedOver) {
  Bench bench;
  const JobSpec spec = TheJob(bench);
  const auto steps = KillAndDamageTheNewest(bench, spec);
  ASSERT_GE(steps.size(), 2u);
  const std::string newest = absl::StrCat(bench.Path("checkpoints/"), steps[0].Directory(), "/shard-00000.safetensors");
  fs::permissions(newest, fs::perms::none);
  Assignment assignment = bench.Assign(spec, 2);
  bench.Publish(assignment);
  WithoutFileOverride([&] {
    Process again = bench.Start(assignment);
    EXPECT_NE(again.Wait(), 0);
    EXPECT_THAT(again.Log(), AllOf(HasSubstr(newest + ": Permission denied, this process runs as user "),
                                   Not(HasSubstr("corrupt checkpoint skipped"))));
  });
  const std::vector<Record> records = bench.Records(assignment);
  ASSERT_FALSE(records.empty());
  EXPECT_TRUE(records.back().failed().refused() && records.back().failed().of_node()) << "another node may read it";
}

TEST(Resume, AJobThatWasDoneOnlySaysSo) {
  Bench bench;
  JobSpec spec = bench.MakeJob();
  spec.mutable_train()->set_steps(10);
  Assignment assignment = bench.Assign(spec, 1);
  Process trainer = bench.Start(assignment);
  ASSERT_EQ(trainer.Wait(), 0) << trainer.Log();
  assignment = bench.Assign(spec, 2);
  bench.Publish(assignment);
  Process again = bench.Start(assignment);
  ASSERT_EQ(again.Wait(), 0) << again.Log();
  const std::vector<Record> records = bench.Records(assignment);
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0].running().resumed_step(), 10u);
  EXPECT_EQ(records[1].finished().step(), 10u);
}

TEST(Resume, AnotherModelOptimizerOrJobIsRefused) {
  Bench bench;
  const JobSpec spec = bench.MakeJob();
  Assignment assignment = bench.Assign(spec, 1);
  Process trainer = bench.Start(assignment);
  ASSERT_EQ(trainer.Wait(), 0) << trainer.Log();
  const auto refused = [&](const JobSpec& changed, const std::string& job, const std::string& says) {
    static uint64_t generation = 1;
    Assignment again = bench.Assign(changed, ++generation);
    again.mutable_key()->set_job(job);
    bench.Publish(again);
    Process process = bench.Start(again);
    EXPECT_EQ(process.Wait(), 1);
    EXPECT_THAT(process.LastLine(), HasSubstr(says));
  };
  JobSpec wide = spec;
  wide.mutable_train()->mutable_model()->mutable_gpt2()->set_width(64);
  refused(wide, "small-x7f2", "wte.weight: shape [256, 32] in the checkpoint, [256, 64] in the model");
  JobSpec sgd = spec;
  sgd.mutable_train()->mutable_optimizer()->mutable_sgd()->set_momentum(0.9);
  refused(sgd, "small-x7f2", "optimizer.momentum.wte.weight: the checkpoint has no such tensor");
  refused(spec, "other-a2b3", "belongs to job small-x7f2");
}

// Ends at a step of its first job with the weights and the place in the data of one that went all the way.
TEST(Resume, AnotherJobGoesOnWhereOneStopped) {
  Bench bench;
  JobSpec spec = TheJob(bench);
  const auto steps = KillAndDamageTheNewest(bench, spec);
  ASSERT_GE(steps.size(), 2u);
  Checkpoint& options = *spec.mutable_train()->mutable_checkpoint();
  options.set_resume_from(bench.Path("checkpoints"));
  options.set_path(bench.Path("others"));
  Assignment other = bench.Assign(spec, 2);
  other.mutable_key()->set_job("other-a2b3");
  Process killed = bench.Start(other);
  // A checkpoint that is due while the previous one is still being written is skipped: wait for one, not for a step.
  const auto newest = [&] {
    const auto found = checkpoint::List(bench.Path("others"));
    return found.empty() ? 0 : found[0].step;
  };
  ASSERT_TRUE(Eventually([&] { return newest() >= 140; })) << killed.Log();
  killed.Signal(SIGKILL);
  killed.Wait();
  EXPECT_THAT(killed.Log(), AllOf(HasSubstr("corrupt checkpoint skipped"), HasSubstr(steps[0].Directory())));
  EXPECT_EQ(bench.Records(other).front().running().resumed_step(), steps[1].step);
  // Its own ones go before the other job's, which is not even there any more.
  fs::remove_all(bench.Path("checkpoints"));
  Assignment again = bench.Assign(spec, 3);
  again.mutable_key()->set_job("other-a2b3");
  bench.Publish(again);
  Process ended = bench.Start(again);
  ASSERT_EQ(ended.Wait(), 0) << ended.Log();
  EXPECT_GE(bench.Records(again).front().running().resumed_step(), 140u);
  ExpectSameEnd(bench, spec);
}

// A job whose coordinator knows none of the checkpoints in its folder: they are another job's or of another store.
TEST(Resume, AnAdoptedFolderIsGoneOnWith) {
  Bench bench;
  const JobSpec spec = TheJob(bench);
  Assignment first = bench.Assign(spec, 3);
  first.set_store_id("aaaaaaaa11111111");
  Process killed = bench.Start(first);
  ASSERT_TRUE(Eventually([&] { return bench.StepOf(first) >= 65; })) << killed.Log();
  killed.Signal(SIGKILL);
  killed.Wait();
  const std::string path = bench.Path("checkpoints");
  const auto steps = checkpoint::List(path);
  ASSERT_GE(steps.size(), 1u);

  Assignment restored = bench.Assign(spec, 1);
  restored.set_store_id("bbbbbbbb22222222");
  Process refused = bench.Start(restored);
  EXPECT_EQ(refused.Wait(), 1);
  EXPECT_THAT(refused.LastLine(), AllOf(HasSubstr("of store aaaaaaaa"), HasSubstr("has store bbbbbbbb"),
                                        HasSubstr("muster checkpoint adopt " + path)));

  const auto adopt = [&](const std::string& job) {
    const auto found = checkpoint::LookForAdoption(path);
    ASSERT_TRUE(found.ok()) << found.status();
    ASSERT_TRUE(checkpoint::Adopt(path, *found, job).ok());
  };
  // Under the number of an earlier generation.
  adopt("small-x7f2");
  restored = bench.Assign(spec, 2);
  restored.set_store_id("bbbbbbbb22222222");
  Process stopped = bench.Start(restored);
  ASSERT_TRUE(Eventually([&] { return bench.StepOf(restored) > steps[0].step || !stopped.Running(); }));
  stopped.Signal(SIGTERM);
  ASSERT_EQ(stopped.Wait(), 0) << stopped.Log();
  EXPECT_EQ(bench.Records(restored).front().running().resumed_step(), steps[0].step);
  const auto newest = checkpoint::List(path)[0];
  EXPECT_EQ(newest.generation, 2u);

  adopt("");
  Assignment other = bench.Assign(spec, 4);
  other.mutable_key()->set_job("other-a2b3");
  Process ended = bench.Start(other);
  ASSERT_EQ(ended.Wait(), 0) << ended.Log();
  EXPECT_EQ(bench.Records(other).front().running().resumed_step(), newest.step);
  ExpectSameEnd(bench, spec);

  // Its own checkpoints are damaged: what the other job wrote is still there.
  Assignment again = bench.Assign(spec, 5);
  again.mutable_key()->set_job("other-a2b3");
  for (const checkpoint::StepName& step : checkpoint::List(path)) {
    if (step.generation != 4) continue;
    fs::resize_file(absl::StrCat(path, "/", step.Directory(), "/shard-00000.safetensors"), 5000);
    PublishedCheckpoint& published = *again.add_published();
    published.set_step(step.step), published.set_generation(4), published.set_directory(step.Directory());
  }
  ASSERT_GE(again.published_size(), 1);
  *again.mutable_resume_from() = again.published(0);
  Process fallen_back = bench.Start(again);
  ASSERT_EQ(fallen_back.Wait(), 0) << fallen_back.Log();
  EXPECT_EQ(bench.Records(again).front().running().resumed_step(), newest.step);
  ExpectSameEnd(bench, spec);

  // What cannot go on is refused, whichever way it names the folder.
  adopt("third-b3c4");
  JobSpec changed = spec;
  changed.mutable_train()->set_seed(2);
  Assignment third = bench.Assign(changed, 6);
  third.mutable_key()->set_job("third-b3c4");
  Process cannot = bench.Start(third);
  EXPECT_EQ(cannot.Wait(), 1);
  EXPECT_THAT(cannot.LastLine(), AllOf(HasSubstr("checkpoint.path (adopted)"), HasSubstr("has seed 1, this job 2")));
}

// A checkpoint that was copied there by hand, in a folder that was not adopted.
TEST(Resume, AnotherJobsCheckpointInTheFolderIsPassedOver) {
  Bench bench;
  const JobSpec spec = TheJob(bench);
  const auto steps = KillAndDamageTheNewest(bench, spec);
  ASSERT_GE(steps.size(), 2u);
  JobSpec others = bench.MakeJob();
  others.mutable_train()->set_steps(200);
  others.mutable_train()->mutable_checkpoint()->set_path(bench.Path("others"));
  Assignment foreign = bench.Assign(others, 9);
  foreign.mutable_key()->set_job("other-a2b3");
  Process trainer = bench.Start(foreign);
  ASSERT_EQ(trainer.Wait(), 0) << trainer.Log();
  const std::string newest = checkpoint::List(bench.Path("others"))[0].Directory();
  fs::rename(bench.Path("others/" + newest), bench.Path("checkpoints/" + newest));

  Assignment assignment = bench.Assign(spec, 2);
  PublishedCheckpoint& damaged = *assignment.add_published();
  damaged.set_step(steps[0].step), damaged.set_generation(1), damaged.set_directory(steps[0].Directory());
  *assignment.mutable_resume_from() = damaged;
  Process again = bench.Start(assignment);
  ASSERT_EQ(again.Wait(), 0) << again.Log();
  EXPECT_EQ(bench.Records(assignment).front().running().resumed_step(), steps[1].step);
  ExpectSameEnd(bench, spec);
}

TEST(Resume, WhatAnotherJobCannotGoOnFromIsRefused) {
  Bench bench;
  JobSpec spec = bench.MakeJob();
  Process trainer = bench.Start(bench.Assign(spec, 1));
  ASSERT_EQ(trainer.Wait(), 0) << trainer.Log();
  spec.mutable_train()->mutable_checkpoint()->set_resume_from(
      absl::StrCat(bench.Path("checkpoints/"), checkpoint::List(bench.Path("checkpoints"))[0].Directory()));
  spec.mutable_train()->mutable_checkpoint()->set_path(bench.Path("others"));
  spec.mutable_train()->set_steps(50);
  const std::vector<std::pair<std::string, std::function<void(Train&)>>> rows = {
      {"step 40 done, and this job ends with step 40: set steps higher", [](Train& t) { t.set_steps(40); }},
      {"seed 1, this job 2", [](Train& t) { t.set_seed(2); }},
      {"data.order", [](Train& t) { t.mutable_data()->set_order(DATA_ORDER_SEQUENTIAL); }},
      {"n_head 2, but model.heads is 4", [](Train& t) { t.mutable_model()->mutable_gpt2()->set_heads(4); }},
      {"optimizer.kind", [](Train& t) { t.mutable_optimizer()->mutable_sgd()->set_momentum(0.9); }},
      {"others is not a checkpoint and holds none",
       [&](Train& t) { t.mutable_checkpoint()->set_resume_from(bench.Path("others")); }},
  };
  uint64_t generation = 1;
  for (const auto& [says, change] : rows) {
    JobSpec changed = spec;
    change(*changed.mutable_train());
    const Assignment assignment = bench.Assign(changed, ++generation);
    Process process = bench.Start(assignment);
    EXPECT_EQ(process.Wait(), 1) << says;
    EXPECT_THAT(process.LastLine(), AllOf(HasSubstr("checkpoint.resume_from"), HasSubstr(says)));
    const std::vector<Record> records = bench.Records(assignment);
    ASSERT_FALSE(records.empty());
    EXPECT_TRUE(records.back().failed().refused()) << says;
    EXPECT_EQ(records.back().failed().of_node(), absl::StartsWith(says, "others is no"))
        << "only a folder may be elsewhere";
  }
  // Other tokens are logged and accepted.
  fs::copy_file(bench.Path("train.bin"), bench.Path("moved.bin"));
  spec.mutable_train()->mutable_data()->set_tokens(bench.Path("moved.bin"));
  Process process = bench.Start(bench.Assign(spec, ++generation));
  EXPECT_EQ(process.Wait(), 0) << process.Log();
  EXPECT_THAT(process.Log(), HasSubstr("sample=320"));
}

// Also its own checkpoint, if its tokens were prepared again meanwhile.
TEST(Resume, TokensOfAnotherTokenizerAreRefused) {
  Bench bench;
  JobSpec spec = bench.MakeJob();
  const std::string tokens = bench.Path("train.bin");
  const auto made_with = [&](const std::string& tokenizer) {
    TokenizerOrigin origin;
    origin.set_path(tokenizer), origin.set_sha256(tokenizer.substr(1));
    ASSERT_TRUE(data::WriteTokenizerOrigin(tokens, origin).ok());
  };
  made_with("/a");
  Process trainer = bench.Start(bench.Assign(spec, 1));
  ASSERT_EQ(trainer.Wait(), 0) << trainer.Log();
  made_with("/b");
  JobSpec other = spec;
  other.mutable_train()->mutable_checkpoint()->set_resume_from(bench.Path("checkpoints"));
  other.mutable_train()->mutable_checkpoint()->set_path(bench.Path("others"));
  other.mutable_train()->set_steps(50);
  Assignment resumed = bench.Assign(other, 2), own = bench.Assign(spec, 3);
  bench.Publish(own);
  for (const Assignment& assignment : {resumed, own}) {
    Process refused = bench.Start(assignment);
    EXPECT_EQ(refused.Wait(), 1);
    EXPECT_THAT(refused.LastLine(),
                AllOf(HasSubstr(tokens + " was made with the tokenizer /b (sha256 b), but the data of "),
                      HasSubstr(bench.Path("checkpoints/step-")), HasSubstr("/a (sha256 a)")));
    const std::vector<Record> records = bench.Records(assignment);
    ASSERT_FALSE(records.empty());
    EXPECT_TRUE(records.back().failed().refused() && !records.back().failed().of_node());
  }
  fs::remove(tokens + data::kOriginEnding);
  Process unknown = bench.Start(bench.Assign(other, 4));
  EXPECT_EQ(unknown.Wait(), 0) << unknown.Log();
}

// Its weights fit, but its windows of tokens are others.
TEST(Resume, ALlamaOfAnotherContextDoesNotGoOn) {
  Bench bench;
  JobSpec spec = bench.MakeJob();
  Llama& model = *spec.mutable_train()->mutable_model()->mutable_llama();
  model.set_layers(1), model.set_heads(2), model.set_width(32), model.set_inner(32), model.set_vocabulary(256);
  model.set_context(16);
  spec.mutable_train()->set_steps(10);
  const auto assign = [&](uint64_t generation) {
    JobSpec resolved = spec;
    *resolved.mutable_train()->mutable_model() = models::Resolve(spec.train().model()).value();
    return bench.Assign(resolved, generation);
  };
  Process trainer = bench.Start(assign(1));
  ASSERT_EQ(trainer.Wait(), 0) << trainer.Log();
  spec.mutable_train()->mutable_checkpoint()->set_resume_from(bench.Path("checkpoints"));
  spec.mutable_train()->mutable_checkpoint()->set_path(bench.Path("others"));
  spec.mutable_train()->set_steps(20);
  model.set_context(8);
  Process refused = bench.Start(assign(2));
  EXPECT_EQ(refused.Wait(), 1);
  EXPECT_THAT(refused.LastLine(),
              HasSubstr("has samples of inputs int64 [16], targets int64 [16]; this job of inputs int64 [8]"));
}

// The loss scale falls from where everything overflows and then rises every ten steps, so it differs at every restart.
// Without it, or without the count of skipped updates, the weights would be others.
TEST(Resume, TheLossScaleGoesOnFromTheCheckpoint) {
  const auto job = [](const Bench& bench) {
    JobSpec spec = TheJob(bench);
    Precision& precision = *spec.mutable_train()->mutable_precision();
    precision.set_compute(DTYPE_FP16);
    LossScaling& scaling = *precision.mutable_loss_scaling();
    scaling.set_initial(0x1p30), scaling.set_minimum(1), scaling.set_growth(2), scaling.set_backoff(0.5);
    scaling.set_growth_interval(10);
    return spec;
  };
  const auto newest_point = [](const Bench& bench, const Assignment& assignment) {
    MetricPoint point;
    for (const Record& record : bench.Records(assignment)) {
      if (record.has_metrics()) point = record.metrics();
    }
    return point;
  };
  Bench whole;
  const Assignment undisturbed = whole.Assign(job(whole), 1);
  Process trainer = whole.Start(undisturbed);
  ASSERT_EQ(trainer.Wait(), 0) << trainer.Log();
  EXPECT_THAT(trainer.Log(), HasSubstr("the step's gradients overflowed: the parameters were not updated"));
  const MetricPoint right = newest_point(whole, undisturbed);
  EXPECT_GT(right.skipped_steps(), 5u);
  EXPECT_LT(right.loss_scale(), 0x1p30);

  Bench bench;
  uint64_t generation = 0;
  for (const uint64_t step : {3, 41, 85}) {
    Assignment assignment = bench.Assign(job(bench), ++generation);
    bench.Publish(assignment);
    Process killed = bench.Start(assignment);
    ASSERT_TRUE(Eventually([&] { return bench.StepOf(assignment) >= step || !killed.Running(); }));
    killed.Signal(SIGKILL);
    killed.Wait();
  }
  Assignment last = bench.Assign(job(bench), ++generation);
  bench.Publish(last);
  Process resumed = bench.Start(last);
  ASSERT_EQ(resumed.Wait(), 0) << resumed.Log();
  EXPECT_EQ(bench.NewestWeights(job(bench)), whole.NewestWeights(job(whole)));
  const MetricPoint end = newest_point(bench, last);
  EXPECT_EQ(end.skipped_steps(), right.skipped_steps());
  EXPECT_EQ(end.loss_scale(), right.loss_scale());
  EXPECT_EQ(end.loss(), right.loss());
}

TEST(Resume, PublishedCheckpointsStayAndTheOthersGo) {
  Bench bench;
  JobSpec spec = bench.MakeJob();
  spec.mutable_train()->set_steps(1'000'000);
  Assignment assignment = bench.Assign(spec, 1);
  Process trainer = bench.Start(assignment);
  const auto newest = [&] {
    const auto steps = checkpoint::List(bench.Path("checkpoints"));
    return steps.empty() ? 0 : steps[0].step;
  };
  ASSERT_TRUE(Eventually([&] { return newest() >= 10; })) << trainer.Log();
  // The coordinator publishes the reported checkpoints, and the worker sends the assignment again.
  const auto kept = checkpoint::List(bench.Path("checkpoints"))[0];
  bench.Publish(assignment);
  assignment.clear_resume_from();
  bench.worker().Assign(assignment);
  const auto there = [&](uint64_t step) {
    const auto steps = checkpoint::List(bench.Path("checkpoints"));
    return std::count(steps.begin(), steps.end(), checkpoint::StepName{step, 1}) == 1;
  };
  ASSERT_TRUE(Eventually([&] { return newest() >= kept.step + 500 && !there(kept.step + 100); })) << trainer.Log();
  trainer.Signal(SIGTERM);
  ASSERT_EQ(trainer.Wait(), 0) << trainer.Log();
  const auto steps = checkpoint::List(bench.Path("checkpoints"));
  EXPECT_TRUE(there(kept.step)) << "published ones stay";
  EXPECT_TRUE(checkpoint::Checkpoint::Open(bench.Path("checkpoints/" + steps[0].Directory())).ok());
}

// The coordinator may have published reported checkpoints even if the trainer does not learn of it.
TEST(Resume, WhatWasSentStaysUntilOthersArePublished) {
  Bench bench;
  JobSpec spec = bench.MakeJob();
  spec.mutable_train()->set_steps(1'000'000);
  Assignment assignment = bench.Assign(spec, 1);
  bench.worker().Contact(true);
  Process trainer = bench.Start(assignment);
  const auto steps = [&] { return checkpoint::List(bench.Path("checkpoints")); };
  ASSERT_TRUE(Eventually([&] { return bench.worker().reported_step() >= 200; })) << trainer.Log();
  bench.worker().Contact(false);
  const uint64_t sent = bench.worker().reported_step() / 10 * 10;
  // Later records have reached no worker.
  const auto there = [&](uint64_t step) {
    const auto found = steps();
    return std::count(found.begin(), found.end(), checkpoint::StepName{step, 1}) == 1;
  };
  ASSERT_TRUE(Eventually([&] { return steps()[0].step >= sent + 2000 && !there(sent + 1000); })) << trainer.Log();
  std::vector<uint64_t> delivered;  // checkpoints whose records came before that of step `sent`
  for (const Record& record : bench.Records(assignment)) {
    if (record.has_metrics() && record.metrics().step() >= sent) break;
    if (record.has_checkpoint()) delivered.push_back(record.checkpoint().step());
  }
  ASSERT_GE(delivered.size(), 3u);
  for (const uint64_t step : delivered) EXPECT_TRUE(there(step)) << step;
  // They were published, and the newest one stays.
  PublishedCheckpoint& newest = *assignment.add_published();
  newest.set_step(delivered.back());
  newest.set_generation(1);
  newest.set_directory(checkpoint::StepName{delivered.back(), 1}.Directory());
  bench.worker().Assign(assignment);
  EXPECT_TRUE(Eventually([&] { return !there(delivered[0]) && !there(delivered[delivered.size() - 2]); }))
      << trainer.Log();
  EXPECT_TRUE(there(delivered.back()));
}

TEST(Resume, AFullDiskEndsTheRankAndLeavesTheOlderCheckpoint) {
  Bench bench;
  JobSpec spec = bench.MakeJob();
  spec.mutable_train()->set_steps(10);
  Assignment assignment = bench.Assign(spec, 1);
  Process trainer = bench.Start(assignment);
  ASSERT_EQ(trainer.Wait(), 0) << trainer.Log();

  spec.mutable_train()->set_steps(30);
  assignment = bench.Assign(spec, 2);
  bench.Publish(assignment);
  // Room for the outbox and the log, not for a shard; inherited by the trainer.
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small = {100'000, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  Process full = bench.Start(assignment);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(full.Wait(), 1);
  EXPECT_THAT(full.LastLine(), AllOf(HasSubstr("the checkpoint of step 20 failed"), HasSubstr("file size limit")));
  EXPECT_EQ(std::distance(fs::directory_iterator(bench.Path("checkpoints")), fs::directory_iterator()), 2)
      << "the older checkpoint and the owner file";
  EXPECT_TRUE(checkpoint::Checkpoint::Open(bench.Path("checkpoints/step-0000000010-g1")).ok());
}

}  // namespace
}  // namespace muster::trainer
