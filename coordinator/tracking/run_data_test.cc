#include "coordinator/tracking/run_data.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace muster::tracking {
namespace {

using ::testing::Contains;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

template <typename Message>
Message Parse(const std::string& text) {
  Message message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message)) << text;
  return message;
}

TEST(RunData, MetricsHaveTheNamesOfTheCommandLine) {
  const auto metrics = MetricsOf(Parse<MetricPoint>(R"(
    step: 12 time { seconds: 1800000000 nanos: 123456789 }
    loss: 2.5 peak_memory_bytes: 4096 validation_loss: 3
    validation { name: "top1" value: 0.5 } reported { name: "eval/f1" value: 0.25 })"));
  const int64_t ms = 1'800'000'000'123;
  EXPECT_THAT(metrics,
              ::testing::UnorderedElementsAre(Metric{"loss", 2.5, ms, 12}, Metric{"peak_memory_bytes", 4096, ms, 12},
                                              Metric{"validation_loss", 3, ms, 12},
                                              Metric{"validation/top1", 0.5, ms, 12}, Metric{"eval/f1", 0.25, ms, 12}));
  EXPECT_TRUE(MetricsOf(Parse<MetricPoint>("step: 1")).empty());
  // What a script made up.
  const auto extreme = MetricsOf(Parse<MetricPoint>("step: 18446744073709551615 time { seconds: -5 } loss: inf"));
  ASSERT_EQ(extreme.size(), 1u);
  EXPECT_EQ(extreme[0].step, std::numeric_limits<int64_t>::max());
  EXPECT_EQ(extreme[0].timestamp_ms, 0);
}

TEST(RunData, OfACollectiveItIsTheMeasurement) {
  const auto metrics = MetricsOf(Parse<MetricPoint>(
      R"(step: 1 collective { collective: COLLECTIVE_ALL_REDUCE bytes: 1024 seconds: 0.5 type: "float" })"));
  EXPECT_THAT(metrics, ::testing::UnorderedElementsAre(Metric{"collective/bytes", 1024, 0, 1},
                                                       Metric{"collective/seconds", 0.5, 0, 1}));
}

TEST(RunData, ParametersAreTheFieldsOfAJobFile) {
  const Texts params = ParamsOf(Parse<JobSpec>(R"(
    api_version: "muster/v1" name: "gpt2" resources { ranks: 4 device: DEVICE_CPU }
    labels: "team=nlp" env { name: "NCCL_DEBUG" value: "secret" }
    train { model { gpt2 { layers: 2 } } optimizer { adamw {} lr: 0.001 } strategy { ddp {} }
            freeze: "wte.weight" freeze: "h.0.*" parallel { auto: true } steps: 40 data { mean: 0.219 } })"));
  const Texts expected = {{"apiVersion", "muster/v1"},
                          {"name", "gpt2"},
                          {"resources.ranks", "4"},
                          {"resources.device", "cpu"},
                          {"env", R"(["NCCL_DEBUG"])"},
                          {"model.family", "gpt2"},
                          {"model.layers", "2"},
                          {"optimizer.kind", "adamw"},
                          {"optimizer.lr", "0.001"},
                          {"strategy.kind", "ddp"},
                          {"freeze", R"(["wte.weight","h.0.*"])"},
                          {"data.mean", "[0.219]"},  // not 0.21899999678134918, which that float is
                          {"parallel", "auto"},
                          {"steps", "40"}};
  EXPECT_EQ(params, expected);
  const Texts exec = ParamsOf(Parse<JobSpec>(R"(name: "a" exec { command: "python3" command: "train.py" })"));
  EXPECT_THAT(exec, Contains(Pair("workload", "exec")));
  EXPECT_THAT(exec, Contains(Pair("command", R"(["python3","train.py"])")));
}

TEST(RunData, LongValuesAreCutBetweenCharacters) {
  JobSpec spec;
  for (int i = 0; i < 4000; ++i) spec.mutable_exec()->add_command("é");
  const std::string command = ParamsOf(spec).at("command");
  EXPECT_LE(command.size(), 6000u);
  EXPECT_GT(command.size(), 5990u);
  EXPECT_TRUE(absl::EndsWith(command, "\"") || absl::EndsWith(command, ",") || absl::EndsWith(command, "é"));
}

TEST(RunData, TagsSayWhatAJobIsAndHas) {
  Job job = Parse<Job>(R"(
    id: "gpt2-x7f2" owner: "ann" state: JOB_STATE_RUNNING generation: 3 restarts: 2 note: "the best one"
    labels: "team=nlp" labels: "a=b=c"
    checkpoints { step: 10 directory: "step-10" } checkpoints { step: 20 directory: "step-20" }
    spec { train { checkpoint { path: "/shared/c" } } })");
  const Texts tags = TagsOf(job, "faf4");
  const Texts expected = {{"muster.job", "gpt2-x7f2"},
                          {"muster.store", "faf4"},
                          {"mlflow.user", "ann"},
                          {"mlflow.source.type", "JOB"},
                          {"mlflow.source.name", "gpt2-x7f2"},
                          {"mlflow.note.content", "the best one"},
                          {"muster.user", "ann"},
                          {"muster.project", "default"},
                          {"muster.state", "running"},
                          {"muster.generation", "3"},
                          {"muster.restarts", "2"},
                          {"muster.label.team", "nlp"},
                          {"muster.label.a", "b=c"},
                          {"muster.checkpoint", "/shared/c/step-20"},
                          {"muster.checkpoint_step", "20"},
                          {"muster.checkpoints", "/shared/c/step-20\n/shared/c/step-10"}};
  EXPECT_EQ(tags, expected);
  EXPECT_EQ(StatusOf(job), "RUNNING");
  job.set_state(JOB_STATE_FAILED);
  job.mutable_failure()->mutable_exit()->set_message("rank 0 was killed by signal 9");
  job.clear_note();
  EXPECT_THAT(TagsOf(job, "faf4"), Contains(Pair("muster.failure", "rank 0 was killed by signal 9")));
  EXPECT_THAT(TagsOf(job, "faf4"), Not(Contains(Key("mlflow.note.content"))));
  EXPECT_TRUE(IsOwnTag("mlflow.note.content"));
  EXPECT_TRUE(IsOwnTag("muster.label.team"));
  EXPECT_FALSE(IsOwnTag("mlflow.runName"));
}

// A script says where it wrote, from its own folder or from the root.
TEST(RunData, TheCheckpointOfAScriptIsAPath) {
  Job job =
      Parse<Job>(R"(script_checkpoint { step: 7 directory: "runs/b.pt" } spec { exec { workdir: "/home/ann" } })");
  EXPECT_EQ(TagsOf(job, "s").at("muster.checkpoint"), "/home/ann/runs/b.pt");
  EXPECT_EQ(TagsOf(job, "s").at("muster.checkpoint_step"), "7");
  job.mutable_script_checkpoint()->set_directory("/scratch/a.pt");
  EXPECT_EQ(TagsOf(job, "s").at("muster.checkpoints"), "/scratch/a.pt");
}

// posixpath.normpath must leave a key as it is (mlflow/utils/validation.py, path_not_unique).
TEST(RunData, KeysAreNoPathsElsewhere) {
  for (const char* fine : {"loss", "a/b", "train/loss.max"}) EXPECT_EQ(KeyOf(fine), fine);
  std::set<std::string> keys;
  const std::vector<std::string> hostile = {"",
                                            ".",
                                            "..",
                                            "../x",
                                            "/x",
                                            "x/",
                                            "x//y",
                                            "x/./y",
                                            "x/../y",
                                            "..x",
                                            "x\ny",
                                            "x\"y",
                                            std::string(300, 'x'),
                                            std::string(299, 'x') + "y"};
  for (const std::string& name : hostile) {
    const std::string key = KeyOf(name);
    keys.insert(key);
    EXPECT_NE(key, name);
    EXPECT_LE(key.size(), 250u);
    EXPECT_FALSE(absl::StartsWith(key, "..")) << key;
    EXPECT_FALSE(absl::StartsWith(key, "/")) << key;
    EXPECT_FALSE(absl::StrContains(key, "//")) << key;
    EXPECT_FALSE(absl::StrContains(key, "/../") || absl::StrContains(key, "/./") || absl::EndsWith(key, "/")) << key;
  }
  EXPECT_EQ(keys.size(), hostile.size()) << "no two become one";
}

}  // namespace
}  // namespace muster::tracking
