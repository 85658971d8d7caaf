// Every method of every service, by its descriptor, so that a new one is covered automatically: none answers on TCP
// without a token, each has its own rule, and every kind of caller is refused where the rule says so, over TLS too.
#include <google/protobuf/descriptor.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/rpc/rpc.h"
#include "coordinator/daemon/all_methods_test.h"
#include "coordinator/daemon/server.h"
#include "coordinator/daemon/trust_fixture_test.h"
#include "coordinator/rpc/authorize.h"

namespace muster::server {
namespace {

using google::protobuf::MethodDescriptor;

// Who may call what, written out: docs/security.md says the same. One letter for each kind of caller that may: viewer,
// submitter, admin, worker (a node), joiner. A method that is not here, or a row without a method, fails the tests.
const std::map<std::string, std::string>& Allowed() {
  static const auto& allowed = *new std::map<std::string, std::string>{
      {"/muster.v1.Jobs/Submit", "sa"},
      {"/muster.v1.Jobs/Plan", "vsa"},
      {"/muster.v1.Jobs/Get", "vsa"},
      {"/muster.v1.Jobs/List", "vsa"},
      {"/muster.v1.Jobs/Watch", "vsa"},
      {"/muster.v1.Jobs/Cancel", "sa"},
      {"/muster.v1.Jobs/Pause", "sa"},
      {"/muster.v1.Jobs/Resume", "sa"},
      {"/muster.v1.Jobs/Delete", "sa"},
      {"/muster.v1.Jobs/Label", "sa"},
      {"/muster.v1.Jobs/Note", "sa"},
      {"/muster.v1.Jobs/Trace", "sa"},
      {"/muster.v1.Jobs/Checkpoint", "sa"},
      {"/muster.v1.Jobs/SetTemplate", "sa"},
      {"/muster.v1.Jobs/GetTemplate", "vsa"},
      {"/muster.v1.Jobs/ListTemplates", "vsa"},
      {"/muster.v1.Jobs/DeleteTemplate", "sa"},
      {"/muster.v1.Nodes/List", "vsa"},
      {"/muster.v1.Nodes/Use", "vsa"},
      {"/muster.v1.Nodes/Drain", "a"},
      {"/muster.v1.Nodes/Undrain", "a"},
      {"/muster.v1.Nodes/Forget", "a"},
      {"/muster.v1.Admin/Version", "vsa"},
      {"/muster.v1.Admin/Backup", "a"},
      {"/muster.v1.Admin/ListProjects", "vsa"},
      {"/muster.v1.Admin/SetProject", "a"},
      {"/muster.v1.Admin/DeleteProject", "a"},
      {"/muster.v1.Admin/ListReservations", "vsa"},
      {"/muster.v1.Admin/SetReservation", "a"},
      {"/muster.v1.Admin/DeleteReservation", "a"},
      {"/muster.v1.Admin/ListAudit", "a"},
      {"/muster.v1.Admin/SignIn", "vsa"},
      {"/muster.v1.Workers/Connect", "w"},
      {"/muster.v1.Workers/RendezvousSet", "w"},
      {"/muster.v1.Workers/RendezvousGet", "w"},
      {"/muster.v1.Workers/Sync", "w"},
      {"/muster.v1.Workers/FetchTable", "w"},
      {"/muster.v1.Trust/Join", "j"},
      {"/muster.v1.Trust/Renew", "w"},
      {"/muster.v1.Trust/CreateToken", "a"},
      {"/muster.v1.Trust/ListTokens", "a"},
      {"/muster.v1.Trust/RevokeToken", "a"},
      {"/muster.v1.Trust/RevokeNode", "a"},
  };
  return allowed;
}

std::string PathOf(const MethodDescriptor& method) {
  return absl::StrCat("/", std::string(method.service()->full_name()), "/", std::string(method.name()));
}

bool MayCall(char caller, const MethodDescriptor& method) {
  const auto row = Allowed().find(PathOf(method));
  EXPECT_NE(row, Allowed().end()) << PathOf(method) << " is new: say who may call it";
  return row != Allowed().end() && row->second.find(caller) != std::string::npos;
}

// Calls the method with a request of these bytes, whatever its type; returns the status.
grpc::Status CallOn(const std::shared_ptr<grpc::Channel>& channel, const std::string& token,
                    const MethodDescriptor& method, const std::string& request = "") {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  rpc::AddCallMetadata(token, context);
  grpc::CompletionQueue queue;
  const auto next = [&] {
    void* tag = nullptr;
    bool ok = false;
    EXPECT_TRUE(queue.Next(&tag, &ok));
    return ok;
  };
  const auto call = stub.PrepareCall(&context, PathOf(method), &queue);
  call->StartCall(nullptr);
  if (next()) {
    // Closes the client's side of a worker stream, or the server would wait for more.
    const grpc::Slice bytes(request);
    call->WriteLast(grpc::ByteBuffer(&bytes, 1), grpc::WriteOptions(), nullptr);
    next();
  }
  grpc::Status status;
  grpc::ByteBuffer ignored;
  do {
    call->Read(&ignored, nullptr);
  } while (next());
  call->Finish(&status, nullptr);
  next();
  return status;
}

// On a connection of its own.
grpc::Status Call(const std::string& address, const std::string& token, const MethodDescriptor& method,
                  const rpc::Security& security = {}, const std::string& request = "") {
  return CallOn(rpc::Dial(address, security), token, method, request);
}

class AccessTest : public ::testing::Test {
 protected:
  explicit AccessTest(bool private_jobs = false) {
    ServerOptions options;
    options.private_jobs = private_jobs;
    options.metrics_address = "127.0.0.1:0";
    options.state_dir = folder_.path() + "/state";
    options.listen = {"127.0.0.1:0", "unix:" + folder_.path() + "/run/c.sock"};
    options.token_file = folder_.path() + "/tokens";
    std::ofstream(options.token_file) << "viewer-token-1234 vera viewer\nsubmit-token-1234 sam submitter\n"
                                         "submit-token-5678 sue submitter\nadmin-token-12345 adam admin\n"
                                         "viewer-token-5678 sam viewer\n"
                                         "worker-token-1234 w1 worker\n";
    chmod(options.token_file.c_str(), 0600);
    auto server = Server::Start(options, &clock_);
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  TemporaryFolder folder_;
  RealClock clock_;
  std::unique_ptr<Server> server_;
};

TEST_F(AccessTest, NoMethodAnswersOnTcpWithoutAToken) {
  ASSERT_GE(AllMethods().size(), 23u);
  // One connection, since an address may have 64 without an admitted call.
  const std::shared_ptr<grpc::Channel> channel = rpc::Dial(server_->addresses()[0], {});
  for (const MethodDescriptor* method : AllMethods()) {
    for (const char* token : {"", "wrong-token-12345"}) {
      const grpc::Status status = CallOn(channel, token, *method);
      EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED)
          << PathOf(*method) << ": " << status.error_message();
    }
  }
}

TEST_F(AccessTest, EveryMethodHasARuleAndIsImplemented) {
  for (const MethodDescriptor* method : AllMethods()) {
    EXPECT_TRUE(rpc::Authorize({"x", rpc::Role::kLocal, {}, {}}, PathOf(*method), {}).ok()) << PathOf(*method);
    const grpc::Status status = Call(server_->addresses()[1], "", *method);
    EXPECT_NE(status.error_code(), grpc::StatusCode::UNIMPLEMENTED) << PathOf(*method);
    EXPECT_NE(status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << PathOf(*method);
    EXPECT_NE(status.error_code(), grpc::StatusCode::PERMISSION_DENIED) << PathOf(*method);
  }
}

TEST_F(AccessTest, TheTableHasEveryMethodAndNoOther) {
  std::set<std::string> methods, rows;
  for (const MethodDescriptor* method : AllMethods()) methods.insert(PathOf(*method));
  for (const auto& [method, callers] : Allowed()) rows.insert(method);
  EXPECT_EQ(methods, rows);
}

// Each method applies its own rule, not another method's.
TEST_F(AccessTest, EachRoleIsRefusedWhereTheTableSaysSo) {
  const std::pair<const char*, char> callers[] = {
      {"viewer-token-1234", 'v'}, {"submit-token-1234", 's'}, {"admin-token-12345", 'a'}, {"worker-token-1234", 'w'}};
  for (const auto& [token, caller] : callers) {
    for (const MethodDescriptor* method : AllMethods()) {
      const bool allowed = MayCall(caller, *method);
      const grpc::Status status = Call(server_->addresses()[0], token, *method);
      EXPECT_EQ(status.error_code() != grpc::StatusCode::PERMISSION_DENIED, allowed)
          << token << " " << PathOf(*method) << ": " << status.error_message();
    }
  }
}

// Each method that changes a job, by its owner, by another submitter, by an admin and by a viewer; what reads a job,
// too.
TEST_F(AccessTest, ChangesToAJobAreForItsOwnerAndAdmins) {
  Client sam(server_->addresses()[0], "submit-token-1234");
  const std::set<std::string> changing = {"Cancel", "Pause", "Resume", "Delete",
                                          "Trace",  "Label", "Note",   "Checkpoint"};
  const std::set<std::string> reading = {"Get", "Watch"};
  int checked = 0;
  for (const MethodDescriptor* method : AllMethods()) {
    const std::string name(method->name());
    if (method->service()->name() != "Jobs" || (!changing.contains(name) && !reading.contains(name))) continue;
    ++checked;
    for (const auto& [token, allowed] : {std::pair("submit-token-1234", true),
                                         {"submit-token-5678", reading.contains(name)},
                                         {"admin-token-12345", true},
                                         {"viewer-token-1234", reading.contains(name)}}) {
      GetJobRequest request;  // every one of these has the job as its first field
      request.set_job(sam.MustSubmit("mine"));
      const grpc::Status status = Call(server_->addresses()[0], token, *method, {}, request.SerializeAsString());
      EXPECT_EQ(status.error_code() != grpc::StatusCode::PERMISSION_DENIED, allowed)
          << token << " " << name << ": " << status.error_message();
      EXPECT_NE(status.error_code(), grpc::StatusCode::NOT_FOUND) << name << " of another job";
      if (token == std::string("submit-token-5678") && !allowed) {
        EXPECT_TRUE(absl::StrContains(status.error_message(), "to be its owner, sam")) << status.error_message();
      }
    }
  }
  EXPECT_EQ(checked, 10);
}

// Whoever may submit may make templates; everyone reads them.
TEST_F(AccessTest, ChangesToATemplateAreForItsOwnerAndAdmins) {
  SetTemplateRequest set;
  set.set_name("base");
  DeleteTemplateRequest name_only;
  name_only.set_name("base");
  const auto call = [&](const std::string& token, const std::string& method, const std::string& request) {
    const MethodDescriptor& found =
        *google::protobuf::DescriptorPool::generated_pool()->FindMethodByName(absl::StrCat("muster.v1.Jobs.", method));
    return Call(server_->addresses()[0], token, found, {}, request).error_code();
  };
  const auto put = [&](const std::string& token, const std::string& text) {
    set.set_text(text);
    return call(token, "SetTemplate", set.SerializeAsString());
  };
  EXPECT_EQ(put("viewer-token-1234", "steps: 1"), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(put("submit-token-1234", "steps: 1"), grpc::StatusCode::OK);
  EXPECT_EQ(put("submit-token-5678", "steps: 2"), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(put("viewer-token-5678", "steps: 2"), grpc::StatusCode::PERMISSION_DENIED) << "sam's, but only to read";
  EXPECT_EQ(put("admin-token-12345", "steps: 3"), grpc::StatusCode::OK);
  EXPECT_EQ(put("submit-token-1234", "steps: 4"), grpc::StatusCode::OK) << "the admin's change left it sam's";
  const std::string request = name_only.SerializeAsString();
  for (const char* token : {"viewer-token-1234", "submit-token-5678", "admin-token-12345"}) {
    EXPECT_EQ(call(token, "GetTemplate", request), grpc::StatusCode::OK) << token;
    EXPECT_EQ(call(token, "ListTemplates", ""), grpc::StatusCode::OK) << token;
  }
  EXPECT_EQ(call("submit-token-5678", "DeleteTemplate", request), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(call("submit-token-1234", "DeleteTemplate", request), grpc::StatusCode::OK);
  EXPECT_EQ(call("submit-token-1234", "GetTemplate", request), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(call("submit-token-5678", "DeleteTemplate", request), grpc::StatusCode::OK) << "there is none any more";
}

// With --private-jobs.
class PrivateJobsTest : public AccessTest {
 protected:
  PrivateJobsTest() : AccessTest(/*private_jobs=*/true) {}

  std::vector<WatchItem> WatchAll(const std::string& token) {
    std::vector<WatchItem> items;
    EXPECT_TRUE(Client(server_->addresses()[0], token).Watch(WatchRequest(), &items).ok()) << token;
    return items;
  }
};

// Who may call what about sam's job, written out, one letter for each of: sam the submitter, sam with a viewer's token,
// sue the submitter, vera the viewer, adam the admin, the worker. Every method that names a job is here.
TEST_F(PrivateJobsTest, AJobIsReadByItsOwnerAndAdmins) {
  const std::map<std::string, std::string> allowed = {
      {"Get", "SV--A-"},   {"Watch", "SV--A-"},      {"Cancel", "S---A-"}, {"Pause", "S---A-"}, {"Resume", "S---A-"},
      {"Trace", "S---A-"}, {"Checkpoint", "S---A-"}, {"Delete", "S---A-"}, {"Label", "S---A-"}, {"Note", "S---A-"},
  };
  const char* tokens[] = {"submit-token-1234", "viewer-token-5678", "submit-token-5678",
                          "viewer-token-1234", "admin-token-12345", "worker-token-1234"};
  Client sam(server_->addresses()[0], tokens[0]);
  std::set<std::string> checked;
  for (const MethodDescriptor* method : AllMethods()) {
    const std::string name(method->name());
    if (method->service()->name() != "Jobs" || method->input_type()->FindFieldByName("job") == nullptr) continue;
    checked.insert(name);
    ASSERT_TRUE(allowed.contains(name)) << name << " is new: say who may call it about a private job";
    for (size_t i = 0; i < 6; ++i) {
      GetJobRequest request;  // every one of these has the job as its first field
      request.set_job(sam.MustSubmit("mine"));
      const grpc::Status status = Call(server_->addresses()[0], tokens[i], *method, {}, request.SerializeAsString());
      EXPECT_EQ(status.error_code() != grpc::StatusCode::PERMISSION_DENIED, allowed.at(name)[i] != '-')
          << tokens[i] << " " << name << ": " << status.error_message();
    }
  }
  EXPECT_EQ(checked.size(), allowed.size());
}

TEST_F(PrivateJobsTest, OthersSeeThatItIsThereAndNoMore) {
  Client sam(server_->addresses()[0], "submit-token-1234"), sue(server_->addresses()[0], "submit-token-5678");
  JobSpec spec = SmallSpec("mine");
  spec.mutable_train()->mutable_data()->set_tokens("/secret/train.bin");
  SubmitReply submitted;
  ASSERT_TRUE(sam.Submit("r1", spec, &submitted).ok());
  const std::string job = submitted.job().id();
  const auto list = [&](Client& client) {
    ListJobsReply reply;
    EXPECT_TRUE(client.jobs().List(client.Context().get(), ListJobsRequest(), &reply).ok());
    return reply;
  };
  const ListJobsReply hers = list(sue), his = list(sam);
  ASSERT_EQ(hers.jobs_size(), 1);
  EXPECT_EQ(hers.jobs(0).job().id(), job);
  EXPECT_EQ(hers.jobs(0).job().owner(), "sam");
  EXPECT_EQ(hers.jobs(0).job().state(), JOB_STATE_QUEUED);
  EXPECT_EQ(hers.jobs(0).job().queue_position(), 1u);
  EXPECT_EQ(hers.jobs(0).job().spec().resources().ranks(), 1u);
  EXPECT_FALSE(hers.jobs(0).job().spec().has_train());
  EXPECT_FALSE(absl::StrContains(hers.SerializeAsString(), "secret"));
  EXPECT_TRUE(absl::StrContains(his.SerializeAsString(), "/secret/train.bin"));
  GetJobReply refused;
  EXPECT_TRUE(absl::StrContains(sue.Get(job, &refused).error_message(), "to be its owner, sam")) << "says why";
}

TEST_F(PrivateJobsTest, AWatchOfAllJobsHasOnlyTheCallersOwn) {
  Client sam(server_->addresses()[0], "submit-token-1234"), sue(server_->addresses()[0], "submit-token-5678");
  for (int i = 0; i < 300; ++i) sam.MustSubmit(absl::StrCat("his-", i));  // more than a page of the stream
  const std::string hers = sue.MustSubmit("hers");
  const auto jobs = [&](const std::string& token) {
    std::set<std::string> seen;
    for (const WatchItem& item : WatchAll(token)) seen.insert(item.job());
    return seen;
  };
  EXPECT_EQ(jobs("submit-token-5678"), (std::set<std::string>{hers}));
  EXPECT_EQ(jobs("viewer-token-1234"), (std::set<std::string>{}));
  EXPECT_EQ(jobs("viewer-token-5678").size(), 300u);
  EXPECT_EQ(jobs("admin-token-12345").size(), 301u);
}

class TlsAccessTest : public TrustFixture {
 protected:
  TlsAccessTest() {
    options_.token_file = folder_.Write("tokens", "viewer-token-1234 vera viewer\nworker-token-1234 w1 worker\n");
    chmod(options_.token_file.c_str(), 0600);
    Start();
  }
};

// A call that begins and sends no message.
grpc::Status Begin(const std::string& address, const rpc::Security& security, const std::string& path,
                   const std::string& token, absl::Duration patience) {
  grpc::GenericStub stub(rpc::Dial(address, security));
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + patience));
  rpc::AddCallMetadata(token, context);
  grpc::CompletionQueue queue;
  const auto call = stub.PrepareCall(&context, path, &queue);
  call->StartCall(nullptr);
  void* tag = nullptr;
  bool ok = false;
  EXPECT_TRUE(queue.Next(&tag, &ok));
  grpc::Status status;
  call->Finish(&status, nullptr);
  EXPECT_TRUE(queue.Next(&tag, &ok));
  return status;
}

// Without a token it ends, and nothing of it is read.
void ExpectStrangersAreRefused(const std::string& address, const rpc::Security& security) {
  for (const char* path : {"/muster.v1.Jobs/Submit", "/muster.v1.Workers/Connect", "/muster.v1.Nothing/AtAll"}) {
    for (const char* token : {"", "wrong-token-12345"}) {
      const grpc::Status status = Begin(address, security, path, token, absl::Seconds(20));
      EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << path << status.error_message();
    }
  }
  EXPECT_EQ(Begin(address, security, "/muster.v1.Jobs/Submit", "viewer-token-1234", absl::Seconds(1)).error_code(),
            grpc::StatusCode::DEADLINE_EXCEEDED)
      << "who is known is waited for";
  EXPECT_EQ(Begin(address, security, "/grpc.health.v1.Health/Check", "", absl::Seconds(1)).error_code(),
            grpc::StatusCode::DEADLINE_EXCEEDED)
      << "nor does a probe need a token";
}

TEST_F(TlsAccessTest, StrangersAreRefusedBeforeTheirMessageIsRead) {
  ExpectStrangersAreRefused(tls_address(), Plain());
}

TEST_F(AccessTest, StrangersAreRefusedBeforeTheirMessageIsRead) {
  ExpectStrangersAreRefused(server_->addresses()[0], {});
}

// Every request but those that carry a spec or a value is a few names; what is larger is not parsed.
TEST_F(AccessTest, LargeRequestsAreRefusedUnparsed) {
  // Two bytes each of field 1000, which no message has.
  std::string many;
  while (many.size() < (size_t{2} << 20)) many += std::string("\xC2\x3E\x00", 3);
  for (const MethodDescriptor* method : AllMethods()) {
    if (method->client_streaming()) continue;
    const grpc::Status status = Call(server_->addresses()[0], "admin-token-12345", *method, {}, many);
    if (!MayCall('a', *method)) continue;
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << PathOf(*method) << status.error_message();
    EXPECT_TRUE(absl::StrContains(status.error_message(), "larger than this method takes")) << PathOf(*method);
  }
}

TEST_F(TlsAccessTest, EveryCallWithEveryRoleAndWithNone) {
  const rpc::Security plain = Plain(), node = MustJoin("n1");
  const struct {
    const char* who;
    std::string token;
    rpc::Security security;
    char letter;
  } callers[] = {
      {"a viewer", MakeToken(TOKEN_ROLE_VIEWER, "vera"), plain, 'v'},
      {"a viewer of the token file", "viewer-token-1234", plain, 'v'},
      {"a submitter", MakeToken(TOKEN_ROLE_SUBMITTER, "sam"), plain, 's'},
      {"an admin", MakeToken(TOKEN_ROLE_ADMIN, "adam"), plain, 'a'},
      {"who joins", MakeToken(TOKEN_ROLE_WORKER, ""), plain, 'j'},
      {"a node", "", node, 'w'},
      {"a node with a person's token", MakeToken(TOKEN_ROLE_VIEWER, "vera"), node, 'v'},
  };
  for (const auto& caller : callers) {
    for (const MethodDescriptor* method : AllMethods()) {
      const bool allowed = MayCall(caller.letter, *method);
      const grpc::Status status = Call(tls_address(), caller.token, *method, caller.security);
      EXPECT_NE(status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << caller.who << status.error_message();
      EXPECT_NE(status.error_code(), grpc::StatusCode::UNAVAILABLE) << caller.who << status.error_message();
      EXPECT_EQ(status.error_code() != grpc::StatusCode::PERMISSION_DENIED, allowed)
          << caller.who << " " << PathOf(*method) << ": " << status.error_message();
    }
  }
  std::string revoked_id;
  const std::string revoked = MakeToken(TOKEN_ROLE_ADMIN, "adam", 0, &revoked_id);
  RevokeTokenRequest request;
  request.set_id(revoked_id);
  RevokeTokenReply reply;
  ASSERT_TRUE(client_->trust().RevokeToken(client_->Context().get(), request, &reply).ok());
  // A token of another coordinator with a user of ours, and one with a different secret.
  const std::string foreign = tls::ToString(tls::MakeToken(trust_.authority_facts.sha256).value());
  std::string guessed = MakeToken(TOKEN_ROLE_ADMIN, "adam");
  guessed.back() = guessed.back() == 'a' ? 'b' : 'a';
  for (const std::string& token : {std::string(), std::string("wrong-token-12345"), foreign, guessed, revoked,
                                   std::string("worker-token-1234"), std::string("muster1.x")}) {
    // Not a connection for each call, which would be a flood, nor one for all: a stranger is answered 64 KiB on one.
    const std::shared_ptr<grpc::Channel> channel = rpc::Dial(tls_address(), plain);
    for (const MethodDescriptor* method : AllMethods()) {
      const grpc::Status status = CallOn(channel, token, *method);
      EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED)
          << "\"" << token << "\" " << PathOf(*method) << ": " << status.error_message();
    }
  }
}

}  // namespace
}  // namespace muster::server
