#include "coordinator/store/state.h"
#include "coordinator/store/reserve.h"
#include "coordinator/store/sqlite.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "testing/small_disk.h"
#include "testing/sync_watch.h"
#include "testing/temporary_folder.h"

namespace muster::store {
namespace {

class StateTest : public ::testing::Test {
 protected:
  std::unique_ptr<StateStore> Open() {
    auto store = OpenSqliteState(directory_);
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }
  std::string File() const { return directory_ + "/state.db"; }

  const TemporaryFolder folder_;
  const std::string directory_ = folder_.path();
};

std::vector<std::string> Keys(StateStore& store, std::string_view begin, std::string_view end, size_t limit = 0) {
  std::vector<std::string> keys;
  const auto rows = store.Range(begin, end, limit);
  EXPECT_TRUE(rows.ok()) << rows.status();
  for (const KeyValue& row : *rows) keys.push_back(row.key);
  return keys;
}

void ExecuteIn(const std::string& file, const std::string& sql) {
  sqlite3* handle = nullptr;
  ASSERT_EQ(sqlite3_open(file.c_str(), &handle), SQLITE_OK);
  EXPECT_EQ(sqlite3_exec(handle, sql.c_str(), nullptr, nullptr, nullptr), SQLITE_OK) << sqlite3_errmsg(handle);
  sqlite3_close(handle);
}

// A process crash keeps the kernel's unsynced pages; a power loss does not.
TEST_F(StateTest, WhatIsCommittedIsSynced) {
  const SyncWatch watch(directory_);
  for (int opening = 0; opening < 2; ++opening) {
    auto store = Open();
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE(store->Commit(1, {{{absl::StrCat("job/", i), std::string(10'000, 'x')}}}).ok());
      EXPECT_EQ(watch.Unsynced(), std::vector<std::string>{});
    }
  }
  EXPECT_EQ(watch.RenamedUnsynced(), std::vector<std::string>{});
}

TEST_F(StateTest, KeepsWhatItCommittedAcrossOpenings) {
  {
    auto store = Open();
    ASSERT_TRUE(store->Commit(1, {{{"job/a", "1"}, {"job/b", "2"}}, {{"node/x", std::string("\0y", 2)}}}).ok());
    ASSERT_TRUE(store->Commit(1, {{{"job/a", std::nullopt}, {"job/b", "3"}, {"job/none", std::nullopt}}}).ok());
  }
  auto store = Open();
  EXPECT_EQ(Keys(*store, "", ""), (std::vector<std::string>{"job/b", "node/x"}));
  EXPECT_EQ(store->Get("job/b").value(), "3");
  EXPECT_EQ(store->Get("node/x").value(), std::string("\0y", 2));
  EXPECT_EQ(store->Get("job/a").value(), std::nullopt);
}

TEST_F(StateTest, RangesAreHalfOpenAndOrderedByteByByte) {
  auto store = Open();
  ASSERT_TRUE(store->Commit(1, {{{"b", ""}, {"a/2", ""}, {"a/10", ""}, {"a\xff", ""}, {"A", ""}}}).ok());
  EXPECT_EQ(Keys(*store, "", ""), (std::vector<std::string>{"A", "a/10", "a/2", "a\xff", "b"}));
  EXPECT_EQ(Keys(*store, "a/10", "b"), (std::vector<std::string>{"a/10", "a/2", "a\xff"}));
  EXPECT_EQ(Keys(*store, "a/", "", 2), (std::vector<std::string>{"a/10", "a/2"}));
}

TEST_F(StateTest, RefusesWhatIsOverTheLimitsAndWritesNothing) {
  auto store = Open();
  ChangeGroup many(kMaxCommitKeys + 1, Change{"k", "v"});
  EXPECT_EQ(store->Commit(1, {{{"first", "1"}}, many}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(store->Commit(1, {{{"big", std::string(kMaxValueBytes + 1, 'x')}}}).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Keys(*store, "", "").empty());
  many.pop_back();
  EXPECT_TRUE(store->Commit(1, {many, {{"big", std::string(kMaxValueBytes, 'x')}}}).ok());
}

TEST_F(StateTest, FencesLowerTermsAlsoAfterReopening) {
  {
    auto store = Open();
    ASSERT_TRUE(store->Commit(3, {{{"a", "1"}}}).ok());
    EXPECT_EQ(store->Commit(2, {{{"a", "2"}}}).code(), absl::StatusCode::kFailedPrecondition);
  }
  auto store = Open();
  EXPECT_EQ(store->Commit(2, {{{"a", "2"}}}).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(store->Get("a").value(), "1");
  EXPECT_TRUE(store->Commit(3, {{{"a", "3"}}}).ok());
}

TEST_F(StateTest, TheReserveIsTakenGivenBackAndTakenAgain) {
  const std::string path = directory_ + "/reserve";
  Reserve reserve(path, 1 << 20);
  EXPECT_EQ(std::filesystem::file_size(path), 1u << 20);
  EXPECT_TRUE(reserve.Release());
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_FALSE(reserve.Release()) << "there is none";
  reserve.Refill();
  EXPECT_EQ(std::filesystem::file_size(path), 1u << 20);
  Reserve none(directory_ + "/huge", uint64_t{1} << 60);
  EXPECT_FALSE(none.Release()) << "the disk has no room for it";
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/huge"));
}

// Commits go on when the disk is full, and the space for the next time is taken again as soon as there is some.
TEST_F(StateTest, TheReserveIsForAFullDisk) {
  const SmallDisk disk(directory_ + "/disk", 64);
  ASSERT_TRUE(disk.ok());
  auto store = OpenSqliteState(disk.path());
  ASSERT_TRUE(store.ok()) << store.status();
  const std::string reserve = disk.path() + "/state.db-reserve";
  EXPECT_TRUE(std::filesystem::exists(reserve));
  disk.Fill();
  for (int i = 0; i < 8; ++i) {
    const absl::Status stored = (*store)->Commit(1, {{{absl::StrCat("job/", i), std::string(100'000, 'x')}}});
    ASSERT_TRUE(stored.ok()) << i << ": " << stored;
  }
  EXPECT_FALSE(std::filesystem::exists(reserve));
  EXPECT_FALSE((*store)->HasReserve());
  disk.Free();
  EXPECT_TRUE((*store)->Commit(1, {{{"job/8", "x"}}}).ok());
  EXPECT_TRUE(std::filesystem::exists(reserve));
  EXPECT_TRUE((*store)->HasReserve());
}

TEST_F(StateTest, SecondOpenerIsRefused) {
  auto store = Open();
  const auto second = OpenSqliteState(directory_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition) << second.status();
  EXPECT_TRUE(absl::StrContains(second.status().message(), "another process")) << second.status();
}

TEST_F(StateTest, NewerSchemaIsRefused) {
  Open();
  ExecuteIn(File(), "PRAGMA user_version=2");
  const auto store = OpenSqliteState(directory_);
  EXPECT_EQ(store.status().code(), absl::StatusCode::kFailedPrecondition) << store.status();
  EXPECT_TRUE(absl::StrContains(store.status().message(), "newer")) << store.status();
}

// As a later build will open a file of this one.
TEST_F(StateTest, OlderSchemasAreMigratedOnceAndThenRefusedByOlderBuilds) {
  static constexpr Schema kFirst{77, {"CREATE TABLE users(name TEXT)"}};
  static constexpr Schema kThird{
      77,
      {"CREATE TABLE users(name TEXT)", "ALTER TABLE users ADD COLUMN age INTEGER DEFAULT 40",
       "CREATE TABLE pets(name TEXT)"}};
  {
    auto database = Database::Open(File(), kFirst);
    ASSERT_TRUE(database.ok()) << database.status();
    ASSERT_TRUE((*database)->Run("INSERT INTO users VALUES('Ada')").ok());
  }
  for (int times = 0; times < 2; ++times) {
    auto database = Database::Open(File(), kThird);
    ASSERT_TRUE(database.ok()) << database.status();
    EXPECT_EQ((*database)->Integer("SELECT age FROM users WHERE name = 'Ada'").value(), 40);
    EXPECT_EQ((*database)->Integer("SELECT count(*) FROM pets").value(), times);
    ASSERT_TRUE((*database)->Run("INSERT INTO pets VALUES('Rex')").ok());
  }
  const auto older = Database::Open(File(), kFirst);
  EXPECT_EQ(older.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(older.status().message(), "written by a newer muster")) << older.status();
}

TEST_F(StateTest, AMigrationThatFailsLeavesTheFileAsItWas) {
  static constexpr Schema kFirst{77, {"CREATE TABLE users(name TEXT)"}};
  static constexpr Schema kBroken{
      77,
      {"CREATE TABLE users(name TEXT)", "CREATE TABLE pets(name TEXT)", "ALTER TABLE nothing ADD COLUMN age INTEGER"}};
  ASSERT_TRUE(Database::Open(File(), kFirst).ok());
  EXPECT_FALSE(Database::Open(File(), kBroken).ok());
  auto database = Database::Open(File(), kFirst);
  ASSERT_TRUE(database.ok()) << database.status();
  EXPECT_EQ((*database)->Integer("SELECT count(*) FROM sqlite_schema WHERE name = 'pets'").value(), 0);
}

TEST_F(StateTest, ForeignDatabaseAndGarbageAreDataLoss) {
  ExecuteIn(File(), "CREATE TABLE t(x)");
  EXPECT_EQ(OpenSqliteState(directory_).status().code(), absl::StatusCode::kDataLoss);
  std::ofstream(File(), std::ios::trunc) << std::string(8192, 'x');
  EXPECT_EQ(OpenSqliteState(directory_).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(StateTest, DamagedPageIsFoundAtOpening) {
  {
    auto store = Open();
    ChangeGroup group;
    for (int i = 0; i < 40; ++i) group.push_back({absl::StrCat("job/", i), std::string(3000, 'a')});
    ASSERT_TRUE(store->Commit(1, {group}).ok());
  }
  std::fstream file(File(), std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(0, std::ios::end);
  const auto size = static_cast<int64_t>(file.tellp());
  ASSERT_GT(size, 100'000);
  for (int64_t page = 1; page < size / 4096; ++page) {  // the b-tree headers of all pages but the first
    file.seekp(page * 4096);
    file.write("\xff\xff\xff\xff\xff\xff\xff\xff", 8);
  }
  file.close();
  const auto store = OpenSqliteState(directory_);
  EXPECT_EQ(store.status().code(), absl::StatusCode::kDataLoss) << store.status();
}

TEST_F(StateTest, BackupIsWholeAndNeverOverwrites) {
  auto store = Open();
  ASSERT_TRUE(store->Commit(4, {{{"job/a", "1"}}}).ok());
  const std::string folder = directory_ + "/copy";
  std::filesystem::create_directory(folder);
  const auto bytes = store->Backup(folder + "/state.db");
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_EQ(*bytes, std::filesystem::file_size(folder + "/state.db"));
  EXPECT_EQ(store->Backup(folder + "/state.db").status(),
            absl::AlreadyExistsError(absl::StrCat("cannot create ", folder,
                                                  "/state.db: File exists; name another file, or remove this one")));
  EXPECT_EQ(store->Backup("relative.db").status().code(), absl::StatusCode::kInvalidArgument);
  const absl::Status missing = store->Backup(directory_ + "/no/such/folder.db").status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(missing.message(),
            absl::StrCat("cannot create ", directory_, "/no/such/folder.db: there is no folder ", directory_,
                         "/no/such; name a file in a folder that exists on the coordinator's machine"));

  ASSERT_TRUE(store->Commit(4, {{{"job/b", "2"}}}).ok());  // the store still works
  const auto copy = OpenSqliteState(folder);
  ASSERT_TRUE(copy.ok()) << copy.status();
  EXPECT_EQ(Keys(**copy, "", ""), (std::vector<std::string>{kCopyKey, "job/a"})) << "it says that it is a copy";
  EXPECT_EQ((*copy)->Commit(3, {{{"x", "y"}}}).code(),
            absl::StatusCode::kFailedPrecondition);  // the copy includes the term
}

// A child commits until the file size limit stops it, and reports how many commits were acknowledged.
TEST_F(StateTest, FullDiskFailsTheCommitAndKeepsTheOnesBefore) {
  int pipe_ends[2];
  ASSERT_EQ(pipe2(pipe_ends, O_CLOEXEC), 0);
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    auto store = OpenSqliteState(directory_);
    const rlimit limit{256 * 1024, 256 * 1024};
    if (!store.ok() || setrlimit(RLIMIT_FSIZE, &limit) != 0) _exit(1);
    for (uint32_t i = 0; i < 1000; ++i) {
      if (!(*store)->Commit(1, {{{absl::StrCat("job/", i), std::string(10'000, 'x')}}}).ok()) _exit(0);
      if (write(pipe_ends[1], &i, sizeof(i)) != sizeof(i)) _exit(2);
    }
    _exit(3);
  }
  close(pipe_ends[1]);
  uint32_t last = 0, number = 0;
  while (read(pipe_ends[0], &number, sizeof(number)) == sizeof(number)) last = number;
  close(pipe_ends[0]);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_GT(last, 10u);
  auto store = Open();
  EXPECT_EQ(Keys(*store, "job/", "job0").size(), last + 1);
}

}  // namespace
}  // namespace muster::store
