// `muster local up --nodes 3`: three worker daemons on one machine as separate nodes, as users run them.
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "testing/wait.h"
#include "tests/cluster/cluster.h"

namespace muster::cluster {
namespace {

using nlohmann::json;

class LocalNodesTest : public testing::Test {
 protected:
  ~LocalNodesTest() override { Muster("local down --force --timeout 10s"); }

  // At the address that `local` chose, without any setting.
  Ran Muster(const std::string& arguments) {
    return cluster_.Shell(absl::StrCat("unset MUSTER_ADDRESS; muster ", arguments), cluster_.folder());
  }
  json MusterJson(const std::string& arguments) {
    const Ran ran = Muster(absl::StrCat(arguments, " -o json"));
    json parsed = json::parse(ran.out, nullptr, false);
    EXPECT_FALSE(parsed.is_discarded()) << arguments << ": " << ran.out << ran.err;
    return parsed.is_discarded() ? json::object() : parsed;
  }
  std::map<std::string, pid_t> Pids() {
    std::map<std::string, pid_t> pids;
    const json status = MusterJson("local status");
    for (const json& daemon : status["daemons"]) {
      if (daemon["running"]) pids[daemon["name"]] = daemon["pid"];
    }
    return pids;
  }
  // Each node's state, by its id: "live".
  std::map<std::string, std::string> Nodes() {
    std::map<std::string, std::string> states;
    const json reply = MusterJson("nodes");
    for (const json& node : reply.is_array() ? reply : reply["nodes"]) states[node["id"]] = node["state"];
    return states;
  }
  std::string Submit(const std::string& name, int steps, const std::string& more) {
    std::ofstream(absl::StrCat(cluster_.folder(), "/", name, ".yaml"))
        << "apiVersion: muster/v1\nkind: Job\nname: " << name
        << "\nmodel: {family: gpt2, layers: 2, heads: 2, width: 32, vocabulary: 256, context: 16}\n"
        << "data: {tokens: train.bin}\nbatch: {sequences: 4}\nsteps: " << steps << "\n"
        << more;
    const Ran ran = Muster(absl::StrCat("submit -d -o name ", name, ".yaml"));
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    return std::string(absl::StripAsciiWhitespace(ran.out));
  }
  json Job(const std::string& id) {
    json all = MusterJson("describe " + id);
    return all.contains("job") ? all["job"] : all;
  }
  bool Reaches(const std::string& id, const std::string& state) {
    return Eventually([&] { return Job(id).value("state", "") == state; }, absl::Seconds(90));
  }

  Cluster cluster_;
};

TEST_F(LocalNodesTest, ThreeNodesRunJobsAndOneIsLostAndComesBack) {
  const Ran up = Muster("local up --nodes 3 --slots 2 --timeout 60s");
  ASSERT_EQ(up.exit_code, 0) << up.err;
  const std::map<std::string, std::string> live = {{"node-0", "live"}, {"node-1", "live"}, {"node-2", "live"}};
  EXPECT_EQ(Nodes(), live);

  // A gang of four fills two nodes, consecutive ranks side by side; one of seven waits and says why.
  const std::string gang = Submit("gang", 1, "strategy: {kind: ddp}\nresources: {ranks: 4}\n");
  const std::string large = Submit("large", 1, "strategy: {kind: ddp}\nresources: {ranks: 7}\n");
  std::vector<std::string> placed;
  EXPECT_TRUE(Eventually(
      [&] {
        placed.clear();
        const json all = MusterJson("describe " + gang);
        if (!all.contains("generations") || all["generations"].empty()) return false;
        for (const json& rank : all["generations"].back()["ranks"]) placed.push_back(rank["node"]);
        return true;
      },
      absl::Seconds(30)));
  // Which two depends on whose worker has checked its machine by now.
  ASSERT_EQ(placed.size(), 4u);
  EXPECT_TRUE(placed[0] == placed[1] && placed[2] == placed[3] && placed[0] < placed[2]) << absl::StrJoin(placed, " ");
  EXPECT_TRUE(absl::StrContains(Job(large).value("reason", ""), "needs 7 slots on cpu, the nodes have 6 in all"))
      << Job(large).dump();
  for (const std::string& id : {gang, large}) Muster("cancel -y " + id);
  EXPECT_TRUE(Reaches(large, "cancelled"));

  // When a daemon dies, its ranks stay for the next one, which `local up` starts.
  const std::string one = Submit("one", 1'000'000, "");
  const auto step = [&] { return Number(MusterJson("describe " + one)["last_metrics"]["step"]); };
  ASSERT_TRUE(Eventually([&] { return step() > 0; }, absl::Seconds(90)));
  const std::map<std::string, pid_t> before = Pids();
  ASSERT_EQ(before.size(), 4u);
  const json generations = MusterJson("describe " + one)["generations"];
  const std::string node = generations.back()["ranks"][0]["node"];
  const std::string home = absl::StrCat("worker-", node.substr(node.size() - 1));
  kill(before.at(home), SIGKILL);
  EXPECT_TRUE(Eventually([&] { return Nodes().at(node) != "live"; }, absl::Seconds(30)));
  ASSERT_EQ(Muster("local up --timeout 60s").exit_code, 0);
  EXPECT_EQ(Nodes(), live);
  const uint64_t adopted = step();
  EXPECT_TRUE(Eventually([&] { return step() > adopted; }, absl::Seconds(90)));
  EXPECT_EQ(Number(Job(one)["generation"]), 1u);
  EXPECT_EQ(Job(one).value("restarts", 0), 0);
  Muster("cancel -y " + one);
  EXPECT_TRUE(Reaches(one, "cancelled"));

  // A node that stays away is lost; the others continue.
  kill(Pids().at("worker-2"), SIGKILL);
  EXPECT_TRUE(Eventually([&] { return Nodes().at("node-2") == "lost"; }, absl::Seconds(60)));
  EXPECT_EQ(Nodes().at("node-1"), "live");
  const Ran other = Muster("local up --nodes 2");
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_TRUE(absl::StrContains(other.err, "the service is running with 3 nodes, not 2")) << other.err;
  const Ran down = Muster("local down");
  EXPECT_EQ(down.exit_code, 0) << down.err;
  EXPECT_FALSE(absl::StrContains(down.err, "draining")) << "no job runs: " << down.err;
  EXPECT_TRUE(Pids().empty());

  // A smaller service: neither the node that was away a moment ago nor the one that was lost is listed.
  ASSERT_EQ(Muster("local up --nodes 1 --timeout 60s").exit_code, 0);
  EXPECT_EQ(Nodes(), (std::map<std::string, std::string>{{"node-0", "live"}}));
}

}  // namespace
}  // namespace muster::cluster
