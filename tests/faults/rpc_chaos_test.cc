// Real daemons, trainers and the CLI over a network that loses a tenth of all requests and a tenth of all replies and
// breaks the stream of every twentieth message (common/rpc/chaos.h): jobs complete in their first generation as if
// nothing had happened, and CLI requests succeed. coordinator/server/chaos_test covers each method by name.
#include <gtest/gtest.h>

#include <map>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/cluster/cluster.h"

namespace muster::cluster {
namespace {

using nlohmann::json;

class RpcChaos : public ::testing::Test {
 protected:
  RpcChaos() {
    cluster_.environment = {"MUSTER_RPC_CHAOS=requests=0.1,replies=0.1,streams=0.05"};
    cluster_.StartCoordinator();
    cluster_.StartWorker(0, 1);
    cluster_.StartWorker(1, 1);
  }

  static std::string Text(const json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

  json Listed(const std::string& what, const std::string& id) {
    const Ran ran = cluster_.Muster({what, id, "-o", "json"});
    EXPECT_EQ(ran.exit_code, 0) << what << ": " << ran.out << ran.err;
    json whole = json::parse(ran.out, nullptr, /*allow_exceptions=*/false);
    if (whole.is_array()) return whole;
    json items = json::array();  // one for each line
    std::stringstream lines(ran.out);
    for (std::string line; std::getline(lines, line);) items.push_back(json::parse(line, nullptr, false));
    return items;
  }
  // How often each step's metrics were stored.
  std::map<std::string, int> Steps(const std::string& id) {
    std::map<std::string, int> steps;
    for (const json& item : Listed("metrics", id)) {
      ++steps[Text((item.contains("metrics") ? item["metrics"] : item)["step"])];
    }
    return steps;
  }
  void ExpectUndisturbed(const std::string& id, size_t steps) {
    ASSERT_TRUE(cluster_.WaitForState(id, "completed"));
    EXPECT_EQ(Text(cluster_.Job(id)["generation"]), "1") << "a lost message has cost a generation";
    const std::map<std::string, int> seen = Steps(id);
    EXPECT_EQ(seen.size(), steps);
    for (const auto& [step, times] : seen) EXPECT_EQ(times, 1) << "step " << step;
  }

  Cluster cluster_;
};

TEST_F(RpcChaos, JobsCompleteInTheirFirstGeneration) {
  const std::string alone = cluster_.Submit({.name = "alone"});
  const std::string gang = cluster_.Submit({.name = "gang", .extra = "strategy: {kind: ddp}\nresources: {ranks: 2}\n"});
  const std::string last = cluster_.Submit({.name = "last"});
  for (const std::string& id : {alone, gang, last}) ExpectUndisturbed(id, 40);
  for (const char* name : {"alone", "gang", "last"}) EXPECT_EQ(cluster_.FinalWeights(name).first, 40u) << name;
}

TEST_F(RpcChaos, WhatTheCliAsksForIsDoneOnce) {
  const JobOptions long_one = {.name = "long", .steps = 100'000, .checkpoint_every = 100'000};
  const std::string id = cluster_.Submit(long_one);
  ASSERT_TRUE(cluster_.WaitForStep(id, 3));
  EXPECT_EQ(cluster_.Muster({"pause", id}).exit_code, 0);
  ASSERT_TRUE(cluster_.WaitForState(id, "paused"));
  EXPECT_EQ(cluster_.Muster({"resume", id}).exit_code, 0);
  ASSERT_TRUE(cluster_.WaitForState(id, "running"));
  EXPECT_EQ(Text(cluster_.Job(id)["generation"]), "2");
  EXPECT_EQ(cluster_.Muster({"cancel", "-y", id}).exit_code, 0);
  ASSERT_TRUE(cluster_.WaitForState(id, "cancelled"));
  std::map<std::string, int> kinds;
  for (const json& event : Listed("events", id)) {
    ++kinds[(event.contains("event") ? event["event"] : event).value("kind", "")];
  }
  EXPECT_EQ(kinds["job.paused"], 1);
  EXPECT_EQ(kinds["job.cancelled"], 1);
  EXPECT_EQ(cluster_.Muster({"delete", "-y", id}).exit_code, 0);
  EXPECT_NE(cluster_.Muster({"describe", id}).exit_code, 0);
}

}  // namespace
}  // namespace muster::cluster
