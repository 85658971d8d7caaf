#include "worker/collectives/peers.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "worker/collectives/steady.h"

namespace muster::collectives {
namespace {

constexpr size_t kNamed = 8;
constexpr size_t kAnswerBytes = 512;

std::string KeyOf(const std::string& name, int rank) { return absl::StrCat("peers/", name, "/", rank); }

struct Address {
  sockaddr_storage storage = {};
  socklen_t size = 0;
};

absl::StatusOr<Address> Resolve(const std::string& host, const std::string& port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found); error != 0) {
    return absl::UnavailableError(absl::StrCat("cannot resolve ", host, ": ", gai_strerror(error)));
  }
  Address address;
  address.size = found->ai_addrlen;
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
  return address;
}

// One query to one peer.
struct Question {
  int rank = 0;
  int fd = -1;
  bool connected = false;
  std::string answer;
  std::string finding;  // the diagnosis for the error message; empty: none yet
};

void Ask(const std::string& where, Question& question) {
  const std::vector<std::string> parts = absl::StrSplit(where, ' ');
  const absl::StatusOr<Address> address =
      parts.size() == 2 ? Resolve(parts[0], parts[1]) : absl::InternalError("no address");
  if (!address.ok()) {
    question.finding = absl::StrCat("rank ", question.rank, " is not reachable: ", address.status().message());
    return;
  }
  question.fd = socket(address->storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (connect(question.fd, reinterpret_cast<const sockaddr*>(&address->storage), address->size) != 0 &&
      errno != EINPROGRESS) {
    question.finding = absl::StrCat("rank ", question.rank, " is gone (", strerror(errno), " at ", where, ")");
  }
}

void ReadAnswer(Question& question, const std::string& name, uint64_t issued) {
  if (!question.connected) {
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(question.fd, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) {
      question.finding = absl::StrCat("rank ", question.rank, " is gone (", strerror(error), ")");
      return;
    }
    question.connected = true;
  }
  char bytes[kAnswerBytes];
  const ssize_t got = recv(question.fd, bytes, sizeof bytes, 0);
  if (got < 0) return;
  question.answer.append(bytes, static_cast<size_t>(got));
  if (got > 0 && question.answer.size() < kAnswerBytes) return;  // until it closes
  const std::vector<std::string> parts = absl::StrSplit(question.answer, ' ');
  uint64_t theirs = 0;
  if (parts.size() != 2 || parts[0] != name || !absl::SimpleAtoi(parts[1], &theirs)) {
    question.finding = absl::StrCat("rank ", question.rank, " is gone (another process has its port)");
  } else if (theirs < issued) {
    question.finding =
        absl::StrCat("rank ", question.rank, " lags (it has issued ", theirs, " collectives, this rank ", issued, ")");
  } else {
    question.finding = "answers";
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Peers>> Peers::Join(int rank, int size, const std::string& name, const std::string& host,
                                                   KeyValue& rendezvous) {
  absl::StatusOr<Address> address = Resolve(host, "0");
  if (!address.ok()) return address.status();
  const int listener = socket(address->storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const auto fail = [&](const char* what) {
    const absl::Status status = absl::UnavailableError(
        absl::StrCat("cannot ", what, " on ", host, ": ", strerror(errno), "; is that an address of this machine?"));
    if (listener >= 0) close(listener);
    return status;
  };
  if (listener < 0) return fail("open a socket");
  if (bind(listener, reinterpret_cast<const sockaddr*>(&address->storage), address->size) != 0) return fail("bind");
  if (listen(listener, SOMAXCONN) != 0) return fail("listen");
  Address bound;
  bound.size = sizeof bound.storage;
  getsockname(listener, reinterpret_cast<sockaddr*>(&bound.storage), &bound.size);
  const uint16_t port = bound.storage.ss_family == AF_INET6
                            ? reinterpret_cast<const sockaddr_in6*>(&bound.storage)->sin6_port
                            : reinterpret_cast<const sockaddr_in*>(&bound.storage)->sin_port;
  std::unique_ptr<Peers> peers(
      new Peers(rank, size, name, rendezvous, listener, eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)));
  absl::Status set = rendezvous.Set(KeyOf(name, rank), absl::StrCat(host, " ", ntohs(port)));
  if (!set.ok()) return set;
  return peers;
}

Peers::Peers(int rank, int size, std::string name, KeyValue& rendezvous, int listener, int wake)
    : rank_(rank), size_(size), name_(std::move(name)), rendezvous_(rendezvous), listener_(listener), wake_(wake) {
  thread_ = std::thread([this] { Answer(); });
}

Peers::~Peers() {
  const uint64_t one = 1;
  if (write(wake_, &one, sizeof one) == sizeof one) thread_.join();
  close(listener_);
  close(wake_);
}

void Peers::Answer() {
  while (true) {
    pollfd waiting[] = {{listener_, POLLIN, 0}, {wake_, POLLIN, 0}};
    if (poll(waiting, 2, -1) < 0 && errno != EINTR) return;
    if (waiting[1].revents != 0) return;
    const int peer = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (peer < 0) continue;
    const std::string answer = absl::StrCat(name_, " ", issued_.load());
    // A fresh socket buffers this little at once; a failed send needs no handling, as the asker has gone.
    [[maybe_unused]] const ssize_t sent = send(peer, answer.data(), answer.size(), MSG_NOSIGNAL);
    close(peer);
  }
}

std::string Peers::Diagnose(absl::Duration patience) const {
  const SteadyPoint end = After(patience);
  std::vector<Question> questions;
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_) continue;
    Question& question = questions.emplace_back();
    question.rank = rank;
    const absl::StatusOr<std::string> where = rendezvous_.Wait(KeyOf(name_, rank), absl::ZeroDuration());
    if (where.ok()) {
      Ask(*where, question);
    } else if (absl::IsDeadlineExceeded(where.status()) || absl::IsNotFound(where.status())) {
      question.finding = absl::StrCat("rank ", rank, " never came");
    } else {
      question.finding = absl::StrCat("the state of rank ", rank, " is unknown: ", where.status().message());
    }
  }
  while (Left(end) > absl::ZeroDuration()) {
    std::vector<pollfd> waiting;
    std::vector<Question*> asked;
    for (Question& question : questions) {
      if (!question.finding.empty()) continue;
      waiting.push_back({question.fd, static_cast<short>(question.connected ? POLLIN : POLLOUT), 0});
      asked.push_back(&question);
    }
    if (asked.empty()) break;
    const int64_t left = absl::ToInt64Milliseconds(Left(end));
    if (poll(waiting.data(), waiting.size(), static_cast<int>(std::max<int64_t>(1, left))) <= 0) continue;
    for (size_t i = 0; i < waiting.size(); ++i) {
      if (waiting[i].revents != 0) ReadAnswer(*asked[i], name_, issued_.load());
    }
  }
  std::vector<std::string> findings;
  for (const Question& question : questions) {
    if (question.fd >= 0) close(question.fd);
    if (question.finding == "answers") continue;
    findings.push_back(question.finding.empty()
                           ? absl::StrCat("rank ", question.rank, " does not answer (frozen, or cut off)")
                           : question.finding);
  }
  if (findings.empty()) return "every other rank answers and has issued as many collectives";
  const size_t more = findings.size() > kNamed ? findings.size() - kNamed : 0;
  findings.resize(findings.size() - more);
  return absl::StrCat(absl::StrJoin(findings, "; "), more > 0 ? absl::StrCat("; and ", more, " more") : "");
}

}  // namespace muster::collectives
