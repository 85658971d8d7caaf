#include "worker/shim/exit_record.h"

#include <gtest/gtest.h>

#include <csignal>

namespace muster::step {
namespace {

constexpr int Code(int code) { return code << 8; }

struct Case {
  const char* name;
  Intervention intervention;
  bool killed;
  int wait_status;
  RankExit::Cause cause;
  const char* message;
};

TEST(MakeExit, Table) {
  const Case cases[] = {
      {"end", Intervention::kNone, false, Code(0), RankExit::COMPLETED, "rank 3 exited with code 0"},
      {"requested, end", Intervention::kRequested, false, Code(0), RankExit::COMPLETED, "rank 3 exited with code 0"},
      {"fault", Intervention::kNone, false, Code(1), RankExit::FAILED, "rank 3 exited with code 1"},
      {"requested, fault", Intervention::kRequested, false, Code(1), RankExit::FAILED, "rank 3 exited with code 1"},
      {"crash", Intervention::kNone, false, SIGSEGV, RankExit::FAILED, "rank 3 was killed by signal 11 (SIGSEGV)"},
      {"crash with the core flag", Intervention::kNone, false, SIGABRT | 0x80, RankExit::FAILED,
       "rank 3 was killed by signal 6 (SIGABRT)"},
      {"foreign kill", Intervention::kNone, false, SIGKILL, RankExit::FAILED,
       "rank 3 was killed by signal 9 (SIGKILL), not by muster: often the kernel's out-of-memory killer, see dmesg"},
      {"foreign kill while stopping", Intervention::kRequested, false, SIGKILL, RankExit::FAILED,
       "rank 3 was killed by signal 9 (SIGKILL), not by muster: often the kernel's out-of-memory killer, see dmesg"},
      {"foreign term", Intervention::kNone, false, SIGTERM, RankExit::FAILED,
       "rank 3 was killed by signal 15 (SIGTERM)"},
      {"requested", Intervention::kRequested, false, SIGTERM, RankExit::STOPPED,
       "rank 3 was asked to stop and was killed by signal 15 (SIGTERM)"},
      {"requested, deaf", Intervention::kRequested, true, SIGKILL, RankExit::STOPPED,
       "rank 3 was asked to stop, did not end in time and was killed by signal 9 (SIGKILL)"},
      {"orphan", Intervention::kOrphaned, true, SIGKILL, RankExit::ORPHANED,
       "rank 3 was ended because its worker had no contact with the coordinator for 30m (orphan_grace); it was "
       "killed by signal 9 (SIGKILL)"},
      {"orphan, gentle", Intervention::kOrphaned, false, Code(0), RankExit::ORPHANED,
       "rank 3 was ended because its worker had no contact with the coordinator for 30m (orphan_grace); it "
       "exited with code 0"},
  };
  for (const Case& c : cases) {
    Ending ending;
    ending.rank = 3;
    ending.orphan_grace = absl::Minutes(30);
    ending.intervention = c.intervention;
    ending.killed = c.killed;
    ending.wait_status = c.wait_status;
    const RankExit exit = MakeExit(ending);
    EXPECT_EQ(exit.cause(), c.cause) << c.name;
    EXPECT_EQ(exit.message(), c.message) << c.name;
  }
}

TEST(MakeExit, CarriesNumbersAndLines) {
  Ending ending;
  ending.wait_status = Code(7);
  ending.peak_memory_bytes = 123;
  ending.ended = absl::FromUnixMillis(1500);
  ending.last_lines = {"a", "b"};
  const RankExit exit = MakeExit(ending);
  EXPECT_EQ(exit.exit_code(), 7);
  EXPECT_EQ(exit.peak_memory_bytes(), 123u);
  EXPECT_EQ(exit.ended().seconds(), 1);
  EXPECT_EQ(exit.ended().nanos(), 500'000'000);
  ASSERT_EQ(exit.last_lines_size(), 2);
  EXPECT_EQ(exit.last_lines(1), "b");
}

TEST(MakeExit, SpawnFailure) {
  Ending ending;
  ending.spawn_error = "cannot run /x: No such file or directory";
  EXPECT_EQ(MakeExit(ending).cause(), RankExit::SPAWN_FAILED);
  EXPECT_EQ(MakeExit(ending).message(), "rank 0 could not be started: cannot run /x: No such file or directory");
}

}  // namespace
}  // namespace muster::step
