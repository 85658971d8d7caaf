// A script of Hugging Face's Trainer, submitted as it is: its loss curve in Chromium, point by point what `muster
// metrics` says, on a page that was open before a rank was killed with -9 and the job resumed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "testing/wait.h"
#include "tests/cluster/cluster.h"
#include "tests/web/browser.h"

namespace muster::web {
namespace {

namespace fs = std::filesystem;
using cluster::Cluster;
using cluster::Number;
using cluster::Ran;
using nlohmann::json;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Minutes(4);  // the imports alone take seconds on a busy machine
constexpr int kSteps = 120;

// The program of a rank is the child of its muster-exec.
pid_t ChildOf(pid_t pid) {
  std::ifstream in(absl::StrCat("/proc/", pid, "/task/", pid, "/children"));
  pid_t child = -1;
  in >> child;
  return child;
}

TEST(HuggingFaceTrainer, LossCurveInTheBrowserOverAKill) {
  const char* const python = std::getenv("MUSTER_PEER_PYTHON");
  ASSERT_NE(python, nullptr) << "run ./test.sh, which sets MUSTER_PEER_PYTHON";
  Cluster cluster;
  cluster.coordinator_flags = {"--web_address=127.0.0.1:0"};
  cluster.worker_flags = {"--exec-jobs", "on"};
  cluster.StartCoordinator();
  cluster.StartWorker(0, 2);
  const std::string go = cluster.folder() + "/go";  // until it is there, each step waits a little
  const Ran begun = cluster.Shell(
      absl::StrCat("muster run --ranks 2 --max-restarts 3 -d -o name --env HF_HUB_OFFLINE=1 --env PYTHONPATH=",
                   fs::path(python).parent_path().parent_path().string(), "/peft:",
                   fs::canonical("tests/exec/paced/sitecustomize.py").parent_path().string(), " --env PACED_UNTIL=", go,
                   " -- ", python, " ", fs::canonical("examples/exec/hf_trainer.py").string(), " --output_dir ",
                   cluster.folder(), "/run --max_steps ", kSteps),
      cluster.folder(), kPatience);
  ASSERT_EQ(begun.exit_code, 0) << begun.err;
  const std::string id(absl::StripAsciiWhitespace(begun.out));
  Browser browser;
  const json ui = cluster.MusterJson({"ui"});
  browser.Open(ui.value("link", ""));
  ASSERT_TRUE(browser.Await("document.querySelector('#slots')?.textContent"));
  browser.Open(ui.value("url", "") + "/jobs/" + id);
  const std::string loss = "document.querySelector('[data-title=\"loss\"]')";
  // Past a checkpoint, which the script writes every ten steps.
  ASSERT_TRUE(browser.Await(absl::StrCat("Number(", loss, "?.dataset.step) >= 25"), kPatience));
  const std::vector<pid_t> ranks = cluster.Trainers();
  ASSERT_EQ(ranks.size(), 2u);
  const pid_t program = ChildOf(ranks[1]);
  ASSERT_GT(program, 0);
  ASSERT_EQ(kill(program, SIGKILL), 0) << "it has ended already: more steps are needed";
  std::ofstream(go) << "go";
  ASSERT_TRUE(cluster.WaitForState(id, "completed", kPatience)) << cluster.Muster({"logs", id}).out;
  ASSERT_TRUE(browser.Await("document.querySelector('main p')?.textContent.startsWith('completed')"));
  ASSERT_TRUE(browser.Await(absl::StrCat("Number(", loss, ".dataset.step) >= ", kSteps)));
  EXPECT_EQ(cluster.Generation(id), 2u) << cluster.Muster({"events", id}).out << cluster.Muster({"logs", id}).out;
  EXPECT_THAT(browser.Text("#events"), HasSubstr("killed by signal 9"));

  // Of a step that was repeated after the kill, the last.
  std::map<uint64_t, double> said;
  for (const json& point : json::parse(cluster.Muster({"metrics", id, "-o", "json"}).out)) {
    if (point.contains("loss")) said[Number(point["step"])] = point["loss"].get<double>();
  }
  EXPECT_GE(said.size(), static_cast<size_t>(kSteps) - 1);
  const json data = browser.Eval(loss + ".data");
  std::map<uint64_t, double> shown;
  for (size_t i = 0; i < data[0].size(); ++i) {
    if (data[1][i].is_number()) shown[data[0][i].get<uint64_t>()] = data[1][i].get<double>();
  }
  EXPECT_THAT(shown, ElementsAreArray(said));
  EXPECT_LT(said.rbegin()->second, 0.8 * said.begin()->second) << "it learns";
  EXPECT_EQ(browser.Errors(), json::array());
}

}  // namespace
}  // namespace muster::web
