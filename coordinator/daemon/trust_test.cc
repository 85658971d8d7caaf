// Joining, node certificates and tokens, over real TLS.
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "common/file/durable_file.h"
#include "common/file/read_file.h"
#include "coordinator/daemon/trust_fixture_test.h"
#include "testing/fake_worker.h"
#include "testing/wait.h"

namespace muster::server {
namespace {

using Code = grpc::StatusCode;

class TrustTest : public TrustFixture {
 protected:
  TrustTest() { Start(); }

  grpc::Status ListNodesWith(const std::string& token, const rpc::Security& security) {
    Client client(tls_address(), token, security);
    ListNodesReply reply;
    return client.nodes().List(client.Context().get(), {}, &reply);
  }

  // A call that only a node may make.
  grpc::Status RenewWith(const rpc::Security& security, const std::string& key, RenewReply* reply) {
    Client client(tls_address(), "", security);
    RenewRequest request;
    request.set_certificate_request(tls::MakeRequest(key, "whatever").value());
    return client.trust().Renew(client.Context().get(), request, reply);
  }
  grpc::Status RenewWith(const rpc::Security& security) {
    RenewReply reply;
    return RenewWith(security, security.own.key, &reply);
  }

  static RankKey Key(const std::string& job, uint64_t generation, uint32_t rank) {
    RankKey key;
    key.set_job(job);
    key.set_generation(generation);
    key.set_rank(rank);
    return key;
  }
};

void Expect(const grpc::Status& status, Code code, const std::string& words) {
  EXPECT_EQ(status.error_code(), code) << status.error_message();
  EXPECT_TRUE(absl::StrContains(status.error_message(), words)) << status.error_message();
}

TEST_F(TrustTest, AJoinedNodeRunsAJob) {
  const rpc::Security node = MustJoin("n1");
  EXPECT_EQ(tls::ReadCertificate(node.own.certificate)->name, "n1");
  FakeWorker worker(tls_address(), {.security = node});
  ASSERT_TRUE(worker.WaitForWelcome());
  const std::string job = client_->MustSubmit("a");
  RankKey key;
  ASSERT_TRUE(worker.WaitForRun(&key));
  worker.RunToTheEnd(key, kSmallSteps);
  EXPECT_TRUE(Eventually([&] { return client_->StateOf(job) == JOB_STATE_COMPLETED; }));
}

TEST_F(TrustTest, ANodeSpeaksForItselfOnly) {
  const rpc::Security a = MustJoin("a"), b = MustJoin("b");
  FakeWorker liar(tls_address(), {.node = "b", .incarnation = "i9", .boot = "boot9", .security = a});
  grpc::Status status;
  ASSERT_TRUE(liar.WaitForEnd(&status));
  Expect(status, Code::PERMISSION_DENIED, "certificate is for node a, it cannot speak for node b");

  FakeWorker worker(tls_address(), {.node = "b", .boot = "boot1", .security = b});
  ASSERT_TRUE(worker.WaitForWelcome());
  client_->MustSubmit("job");
  RankKey key;
  std::string table_sha256;
  ASSERT_TRUE(worker.WaitForRun(&key, &table_sha256));
  FakeWorker other(tls_address(), {.node = "a", .incarnation = "i2", .boot = "boot2", .security = a});
  ASSERT_TRUE(other.WaitForWelcome());
  // A report of node a about a rank of node b changes nothing: its records are acknowledged, so that a forgets them,
  // and dropped.
  other.SendRecords(key, {RunningRecord(1), FinishedRecord(2, kSmallSteps)});
  other.SendObserved(key, RANK_STATE_EXITED, RankExit::COMPLETED);
  ASSERT_TRUE(other.WaitForRecordsAck(2));
  other.SendHeartbeat(7);
  ASSERT_TRUE(other.WaitForHeartbeat(7));  // so everything before it was handled
  EXPECT_EQ(client_->StateOf(key.job()), JOB_STATE_STARTING);

  Client of_a(tls_address(), "", a), of_b(tls_address(), "", b);
  RendezvousSetRequest set;
  *set.mutable_key() = key;
  set.set_name("id");
  set.set_value("x");
  RendezvousSetReply set_reply;
  RendezvousGetRequest get;
  *get.mutable_key() = key;
  get.set_name("id");
  RendezvousGetReply get_reply;
  Expect(of_a.workers().RendezvousSet(of_a.Context().get(), set, &set_reply), Code::PERMISSION_DENIED,
         "was not placed on node a");
  Expect(of_a.workers().RendezvousGet(of_a.Context().get(), get, &get_reply), Code::PERMISSION_DENIED,
         "was not placed on node a");
  FetchTableRequest fetch;
  *fetch.mutable_key() = key;
  fetch.set_table_sha256(table_sha256);
  const auto table = [&](Client& client) {
    const auto context = client.Context();
    const auto reader = client.workers().FetchTable(context.get(), fetch);
    TableChunk chunk;
    while (reader->Read(&chunk)) continue;
    return reader->Finish();
  };
  Expect(table(of_a), Code::PERMISSION_DENIED, "was not placed on node a");
  EXPECT_TRUE(table(of_b).ok());
  EXPECT_TRUE(of_b.workers().RendezvousSet(of_b.Context().get(), set, &set_reply).ok());
  EXPECT_TRUE(of_b.workers().RendezvousGet(of_b.Context().get(), get, &get_reply).ok());
  EXPECT_EQ(get_reply.value(), "x");
  SyncRequest sync;
  *sync.mutable_key() = key;
  SyncReply sync_reply;
  Expect(of_a.workers().Sync(of_a.Context().get(), sync, &sync_reply), Code::PERMISSION_DENIED,
         "was not placed on node a");
  Expect(of_b.workers().Sync(of_b.Context().get(), sync, &sync_reply), Code::INVALID_ARGUMENT, "has no replicas");
}

TEST_F(TrustTest, ANodeIdBelongsToTheKeyThatJoinedFirst) {
  const std::string token = MakeToken(TOKEN_ROLE_WORKER, "");
  const std::string key = tls::MakeKey().value();
  JoinReply reply;
  ASSERT_TRUE(Join(token, "n1", key, &reply).ok());
  EXPECT_TRUE(Join(token, "n1", key, &reply).ok());  // a retry
  Expect(Join(token, "n1", tls::MakeKey().value(), &reply), Code::ALREADY_EXISTS, "muster coordinator revoke n1");
  for (const std::string& bad : {std::string(), std::string(65, 'n'), std::string("a b"), std::string("../x")}) {
    Expect(Join(token, bad, key, &reply), Code::INVALID_ARGUMENT, "id of 1 to 64");
  }
  JoinRequest no_request;
  no_request.set_node("n2");
  Client client(tls_address(), token, Plain());
  Expect(client.trust().Join(client.Context().get(), no_request, &reply), Code::INVALID_ARGUMENT, "request");
}

TEST_F(TrustTest, RenewalKeepsTheOldKeyUntilTheNewOneWasUsed) {
  const rpc::Security first = MustJoin("n1");
  const std::string second_key = tls::MakeKey().value(), third_key = tls::MakeKey().value();
  RenewReply reply;
  ASSERT_TRUE(RenewWith(first, second_key, &reply).ok());
  const rpc::Security second = {first.authority, {reply.certificate(), second_key}};
  EXPECT_TRUE(tls::CheckPair(second.own).ok());
  EXPECT_EQ(tls::ReadCertificate(reply.certificate())->name, "n1");
  ASSERT_TRUE(RenewWith(second, third_key, &reply).ok());
  const rpc::Security third = {first.authority, {reply.certificate(), third_key}};
  Expect(RenewWith(first), Code::UNAUTHENTICATED, "not known here");
  EXPECT_TRUE(RenewWith(third).ok());
}

TEST_F(TrustTest, ARevokedNodeIsOutUntilItHasANewKey) {
  const rpc::Security node = MustJoin("n1");
  FakeWorker worker(tls_address(), {.security = node});
  ASSERT_TRUE(worker.WaitForWelcome());
  RevokeNodeRequest request;
  RevokeNodeReply revoked;
  request.set_node("n2");
  Expect(client_->trust().RevokeNode(client_->Context().get(), request, &revoked), Code::NOT_FOUND, "n2");
  request.set_node("n1");
  ASSERT_TRUE(client_->trust().RevokeNode(client_->Context().get(), request, &revoked).ok());
  grpc::Status status;
  ASSERT_TRUE(worker.WaitForEnd(&status));
  Expect(status, Code::UNAUTHENTICATED, "revoked");
  FakeWorker again(tls_address(), {.incarnation = "i2", .security = node});
  ASSERT_TRUE(again.WaitForEnd(&status));
  Expect(status, Code::UNAUTHENTICATED, "join again");
  const std::string token = MakeToken(TOKEN_ROLE_WORKER, "");
  JoinReply reply;
  Expect(Join(token, "n1", node.own.key, &reply), Code::ALREADY_EXISTS, "was revoked");
  const std::string key = tls::MakeKey().value();
  ASSERT_TRUE(Join(token, "n1", key, &reply).ok());
  Expect(RenewWith(node), Code::UNAUTHENTICATED, "not known here");
  FakeWorker back(tls_address(), {.incarnation = "i3", .security = {node.authority, {reply.certificate(), key}}});
  EXPECT_TRUE(back.WaitForWelcome());
}

TEST_F(TrustTest, TokensEndWhenTheyAreRevokedOrExpire) {
  std::string id;
  const std::string ann = MakeToken(TOKEN_ROLE_VIEWER, "ann", 0, &id);
  EXPECT_TRUE(ListNodesWith(ann, Plain()).ok());
  RevokeTokenRequest request;
  request.set_id(id);
  RevokeTokenReply reply;
  ASSERT_TRUE(client_->trust().RevokeToken(client_->Context().get(), request, &reply).ok());
  EXPECT_TRUE(reply.info().revoked());
  Expect(ListNodesWith(ann, Plain()), Code::UNAUTHENTICATED, "was revoked");
  EXPECT_TRUE(client_->trust().RevokeToken(client_->Context().get(), request, &reply).ok());
  request.set_id("nowhere");
  Expect(client_->trust().RevokeToken(client_->Context().get(), request, &reply), Code::NOT_FOUND, "token ls");

  const std::string brief = MakeToken(TOKEN_ROLE_WORKER, "", 1);
  grpc::Status status;
  JoinReply joined;
  const std::string key = tls::MakeKey().value();
  EXPECT_TRUE(Eventually([&] {
    status = Join(brief, "n1", key, &joined);
    return !status.ok();
  }));
  Expect(status, Code::UNAUTHENTICATED, "expired on");
  ListTokensReply list;
  ASSERT_TRUE(client_->trust().ListTokens(client_->Context().get(), {}, &list).ok());
  ASSERT_EQ(list.tokens_size(), 2);
  for (const TokenInfo& info : list.tokens()) EXPECT_FALSE(absl::StrContains(ann + brief, info.DebugString()));
}

TEST_F(TrustTest, AnOpenStreamEndsWhenItsTokenIsRevoked) {
  std::string id, other_id;
  const std::string ann = MakeToken(TOKEN_ROLE_VIEWER, "ann", 0, &id), bob = MakeToken(TOKEN_ROLE_VIEWER, "bob");
  const auto watch = [&](const std::string& token) {
    return std::async(std::launch::async, [this, token] {
      Client client(tls_address(), token, Plain());
      WatchRequest request;
      request.set_follow(true);
      std::vector<WatchItem> items;
      return client.Watch(request, &items, [](const std::vector<WatchItem>& all) {
        for (const WatchItem& item : all) {
          if (item.event().kind() == "job.queued" && item.job().rfind("last", 0) == 0) return true;
        }
        return false;
      });
    });
  };
  std::future<grpc::Status> anns = watch(ann), bobs = watch(bob);
  client_->MustSubmit("first");
  absl::SleepFor(absl::Milliseconds(300));  // both have read it and wait for more
  RevokeTokenRequest request;
  request.set_id(id);
  RevokeTokenReply reply;
  ASSERT_TRUE(client_->trust().RevokeToken(client_->Context().get(), request, &reply).ok());
  ASSERT_EQ(anns.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  Expect(anns.get(), Code::UNAUTHENTICATED, "was revoked");
  client_->MustSubmit("last");
  EXPECT_TRUE(bobs.get().ok()) << "another's goes on";
}

// The coordinator's clock was a year ahead when it made its certificate; then it was mended.
TEST_F(TrustTest, ACertificateFromTheFutureIsReplacedWithoutARestart) {
  options_.certificate_check = absl::Seconds(2);
  server_.reset();
  Start();
  const std::string token = MakeToken(TOKEN_ROLE_VIEWER, "ann");
  ASSERT_TRUE(ListNodesWith(token, Plain()).ok());
  const std::string folder = tls::TrustFolderOf(options_.state_dir), key = tls::MakeKey().value();
  const absl::Time later = absl::Now() + absl::Hours(24 * 365);
  const std::string future =
      tls::Sign(tls::MakeRequest(key, "muster coordinator").value(), trust_.authority,
                {tls::Use::kServer, "muster coordinator", {"127.0.0.1"}, {later, later + absl::Hours(24 * 825)}})
          .value();
  ASSERT_TRUE(WriteDurably(folder + "/server.key", key).ok());
  ASSERT_TRUE(WriteDurably(folder + "/server.crt", future + trust_.authority.certificate).ok());
  // Either it is served for a moment and refused, or it is replaced before that.
  absl::SleepFor(absl::Seconds(3));
  EXPECT_TRUE(Eventually([&] { return ListNodesWith(token, Plain()).ok(); }));
  const tls::Certificate now = tls::ReadCertificate(ReadWhole(folder + "/server.crt").value()).value();
  EXPECT_LE(now.validity.begin, absl::Now());
  EXPECT_GT(now.validity.end, absl::Now() + absl::Hours(24 * 600));
  EXPECT_LE(now.validity.end, absl::Now() + absl::Hours(24 * 826));
}

// By a clock that is ahead: what it makes is valid for others, and after it was mended.
TEST_F(TrustTest, CertificatesMadeByAWrongClockAreValidForOthers) {
  for (const absl::Duration wrong : {absl::Hours(24 * 365 * 3), -absl::Hours(24 * 365 * 3)}) {
    const auto made = tls::MakeTrust(options_.state_dir, {"127.0.0.1"}, absl::Now() + wrong);
    ASSERT_TRUE(made.ok()) << made.status();
    EXPECT_LE(made->server_facts.validity.begin, absl::Now());
    EXPECT_GT(made->server_facts.validity.end, absl::Now() + absl::Hours(24 * 600));
  }
}

// Else the certificate would end at once, or years too late, by the node's clock, and the key that joined would be
// spent.
TEST_F(TrustTest, NoNodeGetsACertificateByAClockThatDiffersFromItsOwn) {
  const std::string token = MakeToken(TOKEN_ROLE_WORKER, ""), key = tls::MakeKey().value();
  const auto join = [&](absl::Duration ahead, JoinReply* reply) {
    Client client(tls_address(), token, Plain());
    JoinRequest request;
    request.set_node("n1");
    request.set_certificate_request(tls::MakeRequest(key, "whatever").value());
    const auto context = client.Context();
    rpc::AddTime(absl::Now() + ahead, *context);
    return client.trust().Join(context.get(), request, reply);
  };
  JoinReply reply;
  for (const auto& [ahead, words] : {std::pair(-absl::Hours(24 * 365), "behind the coordinator's"),
                                     {absl::Hours(24 * 365), "ahead of the coordinator's"}}) {
    const grpc::Status status = join(ahead, &reply);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
    EXPECT_TRUE(absl::StrContains(status.error_message(), words)) << status.error_message();
  }
  EXPECT_TRUE(join(absl::Minutes(10), &reply).ok()) << "the token was not used up";
  const rpc::Security node{trust_.authority.certificate, {reply.certificate(), key}};
  Client renewing(tls_address(), "", node);
  RenewRequest request;
  request.set_certificate_request(tls::MakeRequest(tls::MakeKey().value(), "whatever").value());
  RenewReply renewed;
  const auto context = renewing.Context();
  rpc::AddTime(absl::Now() - absl::Hours(30), *context);
  EXPECT_EQ(renewing.trust().Renew(context.get(), request, &renewed).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_TRUE(renewing.trust().Renew(renewing.Context().get(), request, &renewed).ok())
      << "an older worker says no time";
}

TEST_F(TrustTest, OnlyItsOwnAuthorityOpensAConnection) {
  const std::string key = tls::MakeKey().value();
  const std::string other = tls::MakeAuthority(key, "other", tls::ValidFor(absl::Hours(1), absl::Now())).value();
  const std::string ann = MakeToken(TOKEN_ROLE_VIEWER, "ann");
  // The client refuses a server of another authority,
  EXPECT_EQ(ListNodesWith(ann, {other, {}}).error_code(), Code::UNAVAILABLE);
  // plain text is not understood,
  EXPECT_EQ(ListNodesWith(ann, {}).error_code(), Code::UNAVAILABLE);
  // and the server refuses nodes of another authority, or with an expired certificate.
  const std::string node_key = tls::MakeKey().value();
  const std::string request = tls::MakeRequest(node_key, "n").value();
  const auto with = [&](const tls::KeyPair& authority, const tls::Validity& validity) -> rpc::Security {
    const auto certificate = tls::Sign(request, authority, {tls::Use::kNode, "n", {}, validity});
    return {trust_.authority.certificate, {certificate.value(), node_key}};
  };
  const absl::Time now = absl::Now();
  EXPECT_EQ(RenewWith(with({other, key}, tls::ValidFor(absl::Hours(1), now))).error_code(), Code::UNAVAILABLE);
  EXPECT_EQ(RenewWith(with(trust_.authority, {now - absl::Hours(2), now - absl::Hours(1)})).error_code(),
            Code::UNAVAILABLE);
  // A certificate that our authority signed, but that was not issued for a token.
  Expect(RenewWith(with(trust_.authority, tls::ValidFor(absl::Hours(1), now))), Code::UNAUTHENTICATED,
         "not known here");
  // The coordinator's own certificate is not a node certificate.
  EXPECT_EQ(RenewWith({trust_.authority.certificate, trust_.server}).error_code(), Code::UNAVAILABLE);
}

TEST_F(TrustTest, TokensAndNodesOutliveARestart) {
  const rpc::Security node = MustJoin("n1");
  const std::string ann = MakeToken(TOKEN_ROLE_VIEWER, "ann");
  server_->Shutdown();
  server_.reset();
  Start();
  EXPECT_TRUE(ListNodesWith(ann, Plain()).ok());
  EXPECT_TRUE(RenewWith(node).ok());
}

// The machine's wall clock plus an offset.
class ShiftedClock final : public Clock {
 public:
  Now Read() const override {
    Now now = real_.Read();
    now.wall += absl::Hours(hours_.load());
    return now;
  }
  void ShiftHours(int hours) { hours_ = hours; }

 private:
  const RealClock real_{};
  std::atomic<int> hours_ = 0;
};

// The clocks of both ran ahead when the node joined; then they were mended.
TEST_F(TrustTest, ANodesCertificateFromTheFutureIsValidOnceTheClockIsRight) {
  server_.reset();
  ShiftedClock clock;
  clock.ShiftHours(24 * 365);
  auto server = Server::Start(options_, &clock);
  ASSERT_TRUE(server.ok()) << server.status();
  server_ = *std::move(server);
  client_ = std::make_unique<Client>(address());
  const rpc::Security node = MustJoin("n1");
  const tls::Validity validity = tls::ReadCertificate(node.own.certificate)->validity;
  EXPECT_EQ(validity.begin, trust_.authority_facts.validity.begin);
  EXPECT_GT(validity.end, absl::Now() + absl::Hours(24 * 380));
  clock.ShiftHours(0);
  RenewReply reply;
  const std::string key = tls::MakeKey().value();
  const grpc::Status renewed = RenewWith(node, key, &reply);
  ASSERT_TRUE(renewed.ok()) << renewed.error_message();
  EXPECT_LT(tls::ReadCertificate(reply.certificate())->validity.end, absl::Now() + absl::Hours(24 * 31));
  EXPECT_TRUE(RenewWith({node.authority, {reply.certificate(), key}}).ok());
  server_.reset();  // before its clock
}

TEST_F(TrustTest, AConnectionDoesNotOutliveItsCertificate) {
  server_.reset();
  ShiftedClock clock;
  auto server = Server::Start(options_, &clock);
  ASSERT_TRUE(server.ok()) << server.status();
  server_ = *std::move(server);
  client_ = std::make_unique<Client>(address());
  Client node(tls_address(), "", MustJoin("n1"));
  RenewRequest request;
  RenewReply reply;
  const auto renew = [&] { return node.trust().Renew(node.Context().get(), request, &reply); };
  Expect(renew(), Code::INVALID_ARGUMENT, "request");
  clock.ShiftHours(24 * 31);
  Expect(renew(), Code::UNAUTHENTICATED, "has expired: join again");
  clock.ShiftHours(0);
  server_.reset();  // before its clock
}

TEST_F(TrustTest, AddressesBeyondThisMachineAreServed) {
  server_->Shutdown();
  server_.reset();
  options_.listen = {"unix:" + folder_.path() + "/run/c.sock", "0.0.0.0:0"};
  Start();
  const std::string ann = MakeToken(TOKEN_ROLE_VIEWER, "ann");
  const std::string port = tls_address().substr(tls_address().rfind(':'));
  Client client("127.0.0.1" + port, ann, Plain());
  ListNodesReply reply;
  EXPECT_TRUE(client.nodes().List(client.Context().get(), {}, &reply).ok());
}

TEST_F(ServerFixture, WithoutAnAuthorityThereAreNoTokens) {
  Start();
  CreateTokenRequest request;
  request.set_role(TOKEN_ROLE_WORKER);
  CreateTokenReply reply;
  Expect(client_->trust().CreateToken(client_->Context().get(), request, &reply), Code::FAILED_PRECONDITION,
         "muster coordinator init");
}

}  // namespace
}  // namespace muster::server
