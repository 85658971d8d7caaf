#include "common/tls/probe.h"

#include <netdb.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/tls/endpoint.h"
#include "common/tls/openssl.h"

namespace muster::tls {
namespace {

// OpenSSL writes with write(2), which raises SIGPIPE if the peer is gone; that would end a program that has not blocked
// it.
class NoBrokenPipe {
 public:
  NoBrokenPipe() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~NoBrokenPipe() {
    const timespec now{};
    if (sigismember(&before_, SIGPIPE) == 0) sigtimedwait(&pipe_, nullptr, &now);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t pipe_{}, before_{};
};

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  int fd() const { return fd_; }

 private:
  int fd_;
};

absl::StatusOr<Socket> Connect(const std::string& address, const Endpoint& endpoint, absl::Duration timeout) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(endpoint.host.c_str(), endpoint.port.c_str(), &hints, &found); error != 0) {
    return absl::UnavailableError(
        absl::StrCat("the host name in ", address, " is not known (", gai_strerror(error), "): is it spelt right?"));
  }
  const std::unique_ptr<addrinfo, Freer<freeaddrinfo>> all(found);
  int error = 0;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    Socket socket(::socket(one->ai_family, one->ai_socktype | SOCK_CLOEXEC, one->ai_protocol));
    const timeval limit = absl::ToTimeval(timeout);  // also of connect
    setsockopt(socket.fd(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    setsockopt(socket.fd(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (connect(socket.fd(), one->ai_addr, one->ai_addrlen) == 0) return socket;
    error = errno == EINPROGRESS ? ETIMEDOUT : errno;
  }
  return absl::UnavailableError(absl::StrCat("no server answers at ", address, " (", std::strerror(error),
                                             "): is the coordinator running, and does it listen there?"));
}

std::string Date(absl::Time time) { return absl::FormatTime("%Y-%m-%d %H:%M", time, absl::UTCTimeZone()) + " UTC"; }

// Why the peer's certificate is not trusted.
absl::Status Judge(const std::string& address, long verification, const Certificate& peer) {
  const std::string who = absl::StrCat("the coordinator at ", address);
  switch (verification) {
    case X509_V_OK:
      return absl::OkStatus();
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return absl::FailedPreconditionError(
          absl::StrCat("the certificate of ", who, " expired on ", Date(peer.validity.end),
                       ": restart the coordinator, which renews it; or this machine's clock is wrong"));
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return absl::FailedPreconditionError(absl::StrCat("the certificate of ", who, " is valid from ",
                                                        Date(peer.validity.begin),
                                                        " only: this machine's clock, or that one's, is wrong"));
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
      return absl::FailedPreconditionError(absl::StrCat(
          "the certificate of ", who, " is for ", absl::StrJoin(peer.hosts, ", "),
          ": use one of these names, or add this one there with `muster coordinator init --host` and restart it"));
    default:
      return absl::FailedPreconditionError(
          absl::StrCat(who, " is not the expected one: its certificate is not signed by the authority in use (",
                       X509_verify_cert_error_string(verification),
                       "); take ca.crt or a new token from that coordinator, if it is the right one"));
  }
}

absl::Status Configure(SSL_CTX* context, const ProbeOptions& options) {
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  static constexpr unsigned char kHttp2[] = {2, 'h', '2'};
  SSL_CTX_set_alpn_protos(context, kHttp2, sizeof kHttp2);
  if (!options.authority.empty()) {
    const Bio bio = BioOf(options.authority);
    const X509Object authority(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
    if (authority == nullptr || X509_STORE_add_cert(SSL_CTX_get_cert_store(context), authority.get()) != 1) {
      return absl::InvalidArgumentError(absl::StrCat("the authority's file holds no certificate: ", TakeError()));
    }
  }
  if (options.client.certificate.empty()) return absl::OkStatus();
  const X509Object certificate(PEM_read_bio_X509(BioOf(options.client.certificate).get(), nullptr, nullptr, nullptr));
  const Key key(PEM_read_bio_PrivateKey(BioOf(options.client.key).get(), nullptr, nullptr, nullptr));
  if (certificate == nullptr || key == nullptr || SSL_CTX_use_certificate(context, certificate.get()) != 1 ||
      SSL_CTX_use_PrivateKey(context, key.get()) != 1) {
    return absl::InvalidArgumentError(absl::StrCat("our own certificate or key is damaged: ", TakeError()));
  }
  return absl::OkStatus();
}

// The peer refused the handshake or our certificate (in TLS 1.3 that arrives with its first data).
absl::Status Refusal(const std::string& address, SSL* ssl, int result, bool shown, absl::Duration timeout) {
  const int kind = SSL_get_error(ssl, result);
  const unsigned long error = ERR_peek_last_error();
  const int system = errno;
  const int reason = ERR_GET_REASON(error);
  const std::string text = TakeError();
  const bool timed_out = (kind == SSL_ERROR_SYSCALL || kind == SSL_ERROR_WANT_READ) && system == EAGAIN;
  if (timed_out) {
    return absl::UnavailableError(absl::StrCat("no answer from ", address, " within ", absl::FormatDuration(timeout)));
  }
  if (reason == SSL_R_WRONG_VERSION_NUMBER || reason == SSL_R_UNEXPECTED_MESSAGE || !shown) {
    return absl::UnavailableError(
        absl::StrCat("what answers at ", address, " does not speak TLS with us (", error == 0 ? "it hung up" : text,
                     "): is the port the coordinator's, and was `muster coordinator init` run for it?"));
  }
  return absl::UnauthenticatedError(absl::StrCat("the coordinator at ", address, " does not accept our certificate (",
                                                 error == 0 ? "it hung up" : text,
                                                 "): it has expired, or another authority signed it; join again ",
                                                 "with a token of `muster coordinator token create --role worker`"));
}

}  // namespace

absl::StatusOr<std::vector<std::string>> Probe(const std::string& address, const ProbeOptions& options) {
  const absl::StatusOr<Endpoint> endpoint = ParseEndpoint(address);
  if (!endpoint.ok()) return endpoint.status();
  const SslContext context(SSL_CTX_new(TLS_client_method()));
  if (context == nullptr) return absl::InternalError(absl::StrCat("cannot use TLS: ", TakeError()));
  if (absl::Status status = Configure(context.get(), options); !status.ok()) return status;
  const NoBrokenPipe quiet;
  const absl::StatusOr<Socket> socket = Connect(address, *endpoint, options.timeout);
  if (!socket.ok()) return socket.status();
  const SslConnection ssl(SSL_new(context.get()));
  SSL_set_fd(ssl.get(), socket->fd());
  // Compares an address with the certificate's addresses, a name with its names.
  if (X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl.get()), endpoint->host.c_str()) != 1) {
    TakeError();
    SSL_set1_host(ssl.get(), endpoint->host.c_str());
    SSL_set_tlsext_host_name(ssl.get(), endpoint->host.c_str());
  }
  // Continues whatever it finds; the verification result is read below.
  SSL_set_verify(ssl.get(), SSL_VERIFY_NONE, nullptr);
  if (const int result = SSL_connect(ssl.get()); result != 1) {
    return Refusal(address, ssl.get(), result, SSL_get0_peer_certificate(ssl.get()) != nullptr, options.timeout);
  }
  std::vector<std::string> shown;
  const STACK_OF(X509)* chain = SSL_get_peer_cert_chain(ssl.get());
  for (int i = 0; chain != nullptr && i < sk_X509_num(chain); ++i) {
    const Bio bio(BIO_new(BIO_s_mem()));
    PEM_write_bio_X509(bio.get(), sk_X509_value(chain, i));
    shown.push_back(TextOf(bio.get()));
  }
  if (shown.empty()) return absl::UnavailableError(absl::StrCat(address, " shows no certificate"));
  if (!options.authority.empty()) {
    const absl::StatusOr<Certificate> peer = ReadCertificate(shown.front());
    if (!peer.ok()) return peer.status();
    if (absl::Status status = Judge(address, SSL_get_verify_result(ssl.get()), *peer); !status.ok()) return status;
  }
  if (!options.client.certificate.empty()) {
    char first = 0;  // an HTTP/2 server speaks first
    if (const int result = SSL_read(ssl.get(), &first, 1); result != 1) {
      return Refusal(address, ssl.get(), result, true, options.timeout);
    }
  }
  return shown;
}

bool SpeaksTls(const std::string& address, absl::Duration timeout) { return Probe(address, {.timeout = timeout}).ok(); }

absl::StatusOr<std::string> FetchAuthority(const std::string& address, const std::string& sha256,
                                           absl::Duration timeout) {
  const absl::StatusOr<std::vector<std::string>> shown = Probe(address, {.timeout = timeout});
  if (!shown.ok()) return shown.status();
  for (const std::string& pem : *shown) {
    const absl::StatusOr<Certificate> certificate = ReadCertificate(pem);
    if (!certificate.ok() || certificate->sha256 != sha256) continue;
    const auto checked = Probe(address, {.authority = pem, .timeout = timeout});
    if (!checked.ok()) return checked.status();
    return pem;
  }
  return absl::FailedPreconditionError(
      absl::StrCat("the coordinator at ", address, " is not the one that made this token (its authority is another ",
                   "than sha256:", sha256.substr(0, 16), "...): is the address right? If the coordinator was set up ",
                   "anew, take a new token from it"));
}

}  // namespace muster::tls
