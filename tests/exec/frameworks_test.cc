// Scripts of Hugging Face's Trainer and of Lightning, submitted as they are: their losses, as TensorBoard's own reader
// finds them, against those of torchrun; a rank killed with -9 in the middle; a node drained, so that one rank goes on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "testing/wait.h"
#include "tests/cluster/cluster.h"

namespace muster::cluster {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::Contains;
using ::testing::DoubleNear;
using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Minutes(4);  // the imports alone take seconds on a busy machine

struct Framework {
  std::string script;
  std::string packages;  // folder beside the Python of MUSTER_PEER_PYTHON
  std::string folder_flag, steps_flag, more;
  int steps;
  std::string loss;        // its tag
  bool same_after_a_kill;  // it restores its place in the data, too
};

class FrameworksTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* python = std::getenv("MUSTER_PEER_PYTHON");
    ASSERT_NE(python, nullptr) << "run ./test.sh, which sets MUSTER_PEER_PYTHON";
    python_ = python;
    cluster_.worker_flags = {"--exec-jobs", "on"};
    cluster_.StartCoordinator();
    cluster_.StartWorker(0, 1);
    cluster_.StartWorker(1, 1);
  }

  std::string Path(const std::string& name) const { return cluster_.folder() + "/" + name; }
  std::string Environment(const Framework& of) const {
    return absl::StrCat("PYTHONPATH=", fs::path(python_).parent_path().parent_path().string(), "/", of.packages);
  }
  // Each step waits a little until the file "go" is there, so that the job does not end before it is drained.
  std::string PacedEnvironment(const Framework& of) const {
    return absl::StrCat(Environment(of), ":", fs::canonical("tests/exec/paced/sitecustomize.py").parent_path().string(),
                        " --env PACED_UNTIL=", Path("go"));
  }
  std::string Command(const Framework& of, const std::string& folder, int steps) const {
    return absl::StrCat(fs::canonical("examples/exec/" + of.script).string(), " ", of.folder_flag, " ", folder, " ",
                        of.steps_flag, " ", steps, " ", of.more);
  }

  // The losses of each step in all event files below a folder; of a step that was repeated, that of the newest file
  // last.
  using Losses = std::map<int, std::vector<double>>;
  Losses LossesIn(const std::string& folder, const std::string& tag) { return LossesOf(EventFiles(folder), tag); }

  static std::vector<fs::path> EventFiles(const std::string& folder) {
    std::vector<fs::path> files;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      if (absl::StartsWith(entry.path().filename().string(), "events.out.tfevents.")) files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end(), [](const fs::path& a, const fs::path& b) {
      return a.filename() < b.filename();  // the time comes first
    });
    return files;
  }

  Losses LossesOf(const std::vector<fs::path>& files, const std::string& tag) {
    Losses losses;
    for (const fs::path& file : files) {
      const Ran ran =
          cluster_.Shell(absl::StrCat(python_, " ", fs::canonical("tests/observability/read_event_files.py").string(),
                                      " ", file.string()),
                         cluster_.folder(), kPatience);
      const json tags = json::parse(ran.out, nullptr, false);
      EXPECT_TRUE(tags.is_object()) << ran.out << ran.err;
      if (!tags.contains(tag)) continue;
      for (const json& point : tags[tag]) losses[point[0].get<int>()].push_back(point[1].get<double>());
    }
    return losses;
  }

  // What a process started first, and this started in turn: a program of a rank is the child of its muster-exec.
  static pid_t ChildOf(pid_t pid) {
    std::ifstream in(absl::StrCat("/proc/", pid, "/task/", pid, "/children"));
    pid_t child = -1;
    in >> child;
    return child;
  }

  static double MeanOf(const Losses& losses, int first, int count) {
    double sum = 0;
    for (int step = first; step < first + count; ++step) sum += losses.at(step).back();
    return sum / count;
  }

  // Of the newest generation, and of that many before it.
  uint32_t RanksOf(const std::string& id, size_t before = 0) {
    const json job = cluster_.MusterJson({"describe", id});
    return static_cast<uint32_t>(job["generations"][before]["ranks"].size());
  }

  void KilledResumedAndResized(const Framework& of) {
    const Ran theirs = cluster_.Shell(
        absl::StrCat(Environment(of), " HF_HUB_OFFLINE=1 ", python_, " -m torch.distributed.run --nproc_per_node 2 ",
                     Command(of, Path("theirs"), of.steps)),
        cluster_.folder(), kPatience);
    // Not its exit code: on a busy machine PyTorch's processes may abort when they exit.
    const Losses expected = LossesIn(Path("theirs"), of.loss);
    ASSERT_EQ(expected.size(), static_cast<size_t>(of.steps)) << theirs.err;

    const Ran begun = cluster_.Shell(
        absl::StrCat("muster run --ranks 2 --min-ranks 1 --max-restarts 5 -d -o name --env HF_HUB_OFFLINE=1 --env ",
                     PacedEnvironment(of), " -- ", python_, " ", Command(of, Path("ours"), of.steps)),
        cluster_.folder(), kPatience);
    ASSERT_EQ(begun.exit_code, 0) << begun.err;
    const std::string id(absl::StripAsciiWhitespace(begun.out));
    // A step that only its event files tell.
    ASSERT_TRUE(cluster_.WaitForStep(id, 25, kPatience)) << cluster_.Muster({"logs", id}).out;
    const std::string node = cluster_.MusterJson({"nodes"})[1]["id"];
    const std::vector<pid_t> ranks = cluster_.Trainers();
    ASSERT_EQ(ranks.size(), 2u);
    const pid_t program = ChildOf(ranks[1]);
    ASSERT_GT(program, 0);
    ASSERT_EQ(kill(program, SIGKILL), 0) << "it has ended already: more steps are needed";
    ASSERT_TRUE(Eventually([&] { return cluster_.Generation(id) >= 2; }, kPatience));
    uint64_t before = 0;
    for (const json& point : json::parse(cluster_.Muster({"metrics", id, "-o", "json"}).out)) {
      before = std::max(before, Number(point["step"]));
    }
    ASSERT_TRUE(cluster_.WaitForStep(id, before + 25, kPatience)) << cluster_.Muster({"logs", id}).out;
    const std::vector<fs::path> of_two_ranks = EventFiles(Path("ours"));
    ASSERT_EQ(cluster_.Muster({"drain", node}).exit_code, 0);
    ASSERT_TRUE(Eventually([&] { return cluster_.Generation(id) >= 3; }, kPatience));
    std::ofstream(Path("go")) << "go";
    ASSERT_TRUE(cluster_.WaitForState(id, "completed", kPatience)) << cluster_.Muster({"logs", id}).out;
    EXPECT_EQ(RanksOf(id), 1u);
    EXPECT_EQ(RanksOf(id, 1), 2u);
    if (of.same_after_a_kill) {
      const Losses resumed = LossesOf(of_two_ranks, of.loss);
      EXPECT_GE(resumed.rbegin()->first, static_cast<int>(before) + 25);
      for (const auto& [step, losses] : resumed) {
        for (const double loss : losses) EXPECT_NEAR(loss, expected.at(step)[0], 1e-4) << "step " << step;
      }
    }

    const std::string events = cluster_.Muster({"events", id}).out;
    EXPECT_THAT(events, HasSubstr("killed by signal 9"));
    const Losses ours = LossesIn(Path("ours"), of.loss);
    EXPECT_EQ(ours.size(), expected.size()) << "every step, by whichever attempt";
    EXPECT_EQ(ours.rbegin()->first, expected.rbegin()->first);
    EXPECT_LT(MeanOf(ours, ours.rbegin()->first - 50, 50), 0.8 * MeanOf(ours, ours.begin()->first, 10));
    // What the page and `muster metrics` show are these losses: of many steps some, of a repeated one all.
    int compared = 0;
    for (const json& point : json::parse(cluster_.Muster({"metrics", id, "-o", "json"}).out)) {
      if (!point.contains("loss")) continue;
      const int step =
          point["step"].is_string() ? std::stoi(point["step"].get<std::string>()) : point["step"].get<int>();
      ASSERT_TRUE(ours.contains(step)) << step;
      EXPECT_THAT(ours.at(step), Contains(DoubleNear(point["loss"].get<double>(), 1e-6))) << "step " << step;
      ++compared;
    }
    EXPECT_GT(compared, 20);
  }

  Cluster cluster_;
  std::string python_;
};

TEST_F(FrameworksTest, TrainerOfHuggingFace) {
  KilledResumedAndResized({"hf_trainer.py", "peft", "--output_dir", "--max_steps", "--save_total_limit 3", 160,
                           "train/loss", /*same_after_a_kill=*/true});
}

TEST_F(FrameworksTest, Lightning) {
  KilledResumedAndResized({"lightning_fit.py", "scripts", "--folder", "--steps", "", 600, "train_loss",
                           /*same_after_a_kill=*/false});
}

}  // namespace
}  // namespace muster::cluster
