// Three hosts on a wire, a coordinator on one and a worker on each, and jobs whose ranks talk over that wire.
//
// A main of its own: the hosts are made once, before anything else is.
#include <gtest/gtest.h>

#include <cstdio>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/cluster/cluster.h"
#include "tests/cluster/hosts.h"

namespace muster::cluster {
namespace {

using nlohmann::json;

std::optional<Hosts> hosts;

// How a worker gets to the coordinator: through the socket file, which all hosts see, as containers do that share a
// folder. The trainers have no such way to each other: what they say goes over the wire.
class NetworkTest : public testing::Test {
 protected:
  NetworkTest() {
    cluster_.prefix = [](const std::string& name) { return hosts->Enter(name == "coordinator" ? 0 : name[1] - '0'); };
  }

  void Start() {
    cluster_.StartCoordinator();
    for (int host = 0; host < 3; ++host) {
      cluster_.worker_flags = {"--host", hosts->Address(host)};
      cluster_.StartWorker(host, 1);
    }
    ASSERT_TRUE(Eventually([&] { return cluster_.MusterJson({"nodes"}).size() == 3; }, absl::Seconds(30)));
  }
  uint64_t BytesSent(int host) {
    const absl::StatusOr<uint64_t> bytes = hosts->BytesSent(host);
    EXPECT_TRUE(bytes.ok()) << bytes.status();
    return bytes.value_or(0);
  }

  Cluster cluster_;
};

TEST_F(NetworkTest, ThreeHostsTrainOneModel) {
  Start();
  std::vector<uint64_t> before;
  for (int host = 0; host < 3; ++host) before.push_back(BytesSent(host));
  const std::string id = cluster_.Submit({.name = "wide", .steps = 20, .extra = "resources: {ranks: 3}\n"});
  ASSERT_TRUE(cluster_.WaitForState(id, "completed"));
  EXPECT_EQ(cluster_.Job(id).value("restarts", 0), 0);
  EXPECT_EQ(cluster_.FinalWeights("wide").first, 20u);
  // A ring of three sends 4/3 of the gradients a step: 2 layers of width 32 have some 34,000 parameters.
  for (int host = 0; host < 3; ++host) EXPECT_GT(BytesSent(host) - before[host], 20u * 34'000 * 4) << "host " << host;
}

// The rank on the host is there and cannot be reached: the others do not wait for ever, and it is named.
TEST_F(NetworkTest, AHostWithoutItsCableIsNotWaitedForForEver) {
  cluster_.coordinator_flags = {"--start_deadline=10s"};
  Start();
  ASSERT_TRUE(hosts->Connect(2, false).ok());
  const std::string id =
      cluster_.Submit({.name = "cut", .steps = 20, .extra = "resources: {ranks: 3}\nmax_restarts: 0\n"});
  EXPECT_TRUE(cluster_.WaitForState(id, "failed"));
  EXPECT_TRUE(absl::StrContains(cluster_.Job(id)["failure"].dump(), "rank")) << cluster_.Job(id).dump();
  ASSERT_TRUE(hosts->Connect(2, true).ok());
  const std::string again = cluster_.Submit({.name = "again", .steps = 5, .extra = "resources: {ranks: 3}\n"});
  EXPECT_TRUE(cluster_.WaitForState(again, "completed"));
}

}  // namespace
}  // namespace muster::cluster

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  absl::StatusOr<muster::cluster::Hosts> made = muster::cluster::Hosts::Make(3);
  if (!made.ok()) {
    std::fprintf(stderr, "netns_test: %s\n", made.status().ToString().c_str());
    return 1;
  }
  muster::cluster::hosts.emplace(*std::move(made));
  return RUN_ALL_TESTS();
}
