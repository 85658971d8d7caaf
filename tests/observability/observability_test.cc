// What other tools see of a running service: the pages through promtool, the alerts and the dashboard against what the
// daemons export, the event files through TensorBoard's reader.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/metrics/testing.h"
#include "testing/wait.h"
#include "tests/cluster/cluster.h"

namespace muster::cluster {
namespace {

using nlohmann::json;

std::string Read(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// The output of a command on both streams, and its exit status.
std::pair<int, std::string> Shell(const std::string& command) {
  std::FILE* pipe = popen(absl::StrCat(command, " 2>&1").c_str(), "r");
  std::string out;
  char buffer[4096];
  for (size_t count; (count = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) out.append(buffer, count);
  return {pclose(pipe), out};
}

// "metrics at http://127.0.0.1:PORT/metrics" of a daemon's output.
std::string AddressIn(const std::string& path) {
  std::smatch found;
  std::string text;
  EXPECT_TRUE(Eventually(
      [&] {
        text = Read(path);
        return std::regex_search(text, std::regex("metrics at http://.*/metrics"));
      },
      absl::Seconds(30)));
  return std::regex_search(text, found, std::regex("metrics at http://(.*)/metrics")) ? found[1].str() : "";
}

// Every metric name of ours in a text of PromQL.
std::set<std::string> NamesIn(const std::string& text) {
  static const std::regex name("\\bmuster_[a-z_]+");
  std::set<std::string> names;
  for (std::sregex_iterator it(text.begin(), text.end(), name), end; it != end; ++it) names.insert(it->str());
  return names;
}

// Names of the series of a page, without labels.
std::set<std::string> SeriesOf(const std::string& page) {
  std::set<std::string> names;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(page, '\n', absl::SkipEmpty()))) {
    if (line[0] != '#') names.insert(line.substr(0, line.find_first_of("{ ")));
  }
  return names;
}

void CollectExpressions(const json& tree, std::string& all) {
  if (tree.is_object() || tree.is_array()) {
    for (const auto& [key, value] : tree.items()) {
      if (value.is_string() && (key == "expr" || key == "query" || key == "definition")) {
        absl::StrAppend(&all, value.get<std::string>(), "\n");
      }
      CollectExpressions(value, all);
    }
  }
}

class ObservabilityTest : public ::testing::Test {
 protected:
  ObservabilityTest() {
    const std::string tracking = cluster_.folder() + "/tracking.yaml";  // of a server that is not there
    std::ofstream(tracking) << "tracking:\n- name: mlflow\n  mlflow: {url: \"http://127.0.0.1:9\"}\n";
    std::filesystem::permissions(tracking, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
    cluster_.coordinator_flags = {"--metrics-address", "127.0.0.1:0", "--measure-links-every", "1ms",
                                  "--tracking",        tracking};
    cluster_.worker_flags = {"--metrics-address", "127.0.0.1:0"};
    cluster_.StartCoordinator();
    cluster_.StartWorker(0, 1);
    coordinator_ = AddressIn(cluster_.folder() + "/coordinator.out");
    worker_ = AddressIn(cluster_.folder() + "/w0.out");
  }
  void Lint(const std::string& page) const {
    const std::string path = cluster_.folder() + "/page";
    std::ofstream(path) << page;
    const auto [status, out] = Shell(absl::StrCat("promtool check metrics < ", path));
    EXPECT_EQ(status, 0) << out << page;
    EXPECT_EQ(out, "") << page;
  }
  // What TensorBoard reads of a job.
  json EventsOf(const std::string& job) {
    const char* python = getenv("MUSTER_PEER_PYTHON");
    if (python == nullptr) {
      ADD_FAILURE() << "MUSTER_PEER_PYTHON is not set: run ./test.sh, or tools/fetch_torch.sh peer and pass "
                       "--test_env=MUSTER_PEER_PYTHON=~/.cache/muster/peer/bin/python";
      return {};
    }
    const std::string folder = cluster_.MusterJson({"describe", job})["tensorboard_directory"].get<std::string>();
    const auto [status, out] =
        Shell(absl::StrCat("(", python, " tests/observability/read_event_files.py ", folder, " 2>/dev/null)"));
    EXPECT_EQ(status, 0) << out;
    return json::parse(out, nullptr, false);
  }

  Cluster cluster_;
  std::string coordinator_, worker_;
};

TEST_F(ObservabilityTest, PagesAlertsAndDashboardFitEachOther) {
  // On two nodes, and for the second time: links have a usual bandwidth, too.
  cluster_.StartWorker(1, 1);
  const std::string two = "resources: {ranks: 2}\nstrategy: {kind: ddp}\n";
  ASSERT_TRUE(Eventually([&] { return cluster_.MusterJson({"nodes"}).size() == 2; }, absl::Seconds(30)));
  ASSERT_TRUE(cluster_.WaitForState(cluster_.Submit({.name = "first", .steps = 2, .extra = two}), "completed"));
  const std::string job = cluster_.Submit({.name = "seen", .steps = 100000, .extra = two});
  ASSERT_TRUE(cluster_.WaitForStep(job, 3));
  std::string page;
  const std::string tokens = absl::StrCat("muster_job_tokens_per_second{job_id=\"", job, "\"}");
  EXPECT_TRUE(Eventually([&] { return !SeriesValue(page = GetPage(coordinator_), tokens).empty(); }, absl::Seconds(30)))
      << page;
  Lint(page);
  EXPECT_EQ(SeriesValue(page, "muster_jobs{state=\"running\"}"), "1");
  const std::string of_worker = GetPage(worker_);
  Lint(of_worker);
  EXPECT_EQ(SeriesValue(of_worker, "muster_worker_ranks_running"), "1");
  EXPECT_EQ(SeriesValue(of_worker, "muster_worker_connected"), "1");
  EXPECT_EQ(SeriesValue(of_worker, "muster_worker_slots"), "1");

  std::set<std::string> exported = SeriesOf(page);
  exported.merge(SeriesOf(of_worker));
  std::string dashboard;
  CollectExpressions(json::parse(Read("deploy/grafana/muster.json")), dashboard);
  EXPECT_GT(NamesIn(dashboard).size(), 15u);
  for (const std::string& text : {dashboard, Read("deploy/prometheus/alerts.yml")}) {
    for (const std::string& name : NamesIn(text)) EXPECT_TRUE(exported.contains(name)) << name;
  }
  const auto [rules, rules_output] = Shell("promtool check rules deploy/prometheus/alerts.yml");
  EXPECT_EQ(rules, 0) << rules_output;
  const auto [config, config_output] = Shell("promtool check config deploy/prometheus/prometheus.yml");
  EXPECT_EQ(config, 0) << config_output;

  EXPECT_EQ(cluster_.Muster({"cancel", "-y", job}).exit_code, 0);
  ASSERT_TRUE(cluster_.WaitForState(job, "cancelled"));
  EXPECT_EQ(SeriesValue(GetPage(coordinator_), tokens), "");
}

TEST(Alerts, FireAndGoOut) {
  const auto [status, out] = Shell("promtool test rules tests/observability/alerts_test.yml");
  EXPECT_EQ(status, 0) << out;
  EXPECT_TRUE(absl::StrContains(out, "SUCCESS")) << out;
}

TEST_F(ObservabilityTest, TensorBoardReadsEveryStepAlsoOfARestartedJob) {
  constexpr int kSteps = 60;
  const std::string job = cluster_.Submit({.name = "board", .steps = kSteps, .checkpoint_every = 20});
  ASSERT_TRUE(cluster_.WaitForStep(job, 25));
  // A second generation repeats the steps after its checkpoint; the coordinator is killed as well.
  for (const pid_t trainer : cluster_.Trainers()) kill(trainer, SIGKILL);
  cluster_.KillCoordinator();
  cluster_.StartCoordinator();
  ASSERT_TRUE(cluster_.WaitForState(job, "completed"));
  json events;
  EXPECT_TRUE(Eventually(
      [&] {
        events = EventsOf(job);
        return events.contains("train/loss") && events["train/loss"].size() >= kSteps;
      },
      absl::Seconds(30)))
      << events;
  ASSERT_EQ(events["train/loss"].size(), static_cast<size_t>(kSteps)) << events["train/loss"];
  for (int i = 0; i < kSteps; ++i) EXPECT_EQ(events["train/loss"][i][0], i + 1);
  EXPECT_EQ(events["train/gradient_norm"].size(), static_cast<size_t>(kSteps));
  EXPECT_TRUE(events.contains("train/learning_rate"));
  EXPECT_TRUE(events.contains("perf/tokens_per_second"));
  // The same values as everywhere else.
  const json points = json::parse(cluster_.Muster({"metrics", job, "-o", "json", "--tail", "1"}).out);
  EXPECT_NEAR(events["train/loss"][kSteps - 1][1].get<double>(), points[0]["loss"].get<double>(), 1e-6);
  EXPECT_TRUE(absl::StrContains(cluster_.Muster({"describe", job}).out, "TensorBoard:"));
  EXPECT_GT(points[0]["model_flops_per_second"].get<double>(), 1e6) << points;
  json nodes;
  EXPECT_TRUE(Eventually([&] {
    nodes = json::parse(cluster_.Muster({"nodes", "-o", "json"}).out);
    return nodes.at(0).contains("use");
  })) << nodes;
  EXPECT_GE(nodes[0]["use"]["cores"].get<int>(), 1);
  EXPECT_TRUE(absl::StrContains(cluster_.Muster({"top", "--once"}).out, "BUSY CORES"));
}

}  // namespace
}  // namespace muster::cluster
