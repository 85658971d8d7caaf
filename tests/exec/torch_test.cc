// Scripts that anyone would write for torchrun, run by torchrun and by `muster run`: the same environment and losses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "testing/wait.h"
#include "tests/cluster/cluster.h"

namespace muster::cluster {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;
using Environment = std::map<std::string, std::string>;

// Bounds hangs: PyTorch's import alone takes seconds on a busy machine.
constexpr absl::Duration kPatience = absl::Minutes(15);

class TorchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* python = std::getenv("MUSTER_PEER_PYTHON");
    ASSERT_NE(python, nullptr) << "run ./test.sh, which sets MUSTER_PEER_PYTHON";
    python_ = python;
    wheel_ = fs::canonical("sdk/python/muster-0.1.0-py3-none-any.whl");
    cluster_.environment = {"PYTHONPATH=" + wheel_};
    cluster_.worker_flags = {"--exec-jobs", "on"};
  }

  void Start() {
    cluster_.StartCoordinator();
    cluster_.StartWorker(0, 2);
  }

  std::string Path(const std::string& name) const { return cluster_.folder() + "/" + name; }
  static std::string Example(const std::string& name) { return fs::canonical("examples/exec/" + name); }

  // PyTorch's ranks now and then abort where they end on a busy machine ("terminate called without an active
  // exception"), after which torchrun waits for a rank that it did not start. So it is ended as soon as `done` holds, a
  // condition of the shell, and the exit code says whether that does.
  Ran Torchrun(const std::string& arguments, const std::string& done) {
    return cluster_.Shell(
        absl::StrCat("{ ", python_, " -m torch.distributed.run --nproc_per_node 2 --max_restarts 5 ", arguments,
                     " & torchrun=$!; until ", done,
                     "; do kill -0 $torchrun || break; sleep 0.1; done; kill $torchrun; ",
                     "timeout 10 tail --pid=$torchrun -s 0.1 -f /dev/null || kill -KILL $torchrun; ", done, "; }"),
        cluster_.folder(), kPatience);
  }
  // That the file has the losses up to this step.
  std::string HasLosses(const std::string& name, int steps) const {
    return absl::StrCat("grep -qs '^", steps, " ' ", Path(name));
  }
  // `more`: folders of modules.
  Ran MusterRun(const std::string& flags, const std::string& arguments, const std::string& more = "") {
    return cluster_.Shell(absl::StrCat("muster run --ranks 2 --max-restarts 5 --env PYTHONPATH=", wheel_, more, " ",
                                       flags, " -- ", python_, " ", arguments),
                          cluster_.folder(), kPatience);
  }

  // By step; of a step that was repeated, the last.
  static std::map<int, std::string> LossesIn(const std::string& path) {
    std::map<int, std::string> losses;
    std::ifstream in(path);
    int step = 0;
    for (std::string loss; in >> step >> loss;) losses[step] = loss;
    return losses;
  }

  static Environment ReadEnvironment(const std::string& path) {
    std::ifstream in(path);
    return nlohmann::json::parse(in).get<Environment>();
  }

  Cluster cluster_;
  std::string python_, wheel_;
};

TEST_F(TorchTest, EveryVariableOfTorchrunIsThere) {
  Start();
  const std::string script = fs::canonical("tests/exec/show_env.py");
  fs::create_directories(Path("theirs"));
  fs::create_directories(Path("ours"));
  const auto whole = [&](const std::string& file) {
    return absl::StrCat("[ \"$(tail -c 1 ", Path("theirs/" + file), " 2>/dev/null)\" = '}' ]");
  };
  const Ran theirs =
      Torchrun(script + " " + Path("theirs"), absl::StrCat(whole("env-0.json"), " && ", whole("env-1.json")));
  const Ran ours = MusterRun("", script + " " + Path("ours"));
  ASSERT_EQ(theirs.exit_code, 0) << theirs.err;
  ASSERT_EQ(ours.exit_code, 0) << ours.out << ours.err;
  // Values that no two launchers share, or that are documented to differ (worker/exec/environment.h).
  const std::set<std::string> own_value = {"MASTER_PORT",         "MASTER_ADDR",
                                           "OMP_NUM_THREADS",     "TORCHELASTIC_ERROR_FILE",
                                           "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE"};
  for (const char* rank : {"0", "1"}) {
    const Environment expected = ReadEnvironment(absl::StrCat(Path("theirs/env-"), rank, ".json"));
    Environment got = ReadEnvironment(absl::StrCat(Path("ours/env-"), rank, ".json"));
    int compared = 0;
    for (const auto& [name, value] : expected) {
      const bool of_launcher = absl::StartsWith(name, "TORCH") || absl::EndsWith(name, "RANK") ||
                               absl::EndsWith(name, "WORLD_SIZE") || absl::StartsWith(name, "MASTER_") ||
                               name == "ROLE_NAME" || name == "OMP_NUM_THREADS";
      // What torchrun sets for itself, its own signal handling.
      if (!of_launcher || name == "TORCHELASTIC_SIGNALS_TO_HANDLE") continue;
      EXPECT_TRUE(got.contains(name)) << name << "=" << value;
      if (own_value.contains(name)) continue;
      EXPECT_EQ(got[name], value) << name;
      ++compared;
    }
    EXPECT_GE(compared, 11) << "RANK to TORCH_NCCL_ASYNC_ERROR_HANDLING";
  }
}

TEST_F(TorchTest, AnUnchangedScriptTrainsTheSame) {
  Start();
  const Ran theirs = Torchrun(
      absl::StrCat(Example("ddp.py"), " --steps 24 --checkpoint ", Path("theirs.pt"), " --losses ", Path("theirs")),
      HasLosses("theirs", 24));
  ASSERT_EQ(theirs.exit_code, 0) << theirs.err;
  const Ran ours = MusterRun(
      "", absl::StrCat(Example("ddp.py"), " --steps 24 --checkpoint ", Path("ours.pt"), " --losses ", Path("ours")));
  ASSERT_EQ(ours.exit_code, 0) << ours.out << ours.err;
  ASSERT_EQ(LossesIn(Path("theirs")).size(), 24u);
  EXPECT_EQ(LossesIn(Path("ours")), LossesIn(Path("theirs"))) << "to the last bit";
  EXPECT_THAT(ours.out, HasSubstr("rank 0: step 24 loss "));
  // What it reported by the package.
  const Ran metrics = cluster_.Muster({"metrics", "@last", "-o", "json"});
  const nlohmann::json points = nlohmann::json::parse(metrics.out);
  EXPECT_EQ(points.size(), 24u);
  EXPECT_THAT(cluster_.Muster({"events", "@last"}).out, HasSubstr("checkpoint of step 20, by its script"));
  // Killed in step 15, it resumes from its checkpoint of step 10.
  const Ran crashed = MusterRun("", absl::StrCat(Example("ddp.py"), " --steps 24 --crash_at 15 --checkpoint ",
                                                 Path("crashed.pt"), " --losses ", Path("crashed")));
  ASSERT_EQ(crashed.exit_code, 0) << crashed.out << crashed.err;
  EXPECT_EQ(LossesIn(Path("crashed")), LossesIn(Path("theirs")));
  const std::string text = crashed.out + crashed.err;
  EXPECT_THAT(text, HasSubstr("killed by signal 9"));
}

TEST_F(TorchTest, APauseSavesAndAResumeContinues) {
  Start();
  const std::string arguments =
      absl::StrCat(Example("ddp.py"), " --steps 100000 --checkpoint ", Path("a.pt"), " --losses ", Path("losses"));
  const Ran begun = MusterRun("-d -o name", arguments);
  ASSERT_EQ(begun.exit_code, 0) << begun.err;
  const std::string id(absl::StripAsciiWhitespace(begun.out));
  ASSERT_TRUE(cluster_.WaitForStep(id, 5, kPatience));
  ASSERT_EQ(cluster_.Muster({"pause", id}).exit_code, 0);
  ASSERT_TRUE(cluster_.WaitForState(id, "paused", kPatience));
  const std::map<int, std::string> before = LossesIn(Path("losses"));
  ASSERT_EQ(cluster_.Muster({"resume", id}).exit_code, 0);
  ASSERT_TRUE(cluster_.WaitForStep(id, before.rbegin()->first + 5, kPatience));
  ASSERT_EQ(cluster_.Muster({"cancel", id}).exit_code, 0);
  ASSERT_TRUE(cluster_.WaitForState(id, "cancelled", kPatience));
  // Each step once: it stopped after the step that it saved.
  std::ifstream in(Path("losses"));
  int next = 1, step = 0;
  for (std::string loss; in >> step >> loss; ++next) ASSERT_EQ(step, next);
  EXPECT_GT(next, before.rbegin()->first + 5);
}

TEST_F(TorchTest, FullySharded) {
  Start();
  const Ran theirs = Torchrun(Example("fsdp2.py") + " --steps 5 --losses " + Path("theirs"), HasLosses("theirs", 5));
  ASSERT_EQ(theirs.exit_code, 0) << theirs.err;
  const Ran ours = MusterRun("", Example("fsdp2.py") + " --steps 5");
  ASSERT_EQ(ours.exit_code, 0) << ours.out << ours.err;
  std::set<std::string> lines;
  for (const absl::string_view line : absl::StrSplit(theirs.out, '\n', absl::SkipEmpty())) {
    if (absl::StartsWith(line, "step ")) lines.emplace(line);
  }
  EXPECT_EQ(lines.size(), 5u);
  for (const std::string& line : lines) EXPECT_THAT(ours.out, HasSubstr(absl::StrCat("rank 0: ", line, "\n")));
}

TEST_F(TorchTest, FullyShardedIsKilledResumedAndResized) {
  Start();
  constexpr int kSteps = 400;
  const auto arguments = [&](const std::string& name, int steps) {
    return absl::StrCat(Example("fsdp2.py"), " --steps ", steps, " --checkpoint ", Path(name + "-shards"), " --losses ",
                        Path(name));
  };
  const Ran theirs = Torchrun(arguments("theirs", kSteps), HasLosses("theirs", kSteps));
  ASSERT_EQ(theirs.exit_code, 0) << theirs.err;
  const Ran begun = MusterRun("-d -o name --env PACED_UNTIL=" + Path("go"), arguments("ours", kSteps - 50),
                              ":" + fs::canonical("tests/exec/paced/sitecustomize.py").parent_path().string());
  ASSERT_EQ(begun.exit_code, 0) << begun.err;
  const std::string id(absl::StripAsciiWhitespace(begun.out));
  ASSERT_TRUE(cluster_.WaitForStep(id, 25, kPatience));
  const std::vector<pid_t> ranks = cluster_.Trainers();
  ASSERT_EQ(ranks.size(), 2u);
  std::ifstream children(absl::StrCat("/proc/", ranks[0], "/task/", ranks[0], "/children"));
  pid_t program = -1;
  ASSERT_TRUE(children >> program) << "it has ended already: more steps are needed";
  ASSERT_EQ(kill(program, SIGKILL), 0);
  std::ofstream(Path("go")) << "go";
  ASSERT_TRUE(cluster_.WaitForState(id, "completed", kPatience));
  EXPECT_EQ(cluster_.Generation(id), 2u) << cluster_.Muster({"events", id}).out << cluster_.Muster({"logs", id}).out;
  // The rest on one rank, whose shard is the whole.
  const Ran alone = cluster_.Shell(absl::StrCat("muster run --ranks 1 -- ", python_, " ", arguments("ours", kSteps)),
                                   cluster_.folder(), kPatience);
  ASSERT_EQ(alone.exit_code, 0) << alone.out << alone.err;
  EXPECT_THAT(alone.out, Not(HasSubstr("step 1 loss"))) << "it resumes";
  const std::map<int, std::string> expected = LossesIn(Path("theirs")), got = LossesIn(Path("ours"));
  ASSERT_EQ(got.size(), static_cast<size_t>(kSteps));
  for (const auto& [step, loss] : expected) {
    // Two ranks sum in another order than one.
    EXPECT_NEAR(std::stod(got.at(step)), std::stod(loss), step <= kSteps - 50 ? 1e-6 : 1e-3) << "step " << step;
  }
}

TEST_F(TorchTest, ThePackageDoesWhatItSays) {
  const Ran ran = cluster_.Shell(
      absl::StrCat(python_, " ", fs::canonical("sdk/python/muster_test.py").string(), " ", wheel_), cluster_.folder());
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
}

}  // namespace
}  // namespace muster::cluster
