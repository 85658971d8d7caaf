// `python -m muster.wandb` with the real wandb package in offline mode, also killed in the middle.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "testing/wait.h"
#include "tests/cluster/cluster.h"
#include "tests/tracking/trackers_test.h"

namespace muster::cluster {
namespace {

namespace fs = std::filesystem;

TEST(Wandb, EveryPointIsThereOnceAlsoAfterAKill) {
  const std::string python = TrackersPython();
  Cluster cluster;
  const std::string& folder = cluster.folder();
  cluster.worker_flags = {"--exec-jobs", "on"};
  cluster.StartCoordinator();
  cluster.StartWorker(0, 1);
  const std::string script = folder + "/script";
  std::ofstream(script) << R"(#!/bin/bash
step=0
while [ $step -lt 1000 ]; do
  step=$((step + 1))
  printf '{"step": %d, "loss": %d.25, "eval/f1": 0.%04d}\n' $step $((1000 / step)) $step >> "$MUSTER_REPORT_FILE"
  [ $step = 300 ] && until [ -e "$1" ]; do sleep 0.05; done
  sleep 0.01
  [ $((step % 100)) = 0 ] && sleep 5
  [ $step = 500 ] && exit 0
done
)";
  chmod(script.c_str(), 0755);
  const std::string file = folder + "/paced.yaml";
  std::ofstream(file) << "apiVersion: muster/v1\nkind: Job\nname: paced\nworkload: exec\ncommand: [" << script << ", "
                      << folder << "/go-on]\nworkdir: " << folder
                      << "\nresources: {ranks: 1}\nenv: [{name: TOKEN, value: secret value}]\nlabels: {team: nlp}\n";
  const Ran ran = cluster.Muster({"submit", "-d", file, "-o", "name"});
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  const std::string id = ran.out.substr(0, ran.out.find('\n'));

  const std::string follow = absl::StrCat("HOME=", folder, " WANDB_SILENT=true PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=",
                                          fs::canonical("sdk/python/muster-0.1.0-py3-none-any.whl").string(), " ",
                                          python, " -m muster.wandb ");
  const std::string first =
      absl::StrCat("(", follow, id, " --dir ", folder, "/w > first 2>&1 & echo $! > pid; wait $!) &");
  ASSERT_EQ(cluster.Shell(first, folder).exit_code, 0);
  const auto written = [&] {
    uint64_t bytes = 0;
    std::error_code error;
    for (const auto& entry : fs::recursive_directory_iterator(folder + "/w", error)) {
      if (entry.path().extension() == ".wandb") bytes += entry.file_size(error);
    }
    return bytes;
  };
  const auto text = [&](const std::string& name) {
    std::ifstream in(folder + "/" + name);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  // A row takes more than 100 bytes: some rows of those 300 are on disk.
  ASSERT_TRUE(Eventually([&] { return written() > 20'000; }, absl::Minutes(4))) << written() << text("first");
  pid_t pid = 0;
  ASSERT_TRUE(absl::SimpleAtoi(text("pid"), &pid)) << text("pid");
  kill(pid, SIGKILL);
  std::ofstream(folder + "/go-on") << "now";
  const Ran second = cluster.Shell(absl::StrCat(follow, id, " --dir ", folder, "/w"), folder, absl::Minutes(5));
  ASSERT_EQ(second.exit_code, 0) << second.out << second.err;
  EXPECT_EQ(second.out, "completed\n") << second.err;
  std::ofstream(folder + "/metrics.json") << cluster.MusterJson({"metrics", id});
  const auto check = [&] {
    return cluster.Shell(absl::StrCat(python, " ", fs::canonical("tests/tracking/check_wandb.py").string(), " ", folder,
                                      "/w ", id, " metrics.json"),
                         folder);
  };
  const Ran same = check();
  EXPECT_EQ(same.exit_code, 0) << same.err;
  EXPECT_EQ(same.out, "500 2\n");
  // Nothing is left to copy.
  const Ran third =
      cluster.Shell(absl::StrCat(follow, id, " --dir ", folder, "/w --no-follow"), folder, absl::Minutes(5));
  ASSERT_EQ(third.exit_code, 0) << third.err;
  EXPECT_EQ(check().out, "500 3\n");
  // W&B's own command takes them.
  const Ran sync = cluster.Shell(absl::StrCat("HOME=", folder, " ", python, " -m wandb sync --dry-run"), folder + "/w");
  EXPECT_EQ(sync.exit_code, 0) << sync.err;
  EXPECT_NE((sync.out + sync.err).find("Would sync 3 run(s)"), std::string::npos) << sync.out << sync.err;
}

}  // namespace
}  // namespace muster::cluster
