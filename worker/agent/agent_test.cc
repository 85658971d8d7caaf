// The daemon in normal operation: real muster-worker and muster-step, a fake coordinator, fake trainers.
#include <grpcpp/client_context.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/rpc/rpc.h"
#include "common/version.h"
#include "proto/trainer_service.grpc.pb.h"
#include "testing/wait.h"
#include "worker/agent/agent_fixture_test.h"
#include "worker/agent/reconcile.h"

namespace muster::agent {
namespace {

TEST_F(AgentTest, RanksLiveAndEndAndAreReported) {
  coordinator_.Serve();
  StartWorker({"--slots", "2"});
  ASSERT_TRUE(Eventually([&] { return coordinator_.full_reports() > 0; }));
  const Node node = coordinator_.node();
  EXPECT_EQ(node.slots_size(), 2);
  EXPECT_EQ(node.slots(1).index(), 1u);
  EXPECT_GE(node.slots(1).cores(), 1u);
  EXPECT_GT(node.slots(1).memory_bytes(), 0u);
  EXPECT_EQ(node.version(), kVersion);

  const RankId good = Id("good");
  const RankId bad = Id("bad");
  Want({Run(good, "count", 20), Run(bad, "fail")});
  ASSERT_TRUE(Eventually([&] { return Exited(good) && Exited(bad); }));

  ExpectWholeHistory(good, 20);
  const FakeCoordinator::Received received = coordinator_.Of(good);
  EXPECT_EQ(received.observed.back().exit().cause(), RankExit::COMPLETED);
  EXPECT_EQ(received.observed.back().step(), 20u);
  std::vector<RankState> states;
  for (const ObservedRank& seen : received.observed) {
    if (states.empty() || states.back() != seen.state()) states.push_back(seen.state());
  }
  EXPECT_EQ(states, (std::vector<RankState>{RANK_STATE_STARTING, RANK_STATE_RUNNING, RANK_STATE_EXITED}));
  EXPECT_TRUE(absl::StartsWith(received.log, absl::StrCat("assigned count world 1 cores ", node.slots(0).cores(),
                                                          " OMP_NUM_THREADS ", node.slots(0).cores(), "\nstep 1\n")))
      << received.log;
  EXPECT_TRUE(absl::EndsWith(received.log, "step 20\n")) << received.log;

  const RankExit exit = coordinator_.ExitOf(bad);
  EXPECT_EQ(exit.cause(), RankExit::FAILED);
  EXPECT_EQ(exit.exit_code(), 3);
  ASSERT_GE(exit.last_lines_size(), 2);
  EXPECT_EQ(exit.last_lines(exit.last_lines_size() - 1), "because of this");

  Want({});
  EXPECT_TRUE(Eventually([&] { return Dir(good).IsDone() && Dir(bad).IsDone(); }));
}

TEST_F(AgentTest, TheMachineIsCheckedAtTheStartAndWhenTheCoordinatorAsks) {
  coordinator_.Serve();
  StartWorker();
  ASSERT_TRUE(Eventually([&] { return coordinator_.preflight().has_time(); }));
  const Preflight found = coordinator_.preflight();
  EXPECT_EQ(found.number(), 0u);
  std::vector<std::string> names;
  for (const PreflightCheck& check : found.checks()) {
    names.push_back(check.name());
    EXPECT_EQ(check.problem(), "") << check.name();
  }
  EXPECT_EQ(names, (std::vector<std::string>{"state folder", "run folder", "cpu"}));
  Desired desired;
  desired.set_revision(1000);
  desired.set_preflight(7);
  coordinator_.Want(desired);
  EXPECT_TRUE(Eventually([&] { return coordinator_.preflight().number() == 7; }));
}

TEST_F(AgentTest, EndIsReportedOnlyWhenItsRecordsAreAcknowledged) {
  coordinator_.SetAcknowledging(false);
  coordinator_.Serve();
  StartWorker();
  const RankId rank = Id("a");
  Want({Run(rank, "count", 5)});
  ASSERT_TRUE(Eventually([&] { return Dir(rank).ReadExit().ok() && coordinator_.Of(rank).records.size() == 7; }));
  const uint64_t heartbeats = coordinator_.heartbeats();
  ASSERT_TRUE(Eventually([&] { return coordinator_.heartbeats() >= heartbeats + 2; }));
  EXPECT_EQ(coordinator_.StateOf(rank), RANK_STATE_RUNNING);
  coordinator_.SetAcknowledging(true);
  EXPECT_TRUE(Eventually([&] { return Exited(rank); }));
}

TEST_F(AgentTest, StopGoesThroughTheCommandStreamWithACheckpoint) {
  const RankId rank = StartRank("count", 0, /*until_step=*/3);
  Want({StopRequest(rank, /*checkpoint_first=*/true, absl::Seconds(30))});
  ASSERT_TRUE(Eventually([&] { return Exited(rank); }));
  const FakeCoordinator::Received received = coordinator_.Of(rank);
  EXPECT_TRUE(received.records.back().has_checkpoint());
  EXPECT_EQ(received.observed.back().exit().cause(), RankExit::STOPPED);
  EXPECT_EQ(received.observed.back().exit().signal(), 0);
  EXPECT_TRUE(absl::StrContains(received.log, "stopped\n"));
}

TEST_F(AgentTest, DeafTrainerIsKilledAtTheDeadline) {
  const RankId rank = StartRank("deaf", 0, /*until_step=*/1);
  Want({StopRequest(rank, false, absl::Milliseconds(300))});
  ASSERT_TRUE(Eventually([&] { return Exited(rank); }));
  EXPECT_EQ(coordinator_.ExitOf(rank).cause(), RankExit::STOPPED);
  EXPECT_EQ(coordinator_.ExitOf(rank).signal(), SIGKILL);
}

TEST_F(AgentTest, TrainerThatIsNotAttachedIsStoppedBySignal) {
  const RankId rank = StartRank("mute", 0, /*until_step=*/1);
  Want({StopRequest(rank, true, absl::Seconds(30))});
  ASSERT_TRUE(Eventually([&] { return Exited(rank); }));
  EXPECT_EQ(coordinator_.ExitOf(rank).cause(), RankExit::STOPPED);
  EXPECT_TRUE(coordinator_.Of(rank).records.back().has_checkpoint());
}

TEST_F(AgentTest, WhatIsNotWantedIsKilledAndThenForgotten) {
  const RankId rank = StartRank("deaf", 0, /*until_step=*/1);
  const rundir::Processes processes = ProcessesOf(rank);
  Want({});
  EXPECT_TRUE(Eventually([&] { return !rundir::IsAlive(processes.trainer); }));
  EXPECT_TRUE(Eventually([&] { return Exited(rank) && Dir(rank).IsDone(); }));
}

TEST_F(AgentTest, StopOfARankThatNeverWasHereIsAnEnd) {
  coordinator_.Serve();
  Want({StopRequest(Id("a"), true, absl::Seconds(1))});
  StartWorker();
  ASSERT_TRUE(Eventually([&] { return Exited(Id("a")); }));
  EXPECT_EQ(coordinator_.ExitOf(Id("a")).cause(), RankExit::STOPPED);
}

TEST_F(AgentTest, ProgramThatCannotRunIsASpawnFailure) {
  const std::string program = folder_.path() + "/trainer";
  std::ofstream(program) << "#!/no/such/interpreter\n";
  chmod(program.c_str(), 0700);
  coordinator_.Serve();
  StartWorker({"--trainer", program});
  Want({Run(Id("a"), "count")});
  ASSERT_TRUE(Eventually([&] { return Exited(Id("a")); }));
  EXPECT_EQ(coordinator_.ExitOf(Id("a")).cause(), RankExit::SPAWN_FAILED);
  EXPECT_TRUE(absl::StrContains(coordinator_.ExitOf(Id("a")).message(), program));
}

// A job that may not load its library here ends before a trainer starts.
TEST_F(AgentTest, ALibraryOutsideOfTheRootsIsRefused) {
  const std::string root = folder_.path() + "/models";
  mkdir(root.c_str(), 0755);
  std::ofstream(root + "/libmine.so") << "code";
  chmod((root + "/libmine.so").c_str(), 0644);
  coordinator_.Serve();
  StartWorker({"--plugin-roots", root});
  const auto with_library = [&](const char* job, const std::string& library) {
    DesiredRank desired = Run(Id(job), "count", 5);
    desired.mutable_run()->mutable_spec()->mutable_train()->mutable_model()->mutable_custom()->set_library(library);
    return desired;
  };
  const DesiredRank good = with_library("good", root + "/libmine.so");
  Want({good, with_library("elsewhere", "/bin/true")});
  ASSERT_TRUE(Eventually([&] { return Exited(Id("elsewhere")) && Exited(Id("good")); }));
  EXPECT_EQ(coordinator_.ExitOf(Id("elsewhere")).cause(), RankExit::REFUSED);
  EXPECT_TRUE(
      absl::StrContains(coordinator_.ExitOf(Id("elsewhere")).message(), "model.library: may not load /bin/true"))
      << coordinator_.ExitOf(Id("elsewhere")).message();
  EXPECT_EQ(coordinator_.ExitOf(Id("good")).cause(), RankExit::COMPLETED) << "the trainer, a fake, ran";
}

TEST_F(AgentTest, APathOutsideOfTheRootsIsRefused) {
  const std::string root = folder_.path() + "/checkpoints";
  mkdir(root.c_str(), 0755);
  coordinator_.Serve();
  StartWorker({"--checkpoint-roots", root});
  const auto with_path = [&](const char* job, const std::string& path) {
    DesiredRank desired = Run(Id(job), "count", 5);
    desired.mutable_run()->mutable_spec()->mutable_train()->mutable_checkpoint()->set_path(path);
    return desired;
  };
  Want({with_path("good", root + "/good"), with_path("elsewhere", folder_.path() + "/elsewhere")});
  ASSERT_TRUE(Eventually([&] { return Exited(Id("elsewhere")) && Exited(Id("good")); }));
  const RankExit refused = coordinator_.ExitOf(Id("elsewhere"));
  EXPECT_EQ(refused.cause(), RankExit::REFUSED);
  EXPECT_TRUE(refused.of_node()) << "another node may have other roots";
  EXPECT_TRUE(absl::StrContains(refused.message(), "checkpoint.path: ")) << refused.message();
  EXPECT_EQ(coordinator_.ExitOf(Id("good")).cause(), RankExit::COMPLETED);
}

// Its data lie on a mount whose server is down, say: each look there takes ten minutes.
TEST_F(AgentTest, APathThatDoesNotAnswerStopsNoOtherRank) {
  launcher_ = {"/usr/bin/env", "MUSTER_FAILPOINTS=job_paths.data.tokens=sleep:600000@*"};
  coordinator_.Serve();
  StartWorker({"--slots", "2"});
  ASSERT_TRUE(Eventually([&] { return coordinator_.full_reports() > 0; }));
  DesiredRank waits = Run(Id("a"), "count");
  waits.mutable_run()->mutable_spec()->mutable_train()->mutable_data()->set_tokens("/data/tokens");
  DesiredRank good = Run(Id("good"), "count");
  good.mutable_run()->set_slots(0, 1);
  const uint64_t heartbeats = coordinator_.heartbeats();
  Want({waits, good});
  ASSERT_TRUE(Eventually([&] { return coordinator_.StepOf(Id("good")) >= 3; }));
  ASSERT_TRUE(Eventually([&] { return Exited(Id("a")); }));
  const RankExit refused = coordinator_.ExitOf(Id("a"));
  EXPECT_EQ(refused.cause(), RankExit::REFUSED);
  EXPECT_TRUE(refused.of_node()) << "another node may have another mount";
  EXPECT_TRUE(absl::StrContains(refused.message(), "data.tokens: /data/tokens: no answer within "))
      << refused.message();
  const uint64_t step = coordinator_.StepOf(Id("good"));
  EXPECT_TRUE(Eventually([&] { return coordinator_.StepOf(Id("good")) > step; }));
  EXPECT_GE(coordinator_.heartbeats(), heartbeats + 5);
  EXPECT_EQ(coordinator_.hellos(), 1u);
  EXPECT_EQ(EndWorker(SIGTERM), 0) << "its end does not wait either";
}

TEST_F(AgentTest, ARankThatIsStoppedWhileItsPathDoesNotAnswerNeverStarts) {
  launcher_ = {"/usr/bin/env", "MUSTER_FAILPOINTS=job_paths.data.tokens=sleep:8000@1"};
  coordinator_.Serve();
  StartWorker();
  DesiredRank waits = Run(Id("a"), "count");
  waits.mutable_run()->mutable_spec()->mutable_train()->mutable_data()->set_tokens("/data/tokens");
  Want({waits});
  ASSERT_TRUE(Eventually([&] { return coordinator_.heartbeats() > 0; }));
  Want({StopRequest(Id("a"), true, absl::Seconds(30))});
  ASSERT_TRUE(Eventually([&] { return Exited(Id("a")); }));
  EXPECT_EQ(coordinator_.ExitOf(Id("a")).cause(), RankExit::STOPPED);
  const uint64_t heartbeats = coordinator_.heartbeats();
  ASSERT_TRUE(Eventually([&] { return coordinator_.heartbeats() >= heartbeats + 10; }))
      << "a second each: it has answered";
  EXPECT_TRUE(rundir::RankDir::List(run_).empty());
}

TEST_F(AgentTest, ForeignProcessIsRefused) {
  const RankId rank = StartRank("count", 0, /*until_step=*/1);
  const auto stub = Trainer::NewStub(rpc::Dial("unix:" + run_ + "/trainer.sock"));
  for (const RankId& claimed : {rank, Id("b"), RankId{JobId("../.."), 1, 0}}) {
    grpc::ClientContext report_context;
    ReportRequest report;
    *report.mutable_key() = KeyOf(claimed);
    ReportReply reply;
    EXPECT_EQ(stub->Report(&report_context, report, &reply).error_code(), grpc::StatusCode::PERMISSION_DENIED);
    grpc::ClientContext attach_context;
    AttachRequest attach;
    *attach.mutable_key() = KeyOf(claimed);
    attach.set_protocol(kProtocol);
    auto stream = stub->Attach(&attach_context, attach);
    Command command;
    EXPECT_FALSE(stream->Read(&command));
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::PERMISSION_DENIED);
  }
}

TEST_F(AgentTest, RendezvousSurvivesACoordinatorThatForgot) {
  coordinator_.Serve();
  StartWorker();
  const RankId rank = Id("a");
  Want({Run(rank, "rendezvous")});
  ASSERT_TRUE(Eventually([&] { return absl::StrContains(coordinator_.Of(rank).log, "waiting\n"); }));
  EXPECT_TRUE(absl::StrContains(coordinator_.Of(rank).log, "a is whole: 1\nmissing gives 5\n"))
      << coordinator_.Of(rank).log;
  coordinator_.GoAway();
  EXPECT_FALSE(coordinator_.HasKey("a"));
  coordinator_.Serve();
  EXPECT_TRUE(Eventually([&] { return coordinator_.HasKey("a"); }));
  coordinator_.SetKey("b", "value");
  ASSERT_TRUE(Eventually([&] { return Exited(rank); }));
  EXPECT_TRUE(absl::StrContains(coordinator_.Of(rank).log, "b is value (0)\n")) << coordinator_.Of(rank).log;
  // Other ranks may still need the keys of a finished rank.
  Want({});
  EXPECT_TRUE(Eventually([&] { return Dir(rank).IsDone(); }));
  coordinator_.GoAway();
  coordinator_.Serve();
  EXPECT_TRUE(Eventually([&] { return coordinator_.HasKey("a"); }));
}

// A key is set while the coordinator is away: the trainer's call is answered when it is back.
TEST_F(AgentTest, AKeyIsSetThroughAnAbsenceOfTheCoordinator) {
  coordinator_.Serve();
  StartWorker();
  ASSERT_TRUE(Eventually([&] { return coordinator_.full_reports() > 0; }));
  const RankId rank = Id("a");
  coordinator_.set_refusing_keys(true);  // like a coordinator that is going away
  Want({Run(rank, "rendezvous")});
  ASSERT_TRUE(Eventually([&] { return coordinator_.refused_keys() > 1; }));
  EXPECT_FALSE(absl::StrContains(coordinator_.Of(rank).log, "waiting"));
  coordinator_.set_refusing_keys(false);
  EXPECT_TRUE(Eventually([&] { return coordinator_.HasKey("a"); }));
  coordinator_.SetKey("b", "value");
  EXPECT_TRUE(Eventually([&] { return Exited(rank); }));
}

TEST_F(AgentTest, TheDaemonEndsWhileAKeyWaitsForTheCoordinator) {
  coordinator_.Serve();
  StartWorker({"--handover"});
  ASSERT_TRUE(Eventually([&] { return coordinator_.full_reports() > 0; }));
  const RankId rank = Id("a");
  coordinator_.set_refusing_keys(true);
  Want({Run(rank, "rendezvous")});
  ASSERT_TRUE(Eventually([&] { return coordinator_.refused_keys() > 1; }));
  EXPECT_EQ(EndWorker(SIGTERM), 0);
  coordinator_.set_refusing_keys(false);
  StartWorker();
  EXPECT_TRUE(Eventually([&] { return coordinator_.HasKey("a"); })) << "the trainer sets it again";
  coordinator_.SetKey("b", "value");
  EXPECT_TRUE(Eventually([&] { return Exited(rank); }));
}

TEST_F(AgentTest, DamagedOutboxFailsTheRank) {
  coordinator_.Serve();
  StartWorker();
  const RankId rank = Id("a");
  Want({Run(rank, "damage")});
  ASSERT_TRUE(Eventually([&] { return Exited(rank); }));
  EXPECT_EQ(coordinator_.ExitOf(rank).cause(), RankExit::FAILED);
  EXPECT_TRUE(absl::StrContains(coordinator_.ExitOf(rank).message(), "outbox is damaged"))
      << coordinator_.ExitOf(rank).message();
}

TEST_F(AgentTest, TermDrainsWithCheckpoints) {
  const RankId rank = StartRank("count", 0, /*until_step=*/1);
  EXPECT_EQ(EndWorker(SIGTERM), 0);
  EXPECT_TRUE(Dir(rank).ReadExit().ok());
  EXPECT_TRUE(Exited(rank));
  EXPECT_TRUE(coordinator_.Of(rank).records.back().has_checkpoint());
  EXPECT_EQ(coordinator_.ExitOf(rank).cause(), RankExit::STOPPED);
}

TEST_F(AgentTest, DrainHasADeadline) {
  coordinator_.Serve();
  StartWorker({"--drain-deadline", "300ms"});
  const RankId rank = Id("deaf");
  Want({Run(rank, "deaf")});
  ASSERT_TRUE(Eventually([&] { return coordinator_.StepOf(rank) >= 1; }));
  const rundir::Processes processes = ProcessesOf(rank);
  EXPECT_EQ(EndWorker(SIGTERM), 0);
  EXPECT_FALSE(rundir::IsAlive(processes.trainer));
}

TEST_F(AgentTest, HandoverLeavesRanksRunning) {
  coordinator_.Serve();
  StartWorker({"--handover"});
  const RankId rank = Id("a");
  Want({Run(rank, "count")});
  ASSERT_TRUE(Eventually([&] { return coordinator_.StepOf(rank) >= 1; }));
  EXPECT_EQ(EndWorker(SIGTERM), 0);
  const rundir::Processes processes = ProcessesOf(rank);
  EXPECT_TRUE(rundir::IsAlive(processes.trainer));
  const uint64_t step = coordinator_.StepOf(rank);
  StartWorker();
  ASSERT_TRUE(Eventually([&] { return coordinator_.StepOf(rank) >= step + 50; }));
  EXPECT_EQ(ProcessesOf(rank).trainer, processes.trainer);
  StopAndExpectWholeHistory(rank);
}

TEST_F(AgentTest, SecondDaemonInTheSameFolderIsRefused) {
  coordinator_.Serve();
  StartWorker();
  ASSERT_TRUE(Eventually([&] { return coordinator_.hellos() > 0; }));
  std::string errors;
  EXPECT_EQ(RunWorker({}, errors), 1);
  EXPECT_TRUE(absl::StrContains(errors, absl::StrCat("another muster-worker (process ", worker_pid(), ")"))) << errors;
}

TEST_F(AgentTest, BadFoldersGetAClearError) {
  std::string errors;
  EXPECT_EQ(RunWorker({"--trainer", "/no/such/trainer"}, errors), 1);
  EXPECT_TRUE(absl::StrContains(errors, "no program /no/such/trainer")) << errors;
  std::filesystem::create_directory(run_);
  chmod(run_.c_str(), 0755);
  EXPECT_EQ(RunWorker({}, errors), 1);
  EXPECT_TRUE(absl::StrContains(errors, "chmod 700")) << errors;
}

TEST_F(AgentTest, ARankHasTheVariablesOfItsNodeAndJob) {
  coordinator_.Serve();
  StartWorker({"--env", "NCCL_DEBUG=WARN", "--env", "NCCL_SOCKET_IFNAME==ib0"});
  const RankId rank = Id("a");
  DesiredRank desired = Run(rank, "count", 0);
  EnvVar& variable = *desired.mutable_run()->mutable_spec()->add_env();
  variable.set_name("NCCL_DEBUG");
  variable.set_value("INFO");
  Want({desired});
  ASSERT_TRUE(Eventually([&] { return coordinator_.StepOf(rank) >= 1; }));
  const absl::StatusOr<rundir::Processes> processes = Dir(rank).ReadProcesses();
  ASSERT_TRUE(processes.ok()) << processes.status();
  std::ifstream file(absl::StrCat("/proc/", processes->trainer.pid, "/environ"));
  std::vector<std::string> found;
  for (std::string one; std::getline(file, one, '\0');) {
    if (absl::StartsWith(one, "NCCL_")) found.push_back(one);
  }
  std::sort(found.begin(), found.end());
  EXPECT_EQ(found, (std::vector<std::string>{"NCCL_DEBUG=INFO", "NCCL_SOCKET_IFNAME==ib0"}));
}

TEST_F(AgentTest, AVariableThatIsNotAllowedIsRefusedAtStart) {
  std::string errors;
  EXPECT_EQ(RunWorker({"--env", "NCCL_DEBUG=WARN", "--env", "LD_PRELOAD=/x.so"}, errors), 1);
  EXPECT_TRUE(absl::StrContains(errors, "--env LD_PRELOAD=/x.so: ")) << errors;
  EXPECT_TRUE(absl::StrContains(errors, "allowed are NCCL_*, FI_*, UCX_*")) << errors;
  EXPECT_EQ(RunWorker({"--env", "NCCL_DEBUG=WARN", "--env", "NCCL_DEBUG=INFO"}, errors), 1);
  EXPECT_TRUE(absl::StrContains(errors, "--env NCCL_DEBUG=INFO: the variable occurs twice")) << errors;
}

}  // namespace
}  // namespace muster::agent
