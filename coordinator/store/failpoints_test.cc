// Crashes or disk errors at every failpoint of the stores: acknowledged writes are there afterwards, others are there
// completely or not at all, and the file opens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/failpoint.h"
#include "coordinator/store/history.h"
#include "coordinator/store/state.h"
#include "testing/memory_folder.h"

namespace muster::store {
namespace {

constexpr int kCommits = 3;

// Two rows a commit, so that a partial commit is visible. Large enough that the journal's and the database's pages
// differ.
std::vector<ChangeGroup> CommitOf(int number) {
  const std::string value = absl::StrCat(number, std::string(6000, static_cast<char>('a' + number)));
  return {{{absl::StrCat("a/", number), value}}, {{absl::StrCat("b/", number), value}, {"newest", value}}};
}

HistoryItem PointOf(int number) {
  HistoryItem item;
  item.sequence = static_cast<uint64_t>(number) + 1;
  item.job = JobId("job");
  item.body.emplace<MetricPoint>().set_step(static_cast<uint64_t>(number));
  return item;
}

// Opens both stores and fills them; calls `acknowledged` for each completed step. Steps 0 to kCommits - 1 are commits,
// the rest are appends.
absl::Status Fill(const std::string& folder, const std::function<void(int)>& acknowledged) {
  auto state = OpenSqliteState(folder);
  if (!state.ok()) return state.status();
  auto history = OpenSqliteHistory(folder, {});
  if (!history.ok()) return history.status();
  for (int i = 0; i < kCommits; ++i) {
    if (absl::Status status = (*state)->Commit(1, CommitOf(i)); !status.ok()) return status;
    acknowledged(i);
    const RankId rank{JobId("job"), 1, 0};
    absl::Status status = (*history)->Append({PointOf(i)}, {{rank, {static_cast<uint64_t>(i) + 1, 0}}});
    if (!status.ok()) return status;
    acknowledged(kCommits + i);
  }
  const auto size = (*state)->Backup(folder + "/copy");
  return size.status();
}

// Checks that the folder has all acknowledged steps, and of the rest only complete steps.
void ExpectWhole(const std::string& folder, const std::set<int>& acknowledged, const std::string& when) {
  auto state = OpenSqliteState(folder);
  ASSERT_TRUE(state.ok()) << when << ": " << state.status();
  for (int i = 0; i < kCommits; ++i) {
    const std::string value = *CommitOf(i)[0][0].value;
    const auto a = (*state)->Get(absl::StrCat("a/", i)), b = (*state)->Get(absl::StrCat("b/", i));
    ASSERT_TRUE(a.ok() && b.ok()) << when;
    EXPECT_EQ(*a, *b) << when << ": half of commit " << i;
    if (acknowledged.contains(i)) {
      EXPECT_EQ(*a, value) << when << ": commit " << i << " is lost";
    }
  }
  auto history = OpenSqliteHistory(folder, {});
  ASSERT_TRUE(history.ok()) << when << ": " << history.status();
  const auto page = (*history)->Read({JobId("job")}, 0, 100, 1 << 20);
  ASSERT_TRUE(page.ok()) << when;
  const auto input = (*history)->GetAcknowledged({JobId("job"), 1, 0});
  ASSERT_TRUE(input.ok()) << when;
  EXPECT_EQ(input->record_sequence, page->items.size()) << when << ": half of an append";
  for (int i = 0; i < kCommits; ++i) {
    if (acknowledged.contains(kCommits + i)) {
      EXPECT_GT(page->items.size(), static_cast<size_t>(i)) << when << ": append " << i;
    }
  }
}

std::map<std::string, uint64_t> PassedByFill() {
  const MemoryFolder folder;
  EXPECT_TRUE(failpoint::Arm("none=kill").ok());
  EXPECT_TRUE(Fill(folder.path(), [](int) {}).ok());
  std::map<std::string, uint64_t> passed = failpoint::Passed();
  EXPECT_TRUE(failpoint::Arm("").ok());
  return passed;
}

// A failpoint that this list misses would never be tested.
TEST(Failpoints, StandBeforeEveryStepOfACommit) {
  std::set<std::string> names;
  for (const auto& [name, count] : PassedByFill()) names.insert(name);
  for (const std::string part : {"store.state.", "store.history."}) {
    for (const char* point : {"create", "begin", "write", "sync", "commit", "committed", "journal.create",
                              "journal.write", "journal.sync"}) {
      EXPECT_TRUE(names.contains(part + point)) << part << point;
    }
  }
  for (const char* point : {"store.copy.write", "store.copy.sync"}) EXPECT_TRUE(names.contains(point)) << point;
}

// How a process that fills the stores with this failpoint armed ends, and the last step that it acknowledged.
int FillInProcess(const std::string& folder, const std::string& failpoints, std::set<int>& acknowledged) {
  int pipe_ends[2];
  EXPECT_EQ(pipe(pipe_ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    close(pipe_ends[0]);
    if (!failpoint::Arm(failpoints).ok()) _exit(3);
    const absl::Status status = Fill(folder, [&](int step) {
      const char byte = static_cast<char>(step);
      if (write(pipe_ends[1], &byte, 1) != 1) _exit(4);
    });
    _exit(status.ok() ? 0 : 1);
  }
  close(pipe_ends[1]);
  for (char byte = 0; read(pipe_ends[0], &byte, 1) == 1;) acknowledged.insert(byte);
  close(pipe_ends[0]);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

TEST(Failpoints, KilledAtEveryPassingOfEachLosesNothing) {
  int kills = 0;
  for (const auto& [name, count] : PassedByFill()) {
    for (uint64_t passing = 1; passing <= count; ++passing) {
      const MemoryFolder folder;
      std::set<int> acknowledged;
      const std::string armed = absl::StrCat(name, "=kill@", passing);
      const int status = FillInProcess(folder.path(), armed, acknowledged);
      ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << armed;
      ++kills;
      ExpectWhole(folder.path(), acknowledged, armed);
    }
  }
  EXPECT_GT(kills, 100);
  RecordProperty("kills", kills);
}

// After an error the stores neither assume success nor retry: every error is returned. But the state store has space in
// reserve for a disk that is full, which is known to have taken nothing; an error of fsync is something else.
TEST(Failpoints, ErrorOfTheDiskComesUpAndLosesNothing) {
  for (const auto& [name, count] : PassedByFill()) {
    // SQLite deletes an old journal of the copy before it starts, and continues if there is none.
    if (name == "store.copy.journal.delete") continue;
    for (const char* error : {"EIO", "ENOSPC"}) {
      const MemoryFolder folder;
      std::set<int> acknowledged;
      const std::string armed = absl::StrCat(name, "=", error, "@", (count + 1) / 2);
      const int status = FillInProcess(folder.path(), armed, acknowledged);
      ASSERT_TRUE(WIFEXITED(status)) << armed;
      const bool reserved = error == std::string("ENOSPC") && absl::StartsWith(name, "store.state.") &&
                            !absl::EndsWith(name, ".sync") && !absl::EndsWith(name, ".create");
      EXPECT_EQ(WEXITSTATUS(status), reserved ? 0 : 1) << armed;
      ExpectWhole(folder.path(), acknowledged, armed);
    }
  }
}

}  // namespace
}  // namespace muster::store
