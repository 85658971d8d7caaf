// The worker's stream and the rendezvous, over real gRPC.
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/proto_time.h"
#include "common/sha256.h"
#include "coordinator/daemon/server.h"
#include "coordinator/daemon/server_fixture_test.h"
#include "models/inventory.h"
#include "strategies/partition/planners.h"
#include "strategies/partition/table.h"
#include "testing/fake_worker.h"
#include "testing/wait.h"

namespace muster::server {
namespace {

class WorkersTest : public ServerFixture {
 protected:
  std::unique_ptr<FakeWorker> Worker(const std::string& incarnation, const std::string& boot = "boot",
                                     std::vector<RankKey> running = {}) {
    return std::make_unique<FakeWorker>(
        address(), FakeWorker::Options{.incarnation = incarnation, .boot = boot, .running = std::move(running)});
  }
  NodeState StateOfNode() {
    ListNodesReply reply;
    EXPECT_TRUE(client_->nodes().List(client_->Context().get(), {}, &reply).ok());
    return reply.nodes_size() == 1 ? reply.nodes(0).state() : NODE_STATE_UNSPECIFIED;
  }
  std::vector<uint64_t> StepsOf(const std::string& job) {
    WatchRequest request;
    request.set_job(job);
    request.set_metrics(true);
    std::vector<WatchItem> items;
    EXPECT_TRUE(client_->Watch(request, &items).ok());
    std::vector<uint64_t> steps;
    for (const WatchItem& item : items) {
      if (item.has_metrics()) steps.push_back(item.metrics().step());
    }
    return steps;
  }
  grpc::Status Set(const RankKey& key, const std::string& name, const std::string& value) {
    RendezvousSetRequest request;
    *request.mutable_key() = key;
    request.set_name(name);
    request.set_value(value);
    RendezvousSetReply reply;
    return client_->workers().RendezvousSet(client_->Context().get(), request, &reply);
  }
  grpc::Status Get(const RankKey& key, const std::string& name, absl::Duration wait, std::string* value,
                   absl::Duration deadline = absl::Seconds(30)) {
    RendezvousGetRequest request;
    *request.mutable_key() = key;
    request.set_name(name);
    *request.mutable_wait() = ToProto(wait);
    RendezvousGetReply reply;
    const grpc::Status status = client_->workers().RendezvousGet(client_->Context(deadline).get(), request, &reply);
    *value = reply.value();
    return status;
  }
  grpc::Status Fetch(const FetchTableRequest& request, std::string* bytes) {
    bytes->clear();
    const std::unique_ptr<grpc::ClientContext> context = client_->Context();
    const auto reader = client_->workers().FetchTable(context.get(), request);
    for (TableChunk chunk; reader->Read(&chunk);) {
      EXPECT_LE(chunk.data().size(), size_t{256} << 10);
      bytes->append(chunk.data());
    }
    return reader->Finish();
  }
};

// The table of GPT-2 1.5B by rows on 1,024 shards, whatever the job.
absl::StatusOr<spec::MadePlan> PlanLarge(const PlanQuestion& question, strategies::Budget* budget) {
  absl::StatusOr<spec::MadePlan> made = spec::MakePlan(question.spec, question.on, budget);
  if (!made.ok()) return made;
  core::Planned planned = *made->planned;
  Model model;
  model.mutable_gpt2()->set_size(GPT2_SIZE_XL);
  planned.table = partition::Rows(*models::MakeInventory(model), 1024);
  planned.table_sha256 = partition::TableSha256(planned.table);
  made->planned = std::make_shared<const core::Planned>(std::move(planned));
  return made;
}

TEST_F(WorkersTest, TableIsFetchedByItsHash) {
  options_.plans.maker = PlanLarge;
  Start();
  client_->MustSubmit("a");
  auto worker = Worker("i1");
  FetchTableRequest request;
  ASSERT_TRUE(worker->WaitForRun(request.mutable_key(), request.mutable_table_sha256()));
  std::string bytes;
  ASSERT_TRUE(Fetch(request, &bytes).ok());
  EXPECT_GT(bytes.size(), size_t{4} << 20);
  EXPECT_EQ(Sha256Hex(bytes), request.table_sha256());
  // Not stored, so planned again after a restart: the same bytes.
  server_.reset();
  Start();
  std::string again;
  grpc::Status status;
  EXPECT_TRUE(Eventually([&] {
    status = Fetch(request, &again);
    return status.error_code() != grpc::StatusCode::UNAVAILABLE;  // until it is planned again
  }));
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_TRUE(again == bytes);

  FetchTableRequest other = request;
  other.set_table_sha256(std::string(64, '0'));
  EXPECT_EQ(Fetch(other, &again).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  for (const auto& [generation, rank] : {std::pair(2, 0), {1, 1}}) {
    other = request;
    other.mutable_key()->set_generation(static_cast<uint64_t>(generation));
    other.mutable_key()->set_rank(static_cast<uint32_t>(rank));
    EXPECT_EQ(Fetch(other, &again).error_code(), grpc::StatusCode::FAILED_PRECONDITION) << generation << " " << rank;
  }
  worker = Worker("i1", "boot", {request.key()});
  worker->RunToTheEnd(request.key(), kSmallSteps);
  EXPECT_TRUE(Eventually([&] { return Fetch(request, &again).error_code() == grpc::StatusCode::FAILED_PRECONDITION; }));
}

// The store's id is made once, and a worker with ranks of another store is not taken for a node of this one.
TEST_F(WorkersTest, AWorkerOfAnotherStoreIsRefused) {
  Start();
  auto worker = Worker("i1");
  ASSERT_TRUE(worker->WaitForWelcome());
  const std::string store = worker->store_id();
  EXPECT_EQ(store.size(), 16u);
  worker.reset();
  server_.reset();
  Start();
  FakeWorker own(address(), {.node = "n1", .incarnation = "i2", .store_id = store});
  ASSERT_TRUE(own.WaitForWelcome());
  EXPECT_EQ(own.store_id(), store);
  FakeWorker other(address(), {.node = "n2", .store_id = "another"});
  grpc::Status status;
  ASSERT_TRUE(other.WaitForEnd(&status));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_TRUE(absl::StrContains(status.error_message(), absl::StrCat("ranks of the store another, and this coordinator "
                                                                     "has the store ",
                                                                     store)))
      << status.error_message();
  ListNodesReply reply;
  ASSERT_TRUE(client_->nodes().List(client_->Context().get(), {}, &reply).ok());
  EXPECT_EQ(reply.nodes_size(), 1) << "n2 is no node of this store";
}

// Each start of a coordinator has a higher term; an older copy of its store, where workers have seen a later one, jumps
// above that, and keeps it.
TEST_F(WorkersTest, TheTermRises) {
  Start();
  uint64_t last = 0;
  for (const uint64_t seen : {uint64_t{0}, uint64_t{0}, uint64_t{500}, uint64_t{0}}) {
    FakeWorker worker(address(), {.node = "n1", .incarnation = absl::StrCat("i", last), .term = seen});
    ASSERT_TRUE(worker.WaitForWelcome());
    EXPECT_GT(worker.term(), std::max(last, seen));
    last = worker.term();
    server_.reset();
    Start();
  }
  EXPECT_GT(last, 501u);
}

// A cluster is upgraded one process at a time: a worker of the next release, or of the one before, is welcome as long
// as both sides know one protocol.
TEST_F(WorkersTest, WorkersOfAdjacentReleasesAreWelcome) {
  Start();
  FakeWorker next(address(), {.node = "n1", .protocols = {kProtocol + 1, kProtocol}});
  ASSERT_TRUE(next.WaitForWelcome());
  EXPECT_EQ(next.protocol(), kProtocol);
  FakeWorker oldest(address(), {.node = "n2", .protocols = {kOldestProtocol, 0}});
  ASSERT_TRUE(oldest.WaitForWelcome());
  EXPECT_EQ(oldest.protocol(), kOldestProtocol);
  for (const Protocols& none : {Protocols{kProtocol + 2, kProtocol + 1}, {kOldestProtocol - 1, 0}}) {
    FakeWorker worker(address(), {.node = "n3", .protocols = none});
    grpc::Status status;
    ASSERT_TRUE(worker.WaitForEnd(&status));
    EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
    EXPECT_TRUE(absl::StrContains(status.error_message(), "versions do not match")) << status.error_message();
  }
}

TEST_F(WorkersTest, NewIncarnationReplacesItsPredecessor) {
  Start();
  auto first = Worker("i1");
  ASSERT_TRUE(first->WaitForWelcome());
  auto second = Worker("i2");
  ASSERT_TRUE(second->WaitForWelcome());
  grpc::Status status;
  ASSERT_TRUE(first->WaitForEnd(&status));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED) << status.error_message();
  // The end of the first stream does not make the node away.
  second->SendHeartbeat(5);
  ASSERT_TRUE(second->WaitForHeartbeat(5));
  EXPECT_EQ(StateOfNode(), NODE_STATE_LIVE);
}

TEST_F(WorkersTest, SameIncarnationMayReconnectBeforeItsOldStreamIsMissed) {
  Start();
  auto first = Worker("i1");
  ASSERT_TRUE(first->WaitForWelcome());
  auto again = Worker("i1");
  ASSERT_TRUE(again->WaitForWelcome());
  grpc::Status status;
  ASSERT_TRUE(first->WaitForEnd(&status));
  again->SendHeartbeat(1);
  ASSERT_TRUE(again->WaitForHeartbeat(1));
  EXPECT_EQ(StateOfNode(), NODE_STATE_LIVE);
}

TEST_F(WorkersTest, SecondLiveHolderOfANodeIdIsRefusedNamingTheFirst) {
  Start();
  auto first = Worker("i1", "here");
  ASSERT_TRUE(first->WaitForWelcome());
  auto other = Worker("i2", "there");
  grpc::Status status;
  ASSERT_TRUE(other->WaitForEnd(&status));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_TRUE(absl::StrContains(status.error_message(), "host-of-here")) << status.error_message();
  first->SendHeartbeat(2);
  EXPECT_TRUE(first->WaitForHeartbeat(2));
}

TEST_F(WorkersTest, BrokenStreamAndSilenceMakeANodeAway) {
  options_.workers.detection = absl::Milliseconds(400);
  Start();
  auto worker = Worker("i1");
  ASSERT_TRUE(worker->WaitForWelcome());
  EXPECT_EQ(StateOfNode(), NODE_STATE_LIVE);
  grpc::Status status;
  ASSERT_TRUE(worker->WaitForEnd(&status));  // it sends nothing
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
  EXPECT_EQ(StateOfNode(), NODE_STATE_AWAY);

  worker = Worker("i1");
  ASSERT_TRUE(worker->WaitForWelcome());
  EXPECT_EQ(StateOfNode(), NODE_STATE_LIVE);
  worker.reset();
  EXPECT_TRUE(Eventually([&] { return StateOfNode() == NODE_STATE_AWAY; }));
}

TEST_F(WorkersTest, HeartbeatsKeepANodeLive) {
  options_.workers.detection = absl::Milliseconds(800);
  Start();
  auto worker = Worker("i1");
  ASSERT_TRUE(worker->WaitForWelcome());
  const absl::Time begin = absl::Now();
  for (uint64_t number = 1; absl::Now() - begin < absl::Milliseconds(1600); ++number) {
    worker->SendHeartbeat(number);
    ASSERT_TRUE(worker->WaitForHeartbeat(number));
    absl::SleepFor(absl::Milliseconds(50));  // a worker's heartbeat interval
  }
  EXPECT_EQ(StateOfNode(), NODE_STATE_LIVE);
}

TEST_F(WorkersTest, MalformedMessageEndsTheStream) {
  Start();
  auto worker = Worker("i1");
  ASSERT_TRUE(worker->WaitForWelcome());
  worker->SendRecords(RankKey(), {MetricRecord(1, 1, 1)});
  grpc::Status status;
  ASSERT_TRUE(worker->WaitForEnd(&status));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
  EXPECT_TRUE(Eventually([&] { return StateOfNode() == NODE_STATE_AWAY; }));
}

TEST_F(WorkersTest, RecordsSentAgainAreStoredOnceAlsoOverReconnectsAndRestarts) {
  Start();
  const std::string job = client_->MustSubmit("a");
  auto worker = Worker("i1");
  RankKey key;
  ASSERT_TRUE(worker->WaitForRun(&key));
  worker->SendRecords(key, {RunningRecord(1), MetricRecord(2, 1, 1), MetricRecord(3, 2, 1)});
  worker.reset();  // before it can have received it
  worker = Worker("i1", "boot", {key});
  ASSERT_TRUE(worker->WaitForWelcome());
  worker->SendRecords(key, {RunningRecord(1), MetricRecord(2, 1, 1), MetricRecord(3, 2, 1), MetricRecord(4, 3, 1)});
  ASSERT_TRUE(worker->WaitForRecordsAck(4));
  server_.reset();
  Start();
  worker = Worker("i1", "boot", {key});
  ASSERT_TRUE(worker->WaitForWelcome());
  worker->SendRecords(key, {MetricRecord(3, 2, 1), MetricRecord(4, 3, 1)});
  ASSERT_TRUE(worker->WaitForRecordsAck(4));  // all known: acknowledged immediately
  worker->SendRecords(key, {MetricRecord(4, 3, 1), MetricRecord(5, 4, 1)});
  ASSERT_TRUE(worker->WaitForRecordsAck(5));
  EXPECT_EQ(StepsOf(job), (std::vector<uint64_t>{1, 2, 3, 4}));
}

TEST_F(WorkersTest, InputOfAnUnknownJobIsAcknowledgedAndForgotten) {
  Start();
  auto worker = Worker("i1");
  ASSERT_TRUE(worker->WaitForWelcome());
  RankKey key;
  key.set_job("long-gone");
  key.set_generation(3);
  worker->SendRecords(key, {RunningRecord(7), MetricRecord(8, 1, 1)});
  EXPECT_TRUE(worker->WaitForRecordsAck(8));
  worker->SendLog(key, 100, "text");
  EXPECT_TRUE(worker->WaitForLogsAck(104));
}

TEST_F(WorkersTest, StaleGenerationIsAcknowledgedButNotStored) {
  Start();
  const std::string job = client_->MustSubmit("a");
  auto worker = Worker("i1");
  RankKey key;
  ASSERT_TRUE(worker->WaitForRun(&key));
  RankKey stale = key;
  stale.set_generation(key.generation() + 5);
  worker->SendRecords(stale, {RunningRecord(1), MetricRecord(2, 77, 1)});
  EXPECT_TRUE(worker->WaitForRecordsAck(2));
  EXPECT_TRUE(StepsOf(job).empty());
}

TEST_F(WorkersTest, AnotherNodesWordAboutARankIsNotTaken) {
  Start();
  const std::string job = client_->MustSubmit("a");
  auto worker = Worker("i1");
  RankKey key;
  ASSERT_TRUE(worker->WaitForRun(&key));
  FakeWorker stranger(address(), {.node = "n2"});
  ASSERT_TRUE(stranger.WaitForWelcome());
  stranger.SendRecords(key, {RunningRecord(1), MetricRecord(2, 1, 9), FinishedRecord(3, 10)});
  EXPECT_TRUE(stranger.WaitForRecordsAck(3)) << "so that it does not resend them forever";
  stranger.SendLog(key, 0, "not mine\n");
  EXPECT_TRUE(stranger.WaitForLogsAck(9));
  EXPECT_EQ(client_->StateOf(job), JOB_STATE_STARTING);
  EXPECT_TRUE(StepsOf(job).empty());
  worker->RunToTheEnd(key, kSmallSteps);
  EXPECT_TRUE(Eventually([&] { return client_->StateOf(job) == JOB_STATE_COMPLETED; }));
  EXPECT_EQ(StepsOf(job).size(), kSmallSteps);
}

// The job's id is known from when the trace began: its prefix may fit more jobs when it ends.
TEST_F(WorkersTest, ATraceByPrefixEndsWellThoughAnotherJobHasThePrefixByThen) {
  options_.workers.detection = absl::Minutes(10);
  Start();
  auto worker = Worker("i1");
  const std::string job = client_->MustSubmit("a");
  RankKey key;
  ASSERT_TRUE(worker->WaitForRun(&key));
  worker->SendObserved(key, RANK_STATE_RUNNING);
  worker->SendRecords(key, {RunningRecord(1)});
  ASSERT_TRUE(Eventually([&] { return client_->StateOf(job) == JOB_STATE_RUNNING; }));
  grpc::Status status;
  TraceReply reply;
  std::thread tracing([&] {
    TraceRequest request;
    request.set_job("a");
    request.set_steps(1);
    request.mutable_wait()->set_seconds(1);
    status = client_->jobs().Trace(client_->Context().get(), request, &reply);
  });
  ListAuditRequest traces;
  traces.set_method("Jobs/Trace");
  const bool began = Eventually([&] {
    ListAuditReply entries;
    return client_->admin().ListAudit(client_->Context().get(), traces, &entries).ok() && entries.entries_size() == 1;
  });
  client_->MustSubmit("ab");
  tracing.join();
  ASSERT_TRUE(began);
  EXPECT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(reply.ranks_size(), 1);
  EXPECT_EQ(reply.ranks(0).node(), "n1");
  EXPECT_EQ(reply.missing_size(), 1) << "the rank reports no step";
  VersionReply version;
  EXPECT_TRUE(client_->admin().Version(client_->Context().get(), {}, &version).ok());
}

TEST_F(WorkersTest, RendezvousServesTheCurrentGenerationOnly) {
  Start();
  const std::string job = client_->MustSubmit("a");
  auto worker = Worker("i1");
  RankKey key;
  ASSERT_TRUE(worker->WaitForRun(&key));
  std::string value;
  EXPECT_EQ(Get(key, "id", absl::ZeroDuration(), &value).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(Get(key, "id", absl::Milliseconds(50), &value).error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  // A caller that disconnects leaves no state.
  EXPECT_EQ(Get(key, "id", absl::Seconds(60), &value, absl::Milliseconds(50)).error_code(),
            grpc::StatusCode::DEADLINE_EXCEEDED);
  grpc::Status waited;
  std::string received;
  std::thread waiter([&] { waited = Get(key, "id", absl::Seconds(20), &received); });
  EXPECT_TRUE(Set(key, "id", "nccl").ok());
  waiter.join();
  EXPECT_TRUE(waited.ok()) << waited.error_message();
  EXPECT_EQ(received, "nccl");
  EXPECT_EQ(Set(key, "id", "other").error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_EQ(Set(key, "large", std::string(70'000, 'x')).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  RankKey stale = key;
  stale.set_generation(99);
  EXPECT_EQ(Set(stale, "id", "x").error_code(), grpc::StatusCode::FAILED_PRECONDITION);

  std::thread ending([&] { waited = Get(key, "never", absl::Seconds(20), &received); });
  worker->RunToTheEnd(key, kSmallSteps);
  ending.join();
  EXPECT_TRUE(waited.error_code() == grpc::StatusCode::ABORTED ||
              waited.error_code() == grpc::StatusCode::FAILED_PRECONDITION)
      << waited.error_message();
  EXPECT_EQ(Get(key, "id", absl::ZeroDuration(), &value).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

}  // namespace
}  // namespace muster::server
