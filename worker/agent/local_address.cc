#include "worker/agent/local_address.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/tls/endpoint.h"

namespace muster::agent {
namespace {

struct Target {
  std::string host, port;
};

Target Split(const std::string& address) {
  const size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (absl::StartsWith(host, "[") && absl::EndsWith(host, "]")) host = host.substr(1, host.size() - 2);
  return {host, colon == std::string::npos ? "0" : address.substr(colon + 1)};
}

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// Without ports; an interface's name has none either.
bool SameAddress(const sockaddr& a, const sockaddr& b) {
  if (a.sa_family != b.sa_family) return false;
  if (a.sa_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in&>(a).sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in&>(b).sin_addr.s_addr;
  }
  return a.sa_family == AF_INET6 &&
         std::memcmp(&reinterpret_cast<const sockaddr_in6&>(a).sin6_addr,
                     &reinterpret_cast<const sockaddr_in6&>(b).sin6_addr, sizeof(in6_addr)) == 0;
}

// The address from which this machine would reach `target`; nothing is sent. Empty, with errno: no route leads there.
std::string SourceTowards(const addrinfo& target) {
  const int fd = socket(target.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return "";
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  char name[NI_MAXHOST];
  const bool found = connect(fd, target.ai_addr, target.ai_addrlen) == 0 &&
                     getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size) == 0;
  close(fd);
  const bool named =
      found && getnameinfo(reinterpret_cast<sockaddr*>(&own), size, name, sizeof name, nullptr, 0, NI_NUMERICHOST) == 0;
  return named ? name : "";
}

// An interface without a carrier (a bridge without containers, an unplugged port) and a link-local address (RFC 3927,
// often of a board's management controller) are up, but lead to no other machine.
bool LeadsToANetwork(const ifaddrs& interface) {
  constexpr unsigned kInUse = IFF_UP | IFF_RUNNING;
  if (interface.ifa_addr == nullptr || interface.ifa_addr->sa_family != AF_INET) return false;
  if ((interface.ifa_flags & kInUse) != kInUse || (interface.ifa_flags & IFF_LOOPBACK) != 0) return false;
  const uint32_t address = ntohl(reinterpret_cast<const sockaddr_in&>(*interface.ifa_addr).sin_addr.s_addr);
  return address >> 16 != 0xA9FE;  // 169.254
}

// That of the default route; without one, the first IPv4 address that leads to a network. Empty: none.
std::string AddressOnANetwork() {
  sockaddr_in anywhere{};
  anywhere.sin_family = AF_INET;
  anywhere.sin_port = htons(9);
  anywhere.sin_addr.s_addr = htonl(0xC0000201);  // 192.0.2.1, on no network (RFC 5737)
  addrinfo target{};
  target.ai_family = AF_INET;
  target.ai_addr = reinterpret_cast<sockaddr*>(&anywhere);
  target.ai_addrlen = sizeof anywhere;
  if (std::string address = SourceTowards(target); !address.empty()) return address;
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return "";
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> interfaces(first, freeifaddrs);
  for (const ifaddrs* interface = first; interface != nullptr; interface = interface->ifa_next) {
    char name[NI_MAXHOST];
    if (LeadsToANetwork(*interface) &&
        getnameinfo(interface->ifa_addr, sizeof(sockaddr_in), name, sizeof name, nullptr, 0, NI_NUMERICHOST) == 0) {
      return name;
    }
  }
  return "";
}

}  // namespace

std::string AddressForPeers(const std::string& coordinator_host, const std::string& own) {
  if (!tls::IsLoopback(own) || tls::IsLoopback(coordinator_host)) return own;
  const std::string address = AddressOnANetwork();
  return address.empty() ? own : address;
}

absl::StatusOr<std::string> LocalAddressTowards(const std::string& coordinator) {
  if (absl::StartsWith(coordinator, "unix:")) return "127.0.0.1";
  const Target target = Split(std::string(absl::StripPrefix(coordinator, "dns:///")));
  const auto failed = [&](const std::string& why) {
    return absl::UnavailableError(absl::StrCat("no way to the coordinator at ", coordinator, ": ", why,
                                               "; name this machine's address for its peers by --host"));
  };
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(target.host.c_str(), target.port.c_str(), &hints, &found); error != 0) {
    return failed(gai_strerror(error));
  }
  const Addresses all(found, freeaddrinfo);
  std::string why = "it has no address";
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    errno = 0;
    if (const std::string own = SourceTowards(*one); !own.empty()) return AddressForPeers(target.host, own);
    if (errno != 0) why = std::strerror(errno);
  }
  return failed(why);
}

absl::StatusOr<Interface> InterfaceOf(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found); error != 0) {
    return absl::UnavailableError(absl::StrCat(host, " has no address: ", gai_strerror(error)));
  }
  const Addresses addresses(found, freeaddrinfo);
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot list the network interfaces: ", std::strerror(errno)));
  }
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> interfaces(first, freeifaddrs);
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
    for (const ifaddrs* interface = first; interface != nullptr; interface = interface->ifa_next) {
      if (interface->ifa_addr != nullptr && SameAddress(*interface->ifa_addr, *address->ai_addr)) {
        return Interface{interface->ifa_name, (interface->ifa_flags & IFF_LOOPBACK) != 0};
      }
    }
  }
  return absl::NotFoundError(absl::StrCat("no network interface of this machine has ", host));
}

}  // namespace muster::agent
