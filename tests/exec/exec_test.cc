// Exec jobs as a user sees them: programs that end well, badly and not at all, under a real service.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/event_record.h"
#include "common/file/read_file.h"
#include "proto/tensorboard.pb.h"
#include "testing/wait.h"
#include "tests/cluster/cluster.h"

namespace muster::cluster {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

std::string ReadText(const std::string& path) { return ReadWhole(path).value_or(""); }

class ExecTest : public ::testing::Test {
 protected:
  void Start(int slots = 2) {
    cluster_.worker_flags = {"--exec-jobs", "on"};
    cluster_.StartCoordinator();
    cluster_.StartWorker(0, slots);
  }

  std::string Path(const std::string& name) const { return cluster_.folder() + "/" + name; }

  // A script of bash, to be run as the program of a rank.
  std::string Script(const std::string& name, const std::string& text) {
    const std::string path = Path(name);
    std::ofstream(path) << "#!/bin/bash\nset -u\nhere=" << cluster_.folder() << "\n" << text;
    chmod(path.c_str(), 0755);
    return path;
  }

  // `muster run`, to the job's end.
  Ran RunToItsEnd(const std::vector<std::string>& flags, const std::vector<std::string>& command) {
    return cluster_.Muster(Arguments(flags, command));
  }
  // The same, detached; the job's id.
  std::string Begin(std::vector<std::string> flags, const std::vector<std::string>& command) {
    flags.insert(flags.end(), {"-d", "-o", "name"});
    const Ran ran = cluster_.Muster(Arguments(flags, command));
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    return std::string(absl::StripAsciiWhitespace(ran.out));
  }

  static std::vector<std::string> Arguments(const std::vector<std::string>& flags,
                                            const std::vector<std::string>& command) {
    std::vector<std::string> arguments = {"run"};
    if (flags.empty() || flags[0] != "--workdir") arguments.insert(arguments.end(), {"--workdir", "/tmp"});
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    arguments.emplace_back("--");
    arguments.insert(arguments.end(), command.begin(), command.end());
    return arguments;
  }

  // Whether a file comes to hold the text.
  bool Holds(const std::string& path, const std::string& text) {
    return Eventually([&] { return absl::StrContains(ReadText(path), text); }, absl::Minutes(2));
  }

  Cluster cluster_;
};

TEST_F(ExecTest, RunsACommandOnEveryRankAndFollowsIt) {
  Start();
  const Ran ran = RunToItsEnd({"--ranks", "2"}, {"/bin/sh", "-c", "echo hello from $RANK of $WORLD_SIZE in $PWD"});
  EXPECT_EQ(ran.exit_code, 0) << ran.out << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("rank 0: hello from 0 of 2 in /tmp\n"));
  EXPECT_THAT(ran.out, HasSubstr("rank 1: hello from 1 of 2 in /tmp\n"));
  const Ran ps = cluster_.Muster({"ps", "-a", "-o", "wide"});
  EXPECT_THAT(ps.out, HasSubstr("sh -c"));
  const Ran describe = cluster_.Muster({"describe", "@last"});
  EXPECT_THAT(describe.out, HasSubstr("workload: exec"));
}

// The names and, on one node, the values that torch/distributed/elastic/agent/server/local_elastic_agent.py sets.
TEST_F(ExecTest, GivesTheVariablesOfTorchrun) {
  Start();
  const std::string script = Script("show", "env > $here/env-$RANK\n");
  ASSERT_EQ(RunToItsEnd({"--ranks", "2", "--name", "show", "--max-restarts", "5"}, {script}).exit_code, 0);
  std::map<std::string, std::string> ports;
  for (const std::string rank : {"0", "1"}) {
    std::map<std::string, std::string> env;
    for (const std::string& line :
         std::vector<std::string>(absl::StrSplit(ReadText(Path("env-" + rank)), '\n', absl::SkipEmpty()))) {
      env.insert(absl::StrSplit(line, absl::MaxSplits('=', 1)));
    }
    const std::map<std::string, std::string> expected = {{"RANK", rank},
                                                         {"LOCAL_RANK", rank},
                                                         {"GROUP_RANK", "0"},
                                                         {"ROLE_RANK", rank},
                                                         {"ROLE_NAME", "default"},
                                                         {"WORLD_SIZE", "2"},
                                                         {"LOCAL_WORLD_SIZE", "2"},
                                                         {"GROUP_WORLD_SIZE", "1"},
                                                         {"ROLE_WORLD_SIZE", "2"},
                                                         {"TORCHELASTIC_RESTART_COUNT", "0"},
                                                         {"TORCHELASTIC_MAX_RESTARTS", "5"},
                                                         {"TORCHELASTIC_USE_AGENT_STORE", "False"},
                                                         {"TORCHELASTIC_RUN_ID", env["MUSTER_JOB_ID"]},
                                                         {"MASTER_ADDR", "127.0.0.1"},
                                                         {"CUDA_VISIBLE_DEVICES", ""}};
    for (const auto& [name, value] : expected) {
      EXPECT_TRUE(env.contains(name)) << name;
      EXPECT_EQ(env[name], value) << name;
    }
    EXPECT_TRUE(absl::StartsWith(env["MUSTER_JOB_ID"], "show-")) << env["MUSTER_JOB_ID"];
    for (const char* name : {"OMP_NUM_THREADS", "MUSTER_REPORT_FILE", "MUSTER_STOP_FILE", "PATH"}) {
      EXPECT_NE(env[name], "") << name;
    }
    EXPECT_FALSE(env.contains("SLURM_PROCID"));
    ports[rank] = env["MASTER_PORT"];
  }
  int port = 0;
  EXPECT_TRUE(absl::SimpleAtoi(ports["0"], &port)) << ports["0"];
  EXPECT_GT(port, 0);
  EXPECT_EQ(ports["0"], ports["1"]);
}

TEST_F(ExecTest, OtherLaunchersAndVariablesOnRequest) {
  Start();
  const Ran ran =
      RunToItsEnd({"--launchers", "slurm,openmpi", "--env", "A=b c", "--env", "PATH=/usr/bin:/bin"}, {"env"});
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  for (const char* line : {"SLURM_PROCID=0", "SLURM_NTASKS=1", "SLURM_NNODES=1", "OMPI_COMM_WORLD_SIZE=1", "A=b c",
                           "PATH=/usr/bin:/bin"}) {
    EXPECT_THAT(ran.out, HasSubstr(absl::StrCat(line, "\n")));
  }
  EXPECT_THAT(ran.out, Not(HasSubstr("TORCHELASTIC"))) << "it was not asked for";
}

TEST_F(ExecTest, FailuresSayWhatHappened) {
  Start();
  Ran ran = RunToItsEnd({"--max-restarts", "0"}, {"/bin/sh", "-c", "echo last words; exit 3"});
  EXPECT_EQ(ran.exit_code, 1);
  EXPECT_THAT(ran.err, HasSubstr("rank 0 exited with code 3"));
  EXPECT_THAT(ran.err, HasSubstr("last words"));
  ran = RunToItsEnd({"--max-restarts", "0"}, {"/bin/sh", "-c", "kill -SEGV $$"});
  EXPECT_EQ(ran.exit_code, 1);
  EXPECT_THAT(ran.err, HasSubstr("killed by signal 11"));
  ran = RunToItsEnd({}, {"no-such-program"});
  EXPECT_EQ(ran.exit_code, 1);
  EXPECT_THAT(ran.err, HasSubstr("command not found: no-such-program"));
  ran = RunToItsEnd({"--workdir", "/no/such/folder"}, {"/bin/true"});
  EXPECT_EQ(ran.exit_code, 2) << ran.err;
  EXPECT_THAT(ran.err, HasSubstr("no such folder: /no/such/folder"));
}

TEST_F(ExecTest, AFieldOfTrainingIsRefusedByName) {
  Start();
  std::ofstream(Path("job.yaml")) << "apiVersion: muster/v1\nkind: Job\nname: a\nworkload: exec\ncommand: [/bin/true]\n"
                                     "steps: 10\n";
  Ran ran = cluster_.Muster({"validate", Path("job.yaml")});
  EXPECT_EQ(ran.exit_code, 2);
  EXPECT_THAT(ran.err, HasSubstr("job.yaml:6:1: steps: belongs to workload: train, but workload is exec"));
  std::ofstream(Path("job.yaml")) << "apiVersion: muster/v1\nkind: Job\nname: a\nworkload: exec\n"
                                     "command: [/bin/sh, -c, pwd]\nresources: {ranks: 2}\n";
  ran = cluster_.Muster({"validate", Path("job.yaml")});
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  ran = cluster_.Muster({"plan", Path("job.yaml")});
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("a: sh -c pwd on 2 ranks"));
  ran = cluster_.Muster({"submit", "-f", Path("job.yaml")});
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("rank 1: " + cluster_.folder() + "\n")) << "the job file's folder is the default";
}

TEST_F(ExecTest, TensorBoardFilesBecomeMetrics) {
  Start();
  const auto write = [&](const std::string& name, const std::vector<std::string>& tags) {
    std::ofstream events(Path(name), std::ios::binary);
    for (int step = 1; step <= 3; ++step) {
      TensorBoardEvent event;
      event.set_step(step);
      for (const std::string& tag : tags) {
        TensorBoardEvent::Value& value = *event.mutable_summary()->add_value();
        value.set_tag(tag);
        value.set_simple_value(0.25f * static_cast<float>(step));
      }
      events << EventRecord(event.SerializeAsString());
    }
  };
  write("events", {"Loss/train", "accuracy"});
  write("named", {"recall"});
  write("foreign", {"foreign"});
  const std::string script = Script("write", R"(
for folder in $here/work/runs/$RANK $here/out/$RANK; do
  mkdir -p $folder
  cat $here/foreign > $folder/events.out.tfevents.1795742897.$HOSTNAME.1.0
  cat $here/foreign > $folder/events.out.tfevents.1795742897.other-$HOSTNAME.$$.0
done
cat $here/events > $here/work/runs/$RANK/events.out.tfevents.1795742897.$HOSTNAME.$$.0
cat $here/named > $here/out/$RANK/events.out.tfevents.1795742897.$HOSTNAME.$$.1
)");
  fs::create_directory(Path("work"));
  const Ran ran = RunToItsEnd({"--workdir", Path("work"), "--ranks", "2"}, {script, "--output_dir=" + Path("out")});
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  const std::string id = std::string(absl::StripAsciiWhitespace(cluster_.Muster({"ps", "-a", "-o", "name"}).out));
  EXPECT_EQ(cluster_.Losses(id), (std::vector<double>{0.25, 0.5, 0.75}));
  const std::string describe = cluster_.Muster({"describe", id}).out;
  EXPECT_THAT(describe, HasSubstr("accuracy"));
  EXPECT_THAT(describe, HasSubstr("recall")) << "in the folder that its argument names";
  EXPECT_THAT(describe, Not(HasSubstr("foreign"))) << "of other processes";
}

TEST_F(ExecTest, AProgramThatDoesNothingGetsAWarning) {
  Start(3);
  const std::string idle = Script("idle", "until [ -e $here/end ]; do read -t 600 <> $here/fifo; done\n");
  const std::string busy = Script("busy", "until [ -e $here/end ]; do :; done\n");
  const std::string logs = Script("logs", "until [ -e $here/end ]; do echo line; read -t 0.2 <> $here/fifo2; done\n");
  for (const char* name : {"fifo", "fifo2"}) ASSERT_EQ(mkfifo(Path(name).c_str(), 0600), 0);
  std::map<std::string, std::string> ids;
  for (const std::string& script : {busy, logs, idle}) {
    const std::string name = fs::path(script).filename();
    std::ofstream(Path(name + ".yaml")) << "apiVersion: muster/v1\nkind: Job\nname: " << name
                                        << "\nworkload: exec\ncommand: [" << script
                                        << "]\nprogress_timeout_seconds: " << (name == "idle" ? 12 : 6) << "\n";
    const Ran ran = cluster_.Muster({"submit", "-d", "-o", "name", "-f", Path(name + ".yaml")});
    ASSERT_EQ(ran.exit_code, 0) << ran.err;
    ids[name] = std::string(absl::StripAsciiWhitespace(ran.out));
  }
  ASSERT_TRUE(Eventually(
      [&] {
        return absl::StrContains(cluster_.Muster({"events", ids["idle"]}).out, "has used no CPU or GPU");
      },
      absl::Minutes(2)));
  EXPECT_EQ(cluster_.State(ids["idle"]), "running") << "it is only a warning";
  for (const char* name : {"busy", "logs"}) {
    EXPECT_THAT(cluster_.Muster({"events", ids[name]}).out, Not(HasSubstr("has used no CPU"))) << name;
  }
  for (const auto& [name, id] : ids) EXPECT_EQ(cluster_.Muster({"cancel", id}).exit_code, 0) << name;
}

TEST_F(ExecTest, ReportsBecomeMetrics) {
  Start();
  const std::string script = Script("report", R"(
for step in 1 2 3; do
  echo "{\"step\": $step, \"loss\": 0.$step, \"accuracy\": 0.5, \"rank\": $RANK}" >> $MUSTER_REPORT_FILE
done
echo "not json" >> $MUSTER_REPORT_FILE
echo '{"checkpoint": "runs/step-3.pt", "step": 3}' >> $MUSTER_REPORT_FILE
)");
  const Ran ran = RunToItsEnd({"--ranks", "2"}, {script});
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  const std::string id = std::string(absl::StripAsciiWhitespace(cluster_.Muster({"ps", "-a", "-o", "name"}).out));
  EXPECT_EQ(cluster_.Losses(id), (std::vector<double>{0.1, 0.2, 0.3})) << "of rank 0 alone";
  const Ran describe = cluster_.Muster({"describe", id});
  EXPECT_THAT(describe.out, HasSubstr("step 3, loss 0.3"));
  EXPECT_THAT(describe.out, HasSubstr("accuracy 0.5"));
  EXPECT_THAT(describe.out, HasSubstr("checkpoint of step 3, by its script: runs/step-3.pt"));
  EXPECT_THAT(cluster_.Muster({"logs", id}).out, HasSubstr("a line of the report file is ignored"));
}

// A script that writes without end costs no one else anything.
TEST_F(ExecTest, FloodsAreBounded) {
  Start();
  const std::string script = Script("flood", R"(
head -c 30000000 /dev/zero | tr '\0' 'x' | fold -w 100
yes '{"step": 1, "loss": 1}' | head -n 200000 >> $MUSTER_REPORT_FILE
head -c 3000000 /dev/zero >> $MUSTER_REPORT_FILE
echo >> $MUSTER_REPORT_FILE
)");
  const std::string id = Begin({}, {script});
  EXPECT_TRUE(cluster_.WaitForState(id, "completed"));
  // On the node: the coordinator need not have received all of so much output.
  std::string log;
  for (const auto& entry : fs::recursive_directory_iterator(cluster_.RunDir(0))) {
    if (absl::StartsWith(entry.path().filename().string(), "log.")) log += ReadText(entry.path());
  }
  EXPECT_THAT(log, HasSubstr("the script reports more than 20 times a second"));
  EXPECT_LE(cluster_.MusterJson({"metrics", id}).size(), 2000u);
}

TEST_F(ExecTest, AKilledRankIsRestartedAndKnowsIt) {
  Start();
  const std::string script = Script("count", R"(
step=$(cat $here/saved-$RANK 2>/dev/null || echo 0)
echo "attempt $TORCHELASTIC_RESTART_COUNT begins after step $step" >> $here/attempts-$RANK
while [ $step -lt 20 ]; do
  step=$((step + 1)); echo $step > $here/saving-$RANK; mv $here/saving-$RANK $here/saved-$RANK  # it may be killed
  [ $step = 10 -a $TORCHELASTIC_RESTART_COUNT = 0 ] && { [ $RANK = 1 ] && kill -9 $$; sleep 600; }
done
exit 0
)");
  const Ran ran = RunToItsEnd({"--ranks", "2"}, {script});
  EXPECT_EQ(ran.exit_code, 0) << ran.out << ran.err;
  EXPECT_EQ(ReadText(Path("attempts-1")), "attempt 0 begins after step 0\nattempt 1 begins after step 10\n");
  EXPECT_EQ(ReadText(Path("saved-0")), "20\n");
}

// SIGTERM, and time to save; then the job goes on where it saved.
TEST_F(ExecTest, APausedProgramSavesAndContinues) {
  Start();
  const std::string script = Script("pause", R"(
trap 'echo saved > $here/saved; exit 0' TERM
[ -e $here/saved ] && exit 0
echo begun > $here/begun
while :; do sleep 0.1; done
)");
  const std::string id = Begin({}, {script});
  ASSERT_TRUE(Holds(Path("begun"), "begun"));
  ASSERT_TRUE(cluster_.WaitForState(id, "running"));
  ASSERT_EQ(cluster_.Muster({"pause", id}).exit_code, 0);
  ASSERT_TRUE(cluster_.WaitForState(id, "paused"));
  EXPECT_EQ(ReadText(Path("saved")), "saved\n");
  ASSERT_EQ(cluster_.Muster({"resume", id}).exit_code, 0);
  EXPECT_TRUE(cluster_.WaitForState(id, "completed"));
  EXPECT_EQ(Number(cluster_.Job(id)["restarts"]), 0u);
}

// With a grace the stop file comes first, and a program that minds it gets no signal.
TEST_F(ExecTest, TheStopFileComesBeforeTheSignal) {
  Start();
  const std::string script = Script("gentle", R"(
trap 'echo signal >> $here/seen; exit 1' TERM
echo begun > $here/begun
until [ -e $MUSTER_STOP_FILE ]; do sleep 0.05; done
echo file >> $here/seen
)");
  const std::string id = Begin({"--stop-grace", "600"}, {script});
  ASSERT_TRUE(Holds(Path("begun"), "begun"));
  ASSERT_TRUE(cluster_.WaitForState(id, "running"));
  ASSERT_EQ(cluster_.Muster({"cancel", id}).exit_code, 0);
  ASSERT_TRUE(cluster_.WaitForState(id, "cancelled"));
  EXPECT_EQ(ReadText(Path("seen")), "file\n");
}

TEST_F(ExecTest, AWorkerThatIsKilledAdoptsItsPrograms) {
  Start();
  const std::string script = Script("adopt", R"(
echo begun > $here/begun
until [ -e $here/go ]; do sleep 0.05; done
echo '{"step": 5, "loss": 0.5}' >> $MUSTER_REPORT_FILE
)");
  const std::string id = Begin({}, {script});
  ASSERT_TRUE(Holds(Path("begun"), "begun"));
  ASSERT_TRUE(cluster_.WaitForState(id, "running"));
  cluster_.KillWorker(0);
  cluster_.StartWorker(0, 2);
  std::ofstream(Path("go")) << "go";
  EXPECT_TRUE(cluster_.WaitForState(id, "completed"));
  EXPECT_EQ(cluster_.Generation(id), 1u);
  EXPECT_EQ(cluster_.Losses(id), std::vector<double>{0.5});
}

// What the program started goes with it.
TEST_F(ExecTest, NothingOfACancelledJobStays) {
  Start();
  const std::string script = Script("family", R"(
trap '' TERM
sleep 987654 &
echo $! > $here/child
setsid sleep 987655 &
echo $! > $here/loose
echo begun > $here/begun
wait
)");
  const std::string id = Begin({}, {script});
  ASSERT_TRUE(Holds(Path("begun"), "begun"));
  int child = 0, loose = 0;
  ASSERT_TRUE(absl::SimpleAtoi(absl::StripAsciiWhitespace(ReadText(Path("child"))), &child));
  ASSERT_TRUE(absl::SimpleAtoi(absl::StripAsciiWhitespace(ReadText(Path("loose"))), &loose));
  ASSERT_EQ(kill(child, 0), 0);
  const std::vector<pid_t> runners = cluster_.Trainers();
  ASSERT_EQ(runners.size(), 1u);
  kill(runners[0], SIGKILL);  // the program dies with muster-exec
  EXPECT_TRUE(Eventually([&] { return kill(child, 0) != 0 && kill(loose, 0) != 0; }, absl::Minutes(1)));
  cluster_.Muster({"cancel", id});
}

TEST_F(ExecTest, AWorkerRunsProgramsOnlyWithTheFlag) {
  cluster_.StartCoordinator();
  cluster_.StartWorker(0, 1);
  const Ran ran = RunToItsEnd({}, {"/bin/true"});
  EXPECT_EQ(ran.exit_code, 1);
  EXPECT_THAT(ran.err, HasSubstr("this node runs no programs of users"));
  EXPECT_THAT(ran.err, HasSubstr("--exec-jobs on"));
}

TEST_F(ExecTest, RunsOnTheNodesThatItSelectsAndAfterOthers) {
  cluster_.worker_flags = {"--exec-jobs", "on"};
  cluster_.StartCoordinator();
  const std::vector<std::string> flags = cluster_.worker_flags;
  for (int node = 0; node < 2; ++node) {
    cluster_.worker_flags = flags;
    cluster_.worker_flags.push_back(absl::StrCat("--label=rack=", node == 0 ? "a" : "b"));
    cluster_.StartWorker(node, 2);
  }
  EXPECT_TRUE(Eventually([&] {
    const std::string wide = cluster_.Muster({"nodes", "-o", "wide"}).out;
    return absl::StrContains(wide, "rack=a") && absl::StrContains(wide, "rack=b");
  }));
  const std::string gate = Path("gate"), done = Path("done");
  const std::string first = Begin({"--ranks", "2", "--node-selector", "rack=b", "--name", "first"},
                                  {Script("first.sh", absl::StrCat("until [ -e ", gate, " ]; do sleep 0.05; done\n"))});
  ASSERT_TRUE(cluster_.WaitForState(first, "running"));
  std::set<std::string> nodes;
  const auto described = cluster_.MusterJson({"describe", first});
  for (const auto& rank : described["generations"][0]["ranks"]) nodes.insert(rank["node"].get<std::string>());
  EXPECT_EQ(nodes.size(), 1u);
  // A third rank on that node has no room, though the other node is free.
  const std::string full = Begin({"--node-selector", "rack=b", "--name", "full"}, {"true"});
  EXPECT_TRUE(Eventually(
      [&] { return absl::StrContains(cluster_.Job(full).value("reason", ""), "only on nodes with rack=b"); }));
  const std::string last = Begin({"--after", first, "--name", "last"}, {"touch", done});
  EXPECT_THAT(cluster_.Job(last).value("reason", ""), HasSubstr("waiting for " + first + " to complete"));
  EXPECT_FALSE(fs::exists(done));
  std::ofstream(gate).close();
  EXPECT_TRUE(cluster_.WaitForState(last, "completed"));
  EXPECT_TRUE(cluster_.WaitForState(full, "completed"));
  EXPECT_TRUE(fs::exists(done));
  const Ran wrong = cluster_.Muster({"run", "--node-selector", "rack", "--", "true"});
  EXPECT_EQ(wrong.exit_code, 2) << wrong.err;
  EXPECT_THAT(wrong.err, HasSubstr("expected KEY=VALUE or KEY!=VALUE"));
}

TEST_F(ExecTest, AnArrayIsAJobForEachCombination) {
  Start();
  std::ofstream(Path("sweep.yaml"))
      << "apiVersion: muster/v1\nkind: Job\nname: sweep\nworkload: exec\ncommand: [\"true\"]\n";
  const Ran ran = cluster_.Muster(
      {"submit", Path("sweep.yaml"), "--array", "max_restarts=1,2", "--array", "priority=0,5,9", "-o", "name"});
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  const std::vector<std::string> ids = absl::StrSplit(absl::StripAsciiWhitespace(ran.out), '\n');
  ASSERT_EQ(ids.size(), 6u) << ran.out;
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_TRUE(absl::StartsWith(ids[i], absl::StrCat("sweep-", i + 1, "-"))) << ids[i];
    EXPECT_TRUE(cluster_.WaitForState(ids[i], "completed"));
    const auto spec = cluster_.Job(ids[i])["spec"];
    EXPECT_EQ(spec["max_restarts"], i < 3 ? 1 : 2);
    EXPECT_EQ(spec["priority"], (std::vector<int>{0, 5, 9})[i % 3]);
  }
  // One that is wrong is found before any is submitted.
  const size_t before = cluster_.MusterJson({"ps", "-a"}).size();
  const Ran bad = cluster_.Muster({"submit", Path("sweep.yaml"), "--array", "max_restarts=1,-1"});
  EXPECT_EQ(bad.exit_code, 2) << bad.err;
  EXPECT_EQ(cluster_.MusterJson({"ps", "-a"}).size(), before);
}

}  // namespace
}  // namespace muster::cluster
