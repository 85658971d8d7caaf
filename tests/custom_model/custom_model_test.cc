// examples/custom_model as its user has it: built outside of the tree with CMake against the installed SDK, inspected,
// planned, trained by every strategy in real processes, killed and resumed, evaluated and exported.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "testing/wait.h"
#include "tests/cluster/cluster.h"

namespace muster::cluster {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int kSteps = 24;
constexpr int kKilledSteps = 200, kKilledTowerSteps = 400;
constexpr int kAttempts = 5;  // on a busy machine a job may end before its rank is killed

// Of the wheel that the trainer is linked with.
std::string TorchFolder() {
  const char* wheel = std::getenv("MUSTER_TORCH_CPU");
  EXPECT_NE(wheel, nullptr) << "MUSTER_TORCH_CPU is not set: run ./test.sh, or pass "
                               "--test_env=MUSTER_TORCH_CPU=~/.cache/muster/torch-cpu";
  return absl::StrCat(wheel == nullptr ? "" : wheel, "/torch");
}

class CustomModelTest : public ::testing::Test {
 protected:
  // Builds the library once for all tests.
  static void SetUpTestSuite() {
    built_ = new Cluster;
    const std::string folder = built_->folder();
    fs::create_directories(folder + "/example");
    for (const char* name : {"CMakeLists.txt", "job.yaml", "model.cc", "two_towers.cc", "two_towers.yaml"}) {
      fs::copy_file(absl::StrCat("examples/custom_model/", name), absl::StrCat(folder, "/example/", name));
    }
    const std::string here = fs::current_path();
    const Ran made = built_->Shell(
        absl::StrCat("bash ", here, "/sdk/install.sh ", folder, "/prefix && cmake -S . -B build -DCMAKE_PREFIX_PATH='",
                     folder, "/prefix;", TorchFolder(), "' && cmake --build build"),
        folder + "/example", absl::Minutes(10));
    ASSERT_EQ(made.exit_code, 0) << made.out << made.err;
    library_ = folder + "/example/build/libresidual.so";
    const Ran inspected = built_->Muster({"model", "inspect", library_, "--option", "width=5"});
    ASSERT_EQ(inspected.exit_code, 0) << inspected.err;
    std::ofstream(folder + "/residual.json") << inspected.out;
    EXPECT_TRUE(absl::StrContains(inspected.err, "image_classification, 5 units")) << inspected.err;
    WriteImages(folder + "/images.bin");
    const Ran towers = built_->Muster({"model", "inspect", folder + "/example/build/libtwo_towers.so"});
    ASSERT_EQ(towers.exit_code, 0) << towers.err;
    std::ofstream(folder + "/two_towers.json") << towers.out;
    EXPECT_TRUE(absl::StrContains(towers.err, "tensors, 2 units")) << towers.err;
    WriteRatings(folder + "/ratings-0.safetensors", 0, 150, "rating");
    WriteRatings(folder + "/ratings-1.safetensors", 150, 100, "rating");
    WriteRatings(folder + "/ratings.test.safetensors", 250, 60, "rating");
  }
  static void TearDownTestSuite() { delete built_; }

  // CIFAR-10's records: a label and 3 x 32 x 32 bytes.
  static void WriteImages(const std::string& path) {
    std::mt19937 random(5);
    std::ofstream out(path, std::ios::binary);
    for (int i = 0; i < 200; ++i) {
      const int label = i % 10;
      out.put(static_cast<char>(label));
      for (int byte = 0; byte < 3 * 32 * 32; ++byte) out.put(static_cast<char>(random() % 64 + 19 * label));
    }
  }

  // Samples from `first`: what the user likes of 50 items. Written by hand, as any program may.
  static void WriteRatings(const std::string& path, int first, int samples, const std::string& rating_name) {
    std::vector<float> user, rating;
    std::vector<int64_t> item;
    for (int sample = first; sample < first + samples; ++sample) {
      std::mt19937 random(static_cast<uint32_t>(sample));
      for (int i = 0; i < 8; ++i) user.push_back(static_cast<float>(random() % 2000) / 1000 - 1);
      item.push_back(static_cast<int64_t>(random() % 50));
      rating.push_back(2 * user[user.size() - 8] + static_cast<float>(item.back()) / 25 - 1);
    }
    const size_t users = 4 * user.size(), items = 8 * item.size(), ratings = 4 * rating.size();
    const std::string header =
        json{{"user", {{"dtype", "F32"}, {"shape", {samples, 8}}, {"data_offsets", {0, users}}}},
             {"item", {{"dtype", "I64"}, {"shape", {samples}}, {"data_offsets", {users, users + items}}}},
             {rating_name,
              {{"dtype", "F32"}, {"shape", {samples}}, {"data_offsets", {users + items, users + items + ratings}}}}}
            .dump();
    const uint64_t length = header.size();
    std::ofstream out(path, std::ios::binary);
    out.write(reinterpret_cast<const char*>(&length), sizeof length) << header;
    out.write(reinterpret_cast<const char*>(user.data()), static_cast<std::streamsize>(users));
    out.write(reinterpret_cast<const char*>(item.data()), static_cast<std::streamsize>(items));
    out.write(reinterpret_cast<const char*>(rating.data()), static_cast<std::streamsize>(ratings));
  }

  // The example's job with another strategy. Its paths are relative to it.
  static std::string TowersText(const std::string& name, const std::string& strategy, int ranks, int steps = 60) {
    std::ifstream file("examples/custom_model/two_towers.yaml");
    std::string text{std::istreambuf_iterator<char>(file), {}};
    const auto replace = [&](const std::string& what, const std::string& with) {
      const size_t at = text.find(what);
      ASSERT_NE(at, std::string::npos) << what;
      text.replace(at, what.size(), with);
    };
    replace("name: two-towers", "name: " + name);
    replace("strategy: {kind: ddp}", "strategy: " + strategy);
    replace("ranks: 1", absl::StrCat("ranks: ", ranks));
    replace("sequences: 32", "sequences: 13, microbatch: 4");
    replace("steps: 200", absl::StrCat("steps: ", steps));
    replace("every_steps: 100}", "every_steps: 20}");
    replace("runs/{job}\", every_steps: 100", absl::StrCat("runs-", name, "\", every_steps: 10"));
    return text;
  }

  static std::string JobText(const std::string& name, const std::string& strategy, int ranks, const std::string& more,
                             int steps = kSteps) {
    return absl::StrCat(
        "apiVersion: muster/v1\nkind: Job\nname: ", name,
        "\nmodel: {family: custom, inventory: residual.json}\ndata: {images: images.bin, validation: images.bin}\n"
        "strategy: ",
        strategy, "\nresources: {ranks: ", ranks,
        "}\noptimizer: {kind: sgd, momentum: 0.9, lr: 0.05, clip_norm: 1.0}\nsteps: ", steps,
        "\nvalidation: {every_steps: 0, sequences: 50}\ncheckpoint: {path: runs-", name, ", every_steps: 4}\nseed: 3\n",
        more);
  }
  static std::string Submit(Cluster& cluster, const std::string& text, const std::string& name) {
    const std::string path = absl::StrCat(built_->folder(), "/", name, ".yaml");
    std::ofstream(path) << text;
    const Ran ran = cluster.Muster({"submit", "-d", "-o", "name", path});
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    return std::string(absl::StripAsciiWhitespace(ran.out));
  }
  static void AllowPlugins(Cluster& cluster) {
    cluster.worker_flags = {"--plugin-roots", built_->folder() + "/example/build"};
  }

  static std::string Runs(const std::string& name) { return absl::StrCat(built_->folder(), "/runs-", name); }

  // All tensors of an export, by name.
  static std::map<std::string, std::vector<float>> Weights(Cluster& cluster, const std::string& name) {
    const std::string out = absl::StrCat(built_->folder(), "/export-", name);
    fs::remove_all(out);
    const Ran ran = cluster.Muster({"export", Runs(name), out});
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    std::ifstream file(out + "/model.safetensors", std::ios::binary);
    uint64_t bytes = 0;
    file.read(reinterpret_cast<char*>(&bytes), sizeof bytes);
    std::string header(bytes, ' ');
    file.read(header.data(), static_cast<std::streamsize>(bytes));
    const std::string data{std::istreambuf_iterator<char>(file), {}};
    std::map<std::string, std::vector<float>> weights;
    const json tensors = json::parse(header, nullptr, false);
    for (const auto& [tensor, entry] : tensors.items()) {
      if (tensor == "__metadata__") continue;
      const size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
      std::vector<float>& values = weights[tensor];
      values.resize((end - begin) / sizeof(float));
      std::memcpy(values.data(), data.data() + begin, end - begin);
    }
    return weights;
  }

  static Cluster* built_;
  static std::string library_;
};
Cluster* CustomModelTest::built_ = nullptr;
std::string CustomModelTest::library_;

void ExpectSameCustomWeights(const std::map<std::string, std::vector<float>>& ours,
                             const std::map<std::string, std::vector<float>>& right, double limit,
                             const std::string& name) {
  ASSERT_EQ(ours.size(), right.size()) << name;
  ASSERT_GT(right.size(), 20u);
  for (const auto& [tensor, expected] : right) {
    if (absl::StrContains(tensor, ".running_")) continue;  // the first rank's
    const std::vector<float>& values = ours.at(tensor);
    ASSERT_EQ(values.size(), expected.size()) << name << " " << tensor;
    double difference = 0, norm = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      difference += std::pow(static_cast<double>(values[i]) - expected[i], 2);
      norm += static_cast<double>(expected[i]) * expected[i];
    }
    EXPECT_LE(std::sqrt(difference), limit * std::sqrt(norm) + 1e-12) << name << " " << tensor;
  }
}

// Batch normalization normalizes by a rank's microbatch, so runs are alike that cut batches alike: one rank with
// microbatches of four, and two ranks with four images each. Between steps a ReLU near zero turns a rounding into a
// difference: one rank alone, with GEMMs by AVX2 and by AVX-512, gives weights that differ by 4e-6 to 7.5e-4 after so
// many steps, by the seed. Losses are compared more closely.
TEST_F(CustomModelTest, TrainsByEveryStrategyAsOnOneRank) {
  Cluster cluster;
  cluster.StartCoordinator();
  AllowPlugins(cluster);
  cluster.StartWorker(0, 2);
  const std::string one =
      Submit(cluster, JobText("single", "{kind: single}", 1, "batch: {sequences: 8, microbatch: 4}\n"), "single");
  ASSERT_TRUE(cluster.WaitForState(one, "completed"));
  const std::vector<double> losses = cluster.Losses(one);
  ASSERT_EQ(losses.size(), static_cast<size_t>(kSteps));
  EXPECT_LT(losses.back(), 0.8 * losses.front());
  const auto right = Weights(cluster, "single");
  const std::vector<std::pair<std::string, std::string>> strategies = {{"ddp", "{kind: ddp}"},
                                                                       {"zero1", "{kind: zero, stage: 1}"},
                                                                       {"zero3", "{kind: zero, stage: 3}"},
                                                                       {"fsdp", "{kind: fsdp}"}};
  for (const auto& [name, strategy] : strategies) {
    SCOPED_TRACE(name);
    const std::string job = Submit(cluster, JobText(name, strategy, 2, "batch: {sequences: 8, microbatch: 4}\n"), name);
    ASSERT_TRUE(cluster.WaitForState(job, "completed"));
    const std::vector<double> theirs = cluster.Losses(job);
    ASSERT_EQ(theirs.size(), losses.size());
    for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(theirs[i], losses[i], 5e-6 * losses[i]) << i;
    ExpectSameCustomWeights(Weights(cluster, name), right, 3e-3, name);
  }
  // Another strategy and number of ranks resumes from it.
  std::string text = JobText("resumed", "{kind: zero, stage: 3}", 2, "batch: {sequences: 8, microbatch: 4}\n");
  text.replace(text.find("path: runs-resumed"), 0, "resume_from: runs-single, ");
  text.replace(text.find("steps: 24"), 9, "steps: 30");
  const std::string resumed = Submit(cluster, text, "resumed");
  ASSERT_TRUE(cluster.WaitForState(resumed, "completed"));
  EXPECT_EQ(cluster.Losses(resumed).size(), 6u);
  // What is exported evaluates to the same loss.
  const std::string data = built_->folder() + "/images.bin";
  const Ran refused = cluster.Muster({"eval", Runs("single"), data});
  EXPECT_EQ(refused.exit_code, 2) << refused.out;
  EXPECT_TRUE(absl::StrContains(refused.err, "name it by --library if you trust it")) << refused.err;
  const auto evaluate = [&](const std::string& from) {
    const Ran ran = cluster.Muster({"eval", from, data, "--library", library_, "-o", "json"});
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    return json::parse(ran.out, nullptr, false);
  };
  const json step = evaluate(Runs("single")), exported = evaluate(built_->folder() + "/export-single");
  EXPECT_EQ(step["loss"], exported["loss"]) << step << exported;
  EXPECT_TRUE(step.contains("top1")) << step;
  EXPECT_TRUE(absl::StrContains(cluster.Muster({"describe", one}).out, "custom libresidual"));
}

TEST_F(CustomModelTest, AKilledTrainerResumesToTheSameBits) {
  Cluster cluster;
  cluster.StartCoordinator();
  AllowPlugins(cluster);
  cluster.StartWorker(0, 2);
  const auto text = [](const std::string& name) {
    return JobText(name, "{kind: fsdp}", 2, "batch: {sequences: 8, microbatch: 2}\nactivation_checkpointing: true\n",
                   kKilledSteps);
  };
  const std::string whole = Submit(cluster, text("whole"), "whole");
  ASSERT_TRUE(cluster.WaitForState(whole, "completed"));
  std::string name;
  bool killed = false;
  for (int attempt = 0; attempt < kAttempts && !killed; ++attempt) {
    name = absl::StrCat("killed-", attempt);
    const std::string id = Submit(cluster, text(name), name);
    ASSERT_TRUE(cluster.WaitForStep(id, 5));
    const std::vector<pid_t> trainers = cluster.Trainers();
    if (!trainers.empty()) kill(trainers.front(), SIGKILL);
    ASSERT_TRUE(cluster.WaitForState(id, "completed"));
    killed = cluster.Generation(id) > 1;
  }
  EXPECT_TRUE(killed) << "it was never killed in time";
  const auto right = Weights(cluster, "whole"), ours = Weights(cluster, name);
  EXPECT_EQ(ours, right);
}

// The example with a loss and metrics of its own, on the files of docs/custom_models.md.
TEST_F(CustomModelTest, TrainsOnNamedTensorsWithItsOwnLossAndMetrics) {
  Cluster cluster;
  cluster.StartCoordinator();
  AllowPlugins(cluster);
  cluster.StartWorker(0, 2);
  const std::string one = Submit(cluster, TowersText("towers-one", "{kind: single}", 1), "towers-one");
  ASSERT_TRUE(cluster.WaitForState(one, "completed"));
  const std::vector<double> losses = cluster.Losses(one);
  ASSERT_EQ(losses.size(), 60u);
  EXPECT_LT(losses.back(), 0.7 * losses.front());
  const std::string whole =
      Submit(cluster, TowersText("towers-whole", "{kind: fsdp}", 2, kKilledTowerSteps), "towers-whole");
  ASSERT_TRUE(cluster.WaitForState(whole, "completed"));
  const std::vector<double> same = cluster.Losses(whole);
  ASSERT_EQ(same.size(), static_cast<size_t>(kKilledTowerSteps));
  for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(same[i], losses[i], 2e-5 * losses[i]) << i;
  // Killed on the way, it goes on with the same samples.
  std::string two;
  for (int attempt = 0; attempt < kAttempts && (two.empty() || cluster.Generation(two) == 1); ++attempt) {
    const std::string name = "towers-two-" + std::to_string(attempt);
    two = Submit(cluster, TowersText(name, "{kind: fsdp}", 2, kKilledTowerSteps), name);
    ASSERT_TRUE(cluster.WaitForStep(two, 12));
    for (const pid_t trainer : cluster.Trainers()) kill(trainer, SIGKILL);
    ASSERT_TRUE(cluster.WaitForState(two, "completed"));
  }
  EXPECT_GT(cluster.Generation(two), 1u) << "it was never killed in time";
  EXPECT_EQ(cluster.Losses(two), same);

  // Its metric, by its name.
  const std::string test = built_->folder() + "/ratings.test.safetensors";
  const Ran eval = cluster.Muster({"eval", Runs("towers-one"), test, "--library",
                                   built_->folder() + "/example/build/libtwo_towers.so", "-o", "json"});
  ASSERT_EQ(eval.exit_code, 0) << eval.err;
  const json evaluated = json::parse(eval.out, nullptr, false);
  EXPECT_EQ(evaluated.value("samples", 0), 60);
  EXPECT_GT(evaluated.value("mean_absolute_error", 0.0), 0);
  EXPECT_LE(std::pow(evaluated.value("mean_absolute_error", 9.0), 2), evaluated.value("loss", 0.0)) << "Jensen";
  const json points = cluster.MusterJson({"metrics", one});
  const json last = points.back();
  EXPECT_NEAR(last.value("validation_loss", 0.0), evaluated.value("loss", 1.0), 1e-6) << last;
  ASSERT_EQ(last["validation"].size(), 1u) << last;
  EXPECT_EQ(last["validation"][0]["name"], "mean_absolute_error");
  EXPECT_NEAR(last["validation"][0].value("value", 0.0), evaluated.value("mean_absolute_error", 1.0), 1e-6);
  EXPECT_TRUE(absl::StrContains(cluster.Muster({"describe", one}).out, "mean_absolute_error"));
  std::string events;
  for (const auto& entry : fs::recursive_directory_iterator(cluster.folder())) {
    if (!absl::StrContains(entry.path().filename().string(), ".tfevents.")) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    events.append(std::istreambuf_iterator<char>(file), {});
  }
  EXPECT_TRUE(absl::StrContains(events, "validation/mean_absolute_error")) << "TensorBoard";

  const Ran sample = cluster.Muster({"sample", Runs("towers-one"), "--prompt", "a", "--library",
                                     built_->folder() + "/example/build/libtwo_towers.so"});
  EXPECT_EQ(sample.exit_code, 2);
  EXPECT_TRUE(absl::StrContains(sample.err, "the model's task is tensors: only a language model can be sampled"))
      << sample.err;
  const Ran inspected = cluster.Muster({"data", "inspect", test});
  EXPECT_EQ(inspected.out, absl::StrCat(test,
                                        ": safetensors\n  user: F32 [60, 8]\n  item: I64 [60]\n"
                                        "  rating: F32 [60]\n"));
  const Ran plan = cluster.Muster({"plan", built_->folder() + "/towers-two-0.yaml"});
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  // 8 x 16 + 16, 50 x 16, and 32 + 1.
  EXPECT_TRUE(absl::StrContains(plan.out,
                                "custom libtwo_towers, 977 parameters, fsdp full_shard on 2 ranks\n"
                                "13 samples a step, 2 microbatches a rank"))
      << plan.out;
}

TEST_F(CustomModelTest, SaysWhichTensorOfWhichFileIsWrong) {
  Cluster cluster;
  cluster.StartCoordinator();
  AllowPlugins(cluster);
  const std::string stars = built_->folder() + "/stars.safetensors";
  WriteRatings(stars, 0, 20, "stars");
  std::string text = TowersText("stars", "{kind: single}", 1);
  text.replace(text.find("ratings.test"), 12, "stars");
  const std::string says = absl::StrCat("data.validation: ", stars,
                                        ": has no tensor \"rating\", which the model reads; it has \"user\", \"item\", "
                                        "\"stars\"");
  // Without nodes on this machine the files are not opened before submission, so a rank finds it.
  const std::string job = Submit(cluster, text, "stars");
  cluster.StartWorker(0, 1);
  ASSERT_TRUE(cluster.WaitForState(job, "failed"));
  const std::string described = cluster.Muster({"describe", job}).out;
  EXPECT_TRUE(absl::StrContains(described, says)) << described;
  const Ran here = cluster.Muster({"submit", "-d", built_->folder() + "/stars.yaml"});
  EXPECT_EQ(here.exit_code, 2);
  EXPECT_TRUE(absl::StrContains(here.err, says)) << here.err;
  text = TowersText("tokens", "{kind: single}", 1);
  text.replace(text.find("tensors: \""), 10, "tokens: \"");
  std::ofstream(built_->folder() + "/tokens.yaml") << text;
  const Ran refused = cluster.Muster({"submit", "-d", built_->folder() + "/tokens.yaml"});
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_TRUE(absl::StrContains(refused.err, "data.tensors: missing: a safetensors file")) << refused.err;
  EXPECT_TRUE(absl::StrContains(refused.err, "data.tokens: is for language models, and this one reads named tensors"))
      << refused.err;
}

TEST_F(CustomModelTest, ThePageShowsTheExample) {
  const auto text = [](const std::string& path) {
    std::ifstream file(path);
    return std::string{std::istreambuf_iterator<char>(file), {}};
  };
  EXPECT_TRUE(absl::StrContains(text("docs/custom_models.md"),
                                absl::StrCat("```cpp\n", text("examples/custom_model/two_towers.cc"), "```\n")));
}

// Neither the coordinator nor the CLI loads the library.
TEST_F(CustomModelTest, IsPlannedWithoutItsCode) {
  Cluster cluster;
  cluster.StartCoordinator();
  const std::string moved = library_ + ".moved";
  fs::rename(library_, moved);
  std::ofstream(built_->folder() + "/plan.yaml") << JobText("plan", "{kind: fsdp}", 2, "batch: {sequences: 8}\n");
  const Ran plan = cluster.Muster({"plan", built_->folder() + "/plan.yaml", "--schedule"});
  fs::rename(moved, library_);
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_TRUE(absl::StrContains(plan.out, "block1")) << plan.out;
}

TEST_F(CustomModelTest, RunsOnlyWhereItsLibraryMay) {
  Cluster cluster;
  cluster.StartCoordinator();
  cluster.StartWorker(0, 1);
  const auto expect_refused = [&](const std::string& name, const std::string& more, const std::string& why) {
    SCOPED_TRACE(name);
    const std::string job = Submit(cluster, JobText(name, "{kind: single}", 1, "batch: {sequences: 8}\n" + more), name);
    ASSERT_TRUE(cluster.WaitForState(job, "failed"));
    const std::string text = cluster.Muster({"describe", job}).out;
    EXPECT_TRUE(absl::StrContains(text, why)) << text;
  };
  expect_refused("no-roots", "", "start it with --plugin-roots");
  EXPECT_EQ(cluster.StopWorker(0), 0);
  cluster.worker_flags = {"--plugin-roots", "/usr/lib"};
  cluster.StartWorker(0, 1);
  expect_refused("elsewhere", "", "it is below none of the worker's --plugin-roots, /usr/lib");
  EXPECT_EQ(cluster.StopWorker(0), 0);
  AllowPlugins(cluster);
  cluster.StartWorker(0, 1);
  chmod(library_.c_str(), 0777);
  expect_refused("writable", "", "chmod go-w");
  chmod(library_.c_str(), 0755);
  // Another inventory than the library's: three blocks, but the options say two.
  json inventory = json::parse(std::ifstream(built_->folder() + "/residual.json"), nullptr, false);
  inventory["options"].push_back({{"name", "blocks"}, {"value", "2"}});
  std::ofstream(built_->folder() + "/other.json") << inventory;
  std::string text = JobText("other", "{kind: single}", 1, "batch: {sequences: 8}\n");
  text.replace(text.find("residual.json"), 13, "other.json");
  const std::string job = Submit(cluster, text, "other");
  ASSERT_TRUE(cluster.WaitForState(job, "failed"));
  const std::string described = cluster.Muster({"describe", job}).out;
  EXPECT_TRUE(absl::StrContains(described, "is not the library that the job's inventory was made of")) << described;
}

}  // namespace
}  // namespace muster::cluster
