// A state folder as the last release left it. coordinator/store/release_0_1_0 has both of its files as SQL, dumped
// after the coordinator of that release had run two jobs of three ranks and deleted one of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "common/clock.h"
#include "coordinator/server/ledger.h"
#include "coordinator/server/shell.h"
#include "coordinator/store/sqlite.h"
#include "testing/temporary_folder.h"

namespace muster::server {
namespace {

constexpr int kHistoryId = 0x4d535448;
constexpr char kKept[] = "kept-gnxj", kDeleted[] = "gone-qd4g";

std::string TextOf(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class UpgradeTest : public ::testing::Test {
 protected:
  UpgradeTest() {
    for (const std::string name : {"history", "state"}) {
      const std::string sql = TextOf("coordinator/store/release_0_1_0/" + name + ".sql");
      EXPECT_FALSE(sql.empty());
      const std::string path = directory_ + "/" + name + ".db";
      std::ofstream{path};
      const absl::Status written = store::RunOnCopy(path, sql.c_str());
      EXPECT_TRUE(written.ok()) << written;
    }
  }

  // What each table and index of a history.db was made by.
  static std::vector<std::string> TablesOf(const std::string& directory) {
    const auto database = store::Database::Open(directory + "/history.db", {kHistoryId, {"", ""}});
    EXPECT_TRUE(database.ok()) << database.status();
    auto select = (*database)->Prepare("SELECT name, sql FROM sqlite_schema ORDER BY name");
    std::vector<std::string> tables;
    while (select->Step().value()) tables.push_back(select->Blob(0) + ": " + select->Blob(1));
    return tables;
  }

  const TemporaryFolder folder_;
  const std::string directory_ = folder_.path();
};

TEST_F(UpgradeTest, AFolderOfTheLastReleaseGoesOn) {
  auto ledger = Ledger::Open(directory_, {});
  ASSERT_TRUE(ledger.ok()) << ledger.status();
  EXPECT_EQ((*ledger)->store_id(), "faf4e9426a814ef1") << "workers know it by this";
  EXPECT_EQ((*ledger)->term(), 2u) << "the release's was 1";

  std::vector<uint64_t> steps;
  std::string log_of_rank_1;
  const auto page = (*ledger)->Read({.events = true, .metrics = true, .logs = true}, 0);
  ASSERT_TRUE(page.ok()) << page.status();
  for (const StreamItem& item : page->items) {
    EXPECT_NE(item.job, JobId(kDeleted));
    if (const auto* point = std::get_if<MetricPoint>(&item.body)) steps.push_back(point->step());
  }
  EXPECT_EQ(steps, (std::vector<uint64_t>{1, 2, 3}));
  StreamFilter of_rank{.job = JobId(kKept), .events = false, .metrics = false};
  of_rank.rank = 1;
  const auto log = (*ledger)->Read(of_rank, 0);
  ASSERT_TRUE(log.ok()) << log.status();
  for (const StreamItem& item : log->items) log_of_rank_1 += std::get<LogChunk>(item.body).text();
  EXPECT_TRUE(absl::StrContains(log_of_rank_1, "rank 1 says hello\nbye\n")) << log_of_rank_1;
  EXPECT_FALSE(absl::StrContains(log_of_rank_1, "rank 0 says")) << log_of_rank_1;

  // It has no audit log yet.
  EXPECT_TRUE((*ledger)->ReadAudit(0, 10).value().empty());
  Transaction audited;
  audited.audit.emplace_back().set_user("ann");
  ASSERT_TRUE((*ledger)->Commit({audited}).ok());
  EXPECT_EQ((*ledger)->ReadAudit(0, 10).value().size(), 1u);
  EXPECT_EQ((*ledger)->ReadAudit(0, 10).value()[0].number(), 1u);

  MetricPoint point;
  point.set_step(4);
  (*ledger)->Stage(JobId(kKept), point);
  ASSERT_TRUE((*ledger)->Flush().ok());
  while ((*ledger)->Prune([] { return std::vector<JobId>(); }).value()) {
  }
  const RealClock clock;
  const auto shell = Shell::Start({}, &clock, nullptr, *std::move(ledger));
  ASSERT_TRUE(shell.ok()) << shell.status();
}

// A file that was migrated and one that was made today are the same to every later build.
TEST_F(UpgradeTest, AMigratedFileHasTheTablesOfANewOne) {
  ASSERT_TRUE(Ledger::Open(directory_, {}).ok());
  const TemporaryFolder made;
  ASSERT_TRUE(Ledger::Open(made.path(), {}).ok());
  const std::vector<std::string> tables = TablesOf(directory_);
  EXPECT_EQ(tables, TablesOf(made.path()));
  EXPECT_EQ(std::count_if(tables.begin(), tables.end(),
                          [](const std::string& table) { return absl::StrContains(table, "INDEX logs_of_one_rank"); }),
            1);
}

TEST_F(UpgradeTest, TheLastReleaseRefusesTheFileFromThenOnAndSaysWhy) {
  static constexpr store::Schema kOfRelease{kHistoryId, {"SELECT 1"}};
  ASSERT_TRUE(store::Database::Open(directory_ + "/history.db", kOfRelease).ok()) << "it is its own";
  ASSERT_TRUE(Ledger::Open(directory_, {}).ok());
  const absl::Status refused = store::Database::Open(directory_ + "/history.db", kOfRelease).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(refused.message(),
                                "history.db has schema 2, written by a newer muster; this build knows schemas up to 1; "
                                "start the newer build, or another folder"))
      << refused;
}

}  // namespace
}  // namespace muster::server
