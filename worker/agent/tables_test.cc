// Partition tables: fetched once per node, checked, kept as long as they are used.
#include <gtest/gtest.h>

#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/sha256.h"
#include "testing/wait.h"
#include "worker/agent/agent_fixture_test.h"

namespace muster::agent {
namespace {

constexpr uint32_t kShards = 1'200'000;

PartitionTable LargeTable() {
  PartitionTable table;
  table.set_shards(kShards);
  UnitPartition& unit = *table.add_units();
  unit.set_unit("h.0");
  for (uint64_t shard = 0; shard <= kShards; ++shard) unit.add_boundaries(16 * shard);
  return table;
}

class TablesTest : public AgentTest {
 protected:
  // The rank runs on a slot of its own, by that table.
  DesiredRank RunBy(uint32_t rank, const std::string& sha256) {
    DesiredRank desired = Run(Id("table", rank), "table");
    desired.mutable_run()->set_slots(0, rank);
    desired.mutable_run()->set_table_sha256(sha256);
    return desired;
  }
  bool Runs(uint32_t rank) { return coordinator_.StateOf(Id("table", rank)) == RANK_STATE_RUNNING; }
  std::vector<std::string> Kept() {
    std::vector<std::string> names;
    for (const auto& file : std::filesystem::directory_iterator(folder_.path() + "/state/tables")) {
      names.push_back(file.path().filename());
    }
    return names;
  }

  const std::string bytes_ = LargeTable().SerializeAsString();
  const std::string sha256_ = Sha256Hex(bytes_);
};

TEST_F(TablesTest, IsFetchedOncePerNodeAndKeptWhileItIsWanted) {
  ASSERT_GT(bytes_.size(), size_t{4} << 20);
  coordinator_.SetTable(grpc::Status::OK, bytes_);
  coordinator_.Serve();
  StartWorker({"--slots", "3"});
  Want({RunBy(0, sha256_), RunBy(1, sha256_)});
  ASSERT_TRUE(Eventually([&] { return Runs(0) && Runs(1); }));
  for (const uint32_t rank : {0, 1}) {
    EXPECT_TRUE(Eventually([&] {
      return absl::StrContains(coordinator_.Of(Id("table", rank)).log,
                               absl::StrCat("table of ", kShards, " shards, ", bytes_.size(), " bytes\n"));
    })) << coordinator_.Of(Id("table", rank)).log;
  }
  EXPECT_EQ(coordinator_.table_fetches(), 1);
  EXPECT_EQ(Kept(), std::vector<std::string>{sha256_});

  // The next daemon has it, for those that it adopts and for others; and the damaged file of another one is fetched.
  KillWorker();
  coordinator_.SetTable({grpc::StatusCode::UNAVAILABLE, "gone"}, "");
  StartWorker({"--slots", "3"});
  Want({RunBy(0, sha256_), RunBy(1, sha256_), RunBy(2, sha256_)});
  EXPECT_TRUE(Eventually([&] { return Runs(2); }));
  EXPECT_EQ(coordinator_.table_fetches(), 0);
  Want({});
  EXPECT_TRUE(Eventually([&] { return Kept().empty(); }));
}

TEST_F(TablesTest, RankWaitsUntilTheRightOneIsThere) {
  coordinator_.SetTable({grpc::StatusCode::UNAVAILABLE, "gone"}, "");
  coordinator_.Serve();
  StartWorker();
  Want({RunBy(0, sha256_)});
  ASSERT_TRUE(Eventually([&] { return coordinator_.table_fetches() >= 2; })) << "tried again";
  PartitionTable other;
  other.set_shards(1);
  coordinator_.SetTable(grpc::Status::OK, other.SerializeAsString());
  ASSERT_TRUE(Eventually([&] { return coordinator_.table_fetches() >= 2; })) << "another hash";
  coordinator_.SetTable(grpc::Status::OK, std::string(size_t{20} << 20, 'x'));
  ASSERT_TRUE(Eventually([&] { return coordinator_.table_fetches() >= 2; })) << "endless";
  EXPECT_FALSE(Dir(Id("table")).ReadProcesses().ok()) << "not started";
  coordinator_.SetTable(grpc::Status::OK, bytes_);
  EXPECT_TRUE(Eventually([&] { return Runs(0); }));

  // What is damaged on disk is fetched again.
  KillWorker();
  std::filesystem::resize_file(folder_.path() + "/state/tables/" + sha256_, 1000);
  coordinator_.SetTable(grpc::Status::OK, bytes_);
  StartWorker();
  EXPECT_TRUE(Eventually([&] { return coordinator_.table_fetches() == 1; }));
  EXPECT_TRUE(
      Eventually([&] { return std::filesystem::file_size(folder_.path() + "/state/tables/" + sha256_) > 1000; }));
}

}  // namespace
}  // namespace muster::agent
