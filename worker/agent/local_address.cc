#include "worker/agent/local_address.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

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

}  // namespace

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
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> all(found, freeaddrinfo);
  std::string why = "it has no address";
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    const int fd = socket(one->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    sockaddr_storage own{};
    socklen_t size = sizeof own;
    char name[NI_MAXHOST];
    const bool good = connect(fd, one->ai_addr, one->ai_addrlen) == 0 &&
                      getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size) == 0;
    if (!good) why = std::strerror(errno);
    close(fd);
    if (good &&
        getnameinfo(reinterpret_cast<sockaddr*>(&own), size, name, sizeof name, nullptr, 0, NI_NUMERICHOST) == 0) {
      return name;
    }
  }
  return failed(why);
}

}  // namespace muster::agent
