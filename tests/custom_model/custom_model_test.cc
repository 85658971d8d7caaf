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
    for (const char* name : {"CMakeLists.txt", "job.yaml", "model.cc"}) {
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

  static std::string JobText(const std::string& name, const std::string& strategy, int ranks, const std::string& more) {
    return absl::StrCat(
        "apiVersion: muster/v1\nkind: Job\nname: ", name,
        "\nmodel: {family: custom, inventory: residual.json}\ndata: {images: images.bin, validation: images.bin}\n"
        "strategy: ",
        strategy, "\nresources: {ranks: ", ranks,
        "}\noptimizer: {kind: sgd, momentum: 0.9, lr: 0.05, clip_norm: 1.0}\nsteps: ", kSteps,
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
    cluster.worker_flags = {"--plugin_roots", built_->folder() + "/example/build"};
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
// microbatches of four, and two ranks with four images each.
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
    ExpectSameCustomWeights(Weights(cluster, name), right, 1e-5, name);
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
  EXPECT_EQ(refused.exit_code, 1) << refused.out;
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
    return JobText(name, "{kind: fsdp}", 2, "batch: {sequences: 8, microbatch: 2}\nactivation_checkpointing: true\n");
  };
  const std::string whole = Submit(cluster, text("whole"), "whole");
  ASSERT_TRUE(cluster.WaitForState(whole, "completed"));
  const std::string killed = Submit(cluster, text("killed"), "killed");
  ASSERT_TRUE(cluster.WaitForStep(killed, 5));
  const std::vector<pid_t> trainers = cluster.Trainers();
  ASSERT_FALSE(trainers.empty());
  kill(trainers.front(), SIGKILL);
  ASSERT_TRUE(cluster.WaitForState(killed, "completed"));
  EXPECT_GT(cluster.Generation(killed), 1u) << "it was not killed in time";
  const auto right = Weights(cluster, "whole"), ours = Weights(cluster, "killed");
  EXPECT_EQ(ours, right);
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
  expect_refused("no-roots", "", "start it with --plugin_roots");
  EXPECT_EQ(cluster.StopWorker(0), 0);
  cluster.worker_flags = {"--plugin_roots", "/usr/lib"};
  cluster.StartWorker(0, 1);
  expect_refused("elsewhere", "", "it is below none of the worker's --plugin_roots, /usr/lib");
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
