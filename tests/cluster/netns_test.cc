// Three hosts on a wire, a coordinator on one and on each a worker that joins it over TLS with a token, and jobs whose
// ranks communicate over that wire.
//
// Has its own main: the hosts are made once, before anything else.
#include <gtest/gtest.h>

#include <signal.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "testing/slow_wire.h"
#include "testing/wait.h"
#include "tests/cluster/cluster.h"
#include "tests/cluster/hosts.h"

namespace muster::cluster {
namespace {

using nlohmann::json;

std::optional<Hosts> hosts;

class NetworkTest : public testing::Test {
 protected:
  NetworkTest() {
    cluster_.prefix = [](const std::string& name) { return hosts->Enter(name == "coordinator" ? 0 : name[1] - '0'); };
  }

  // As an administrator does it: an authority, a coordinator at an address, a token, and daemons that use it.
  void Start(int first = 0) {
    const std::string address = hosts->Address(0) + ":7070", token = cluster_.folder() + "/join.token";
    Ran ran =
        cluster_.Muster({"coordinator", "init", "--state-dir", cluster_.folder() + "/c", "--host", hosts->Address(0)});
    ASSERT_EQ(ran.exit_code, 0) << ran.err;
    cluster_.coordinator_flags.insert(cluster_.coordinator_flags.end(), {"--listen", address});
    cluster_.StartCoordinator();
    ran = cluster_.Muster({"coordinator", "token", "create", "--role", "worker", "-o", token});
    ASSERT_EQ(ran.exit_code, 0) << ran.err;
    cluster_.worker_coordinator = address;
    for (int host = first; host < 3; ++host) {
      cluster_.worker_flags = {"--join-token", token};
      if (wire_ != nullptr)
        cluster_.worker_flags.insert(cluster_.worker_flags.end(), {"--host", SlowWire::Address(host - 1)});
      cluster_.StartWorker(host, slots_);
    }
    const size_t workers = static_cast<size_t>(3 - first);
    ASSERT_TRUE(Eventually([&] { return cluster_.MusterJson({"nodes"}).size() == workers; }, absl::Seconds(30)));
  }
  // A first job on so many ranks measures the links; later ones send only what they are about.
  void KnowLinks(int ranks) {
    const std::string extra = absl::StrCat("resources: {ranks: ", ranks, "}\nstrategy: {kind: ddp}\n");
    const std::string id = cluster_.Submit({.name = "links", .steps = 1, .sequences = 8, .extra = extra});
    ASSERT_TRUE(cluster_.WaitForState(id, "completed"));
  }
  uint64_t BytesSent(int host) {
    const absl::StatusOr<uint64_t> bytes = hosts->BytesSent(host);
    EXPECT_TRUE(bytes.ok()) << bytes.status();
    return bytes.value_or(0);
  }

  std::unique_ptr<SlowWire> wire_;  // over which ranks meet; none: the one of the hosts
  Cluster cluster_;
  int slots_ = 1;  // of each host
};

TEST_F(NetworkTest, ThreeHostsTrainOneModel) {
  Start();
  std::vector<uint64_t> before;
  for (int host = 0; host < 3; ++host) before.push_back(BytesSent(host));
  const std::string id = cluster_.Submit({.name = "wide", .steps = 20, .extra = "resources: {ranks: 3}\n"});
  ASSERT_TRUE(cluster_.WaitForState(id, "completed"));
  EXPECT_EQ(cluster_.Job(id).value("restarts", 0), 0);
  EXPECT_EQ(cluster_.FinalWeights("wide").first, 20u);
  // A ring of three sends 4/3 of the gradients in a step: 2 layers of width 32 have about 34,000 parameters.
  for (int host = 0; host < 3; ++host) EXPECT_GT(BytesSent(host) - before[host], 20u * 34'000 * 4) << "host " << host;
}

// Four ranks on two hosts, G bytes of gradients. A ring of all ranks sends 3/2 G out of a host in a sum over them
// (Gloo's all-reduce), and two levels send G. Of shards, gathered once in a step and reduced once, two levels also send
// G; Gloo's broadcasts and reductions of each share among all ranks send about 2 G.
TEST_F(NetworkTest, TwoLevelsLeaveAHostOnce) {
  slots_ = 2;
  Start(/*first=*/1);
  KnowLinks(4);
  constexpr int kSteps = 60;
  const auto run = [&](const std::string& strategy, const std::string& hierarchy) {
    const std::string name = strategy + "-" + hierarchy;
    const uint64_t before = BytesSent(1);
    const std::string id = cluster_.Submit({.name = name,
                                            .steps = kSteps,
                                            .checkpoint_every = kSteps,
                                            .sequences = 8,
                                            .extra = absl::StrCat("resources: {ranks: 4}\nstrategy: {kind: ", strategy,
                                                                  strategy == "fsdp" ? ", reshard: shard_grad_op" : "",
                                                                  "}\ncommunication: {hierarchy: ", hierarchy, "}\n")});
    EXPECT_TRUE(cluster_.WaitForState(id, "completed"));
    return std::pair(static_cast<double>(BytesSent(1) - before), cluster_.Losses(id));
  };
  for (const std::string strategy : {"ddp", "fsdp"}) {
    const auto [flat, losses] = run(strategy, "never");
    const auto [levels, same] = run(strategy, "always");
    EXPECT_NEAR(flat / levels, strategy == "ddp" ? 1.5 : 2, 0.2) << strategy;
    ASSERT_EQ(losses.size(), same.size());
    for (size_t i = 0; i < losses.size(); ++i)
      EXPECT_NEAR(same[i], losses[i], 1e-4 * losses[i]) << strategy << " " << i;
  }
}

// As nccl-tests counts: an all-reduce of S bytes among three ranks sends 4/3 of S from each, a broadcast S from its
// root.
TEST_F(NetworkTest, CollectivesAreMeasuredOnTheWire) {
  Start();
  KnowLinks(3);
  const std::string job = cluster_.WriteJob({.name = "wire", .extra = "resources: {ranks: 3}\n"});
  const std::string plot = absl::StrCat(cluster_.folder(), "/plot.svg");
  const uint64_t before = BytesSent(1);
  const Ran ran = cluster_.Muster({"bench", job, "--communication", "--collectives", "all_reduce,broadcast",
                                   "--min_bytes", "64KiB", "--max_bytes", "1MiB", "-o", "json", "--plot", plot});
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  const json rows = json::parse(ran.out);
  ASSERT_EQ(rows.size(), 2u * 2 * 3 + 3) << "collectives, modes, sizes; and compressed sums";
  EXPECT_TRUE(
      absl::StrContains(ran.err, "hierarchical was skipped: it needs several nodes with the same number of ranks"))
      << ran.err;
  std::vector<std::string> names;
  double sent = 0;
  for (const json& row : rows) {
    const std::string mode = row["mode"];
    names.push_back(absl::StrCat(row["collective"].get<std::string>(), " ", mode, " ", row["size"].get<uint64_t>()));
    EXPECT_EQ(row["type"], mode == "compressed" ? "int8" : "float");
    EXPECT_EQ(row["ranks"], 3);
    EXPECT_EQ(row["count"], row["size"].get<uint64_t>() / 4);
    const bool sums = row["collective"] == "all_reduce";
    EXPECT_EQ(row["redop"], sums ? "sum" : "none");
    EXPECT_EQ(row["root"], sums ? -1 : 0);
    const double algorithm = row["size"].get<double>() / (row["time_us"].get<double>() * 1e-6) / 1e9;
    EXPECT_NEAR(row["algbw"].get<double>() / algorithm, 1, 1e-6);
    EXPECT_NEAR(row["busbw"].get<double>() / algorithm, sums ? 4.0 / 3 : 1, 1e-6);
    if (sums && mode != "compressed") sent += row["iterations"].get<double>() * row["size"].get<double>() * 4 / 3;
  }
  EXPECT_EQ(names.front(), "all_reduce flat 65536");
  EXPECT_EQ(names.back(), "broadcast bucketed 1048576");
  EXPECT_GT(BytesSent(1) - before, sent) << "less crossed the wire than was reported";
  std::ifstream file(plot);
  std::string first;
  std::getline(file, first);
  EXPECT_TRUE(absl::StrContains(first, "<?xml")) << first;
}

// Of S bytes that four ranks on two nodes sum, a flat ring sends 1.5 S out of a node, two levels S, and int8 a quarter
// of what it sums.
TEST_F(NetworkTest, ModesSendWhatTheyPromise) {
  slots_ = 2;
  Start(/*first=*/1);
  KnowLinks(4);
  const std::string job = cluster_.WriteJob({.name = "modes", .sequences = 8, .extra = "resources: {ranks: 4}\n"});
  const auto sent = [&](const std::string& mode) {
    const uint64_t before = BytesSent(1);
    const Ran ran = cluster_.Muster({"bench", job, "--communication", "--collectives", "all_reduce", "--modes", mode,
                                     "--min_bytes", "2MiB", "--max_bytes", "2MiB", "-o", "json"});
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    const json rows = json::parse(ran.out);
    EXPECT_EQ(rows.size(), 1u) << ran.out;
    // Beside these one to check, and one to count how many fit; if only one fits, it is that one.
    const double iterations = rows[0]["iterations"].get<double>(), runs = iterations > 1 ? iterations + 2 : 2;
    return static_cast<double>(BytesSent(1) - before) / runs / static_cast<double>(2 << 20);
  };
  EXPECT_NEAR(sent("flat"), 1.57, 0.1) << "5% are headers and acknowledgements";
  EXPECT_NEAR(sent("hierarchical"), 1.05, 0.1);
  EXPECT_LT(sent("compressed"), 0.9);
}

// Ranks that meet over a wire whose figures are known.
class SlowWireTest : public NetworkTest {
 protected:
  // Of a job of two ranks on hosts 1 and 2 that trained some steps.
  std::string Train(const std::string& name) {
    const std::string id = cluster_.Submit(
        {.name = name, .steps = 3, .extra = "resources: {ranks: 2}\nstrategy: {kind: ddp}\nmax_restarts: 0\n"});
    EXPECT_TRUE(cluster_.WaitForState(id, "completed"));
    return id;
  }
  // Those of both directions.
  json Links(const std::string& id) { return cluster_.MusterJson({"describe", id})["links"]; }
  std::vector<std::string> EventsOf(const std::string& id, const std::string& kind) {
    std::vector<std::string> messages;
    for (const json& event : cluster_.Events(id)) {
      if (event.value("kind", "") == kind) messages.push_back(event.value("message", ""));
    }
    return messages;
  }

  static constexpr int kTrials = 15;  // on a busy machine; else the first is enough
};

TEST_F(SlowWireTest, IsMeasuredAndItsFallIsAnEvent) {
  constexpr double kFast = 100e6 / 8, kSlow = 10e6 / 8;  // bytes per second
  absl::StatusOr<std::unique_ptr<SlowWire>> wire = SlowWire::Make({hosts->Namespace(1), hosts->Namespace(2)});
  ASSERT_TRUE(wire.ok()) << wire.status();
  wire_ = *std::move(wire);
  wire_->Set({.bits_per_second = 8 * kFast, .one_way = absl::Milliseconds(1)});
  cluster_.coordinator_flags = {"--measure-links-every=1ms"};
  Start(/*first=*/1);
  // Wire and ranks are processes of a machine that may be busy with others. A message never takes less than the wire
  // needs, but pings that take longer than they should are subtracted from it: the bandwidth is limited only where the
  // pings were right, and looked at again where they were not. How close an estimate comes is links_test's, where time
  // is simulated.
  const auto expect_possible = [](const json& links, double bytes_per_second) {
    ASSERT_EQ(links.size(), 2u) << links.dump();
    for (const json& link : links) {
      EXPECT_GT(link["latency_seconds"].get<double>(), 0.9e-3) << link.dump();
      if (link["latency_seconds"].get<double>() < 2e-3) {
        EXPECT_LT(link["bytes_per_second"].get<double>(), 1.5 * bytes_per_second) << link.dump();
      }
    }
  };
  // Its median, too: the fall is measured against it.
  const auto near = [&](const json& link) {
    const double usual = link.value("usual_bytes_per_second", 0.0);
    return link["bytes_per_second"].get<double>() > 0.5 * kFast && (usual == 0 || usual > 0.4 * kFast) &&
           link["latency_seconds"].get<double>() < 30e-3;
  };
  json links;
  bool both = false;
  for (int trial = 0; trial < kTrials && !both; ++trial) {
    links = Links(Train(trial == 0 ? "first" : absl::StrCat("again", trial)));
    ASSERT_NO_FATAL_FAILURE(expect_possible(links, kFast));
    both = near(links[0]) && near(links[1]);
  }
  EXPECT_TRUE(both) << links.dump();
  EXPECT_NE(links[0]["from"], links[1]["from"]);
  const Ran table = cluster_.Muster({"nodes", "-o", "wide"});
  EXPECT_TRUE(absl::StrContains(table.out, "BANDWIDTH") && absl::StrContains(table.out, " Mbit/s")) << table.out;
  const Ran plan = cluster_.Muster({"plan", cluster_.folder() + "/first.yaml", "--simulate"});
  EXPECT_TRUE(absl::StrContains(plan.out, "links between nodes, measured: ")) << plan.out << plan.err;

  // Of each link that has such an event: "the link from a to b".
  std::set<std::string> slow, recovered;
  const auto train = [&](const std::string& name, double bytes_per_second) {
    const std::string id = Train(name);
    expect_possible(Links(id), bytes_per_second);
    for (const std::string& message : EventsOf(id, "link.slow")) {
      EXPECT_TRUE(absl::StrContains(message, " is slow: ") && absl::StrContains(message, " Mbit/s")) << message;
      slow.insert(message.substr(0, message.find(" is ")));
    }
    for (const std::string& message : EventsOf(id, "link.recovered")) {
      recovered.insert(message.substr(0, message.find(" is ")));
    }
  };
  wire_->Set({.bits_per_second = 8 * kSlow, .one_way = absl::Milliseconds(1)});
  for (int trial = 0; trial < kTrials && slow.size() < 2; ++trial) train(absl::StrCat("second", trial), kSlow);
  ASSERT_EQ(slow.size(), 2u) << "both directions";
  wire_->Set({.bits_per_second = 8 * kFast, .one_way = absl::Milliseconds(1)});
  for (int trial = 0; trial < kTrials && recovered.size() < 2; ++trial) train(absl::StrCat("third", trial), kFast);
  EXPECT_EQ(recovered, slow);
}

// The host's worker is away and its rank unreachable: the others do not wait forever, and the job recovers when it is
// back.
TEST_F(NetworkTest, AHostWithoutItsCableIsNotWaitedForForEver) {
  cluster_.coordinator_flags = {"--start-deadline=6s"};
  Start();
  ASSERT_TRUE(hosts->Connect(2, false).ok());
  const std::string id =
      cluster_.Submit({.name = "cut", .steps = 20, .extra = "resources: {ranks: 3}\nmax_restarts: 0\n"});
  EXPECT_TRUE(cluster_.WaitForState(id, "failed"));
  EXPECT_TRUE(
      absl::StrContains(cluster_.Job(id)["failure"].dump(), "did not arrive at the rendezvous within 6s: rank "))
      << cluster_.Job(id).dump();
  ASSERT_TRUE(hosts->Connect(2, true).ok());
  const std::string again = cluster_.Submit({.name = "again", .steps = 5, .extra = "resources: {ranks: 3}\n"});
  EXPECT_TRUE(cluster_.WaitForState(again, "completed"));
}

// A rank whose host the coordinator cannot reach continues to train beside the generation that replaces it, and writes
// checkpoints that are never published.
class PartitionTest : public NetworkTest {
 protected:
  // Starts workers on hosts 1 and 2 and a job of one rank, and cuts the host on which it runs: `cut` with true does it,
  // with false ends it. A job that has ended by then is tried again.
  void Begin(const std::string& name, const std::function<absl::Status(int host, bool cut)>& cut) {
    cluster_.coordinator_flags = {"--detection=2s"};
    Start(/*first=*/1);
    for (int attempt = 0; attempt < 5; ++attempt) {
      name_ = absl::StrCat(name, "-", attempt);
      id_ = cluster_.Submit({.name = name_, .steps = kSteps, .checkpoint_every = kEvery});
      ASSERT_TRUE(cluster_.WaitForStep(id_, 2 * kEvery));
      const std::vector<pid_t> trainers = cluster_.Trainers();
      if (trainers.size() == 1) {
        trainer_ = trainers[0];
        std::error_code error;
        host_ = std::filesystem::exists(absl::StrCat(cluster_.RunDir(1), "/", id_), error) ? 1 : 2;
        ASSERT_TRUE(cut(host_, true).ok());
        if (cluster_.State(id_) == "running") return;
        ASSERT_TRUE(cut(host_, false).ok());
      }
      ASSERT_TRUE(cluster_.WaitForState(id_, "completed"));
      ASSERT_TRUE(Eventually([&] { return cluster_.Trainers().empty(); }));
    }
    FAIL() << "each job ended before the cut";
  }
  // Until the job runs on the other host.
  bool RunsElsewhere() {
    return Eventually([&] { return std::filesystem::exists(absl::StrCat(cluster_.RunDir(3 - host_), "/", id_, "/2")); },
                      absl::Seconds(60));
  }
  // Reads the events, which are the committed history. `generation`: the one that published the last step.
  void ExpectOnePublisher(uint64_t& generation) {
    ASSERT_TRUE(cluster_.WaitForState(id_, "completed", absl::Minutes(10)));
    generation = 0;
    uint64_t step = 0, published = 0;
    for (const json& event : cluster_.Events(id_)) {
      if (event.value("kind", "") != "checkpoint.published") continue;
      const std::string message = event.value("message", ""), of = "checkpoint of step ";
      const uint64_t its_generation = Number(event["generation"]);
      const uint64_t its_step = std::stoull(message.substr(message.find(of) + of.size()));
      EXPECT_GE(its_generation, generation) << event << ": an older generation published";
      EXPECT_GT(its_step, step) << event << ": a step was published twice, or steps went back";
      generation = its_generation;
      step = its_step;
      ++published;
    }
    EXPECT_EQ(step, kSteps);
    EXPECT_EQ(published, kSteps / kEvery) << "each once";
    EXPECT_LE(generation, cluster_.Generation(id_));
    EXPECT_LE(cluster_.Generation(id_), 1 + cluster_.LostOrHung(id_)) << cluster_.Muster({"events"}).out;
    EXPECT_TRUE(Eventually([&] { return cluster_.Trainers().empty(); }, absl::Seconds(30)));
    const auto [last, sums] = cluster_.FinalWeights(name_);
    EXPECT_EQ(last, kSteps);
    static const std::string undisturbed = [this] {
      const std::string id = cluster_.Submit({.name = "calm", .steps = kSteps, .checkpoint_every = kEvery});
      EXPECT_TRUE(cluster_.WaitForState(id, "completed"));
      return cluster_.FinalWeights("calm").second;
    }();
    EXPECT_EQ(sums, undisturbed);
  }

  // Some seconds: the job outlives the cut.
  static constexpr uint64_t kSteps = 4000, kEvery = 200;
  std::string name_, id_;
  int host_ = 0;
  pid_t trainer_ = 0;
};

TEST_F(PartitionTest, BothWays) {
  ASSERT_NO_FATAL_FAILURE(Begin("both", [](int host, bool cut) { return hosts->Connect(host, !cut); }));
  EXPECT_TRUE(RunsElsewhere());
  ASSERT_TRUE(hosts->Connect(host_, true).ok());
  EXPECT_TRUE(Eventually([&] { return kill(trainer_, 0) != 0; }, absl::Seconds(30)))
      << "killed once the node is in contact";
  uint64_t generation = 0;
  ASSERT_NO_FATAL_FAILURE(ExpectOnePublisher(generation));
  EXPECT_GE(generation, 2u) << "nothing of the first arrived after the cut";
}

// It continues to publish what is reported until the worker counts as lost; none of that may be removed meanwhile. A
// fast machine reports its last step by then, and the second generation has nothing to publish.
TEST_F(PartitionTest, NothingArrivesFromTheCoordinator) {
  ASSERT_NO_FATAL_FAILURE(Begin("deaf", [](int host, bool cut) { return hosts->Lose(0, host, cut); }));
  EXPECT_TRUE(RunsElsewhere());
  ASSERT_TRUE(hosts->Lose(0, host_, false).ok());
  uint64_t generation = 0;
  ASSERT_NO_FATAL_FAILURE(ExpectOnePublisher(generation));
  EXPECT_GE(cluster_.Generation(id_), 2u);
}

TEST_F(PartitionTest, NothingArrivesFromTheWorker) {
  ASSERT_NO_FATAL_FAILURE(Begin("mute", [](int host, bool cut) { return hosts->Lose(host, 0, cut); }));
  EXPECT_TRUE(RunsElsewhere());
  ASSERT_TRUE(hosts->Lose(host_, 0, false).ok());
  uint64_t generation = 0;
  ASSERT_NO_FATAL_FAILURE(ExpectOnePublisher(generation));
  EXPECT_GE(generation, 2u) << "nothing of the first arrived after the cut";
}

// Down for longer than the detection, up for too short to settle, again and again. Which generation publishes the last
// step depends on how far the machine gets in between.
TEST_F(PartitionTest, Flapping) {
  ASSERT_NO_FATAL_FAILURE(Begin("flapping", [](int host, bool cut) { return hosts->Connect(host, !cut); }));
  for (int i = 0; i < 4; ++i) {  // these pauses are the fault
    ASSERT_TRUE(hosts->Connect(host_, false).ok());
    absl::SleepFor(absl::Milliseconds(i % 2 == 0 ? 2500 : 700));
    ASSERT_TRUE(hosts->Connect(host_, true).ok());
    absl::SleepFor(absl::Milliseconds(400));
  }
  uint64_t generation = 0;
  ExpectOnePublisher(generation);
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
