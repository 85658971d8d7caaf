// Crashes of the daemon, its coordinator and its shims.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ptrace.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/file/store_files.h"
#include "common/node/not_ready.h"
#include "testing/small_disk.h"
#include "testing/wait.h"
#include "worker/agent/agent_fixture_test.h"
#include "worker/rundir/process_table.h"

namespace muster::agent {
namespace {

bool GoneOrZombie(pid_t pid) {
  const absl::StatusOr<rundir::ProcessRow> row = rundir::ReadProcess(pid);
  return !row.ok() || row->state == 'Z';
}

// The child that the trainer "litter" reports; 0: not yet.
pid_t ChildIn(const std::string& log) {
  const size_t at = log.find("child "), end = log.find('.', at);
  pid_t child = 0;
  if (at == std::string::npos || end == std::string::npos) return 0;
  return absl::SimpleAtoi(log.substr(at + 6, end - at - 6), &child) ? child : 0;
}

size_t CountOf(const std::string& text, const std::string& word) {
  size_t count = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++count;
  return count;
}

TEST_F(AgentTest, KilledDaemonIsReplacedAndTheTrainerGoesOn) {
  const RankId rank = StartRank("count", 0, /*until_step=*/5);
  const rundir::Processes before = ProcessesOf(rank);
  const std::string first_incarnation = coordinator_.node().incarnation();
  const std::string id = coordinator_.node().id();
  for (int times = 0; times < 3; ++times) {
    KillWorker();
    EXPECT_TRUE(rundir::IsAlive(before.trainer));
    StartWorker();
    const uint64_t step = coordinator_.StepOf(rank);
    ASSERT_TRUE(Eventually([&] { return coordinator_.StepOf(rank) >= step + 3; }));
  }
  EXPECT_EQ(coordinator_.node().id(), id);
  EXPECT_NE(coordinator_.node().incarnation(), first_incarnation);
  ASSERT_TRUE(Eventually([&] { return absl::StrContains(coordinator_.Of(rank).log, "\nstep 50\n"); }));
  StopAndExpectWholeHistory(rank);
  EXPECT_EQ(ProcessesOf(rank).trainer, before.trainer);
  EXPECT_EQ(CountOf(coordinator_.Of(rank).log, "assigned"), 1u);
  EXPECT_EQ(CountOf(coordinator_.Of(rank).log, "\nstep 50\n"), 1u);
}

TEST_F(AgentTest, TrainerThatEndsWhileTheDaemonIsDeadIsReportedWhole) {
  const RankId rank = StartRank("count", 100, /*until_step=*/1);
  KillWorker();
  ASSERT_TRUE(Eventually([&] { return Dir(rank).ReadExit().ok(); }));
  StartWorker();
  ASSERT_TRUE(Eventually([&] { return Exited(rank); }));
  ExpectWholeHistory(rank, 100);
  EXPECT_EQ(coordinator_.ExitOf(rank).cause(), RankExit::COMPLETED);
}

TEST_F(AgentTest, CoordinatorThatWasAwayMissesNothing) {
  const RankId rank = StartRank("count", 150, /*until_step=*/5);
  const rundir::Processes before = ProcessesOf(rank);
  coordinator_.GoAway();
  ASSERT_TRUE(Eventually([&] { return Dir(rank).ReadExit().ok(); }));
  coordinator_.Serve();
  ASSERT_TRUE(Eventually([&] { return Exited(rank); }));
  ExpectWholeHistory(rank, 150);
  EXPECT_EQ(ProcessesOf(rank).trainer, before.trainer);
}

TEST_F(AgentTest, EverythingKilledAtOnceMissesNothing) {
  const RankId rank = StartRank("count", 200, /*until_step=*/5);
  coordinator_.GoAway();
  KillWorker();
  StartWorker();  // adopts the rank and reads the desired state from disk
  coordinator_.Serve();
  ASSERT_TRUE(Eventually([&] { return Exited(rank); }));
  ExpectWholeHistory(rank, 200);
}

TEST_F(AgentTest, StopThatWasKnownIsCarriedOutWithoutTheCoordinator) {
  const RankId rank = StartRank("deaf", 0, /*until_step=*/1);
  const rundir::Processes processes = ProcessesOf(rank);
  Want({StopRequest(rank, false, absl::Milliseconds(1500))});
  ASSERT_TRUE(Eventually([&] { return coordinator_.StateOf(rank) == RANK_STATE_STOPPING; }));
  coordinator_.GoAway();
  KillWorker();
  StartWorker();
  EXPECT_TRUE(Eventually([&] { return !rundir::IsAlive(processes.trainer); }));
  coordinator_.Serve();
  ASSERT_TRUE(Eventually([&] { return Exited(rank); }));
  EXPECT_EQ(coordinator_.ExitOf(rank).cause(), RankExit::STOPPED);
}

TEST_F(AgentTest, RankOfADaemonThatNeverReturnsEndsAtItsDeadline) {
  coordinator_.set_orphan_grace(absl::Seconds(1));
  const RankId rank = StartRank("deaf", 0, /*until_step=*/1);
  const rundir::Processes processes = ProcessesOf(rank);
  KillWorker();
  EXPECT_TRUE(Eventually([&] { return !rundir::IsAlive(processes.trainer) && !rundir::IsAlive(processes.shim); }));
  StartWorker();
  ASSERT_TRUE(Eventually([&] { return Exited(rank); }));
  EXPECT_EQ(coordinator_.ExitOf(rank).cause(), RankExit::ORPHANED);
}

TEST_F(AgentTest, RankOfADaemonThatCannotReachItsCoordinatorEndsAtItsDeadline) {
  coordinator_.set_orphan_grace(absl::Seconds(2));
  const RankId rank = StartRank("count", 0, /*until_step=*/1);
  coordinator_.GoAway();
  EXPECT_TRUE(Eventually([&] { return Dir(rank).ReadExit().ok(); }));
  EXPECT_EQ(Dir(rank).ReadExit()->cause(), RankExit::ORPHANED);
}

TEST_F(AgentTest, SilentCoordinatorDoesNotCountAsContact) {
  coordinator_.set_orphan_grace(absl::Seconds(1));
  coordinator_.set_answering(false);
  coordinator_.Serve();
  StartWorker();
  const RankId rank = Id("a");
  Want({Run(rank, "silent")});  // no records, whose acknowledgements would be answers
  EXPECT_TRUE(Eventually([&] { return Dir(rank).ReadExit().ok(); }));
  EXPECT_EQ(Dir(rank).ReadExit()->cause(), RankExit::ORPHANED);
}

TEST_F(AgentTest, KilledShimTakesItsTrainerAlongAndTheRankHasVanished) {
  const RankId rank = StartRank("count", 0, /*until_step=*/1);
  const rundir::Processes processes = ProcessesOf(rank);
  kill(processes.shim.pid, SIGKILL);
  ASSERT_TRUE(Eventually([&] { return Exited(rank); }));
  EXPECT_EQ(coordinator_.ExitOf(rank).cause(), RankExit::VANISHED);
  const std::string message = coordinator_.ExitOf(rank).message();
  EXPECT_TRUE(absl::StrContains(message, "its parent muster-step was killed")) << message;
  EXPECT_TRUE(Eventually([&] { return !rundir::IsAlive(processes.trainer); }));
}

// What it leaves is found by its environment, also in a session of its own.
TEST_F(AgentTest, KilledShimLeavesNoProcesses) {
  const RankId rank = StartRank("litter", 0, /*until_step=*/1);
  pid_t child = 0;
  ASSERT_TRUE(Eventually([&] { return (child = ChildIn(coordinator_.Of(rank).log)) > 0; }));
  ASSERT_EQ(kill(child, 0), 0);
  kill(ProcessesOf(rank).shim.pid, SIGKILL);
  EXPECT_TRUE(Eventually([&] { return GoneOrZombie(child); }));
}

// The same while the daemon is down: the next daemon cleans up.
TEST_F(AgentTest, StartSweepsWhatADeadShimLeft) {
  const RankId rank = StartRank("litter", 0, /*until_step=*/1);
  pid_t child = 0;
  ASSERT_TRUE(Eventually([&] { return (child = ChildIn(coordinator_.Of(rank).log)) > 0; }));
  KillWorker();
  kill(ProcessesOf(rank).shim.pid, SIGKILL);
  coordinator_.GoAway();  // no desired state is needed
  StartWorker();
  EXPECT_TRUE(Eventually([&] { return GoneOrZombie(child); }));
}

TEST_F(AgentTest, RankOfAnOlderGenerationIsKilledBySuccessorsWithinSeconds) {
  const RankId rank = StartRank("deaf", 0, /*until_step=*/1);
  const rundir::Processes processes = ProcessesOf(rank);
  KillWorker();
  Want({Run({rank.job, 2, 0}, "count")});
  const absl::Time begin = absl::Now();
  StartWorker({"--kill-grace", "1h"});  // it is killed without SIGTERM
  ASSERT_TRUE(Eventually([&] { return !rundir::IsAlive(processes.trainer); }));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(10));
  EXPECT_TRUE(Eventually([&] { return coordinator_.StepOf({rank.job, 2, 0}) >= 1; })) << "the slot is free";
}

TEST_F(AgentTest, FrozenShimDoesNotKeepItsTrainer) {
  const RankId rank = StartRank("count", 0, /*until_step=*/1);
  const rundir::Processes processes = ProcessesOf(rank);
  kill(processes.shim.pid, SIGSTOP);
  const absl::Time begin = absl::Now();
  Want({});
  ASSERT_TRUE(Eventually([&] { return !rundir::IsAlive(processes.trainer); }));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(10));
  EXPECT_TRUE(Eventually([&] { return Exited(rank); }));
}

TEST_F(AgentTest, AStalledRankIsReportedUntilItMoves) {
  coordinator_.Serve();
  StartWorker();
  const RankId rank = Id("still");
  Want({Run(rank, "still")});
  const auto newest = [&] {
    const std::vector<ObservedRank> observed = coordinator_.Of(rank).observed;
    return observed.empty() ? ObservedRank() : observed.back();
  };
  ASSERT_TRUE(Eventually([&] { return newest().stalled_seconds() >= 2; }));
  EXPECT_EQ(newest().step(), 4u);
  EXPECT_EQ(newest().op_issued(), 9u);
  EXPECT_EQ(newest().op_completed(), 8u);
  EXPECT_EQ(newest().op_exchanges(), 2u);
  // About once a second.
  const std::vector<ObservedRank> early = coordinator_.Of(rank).observed;
  const double before = early.back().stalled_seconds();
  ASSERT_TRUE(Eventually([&] { return newest().stalled_seconds() >= before + 2; }));
  const std::vector<ObservedRank> late = coordinator_.Of(rank).observed;
  EXPECT_LE(late.size(), early.size() + 1 + static_cast<size_t>(late.back().stalled_seconds() - before));
  // The next daemon sees the stall too, and counts from zero.
  KillWorker();
  StartWorker();
  ASSERT_TRUE(Eventually([&] {
    const std::vector<ObservedRank> observed = coordinator_.Of(rank).observed;
    return std::any_of(
        observed.begin() + static_cast<std::ptrdiff_t>(late.size()), observed.end(),
        [&](const ObservedRank& seen) { return seen.stalled_seconds() < late.back().stalled_seconds(); });
  }));
  ASSERT_TRUE(Eventually([&] { return newest().stalled_seconds() >= 1 && newest().op_issued() == 9; }));
  // Its process is stopped.
  kill(ProcessesOf(rank).trainer.pid, SIGSTOP);
  ASSERT_TRUE(Eventually([&] { return newest().op_issued() == 9 && newest().frozen(); }));
  EXPECT_EQ(newest().op_completed(), 8u);
  kill(ProcessesOf(rank).trainer.pid, SIGCONT);
  ASSERT_TRUE(Eventually([&] { return !newest().frozen() && newest().op_issued() == 9; }));
  std::ofstream(Dir(rank).path() + "/go") << "";
  ASSERT_TRUE(Eventually([&] { return newest().stalled_seconds() == 0 && newest().op_issued() == 0; }));
}

TEST_F(AgentTest, KilledTrainerIsAFailure) {
  const RankId rank = StartRank("count", 0, /*until_step=*/1);
  kill(ProcessesOf(rank).trainer.pid, SIGKILL);
  ASSERT_TRUE(Eventually([&] { return Exited(rank); }));
  EXPECT_EQ(coordinator_.ExitOf(rank).cause(), RankExit::FAILED);
  EXPECT_EQ(coordinator_.ExitOf(rank).signal(), SIGKILL);
}

TEST_F(AgentTest, FolderThatWasMadeButNeverUsedIsStartedInOrRemoved) {
  const RankId wanted = Id("wanted");
  const RankId unwanted = Id("unwanted");
  std::filesystem::create_directory(run_);
  std::filesystem::permissions(run_, std::filesystem::perms::owner_all);
  rundir::Start start;
  start.argv = {trainer(),          "run",   "--socket", run_ + "/trainer.sock", "--rank-dir",
                Dir(wanted).path(), "--job", "wanted",   "--generation",         "1",
                "--rank",           "0"};
  start.environment = {"OMP_NUM_THREADS=1"};
  start.working_directory = "/";
  ASSERT_TRUE(Dir(wanted).Create(start).ok());
  ASSERT_TRUE(Dir(unwanted).Create(start).ok());
  coordinator_.Serve();
  Want({Run(wanted, "count", 3)});
  StartWorker();
  ASSERT_TRUE(Eventually([&] { return Exited(wanted); }));
  ExpectWholeHistory(wanted, 3);
  EXPECT_TRUE(Eventually([&] { return !std::filesystem::exists(Dir(unwanted).path()); }));
}

TEST_F(AgentTest, RankThatIsDoneWithIsReportedAgainButNotRunAgain) {
  coordinator_.Serve();
  StartWorker();
  const RankId rank = Id("a");
  Want({Run(rank, "count", 3)});
  ASSERT_TRUE(Eventually([&] { return Exited(rank); }));
  const rundir::Processes processes = ProcessesOf(rank);
  Want({});
  ASSERT_TRUE(Eventually([&] { return Dir(rank).IsDone(); }));
  const uint64_t reports = coordinator_.full_reports();
  coordinator_.GoAway();
  coordinator_.Serve();
  Want({Run(rank, "count", 3)});  // an older state than it once had
  ASSERT_TRUE(Eventually([&] { return coordinator_.full_reports() > reports; }));
  const uint64_t heartbeats = coordinator_.heartbeats();
  ASSERT_TRUE(Eventually([&] { return coordinator_.heartbeats() >= heartbeats + 2; }));
  EXPECT_EQ(ProcessesOf(rank).trainer, processes.trainer);
  EXPECT_TRUE(Exited(rank));
}

// Neither of them has what a rank has set before; other ranks may wait for it.
TEST_F(AgentTest, KeysOutliveBothDaemons) {
  coordinator_.Serve();
  StartWorker();
  const RankId rank = Id("a");
  Want({Run(rank, "rendezvous")});
  ASSERT_TRUE(Eventually([&] { return absl::StrContains(coordinator_.Of(rank).log, "waiting\n"); }));
  for (const bool ended : {false, true}) {
    coordinator_.GoAway();
    KillWorker();
    if (ended) kill(ProcessesOf(rank).trainer.pid, SIGKILL);
    EXPECT_FALSE(coordinator_.HasKey("a"));
    StartWorker();
    coordinator_.Serve();
    EXPECT_TRUE(Eventually([&] { return coordinator_.HasKey("a"); })) << ended;
  }
}

TEST_F(AgentTest, LowerTermIsRefused) {
  coordinator_.set_term(5);
  const RankId rank = StartRank("count", 0, /*until_step=*/1);
  const rundir::Processes processes = ProcessesOf(rank);
  coordinator_.GoAway();
  coordinator_.set_term(4);
  Want({});
  const uint64_t hellos = coordinator_.hellos();
  const uint64_t reports = coordinator_.full_reports();
  coordinator_.Serve();
  // It breaks the stream and calls again.
  ASSERT_TRUE(Eventually([&] { return coordinator_.hellos() > hellos + 1; }));
  KillWorker();  // the next daemon knows the term too
  const uint64_t again = coordinator_.hellos();
  StartWorker();
  ASSERT_TRUE(Eventually([&] { return coordinator_.hellos() > again + 1; }));
  EXPECT_TRUE(rundir::IsAlive(processes.trainer));
  coordinator_.GoAway();
  EXPECT_EQ(coordinator_.full_reports(), reports);
  EXPECT_TRUE(rundir::IsAlive(processes.trainer));
}

TEST_F(AgentTest, VersionThatDoesNotFitEndsTheDaemon) {
  coordinator_.set_refusal({grpc::StatusCode::FAILED_PRECONDITION, "versions do not fit: 1 and 2"});
  coordinator_.Serve();
  std::string errors;
  EXPECT_EQ(RunWorker({}, errors), 3);
  EXPECT_TRUE(absl::StrContains(errors, "versions do not fit: 1 and 2")) << errors;
}

TEST_F(AgentTest, DaemonThatIsRefusedTriesOn) {
  coordinator_.set_refusal({grpc::StatusCode::UNAVAILABLE, "not yet"});
  coordinator_.Serve();
  StartWorker();
  ASSERT_TRUE(Eventually([&] { return coordinator_.hellos() >= 2; }));
  coordinator_.set_refusal(grpc::Status::OK);
  EXPECT_TRUE(Eventually([&] { return coordinator_.full_reports() > 0; }));
}

// As after a start of the coordinator with an empty --state-dir: it knows none of the ranks.
TEST_F(AgentTest, RanksGoOnWhenTheCoordinatorHasAnotherStore) {
  coordinator_.set_store_id("ours");
  coordinator_.set_orphan_grace(absl::Minutes(1));
  const RankId rank = StartRank("count", 0, /*until_step=*/3);
  const rundir::Processes processes = ProcessesOf(rank);
  coordinator_.GoAway();
  coordinator_.set_store_id("theirs");
  Want({});
  const uint64_t hellos = coordinator_.hellos();
  coordinator_.Serve();
  ASSERT_TRUE(Eventually([&] { return coordinator_.hellos() >= hellos + 2; }));
  EXPECT_TRUE(absl::StrContains(ReadForeignStore(folder_.path() + "/state"), "ranks of the store ours"));
  // A new daemon knows it as well, and each answer renews the lease, so that the ranks outlast any orphan grace. Of
  // these four calls, the killed daemon may have made the first, and the last may not be answered yet.
  KillWorker();
  const std::unique_ptr<rundir::Lease> lease = rundir::Lease::Open(run_, /*create=*/false).value();
  const uint64_t renewed = lease->Read(), later = coordinator_.hellos() + 4;
  StartWorker();
  ASSERT_TRUE(Eventually([&] { return coordinator_.hellos() >= later; }));
  EXPECT_GE(lease->Read(), renewed + 2);
  EXPECT_TRUE(rundir::IsAlive(processes.trainer));
  // The right coordinator is back, and the rank goes on where it was.
  coordinator_.GoAway();
  coordinator_.set_store_id("ours");
  Want({Run(rank, "count", 0)});
  const uint64_t step = coordinator_.StepOf(rank);
  coordinator_.Serve();
  ASSERT_TRUE(Eventually([&] { return coordinator_.StepOf(rank) > step; }));
  EXPECT_TRUE(rundir::IsAlive(processes.trainer));
  EXPECT_TRUE(Eventually([&] { return ReadForeignStore(folder_.path() + "/state").empty(); }));
}

// The daemon that noted it was killed, and the right coordinator is back before the next one calls.
TEST_F(AgentTest, AChoiceThatCameTooLateEndsNoRankLater) {
  const std::string state = folder_.path() + "/state";
  coordinator_.set_store_id("ours");
  const RankId rank = StartRank("count", 0, /*until_step=*/1);
  KillWorker();
  ASSERT_TRUE(WriteForeignStore(state, "another store").ok() && WriteStoreChoice(state, StoreChoice::kReset).ok());
  const uint64_t reports = coordinator_.full_reports();
  StartWorker();
  ASSERT_TRUE(Eventually([&] { return coordinator_.full_reports() > reports; }));
  EXPECT_EQ(ReadForeignStore(state), "");
  EXPECT_FALSE(TakeStoreChoice(state).has_value());
  EXPECT_TRUE(rundir::IsAlive(ProcessesOf(rank).trainer));
}

TEST_F(AgentTest, AnOperatorGivesTheRanksUp) {
  for (const StoreChoice choice : {StoreChoice::kAdopt, StoreChoice::kReset}) {
    SCOPED_TRACE(choice == StoreChoice::kAdopt ? "adopt" : "reset");
    const std::string state = folder_.path() + "/state";
    const std::string before = choice == StoreChoice::kAdopt ? "first" : "second";
    const std::string after = choice == StoreChoice::kAdopt ? "second" : "third";
    coordinator_.set_store_id(before);
    const RankId rank = Id(choice == StoreChoice::kAdopt ? "count" : "deaf");
    if (choice == StoreChoice::kAdopt) {
      StartRank("count", 0, /*until_step=*/1);
    } else {
      Want({Run(rank, "deaf")});
      ASSERT_TRUE(Eventually([&] { return coordinator_.StepOf(rank) >= 1; }));
    }
    const rundir::Processes processes = ProcessesOf(rank);
    coordinator_.GoAway();
    coordinator_.set_store_id(after);
    // Ranks that are given up end though the other store may want some of these names.
    Want(choice == StoreChoice::kAdopt ? std::vector<DesiredRank>() : std::vector<DesiredRank>{Run(rank, "deaf")});
    coordinator_.Serve();
    ASSERT_TRUE(Eventually([&] { return !ReadForeignStore(state).empty(); }));
    EXPECT_TRUE(rundir::IsAlive(processes.trainer));
    ASSERT_TRUE(WriteStoreChoice(state, choice).ok());
    EXPECT_TRUE(Eventually([&] { return !rundir::IsAlive(processes.trainer); }));
    EXPECT_TRUE(Eventually([&] { return ReadStoreId(state).value() == after && ReadForeignStore(state).empty(); }));
  }
}

// Holds a process where it exits, with its memory, until it is let go: as one that waits in the kernel for a disk that
// does not answer. SIGKILL does not end it.
class HeldAtExit {
 public:
  explicit HeldAtExit(pid_t pid) : pid_(pid) {
    EXPECT_EQ(ptrace(PTRACE_SEIZE, pid, nullptr, PTRACE_O_TRACEEXIT), 0) << std::strerror(errno);
  }
  ~HeldAtExit() { LetGo(); }
  void LetGo() {
    if (pid_ != 0) ptrace(PTRACE_DETACH, pid_, nullptr, nullptr);
    pid_ = 0;
  }

 private:
  pid_t pid_;
};

TEST_F(AgentTest, ASlotIsNotFreeBeforeTheKilledTrainerIsGone) {
  const RankId rank = StartRank("deaf", 0, /*until_step=*/1), next = Id("count");
  const rundir::Processes processes = ProcessesOf(rank);
  HeldAtExit held(processes.trainer.pid);
  Want({StopRequest(rank, false, absl::Milliseconds(200))});
  ASSERT_TRUE(Eventually([&] { return Exited(rank); }));
  EXPECT_TRUE(rundir::IsAlive(processes.trainer)) << "it is held";
  EXPECT_FALSE(rundir::IsAlive(processes.shim));
  ASSERT_TRUE(Eventually([&] { return coordinator_.stuck().ranks_size() == 1; }));
  const StuckRank stuck = coordinator_.stuck().ranks(0);
  EXPECT_EQ(stuck.key().job(), rank.job.value());
  ASSERT_EQ(stuck.slots_size(), 1);
  EXPECT_EQ(stuck.slots(0), 0u);
  EXPECT_TRUE(absl::StartsWith(stuck.processes(), absl::StrCat("process ", processes.trainer.pid, " (state ")))
      << stuck.processes();
  EXPECT_TRUE(absl::StrContains(coordinator_.ExitOf(rank).message(), "it was killed, but does not end: process"))
      << coordinator_.ExitOf(rank).message();

  // Also for the next daemon, although the coordinator no longer knows the rank.
  Want({});
  KillWorker();
  StartWorker();
  Want({Run(next, "count")});
  ASSERT_TRUE(Eventually([&] { return coordinator_.full_reports() >= 2 && coordinator_.stuck().ranks_size() == 1; }));
  absl::SleepFor(absl::Seconds(1));
  EXPECT_EQ(coordinator_.StateOf(next), RANK_STATE_UNSPECIFIED) << "its slot is not free";
  held.LetGo();
  ASSERT_TRUE(Eventually([&] { return coordinator_.StepOf(next) >= 1; }));
  EXPECT_EQ(coordinator_.stuck().ranks_size(), 0);
  ASSERT_TRUE(Eventually([&] { return Dir(rank).IsDone(); }));
}

// No rank is started, and none is spent, while its files would not fit.
TEST_F(AgentTest, WithoutRoomInItsFoldersNoRankStarts) {
  const SmallDisk disk(run_, 80);
  ASSERT_TRUE(disk.ok());
  coordinator_.Serve();
  StartWorker({"--preflight", "folders"});
  ASSERT_TRUE(Eventually([&] { return coordinator_.preflight().has_time(); }));
  ASSERT_EQ(ProblemsOf(coordinator_.preflight()), "");
  disk.Fill();
  const RankId rank = Id("a");
  Want({Run(rank, "count")});
  ASSERT_TRUE(Eventually([&] { return Exited(rank); }));
  const RankExit exit = coordinator_.Of(rank).observed.back().exit();
  EXPECT_EQ(exit.cause(), RankExit::STOPPED);
  EXPECT_TRUE(absl::StartsWith(exit.message(), "rank 0 was not started: run folder: ")) << exit.message();
  EXPECT_TRUE(absl::StrContains(ProblemsOf(coordinator_.preflight()), "run folder: ")) << "reported before the exit";
  EXPECT_TRUE(rundir::RankDir::List(run_).empty());
  coordinator_.GoAway();
  coordinator_.Serve();
  EXPECT_TRUE(Eventually([&] { return Exited(rank); })) << "and again, where the report was lost";
  disk.Free();
  const RankId next{rank.job, 2, 0};
  Want({Run(next, "count")});
  EXPECT_TRUE(Eventually([&] { return coordinator_.StateOf(next) == RANK_STATE_RUNNING; }));
}

TEST_F(AgentTest, WhatEndedRanksHaveLeftMakesRoomForTheNext) {
  const SmallDisk disk(run_, 80);
  ASSERT_TRUE(disk.ok());
  const RankId ended = Id("ended");
  ASSERT_TRUE(Dir(ended).Create({}).ok());
  std::ofstream(Dir(ended).path() + "/large") << std::string(30 << 20, 'x');
  ASSERT_TRUE(Dir(ended).MarkDone().ok());
  coordinator_.Serve();
  StartWorker({"--preflight", "off"});
  const RankId rank = Id("a");
  Want({Run(rank, "count")});
  EXPECT_TRUE(Eventually([&] { return coordinator_.StateOf(rank) == RANK_STATE_RUNNING; }));
  EXPECT_FALSE(std::filesystem::exists(Dir(ended).path()));
  EXPECT_EQ(ProblemsOf(coordinator_.preflight()), "");
}

// As where a program has left millions of files: each removal takes ten minutes.
TEST_F(AgentTest, RemovingWhatAnEndedRankHasLeftStopsNothing) {
  std::filesystem::create_directory(run_);
  std::filesystem::permissions(run_, std::filesystem::perms::owner_all);
  const RankId oldest = Id("old");
  ASSERT_TRUE(Dir(oldest).Create({}).ok());
  ASSERT_TRUE(Dir(oldest).MarkDone().ok());
  std::ofstream(Dir(oldest).path() + "/size") << (uint64_t{5} << 30);  // more than is kept
  launcher_ = {"/usr/bin/env", "MUSTER_FAILPOINTS=rundir.gone.remove=sleep:600000@*"};
  const RankId rank = StartRank("count", 0, /*until_step=*/3);
  const std::string gone = run_ + "/.gone-1";
  ASSERT_TRUE(Eventually([&] { return std::filesystem::exists(gone); }));
  EXPECT_FALSE(std::filesystem::exists(Dir(oldest).path()));
  Want({});  // a rank ends meanwhile
  ASSERT_TRUE(Eventually([&] { return Dir(rank).IsDone(); }));
  const uint64_t heartbeats = coordinator_.heartbeats();
  EXPECT_TRUE(Eventually([&] { return coordinator_.heartbeats() >= heartbeats + 3; }));
  EXPECT_TRUE(std::filesystem::exists(gone));
  EXPECT_EQ(coordinator_.hellos(), 1u);
  EXPECT_EQ(EndWorker(SIGTERM), 0);
  launcher_.clear();
  StartWorker();
  EXPECT_TRUE(Eventually([&] { return !std::filesystem::exists(gone); })) << "the next daemon removes it";
}

// Ranks that run go on, and the node takes no others.
TEST_F(AgentTest, ThatItsDiskFillsIsReportedByAnIdleNode) {
  const SmallDisk disk(run_, 80);
  ASSERT_TRUE(disk.ok());
  coordinator_.Serve();
  StartWorker({"--preflight", "off"});
  const RankId rank = Id("a");
  Want({Run(rank, "count")});
  ASSERT_TRUE(Eventually([&] { return coordinator_.Of(rank).records.size() > 3; }));
  disk.Fill();
  EXPECT_TRUE(Eventually([&] { return ProblemsOf(coordinator_.preflight()) != ""; }));
  EXPECT_EQ(coordinator_.StateOf(rank), RANK_STATE_RUNNING);
}

TEST_F(AgentTest, RanksOutlastAnOutageThatIsAllowedToLast) {
  coordinator_.set_orphan_grace(absl::Seconds(10));
  coordinator_.Serve();
  StartWorker({"--outage-grace", "inf"});
  const RankId rank = Id("count");
  Want({Run(rank, "count")});
  ASSERT_TRUE(Eventually([&] { return coordinator_.StepOf(rank) >= 1; }));
  const rundir::Processes processes = ProcessesOf(rank);
  const std::unique_ptr<rundir::Lease> lease = rundir::Lease::Open(run_, /*create=*/false).value();
  coordinator_.GoAway();
  absl::SleepFor(absl::Seconds(4));  // the last answer renews the lease for 3 s
  const uint64_t renewed = lease->Read();
  EXPECT_TRUE(Eventually([&] { return lease->Read() >= renewed + 10; })) << "the orphan grace would pass";
  EXPECT_TRUE(rundir::IsAlive(processes.trainer));
  // The daemon's own end is another matter: no one would ever end its ranks.
  KillWorker();
  EXPECT_TRUE(Eventually([&] { return Dir(rank).ReadExit().ok(); }));
  EXPECT_EQ(Dir(rank).ReadExit()->cause(), RankExit::ORPHANED);
}

}  // namespace
}  // namespace muster::agent
