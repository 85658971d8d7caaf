#include "worker/agent/agent_fixture_test.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/file/read_file.h"
#include "common/proto_time.h"
#include "testing/wait.h"
#include "worker/agent/reconcile.h"

namespace muster::agent {
namespace {

std::string Binary(const std::string& path) { return std::filesystem::absolute(path); }

pid_t SpawnWorker(std::vector<std::string> arguments, const std::string& errors) {
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (!errors.empty())
    posix_spawn_file_actions_addopen(&actions, 2, errors.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  pid_t pid = 0;
  EXPECT_EQ(posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environ), 0);
  posix_spawn_file_actions_destroy(&actions);
  return pid;
}

int CodeOf(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : -1; }

}  // namespace

AgentTest::AgentTest() : run_(folder_.path() + "/run"), coordinator_(folder_.path() + "/coordinator.sock") {}

AgentTest::~AgentTest() {
  if (worker_ > 0) {
    kill(worker_, SIGKILL);
    waitpid(worker_, nullptr, 0);
  }
  for (const rundir::RankDir& dir : rundir::RankDir::List(run_)) {
    const absl::StatusOr<rundir::Processes> processes = dir.ReadProcesses();
    if (!processes.ok() || !rundir::IsAlive(processes->shim)) continue;
    kill(processes->shim.pid, SIGKILL);  // the trainer dies with it
    EXPECT_TRUE(Eventually([&] { return !rundir::IsAlive(processes->trainer); }));
  }
}

void AgentTest::TearDown() { EXPECT_EQ(coordinator_.faults(), ""); }

std::string AgentTest::trainer() const { return Binary("worker/agent/fake_trainer"); }

std::vector<std::string> AgentTest::Arguments(const std::vector<std::string>& more_flags) const {
  std::vector<std::string> arguments = launcher_;
  arguments.insert(arguments.end(), {Binary("worker/agent/muster-worker"), "--coordinator", coordinator_.address(),
                                     "--state-dir", folder_.path() + "/state", "--run-dir", run_});
  arguments.insert(arguments.end(), more_flags.begin(), more_flags.end());
  const auto unless_given = [&](const std::string& flag, const std::string& value) {
    if (std::find(more_flags.begin(), more_flags.end(), flag) != more_flags.end()) return;
    arguments.insert(arguments.end(), {flag, value});
  };
  unless_given("--bin-dir", Binary("worker/shim"));
  unless_given("--trainer", trainer());
  unless_given("--kill-grace", "500ms");
  return arguments;
}

void AgentTest::StartWorker(const std::vector<std::string>& more_flags) {
  worker_ = SpawnWorker(Arguments(more_flags), "");
}

void AgentTest::KillWorker() { EndWorker(SIGKILL); }

int AgentTest::EndWorker(int signal) {
  kill(worker_, signal);
  return WaitWorker();
}

int AgentTest::WaitWorker() {
  int status = 0;
  EXPECT_TRUE(Eventually([&] { return waitpid(worker_, &status, WNOHANG) == worker_; }));
  worker_ = 0;
  return CodeOf(status);
}

int AgentTest::RunWorker(const std::vector<std::string>& more_flags, std::string& errors) {
  const std::string file = folder_.path() + "/errors";
  const pid_t pid = SpawnWorker(Arguments(more_flags), file);
  int status = 0;
  EXPECT_TRUE(Eventually([&] { return waitpid(pid, &status, WNOHANG) == pid; }));
  errors = ReadWhole(file).value_or("");
  return CodeOf(status);
}

DesiredRank AgentTest::Run(const RankId& rank, const std::string& behaviour, uint64_t steps) {
  DesiredRank desired;
  *desired.mutable_key() = KeyOf(rank);
  Assignment& assignment = *desired.mutable_run();
  *assignment.mutable_key() = KeyOf(rank);
  assignment.set_world(1);
  assignment.add_slots(0);
  assignment.mutable_spec()->set_name(behaviour);
  assignment.mutable_spec()->mutable_train()->set_steps(steps);
  return desired;
}

RankId AgentTest::StartRank(const std::string& behaviour, uint64_t steps, uint64_t until_step) {
  coordinator_.Serve();
  StartWorker();
  const RankId rank = Id(behaviour);
  Want({Run(rank, behaviour, steps)});
  EXPECT_TRUE(Eventually([&] { return coordinator_.StepOf(rank) >= until_step; }));
  return rank;
}

DesiredRank AgentTest::StopRequest(const RankId& rank, bool checkpoint_first, absl::Duration deadline) {
  DesiredRank desired;
  *desired.mutable_key() = KeyOf(rank);
  desired.mutable_stop()->set_reason(END_REASON_CANCELLED);
  desired.mutable_stop()->set_checkpoint_first(checkpoint_first);
  *desired.mutable_stop()->mutable_deadline() = ToProto(deadline);
  return desired;
}

void AgentTest::Want(const std::vector<DesiredRank>& ranks) {
  Desired desired;
  for (const DesiredRank& rank : ranks) *desired.add_ranks() = rank;
  coordinator_.Want(desired);
}

rundir::Processes AgentTest::ProcessesOf(const RankId& rank) {
  EXPECT_TRUE(Eventually([&] { return Dir(rank).ReadProcesses().ok(); }));
  return Dir(rank).ReadProcesses().value_or(rundir::Processes());
}

void AgentTest::ExpectWholeHistory(const RankId& rank, uint64_t steps) {
  const FakeCoordinator::Received received = coordinator_.Of(rank);
  ASSERT_EQ(received.records.size(), steps + 2);
  EXPECT_TRUE(received.records.front().has_running());
  for (uint64_t step = 1; step <= steps; ++step) EXPECT_EQ(received.records[step].metrics().step(), step);
  EXPECT_TRUE(received.records.back().has_finished());
}

void AgentTest::StopAndExpectWholeHistory(const RankId& rank) {
  Want({StopRequest(rank, /*checkpoint_first=*/true, absl::Seconds(30))});
  ASSERT_TRUE(Eventually([&] { return Exited(rank); }));
  EXPECT_EQ(coordinator_.ExitOf(rank).cause(), RankExit::STOPPED);
  const FakeCoordinator::Received received = coordinator_.Of(rank);
  ASSERT_GE(received.records.size(), 2u);
  const uint64_t steps = received.records.size() - 2;
  EXPECT_TRUE(received.records.front().has_running());
  for (uint64_t step = 1; step <= steps; ++step) EXPECT_EQ(received.records[step].metrics().step(), step);
  EXPECT_TRUE(received.records.back().has_checkpoint());
  EXPECT_EQ(received.records.back().checkpoint().step(), steps);
}

}  // namespace muster::agent
