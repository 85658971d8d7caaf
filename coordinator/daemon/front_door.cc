#include "coordinator/daemon/front_door.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netdb.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <set>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/log/log.h"
#include "common/tls/endpoint.h"

namespace muster::server {
namespace {

constexpr int kBacklog = 4096;
constexpr int kSweepMilliseconds = 1000;
constexpr int kFloodMilliseconds = 100;
// More connections of one address than this that ended without an admitted call, within a sweep, are a flood.
constexpr uint64_t kEndedUnknownAllowed = 100;
// What a peer may send, and be sent, before a call of it is admitted. gRPC refuses malformed calls by itself, a
// thousand of which fit into 64 KiB, and each refusal has about a hundred bytes. Who is known may send 8 MiB,
// which gRPC reads before we learn whose they are.
constexpr uint64_t kFirstBytesSent = 9 << 20;
constexpr uint64_t kFirstBytesAnswered = 64 * 1024;
constexpr absl::Duration kProbation = absl::Minutes(1);
constexpr size_t kUnknownInProbation = 2;
constexpr int kFailuresAllowed = 3;
constexpr absl::Duration kComplaintInterval = absl::Minutes(1);
constexpr size_t kOtherDescriptors = 640;  // of the stores, the log, the threads, the web page, /metrics
constexpr size_t kMostConnections = 100'000;

size_t DefaultConnections() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;
  const auto files = static_cast<size_t>(limit.rlim_cur);
  return std::clamp(files - std::min(files / 2, kOtherDescriptors), size_t{16}, kMostConnections);
}

std::string HostOf(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address.ss_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(address).sin_addr, text, sizeof text);
  } else if (address.ss_family == AF_INET6) {
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr, text, sizeof text);
  }
  return text;
}

// As ServerContext::peer() gives it, without the escapes of brackets: "ipv4:10.0.0.1:4711". Empty: a Unix socket.
std::string PeerName(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    return absl::StrCat("ipv4:", HostOf(address), ":", ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port));
  }
  if (address.ss_family != AF_INET6) return "";
  const auto& six = reinterpret_cast<const sockaddr_in6&>(address);
  return absl::StrCat("ipv6:[", HostOf(address), "]:", ntohs(six.sin6_port));
}

// As users know one of our addresses.
std::string ListenerName(const sockaddr_storage& address) {
  return address.ss_family == AF_UNIX ? reinterpret_cast<const sockaddr_un&>(address).sun_path : PeerName(address);
}

ino_t InodeOf(int fd) {
  struct stat info {};
  return fstat(fd, &info) == 0 ? info.st_ino : 0;
}

bool IsFlood(int fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  int waiting = 0;  // for the peer to take it
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 || ioctl(fd, SIOCOUTQ, &waiting) != 0) return false;
  return info.tcpi_bytes_received > kFirstBytesSent ||
         info.tcpi_bytes_acked + static_cast<uint64_t>(waiting) > kFirstBytesAnswered;
}

bool IsOutOfDescriptors(int error) { return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM; }

}  // namespace

FrontDoor::FrontDoor(const Limits& limits, const Clock* clock, std::function<void(const absl::Status&)> failed)
    : limits_(limits), clock_(clock), failed_(std::move(failed)) {
  if (limits_.connections == 0) limits_.connections = DefaultConnections();
  if (limits_.of_peer == 0) limits_.of_peer = std::max<size_t>(1, limits_.connections / 2);
  if (limits_.unknown == 0) limits_.unknown = std::max<size_t>(1, limits_.connections / 4);
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  spare_ = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

FrontDoor::~FrontDoor() {
  Stop();
  for (const Listener& listener : listeners_) close(listener.fd);
  if (wake_ >= 0) close(wake_);
  if (spare_ >= 0) close(spare_);
}

absl::StatusOr<int> FrontDoor::Open(const Address& address, grpc::ServerBuilder& builder,
                                    const std::shared_ptr<grpc::ServerCredentials>& credentials) {
  const size_t before = listeners_.size();
  int port = 0;
  if (!address.socket_path.empty()) {
    sockaddr_un at{};
    at.sun_family = AF_UNIX;
    std::strncpy(at.sun_path, address.socket_path.c_str(), sizeof at.sun_path - 1);
    if (absl::Status status = Listen(AF_UNIX, &at, sizeof at, address.text); !status.ok()) return status;
  } else {
    const absl::StatusOr<tls::Endpoint> endpoint = tls::ParseEndpoint(address.text);
    if (!endpoint.ok()) return endpoint.status();
    addrinfo hints{}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
    if (const int error = getaddrinfo(endpoint->host.c_str(), endpoint->port.c_str(), &hints, &found); error != 0) {
      return absl::UnavailableError(absl::StrCat("cannot listen on ", address.text, ": ", gai_strerror(error)));
    }
    const auto freed = absl::MakeCleanup([found] { freeaddrinfo(found); });
    absl::Status last;
    // All addresses of a name get one port.
    for (addrinfo* at = found; at != nullptr; at = at->ai_next) {
      if (at->ai_family != AF_INET && at->ai_family != AF_INET6) continue;
      in_port_t& its = at->ai_family == AF_INET ? reinterpret_cast<sockaddr_in*>(at->ai_addr)->sin_port
                                                : reinterpret_cast<sockaddr_in6*>(at->ai_addr)->sin6_port;
      if (port != 0) its = htons(static_cast<in_port_t>(port));
      absl::Status status = Listen(at->ai_family, at->ai_addr, at->ai_addrlen, address.text);
      if (!status.ok()) {
        last = status;
        continue;
      }
      sockaddr_storage bound{};
      socklen_t length = sizeof bound;
      getsockname(listeners_.back().fd, reinterpret_cast<sockaddr*>(&bound), &length);
      port = ntohs(bound.ss_family == AF_INET ? reinterpret_cast<sockaddr_in&>(bound).sin_port
                                              : reinterpret_cast<sockaddr_in6&>(bound).sin6_port);
    }
    // One of a name's addresses may not be there: localhost without IPv6.
    if (listeners_.size() == before || absl::IsAlreadyExists(last)) return absl::UnavailableError(last.message());
  }
  for (size_t i = before; i < listeners_.size(); ++i) {
    listeners_[i].local = !address.socket_path.empty();
    listeners_[i].acceptor = builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, credentials);
  }
  return port;
}

absl::Status FrontDoor::Listen(int family, const void* address, unsigned length, const std::string& text) {
  const int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return absl::UnavailableError(absl::StrCat("cannot listen on ", text, ": ", std::strerror(errno)));
  const int on = 1;
  if (family != AF_UNIX) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
  if (bind(fd, static_cast<const sockaddr*>(address), length) != 0 || listen(fd, kBacklog) != 0) {
    const int error = errno;
    close(fd);
    const std::string why = absl::StrCat("cannot listen on ", text, ": ", std::strerror(error),
                                         error == EADDRINUSE ? "; `ss -ltnp` shows the process" : "");
    return error == EADDRINUSE ? absl::AlreadyExistsError(why) : absl::UnavailableError(why);
  }
  listeners_.push_back({.fd = fd, .local = false, .acceptor = nullptr});
  return absl::OkStatus();
}

void FrontDoor::Start() {
  accepting_ = std::thread([this] {
    std::vector<pollfd> fds;
    for (const Listener& listener : listeners_) fds.push_back({listener.fd, POLLIN, 0});
    fds.push_back({wake_, POLLIN, 0});
    SteadyTime swept = clock_->Read().steady, looked = swept;
    while (!stopping_) {
      poll(fds.data(), fds.size(), kFloodMilliseconds);
      for (size_t i = 0; i < listeners_.size() && !stopping_; ++i) {
        if (fds[i].revents != 0) Accept(listeners_[i]);
      }
      const SteadyTime now = clock_->Read().steady;
      if (now - looked >= absl::Milliseconds(kFloodMilliseconds)) {
        looked = now;
        StopFloods();
      }
      if (now - swept < absl::Milliseconds(kSweepMilliseconds)) continue;
      swept = now;
      Sweep();
    }
  });
  if (limits_.probe_every < absl::InfiniteDuration() && !listeners_.empty())
    probing_ = std::thread([this] { Probe(); });
}

void FrontDoor::Stop() {
  if (stopping_.exchange(true)) return;
  const uint64_t two = 2;
  [[maybe_unused]] const ssize_t n = write(wake_, &two, sizeof two);  // never read: both threads see it
  if (accepting_.joinable()) accepting_.join();
  if (probing_.joinable()) probing_.join();
}

void FrontDoor::Accept(Listener& listener) {
  const int fd = accept4(listener.fd, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) {
    if (IsOutOfDescriptors(errno)) WaitForDescriptors(listener.fd);
    return;  // or the peer has gone already
  }
  Connection connection;
  std::string peer;
  if (!Admit(listener, fd, connection, peer)) {
    close(fd);
    return;
  }
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
  parameters.listener_fd = listener.fd;
  parameters.fd = fd;
  listener.acceptor->HandleNewConnection(&parameters);
}

// The peer learns it at once, by the descriptor that is kept for this; the others wait in the backlog for a moment.
void FrontDoor::WaitForDescriptors(int listening) {
  if (spare_ >= 0) {
    close(spare_);
    const int fd = accept4(listening, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) close(fd);
  }
  spare_ = open("/dev/null", O_RDONLY | O_CLOEXEC);
  {
    const MutexLock lock(mutex_);
    ++refused_;
    const SteadyTime now = clock_->Read().steady;
    if (now - complained_ >= kComplaintInterval) {
      complained_ = now;
      LogError("out of file descriptors: connections are refused until some are free",
               {{"connections", connections_.size()}});
    }
  }
  pollfd wake{wake_, POLLIN, 0};
  poll(&wake, 1, 100);
}

bool FrontDoor::Admit(const Listener& listener, int fd, Connection& connection, std::string& peer) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) return false;
  const SteadyTime now = clock_->Read().steady;
  const MutexLock lock(mutex_);
  connection = {.fd = fd, .inode = InodeOf(fd), .host = HostOf(address), .known = listener.local, .since = now};
  peer = PeerName(address);
  if (peer.empty()) peer = absl::StrCat("unix ", ++locals_);
  const bool own = peer == own_;
  const char* const over = OverLimit(listener.local, connection.host, now);
  if (over != nullptr && !own) {
    ++refused_;
    if (now - complained_ >= kComplaintInterval) {
      complained_ = now;
      LogWarn("connections are refused: too many", {{"which", over}, {"peer", peer}, {"open", connections_.size()}});
    }
    return false;
  }
  // An earlier connection from the same port has been closed.
  if (const auto old = connections_.find(peer); old != connections_.end()) Forget(old);
  if (!connection.host.empty()) {
    Host& host = hosts_[connection.host];
    ++host.open;
    ++host.unknown;
  }
  known_ += connection.known ? 1 : 0;
  if (!connection.known) unknown_.insert(peer);
  connections_[peer] = connection;
  return true;
}

const char* FrontDoor::OverLimit(bool local, const std::string& host, SteadyTime now) const {
  if (connections_.size() >= limits_.connections) return "connections in all";
  if (local) return nullptr;
  if (connections_.size() - known_ >= limits_.unknown) return "without an admitted call";
  const auto found = hosts_.find(host);
  if (found == hosts_.end()) return nullptr;
  if (found->second.open >= limits_.of_peer) return "of one address";
  if (found->second.unknown >= limits_.unknown_of_peer) return "of one address without an admitted call";
  if (!found->second.shut_out_until.has_value()) return nullptr;
  const bool too_many = now < *found->second.shut_out_until || found->second.unknown >= kUnknownInProbation;
  return too_many ? "of an address that sent a flood" : nullptr;
}

FrontDoor::Connections::iterator FrontDoor::Forget(Connections::iterator connection) {
  const bool known = connection->second.known;
  known_ -= known ? 1 : 0;
  if (!known) unknown_.erase(connection->first);
  if (const auto host = hosts_.find(connection->second.host); host != hosts_.end()) {
    --host->second.open;
    if (!known) {
      --host->second.unknown;
      ++host->second.ended_unknown;
    }
  }
  return connections_.erase(connection);
}

void FrontDoor::Known(const std::string& peer) {
  const MutexLock lock(mutex_);
  auto found = connections_.find(peer);
  if (found == connections_.end()) {
    found = connections_.find(absl::StrReplaceAll(peer, {{"%5B", "["}, {"%5D", "]"}}));
  }
  if (found == connections_.end() || found->second.known) return;
  found->second.known = true;
  ++known_;
  unknown_.erase(found->first);
  if (const auto host = hosts_.find(found->second.host); host != hosts_.end()) --host->second.unknown;
}

// Forgets what gRPC has closed, and closes what has been unknown for too long.
void FrontDoor::Sweep() {
  const SteadyTime now = clock_->Read().steady;
  const MutexLock lock(mutex_);
  for (auto it = connections_.begin(); it != connections_.end();) {
    Connection& connection = it->second;
    if (InodeOf(connection.fd) == connection.inode) {
      const auto host = hosts_.find(connection.host);
      const bool crowded = host != hosts_.end() && host->second.unknown >= limits_.unknown_of_peer;
      if (!connection.known && now - connection.since >= (crowded ? limits_.unknown_for / 10 : limits_.unknown_for)) {
        shutdown(connection.fd, SHUT_RDWR);  // gRPC closes it
        ++refused_;
        connection.since = now;  // once
      }
      ++it;
      continue;
    }
    it = Forget(it);
  }
  for (auto it = hosts_.begin(); it != hosts_.end();) {
    Host& host = it->second;
    if (std::exchange(host.ended_unknown, 0) > kEndedUnknownAllowed) ShutOut(it->first, "connections without a call");
    if (host.shut_out_until.has_value() && now - *host.shut_out_until >= kProbation) host.shut_out_until.reset();
    it = host.open == 0 && !host.shut_out_until.has_value() ? hosts_.erase(it) : std::next(it);
  }
}

void FrontDoor::StopFloods() {
  const MutexLock lock(mutex_);
  std::set<std::string> hosts;
  for (const std::string& peer : unknown_) {
    const Connection& connection = connections_.at(peer);
    if (InodeOf(connection.fd) == connection.inode && IsFlood(connection.fd)) hosts.insert(connection.host);
  }
  for (const std::string& host : hosts) ShutOut(host, "calls that are refused");
}

void FrontDoor::ShutOut(const std::string& host, const char* why) {
  const SteadyTime now = clock_->Read().steady;
  for (const std::string& peer : unknown_) {
    const Connection& connection = connections_.at(peer);
    if (connection.host != host || InodeOf(connection.fd) != connection.inode) continue;
    shutdown(connection.fd, SHUT_RDWR);  // gRPC closes it
    ++refused_;
  }
  std::optional<SteadyTime>& until = hosts_[host].shut_out_until;
  if (!until.has_value()) {
    LogWarn("an address is shut out for a moment: it sends too many", {{"what", why}, {"address", host}});
  }
  until = now + limits_.shut_out_for;
}

FrontDoor::Counts FrontDoor::counts() const {
  const MutexLock lock(mutex_);
  return {known_, connections_.size() - known_, refused_};
}

void FrontDoor::Probe() {
  int failures = 0;
  pollfd wake{wake_, POLLIN, 0};
  while (!stopping_) {
    poll(&wake, 1, static_cast<int>(absl::ToInt64Milliseconds(limits_.probe_every)));
    if (stopping_) return;
    absl::Status status;
    for (const Listener& listener : listeners_) status.Update(ProbeOnce(listener));
    if (stopping_) return;
    failures = status.ok() ? 0 : failures + 1;
    if (status.ok()) continue;
    LogWarn("the coordinator cannot connect to itself", {{"error", status}, {"times", failures}});
    if (failures >= kFailuresAllowed) return failed_(status);
  }
}

// Connects as a client does, and waits for the first bytes of HTTP/2, or for the refusal of what is no TLS.
absl::Status FrontDoor::ProbeOnce(const Listener& listener) {
  sockaddr_storage to{}, from{};
  socklen_t length = sizeof to;
  getsockname(listener.fd, reinterpret_cast<sockaddr*>(&to), &length);
  const int fd = socket(to.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return absl::OkStatus();  // not the front door's fault
  const auto closed = absl::MakeCleanup([fd] { close(fd); });
  if (!listener.local) {
    // Its port is known before it connects, so that a full house does not refuse it.
    from.ss_family = to.ss_family;
    if (from.ss_family == AF_INET) {
      reinterpret_cast<sockaddr_in&>(from).sin_addr = reinterpret_cast<sockaddr_in&>(to).sin_addr;
    } else {
      reinterpret_cast<sockaddr_in6&>(from).sin6_addr = reinterpret_cast<sockaddr_in6&>(to).sin6_addr;
    }
    if (bind(fd, reinterpret_cast<sockaddr*>(&from), length) != 0) return absl::OkStatus();
    socklen_t size = sizeof from;
    getsockname(fd, reinterpret_cast<sockaddr*>(&from), &size);
    const MutexLock lock(mutex_);
    own_ = PeerName(from);
  }
  const int patience = static_cast<int>(absl::ToInt64Milliseconds(limits_.probe_patience));
  const SteadyTime began = clock_->Read().steady;
  // EAGAIN: the backlog of a Unix socket is full at this moment.
  while (connect(fd, reinterpret_cast<sockaddr*>(&to), length) != 0 && errno != EINPROGRESS) {
    if (errno != EAGAIN || clock_->Read().steady - began >= limits_.probe_patience) {
      const int error = errno;
      if (listener.local && error == ENOENT) {
        return absl::NotFoundError(absl::StrCat("the socket ", ListenerName(to),
                                                " is gone: another program removed it, such as a cleaner of /tmp"));
      }
      return absl::ErrnoToStatus(error, absl::StrCat("cannot connect to ", ListenerName(to)));
    }
    pollfd wake{wake_, POLLIN, 0};
    if (poll(&wake, 1, 50) > 0) return absl::OkStatus();  // stopping
  }
  pollfd ready{fd, POLLOUT, 0};
  if (poll(&ready, 1, patience) <= 0) {
    return absl::DeadlineExceededError(absl::StrCat("no connection to ", ListenerName(to)));
  }
  constexpr char kHello[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0";  // the preface and empty settings
  if (send(fd, kHello, sizeof kHello - 1, MSG_NOSIGNAL) < 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot send to ", ListenerName(to)));
  }
  ready = {fd, POLLIN, 0};
  // The answer may also be the end of the connection: TLS refuses what is no handshake.
  if (poll(&ready, 1, patience) <= 0) {
    return absl::DeadlineExceededError(absl::StrCat("no answer from ", ListenerName(to)));
  }
  return absl::OkStatus();
}

}  // namespace muster::server
