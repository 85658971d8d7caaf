// Ranks of two users on one node: real muster-worker and muster-step as root, a fake coordinator, and fake trainers as
// two users who have no name on this machine.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/file/read_file.h"
#include "testing/wait.h"
#include "worker/agent/agent_fixture_test.h"
#include "worker/agent/node.h"
#include "worker/agent/rank_users.h"
#include "worker/agent/reconcile.h"

namespace muster::agent {
namespace {

constexpr uid_t kAnn = 61001, kBob = 61002;
constexpr gid_t kLab = 61005;

struct stat Look(const std::string& path) {
  struct stat info {};
  EXPECT_EQ(stat(path.c_str(), &info), 0) << path;
  return info;
}

class RunAsOwnerTest : public AgentTest {
 protected:
  void SetUp() override {
    ASSERT_EQ(MissingToSwitchUsers(), std::vector<std::string>()) << "run the tests as root";
    chmod(folder_.path().c_str(), 0755);
    std::filesystem::copy(trainer(), folder_.path() + "/fake");
    chmod((folder_.path() + "/fake").c_str(), 0755);
    std::filesystem::create_directory(Checkpoints());
    chmod(Checkpoints().c_str(), 01777);
    folder_.Write("users", absl::StrCat("ann ", kAnn, ":", kAnn, ",", kLab, " umask=027\nbob ", kBob, ":", kBob, "\n"));
  }

  std::string Checkpoints() const { return folder_.path() + "/checkpoints"; }

  // The trainer: `script` before it becomes the fake one. $CK: the checkpoints, $RUN: the run folder.
  std::vector<std::string> Flags(const std::string& script) {
    const std::string text = absl::StrReplaceAll(script, {{"$CK", Checkpoints()}, {"$RUN", run_}});
    const std::string program = folder_.Write(
        "trainer", absl::StrCat("#!/bin/sh\n", text, "\nexec ", folder_.path(), "/fake \"$@\"\n"), /*executable=*/true);
    return {"--trainer", program, "--run-as-owner", folder_.path() + "/users", "--slots", "2"};
  }

  static DesiredRank RunFor(const std::string& owner, const RankId& rank, uint32_t slot, uint64_t steps = 0) {
    DesiredRank desired = Run(rank, "count", steps);
    desired.mutable_run()->set_owner(owner);
    desired.mutable_run()->set_slots(0, slot);
    return desired;
  }

  bool Reached(const RankId& rank, uint64_t step) {
    return Eventually([&] { return coordinator_.StepOf(rank) >= step; });
  }
};

TEST_F(RunAsOwnerTest, FilesBelongToTheOwnerAndAreNoOneElsesBusiness) {
  coordinator_.Serve();
  // Bob's rank tries what it may not; each try that succeeds prints REACHED.
  StartWorker(Flags(R"(
echo "I am $(id -u) $(id -G) umask $(umask) in $(pwd) HOME $HOME"
grep -E 'NoNewPrivs|Cap(Inh|Prm|Eff|Amb)' /proc/self/status
mkdir -p $CK/$MUSTER_JOB_ID/step-1
echo weights >$CK/$MUSTER_JOB_ID/step-1/shard
try() { "$@" >/dev/null 2>&1 && echo "REACHED $*" || echo "denied $*"; }
if [ $(id -u) = 61002 ]; then
  for file in $CK/a/step-1/shard $RUN/a/1/0/start.json $RUN/a/1/0/log.000000 $RUN/a/1/0/trainer/outbox.000000 \
      $RUN/b/1/0/start.json $RUN/b/1/0/log.000000 $RUN/lease $RUN/../state/desired.pb; do
    try cat $file
    try sh -c "echo x >>$file"
  done
  for folder in $RUN $RUN/a $RUN/a/1/0 $RUN/a/1/0/trainer $RUN/b $RUN/b/1/0; do
    try ls $folder
    try touch $folder/x
    try rm -rf $folder
  done
  try kill -9 $(cat $CK/pid)
  try sh -c "echo 1 >/proc/sys/kernel/core_uses_pid"
  try setpriv --reuid 0 true
  touch own && echo "own folder works"
else
  echo $$ >$CK/pid
fi
)"));
  const RankId a = Id("a"), b = Id("b");
  Want({RunFor("ann", a, 0)});
  ASSERT_TRUE(Reached(a, 3)) << coordinator_.Of(a).log;
  Want({RunFor("ann", a, 0), RunFor("bob", b, 1)});
  ASSERT_TRUE(Reached(b, 3)) << coordinator_.Of(b).log << coordinator_.ExitOf(b).message();

  const std::string ann = coordinator_.Of(a).log, bob = coordinator_.Of(b).log;
  const std::string home = run_ + "/a/1/0/trainer";
  EXPECT_TRUE(absl::StrContains(ann, absl::StrCat("I am 61001 61001 61005 umask 0027 in ", home, " HOME ", home, "\n")))
      << ann;
  EXPECT_TRUE(absl::StrContains(bob, "I am 61002 61002 umask 0077 in ")) << bob;
  EXPECT_TRUE(absl::StrContains(ann, "NoNewPrivs:\t1")) << ann;
  for (const char* set : {"CapInh", "CapPrm", "CapEff", "CapAmb"}) {
    EXPECT_TRUE(absl::StrContains(ann, absl::StrCat(set, ":\t0000000000000000"))) << ann;
  }
  EXPECT_FALSE(absl::StrContains(bob, "REACHED")) << bob;
  EXPECT_TRUE(absl::StrContains(bob, "denied cat")) << bob;
  EXPECT_TRUE(absl::StrContains(bob, "own folder works")) << bob;

  EXPECT_EQ(Look(Checkpoints() + "/a/step-1/shard").st_uid, kAnn);
  EXPECT_EQ(Look(Checkpoints() + "/a/step-1/shard").st_gid, kAnn);
  EXPECT_EQ(Look(Checkpoints() + "/a/step-1/shard").st_mode & 0777, 0640u);
  EXPECT_EQ(Look(Checkpoints() + "/a").st_mode & 0777, 0750u);
  EXPECT_EQ(Look(Checkpoints() + "/b/step-1/shard").st_uid, kBob);
  EXPECT_EQ(Look(Checkpoints() + "/b/step-1/shard").st_mode & 0777, 0600u);
}

TEST_F(RunAsOwnerTest, TheNextDaemonAdoptsStopsAndRemovesThem) {
  coordinator_.Serve();
  const std::vector<std::string> flags = Flags("mkdir sticky && chmod 1777 sticky && touch sticky/x");
  StartWorker(flags);
  const RankId a = Id("a"), b = Id("b");
  DesiredRank meets = RunFor("bob", b, 1);
  meets.mutable_run()->mutable_spec()->set_name("rendezvous");
  Want({RunFor("ann", a, 0), meets});
  ASSERT_TRUE(Reached(a, 3)) << coordinator_.Of(a).log;
  ASSERT_TRUE(Eventually([&] { return absl::StrContains(coordinator_.Of(b).log, "waiting\n"); }));
  const rundir::Processes before = ProcessesOf(a);
  KillWorker();
  StartWorker(flags);
  const uint64_t step = coordinator_.StepOf(a);
  ASSERT_TRUE(Reached(a, step + 20)) << "the adopted rank is read from";
  EXPECT_EQ(ProcessesOf(a).trainer, before.trainer);
  coordinator_.SetKey("b", "it");
  EXPECT_TRUE(Eventually([&] { return Exited(b); }));
  EXPECT_TRUE(absl::StrContains(coordinator_.Of(b).log, "b is it (0)")) << "an adopted rank may call the new daemon";
  Want({StopRequest(a, /*checkpoint_first=*/true, absl::Seconds(30))});
  ASSERT_TRUE(Eventually([&] { return Exited(a); }));
  EXPECT_EQ(coordinator_.ExitOf(a).cause(), RankExit::STOPPED);
  EXPECT_TRUE(coordinator_.Of(a).records.back().has_checkpoint());
  Want({});
  ASSERT_TRUE(Eventually([&] { return Dir(a).IsDone(); }));
  // The daemon may remove it meanwhile.
  EXPECT_TRUE(Eventually([&] { return Dir(a).Remove().ok(); }));
}

TEST_F(RunAsOwnerTest, AreKilledAndDieWithTheirShim) {
  coordinator_.Serve();
  StartWorker(Flags(""));
  const RankId deaf = Id("deaf"), b = Id("b");
  DesiredRank silent = RunFor("bob", b, 1);  // whom no broken pipe ends
  silent.mutable_run()->mutable_spec()->set_name("silent");
  Want({RunFor("ann", deaf, 0), silent});
  ASSERT_TRUE(Reached(deaf, 1)) << coordinator_.Of(deaf).log;
  ASSERT_TRUE(Eventually([&] { return absl::StrContains(coordinator_.Of(b).log, "assigned"); }));
  const rundir::Processes of_b = ProcessesOf(b), of_deaf = ProcessesOf(deaf);
  EXPECT_EQ(Look(absl::StrCat("/proc/", of_b.trainer.pid)).st_uid, kBob);
  EXPECT_EQ(Look(absl::StrCat("/proc/", of_b.shim.pid)).st_uid, geteuid());
  kill(worker_pid(), SIGSTOP);  // it would kill the trainer, too
  kill(of_b.shim.pid, SIGKILL);
  // Long before its connection to the stopped daemon breaks, and with that its output.
  EXPECT_TRUE(Eventually([&] { return !rundir::IsAlive(of_b.trainer); }, absl::Seconds(10)));
  kill(worker_pid(), SIGCONT);
  ASSERT_TRUE(Eventually([&] { return Exited(b); }));
  EXPECT_EQ(coordinator_.ExitOf(b).cause(), RankExit::VANISHED);
  kill(of_deaf.trainer.pid, SIGSTOP);
  Want({StopRequest(deaf, false, absl::Milliseconds(300))});
  ASSERT_TRUE(Eventually([&] { return Exited(deaf); }));
  EXPECT_EQ(coordinator_.ExitOf(deaf).signal(), SIGKILL);
  EXPECT_FALSE(rundir::IsAlive(of_deaf.trainer));
}

TEST_F(RunAsOwnerTest, WithoutAnAccountARankIsRefusedAndTheSlotStaysFree) {
  coordinator_.Serve();
  StartWorker(Flags("echo ran"));
  const RankId stranger = Id("stranger"), old = Id("old"), a = Id("a");
  Want({RunFor("cy", stranger, 0), RunFor("", old, 1)});
  ASSERT_TRUE(Eventually([&] { return Exited(stranger) && Exited(old); }));
  for (const auto& [rank, why] :
       {std::pair(stranger, "/users has no line for cy"), {old, "does not say who submitted"}}) {
    const RankExit exit = coordinator_.ExitOf(rank);
    EXPECT_EQ(exit.cause(), RankExit::REFUSED);
    EXPECT_TRUE(exit.of_node()) << "another node may have the account";
    EXPECT_TRUE(absl::StrContains(exit.message(), why)) << exit.message();
    EXPECT_EQ(coordinator_.Of(rank).log, "");
  }
  Want({RunFor("ann", a, 0, 5)});
  EXPECT_TRUE(Eventually([&] { return Exited(a); }));
  EXPECT_EQ(coordinator_.ExitOf(a).cause(), RankExit::COMPLETED);
}

TEST_F(RunAsOwnerTest, AProgramThatTheOwnerMayNotRunIsNamed) {
  coordinator_.Serve();
  const std::vector<std::string> flags = Flags("");
  chmod((folder_.path() + "/trainer").c_str(), 0700);
  StartWorker(flags);
  const RankId a = Id("a");
  Want({RunFor("ann", a, 0)});
  ASSERT_TRUE(Eventually([&] { return Exited(a); }));
  EXPECT_EQ(coordinator_.ExitOf(a).cause(), RankExit::SPAWN_FAILED);
  EXPECT_TRUE(absl::StrContains(coordinator_.ExitOf(a).message(),
                                absl::StrCat("user 61001 may not run ", folder_.path(), "/trainer")))
      << coordinator_.ExitOf(a).message();
}

// Anyone may connect to the socket, because the ranks' users must; who is no rank is hung up on.
TEST_F(RunAsOwnerTest, StrangersCannotTalkToTheDaemon) {
  coordinator_.Serve();
  StartWorker(Flags(""));
  const RankId a = Id("a");
  Want({RunFor("ann", a, 0)});
  ASSERT_TRUE(Reached(a, 1));
  const std::string path = run_ + "/trainer.sock";
  const pid_t pid = fork();
  if (pid == 0) {  // ann, but not her rank
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (setgid(kAnn) != 0 || setuid(kAnn) != 0) _exit(10);
    if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) _exit(11);
    char byte = 0;
    _exit(read(fd, &byte, 1) == 0 ? 0 : 12);
  }
  int status = 0;
  ASSERT_TRUE(Eventually([&] { return waitpid(pid, &status, WNOHANG) == pid; }));
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(RunAsOwnerTest, ADaemonThatMayNotSwitchSaysSoAtItsStart) {
  std::filesystem::copy("worker/agent/muster-worker", folder_.path() + "/muster-worker");
  std::filesystem::copy("worker/shim/muster-step", folder_.path() + "/muster-step");
  const std::string command = absl::StrCat("setpriv --reuid 61001 --regid 61001 --clear-groups ", folder_.path(),
                                           "/muster-worker --coordinator unix:/c.sock", " --state-dir ", folder_.path(),
                                           "/s --run-dir ", folder_.path(), "/r --trainer ", folder_.path(),
                                           "/fake --run-as-owner ", folder_.path(), "/users 2>&1");
  FILE* output = popen(command.c_str(), "r");
  ASSERT_NE(output, nullptr);
  char text[2000] = "";
  const size_t size = fread(text, 1, sizeof text - 1, output);
  EXPECT_NE(pclose(output), 0);
  const std::string said(text, size);
  EXPECT_TRUE(absl::StrContains(said,
                                "--run-as-owner: this process (user 61001) may not run ranks as other users, it "
                                "lacks CAP_SETUID"))
      << said;

  std::string errors;
  folder_.Write("users", "ann ann\nbob 0:0\n");
  EXPECT_EQ(RunWorker({"--run-as-owner", folder_.path() + "/users"}, errors), 1);
  EXPECT_TRUE(absl::StrContains(errors, "/users, line 2: no rank may run as root (uid 0)")) << errors;
}

TEST_F(RunAsOwnerTest, ADaemonThatIsNotRootNeedsOnlyTheCapabilities) {
  ASSERT_EQ(chown(folder_.path().c_str(), 61003, 61003), 0);
  std::filesystem::copy("worker/shim/muster-step", folder_.path() + "/muster-step");
  const std::string needed = "+setuid,+setgid,+kill,+chown,+dac_override,+fowner";
  launcher_ = {"/usr/bin/setpriv", "--reuid",    "61003", "--regid",        "61003",
               "--clear-groups",   "--inh-caps", needed,  "--ambient-caps", needed};
  coordinator_.Serve();
  std::vector<std::string> flags = Flags("grep -E 'Cap(Inh|Prm|Eff|Amb)' /proc/self/status; id -u; id -G");
  flags.insert(flags.end(), {"--bin-dir", folder_.path()});
  StartWorker(flags);
  const RankId a = Id("a"), deaf = Id("deaf");
  Want({RunFor("ann", a, 0), RunFor("bob", deaf, 1)});
  ASSERT_TRUE(Reached(a, 3) && Reached(deaf, 3)) << coordinator_.ExitOf(a).message();
  const std::string log = coordinator_.Of(a).log;
  for (const char* set : {"CapInh", "CapPrm", "CapEff", "CapAmb"}) {
    EXPECT_TRUE(absl::StrContains(log, absl::StrCat(set, ":\t0000000000000000"))) << log;
  }
  EXPECT_TRUE(absl::StrContains(log, "61001\n61001 61005\n")) << log;
  EXPECT_EQ(Look(absl::StrCat("/proc/", ProcessesOf(a).shim.pid)).st_uid, 61003u);
  Want({RunFor("ann", a, 0), StopRequest(deaf, false, absl::Milliseconds(300))});
  ASSERT_TRUE(Eventually([&] { return Exited(deaf); }));
  EXPECT_EQ(coordinator_.ExitOf(deaf).signal(), SIGKILL);
  Want({StopRequest(a, true, absl::Seconds(30))});
  ASSERT_TRUE(Eventually([&] { return Exited(a); }));
  EXPECT_EQ(coordinator_.ExitOf(a).cause(), RankExit::STOPPED);
}

TEST_F(RunAsOwnerTest, NoRankIsTheCoordinator) {
  const std::string socket = folder_.Write("c.sock", "");
  ASSERT_EQ(chown(socket.c_str(), kAnn, kAnn), 0);
  const auto users = RankUsers::Make(folder_.path() + "/users", "unix:" + socket);
  ASSERT_TRUE(users.ok()) << users.status();
  EXPECT_TRUE(absl::StrContains(users->Find("ann").status().message(), "whom the coordinator runs as"));
  EXPECT_TRUE(users->Find("bob").ok());
}

// With a user of its own, the trainer has a folder of its own and others only pass through to it.
TEST_F(RunAsOwnerTest, OthersOnlyPassThroughTheFolderOfARank) {
  TemporaryFolder run;
  const rundir::RankDir dir(run.path(), Id("a"));
  rundir::Start start;
  start.argv = {"/bin/true"};
  start.user = rundir::User{61001, 61002, {44}, 027};
  ASSERT_TRUE(dir.Create(start).ok());
  EXPECT_EQ(dir.ReadStart()->user, start.user);
  EXPECT_EQ(dir.TrainerPath(), dir.path() + "/trainer");
  const auto look = [](const std::string& path) {
    struct stat info {};
    EXPECT_EQ(stat(path.c_str(), &info), 0) << path;
    return info;
  };
  EXPECT_EQ(look(dir.TrainerPath()).st_uid, 61001u);
  EXPECT_EQ(look(dir.TrainerPath()).st_gid, 61002u);
  EXPECT_EQ(look(dir.TrainerPath()).st_mode & 07777, 0700u);
  for (const char* above : {"/a", "/a/1", "/a/1/0"}) {
    EXPECT_EQ(look(run.path() + above).st_uid, geteuid()) << above;
    EXPECT_EQ(look(run.path() + above).st_mode & 07777, 0711u) << above;
  }
  EXPECT_EQ(look(dir.path() + "/start.json").st_mode & 0777, 0600u);
  ASSERT_TRUE(dir.Remove().ok());
  EXPECT_NE(access((run.path() + "/a").c_str(), F_OK), 0);
}

}  // namespace
}  // namespace muster::agent
