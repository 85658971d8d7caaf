#include "coordinator/server/ledger.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "coordinator/server/shell.h"
#include "testing/small_disk.h"
#include "testing/temporary_folder.h"

namespace muster::server {
namespace {

class LedgerTest : public ::testing::Test {
 protected:
  LedgerTest() { Open(); }

  void Open(const store::HistoryLimits& limits = {}) {
    ledger_.reset();
    auto ledger = Ledger::Open(directory_, limits);
    ASSERT_TRUE(ledger.ok()) << ledger.status();
    ledger_ = *std::move(ledger);
  }
  void Commit(const std::string& job, const std::string& kind, int times = 1) {
    StateEvent event;
    event.set_job(job);
    event.set_kind(kind);
    const Transaction one{{{"job/" + job, kind}}, {event}};
    ASSERT_TRUE(ledger_->Commit(std::vector<Transaction>(times, one)).ok());
  }
  void StagePoint(const std::string& job, uint64_t step) {
    MetricPoint point;
    point.set_step(step);
    ledger_->Stage(JobId(job), point);
  }
  void StageStep(const std::string& job, uint64_t step, double seconds) {
    MetricPoint point;
    point.set_step(step);
    point.set_step_seconds(seconds);
    ledger_->Stage(JobId(job), point);
  }
  void StageLog(const std::string& job, const std::string& text) {
    LogChunk chunk;
    chunk.set_generation(1);
    chunk.set_text(text);
    ledger_->Stage(JobId(job), chunk);
  }
  // "job.running", "7" (a metric of step 7), "log:text", "gap:metrics:3"
  std::vector<std::string> ReadAll(const StreamFilter& filter, uint64_t after = 0) {
    std::vector<std::string> result;
    while (true) {
      auto page = ledger_->Read(filter, after);
      EXPECT_TRUE(page.ok()) << page.status();
      for (const StreamItem& item : page->items) {
        EXPECT_GT(item.sequence, after);
        if (const auto* event = std::get_if<StateEvent>(&item.body)) result.push_back(event->kind());
        if (const auto* point = std::get_if<MetricPoint>(&item.body)) result.push_back(absl::StrCat(point->step()));
        if (const auto* chunk = std::get_if<LogChunk>(&item.body)) result.push_back("log:" + chunk->text());
        if (const auto* gap = std::get_if<Gap>(&item.body)) {
          result.push_back(absl::StrCat("gap:", gap->what(), ":", gap->items()));
        }
      }
      EXPECT_GE(page->next, after);
      after = page->next;
      if (!page->more) return result;
    }
  }

  TailSearch FindTail(const StreamFilter& filter, uint64_t count) {
    TailSearch search = ledger_->StartTail(filter, count);
    for (int portion = 0; !search.found && portion < 1000; ++portion) EXPECT_TRUE(ledger_->FindTail(search).ok());
    EXPECT_TRUE(search.found);
    return search;
  }

  const TemporaryFolder folder_;
  std::string directory_ = folder_.path();
  std::unique_ptr<Ledger> ledger_;
};

using Items = std::vector<std::string>;
const StreamFilter kAll;
StreamFilter Of(const std::string& job) { return {JobId(job), true, true, true, std::nullopt}; }

TEST_F(LedgerTest, OneSequenceOfBothStoresAcrossOpenings) {
  Commit("a", "submitted");
  StagePoint("a", 1);
  StageLog("b", "x\n");
  ASSERT_TRUE(ledger_->Flush().ok());
  Commit("b", "running");
  const Items expected{"submitted", "1", "log:x\n", "running"};
  EXPECT_EQ(ReadAll(kAll), expected);
  Open();
  EXPECT_EQ(ReadAll(kAll), expected);
  EXPECT_EQ(ReadAll(Of("b")), (Items{"log:x\n", "running"}));
  EXPECT_EQ(ReadAll({JobId(), true, false, false, std::nullopt}), (Items{"submitted", "running"}));
  const uint64_t seen = ledger_->last_sequence();
  Commit("a", "completed");
  EXPECT_EQ(ReadAll(kAll, seen), Items{"completed"});
}

TEST_F(LedgerTest, StagedItemsAreInvisibleUntilStoredAndStandBeforeTheirJobsEvents) {
  StagePoint("a", 1);
  Commit("b", "b1");
  EXPECT_EQ(ReadAll(kAll), Items{"b1"});  // another job's event does not wait for them
  EXPECT_TRUE(ledger_->HasStaged(JobId("a")));
  Commit("a", "completed");
  EXPECT_EQ(ReadAll(kAll), (Items{"b1", "1", "completed"}));
  EXPECT_EQ(ledger_->staged(), 0u);
  EXPECT_EQ(ledger_->TakeChangedJobs(), (std::set<JobId>{JobId("a"), JobId("b")}));
  EXPECT_TRUE(ledger_->TakeChangedJobs().empty());
}

TEST_F(LedgerTest, LastMetricsHaveTheMeanTimeOfRecentSteps) {
  StageStep("a", 1, 50);  // warms up
  for (uint64_t step = 2; step <= 100; ++step) StageStep("a", step, step % 2 == 0 ? 1 : 3);
  StageStep("b", 1, 0.5);
  EXPECT_FALSE(ledger_->LastMetrics(JobId("a")).has_mean_step_seconds()) << "none of them is stored";
  ASSERT_TRUE(ledger_->Flush().ok());
  EXPECT_EQ(ledger_->LastMetrics(JobId("a")).step_seconds(), 1);
  EXPECT_NEAR(ledger_->LastMetrics(JobId("a")).mean_step_seconds(), 2, 0.1);
  EXPECT_EQ(ledger_->LastMetrics(JobId("b")).mean_step_seconds(), 0.5);
  ASSERT_TRUE(ledger_->Forget(JobId("a"), ledger_->last_sequence()).ok());
  StageStep("a", 7, 4);
  ASSERT_TRUE(ledger_->Flush().ok());
  EXPECT_EQ(ledger_->LastMetrics(JobId("a")).mean_step_seconds(), 4);
}

TEST_F(LedgerTest, ReportsWhoseInputIsStored) {
  const RankId rank{JobId("a"), 1, 0};
  ledger_->Stage(rank, {4, 0});
  ledger_->Stage(rank, {0, 100});
  EXPECT_TRUE(ledger_->TakeStoredInput().empty());
  ASSERT_TRUE(ledger_->Flush().ok());
  const StoredInput stored = ledger_->TakeStoredInput();
  ASSERT_EQ(stored.size(), 1u);
  EXPECT_EQ(stored[0].second.record_sequence, 4u);
  EXPECT_EQ(stored[0].second.log_offset, 100u);
  Open();
  EXPECT_EQ(ledger_->GetAcknowledged(rank)->log_offset, 100u);
}

TEST_F(LedgerTest, RowsAreWithoutEventsAndSequence) {
  Commit("a", "x");
  ASSERT_TRUE(ledger_->Commit({{{{"node/n", "1"}, {"zoo", "2"}}, {}}}).ok());
  Items keys;
  const auto rows = ledger_->Rows();
  for (const auto& row : *rows) keys.push_back(row.key);
  EXPECT_EQ(keys, (Items{"job/a", "node/n", "zoo"}));
}

TEST_F(LedgerTest, EventWithManyRowsIsOneCommit) {
  Transaction large;
  for (int i = 0; i < 350; ++i) large.rows.push_back({absl::StrCat("node/", i), "x"});
  for (int i = 0; i < 150; ++i) large.events.emplace_back().set_kind("node.lost");
  ASSERT_TRUE(ledger_->Commit({large}).ok());
  EXPECT_EQ(ledger_->Rows()->size(), 350u);
  EXPECT_EQ(ReadAll(kAll).size(), 150u);
}

TEST_F(LedgerTest, PagesMergeManyItemsOfBothStoresInOrder) {
  uint64_t events = 0;
  for (int i = 0; i < 700; ++i) {
    StagePoint("a", i + 1);
    StagePoint("a", i + 1);
    if (i % 70 == 0) {
      Commit("a", absl::StrCat("event", i));
      ++events;
    }
  }
  Commit("b", "tail", 600);
  ASSERT_TRUE(ledger_->Flush().ok());
  const Items all = ReadAll(kAll);
  EXPECT_EQ(all.size(), 1400u + events + 600u);
  EXPECT_EQ(std::count(all.begin(), all.end(), "tail"), 600);
  EXPECT_EQ(std::count(all.begin(), all.end(), "400"), 2);
  EXPECT_EQ(ReadAll(Of("a")).size(), 1400u + events);
}

TEST_F(LedgerTest, DroppedItemsShowAsOneGapPerPage) {
  store::HistoryLimits limits;
  limits.points_per_job = 100;
  limits.log_bytes_per_rank = 10;
  Open(limits);
  for (int i = 0; i < 400; ++i) {
    StagePoint("a", i + 1);
    if (i < 5) StageLog("a", "abcd\n");
    if (i % 10 == 9) {
      ASSERT_TRUE(ledger_->Flush().ok());
    }
  }
  const Items all = ReadAll(Of("a"));
  size_t metrics = 0;
  int gaps = 0, dropped = 0;
  for (const std::string& item : all) {
    metrics += std::isdigit(static_cast<unsigned char>(item[0])) != 0;
    if (!absl::StartsWith(item, "gap:metrics:")) continue;
    ++gaps;
    dropped += std::stoi(item.substr(12));
  }
  EXPECT_EQ(gaps, 1);
  EXPECT_EQ(metrics + dropped, 400u);
  EXPECT_TRUE(std::find(all.begin(), all.end(), "gap:logs:3") != all.end());
  EXPECT_EQ(std::count(all.begin(), all.end(), "log:abcd\n"), 2);
}

TEST_F(LedgerTest, TailCountsItemsAndLogLines) {
  Commit("a", "e1");
  StageLog("a", "one\ntwo\nthree\n");
  StagePoint("a", 1);
  ASSERT_TRUE(ledger_->Flush().ok());
  Commit("b", "other");
  Commit("a", "e2");
  const auto tail = [&](uint64_t count) { return FindTail(Of("a"), count); };
  EXPECT_TRUE(ReadAll(Of("a"), tail(0).after).empty());
  EXPECT_EQ(ReadAll(Of("a"), tail(1).after), Items{"e2"});
  EXPECT_EQ(ReadAll(Of("a"), tail(2).after), (Items{"1", "e2"}));
  EXPECT_EQ(ReadAll(Of("a"), tail(4).after), (Items{"log:one\ntwo\nthree\n", "1", "e2"}));
  EXPECT_EQ(tail(4).skip_lines, 1u);
  EXPECT_EQ(tail(5).skip_lines, 0u);
  EXPECT_EQ(ReadAll(Of("a"), tail(6).after).size(), 4u);
  EXPECT_EQ(tail(100).after, 0u);
  EXPECT_EQ(FindTail({JobId("a"), false, false, true, 7}, 1).after, 0u);  // nothing of rank 7
}

TEST_F(LedgerTest, TailReachesOverManyPages) {
  for (int i = 0; i < 3000; ++i) StagePoint("a", i + 1);
  ASSERT_TRUE(ledger_->Flush().ok());
  EXPECT_EQ(ReadAll(Of("a"), FindTail(Of("a"), 2000).after).size(), 2000u);
}

// Events and history in turns, in runs that end in the middle of pages.
TEST_F(LedgerTest, TailOfAnyLengthHasTheNewestItemsOfBothStores) {
  for (int run = 0; run < 12; ++run) {
    for (int i = 0; i < 100 * (run % 4); ++i) StagePoint("a", i + 1);
    ASSERT_TRUE(ledger_->Flush().ok());
    Commit("a", "event", 70 * (run % 3) + 1);
  }
  const Items all = ReadAll(Of("a"));
  for (size_t count = 0; count < all.size() + 100; count += 37) {
    const Items expected(all.end() - static_cast<ptrdiff_t>(std::min(count, all.size())), all.end());
    EXPECT_EQ(ReadAll(Of("a"), FindTail(Of("a"), count).after), expected) << count;
  }
  const StreamFilter events{JobId("a"), true, false, false, std::nullopt};
  EXPECT_EQ(ReadAll(events, FindTail(events, 300).after).size(), 300u);
}

TEST_F(LedgerTest, ForgottenJobIsGoneAndPositionsAreNotUsedAgain) {
  Commit("a", "x", 250);
  Commit("b", "y");
  StagePoint("a", 1);
  ASSERT_TRUE(ledger_->Flush().ok());
  StagePoint("a", 2);
  const uint64_t last = ledger_->last_sequence();
  Commit("a", "deleted");  // flushes, then takes the next position
  ASSERT_TRUE(ledger_->Forget(JobId("a"), last + 2).ok());
  EXPECT_EQ(ReadAll(kAll), (Items{"y", "deleted"}));
  Open();
  EXPECT_EQ(ReadAll(kAll), (Items{"y", "deleted"}));
  EXPECT_EQ(ledger_->last_sequence(), last + 2);
  ASSERT_TRUE(ledger_->Forget(JobId("a"), last + 3).ok());
  Open();
  EXPECT_EQ(ReadAll(kAll), Items{"y"});
  EXPECT_EQ(ledger_->last_sequence(), last + 2);
  EXPECT_EQ(ledger_->Jobs(), std::set<JobId>{JobId("b")});
}

TEST_F(LedgerTest, DamagedEventIsNamed) {
  ASSERT_TRUE(ledger_->Commit({{{{"event/00000000000000000007", "\xff\xff"}}, {}}}).ok());
  ledger_.reset();
  const auto ledger = Ledger::Open(directory_, {});
  EXPECT_EQ(ledger.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(absl::StrContains(ledger.status().message(), "00000000000000000007")) << ledger.status();
}

TEST_F(LedgerTest, OldEventsOfNodesGoAndThoseOfJobsStay) {
  Commit("a", "job.queued");
  std::vector<Transaction> flapping;
  for (size_t i = 0; i < 10'000; ++i) {
    StateEvent event;
    event.set_node("n");
    event.set_kind("node.away");
    flapping.push_back({{}, {event}});
  }
  for (size_t i = 0; i < Ledger::kNodeEventsKept / 10'000 + 1; ++i) ASSERT_TRUE(ledger_->Commit(flapping).ok());
  const auto count = [&] {
    const Items all = ReadAll(kAll);
    EXPECT_EQ(all.front(), "job.queued");
    return all.size();
  };
  EXPECT_LE(count(), Ledger::kNodeEventsKept + 10'001);
  EXPECT_GE(count(), Ledger::kNodeEventsKept);
  for (size_t i = 0; i < 20; ++i) ASSERT_TRUE(ledger_->Commit({flapping[0]}).ok());
  EXPECT_LE(count(), Ledger::kNodeEventsKept + 1001);
  Open();
  EXPECT_LE(count(), Ledger::kNodeEventsKept + 1001) << "on disk, too";
}

// A history whose disk is full at times, and which counts what is read.
class FullHistory final : public store::HistoryStore {
 public:
  explicit FullHistory(std::unique_ptr<store::HistoryStore> of) : of_(std::move(of)) {}
  absl::Status Append(const std::vector<store::HistoryItem>& items,
                      const std::vector<std::pair<RankId, store::Acknowledged>>& acknowledged) override {
    return full ? absl::ResourceExhaustedError("the disk is full") : of_->Append(items, acknowledged);
  }
  absl::StatusOr<store::Acknowledged> GetAcknowledged(const RankId& rank) override {
    return of_->GetAcknowledged(rank);
  }
  absl::StatusOr<store::HistoryPage> Read(const store::HistoryFilter& filter, uint64_t after, size_t limit,
                                          size_t bytes) override {
    return of_->Read(filter, after, limit, bytes);
  }
  absl::StatusOr<store::HistoryPage> ReadBack(const store::HistoryFilter& filter, uint64_t before, size_t limit,
                                              size_t bytes) override {
    absl::StatusOr<store::HistoryPage> page = of_->ReadBack(filter, before, limit, bytes);
    for (const store::HistoryItem& item : page.ok() ? page->items : std::vector<store::HistoryItem>()) {
      if (const auto* chunk = std::get_if<LogChunk>(&item.body)) bytes_read_back += chunk->text().size();
    }
    return page;
  }
  MetricPoint LastMetrics(const JobId& job) const override { return of_->LastMetrics(job); }
  uint64_t LastSequence() const override { return of_->LastSequence(); }
  std::vector<JobId> Jobs() const override { return of_->Jobs(); }
  absl::Status Forget(const JobId& job) override {
    return full ? absl::ResourceExhaustedError("no space left on device") : of_->Forget(job);
  }
  absl::StatusOr<bool> Prune(const std::function<std::vector<JobId>()>& ended) override { return of_->Prune(ended); }
  bool full = false;
  size_t bytes_read_back = 0;

 private:
  const std::unique_ptr<store::HistoryStore> of_;
};

// A job was deleted while the disk was full, and its history was left.
TEST_F(LedgerTest, AFullDiskKeepsNoCoordinatorFromStarting) {
  ledger_.reset();
  const TemporaryFolder folder;
  auto history = std::make_unique<FullHistory>(*store::OpenSqliteHistory(folder.path(), {}));
  FullHistory& disk = *history;
  ledger_ = *Ledger::Over(*store::OpenSqliteState(folder.path()), std::move(history));
  StagePoint("deleted", 1);
  ASSERT_TRUE(ledger_->Flush().ok());
  disk.full = true;
  const RealClock clock;
  const auto shell = Shell::Start({}, &clock, nullptr, std::move(ledger_));
  EXPECT_TRUE(shell.ok()) << shell.status();
}

TEST_F(LedgerTest, ABackupIsKnownAsOneUntilItsFirstCommit) {
  EXPECT_FALSE(ledger_->restored_copy());
  Commit("a", "job.queued");
  const TemporaryFolder folder;
  ASSERT_TRUE(ledger_->Backup(folder.path() + "/state.db").ok());
  for (int time = 0; time < 2; ++time) {
    const auto copy = Ledger::Open(folder.path(), {});
    ASSERT_TRUE(copy.ok()) << copy.status();
    EXPECT_TRUE((*copy)->restored_copy());
    EXPECT_EQ((*copy)->Rows()->size(), ledger_->Rows()->size()) << "the mark is no row of the core";
  }
  auto copy = *Ledger::Open(folder.path(), {});
  StateEvent event;
  event.set_kind("store.restored");
  ASSERT_TRUE(copy->Commit({{{}, {event}}}).ok());
  EXPECT_FALSE(copy->restored_copy());
  copy.reset();
  EXPECT_FALSE((*Ledger::Open(folder.path(), {}))->restored_copy());
  EXPECT_FALSE(ledger_->restored_copy()) << "the original is no copy";
}

TEST_F(LedgerTest, AFullDiskDropsHistoryAndMarksTheGap) {
  ledger_.reset();
  const TemporaryFolder folder;
  auto history = std::make_unique<FullHistory>(*store::OpenSqliteHistory(folder.path(), {}));
  FullHistory& disk = *history;
  ledger_ = *Ledger::Over(*store::OpenSqliteState(folder.path()), std::move(history));
  const RankId rank{JobId("a"), 1, 0};
  StagePoint("a", 1);
  StageLog("a", "one\n");
  ASSERT_TRUE(ledger_->Flush().ok());
  disk.full = true;
  StagePoint("a", 2);
  StagePoint("a", 3);
  StageLog("a", "lost\n");
  ledger_->Stage(rank, {3, 0});
  ASSERT_TRUE(ledger_->Flush().ok()) << "no end of the process";
  StagePoint("a", 4);
  StagePoint("b", 1);
  ASSERT_TRUE(ledger_->Flush().ok());
  EXPECT_EQ(ledger_->dropped(), 5u);
  EXPECT_EQ(ledger_->TakeStoredInput().size(), 1u) << "its rank does not wait";
  Commit("a", "job.running");  // state is stored all the same
  disk.full = false;
  StagePoint("a", 5);
  ASSERT_TRUE(ledger_->Flush().ok());
  StagePoint("a", 6);
  StageLog("a", "two\n");
  ASSERT_TRUE(ledger_->Flush().ok());
  EXPECT_EQ(ReadAll({.job = JobId("a")}),
            (Items{"1", "log:one\n", "gap:logs:1", "gap:metrics:3", "job.running", "5", "6", "log:two\n"}));
}

TEST_F(LedgerTest, TailOfALargeLogIsFoundInSmallPortions) {
  ledger_.reset();
  const TemporaryFolder folder;
  auto history = std::make_unique<FullHistory>(
      *store::OpenSqliteHistory(folder.path(), {.log_bytes_per_rank = uint64_t{1} << 30}));
  FullHistory& disk = *history;
  ledger_ = *Ledger::Over(*store::OpenSqliteState(folder.path()), std::move(history));
  constexpr uint64_t kChunks = 640, kLines = 4096;
  std::string text;
  for (uint64_t i = 0; i < kLines; ++i) text += "fifteen letters\n";
  for (uint64_t i = 0; i < kChunks; ++i) {
    StageLog("a", text);
    if (i % 64 != 63) continue;
    ASSERT_TRUE(ledger_->Flush().ok());
  }
  ASSERT_EQ(kChunks * text.size(), size_t{40} << 20);
  TailSearch search = ledger_->StartTail(Of("a"), std::numeric_limits<uint32_t>::max());
  while (!search.found) {
    const size_t before = disk.bytes_read_back;
    ASSERT_TRUE(ledger_->FindTail(search).ok());
    ASSERT_LE(disk.bytes_read_back - before, Ledger::kPageBytes + text.size());
  }
  EXPECT_EQ(search.after, 0u);
  EXPECT_EQ(disk.bytes_read_back, size_t{40} << 20) << "each chunk once";
  const TailSearch some = FindTail(Of("a"), 100 * kLines + 1000);
  EXPECT_EQ(some.after, kChunks - 101) << "it begins in the 101st of the newest chunks";
  EXPECT_EQ(some.skip_lines, kLines - 1000);
}

class AuditLedgerTest : public LedgerTest {
 protected:
  static Transaction Audited(const std::string& user) {
    AuditEntry entry;
    entry.set_user(user);
    return {.rows = {{"job/" + user, "row"}}, .events = {}, .audit = {entry}};
  }
  std::vector<std::string> Users(uint64_t before = 0, size_t count = 1000) {
    std::vector<std::string> users;
    const std::vector<AuditEntry> entries = ledger_->ReadAudit(before, count).value();
    for (const AuditEntry& entry : entries) users.push_back(entry.user());
    return users;
  }
  void Reopen(uint64_t kept) {
    ledger_.reset();
    ledger_ = *Ledger::Open(directory_, {}, kept);
  }
};

TEST_F(AuditLedgerTest, EntriesAreNumberedAndLast) {
  ASSERT_TRUE(ledger_->Commit({Audited("ann"), Audited("bob")}).ok());
  ASSERT_TRUE(ledger_->Commit({Audited("cat")}).ok());
  EXPECT_EQ(Users(), (std::vector<std::string>{"cat", "bob", "ann"}));
  EXPECT_EQ(Users(0, 2), (std::vector<std::string>{"cat", "bob"}));
  EXPECT_EQ(Users(2), (std::vector<std::string>{"ann"}));
  EXPECT_EQ(Users(1), std::vector<std::string>());
  const std::vector<store::KeyValue> rows = ledger_->Rows().value();
  EXPECT_EQ(rows.size(), 3u) << "the core does not see the audit log";
  Reopen(Ledger::kAuditEntriesKept);
  ASSERT_TRUE(ledger_->Commit({Audited("dan")}).ok());
  EXPECT_EQ(Users(), (std::vector<std::string>{"dan", "cat", "bob", "ann"}));
  EXPECT_EQ(ledger_->ReadAudit(0, 1).value()[0].number(), 4u);
}

// With its change: one transaction of the store has both, and one that fails has neither.
TEST_F(AuditLedgerTest, AnEntryIsStoredWithItsChange) {
  Transaction wrong = Audited("ann");
  wrong.rows.push_back({"", "a key may not be empty"});
  EXPECT_FALSE(ledger_->Commit({wrong}).ok());
  Reopen(Ledger::kAuditEntriesKept);
  EXPECT_EQ(Users(), std::vector<std::string>());
  const std::vector<store::KeyValue> rows = ledger_->Rows().value();
  for (const store::KeyValue& row : rows) EXPECT_NE(row.key, "job/ann");
}

TEST_F(AuditLedgerTest, TheOldestGoAndTheNumbersGoOn) {
  Reopen(50);
  for (int i = 0; i < 137; ++i) {
    ASSERT_TRUE(ledger_->Commit({Audited(absl::StrCat("u", i))}).ok());
    EXPECT_LE(Users().size(), 56u);
    EXPECT_GE(Users().size(), i < 50 ? i + 1u : 50u);
    if (i % 20 == 7) Reopen(50);
    EXPECT_EQ(Users()[0], absl::StrCat("u", i));
  }
  const std::vector<AuditEntry> entries = ledger_->ReadAudit(0, 1000).value();
  EXPECT_EQ(entries.front().number(), 137u);
  EXPECT_EQ(entries.back().number(), 137u - entries.size() + 1);
}

// Much output must not take the space that the state of jobs needs until the disk has room again.
TEST_F(LedgerTest, OnAFullDiskWhatIsLeftIsForTheState) {
  const TemporaryFolder folder;
  const SmallDisk disk(folder.path() + "/disk", 64);
  ASSERT_TRUE(disk.ok());
  directory_ = disk.path();
  Open();
  Commit("a", "job.running");
  disk.Fill();
  for (int i = 0; i < 8; ++i) Commit("a", std::string(100'000, 'x'));
  ASSERT_FALSE(std::filesystem::exists(disk.path() + "/state.db-reserve")) << "it is being used";
  for (int i = 0; i < 24; ++i) {
    StageLog("a", std::string(1 << 20, 'x'));
    ASSERT_TRUE(ledger_->Flush().ok());
  }
  EXPECT_EQ(ledger_->dropped(), 24u);
  for (int i = 0; i < 80; ++i) Commit("a", std::string(100'000, 'x'));
  Open();
  Commit("a", "job.failed");
  disk.Free();
  StagePoint("a", 7);
  ASSERT_TRUE(ledger_->Flush().ok());
  EXPECT_EQ(ReadAll({.job = JobId("a"), .events = false, .logs = false}), std::vector<std::string>{"7"});
  EXPECT_TRUE(std::filesystem::exists(disk.path() + "/state.db-reserve")) << "for the next time";
  ledger_.reset();
}

}  // namespace
}  // namespace muster::server
