// The coordinator's page for Prometheus and its TensorBoard files, through a real server, across restarts.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/metrics/testing.h"
#include "coordinator/daemon/server.h"
#include "coordinator/daemon/testing.h"
#include "proto/tensorboard.pb.h"
#include "testing/fake_worker.h"
#include "testing/temporary_folder.h"
#include "testing/wait.h"

namespace muster::server {
namespace {

namespace fs = std::filesystem;

class InstrumentsTest : public ::testing::Test {
 protected:
  InstrumentsTest() { Start(); }

  void Start(bool private_jobs = false) {
    ServerOptions options;
    options.private_jobs = private_jobs;
    options.state_dir = folder_.path() + "/state";
    options.listen = {address_};
    options.tensorboard_dir = tensorboard_;
    options.metrics_address = "127.0.0.1:0";
    auto server = Server::Start(options, &clock_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    client_ = std::make_unique<Client>(address_);
  }
  std::string Series(const std::string& series) const {
    return SeriesValue(GetPage(server_->metrics_address()), series);
  }
  std::string PathOf(const std::string& job, int generation) const {
    return absl::StrCat(tensorboard_, "/", job, "/events.out.tfevents.000000000", generation, ".muster");
  }
  // The steps in a file; a session start counts as -1.
  static std::vector<int64_t> Steps(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::stringstream stream;
    stream << file.rdbuf();
    const std::string bytes = stream.str();
    std::vector<int64_t> steps;
    for (size_t at = 0; at + 16 <= bytes.size();) {
      uint64_t length = 0;
      for (int i = 8; i-- > 0;) length = length << 8 | static_cast<unsigned char>(bytes[at + static_cast<size_t>(i)]);
      TensorBoardEvent event;
      if (at + 16 + length > bytes.size() || !event.ParseFromString(bytes.substr(at + 12, length))) break;
      if (event.has_session_log()) steps.push_back(-1);
      if (event.has_summary()) steps.push_back(event.step());
      at += 16 + length;
    }
    return steps;
  }
  static std::vector<int64_t> AllSteps() {
    std::vector<int64_t> all = {-1};
    for (uint64_t step = 1; step <= kSmallSteps; ++step) all.push_back(static_cast<int64_t>(step));
    return all;
  }

  TemporaryFolder folder_;
  const std::string address_ = "unix:" + folder_.path() + "/c.sock";
  const std::string tensorboard_ = folder_.path() + "/tb";
  RealClock clock_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<Client> client_;
};

TEST_F(InstrumentsTest, CountsWhatHappens) {
  EXPECT_EQ(Series("muster_jobs{state=\"queued\"}"), "0");
  const std::string job = client_->MustSubmit("counted");
  EXPECT_EQ(Series("muster_jobs{state=\"queued\"}"), "1");
  EXPECT_EQ(Series("muster_rpcs_total{method=\"/muster.v1.Jobs/Submit\",code=\"OK\"}"), "1");
  GetJobReply reply;
  EXPECT_FALSE(client_->Get("nosuch", &reply).ok());
  EXPECT_EQ(Series("muster_rpcs_total{method=\"/muster.v1.Jobs/Get\",code=\"NOT_FOUND\"}"), "1");

  FakeWorker worker(address_, {.node = "node-a"});
  RankKey key;
  ASSERT_TRUE(worker.WaitForRun(&key));
  EXPECT_EQ(Series("muster_generations_started_total"), "1");
  EXPECT_EQ(Series("muster_queue_wait_seconds_count"), "1");
  worker.SendObserved(key, RANK_STATE_RUNNING);
  worker.SendRecords(key, {RunningRecord(1), MetricRecord(2, 1, 2.5)});
  const std::string loss = absl::StrCat("muster_job_loss{job_id=\"", job, "\"}");
  EXPECT_TRUE(Eventually([&] { return Series(loss) == "2.5"; })) << GetPage(server_->metrics_address());
  EXPECT_EQ(Series("muster_slots{state=\"used\"}"), "1");
  worker.SendRecords(key, {FinishedRecord(3, kSmallSteps)});
  worker.SendObserved(key, RANK_STATE_EXITED, RankExit::COMPLETED);
  EXPECT_TRUE(Eventually([&] { return Series("muster_jobs{state=\"completed\"}") == "1"; }));
  EXPECT_EQ(Series(loss), "");
  EXPECT_EQ(Series("muster_generations_ended_total{reason=\"completed\"}"), "1");
  EXPECT_NE(Series("muster_store_commit_seconds_count"), "0");
  EXPECT_NE(Series("muster_loop_turn_seconds_count"), "0");
  // TensorBoard's own reader.
  EXPECT_EQ(Series("muster_watch_streams"), "1");
}

// The page asks no one who he is.
TEST_F(InstrumentsTest, PrivateJobsAreNotOnThePage) {
  server_.reset();
  Start(/*private_jobs=*/true);
  const std::string job = client_->MustSubmit("hidden");
  FakeWorker worker(address_, {.node = "node-a"});
  RankKey key;
  ASSERT_TRUE(worker.WaitForRun(&key));
  worker.SendObserved(key, RANK_STATE_RUNNING);
  worker.SendRecords(key, {RunningRecord(1), MetricRecord(2, 1, 2.5)});
  ASSERT_TRUE(Eventually([&] { return Series("muster_jobs{state=\"running\"}") == "1"; }));
  GetJobReply reply;
  ASSERT_TRUE(Eventually([&] { return client_->Get(job, &reply).ok() && reply.last_metrics().loss() == 2.5; }));
  EXPECT_FALSE(absl::StrContains(GetPage(server_->metrics_address()), "hidden"));
}

TEST_F(InstrumentsTest, TensorBoardHasEveryStepOnceAcrossRestarts) {
  const std::string first = client_->MustSubmit("first");
  {
    FakeWorker worker(address_, {.node = "node-a"});
    RankKey key;
    ASSERT_TRUE(worker.WaitForRun(&key));
    worker.RunToTheEnd(key, kSmallSteps);
    EXPECT_TRUE(Eventually([&] { return client_->StateOf(first) == JOB_STATE_COMPLETED; }));
  }
  EXPECT_TRUE(Eventually([&] { return Steps(PathOf(first, 1)) == AllSteps(); }));
  GetJobReply reply;
  ASSERT_TRUE(client_->Get(first, &reply).ok());
  EXPECT_EQ(reply.tensorboard_directory(), absl::StrCat(tensorboard_, "/", first));

  // Restarts with a complete, a missing and an invalid `progress`: the folder ends up the same.
  for (const char* state : {"kept", "lost", "ahead"}) {
    server_.reset();
    if (absl::string_view(state) == "lost") fs::remove(tensorboard_ + "/progress");
    if (absl::string_view(state) == "ahead") fs::resize_file(PathOf(first, 1), fs::file_size(PathOf(first, 1)) / 2);
    if (absl::string_view(state) == "ahead") fs::remove(tensorboard_ + "/progress");
    Start();
    EXPECT_TRUE(Eventually([&] { return Steps(PathOf(first, 1)) == AllSteps(); })) << state;
  }
  DeleteRequest request;
  request.set_job(first);
  DeleteReply deleted;
  EXPECT_TRUE(client_->jobs().Delete(client_->Context().get(), request, &deleted).ok());
  EXPECT_TRUE(Eventually([&] { return !fs::exists(tensorboard_ + "/" + first); }));
}

TEST_F(InstrumentsTest, AFolderOfAnotherStoreIsWrittenAnew) {
  server_.reset();
  TensorBoardProgress progress;
  progress.set_cursor("c1-00000000ffffffff-00000000");
  std::ofstream(tensorboard_ + "/progress") << progress.SerializeAsString();
  Start();
  const std::string job = client_->MustSubmit("anew");
  FakeWorker worker(address_, {.node = "node-a"});
  RankKey key;
  ASSERT_TRUE(worker.WaitForRun(&key));
  worker.RunToTheEnd(key, kSmallSteps);
  EXPECT_TRUE(Eventually([&] { return Steps(PathOf(job, 1)) == AllSteps(); }));
}

TEST_F(InstrumentsTest, AFolderThatCannotBeWrittenDelaysNoCall) {
  server_.reset();
  fs::remove_all(tensorboard_);
  fs::create_directories(tensorboard_);
  Start();
  const std::string job = client_->MustSubmit("blocked");
  // A file blocks the path of the job's folder.
  std::ofstream(tensorboard_ + "/" + job) << "in the way";
  FakeWorker worker(address_, {.node = "node-a"});
  RankKey key;
  ASSERT_TRUE(worker.WaitForRun(&key));
  worker.RunToTheEnd(key, kSmallSteps);
  EXPECT_TRUE(Eventually([&] { return client_->StateOf(job) == JOB_STATE_COMPLETED; }));
  server_.reset();  // stops at once; the next start writes everything
  fs::remove(tensorboard_ + "/" + job);
  Start();
  EXPECT_TRUE(Eventually([&] { return Steps(PathOf(job, 1)) == AllSteps(); }));
}

}  // namespace
}  // namespace muster::server
