#include "worker/agent/rank.h"

#include <gtest/gtest.h>

namespace muster::agent {
namespace {

RankExit Exit(RankExit::Cause cause, int code = 0, int signal = 0) {
  RankExit exit;
  exit.set_cause(cause);
  exit.set_exit_code(code);
  exit.set_signal(signal);
  exit.set_message("rank 0 ended");
  return exit;
}

TEST(RefineExit, Table) {
  const Facts silent;
  Facts midway;
  midway.any = midway.running = true;
  Facts finished = midway;
  finished.finished = true;
  Facts refusing;
  refusing.any = true;
  refusing.failure.emplace().set_message("data.tokens: no such file");
  refusing.failure->set_refused(true);
  Facts failing = midway;
  failing.failure.emplace().set_message("disk full");
  struct Case {
    RankExit exit;
    Facts facts;
    bool stop_requested;
    RankExit::Cause cause;
  };
  const Case cases[] = {
      {Exit(RankExit::COMPLETED), finished, false, RankExit::COMPLETED},
      {Exit(RankExit::COMPLETED), finished, true, RankExit::COMPLETED},  // it was faster than the request
      {Exit(RankExit::COMPLETED), midway, true, RankExit::STOPPED},
      {Exit(RankExit::COMPLETED), midway, false, RankExit::STOPPED},  // a signal of another process
      {Exit(RankExit::COMPLETED), silent, true, RankExit::STOPPED},
      {Exit(RankExit::COMPLETED), silent, false, RankExit::COMPLETED},  // a program that knows no outbox
      {Exit(RankExit::FAILED, 1), midway, true, RankExit::FAILED},      // it could not write its checkpoint
      {Exit(RankExit::FAILED, 1), finished, false, RankExit::FAILED},
      {Exit(RankExit::FAILED, 1), refusing, false, RankExit::REFUSED},
      {Exit(RankExit::FAILED, 0, 9), refusing, false, RankExit::FAILED},  // a signal outranks the trainer's report
      {Exit(RankExit::FAILED, 1), failing, false, RankExit::FAILED},
      {Exit(RankExit::STOPPED, 0, 9), midway, true, RankExit::STOPPED},
      {Exit(RankExit::ORPHANED, 0, 9), midway, false, RankExit::ORPHANED},
      {Exit(RankExit::ORPHANED), midway, false, RankExit::ORPHANED},
      {Exit(RankExit::ORPHANED), finished, false, RankExit::COMPLETED},
      {Exit(RankExit::VANISHED), finished, false, RankExit::VANISHED},
      {Exit(RankExit::SPAWN_FAILED), silent, true, RankExit::SPAWN_FAILED},
  };
  for (size_t i = 0; i < std::size(cases); ++i) {
    EXPECT_EQ(RefineExit(cases[i].exit, cases[i].facts, cases[i].stop_requested).cause(), cases[i].cause) << i;
  }
}

TEST(RefineExit, AddsTheTrainersOwnMessage) {
  Facts facts;
  facts.failure.emplace().set_message("the disk is full");
  EXPECT_EQ(RefineExit(Exit(RankExit::FAILED, 1), facts, false).message(), "rank 0 ended: the disk is full");
}

TEST(RefineExit, LostRecordsMakeACleanEndAFailure) {
  Facts facts;
  facts.finished = true;
  facts.damage = absl::DataLossError("outbox is damaged at x:1");
  const RankExit exit = RefineExit(Exit(RankExit::COMPLETED), facts, false);
  EXPECT_EQ(exit.cause(), RankExit::FAILED);
  EXPECT_EQ(exit.message(), "rank 0 ended; its records are lost: outbox is damaged at x:1");
  EXPECT_EQ(RefineExit(Exit(RankExit::ORPHANED), facts, false).cause(), RankExit::ORPHANED);
}

}  // namespace
}  // namespace muster::agent
