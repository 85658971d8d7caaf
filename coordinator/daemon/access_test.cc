// Every method of every service, by its descriptor, so that a new one is covered automatically: none answers on TCP
// without a token, each has its own rule, and every kind of caller is refused where the rule says so, over TLS too.
#include <google/protobuf/descriptor.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/rpc/rpc.h"
#include "coordinator/daemon/all_methods_test.h"
#include "coordinator/daemon/server.h"
#include "coordinator/daemon/trust_fixture_test.h"
#include "coordinator/rpc/authorize.h"

namespace muster::server {
namespace {

using google::protobuf::MethodDescriptor;

std::string PathOf(const MethodDescriptor& method) {
  return absl::StrCat("/", std::string(method.service()->full_name()), "/", std::string(method.name()));
}

// Calls the method with an empty request, whatever its type; returns the status.
grpc::Status Call(const std::string& address, const std::string& token, const MethodDescriptor& method,
                  const rpc::Security& security = {}) {
  grpc::GenericStub stub(rpc::Dial(address, security));
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
    call->WriteLast(grpc::ByteBuffer(nullptr, 0), grpc::WriteOptions(), nullptr);
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

class AccessTest : public ::testing::Test {
 protected:
  AccessTest() {
    ServerOptions options;
    options.state_dir = folder_.path() + "/state";
    options.listen = {"127.0.0.1:0", "unix:" + folder_.path() + "/run/c.sock"};
    options.token_file = folder_.path() + "/tokens";
    std::ofstream(options.token_file) << "viewer-token-1234 vera viewer\nsubmit-token-1234 sam submitter\n"
                                         "submit-token-5678 sue submitter\nadmin-token-12345 adam admin\n"
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
  for (const MethodDescriptor* method : AllMethods()) {
    for (const char* token : {"", "wrong-token-12345"}) {
      const grpc::Status status = Call(server_->addresses()[0], token, *method);
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

// Each method applies its own rule, not another method's.
TEST_F(AccessTest, EachRoleIsRefusedWhereItsRuleSaysSo) {
  const std::pair<const char*, rpc::Role> callers[] = {{"viewer-token-1234", rpc::Role::kViewer},
                                                       {"submit-token-1234", rpc::Role::kSubmitter},
                                                       {"admin-token-12345", rpc::Role::kAdmin},
                                                       {"worker-token-1234", rpc::Role::kWorker}};
  for (const auto& [token, role] : callers) {
    for (const MethodDescriptor* method : AllMethods()) {
      const bool allowed = rpc::Authorize({"x", role, {}, {}}, PathOf(*method), {}).ok();
      const grpc::Status status = Call(server_->addresses()[0], token, *method);
      EXPECT_EQ(status.error_code() != grpc::StatusCode::PERMISSION_DENIED, allowed)
          << token << " " << PathOf(*method) << ": " << status.error_message();
    }
  }
}

TEST_F(AccessTest, SubmitterChangesItsOwnJobsOnly) {
  Client sam(server_->addresses()[0], "submit-token-1234"), sue(server_->addresses()[0], "submit-token-5678");
  const std::string job = sam.MustSubmit("mine");
  GetJobReply reply;
  ASSERT_TRUE(sue.Get(job, &reply).ok());
  EXPECT_EQ(reply.job().owner(), "sam");
  CancelRequest cancel;
  cancel.set_job(job);
  CancelReply cancelled;
  const grpc::Status status = sue.jobs().Cancel(sue.Context().get(), cancel, &cancelled);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_TRUE(absl::StrContains(status.error_message(), "sam")) << status.error_message();
  EXPECT_TRUE(sam.jobs().Cancel(sam.Context().get(), cancel, &cancelled).ok());
}

class TlsAccessTest : public TrustFixture {
 protected:
  TlsAccessTest() {
    options_.token_file = folder_.Write("tokens", "viewer-token-1234 vera viewer\nworker-token-1234 w1 worker\n");
    chmod(options_.token_file.c_str(), 0600);
    Start();
  }
};

TEST_F(TlsAccessTest, EveryCallWithEveryRoleAndWithNone) {
  const rpc::Security plain = Plain(), node = MustJoin("n1");
  const struct {
    const char* who;
    std::string token;
    rpc::Security security;
    rpc::Role role;
  } callers[] = {
      {"a viewer", MakeToken(TOKEN_ROLE_VIEWER, "vera"), plain, rpc::Role::kViewer},
      {"a viewer of the token file", "viewer-token-1234", plain, rpc::Role::kViewer},
      {"a submitter", MakeToken(TOKEN_ROLE_SUBMITTER, "sam"), plain, rpc::Role::kSubmitter},
      {"an admin", MakeToken(TOKEN_ROLE_ADMIN, "adam"), plain, rpc::Role::kAdmin},
      {"who joins", MakeToken(TOKEN_ROLE_WORKER, ""), plain, rpc::Role::kJoiner},
      {"a node", "", node, rpc::Role::kWorker},
      {"a node with a person's token", MakeToken(TOKEN_ROLE_VIEWER, "vera"), node, rpc::Role::kViewer},
  };
  for (const auto& caller : callers) {
    for (const MethodDescriptor* method : AllMethods()) {
      const bool allowed = rpc::Authorize({"x", caller.role, {}, {}}, PathOf(*method), {}).ok();
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
    for (const MethodDescriptor* method : AllMethods()) {
      const grpc::Status status = Call(tls_address(), token, *method, plain);
      EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED)
          << "\"" << token << "\" " << PathOf(*method) << ": " << status.error_message();
    }
  }
}

}  // namespace
}  // namespace muster::server
