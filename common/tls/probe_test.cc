// Against the test's own TLS server, which can be any kind of wrong peer.
#include "common/tls/probe.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <openssl/pem.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/tls/openssl.h"

namespace muster::tls {
namespace {

KeyPair ProbedAuthority() {
  const std::string key = MakeKey().value();
  return {MakeAuthority(key, "an authority", ValidFor(absl::Hours(1), absl::Now())).value(), key};
}

KeyPair Signed(const KeyPair& authority, const Issue& issue) {
  const std::string key = MakeKey().value();
  return {Sign(MakeRequest(key, issue.name).value(), authority, issue).value() + authority.certificate, key};
}

Validity Hour() { return ValidFor(absl::Hours(1), absl::Now()); }

// Accepts one connection after another; without a key pair it answers in plain text.
class Server {
 public:
  Server(const KeyPair& pair, const std::string& clients_authority = "") : context_(SSL_CTX_new(TLS_server_method())) {
    fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(fd_, 8), 0);
    getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    if (pair.key.empty()) {
      context_.reset();
    } else {
      const Bio bio = BioOf(pair.certificate);
      const X509Object own(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
      X509* next = PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr);
      const Key key(PEM_read_bio_PrivateKey(BioOf(pair.key).get(), nullptr, nullptr, nullptr));
      EXPECT_EQ(SSL_CTX_use_certificate(context_.get(), own.get()), 1);
      EXPECT_EQ(SSL_CTX_add_extra_chain_cert(context_.get(), next), 1);
      EXPECT_EQ(SSL_CTX_use_PrivateKey(context_.get(), key.get()), 1);
    }
    if (!clients_authority.empty()) {
      const X509Object ca(PEM_read_bio_X509(BioOf(clients_authority).get(), nullptr, nullptr, nullptr));
      X509_STORE_add_cert(SSL_CTX_get_cert_store(context_.get()), ca.get());
      SSL_CTX_set_verify(context_.get(), SSL_VERIFY_PEER, nullptr);
    }
    thread_ = std::thread([this] { Serve(); });
  }
  ~Server() {
    shutdown(fd_, SHUT_RDWR);
    thread_.join();
    close(fd_);
  }
  std::string At(const std::string& host) const { return absl::StrCat(host, ":", port_); }

 private:
  void Serve() {
    for (int peer = accept(fd_, nullptr, nullptr); peer >= 0; peer = accept(fd_, nullptr, nullptr)) {
      if (context_ == nullptr) {
        EXPECT_GT(send(peer, "HTTP/1.1 400\r\n\r\n", 16, MSG_NOSIGNAL), 0);
      } else {
        const SslConnection ssl(SSL_new(context_.get()));
        SSL_set_fd(ssl.get(), peer);
        if (SSL_accept(ssl.get()) == 1) SSL_write(ssl.get(), "x", 1);
        TakeError();
      }
      close(peer);
    }
  }
  SslContext context_;
  int fd_ = -1;
  int port_ = 0;
  std::thread thread_;
};

void ExpectRefusal(const absl::Status& status, absl::StatusCode code, const std::string& words) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), words)) << status;
}

TEST(Probe, SaysWhyAPeerIsNotBelieved) {
  signal(SIGPIPE, SIG_IGN);
  const KeyPair authority = ProbedAuthority();
  const absl::Time now = absl::Now();
  const Server good(Signed(authority, {Use::kServer, "c", {"localhost", "127.0.0.1"}, Hour()}));
  const Server named(Signed(authority, {Use::kServer, "c", {"gpu-head"}, Hour()}));
  const Server old(Signed(authority, {Use::kServer, "c", {"127.0.0.1"}, {now - absl::Hours(2), now - absl::Hours(1)}}));
  const Server early(
      Signed(authority, {Use::kServer, "c", {"127.0.0.1"}, {now + absl::Hours(1), now + absl::Hours(2)}}));
  const Server plain(KeyPair{});
  const ProbeOptions options = {.authority = authority.certificate};
  for (const char* host : {"127.0.0.1", "localhost"}) {
    const auto shown = Probe(good.At(host), options);
    ASSERT_TRUE(shown.ok()) << shown.status();
    EXPECT_EQ(shown->size(), 2u);
  }
  const auto code = absl::StatusCode::kFailedPrecondition;
  ExpectRefusal(Probe(good.At("127.0.0.1"), {.authority = ProbedAuthority().certificate}).status(), code,
                "not signed by the authority");
  ExpectRefusal(Probe(named.At("127.0.0.1"), options).status(), code, "is for gpu-head");
  ExpectRefusal(Probe(named.At("localhost"), options).status(), code, "is for gpu-head");
  ExpectRefusal(Probe(old.At("127.0.0.1"), options).status(), code, "expired on");
  ExpectRefusal(Probe(early.At("127.0.0.1"), options).status(), code, "clock");
  ExpectRefusal(Probe(plain.At("127.0.0.1"), options).status(), absl::StatusCode::kUnavailable, "does not speak TLS");
  ExpectRefusal(Probe("127.0.0.1:1", options).status(), absl::StatusCode::kUnavailable, "no server answers");
  ExpectRefusal(Probe("nowhere", options).status(), absl::StatusCode::kInvalidArgument, "HOST:PORT");
}

TEST(Probe, KnowsWhetherAPeerSpeaksTls) {
  signal(SIGPIPE, SIG_IGN);
  const Server tls(Signed(ProbedAuthority(), {Use::kServer, "c", {"gpu-head"}, Hour()})), plain(KeyPair{});
  EXPECT_TRUE(SpeaksTls(tls.At("127.0.0.1")));
  EXPECT_FALSE(SpeaksTls(plain.At("127.0.0.1")));
  EXPECT_FALSE(SpeaksTls("127.0.0.1:1"));
}

TEST(Probe, SilentPeerEndsAtTheTimeout) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(fd, 8), 0);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  ExpectRefusal(
      Probe(absl::StrCat("127.0.0.1:", ntohs(address.sin_port)), {.timeout = absl::Milliseconds(100)}).status(),
      absl::StatusCode::kUnavailable, "no answer");
  close(fd);
}

TEST(Probe, SaysWhenThePeerDoesNotTakeOurCertificate) {
  signal(SIGPIPE, SIG_IGN);
  const KeyPair authority = ProbedAuthority(), other = ProbedAuthority();
  const Server server(Signed(authority, {Use::kServer, "c", {"127.0.0.1"}, Hour()}), authority.certificate);
  const auto probe = [&](const KeyPair& client) {
    return Probe(server.At("127.0.0.1"), {authority.certificate, client}).status();
  };
  EXPECT_TRUE(probe(Signed(authority, {Use::kNode, "n", {}, Hour()})).ok());
  const absl::Time now = absl::Now();
  const auto code = absl::StatusCode::kUnauthenticated;
  ExpectRefusal(probe(Signed(other, {Use::kNode, "n", {}, Hour()})), code, "does not accept our certificate");
  ExpectRefusal(probe(Signed(authority, {Use::kNode, "n", {}, {now - absl::Hours(2), now - absl::Hours(1)}})), code,
                "expired");
}

TEST(FetchAuthority, BelievesOnlyThePinnedOne) {
  signal(SIGPIPE, SIG_IGN);
  const KeyPair authority = ProbedAuthority(), other = ProbedAuthority();
  const std::string pin = ReadCertificate(authority.certificate)->sha256;
  const Server good(Signed(authority, {Use::kServer, "c", {"127.0.0.1"}, Hour()}));
  const auto fetched = FetchAuthority(good.At("127.0.0.1"), pin);
  ASSERT_TRUE(fetched.ok()) << fetched.status();
  EXPECT_EQ(*fetched, authority.certificate);
  const Server foreign(Signed(other, {Use::kServer, "c", {"127.0.0.1"}, Hour()}));
  ExpectRefusal(FetchAuthority(foreign.At("127.0.0.1"), pin).status(), absl::StatusCode::kFailedPrecondition,
                "not the one that made this token");
  // Shows the right authority, but is not signed by it: a man in the middle has ca.crt too, which is no secret.
  KeyPair liar = Signed(other, {Use::kServer, "c", {"127.0.0.1"}, Hour()});
  liar.certificate = SplitCertificates(liar.certificate)->front() + authority.certificate;
  const Server between(liar);
  ExpectRefusal(FetchAuthority(between.At("127.0.0.1"), pin).status(), absl::StatusCode::kFailedPrecondition,
                "not signed by the authority");
}

}  // namespace
}  // namespace muster::tls
