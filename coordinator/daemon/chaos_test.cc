// Every unary method of the coordinator, by its descriptor, over a network that loses requests and replies, until both
// have happened to it: the caller gets its reply in the end, and the request is executed exactly once. Streams resume
// after the last item that was seen.
#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/rpc/chaos.h"
#include "common/rpc/rpc.h"
#include "coordinator/daemon/all_methods_test.h"
#include "coordinator/daemon/server.h"
#include "coordinator/daemon/trust_fixture_test.h"
#include "testing/fake_worker.h"
#include "testing/wait.h"

namespace muster::server {
namespace {

using google::protobuf::MethodDescriptor;

constexpr char kNetwork[] = "requests=0.1,replies=0.1,streams=0.1,seed=11";

// "Jobs/Submit"
std::string NameOf(const MethodDescriptor& method) {
  return absl::StrCat(std::string(method.service()->name()), "/", std::string(method.name()));
}

class ChaosTest : public TrustFixture {
 protected:
  // Clean connections, made before the network fails: the client of the fixture, and two nodes. n1 runs a job, n2
  // drains, so that every other submitted job stays in the queue.
  ChaosTest() {
    options_.web_address = "127.0.0.1:0";
    options_.workers.detection = absl::Minutes(10);  // these nodes send no heartbeats
    Start();
    busy_ = std::make_unique<FakeWorker>(address(),
                                         FakeWorker::Options{.node = "n1", .incarnation = "i1", .boot = "boot1"});
    idle_ = std::make_unique<FakeWorker>(address(),
                                         FakeWorker::Options{.node = "n2", .incarnation = "i2", .boot = "boot2"});
    EXPECT_TRUE(busy_->WaitForWelcome() && idle_->WaitForWelcome());
    DrainRequest drain;
    drain.set_node("n2");
    DrainReply drained;
    EXPECT_TRUE(client_->nodes().Drain(client_->Context().get(), drain, &drained).ok());
    client_->MustSubmit("runs");
    EXPECT_TRUE(busy_->WaitForRun(&running_));
    busy_->SendObserved(running_, RANK_STATE_RUNNING);
    busy_->SendRecords(running_, {RunningRecord(1), MetricRecord(2, 1, 1)});
    EXPECT_TRUE(Eventually([&] { return client_->StateOf(running_.job()) == JOB_STATE_RUNNING; }));
    EXPECT_TRUE(rpc::chaos::Arm(kNetwork).ok());
    lossy_ = std::make_unique<Client>(address());
  }
  ~ChaosTest() override { EXPECT_TRUE(rpc::chaos::Arm("").ok()); }

  // Reconnects, as a client does that treats UNAVAILABLE as a broken connection.
  template <typename Stub, typename Service, typename Request, typename Reply>
  grpc::Status Insist(Client& client, Stub& stub,
                      grpc::Status (Service::*method)(grpc::ClientContext*, const Request&, Reply*),
                      const Request& request, Reply* reply) {
    grpc::Status status;
    for (int attempt = 0; attempt < 50; ++attempt) {
      status = (stub.*method)(client.Context().get(), request, reply);
      if (status.error_code() != grpc::StatusCode::UNAVAILABLE) break;
    }
    return status;
  }
  template <typename Stub, typename Service, typename Request, typename Reply>
  void MustInsist(Stub& stub, grpc::Status (Service::*method)(grpc::ClientContext*, const Request&, Reply*),
                  const Request& request, Reply* reply) {
    const grpc::Status status = Insist(*lossy_, stub, method, request, reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
  }

  // Requests with only a job name.
  template <typename Request, typename Reply, typename Method>
  void AskOfJob(Method method, const std::string& job) {
    Request request;
    request.set_job(job);
    Reply reply;
    MustInsist(lossy_->jobs(), method, request, &reply);
  }
  template <typename Request, typename Reply, typename Method>
  void AskOfNode(Method method, const std::string& node) {
    Request request;
    request.set_node(node);
    Reply reply;
    MustInsist(lossy_->nodes(), method, request, &reply);
  }
  bool Drains(const std::string& node) {
    ListNodesReply reply;
    EXPECT_TRUE(client_->nodes().List(client_->Context().get(), {}, &reply).ok());
    for (const Node& listed : reply.nodes()) {
      if (listed.id() == node) return listed.draining();
    }
    return false;
  }
  int LiveTokensOf(const std::string& user) {
    ListTokensReply reply;
    EXPECT_TRUE(client_->trust().ListTokens(client_->Context().get(), {}, &reply).ok());
    int live = 0;
    for (const TokenInfo& token : reply.tokens()) live += token.user() == user && !token.revoked();
    return live;
  }
  JoinReply InsistOnJoining(const std::string& node, const std::string& key) {
    Client joiner(tls_address(), MakeToken(TOKEN_ROLE_WORKER, ""), Plain());
    JoinRequest request;
    request.set_node(node);
    request.set_certificate_request(tls::MakeRequest(key, "whatever").value());
    JoinReply reply;
    const grpc::Status status = Insist(joiner, joiner.trust(), &Trust::Stub::Join, request, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return reply;
  }

  void AddScenariosOfJobs();
  void AddScenariosOfTheRest();

  std::unique_ptr<FakeWorker> busy_, idle_;
  RankKey running_;
  std::unique_ptr<Client> lossy_;
  // For each unary method: makes one request, with a different `n` each time, and checks its effect.
  std::map<std::string, std::function<void(const std::string& n)>> scenarios_;
};

void ChaosTest::AddScenariosOfJobs() {
  scenarios_["Jobs/Submit"] = [this](const std::string& n) {
    SubmitRequest request;
    request.set_request_id("request-" + n);
    *request.mutable_spec() = SmallSpec("submitted");
    SubmitReply reply;
    MustInsist(lossy_->jobs(), &Jobs::Stub::Submit, request, &reply);
    ListJobsReply list;
    ASSERT_TRUE(client_->jobs().List(client_->Context().get(), {}, &list).ok());
    std::vector<std::string> made;
    for (const JobSummary& summary : list.jobs()) {
      if (summary.job().request_id() == request.request_id()) made.push_back(summary.job().id());
    }
    EXPECT_EQ(made, std::vector<std::string>{reply.job().id()});
  };
  scenarios_["Jobs/Plan"] = [this](const std::string&) {
    PlanRequest request;
    *request.mutable_spec() = SmallSpec("planned");
    PlanReply reply;
    MustInsist(lossy_->jobs(), &Jobs::Stub::Plan, request, &reply);
    EXPECT_GT(reply.parameters(), 0u);
  };
  scenarios_["Jobs/Get"] = [this](const std::string&) {
    AskOfJob<GetJobRequest, GetJobReply>(&Jobs::Stub::Get, running_.job());
  };
  scenarios_["Jobs/List"] = [this](const std::string&) {
    ListJobsReply reply;
    MustInsist(lossy_->jobs(), &Jobs::Stub::List, ListJobsRequest(), &reply);
    EXPECT_GT(reply.jobs_size(), 0);
  };
  scenarios_["Jobs/Cancel"] = [this](const std::string& n) {
    const std::string job = client_->MustSubmit("cancelled" + n);
    AskOfJob<CancelRequest, CancelReply>(&Jobs::Stub::Cancel, job);
    EXPECT_EQ(client_->StateOf(job), JOB_STATE_CANCELLED);
  };
  scenarios_["Jobs/Pause"] = [this](const std::string& n) {
    const std::string job = client_->MustSubmit("paused" + n);
    AskOfJob<PauseRequest, PauseReply>(&Jobs::Stub::Pause, job);
    EXPECT_EQ(client_->StateOf(job), JOB_STATE_PAUSED);
  };
  scenarios_["Jobs/Resume"] = [this](const std::string& n) {
    const std::string job = client_->MustSubmit("resumed" + n);
    PauseRequest pause;
    pause.set_job(job);
    PauseReply paused;
    ASSERT_TRUE(client_->jobs().Pause(client_->Context().get(), pause, &paused).ok());
    AskOfJob<ResumeRequest, ResumeReply>(&Jobs::Stub::Resume, job);
    EXPECT_EQ(client_->StateOf(job), JOB_STATE_QUEUED);
  };
  scenarios_["Jobs/Delete"] = [this](const std::string& n) {
    const std::string job = client_->MustSubmit("deleted" + n);
    CancelRequest cancel;
    cancel.set_job(job);
    CancelReply cancelled;
    ASSERT_TRUE(client_->jobs().Cancel(client_->Context().get(), cancel, &cancelled).ok());
    AskOfJob<DeleteRequest, DeleteReply>(&Jobs::Stub::Delete, job);
    GetJobReply reply;
    EXPECT_EQ(client_->Get(job, &reply).error_code(), grpc::StatusCode::NOT_FOUND);
  };
  scenarios_["Jobs/Label"] = [this](const std::string& n) {
    LabelRequest request;
    request.set_job(running_.job());
    request.add_set("try=" + n);
    LabelReply reply;
    MustInsist(lossy_->jobs(), &Jobs::Stub::Label, request, &reply);
    EXPECT_EQ(reply.job().labels(0), "try=" + n);
  };
  scenarios_["Jobs/Note"] = [this](const std::string& n) {
    NoteRequest request;
    request.set_job(running_.job());
    request.set_text("try " + n);
    NoteReply reply;
    MustInsist(lossy_->jobs(), &Jobs::Stub::Note, request, &reply);
    EXPECT_EQ(reply.job().note(), "try " + n);
  };
  // No rank records, so all traces are missing.
  scenarios_["Jobs/Trace"] = [this](const std::string&) {
    TraceRequest request;
    request.set_job(running_.job());
    request.set_steps(1);
    request.mutable_wait()->set_nanos(1'000'000);
    TraceReply reply;
    MustInsist(lossy_->jobs(), &Jobs::Stub::Trace, request, &reply);
    EXPECT_EQ(client_->StateOf(running_.job()), JOB_STATE_RUNNING);
  };
  // No rank writes either: the call times out, or reports that the job has no checkpoint.path.
  scenarios_["Jobs/Checkpoint"] = [this](const std::string&) {
    CheckpointRequest request;
    request.set_job(running_.job());
    request.mutable_wait()->set_nanos(1'000'000);
    CheckpointReply reply;
    const grpc::StatusCode code =
        Insist(*lossy_, lossy_->jobs(), &Jobs::Stub::Checkpoint, request, &reply).error_code();
    EXPECT_TRUE(code == grpc::StatusCode::FAILED_PRECONDITION || code == grpc::StatusCode::DEADLINE_EXCEEDED) << code;
    EXPECT_EQ(client_->StateOf(running_.job()), JOB_STATE_RUNNING);
  };
}

void ChaosTest::AddScenariosOfTheRest() {
  scenarios_["Jobs/SetTemplate"] = [this](const std::string& n) {
    SetTemplateRequest request;
    request.set_name("base");
    request.set_text("seed: " + n + "\n");
    SetTemplateReply reply;
    MustInsist(lossy_->jobs(), &Jobs::Stub::SetTemplate, request, &reply);
  };
  scenarios_["Jobs/GetTemplate"] = [this](const std::string&) {
    scenarios_["Jobs/SetTemplate"]("0");
    GetTemplateRequest request;
    request.set_name("base");
    GetTemplateReply reply;
    MustInsist(lossy_->jobs(), &Jobs::Stub::GetTemplate, request, &reply);
    EXPECT_EQ(reply.template_().text(), "seed: 0\n");
  };
  scenarios_["Jobs/ListTemplates"] = [this](const std::string&) {
    ListTemplatesReply reply;
    MustInsist(lossy_->jobs(), &Jobs::Stub::ListTemplates, ListTemplatesRequest(), &reply);
  };
  // One that is not known counts as deleted.
  scenarios_["Jobs/DeleteTemplate"] = [this](const std::string& n) {
    DeleteTemplateRequest request;
    request.set_name("no-template-" + n);
    DeleteTemplateReply reply;
    MustInsist(lossy_->jobs(), &Jobs::Stub::DeleteTemplate, request, &reply);
  };
  scenarios_["Nodes/List"] = [this](const std::string&) {
    ListNodesReply reply;
    MustInsist(lossy_->nodes(), &Nodes::Stub::List, ListNodesRequest(), &reply);
    EXPECT_EQ(reply.nodes_size(), 2);
  };
  scenarios_["Nodes/Use"] = [this](const std::string&) {
    NodeUseRequest request;
    request.set_node("n2");
    NodeUseReply reply;
    MustInsist(lossy_->nodes(), &Nodes::Stub::Use, request, &reply);
    EXPECT_EQ(reply.points_size(), 0) << "its worker is none";
  };
  scenarios_["Nodes/Drain"] = [this](const std::string&) {
    AskOfNode<DrainRequest, DrainReply>(&Nodes::Stub::Drain, "n2");
    EXPECT_TRUE(Drains("n2"));
  };
  scenarios_["Nodes/Undrain"] = [this](const std::string&) {
    AskOfNode<UndrainRequest, UndrainReply>(&Nodes::Stub::Undrain, "n2");
    EXPECT_FALSE(Drains("n2"));
  };
  // A node that is not known counts as forgotten, since a lost reply may be followed by a retry.
  scenarios_["Nodes/Forget"] = [this](const std::string&) {
    ForgetRequest request;
    request.set_node("n9");
    ForgetReply reply;
    MustInsist(lossy_->nodes(), &Nodes::Stub::Forget, request, &reply);
  };
  scenarios_["Admin/Version"] = [this](const std::string&) {
    VersionReply reply;
    MustInsist(lossy_->admin(), &Admin::Stub::Version, VersionRequest(), &reply);
  };
  scenarios_["Admin/SetProject"] = [this](const std::string& n) {
    SetProjectRequest request;
    request.mutable_project()->set_name("team");
    request.mutable_project()->add_users("ann-" + n);
    SetProjectReply reply;
    MustInsist(lossy_->admin(), &Admin::Stub::SetProject, request, &reply);
  };
  scenarios_["Admin/ListProjects"] = [this](const std::string&) {
    ListProjectsReply reply;
    MustInsist(lossy_->admin(), &Admin::Stub::ListProjects, ListProjectsRequest(), &reply);
  };
  // One that is not known counts as deleted.
  scenarios_["Admin/DeleteProject"] = [this](const std::string& n) {
    DeleteProjectRequest request;
    request.set_name("no-team-" + n);
    DeleteProjectReply reply;
    MustInsist(lossy_->admin(), &Admin::Stub::DeleteProject, request, &reply);
  };
  scenarios_["Admin/SetReservation"] = [this](const std::string& n) {
    SetReservationRequest request;
    Reservation& reservation = *request.mutable_reservation();
    reservation.set_name("maint");
    reservation.add_nodes("n1");
    reservation.mutable_start()->set_seconds(4'000'000'000);
    reservation.mutable_end()->set_seconds(4'000'003'600);
    reservation.set_note("of " + n);
    SetReservationReply reply;
    MustInsist(lossy_->admin(), &Admin::Stub::SetReservation, request, &reply);
    EXPECT_EQ(reply.reservation().note(), "of " + n);
  };
  scenarios_["Admin/ListReservations"] = [this](const std::string&) {
    ListReservationsReply reply;
    MustInsist(lossy_->admin(), &Admin::Stub::ListReservations, ListReservationsRequest(), &reply);
  };
  scenarios_["Admin/DeleteReservation"] = [this](const std::string&) {
    DeleteReservationRequest request;
    request.set_name("maint");
    DeleteReservationReply reply;
    MustInsist(lossy_->admin(), &Admin::Stub::DeleteReservation, request, &reply);
  };
  scenarios_["Admin/ListAudit"] = [this](const std::string&) {
    ListAuditReply reply;
    MustInsist(lossy_->admin(), &Admin::Stub::ListAudit, ListAuditRequest(), &reply);
    EXPECT_GT(reply.entries_size(), 0);
  };
  scenarios_["Admin/SignIn"] = [this](const std::string&) {
    SignInReply reply;
    MustInsist(lossy_->admin(), &Admin::Stub::SignIn, SignInRequest(), &reply);
    EXPECT_FALSE(reply.code().empty());
  };
  // This reply says that the object exists already: a lost reply followed by a retry looks like that.
  scenarios_["Admin/Backup"] = [this](const std::string& n) {
    BackupRequest request;
    request.set_path(folder_.path() + "/backup-" + n);
    BackupReply reply;
    const grpc::Status status = Insist(*lossy_, lossy_->admin(), &Admin::Stub::Backup, request, &reply);
    EXPECT_TRUE(status.ok() || status.error_code() == grpc::StatusCode::ALREADY_EXISTS) << status.error_message();
    EXPECT_GT(std::filesystem::file_size(request.path()), 0u);
  };
  scenarios_["Trust/Join"] = [this](const std::string& n) {
    const JoinReply reply = InsistOnJoining("node-" + n, tls::MakeKey().value());
    EXPECT_EQ(tls::ReadCertificate(reply.certificate())->name, "node-" + n);
  };
  scenarios_["Trust/Renew"] = [this, key = tls::MakeKey().value(), own = std::string()](const std::string&) mutable {
    if (own.empty()) own = InsistOnJoining("renews", key).certificate();
    Client node(tls_address(), "", {trust_.authority.certificate, {own, key}});
    RenewRequest request;
    request.set_certificate_request(tls::MakeRequest(key, "whatever").value());
    RenewReply reply;
    const grpc::Status status = Insist(node, node.trust(), &Trust::Stub::Renew, request, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    own = reply.certificate();
  };
  scenarios_["Trust/CreateToken"] = [this](const std::string& n) {
    CreateTokenRequest request;
    request.set_role(TOKEN_ROLE_VIEWER);
    request.set_user("user-" + n);
    request.set_request_id(n);
    CreateTokenReply reply;
    MustInsist(lossy_->trust(), &Trust::Stub::CreateToken, request, &reply);
    EXPECT_EQ(LiveTokensOf("user-" + n), 1) << "a token whose reply was lost is still valid";
    Client viewer(tls_address(), reply.token(), Plain());
    ListNodesReply nodes;
    const grpc::Status status = Insist(viewer, viewer.nodes(), &Nodes::Stub::List, ListNodesRequest(), &nodes);
    EXPECT_TRUE(status.ok()) << status.error_message();
  };
  scenarios_["Trust/ListTokens"] = [this](const std::string&) {
    ListTokensReply reply;
    MustInsist(lossy_->trust(), &Trust::Stub::ListTokens, ListTokensRequest(), &reply);
  };
  scenarios_["Trust/RevokeToken"] = [this](const std::string& n) {
    RevokeTokenRequest request;
    std::string id;
    MakeToken(TOKEN_ROLE_VIEWER, "revoked-" + n, 0, &id);
    request.set_id(id);
    RevokeTokenReply reply;
    MustInsist(lossy_->trust(), &Trust::Stub::RevokeToken, request, &reply);
    EXPECT_EQ(LiveTokensOf("revoked-" + n), 0);
  };
  scenarios_["Trust/RevokeNode"] = [this](const std::string& n) {
    InsistOnJoining("leaves-" + n, tls::MakeKey().value());
    RevokeNodeRequest request;
    request.set_node("leaves-" + n);
    RevokeNodeReply reply;
    MustInsist(lossy_->trust(), &Trust::Stub::RevokeNode, request, &reply);
  };
  scenarios_["Workers/RendezvousSet"] = [this](const std::string& n) {
    RendezvousSetRequest set;
    *set.mutable_key() = running_;
    set.set_name("set-" + n);
    set.set_value(n);
    RendezvousSetReply reply;
    MustInsist(lossy_->workers(), &Workers::Stub::RendezvousSet, set, &reply);
    RendezvousGetRequest get;
    *get.mutable_key() = running_;
    get.set_name("set-" + n);
    RendezvousGetReply got;
    ASSERT_TRUE(client_->workers().RendezvousGet(client_->Context().get(), get, &got).ok());
    EXPECT_EQ(got.value(), n);
  };
  scenarios_["Workers/Sync"] = [this](const std::string&) {
    SyncRequest request;
    *request.mutable_key() = running_;
    SyncReply reply;
    const grpc::Status status = Insist(*lossy_, lossy_->workers(), &Workers::Stub::Sync, request, &reply);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << "its job has no replicas";
  };
  scenarios_["Workers/RendezvousGet"] = [this](const std::string&) {
    RendezvousSetRequest set;
    *set.mutable_key() = running_;
    set.set_name("known");
    set.set_value("value");
    RendezvousSetReply reply;
    ASSERT_TRUE(client_->workers().RendezvousSet(client_->Context().get(), set, &reply).ok());
    RendezvousGetRequest get;
    *get.mutable_key() = running_;
    get.set_name("known");
    RendezvousGetReply got;
    MustInsist(lossy_->workers(), &Workers::Stub::RendezvousGet, get, &got);
    EXPECT_EQ(got.value(), "value");
  };
}

TEST_F(ChaosTest, EveryUnaryMethodIsCarriedOutOnceHoweverOftenItIsSent) {
  AddScenariosOfJobs();
  AddScenariosOfTheRest();
  for (const MethodDescriptor* method : AllMethods()) {
    const std::string name = NameOf(*method);
    if (method->server_streaming() || method->client_streaming()) continue;
    ASSERT_TRUE(scenarios_.contains(name)) << name << ": add a scenario that checks that it takes effect exactly once";
    SCOPED_TRACE(name);
    const auto counted = [&] { return rpc::chaos::Counts()["/muster.v1." + name]; };
    int times = 0;
    for (; times < 500 && (counted().requests_lost < 2 || counted().replies_lost < 2); ++times) {
      scenarios_[name](absl::StrCat(times));
      if (HasFailure()) return;
    }
    EXPECT_GE(counted().requests_lost, 2u) << times;
    EXPECT_GE(counted().replies_lost, 2u) << times;
  }
}

// Streaming methods. tests/faults/rpc_chaos_test covers Connect and FetchTable with real daemons at both ends.
TEST_F(ChaosTest, EveryStreamIsKnownToATest) {
  std::set<std::string> streams;
  for (const MethodDescriptor* method : AllMethods()) {
    if (method->server_streaming() || method->client_streaming()) streams.insert(NameOf(*method));
  }
  streams.erase("Workers/FetchTable");
  EXPECT_EQ(streams, (std::set<std::string>{"Jobs/Watch", "Workers/Connect"}));
}

TEST_F(ChaosTest, ABrokenWatchResumesAfterTheLastItem) {
  for (int i = 0; i < 40; ++i) client_->MustSubmit(absl::StrCat("job", i));
  std::vector<WatchItem> expected;
  ASSERT_TRUE(client_->Watch(WatchRequest(), &expected).ok());
  ASSERT_GT(expected.size(), 40u);
  std::vector<WatchItem> seen;
  WatchRequest request;
  int broken = 0;
  while (seen.size() < expected.size() && broken < 1000) {
    const grpc::Status status = lossy_->Watch(request, &seen);
    if (status.ok()) break;
    ASSERT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
    ++broken;
    if (!seen.empty()) request.set_cursor(seen.back().cursor());
  }
  EXPECT_GT(broken, 0);
  // Events that came after the first read follow those that it saw.
  ASSERT_GE(seen.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(seen[i].SerializeAsString(), expected[i].SerializeAsString()) << i;
  }
  std::set<std::string> cursors;
  for (const WatchItem& item : seen) EXPECT_TRUE(cursors.insert(item.cursor()).second) << "sent twice";
}

}  // namespace
}  // namespace muster::server
