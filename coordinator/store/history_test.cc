#include "coordinator/store/history.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "absl/strings/str_cat.h"
#include "coordinator/store/sqlite.h"
#include "testing/temporary_folder.h"

namespace muster::store {
namespace {

constexpr size_t kAll = 1'000'000;
constexpr size_t kBytes = 1 << 30;

class HistoryTest : public ::testing::Test {
 protected:
  void Open(const HistoryLimits& limits = {}) {
    store_.reset();
    auto store = OpenSqliteHistory(directory_, limits);
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }

  HistoryItem Point(const std::string& job, uint64_t step, double loss) {
    MetricPoint point;
    point.set_step(step);
    point.set_loss(loss);
    return {++sequence_, JobId(job), point};
  }
  HistoryItem Log(const std::string& job, uint32_t rank, const std::string& text) {
    LogChunk chunk;
    chunk.set_generation(1);
    chunk.set_rank(rank);
    chunk.set_offset(offset_);
    chunk.set_text(text);
    offset_ += text.size();
    return {++sequence_, JobId(job), chunk};
  }
  void Append(const std::vector<HistoryItem>& items) {
    const absl::Status status = store_->Append(items, {});
    ASSERT_TRUE(status.ok()) << status;
  }
  std::vector<HistoryItem> Read(const HistoryFilter& filter, uint64_t after = 0, size_t limit = kAll) {
    const auto page = store_->Read(filter, after, limit, kBytes);
    EXPECT_TRUE(page.ok()) << page.status();
    return page->items;
  }
  std::vector<uint64_t> Sequences(const HistoryFilter& filter, uint64_t after = 0, size_t limit = kAll) {
    std::vector<uint64_t> result;
    for (const HistoryItem& item : Read(filter, after, limit)) result.push_back(item.sequence);
    return result;
  }

  const TemporaryFolder folder_;
  const std::string directory_ = folder_.path();
  std::unique_ptr<HistoryStore> store_;
  uint64_t sequence_ = 0;
  uint64_t offset_ = 0;
};

std::function<std::vector<JobId>()> Ended(std::vector<std::string> ids) {
  return [ids = std::move(ids)] {
    std::vector<JobId> jobs;
    for (const std::string& id : ids) jobs.emplace_back(id);
    return jobs;
  };
}

HistoryFilter Of(const std::string& job) { return {JobId(job), true, true, std::nullopt}; }

TEST_F(HistoryTest, ReadsByJobKindAndRankAcrossOpenings) {
  Open();
  Append({Point("a", 1, 5), Log("a", 0, "x\n"), Point("b", 1, 6), Log("a", 1, "y\n"), Point("a", 2, 4)});
  Open();
  EXPECT_EQ(Sequences({}), (std::vector<uint64_t>{1, 2, 3, 4, 5}));
  EXPECT_EQ(Sequences(Of("a")), (std::vector<uint64_t>{1, 2, 4, 5}));
  EXPECT_EQ(Sequences({JobId("a"), true, false, std::nullopt}), (std::vector<uint64_t>{1, 5}));
  EXPECT_EQ(Sequences({JobId("a"), false, true, std::nullopt}), (std::vector<uint64_t>{2, 4}));
  EXPECT_EQ(Sequences({JobId("a"), false, true, 1}), (std::vector<uint64_t>{4}));
  EXPECT_EQ(Sequences(Of("a"), 2), (std::vector<uint64_t>{4, 5}));
  EXPECT_TRUE(Sequences(Of("no-such-job")).empty());
  EXPECT_EQ(store_->LastSequence(), 5u);
  const auto items = Read({JobId("a"), false, true, 1});
  EXPECT_EQ(std::get<LogChunk>(items[0].body).text(), "y\n");
}

TEST_F(HistoryTest, PagesCoverEverythingOnceForwardAndBack) {
  Open();
  std::vector<HistoryItem> items;
  for (int i = 0; i < 200; ++i) items.push_back(i % 3 == 0 ? Log("a", 0, std::string(500, 'l')) : Point("a", i, 1));
  Append(items);
  for (const size_t bytes : {size_t{700}, size_t{5000}, kBytes}) {
    std::vector<uint64_t> seen;
    uint64_t after = 0;
    while (true) {
      const auto page = store_->Read(Of("a"), after, 7, bytes);
      ASSERT_TRUE(page.ok());
      for (const auto& item : page->items) seen.push_back(item.sequence);
      if (!page->more) break;
      ASSERT_FALSE(page->items.empty());
      after = page->items.back().sequence;
    }
    ASSERT_EQ(seen.size(), 200u) << bytes;
    for (size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], i + 1);
  }
  for (const size_t bytes : {size_t{700}, size_t{5000}, kBytes}) {
    std::vector<uint64_t> back;
    uint64_t before = 1000;
    while (true) {
      const auto page = store_->ReadBack(Of("a"), before, 7, bytes);
      ASSERT_TRUE(page.ok());
      for (const auto& item : page->items) back.push_back(item.sequence);
      if (!page->more) break;
      const auto logs = std::count_if(page->items.begin(), page->items.end(), [](const HistoryItem& item) {
        return std::holds_alternative<LogChunk>(item.body);
      });
      EXPECT_LE(static_cast<size_t>(logs), bytes / 500 + 1);
      before = page->items.back().sequence;
    }
    ASSERT_EQ(back.size(), 200u);
    for (size_t i = 0; i < back.size(); ++i) EXPECT_EQ(back[i], 200 - i);
  }
}

TEST_F(HistoryTest, AcknowledgedComesWithTheItemsAndNeverGoesBack) {
  Open();
  const RankId rank{JobId("a"), 2, 1};
  EXPECT_EQ(store_->GetAcknowledged(rank)->record_sequence, 0u);
  ASSERT_TRUE(store_->Append({Point("a", 1, 5)}, {{rank, {7, 100}}}).ok());
  ASSERT_TRUE(store_->Append({}, {{rank, {6, 120}}}).ok());
  Open();
  EXPECT_EQ(store_->GetAcknowledged(rank)->record_sequence, 7u);
  EXPECT_EQ(store_->GetAcknowledged(rank)->log_offset, 120u);
  EXPECT_EQ(store_->GetAcknowledged({JobId("a"), 1, 1})->record_sequence, 0u);
}

TEST_F(HistoryTest, SequencesMustRise) {
  Open();
  Append({Point("a", 1, 5)});
  sequence_ = 0;
  EXPECT_EQ(store_->Append({Point("a", 2, 5)}, {}).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(HistoryTest, LastMetricsKeepsSparseSeries) {
  Open();
  HistoryItem validated = Point("a", 1, 5);
  std::get<MetricPoint>(validated.body).set_validation_loss(5.5);
  std::get<MetricPoint>(validated.body).mutable_time()->set_nanos(77);
  HistoryItem again = Point("a", 2, 5), newest = Point("a", 3, 4);
  std::get<MetricPoint>(newest.body).mutable_time()->set_seconds(3);
  const auto add = [](double value, HistoryItem& item) {
    NamedMetric& top1 = *std::get<MetricPoint>(item.body).add_validation();
    top1.set_name("top1"), top1.set_value(value);
  };
  add(0.5, validated);
  add(0.75, again);
  Append({validated, again, newest});
  Open();
  const MetricPoint last = store_->LastMetrics(JobId("a"));
  EXPECT_EQ(last.step(), 3u);
  EXPECT_EQ(last.loss(), 4);
  EXPECT_EQ(last.validation_loss(), 5.5);
  ASSERT_EQ(last.validation_size(), 1) << "the newest one only";
  EXPECT_EQ(last.validation(0).value(), 0.75);
  EXPECT_EQ(last.time().seconds(), 3);
  EXPECT_EQ(last.time().nanos(), 0);
  EXPECT_FALSE(store_->LastMetrics(JobId("b")).has_loss());
}

NamedMetric Named(const std::string& name, double value) {
  NamedMetric metric;
  metric.set_name(name);
  metric.set_value(value);
  return metric;
}

std::map<std::string, double> ReportedBy(const MetricPoint& point) {
  std::map<std::string, double> values;
  for (const NamedMetric& metric : point.reported()) {
    EXPECT_TRUE(values.emplace(metric.name(), metric.value()).second) << metric.name() << " twice";
  }
  return values;
}

TEST_F(HistoryTest, LastMetricsHoldTheNewestValueOfEachReportedName) {
  Open();
  constexpr int kPoints = 300;
  std::vector<HistoryItem> items;
  for (int i = 1; i <= kPoints; ++i) {
    items.push_back(Point("a", i, 1));
    MetricPoint& point = std::get<MetricPoint>(items.back().body);
    *point.add_reported() = Named("reward", i);
    if (i % 100 == 1) *point.add_reported() = Named("accuracy", i);
    HistoryItem many = Point("many", i, 1);
    *std::get<MetricPoint>(many.body).add_reported() = Named(absl::StrCat("name-", i), i);
    if (i % 10 == 0) *std::get<MetricPoint>(many.body).add_reported() = Named("steady", i);
    items.push_back(many);
  }
  Append(items);
  for (int time = 0; time < 2; ++time) {
    EXPECT_EQ(ReportedBy(store_->LastMetrics(JobId("a"))),
              (std::map<std::string, double>{{"reward", 300}, {"accuracy", 201}}));
    const auto many = ReportedBy(store_->LastMetrics(JobId("many")));
    EXPECT_EQ(many.size(), 64u) << "the names reported last";
    EXPECT_EQ(many.count("steady") + many.count("name-300") + many.count("name-238"), 3u);
    EXPECT_EQ(many.count("name-1"), 0u);
    Open();
  }
}

// They had every value that was ever reported, in the order of their points.
TEST_F(HistoryTest, LastMetricsOfEarlierBuildsShrink) {
  Open();
  Append({Point("a", 2, 1), Point("b", 1, 1)});
  store_.reset();
  const auto stored_bytes = [&](const std::string& replacement) {
    auto database = Database::Open(directory_ + "/history.db", {0x4d535448, {"", ""}});
    EXPECT_TRUE(database.ok()) << database.status();
    if (!replacement.empty()) {
      auto update = (*database)->Prepare("UPDATE jobs SET last = ? WHERE id = CAST('a' AS BLOB)");
      update->Bind(replacement);
      EXPECT_TRUE(update->Run().ok());
    }
    return (*database)->Integer("SELECT length(last) FROM jobs WHERE id = CAST('a' AS BLOB)").value();
  };
  MetricPoint grown;
  grown.set_step(2);
  for (int i = 0; i < 10'000; ++i) {
    *grown.add_reported() = Named("reward", i);
    if (i < 5) *grown.add_reported() = Named("accuracy", i);
  }
  ASSERT_GT(stored_bytes(grown.SerializeAsString()), 100'000);
  Open();
  const MetricPoint last = store_->LastMetrics(JobId("a"));
  EXPECT_EQ(last.step(), 2u);
  EXPECT_EQ(ReportedBy(last), (std::map<std::string, double>{{"reward", 9999}, {"accuracy", 4}}));
  EXPECT_EQ(store_->LastMetrics(JobId("b")).step(), 1u);
  store_.reset();
  EXPECT_LT(stored_bytes(""), 100) << "on disk, too, though the job may have ended";
}

TEST_F(HistoryTest, ThinsBeyondTheLimitKeepsExtremesAndAccountsForEveryPoint) {
  HistoryLimits limits;
  limits.points_per_job = 200;
  Open(limits);
  constexpr uint64_t kPoints = 2000;
  for (uint64_t step = 1; step <= kPoints; step += 20) {
    std::vector<HistoryItem> batch;
    for (uint64_t i = step; i < step + 20; ++i) batch.push_back(Point("a", i, i == 234 ? 99 : i == 1321 ? -99 : 1));
    Append(batch);
  }
  uint64_t dropped = 0, last_sequence = 0;
  bool high = false, low = false;
  const auto items = Read(Of("a"));
  for (const HistoryItem& item : items) {
    dropped += item.dropped;
    if (item.dropped > 0) {
      EXPECT_GT(item.dropped_through, last_sequence);
      EXPECT_LT(item.dropped_through, item.sequence);
    }
    EXPECT_EQ(item.sequence - last_sequence - 1, item.dropped);
    last_sequence = item.sequence;
    high |= std::get<MetricPoint>(item.body).loss() == 99;
    low |= std::get<MetricPoint>(item.body).loss() == -99;
  }
  EXPECT_LE(items.size(), limits.points_per_job + 20);
  EXPECT_GE(items.size(), limits.points_per_job / 2);
  EXPECT_EQ(items.size() + dropped, kPoints);
  EXPECT_TRUE(high && low);
  EXPECT_EQ(items.back().sequence, kPoints);
  // A reader that was already past it sees no gap.
  for (const HistoryItem& item : Read(Of("a"), items[5].sequence - 1, 1)) EXPECT_EQ(item.dropped, 0u);
}

TEST_F(HistoryTest, LogKeepsTheNewestPerRank) {
  HistoryLimits limits;
  limits.log_bytes_per_rank = 1000;
  Open(limits);
  std::vector<HistoryItem> chunks;
  for (int i = 0; i < 50; ++i) {
    chunks.push_back(Log("a", 0, std::string(100, 'x')));
    chunks.push_back(Log("a", 1, "y"));
  }
  Append(chunks);
  const auto items = Read({JobId("a"), false, true, 0});
  ASSERT_EQ(items.size(), 10u);
  EXPECT_EQ(items[0].dropped, 40u);
  EXPECT_EQ(items[1].dropped, 0u);
  EXPECT_EQ(items.back().sequence, 99u);
  EXPECT_EQ(Read({JobId("a"), false, true, 1}).size(), 50u);
  Append({Log("a", 0, std::string(5000, 'z'))});  // larger than the limit: stays alone
  EXPECT_EQ(Read({JobId("a"), false, true, 0}).size(), 1u);
}

TEST_F(HistoryTest, ForgottenJobVanishesAtOnceAndFromTheFileBitByBit) {
  Open();
  std::vector<HistoryItem> items;
  for (int i = 0; i < 2500; ++i) items.push_back(Point(i % 2 == 0 ? "a" : "b", 1, 1));
  ASSERT_TRUE(store_->Append(items, {{{JobId("a"), 1, 0}, {9, 9}}}).ok());
  ASSERT_TRUE(store_->Forget(JobId("a")).ok());
  EXPECT_TRUE(Read(Of("a")).empty());
  EXPECT_EQ(Read({}).size(), 1250u);
  EXPECT_EQ(store_->Jobs(), std::vector<JobId>{JobId("b")});
  Open();  // also when it ends in between
  EXPECT_EQ(Read({}).size(), 1250u);
  int portions = 0;
  while (store_->Prune(Ended({})).value()) ++portions;
  EXPECT_GE(portions, 2);
  EXPECT_EQ(Read({}).size(), 1250u);
  Append({Point("a", 1, 1)});  // an id may be reused
  EXPECT_EQ(Read(Of("a")).size(), 1u);
  EXPECT_EQ(store_->GetAcknowledged({JobId("a"), 1, 0})->record_sequence, 0u);
  EXPECT_EQ(store_->LastSequence(), 2501u);
}

TEST_F(HistoryTest, TotalCapPrunesTheOldestEndedJobFirstAndLeavesAMark) {
  HistoryLimits limits;
  limits.total_bytes = 1 << 20;
  Open(limits);
  for (const char* job : {"old", "new", "running"}) {
    std::vector<HistoryItem> items;
    for (int i = 0; i < 40; ++i) items.push_back(Log(job, 0, std::string(10'000, 'x')));
    for (int i = 0; i < 10; ++i) items.push_back(Point(job, i, 1));
    Append(items);
  }
  while (store_->Prune(Ended({"old", "new"})).value()) {
  }
  const auto old = Read(Of("old"));
  ASSERT_EQ(old.size(), 1u);
  EXPECT_EQ(std::get<Pruned>(old[0].body).metrics, 10u);
  EXPECT_EQ(std::get<Pruned>(old[0].body).log_chunks, 40u);
  EXPECT_EQ(old[0].sequence, 50u);
  EXPECT_TRUE(Sequences(Of("old"), 50).empty());
  EXPECT_EQ(Read(Of("new")).size(), 50u);
  EXPECT_EQ(Read(Of("running")).size(), 50u);
  EXPECT_EQ(store_->LastMetrics(JobId("old")).step(), 9u);
  // No history of ended jobs is left: the oldest log is removed, whichever job it belongs to.
  std::vector<HistoryItem> more;
  for (int i = 0; i < 40; ++i) more.push_back(Log("running", 1, std::string(10'000, 'x')));
  Append(more);
  while (store_->Prune(Ended({"old"})).value()) {
  }
  EXPECT_LT(Read(Of("new")).size(), 50u);
}

TEST_F(HistoryTest, NaNLossIsStoredAsItIs) {
  Open();
  Append({Point("a", 1, std::nan(""))});
  EXPECT_TRUE(std::isnan(std::get<MetricPoint>(Read(Of("a"))[0].body).loss()));
}

}  // namespace
}  // namespace muster::store
