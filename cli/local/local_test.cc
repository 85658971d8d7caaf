// `muster local` as users run it, with fake daemons.
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/local/process.h"
#include "cli/testing/program.h"
#include "testing/wait.h"

namespace muster::cli {
namespace {

using nlohmann::json;

// Logs a start line like a worker, and tells the fake coordinator its slots; drains on SIGTERM.
constexpr char kWorker[] =
    "#!/bin/sh\n"
    "echo \"arguments: $@\" >&2\n"
    "slots=0\n"
    "for word in \"$@\"; do [ \"$last\" = --slots ] && slots=$word; last=$word; done\n"
    "echo $slots >$FAKE_NODES/$$\n"
    "trap 'rm $FAKE_NODES/$$; echo drained >&2; exit 0' TERM\n"
    "while :; do sleep 0.05; done\n";

class LocalTest : public ::testing::Test {
 protected:
  LocalTest() {
    std::filesystem::create_directories(folder_.path() + "/nodes");
    std::filesystem::create_directories(folder_.path() + "/bin");
    std::filesystem::copy(ProgramPath("cli/local/fake_daemon"), folder_.path() + "/bin/muster-coordinator");
    folder_.Write("bin/muster-worker", kWorker, true);
    environment_ = {{"HOME", folder_.path()},
                    {"XDG_STATE_HOME", folder_.path() + "/state"},
                    {"MUSTER_RUNTIME_DIR", folder_.path() + "/run"},
                    {"MUSTER_BIN_DIR", folder_.path() + "/bin"},
                    {"FAKE_NODES", folder_.path() + "/nodes"}};
  }
  // A failed test leaves no processes behind; the pids come from our own pid files.
  ~LocalTest() override {
    for (const auto& [name, pid] : Pids()) kill(pid, SIGKILL);
  }

  Ended Run(const std::vector<std::string>& arguments) const {
    std::vector<std::string> command = {ProgramPath("cli/muster"), "local"};
    command.insert(command.end(), arguments.begin(), arguments.end());
    return RunToEnd(command, environment_);
  }
  // Pids of the running daemons.
  std::map<std::string, pid_t> Pids() const {
    std::map<std::string, pid_t> pids;
    const json status = json::parse(Run({"status", "-o", "json"}).out);
    for (const json& daemon : status["daemons"]) {
      if (daemon["running"]) pids[daemon["name"]] = daemon["pid"];
    }
    return pids;
  }
  std::string StateFile(const std::string& name) const {
    return absl::StrCat(folder_.path(), "/state/muster/local/", name);
  }

  const TemporaryFolder folder_;
  Program::Environment environment_;
};

TEST_F(LocalTest, UpStartsWhatDoesNotRunAndLeavesTheRestAlone) {
  const Ended up = Run({"up", "--nodes", "2", "--slots", "3", "--plugin-roots", "models,/opt"});
  ASSERT_EQ(up.code, 0) << up.err;
  EXPECT_TRUE(absl::StrContains(up.err, absl::StrCat("ready at unix:", folder_.path(), "/run/coordinator.sock")));
  const auto first = Pids();
  ASSERT_EQ(first.size(), 3u);
  const std::string roots = std::filesystem::current_path().string() + "/models,/opt";
  EXPECT_TRUE(absl::StrContains(LastLines(StateFile("worker-1.log"), 0, 5), "--slots 3 --plugin-roots " + roots));
  EXPECT_TRUE(std::ifstream(StateFile("worker-1/state/node_id")).good());
  // A second `up` changes nothing.
  const Ended again = Run({"up"});
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_TRUE(absl::StrContains(again.err, "coordinator is running"));
  EXPECT_EQ(Pids(), first);
  const Ended other = Run({"up", "--nodes", "3"});
  EXPECT_EQ(other.code, 2);
  EXPECT_TRUE(absl::StrContains(other.err, "the service is running with 2 nodes, not 3")) << other.err;
  EXPECT_EQ(Pids(), first);
  const Ended slots = Run({"up", "--slots", "4"});
  EXPECT_EQ(slots.code, 2);
  EXPECT_TRUE(absl::StrContains(slots.err, "is running with 3 slots, not 4")) << slots.err;
  EXPECT_EQ(Pids(), first);
  // Only the daemon that died is restarted.
  kill(first.at("worker-0"), SIGKILL);
  ASSERT_TRUE(WaitForEnd({first.at("worker-0"), ReadPidFile(StateFile("worker-0.pid"))->start}, absl::Seconds(10)));
  const Ended status = Run({"status"});
  EXPECT_EQ(status.code, 1);
  EXPECT_TRUE(absl::StrContains(status.out, "dead")) << status.out;
  EXPECT_EQ(status.err, "worker-0 is dead: see the log, then start again with: muster local up\n");
  EXPECT_EQ(Run({"status", "-o", "json"}).code, 1);
  EXPECT_EQ(Run({"up", "--nodes", "2"}).code, 0);
  const auto second = Pids();
  EXPECT_EQ(second.at("coordinator"), first.at("coordinator"));
  EXPECT_EQ(second.at("worker-1"), first.at("worker-1"));
  EXPECT_NE(second.at("worker-0"), first.at("worker-0"));
  const Ended as_before = Run({"up", "--slots", "3"});
  EXPECT_EQ(as_before.code, 0) << as_before.err << "the worker that was restarted has the slots that it had";
  // `down` leaves no process. No job runs, so none is drained.
  const Ended down = Run({"down"});
  EXPECT_EQ(down.code, 0) << down.err;
  for (const char* line : {"worker-0 stopped", "worker-1 stopped", "coordinator stopped"}) {
    EXPECT_TRUE(absl::StrContains(down.err, line)) << down.err;
  }
  EXPECT_FALSE(absl::StrContains(down.err, "draining")) << down.err;
  EXPECT_TRUE(absl::StrContains(LastLines(StateFile("worker-1.log"), 0, 5), "drained"));
  EXPECT_TRUE(Pids().empty());
  const Ended nothing = Run({"down"});
  EXPECT_EQ(nothing.code, 0);
  EXPECT_EQ(nothing.err, "nothing is running\n");
}

TEST_F(LocalTest, MetricsAreServedAtTheAddressAndThePortsAfter) {
  for (const char* wrong : {"9464", "127.0.0.1:0", "127.0.0.1:65534"}) {
    const Ended refused = Run({"up", "--nodes", "2", "--metrics-address", wrong});
    EXPECT_EQ(refused.code, 2) << wrong;
    EXPECT_TRUE(absl::StrContains(refused.err, absl::StrCat("--metrics-address ", wrong, ": expected 127.0.0.1:PORT")))
        << refused.err;
  }
  EXPECT_TRUE(Pids().empty());
  const Ended up = Run({"up", "--nodes", "2", "--metrics-address", "127.0.0.1:9464"});
  ASSERT_EQ(up.code, 0) << up.err;
  EXPECT_TRUE(absl::StrContains(LastLines(StateFile("worker-0.log"), 0, 5), "--metrics-address 127.0.0.1:9465"));
  EXPECT_TRUE(absl::StrContains(LastLines(StateFile("worker-1.log"), 0, 5), "--metrics-address 127.0.0.1:9466"));
  const auto pids = Pids();
  const std::vector<std::string> coordinator =
      ArgumentsOf({pids.at("coordinator"), ReadPidFile(StateFile("coordinator.pid"))->start});
  ASSERT_GE(coordinator.size(), 2u);
  EXPECT_EQ(coordinator[coordinator.size() - 2], "--metrics-address");
  EXPECT_EQ(coordinator.back(), "127.0.0.1:9464");
  // Running daemons serve them where they were started to, and nowhere else.
  EXPECT_EQ(Run({"up", "--metrics-address", "127.0.0.1:9464"}).code, 0);
  const Ended elsewhere = Run({"up", "--metrics-address", "127.0.0.1:9564"});
  EXPECT_EQ(elsewhere.code, 2);
  EXPECT_TRUE(
      absl::StrContains(elsewhere.err, "the coordinator is running and does not serve metrics at 127.0.0.1:9564"))
      << elsewhere.err;
  EXPECT_EQ(Pids(), pids);
  EXPECT_EQ(Run({"down"}).code, 0);
}

TEST_F(LocalTest, ADaemonThatEndsAtOnceShowsItsLog) {
  folder_.Write("bin/muster-worker", "#!/bin/sh\necho 'no slots: something is wrong' >&2\nexit 1\n", true);
  const Ended up = Run({"up"});
  EXPECT_EQ(up.code, 3);
  EXPECT_TRUE(absl::StrContains(up.err, "worker-0 exited right after its start")) << up.err;
  EXPECT_TRUE(absl::StrContains(up.err, "  no slots: something is wrong")) << up.err;
  // The coordinator keeps running for the next attempt.
  EXPECT_EQ(Pids().size(), 1u);
  const Ended status = Run({"status"});
  EXPECT_EQ(status.code, 0) << status.err;
  EXPECT_FALSE(absl::StrContains(status.out, "worker-0")) << "it never ran\n" << status.out;
  EXPECT_EQ(Run({"down"}).code, 0);
}

TEST_F(LocalTest, ACoordinatorThatDoesNotStartLeavesNoRecord) {
  folder_.Write("bin/muster-coordinator", "#!/bin/sh\necho 'the port is taken' >&2\nexit 1\n", true);
  const Ended up = Run({"up"});
  EXPECT_EQ(up.code, 3);
  EXPECT_TRUE(absl::StrContains(up.err, "the coordinator exited right after its start")) << up.err;
  const Ended status = Run({"status"});
  EXPECT_EQ(status.code, 0);
  EXPECT_EQ(status.out + status.err, "nothing is running; start with: muster local up\n");
}

TEST_F(LocalTest, AWorkerThatRanComesBackAfterAFailedStart) {
  ASSERT_EQ(Run({"up", "--nodes", "2", "--slots", "3"}).code, 0);
  kill(Pids().at("worker-1"), SIGTERM);
  ASSERT_TRUE(Eventually([&] { return Pids().size() == 2; }));
  folder_.Write("bin/muster-worker", "#!/bin/sh\nexit 1\n", true);
  EXPECT_EQ(Run({"up"}).code, 3);
  EXPECT_EQ(Run({"status"}).code, 1) << "worker-1 is dead as before";
  folder_.Write("bin/muster-worker", kWorker, true);
  const Ended up = Run({"up"});
  EXPECT_EQ(up.code, 0) << up.err;
  EXPECT_EQ(Pids().size(), 3u);
  EXPECT_TRUE(absl::StrContains(LastLines(StateFile("worker-1.log"), 0, 5), "--slots 3"));
  EXPECT_EQ(Run({"down"}).code, 0);
}

TEST_F(LocalTest, ANodeWhoseCheckFoundAProblemIsNotReady) {
  folder_.Write("bin/muster-worker",
                "#!/bin/sh\n"
                "echo '1\nmuster-trainer does not load: libtorch.so: cannot open shared object file' "
                ">$FAKE_NODES/../part; mv $FAKE_NODES/../part $FAKE_NODES/node-0\n"
                "trap 'rm $FAKE_NODES/node-0; exit 0' TERM\nwhile :; do sleep 0.05; done\n",
                true);
  const std::string line =
      "muster: worker-0 is not ready: muster-trainer does not load: libtorch.so: cannot open shared object file; see: "
      "muster doctor\n";
  const Ended up = Run({"up"});
  EXPECT_EQ(up.code, 1);
  EXPECT_TRUE(absl::EndsWith(up.err, line)) << up.err;
  EXPECT_FALSE(absl::StrContains(up.err, "ready at")) << up.err;
  // Likewise of the worker that runs already.
  const Ended again = Run({"up"});
  EXPECT_EQ(again.code, 1);
  EXPECT_TRUE(absl::EndsWith(again.err, line)) << again.err;
  EXPECT_EQ(Run({"down"}).code, 0);
}

TEST_F(LocalTest, ANodeThatDoesNotComeIsATimeOutWithTheLogsEnd) {
  folder_.Write("bin/muster-worker",
                "#!/bin/sh\necho 'cannot connect' >&2\ntrap 'exit 0' TERM\n"
                "while :; do sleep 0.05; done\n",
                true);
  // On a busy machine the coordinator itself may take longer than the first time-out.
  Ended up;
  for (const char* timeout : {"700ms", "5s", "30s"}) {
    up = Run({"up", "--timeout", timeout});
    EXPECT_EQ(up.code, 5);
    if (absl::StrContains(up.err, "nodes are ready")) break;
  }
  EXPECT_TRUE(absl::StrContains(up.err, "0 of 1 nodes are ready")) << up.err;
  EXPECT_TRUE(absl::StrContains(up.err, "cannot connect")) << up.err;
  EXPECT_EQ(Run({"down"}).code, 0);
}

TEST_F(LocalTest, MissingProgramsAreNamed) {
  environment_["MUSTER_BIN_DIR"] = "/nowhere";
  const Ended up = Run({"up"});
  EXPECT_EQ(up.code, 2);
  EXPECT_TRUE(absl::StrContains(up.err, "there is no /nowhere/muster-coordinator")) << up.err;
}

TEST_F(LocalTest, DownTouchesNothingThatItDidNotStart) {
  // A pid file whose pid now belongs to another process: this test's.
  std::filesystem::create_directories(StateFile(""));
  std::ofstream(StateFile("coordinator.pid")) << getpid() << " 12345\n";
  std::ofstream(StateFile("worker-0.pid")) << "1 0\n";
  const Ended down = Run({"down"});
  EXPECT_EQ(down.code, 0);
  EXPECT_EQ(down.err, "nothing is running\n");
  // A coordinator that somebody else runs at the address.
  std::filesystem::create_directories(folder_.path() + "/run");
  chmod((folder_.path() + "/run").c_str(), 0700);
  Program other({folder_.path() + "/bin/muster-coordinator", "--listen",
                 absl::StrCat("unix:", folder_.path(), "/run/coordinator.sock")},
                environment_);
  ASSERT_TRUE(other.WaitForErr("serving"));
  const std::string unknown = absl::StrCat(
      "a coordinator (pid ", other.pid(), ") answers at ", folder_.path(),
      "/run/coordinator.sock, but the state folder ", folder_.path(),
      "/state/muster/local does not know it: set XDG_STATE_HOME as when it was started, or stop it with kill ",
      other.pid(), "\n");
  for (const char* verb : {"up", "down"}) {
    const Ended refused = Run({verb});
    EXPECT_EQ(refused.code, 2) << verb;
    EXPECT_EQ(refused.err, "muster: " + unknown);
  }
  // The state folder is a new one, as after a change of HOME.
  std::filesystem::remove_all(StateFile(""));
  const Ended status = Run({"status"});
  EXPECT_EQ(status.code, 1);
  EXPECT_EQ(status.out, "");
  EXPECT_EQ(status.err, unknown);
  // Or it cannot be used.
  std::ofstream(folder_.path() + "/state/muster/local") << "a file";
  for (const char* verb : {"up", "down"}) EXPECT_EQ(Run({verb}).err, "muster: " + unknown) << verb;
  other.Signal(SIGTERM);
  EXPECT_EQ(other.Wait().code, 0);
}

// As a cleaner of /tmp does.
TEST_F(LocalTest, ACoordinatorWhoseSocketIsGoneIsNotReachable) {
  ASSERT_EQ(Run({"up"}).code, 0);
  const auto pids = Pids();
  const std::string socket = folder_.path() + "/run/coordinator.sock";
  ASSERT_TRUE(std::filesystem::remove(socket));
  const std::string line = absl::StrCat("the coordinator (pid ", pids.at("coordinator"), ") runs, but its socket ",
                                        socket, " is gone: muster local down, then muster local up\n");
  const Ended status = Run({"status"});
  EXPECT_EQ(status.code, 1);
  EXPECT_EQ(status.err, line);
  const Ended as_json = Run({"status", "-o", "json"});
  EXPECT_EQ(as_json.code, 1);
  EXPECT_EQ(as_json.err, line);
  const Ended up = Run({"up"});
  EXPECT_EQ(up.code, 2);
  EXPECT_EQ(up.err, "muster: " + line);
  EXPECT_EQ(Pids(), pids);
  // The advice holds.
  EXPECT_EQ(Run({"down"}).code, 0);
  const Ended again = Run({"up"});
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(Run({"status"}).code, 0);
  EXPECT_EQ(Run({"down"}).code, 0);
}

TEST_F(LocalTest, DaemonsThatRunAndDoNotAnswer) {
  ASSERT_EQ(Run({"up"}).code, 0);
  const auto pids = Pids();
  constexpr char kAdvice[] = ": see the log; to start again: muster local down --force, then muster local up\n";
  folder_.Write("nodes/node-0", "1\n\naway\n");
  const Ended away = Run({"status"});
  EXPECT_EQ(away.code, 1);
  EXPECT_TRUE(absl::StrContains(away.out, "unreachable")) << away.out;
  EXPECT_EQ(away.err, absl::StrCat("the coordinator counts node-0, the node of worker-0, as away", kAdvice));
  ASSERT_EQ(kill(pids.at("coordinator"), SIGSTOP), 0);
  const Ended frozen = Run({"status", "--timeout", "200ms", "-o", "json"});
  kill(pids.at("coordinator"), SIGCONT);
  EXPECT_EQ(frozen.code, 1);
  EXPECT_EQ(json::parse(frozen.out)["daemons"][0]["state"], "unreachable");
  EXPECT_EQ(json::parse(frozen.out)["daemons"][1]["state"], "running");
  EXPECT_EQ(frozen.err, absl::StrCat("the coordinator at unix:", folder_.path(),
                                     "/run/coordinator.sock did not answer within 200ms", kAdvice));
  std::filesystem::remove(folder_.path() + "/nodes/node-0");
  EXPECT_EQ(Run({"status"}).code, 0);
  EXPECT_EQ(Run({"down"}).code, 0);
}

TEST_F(LocalTest, ForceKillsWhatDoesNotStop) {
  folder_.Write("bin/muster-worker", "#!/bin/sh\ntrap '' TERM\ntouch $FAKE_NODES/$$\nwhile :; do sleep 0.05; done\n",
                true);
  ASSERT_EQ(Run({"up"}).code, 0);
  const Ended down = Run({"down", "--timeout", "200ms"});
  EXPECT_EQ(down.code, 5);
  EXPECT_TRUE(absl::StrContains(down.err, "still running after 200ms: worker-0")) << down.err;
  EXPECT_EQ(Pids().size(), 2u);
  const Ended forced = Run({"down", "--timeout", "200ms", "--force"});
  EXPECT_EQ(forced.code, 0) << forced.err;
  EXPECT_TRUE(absl::StrContains(forced.err, "worker-0 killed"));
  EXPECT_TRUE(Pids().empty());
}

TEST_F(LocalTest, CtrlCDuringDownSaysWhatStillRunsAndTheNextDownStopsIt) {
  // The node of the second worker does not end before it may.
  folder_.Write(
      "bin/muster-worker",
      "#!/bin/sh\ntouch $FAKE_NODES/$$\n"
      "end() { case \"$all\" in *worker-1*) while [ ! -e $FAKE_NODES/../go ]; do sleep 0.05; done;; esac; exit 0; }\n"
      "all=\"$*\"\ntrap end TERM\nwhile :; do sleep 0.05; done\n",
      true);
  environment_["FAKE_JOB"] = "1";
  ASSERT_EQ(Run({"up", "--nodes", "2"}).code, 0);
  const auto pids = Pids();
  Program down({ProgramPath("cli/muster"), "local", "down"}, environment_);
  ASSERT_TRUE(down.WaitForErr("worker-0 stopped"));
  down.Signal(SIGINT);
  const Ended interrupted = down.Wait();
  EXPECT_EQ(interrupted.code, 130);
  EXPECT_EQ(
      interrupted.err,
      absl::StrCat("draining: running jobs write a checkpoint and return to the queue\nworker-0 stopped (pid ",
                   pids.at("worker-0"), ")\nmuster: interrupted; still stopping: worker-1 (pid ", pids.at("worker-1"),
                   ", log ", StateFile("worker-1.log"), "); not stopped: coordinator (pid ", pids.at("coordinator"),
                   ", log ", StateFile("coordinator.log"), "); to stop the rest: muster local down\n"));
  EXPECT_EQ(Pids().size(), 2u);
  folder_.Write("go", "");
  const Ended rest = Run({"down"});
  EXPECT_EQ(rest.code, 0) << rest.err;
  EXPECT_TRUE(absl::StrContains(rest.err, "coordinator stopped")) << rest.err;
  EXPECT_TRUE(Pids().empty());
}

TEST_F(LocalTest, NodesShareTheCores) {
  folder_.Write("bin/muster-worker", absl::StrCat("#!/bin/sh\ntaskset -cp $$ >&2\n", std::string(kWorker).substr(10)),
                true);
  const std::vector<int> cores = UsableCores();
  ASSERT_EQ(Run({"up", "--nodes", "3", "--slots", "2"}).code, 0);
  for (int index = 0; index < 3; ++index) {
    const std::string log = LastLines(StateFile(absl::StrCat("worker-", index, ".log")), 0, 5);
    std::vector<int> share;
    absl::string_view list = log;  // "pid 7's current affinity list: 0,2-3"
    list.remove_prefix(list.find("list: ") + 6);
    for (const absl::string_view range : absl::StrSplit(list.substr(0, list.find('\n')), ',')) {
      const std::pair<std::string, std::string> ends = absl::StrSplit(range, absl::MaxSplits('-', 1));
      const int last = std::stoi(ends.second.empty() ? ends.first : ends.second);
      for (int core = std::stoi(ends.first); core <= last; ++core) share.push_back(core);
    }
    EXPECT_EQ(share, ShareOfCores(cores, index, 3, 2)) << log;
  }
  EXPECT_EQ(Run({"down"}).code, 0);
  // Fewer nodes may be started when none runs.
  EXPECT_EQ(Run({"up", "--nodes", "1"}).code, 0);
  EXPECT_EQ(Pids().size(), 2u);
  EXPECT_EQ(Run({"down"}).code, 0);
}

TEST(ShareOfCores, Table) {
  using Cores = std::vector<int>;
  const struct {
    Cores cores;
    int index, nodes, slots;
    Cores share;
  } kCases[] = {
      {{4, 5, 6}, 0, 1, 0, {4, 5, 6}},
      {{4, 5, 6}, 0, 1, 2, {4, 5, 6}},
      {{0, 1, 2, 3}, 0, 2, 1, {0, 1}},
      {{0, 1, 2, 3}, 1, 2, 2, {2, 3}},
      {{4, 5, 6, 7, 9}, 0, 3, 1, {4}},
      {{4, 5, 6, 7, 9}, 2, 3, 1, {7, 9}},
      {{4, 5, 6, 7, 9}, 2, 3, 0, {7, 9}},
      // More slots than cores: two ranks of one node get two cores.
      {{0, 1}, 2, 3, 1, {0}},
      {{0, 1}, 0, 3, 2, {0, 1}},
      {{0, 1}, 2, 3, 2, {0, 1}},
      {{4, 5, 6, 7, 9}, 1, 3, 2, {6, 7}},
      {{4, 5, 6, 7, 9}, 2, 3, 2, {4, 9}},
      {{0, 1}, 1, 2, 5, {0, 1}},
      {{}, 0, 3, 1, {}},
  };
  for (const auto& test : kCases) {
    EXPECT_EQ(ShareOfCores(test.cores, test.index, test.nodes, test.slots), test.share)
        << test.cores.size() << " cores, node " << test.index << " of " << test.nodes << ", " << test.slots << " slots";
  }
}

TEST_F(LocalTest, TooLongASocketPathIsRefused) {
  environment_["MUSTER_RUNTIME_DIR"] = folder_.path() + "/" + std::string(100, 'r');
  const Ended up = Run({"up"});
  EXPECT_EQ(up.code, 2);
  EXPECT_TRUE(absl::StrContains(up.err, " bytes, more than 107: set MUSTER_RUNTIME_DIR")) << up.err;
  // The coordinator's socket path fits, the trainers' does not, in neither the run folder nor the state folder.
  environment_["MUSTER_RUNTIME_DIR"] = folder_.path() + "/" + std::string(86 - folder_.path().size(), 'r');
  environment_["XDG_STATE_HOME"] = folder_.path() + "/" + std::string(100, 's');
  const Ended trainers = Run({"up"});
  EXPECT_EQ(trainers.code, 2);
  EXPECT_TRUE(absl::StrContains(trainers.err, "worker-0/trainer.sock has ")) << trainers.err;
}

}  // namespace
}  // namespace muster::cli
