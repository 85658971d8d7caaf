#include "coordinator/daemon/server.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/rpc/rpc.h"
#include "common/version.h"
#include "coordinator/daemon/server_fixture_test.h"
#include "testing/fake_worker.h"
#include "testing/small_disk.h"
#include "testing/wait.h"

namespace muster::server {
namespace {

class ServerTest : public ServerFixture {
 protected:
  std::unique_ptr<FakeWorker> Worker(const std::string& incarnation) {
    return std::make_unique<FakeWorker>(address(), FakeWorker::Options{.incarnation = incarnation});
  }
  // The current plan of all jobs, or of one.
  std::vector<WatchItem> Stored(const std::string& job, const std::string& cursor = "") {
    WatchRequest request;
    request.set_job(job);
    request.set_cursor(cursor);
    std::vector<WatchItem> items;
    const grpc::Status status = client_->Watch(request, &items);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return items;
  }
};

// "event job.running", "step 7", "log hello", "snapshot"
std::string Describe(const WatchItem& item) {
  if (item.has_event()) return "event " + item.event().kind();
  if (item.has_metrics()) return absl::StrCat("step ", item.metrics().step());
  if (item.has_log()) return "log " + item.log().text();
  if (item.has_gap()) return absl::StrCat("gap ", item.gap().what(), " ", item.gap().items());
  return item.has_snapshot() ? "snapshot" : "nothing";
}

std::vector<std::string> Describe(const std::vector<WatchItem>& items) {
  std::vector<std::string> result;
  for (const WatchItem& item : items) result.push_back(Describe(item));
  return result;
}

TEST_F(ServerTest, RunsAJobToItsEndAndStreamsItToFollowers) {
  Start();
  const std::string job = client_->MustSubmit("first");
  std::vector<WatchItem> followed;
  grpc::Status followed_status;
  std::thread follower([&] {
    WatchRequest request;
    request.set_job("first");  // a prefix
    request.set_follow(true);
    followed_status = client_->Watch(request, &followed);
  });
  auto worker = Worker("i1");
  RankKey key;
  ASSERT_TRUE(worker->WaitForRun(&key));
  EXPECT_EQ(key.job(), job);
  worker->SendObserved(key, RANK_STATE_STARTING);
  worker->SendRecords(key, {RunningRecord(1), MetricRecord(2, 1, 5.0)});
  worker->SendObserved(key, RANK_STATE_RUNNING);
  EXPECT_TRUE(worker->WaitForRecordsAck(2));
  EXPECT_TRUE(Eventually([&] { return client_->StateOf(job) == JOB_STATE_RUNNING; }));
  worker->SendRecords(key, {MetricRecord(2, 1, 5.0), MetricRecord(3, 2, 4.0), FinishedRecord(4, kSmallSteps)});
  EXPECT_TRUE(worker->WaitForRecordsAck(4));
  worker->SendObserved(key, RANK_STATE_EXITED, RankExit::COMPLETED);
  worker->SendLog(key, 0, "late\n");  // after the end
  EXPECT_TRUE(worker->WaitForLogsAck(5));
  EXPECT_TRUE(Eventually([&] { return client_->StateOf(job) == JOB_STATE_COMPLETED; }));
  follower.join();
  EXPECT_TRUE(followed_status.ok()) << followed_status.error_message();

  const std::vector<std::string> items = Describe(followed);
  ASSERT_FALSE(items.empty());
  EXPECT_EQ(items[0], "snapshot");
  EXPECT_TRUE(followed[0].cursor().empty());
  const auto at = [&](const std::string& what) { return std::find(items.begin(), items.end(), what) - items.begin(); };
  EXPECT_LT(at("event job.running"), at("step 2"));
  EXPECT_LT(at("step 1"), at("step 2"));
  EXPECT_LT(at("step 2"), at("event job.completed"));
  EXPECT_LT(static_cast<size_t>(at("log late\n")), items.size());
  EXPECT_EQ(std::count(items.begin(), items.end(), "step 1"), 1);  // sent twice, stored once
  // Who followed saw the job end; who comes later gets a snapshot that has all of it.
  const WatchItem& ended = followed[static_cast<size_t>(at("event job.completed"))];
  EXPECT_FALSE(ended.in_snapshot()) << ended.ShortDebugString();
  for (const WatchItem& item : Stored(job)) {
    EXPECT_EQ(item.in_snapshot(), item.has_event()) << item.ShortDebugString();
  }

  GetJobReply reply;
  ASSERT_TRUE(client_->Get(job, &reply).ok());
  EXPECT_EQ(reply.last_metrics().step(), 2u);
  EXPECT_EQ(reply.last_metrics().loss(), 4.0);
  ASSERT_EQ(reply.generations_size(), 1);
  ListJobsReply list;
  ListJobsRequest all;
  all.set_all(true);
  ASSERT_TRUE(client_->jobs().List(client_->Context().get(), all, &list).ok());
  ASSERT_EQ(list.jobs_size(), 1);
  EXPECT_EQ(list.jobs(0).last_metrics().loss(), 4.0);
}

TEST_F(ServerTest, CursorGoesOnAfterARestartWithoutLossOrRepetition) {
  Start();
  const std::string job = client_->MustSubmit("long");
  {
    auto worker = Worker("i1");
    RankKey key;
    ASSERT_TRUE(worker->WaitForRun(&key));
    worker->SendRecords(key, {RunningRecord(1)});
    for (uint64_t step = 1; step <= 300; ++step) worker->SendRecords(key, {MetricRecord(step + 1, step, 1.0)});
    ASSERT_TRUE(worker->WaitForRecordsAck(301));
  }
  WatchRequest request;
  request.set_job(job);
  std::vector<WatchItem> first;
  ASSERT_TRUE(client_->Watch(request, &first, [](const auto& items) { return items.size() == 120; }).ok());
  server_->Shutdown();
  server_.reset();
  Start();
  const std::vector<WatchItem> rest = Stored(job, first.back().cursor());
  const std::vector<WatchItem> whole = Stored(job);
  ASSERT_GT(whole.size(), 300u);
  // The whole stream is the first part and the rest, each after a snapshot.
  std::vector<std::string> joined;
  for (const WatchItem& item : first) joined.push_back(item.cursor());
  for (size_t i = 1; i < rest.size(); ++i) joined.push_back(rest[i].cursor());
  std::vector<std::string> expected;
  for (const WatchItem& item : whole) expected.push_back(item.cursor());
  EXPECT_EQ(joined, expected);
  EXPECT_EQ(std::set<std::string>(joined.begin(), joined.end()).size(), joined.size());
  // New items come after the old ones.
  client_->MustSubmit("next");
  EXPECT_GT(Stored("").back().cursor(), whole.back().cursor());
}

TEST_F(ServerTest, SubmitTwiceWithOneRequestIdIsOneJob) {
  Start();
  SubmitReply first, second, third;
  ASSERT_TRUE(client_->Submit("r1", SmallSpec("same"), &first).ok());
  ASSERT_TRUE(client_->Submit("r1", SmallSpec("same"), &second).ok());
  EXPECT_EQ(first.job().id(), second.job().id());
  EXPECT_TRUE(absl::StartsWith(first.job().id(), "same-"));
  EXPECT_EQ(first.job().id().size(), 9u);
  EXPECT_FALSE(first.job().owner().empty());
  EXPECT_EQ(first.plan().notes_size(), 1);  // no worker yet
  ASSERT_TRUE(client_->Submit("r2", SmallSpec("same"), &third).ok());
  EXPECT_NE(first.job().id(), third.job().id());
  EXPECT_EQ(client_->Submit("r1", SmallSpec("other"), &third).error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_EQ(client_->Submit("", SmallSpec("other"), &third).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(client_->Submit(std::string(65, 'r'), SmallSpec("x"), &third).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(ServerTest, SpecErrorsComeAllAtOnceInTheDetails) {
  Start();
  JobSpec wrong = SmallSpec("wrong");
  wrong.mutable_train()->clear_steps();
  wrong.mutable_train()->mutable_data()->clear_tokens();
  SubmitReply reply;
  const grpc::Status status = client_->Submit("r1", wrong, &reply);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  SpecErrors errors;
  ASSERT_TRUE(errors.ParseFromString(status.error_details()));
  std::set<std::string> paths;
  for (const SpecError& error : errors.errors()) paths.insert(error.path());
  EXPECT_TRUE(paths.contains("steps")) << errors.DebugString();
  EXPECT_TRUE(paths.contains("data.tokens")) << errors.DebugString();
  PlanRequest plan;
  *plan.mutable_spec() = wrong;
  PlanReply planned;
  EXPECT_EQ(client_->jobs().Plan(client_->Context().get(), plan, &planned).error_details(), status.error_details());
}

TEST_F(ServerTest, PlansForSlotsAndHardwareThatAreNamed) {
  Start();
  PlanRequest request;
  *request.mutable_spec() = SmallSpec("x");
  request.set_memory_bytes(1 << 20);
  request.set_hardware("a100");
  request.set_ops(true);
  PlanReply plan;
  ASSERT_TRUE(client_->jobs().Plan(client_->Context().get(), request, &plan).ok());
  ASSERT_EQ(plan.timeouts_size(), 10) << "of --detection";
  EXPECT_LE(plan.timeouts(0).seconds(), plan.timeouts(8).seconds());
  EXPECT_TRUE(absl::StrContains(plan.unfit(), "its slot has 1 MiB")) << plan.unfit();
  EXPECT_EQ(plan.simulated().hardware(), "a100");
  EXPECT_GT(plan.simulated().step_seconds(), 0);
  EXPECT_GT(plan.ops_size(), 0);
  request.set_hardware("abacus");
  const grpc::Status status = client_->jobs().Plan(client_->Context().get(), request, &plan);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(absl::StrContains(status.error_message(), "h100")) << status.error_message();
}

TEST_F(ServerTest, FullDiskRefusesSubmitOnly) {
  options_.min_free_bytes = ~uint64_t{0};
  Start();
  SubmitReply reply;
  EXPECT_EQ(client_->Submit("r1", SmallSpec("x"), &reply).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  ListJobsReply list;
  EXPECT_TRUE(client_->jobs().List(client_->Context().get(), {}, &list).ok());
}

TEST_F(ServerTest, AFullDiskKeepsItFromNothingButNewJobs) {
  const SmallDisk disk(options_.state_dir, 64);
  ASSERT_TRUE(disk.ok());
  options_.min_free_bytes = 1 << 20;
  Start();
  const std::string job = client_->MustSubmit("a");
  client_.reset(), server_.reset();
  disk.Fill();
  Start();
  SubmitReply reply;
  EXPECT_EQ(client_->Submit("r1", SmallSpec("x"), &reply).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  CancelRequest cancel;
  cancel.set_job(job);
  CancelReply cancelled;
  const grpc::Status status = client_->jobs().Cancel(client_->Context().get(), cancel, &cancelled);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(cancelled.job().state(), JOB_STATE_CANCELLED);
  client_.reset(), server_.reset();
}

TEST_F(ServerTest, WatchRefusesWhatItDoesNotKnow) {
  Start();
  const std::string job = client_->MustSubmit("a");
  const auto watch = [&](const std::function<void(WatchRequest&)>& edit) {
    WatchRequest request;
    edit(request);
    std::vector<WatchItem> items;
    return client_->Watch(request, &items).error_code();
  };
  EXPECT_EQ(watch([](auto& r) { r.set_job("no-such-job"); }), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(watch([](auto& r) { r.set_cursor("7"); }), grpc::StatusCode::INVALID_ARGUMENT);
  const std::string cursor = Stored(job).back().cursor();
  EXPECT_EQ(watch([&](auto& r) { r.set_cursor(cursor), r.set_tail(1); }), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(watch([&](auto& r) { r.set_cursor(cursor); }), grpc::StatusCode::OK);
}

TEST_F(ServerTest, TailOfLogsCountsLinesAndRanksAreFiltered) {
  Start();
  const std::string job = client_->MustSubmit("logs");
  auto worker = Worker("i1");
  RankKey key;
  ASSERT_TRUE(worker->WaitForRun(&key));
  worker->SendLog(key, 0, "one\ntwo\n");
  worker->SendLog(key, 8, "three\nfour\n");
  worker->SendLog(key, 4, "two\nthree\nfour\nfive\n");  // overlaps what was received
  ASSERT_TRUE(worker->WaitForLogsAck(24));
  WatchRequest request;
  request.set_job(job);
  request.set_logs(true);
  request.set_tail(2);
  std::vector<WatchItem> items;
  ASSERT_TRUE(client_->Watch(request, &items).ok());
  EXPECT_EQ(Describe(items), (std::vector<std::string>{"snapshot", "log four\n", "log five\n"}));
  EXPECT_EQ(items[1].log().offset(), 14u);
  request.set_rank(1);
  items.clear();
  ASSERT_TRUE(client_->Watch(request, &items).ok());
  EXPECT_EQ(items.size(), 1u);
}

TEST_F(ServerTest, DeletedJobTakesItsStreamAlong) {
  Start();
  const std::string job = client_->MustSubmit("gone");
  CancelRequest cancel;
  cancel.set_job(job);
  CancelReply cancelled;
  ASSERT_TRUE(client_->jobs().Cancel(client_->Context().get(), cancel, &cancelled).ok());
  EXPECT_EQ(cancelled.job().state(), JOB_STATE_CANCELLED);
  DeleteRequest request;
  request.set_job(job);
  DeleteReply reply;
  ASSERT_TRUE(client_->jobs().Delete(client_->Context().get(), request, &reply).ok());
  EXPECT_TRUE(client_->jobs().Delete(client_->Context().get(), request, &reply).ok());
  GetJobReply none;
  EXPECT_EQ(client_->Get(job, &none).error_code(), grpc::StatusCode::NOT_FOUND);
  const std::vector<std::string> left = Describe(Stored(""));
  EXPECT_TRUE(std::find(left.begin(), left.end(), "event job.submitted") == left.end());
}

TEST_F(ServerTest, SecondCoordinatorIsRefusedByFolderAndBySocket) {
  Start();
  ServerOptions same_folder = options_;
  same_folder.listen = {"unix:" + folder_.path() + "/other/c.sock"};
  absl::Status status = Server::Start(same_folder, &clock_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(status.message(), options_.state_dir)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), absl::StrCat(getpid()))) << status;
  ServerOptions same_socket = options_;
  same_socket.state_dir = folder_.path() + "/state2";
  status = Server::Start(same_socket, &clock_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(status.message(), "c.sock")) << status;
  EXPECT_FALSE(client_->MustSubmit("still-there").empty());
}

TEST_F(ServerTest, StaleSocketIsReplacedAndAFileIsNot) {
  Start();
  const std::string socket = folder_.path() + "/run/c.sock";
  server_.reset();
  EXPECT_FALSE(std::filesystem::exists(socket));
  std::filesystem::create_directories(folder_.path() + "/run");
  std::ofstream(socket) << "x";
  EXPECT_EQ(Server::Start(options_, &clock_).status().code(), absl::StatusCode::kFailedPrecondition);
  std::filesystem::remove(socket);
  Start();
}

TEST_F(ServerTest, RefusesUnsafeAddressesAndFolders) {
  const auto refused = [&](const std::string& address) {
    ServerOptions options = options_;
    options.listen = {address};
    return Server::Start(options, &clock_).status();
  };
  EXPECT_EQ(refused("127.0.0.1:0").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(refused("127.0.0.1:0").message(), "--token-file"));
  options_.token_file = folder_.path() + "/tokens";
  std::ofstream(options_.token_file) << "0123456789abcdef ann admin\n";
  EXPECT_EQ(refused("127.0.0.1:0").code(), absl::StatusCode::kPermissionDenied);  // others can read it
  chmod(options_.token_file.c_str(), 0600);
  // Whether there is a token file or not.
  for (const char* address : {"0.0.0.0:0", "10.0.0.1:80", "[::]:80", "example.org:80"}) {
    EXPECT_EQ(refused(address).code(), absl::StatusCode::kFailedPrecondition) << address;
    EXPECT_TRUE(absl::StrContains(refused(address).message(), "TLS")) << address;
  }
  for (const std::string& address : {std::string("nonsense"), std::string("unix:relative"), std::string("127.0.0.1:x"),
                                     "unix:/" + std::string(108, 'p') + "/s"}) {
    EXPECT_EQ(refused(address).code(), absl::StatusCode::kInvalidArgument) << address;
  }
  std::filesystem::create_directory(folder_.path() + "/open");
  chmod((folder_.path() + "/open").c_str(), 0755);
  EXPECT_EQ(refused("unix:" + folder_.path() + "/open/c.sock").code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(ServerTest, ASpecWithAFieldThatIsNotKnownIsRefused) {
  Start();
  JobSpec spec = SmallSpec("newer");
  spec.mutable_train()
      ->mutable_optimizer()
      ->GetReflection()
      ->MutableUnknownFields(spec.mutable_train()->mutable_optimizer())
      ->AddVarint(999, 1);
  SubmitReply reply;
  const grpc::Status status = client_->Submit("r1", spec, &reply);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(absl::StrContains(status.error_message(), "number 999 in train.optimizer")) << status.error_message();
}

TEST_F(ServerTest, NoJobWritesIntoTheCoordinatorsOwnFolder) {
  Start();
  std::filesystem::create_directory_symlink(options_.state_dir, folder_.path() + "/link");
  for (const std::string& path : {options_.state_dir, options_.state_dir + "/trust", folder_.path(),
                                  folder_.path() + "/link/x", folder_.path() + "/run/../state"}) {
    JobSpec spec = SmallSpec("thief");
    spec.mutable_train()->mutable_checkpoint()->set_path(path);
    SubmitReply reply;
    const grpc::Status status = client_->Submit("r" + path.substr(path.size() - 5), spec, &reply);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << path;
    EXPECT_TRUE(absl::StrContains(status.error_message(), "the coordinator's own folder")) << status.error_message();
  }
  JobSpec spec = SmallSpec("honest");
  spec.mutable_train()->mutable_checkpoint()->set_path(options_.state_dir + "s/{job}");
  SubmitReply reply;
  EXPECT_TRUE(client_->Submit("r1", spec, &reply).ok());
}

TEST_F(ServerTest, AStateFolderOnANetworkFileSystemIsRefused) {
  options_.file_system_type = 0x6969;
  const absl::Status refused = Server::Start(options_, &clock_).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(refused.message(), "is on NFS")) << refused;
  options_.allow_network_filesystem = true;
  Start();
}

TEST_F(ServerTest, TakenPortIsRefused) {
  options_.token_file = folder_.path() + "/tokens";
  std::ofstream(options_.token_file) << "0123456789abcdef ann admin\n";
  chmod(options_.token_file.c_str(), 0600);
  options_.listen = {"127.0.0.1:0"};
  Start();
  ServerOptions second = options_;
  second.state_dir = folder_.path() + "/state2";
  second.listen = {address()};
  EXPECT_EQ(Server::Start(second, &clock_).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(ServerTest, ForeignProtocolIsRefusedNamingBothVersions) {
  Start();
  grpc::ClientContext context;
  context.AddMetadata(kVersionMetadata, "9.9.9");
  context.AddMetadata(kProtocolMetadata, "999");
  VersionReply reply;
  const grpc::Status status = client_->admin().Version(&context, {}, &reply);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_TRUE(absl::StrContains(status.error_message(), "9.9.9")) << status.error_message();
  EXPECT_TRUE(absl::StrContains(status.error_message(), kVersion)) << status.error_message();
  ASSERT_TRUE(client_->admin().Version(client_->Context().get(), {}, &reply).ok());
  EXPECT_EQ(reply.state_directory(), options_.state_dir);
}

TEST_F(ServerTest, BackupStartsAnotherCoordinator) {
  Start();
  const std::string job = client_->MustSubmit("kept");
  std::filesystem::create_directory(folder_.path() + "/copy");
  chmod((folder_.path() + "/copy").c_str(), 0700);
  BackupRequest request;
  request.set_path(folder_.path() + "/copy/state.db");
  BackupReply reply;
  ASSERT_TRUE(client_->admin().Backup(client_->Context().get(), request, &reply).ok());
  EXPECT_GT(reply.bytes(), 0u);
  EXPECT_EQ(client_->admin().Backup(client_->Context().get(), request, &reply).error_code(),
            grpc::StatusCode::ALREADY_EXISTS);
  request.set_path("relative");
  EXPECT_EQ(client_->admin().Backup(client_->Context().get(), request, &reply).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  server_.reset();
  options_.state_dir = folder_.path() + "/copy";
  Start();
  EXPECT_EQ(client_->StateOf(job), JOB_STATE_QUEUED);
}

TEST_F(ServerTest, ShutdownEndsStreamsWithUnavailable) {
  Start();
  auto worker = Worker("i1");
  ASSERT_TRUE(worker->WaitForWelcome());
  const std::string job = client_->MustSubmit("a");
  RankKey key;
  ASSERT_TRUE(worker->WaitForRun(&key));
  grpc::Status watch_status, get_status;
  std::atomic<bool> reading = false;
  std::thread watcher([&] {
    WatchRequest request;
    request.set_follow(true);
    std::vector<WatchItem> items;
    const auto seen = [&](const auto&) {
      reading = true;
      return false;
    };
    watch_status = client_->Watch(request, &items, seen, absl::Minutes(10));
  });
  std::thread waiter([&] {
    RendezvousGetRequest request;
    *request.mutable_key() = key;
    request.set_name("never");
    request.mutable_wait()->set_seconds(600);
    RendezvousGetReply reply;
    get_status = client_->workers().RendezvousGet(client_->Context(absl::Minutes(10)).get(), request, &reply);
  });
  ASSERT_TRUE(Eventually([&] { return reading.load(); }));
  const absl::Time begin = absl::Now();
  server_->Shutdown();
  EXPECT_LT(absl::Now() - begin, kTestPatience) << "not the ten minutes of the streams and the key";
  watcher.join();
  waiter.join();
  EXPECT_EQ(watch_status.error_code(), grpc::StatusCode::UNAVAILABLE) << watch_status.error_message();
  EXPECT_EQ(get_status.error_code(), grpc::StatusCode::UNAVAILABLE) << get_status.error_message();
  grpc::Status worker_status;
  ASSERT_TRUE(worker->WaitForEnd(&worker_status));
  EXPECT_EQ(worker_status.error_code(), grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace muster::server
