// The audit log of a real server: who has an entry for what, and what is not in it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/daemon/all_methods_test.h"
#include "coordinator/daemon/trust_fixture_test.h"
#include "testing/random_message.h"
#include "testing/wait.h"

namespace muster::server {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

class AuditTest : public TrustFixture {
 protected:
  AuditTest() {
    options_.token_file = folder_.path() + "/tokens";
    std::ofstream(options_.token_file) << "submit-token-1234 sam submitter\nviewer-token-1234 vera viewer\n";
    chmod(options_.token_file.c_str(), 0600);
    Start();
  }

  // Newest first.
  std::vector<AuditEntry> Entries(const ListAuditRequest& request = {}) {
    ListAuditReply reply;
    const grpc::Status status = client_->admin().ListAudit(client_->Context().get(), request, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return {reply.entries().begin(), reply.entries().end()};
  }
  AuditEntry Newest() {
    const std::vector<AuditEntry> entries = Entries();
    EXPECT_FALSE(entries.empty());
    return entries.empty() ? AuditEntry() : entries.front();
  }
  Client Of(const std::string& token) { return Client(tls_address(), token, Plain()); }
};

// What only reads, or is a node's own business. Everything else has an entry: a new method has to be put here, or
// recorded.
const std::set<std::string>& WithoutEntries() {
  static const auto& methods = *new std::set<std::string>{"Jobs/Plan",
                                                          "Jobs/Get",
                                                          "Jobs/List",
                                                          "Jobs/Watch",
                                                          "Jobs/GetTemplate",
                                                          "Jobs/ListTemplates",
                                                          "Nodes/List",
                                                          "Nodes/Use",
                                                          "Admin/Version",
                                                          "Admin/ListProjects",
                                                          "Admin/ListReservations",
                                                          "Admin/ListAudit",
                                                          "Trust/Renew",
                                                          "Trust/ListTokens",
                                                          "Workers/Connect",
                                                          "Workers/RendezvousSet",
                                                          "Workers/RendezvousGet",
                                                          "Workers/Sync",
                                                          "Workers/FetchTable"};
  return methods;
}

TEST_F(AuditTest, EveryCallThatChangesSomethingHasOneEntryWhateverItsOutcome) {
  Client vera = Of("viewer-token-1234");
  std::set<std::string> checked;
  for (const google::protobuf::MethodDescriptor* method : AllMethods()) {
    const std::string name = absl::StrCat(std::string(method->service()->name()), "/", std::string(method->name()));
    const bool reads = WithoutEntries().contains(name);
    if (reads && (method->client_streaming() || method->server_streaming())) continue;
    checked.insert(name);
    for (Client* caller : {client_.get(), &vera}) {
      const size_t before = Entries().size();
      const grpc::Status status =
          CallAnything(caller->channel(), *method, caller == &vera ? "viewer-token-1234" : "", {""}, absl::Seconds(20));
      const std::vector<AuditEntry> after = Entries();
      ASSERT_EQ(after.size(), before + (reads ? 0 : 1)) << name << " " << status.error_message();
      if (reads) continue;
      const AuditEntry& entry = after.front();
      EXPECT_EQ(entry.method(), name);
      EXPECT_EQ(entry.code() == "OK", status.ok()) << name << " " << entry.code() << status.error_message();
      EXPECT_EQ(entry.code() == "PERMISSION_DENIED", status.error_code() == grpc::StatusCode::PERMISSION_DENIED);
      EXPECT_EQ(entry.role(), caller == &vera ? "viewer" : "local") << name;
      EXPECT_GT(entry.time().seconds(), 1'700'000'000);
      EXPECT_THAT(entry.peer(), StartsWith(caller == &vera ? "ipv4:127.0.0.1:" : "unix:"));
    }
  }
  EXPECT_GE(checked.size(), 20u);
}

TEST_F(AuditTest, SaysWhoFromWhereWhatAndHowItEnded) {
  std::string token_id;
  const std::string token = MakeToken(TOKEN_ROLE_SUBMITTER, "sue", 0, &token_id);
  const AuditEntry created = Newest();
  EXPECT_EQ(created.method(), "Trust/CreateToken");
  EXPECT_EQ(created.object(), "token/" + token_id);
  EXPECT_THAT(std::vector<std::string>(created.details().begin(), created.details().end()),
              ::testing::ElementsAre("role submitter", "user sue"));
  Client sue = Of(token), sam = Of("submit-token-1234");
  const std::string job = sue.MustSubmit("hers");
  const AuditEntry submitted = Newest();
  EXPECT_EQ(submitted.user(), "sue");
  EXPECT_EQ(submitted.role(), "submitter");
  EXPECT_EQ(submitted.token_id(), token_id);
  EXPECT_EQ(submitted.object(), "job/" + job);
  EXPECT_EQ(submitted.code(), "OK");
  EXPECT_EQ(submitted.message(), "");
  CancelRequest cancel;
  cancel.set_job(job);
  CancelReply cancelled;
  ASSERT_EQ(sam.jobs().Cancel(sam.Context().get(), cancel, &cancelled).error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  const AuditEntry denied = Newest();
  EXPECT_EQ(denied.user(), "sam");
  EXPECT_EQ(denied.token_id(), "");
  EXPECT_EQ(denied.object(), "job/" + job);
  EXPECT_EQ(denied.code(), "PERMISSION_DENIED");
  EXPECT_THAT(denied.message(), HasSubstr("to be its owner, sue"));
  EXPECT_EQ(denied.number(), submitted.number() + 1);
  // Found by each of the filters, and by none that does not fit.
  const auto count = [&](void (*set)(ListAuditRequest&)) {
    ListAuditRequest request;
    set(request);
    return Entries(request).size();
  };
  EXPECT_EQ(count([](ListAuditRequest& r) { r.set_user("sam"); }), 1u);
  EXPECT_EQ(count([](ListAuditRequest& r) { r.set_method("Cancel"); }), 1u);
  EXPECT_EQ(count([](ListAuditRequest& r) { r.set_method("Jobs"); }), 2u);
  EXPECT_EQ(count([](ListAuditRequest& r) { r.set_method("Jobs/Submit"); }), 1u);
  EXPECT_EQ(count([](ListAuditRequest& r) { r.set_method("ancel"); }), 0u);
  EXPECT_EQ(count([](ListAuditRequest& r) { r.set_object("job/hers"); }), 2u);
  EXPECT_EQ(count([](ListAuditRequest& r) { r.mutable_since()->set_seconds(4'000'000'000); }), 0u);
}

TEST_F(AuditTest, HoldsNoSecrets) {
  std::string token_id;
  const std::string token = MakeToken(TOKEN_ROLE_SUBMITTER, "sue", 0, &token_id);
  Client sue = Of(token);
  JobSpec spec;
  spec.set_name("secret");
  spec.mutable_exec()->add_command("train");
  EnvVar& variable = *spec.add_env();
  variable.set_name("API_KEY");
  variable.set_value("hunter2-value");
  SubmitReply reply;
  ASSERT_TRUE(sue.Submit("r1", spec, &reply).ok());
  // Refused with a message that repeats the value.
  spec.mutable_resources()->add_node_selector("hunter2");
  EXPECT_EQ(sue.Submit("r2", spec, &reply).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Newest().code(), "INVALID_ARGUMENT");
  std::string all;
  for (const AuditEntry& entry : Entries()) all += entry.DebugString();
  EXPECT_THAT(all, HasSubstr("job/secret"));
  EXPECT_THAT(all, Not(HasSubstr("hunter2")));
  EXPECT_THAT(all, Not(HasSubstr(token.substr(token.rfind('.') + 1)))) << "the secret of the token";
}

// An admin who pastes a token where its id belongs.
TEST_F(AuditTest, ATokenInPlaceOfItsIdIsNotRecorded) {
  std::string id;
  const std::string token = MakeToken(TOKEN_ROLE_SUBMITTER, "sue", 0, &id);
  const std::string secret = token.substr(token.rfind('.') + 1);
  ASSERT_EQ(secret.size(), 32u);
  for (const std::string& pasted : {token, " " + token + "\n", id + "." + secret, secret}) {
    RevokeTokenRequest request;
    request.set_id(pasted);
    RevokeTokenReply reply;
    const grpc::Status status = client_->trust().RevokeToken(client_->Context().get(), request, &reply);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(status.error_message(), "id: expected a token's id (muster coordinator token ls), not the token");
    const AuditEntry entry = Newest();
    EXPECT_EQ(entry.object(), "token/");
    EXPECT_EQ(entry.code(), "INVALID_ARGUMENT");
  }
  std::string all;
  for (const AuditEntry& entry : Entries()) all += entry.DebugString();
  for (size_t i = 0; i + 8 <= secret.size(); ++i) EXPECT_THAT(all, Not(HasSubstr(secret.substr(i, 8)))) << i;
  RevokeTokenRequest request;
  request.set_id(id);
  RevokeTokenReply reply;
  EXPECT_TRUE(client_->trust().RevokeToken(client_->Context().get(), request, &reply).ok());
}

// Nor in place of the name of anything else.
TEST_F(AuditTest, ATokenInPlaceOfAnyNameIsRefusedAndNotRecorded) {
  const std::string token = MakeToken(TOKEN_ROLE_SUBMITTER, "sue");
  const std::string secret = token.substr(token.rfind('.') + 1);
  RevokeNodeRequest revoke;
  revoke.set_node(token);
  RevokeNodeReply revoked;
  const grpc::Status status = client_->trust().RevokeNode(client_->Context().get(), revoke, &revoked);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(),
            "expected a node's name or id, not a token (to revoke one: muster coordinator token revoke ID)");
  EXPECT_EQ(Newest().object(), "node/");
  EXPECT_EQ(Newest().code(), "INVALID_ARGUMENT");
  const auto refused = [&](const grpc::Status& other, const std::string& object) {
    EXPECT_EQ(other.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << object;
    EXPECT_THAT(other.error_message(), Not(HasSubstr(secret))) << object;
    EXPECT_EQ(Newest().object(), object);
  };
  DrainRequest drain;
  drain.set_node("  " + token + "\n");
  DrainReply drained;
  refused(client_->nodes().Drain(client_->Context().get(), drain, &drained), "node/");
  ForgetRequest forget;
  forget.set_node(token);
  ForgetReply forgotten;
  refused(client_->nodes().Forget(client_->Context().get(), forget, &forgotten), "node/");
  CancelRequest cancel;
  cancel.set_job(token);
  CancelReply cancelled;
  refused(client_->jobs().Cancel(client_->Context().get(), cancel, &cancelled), "job/");
  BackupRequest backup;
  backup.set_path("/nowhere/" + token);
  BackupReply backed_up;
  refused(client_->admin().Backup(client_->Context().get(), backup, &backed_up), "file/");
  DeleteProjectRequest project;
  project.set_name(token);
  DeleteProjectReply deleted;
  refused(client_->admin().DeleteProject(client_->Context().get(), project, &deleted), "project/");
  // As a label it may stand, but it is not repeated.
  LabelRequest label;
  label.set_job(client_->MustSubmit("a"));
  label.add_remove(token);
  LabelReply labeled;
  EXPECT_TRUE(client_->jobs().Label(client_->Context().get(), label, &labeled).ok());
  EXPECT_EQ(Newest().method(), "Jobs/Label");
  // The id of a node may look like the beginning of a token.
  drain.set_node("muster1.cluster.local");
  EXPECT_EQ(client_->nodes().Drain(client_->Context().get(), drain, &drained).error_code(),
            grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(Newest().object(), "node/muster1.cluster.local");
  std::string all;
  for (const AuditEntry& entry : Entries()) all += entry.DebugString();
  EXPECT_THAT(all, Not(HasSubstr(secret.substr(0, 8))));
}

// Of entries that are as large as they can be.
TEST_F(AuditTest, ARepliesBytesAreBounded) {
  const std::string job = client_->MustSubmit("a");
  LabelRequest label;
  label.set_job(job);
  for (int i = 0; i < 60; ++i) label.add_remove(std::string(200, 'x'));
  label.add_set("");
  LabelReply labeled;
  constexpr int kCalls = 300;
  for (int i = 0; i < kCalls; ++i) {
    label.set_set(0, absl::StrCat("round=", i));
    const grpc::Status status = client_->jobs().Label(client_->Context().get(), label, &labeled);
    ASSERT_TRUE(status.ok()) << status.error_message();
  }
  ListAuditRequest request;
  std::vector<uint64_t> numbers;
  int replies = 0;
  do {
    ListAuditReply reply;
    const grpc::Status status = client_->admin().ListAudit(client_->Context().get(), request, &reply);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_LE(reply.ByteSizeLong(), (size_t{3} << 20) + 1024);
    for (const AuditEntry& entry : reply.entries()) numbers.push_back(entry.number());
    request.set_page(reply.next_page());
    ++replies;
  } while (!request.page().empty());
  EXPECT_EQ(replies, 2);
  ASSERT_EQ(numbers.size(), size_t{kCalls} + 1);
  for (size_t i = 0; i < numbers.size(); ++i) EXPECT_EQ(numbers[i], numbers.size() - i);
}

// What is left out of the details would be a change that the log does not show.
TEST_F(AuditTest, MoreLabelsThanAnEntryShowsAreRefused) {
  LabelRequest label;
  label.set_job(client_->MustSubmit("a"));
  for (int i = 0; i < 127; ++i) label.add_remove("none");
  label.add_set("team=nlp");
  LabelReply labeled;
  ASSERT_TRUE(client_->jobs().Label(client_->Context().get(), label, &labeled).ok());
  EXPECT_EQ(Newest().details_size(), 128);
  label.add_set("team=vision");
  const grpc::Status status = client_->jobs().Label(client_->Context().get(), label, &labeled);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(), "at most 128 labels may be set and removed at once");
  EXPECT_EQ(Newest().code(), "INVALID_ARGUMENT");
}

TEST_F(AuditTest, LastsAndIsReadInPages) {
  for (int i = 0; i < 5; ++i) client_->MustSubmit(absl::StrCat("job-", i));
  server_->Shutdown();
  server_.reset();
  Start();
  client_->MustSubmit("after");
  ListAuditRequest request;
  request.set_limit(4);
  ListAuditReply first, second;
  ASSERT_TRUE(client_->admin().ListAudit(client_->Context().get(), request, &first).ok());
  request.set_page(first.next_page());
  ASSERT_TRUE(client_->admin().ListAudit(client_->Context().get(), request, &second).ok());
  ASSERT_EQ(first.entries_size(), 4);
  ASSERT_EQ(second.entries_size(), 2);
  EXPECT_EQ(second.next_page(), "");
  EXPECT_EQ(first.entries(0).number(), 6u);
  EXPECT_EQ(second.entries(1).number(), 1u);
  request.set_page("x");
  EXPECT_EQ(client_->admin().ListAudit(client_->Context().get(), request, &first).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

// Who is refused over and over does not push the others out of the log.
TEST_F(AuditTest, RefusalsOfOneUserAreBounded) {
  Client vera = Of("viewer-token-1234");
  client_->MustSubmit("first");
  DrainRequest request;
  DrainReply reply;
  constexpr int kCalls = 200;
  const absl::Time begin = absl::Now();
  for (int i = 0; i < kCalls; ++i) {
    request.set_node(absl::StrCat("n", i));
    EXPECT_EQ(vera.nodes().Drain(vera.Context().get(), request, &reply).error_code(),
              grpc::StatusCode::PERMISSION_DENIED);
  }
  ListAuditRequest of_vera;
  of_vera.set_user("vera");
  // 60 in each minute; another one begins where the calls take long. Exactly, with a fake clock: audit_limit_test.cc.
  const std::vector<AuditEntry> entries = Entries(of_vera);
  const auto minutes = static_cast<size_t>((absl::Now() - begin) / absl::Minutes(1)) + 1;
  EXPECT_GE(entries.size(), 60u);
  EXPECT_LE(entries.size(), 60 * minutes);
}

TEST_F(AuditTest, LabelsAndNotes) {
  const std::string job = client_->MustSubmit("a"), other = client_->MustSubmit("b");
  LabelRequest label;
  label.set_job(job);
  label.add_set("team=nlp");
  label.add_set("stage=test");
  LabelReply labeled;
  ASSERT_TRUE(client_->jobs().Label(client_->Context().get(), label, &labeled).ok());
  EXPECT_THAT(labeled.job().labels(), ::testing::ElementsAre("stage=test", "team=nlp"));
  const AuditEntry entry = Newest();
  EXPECT_EQ(entry.object(), "job/" + job);
  EXPECT_THAT(entry.details(), ::testing::ElementsAre("set team=nlp", "set stage=test"));
  NoteRequest note;
  note.set_job(job);
  note.set_text("diverged");
  NoteReply noted;
  ASSERT_TRUE(client_->jobs().Note(client_->Context().get(), note, &noted).ok());
  EXPECT_EQ(noted.job().note(), "diverged");
  const auto listed = [&](std::vector<std::string> selector) {
    ListJobsRequest request;
    request.mutable_selector()->Assign(selector.begin(), selector.end());
    ListJobsReply reply;
    const grpc::Status status = client_->jobs().List(client_->Context().get(), request, &reply);
    if (!status.ok()) return std::vector<std::string>{status.error_message()};
    std::vector<std::string> ids;
    for (const JobSummary& summary : reply.jobs()) ids.push_back(summary.job().id());
    return ids;
  };
  EXPECT_THAT(listed({"team=nlp"}), ::testing::ElementsAre(job));
  EXPECT_THAT(listed({"team!=nlp"}), ::testing::ElementsAre(other));
  EXPECT_THAT(listed({"team=nlp", "stage=prod"}), IsEmpty());
  EXPECT_THAT(listed({"team"})[0], HasSubstr("selector: expected KEY=VALUE or KEY!=VALUE"));
}

}  // namespace
}  // namespace muster::server
