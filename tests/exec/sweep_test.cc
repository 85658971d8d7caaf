// `muster sweep` under a real service: the worst trials are stopped, and an interrupted sweep goes on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/cluster/cluster.h"

namespace muster::cluster {
namespace {

using ::testing::HasSubstr;

class SweepTest : public ::testing::Test {
 protected:
  SweepTest() {
    cluster_.worker_flags = {"--exec-jobs", "on"};
    cluster_.StartCoordinator();
    cluster_.StartWorker(0, 4);
    const std::string script = cluster_.folder() + "/trial";
    // Its loss is its argument divided by the step. Only a good trial comes to an end.
    std::ofstream(script) << "#!/bin/bash\nstep=0\nwhile [ $step -lt ${2:-20} ]; do\n  step=$((step + 1))\n"
                          << "  echo \"{\\\"step\\\": $step, \\\"loss\\\": $(($1 * 1000 / step))}\" >> "
                          << "\"$MUSTER_REPORT_FILE\"\n  sleep 0.02\ndone\n";
    chmod(script.c_str(), 0755);
    file_ = cluster_.folder() + "/job.yaml";
    std::ofstream(file_) << "apiVersion: muster/v1\nkind: Job\nname: any\nworkload: exec\ncommand: [" << script
                         << ", \"1\"]\nworkdir: /tmp\nresources: {ranks: 1}\n";
    array_ = absl::StrCat("command=[", script, ",\"4\",\"1000000\"],[", script, ",\"1\"],[", script,
                          ",\"3\",\"1000000\"],[", script, ",\"2\",\"1000000\"]");
  }

  std::vector<std::string> Command(const std::vector<std::string>& more) const {
    std::vector<std::string> command = {"sweep", "best", file_, "--array", array_};
    command.insert(command.end(), more.begin(), more.end());
    return command;
  }

  Cluster cluster_;
  std::string file_, array_;
};

TEST_F(SweepTest, TheWorstAreStoppedAndAnInterruptedSweepGoesOn) {
  const std::vector<std::string> halving = {"--rungs", "5,10", "-o", "json"};
  std::vector<std::string> once = halving;
  once.emplace_back("-d");
  const Ran begun = cluster_.Muster(Command(once));
  ASSERT_EQ(begun.exit_code, 0) << begun.err;
  EXPECT_THAT(begun.err, HasSubstr("trial 4: best-4-"));
  const Ran ran = cluster_.Muster(Command(halving));
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  const nlohmann::json trials = nlohmann::json::parse(ran.out);
  ASSERT_EQ(trials.size(), 4u);
  std::map<int, std::string> states;
  for (const nlohmann::json& trial : trials) states[trial["trial"]] = trial["state"];
  EXPECT_EQ(states,
            (std::map<int, std::string>{{1, "cancelled"}, {2, "completed"}, {3, "cancelled"}, {4, "cancelled"}}));
  EXPECT_EQ(trials[0]["trial"], 2) << "best first";
  EXPECT_EQ(trials[0]["step"], 20);
  EXPECT_EQ(trials[0]["value"], 50.0);
  EXPECT_THAT(ran.err, HasSubstr("stopped at step 5"));
  EXPECT_THAT(ran.err, HasSubstr(": stopped at step 10"));
  EXPECT_EQ(cluster_.MusterJson({"ps", "-a", "-l", "sweep=best"}).size(), 4u) << "it submitted each trial once";
  // A third time nothing is left to do.
  EXPECT_EQ(nlohmann::json::parse(cluster_.Muster(Command(halving)).out), trials);
  // Jobs that only have its label are none of its.
  const Ran stray = cluster_.Muster({"submit", file_, "--set", "labels=[sweep=best,sweep-trial=1]"});
  ASSERT_EQ(stray.exit_code, 0) << stray.err;
  EXPECT_EQ(nlohmann::json::parse(cluster_.Muster(Command(halving)).out), trials);
  const Ran other = cluster_.Muster({"sweep", "best", file_, "--set", "priority=1", "--array", array_});
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_THAT(other.err, HasSubstr("there is a sweep best with other trials"));
}

TEST_F(SweepTest, RefusesWhatIsNone) {
  const auto refused = [&](const std::vector<std::string>& more, const char* says) {
    std::vector<std::string> command = {"sweep", "x", file_};
    command.insert(command.end(), more.begin(), more.end());
    const Ran ran = cluster_.Muster(command);
    EXPECT_EQ(ran.exit_code, 2) << says;
    EXPECT_THAT(ran.err, HasSubstr(says));
  };
  refused({"--random", "priority=1..2"}, "--random needs --trials");
  refused({"--random", "priority=2..1", "--trials", "3"}, "expected PATH=LOW..HIGH");
  refused({}, "nothing to try");
  refused({"--array", "priority=1,2", "--rungs", "5,5"}, "--rungs: expected ascending steps");
  file_ = cluster_.folder() + "/replicas.yaml";
  std::ofstream(file_) << "apiVersion: muster/v1\nkind: Job\nname: any\nsync: {replicas: 2}\n";
  refused({"--array", "priority=1,2"}, "sync: a trial of a sweep is one job");
  file_ = cluster_.folder() + "/job.yaml";
  refused({"--array", "priority=1,2", "--rungs", "5", "--parallel", "2"}, "with --rungs all trials are compared");
}

// Whatever they call theirs. The jobs wait: there is no worker.
TEST(Sweeps, OfOtherUsersAreNotCounted) {
  Cluster cluster;
  const std::string& folder = cluster.folder();
  const Ran init = cluster.Muster({"coordinator", "init", "--state-dir", folder + "/c", "--host", "gpu-head"});
  ASSERT_EQ(init.exit_code, 0) << init.err;
  cluster.coordinator_flags = {"--listen", "127.0.0.1:0"};
  cluster.StartCoordinator();
  std::string address;
  std::ifstream lines(folder + "/coordinator.out");
  for (std::string line; std::getline(lines, line);) {
    if (absl::StartsWith(line, "listening on 127.0.0.1:")) address = line.substr(line.rfind(' ') + 1);
  }
  ASSERT_NE(address, "");
  for (const std::string user : {"ann", "bob", "eve"}) {
    const Ran made = cluster.Muster(
        {"coordinator", "token", "create", "--role", "submitter", "--user", user, "-o", folder + "/token-" + user});
    ASSERT_EQ(made.exit_code, 0) << made.err;
  }
  const std::string file = folder + "/job.yaml";
  std::ofstream(file) << "apiVersion: muster/v1\nkind: Job\nname: any\nworkload: exec\ncommand: [/bin/true]\n"
                      << "workdir: /tmp\nresources: {ranks: 1}\n";
  const auto sweep = [&](const std::string& user, const std::string& priorities) {
    return cluster.Muster({"sweep", "lr", file, "--array", "priority=" + priorities, "-d", "--address", address,
                           "--token-file", folder + "/token-" + user});
  };
  std::map<std::string, int> jobs;
  const auto count = [&] {
    jobs.clear();
    for (const nlohmann::json& job : cluster.MusterJson({"ps", "-a", "-l", "sweep=lr"})) {
      ++jobs[job["job"].value("owner", "")];
    }
    return jobs;
  };
  for (const auto& [user, priorities] : std::vector<std::pair<std::string, std::string>>{
           {"bob", "1,2"}, {"ann", "1,2"}, {"eve", "3,4"}, {"ann", "1,2"}}) {
    const Ran ran = sweep(user, priorities);
    EXPECT_EQ(ran.exit_code, 0) << user << ": " << ran.err;
  }
  const std::map<std::string, int> two_each = {{"ann", 2}, {"bob", 2}, {"eve", 2}};
  EXPECT_EQ(count(), two_each);
  const Ran other = sweep("ann", "3,4");
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_THAT(other.err, HasSubstr(" of ann): give this one another name"));
  EXPECT_EQ(count(), two_each) << "it is refused before anything is submitted";
}

}  // namespace
}  // namespace muster::cluster
