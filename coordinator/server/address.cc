#include "coordinator/server/address.h"

#include <arpa/inet.h>
#include <sys/un.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace muster::server {
namespace {

bool IsLoopback(const std::string& host) {
  in_addr v4{};
  in6_addr v6{};
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  if (inet_pton(AF_INET6, host.c_str(), &v6) == 1) return IN6_IS_ADDR_LOOPBACK(&v6);
  return host == "localhost";
}

}  // namespace

absl::StatusOr<Address> ParseAddress(const std::string& text) {
  absl::string_view rest = text;
  if (absl::ConsumePrefix(&rest, "unix:")) {
    absl::ConsumePrefix(&rest, "//");
    const std::string path(rest);
    if (!absl::StartsWith(path, "/") || absl::EndsWith(path, "/") || path.rfind('/') == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", text, "\": a socket needs an absolute path in a folder of its own: unix:/path/name"));
    }
    if (path.size() >= sizeof(sockaddr_un::sun_path)) {
      return absl::InvalidArgumentError(absl::StrCat("the socket's path ", path, " has ", path.size(),
                                                     " bytes, the system takes at most ",
                                                     sizeof(sockaddr_un::sun_path) - 1));
    }
    return Address{absl::StrCat("unix:", path), path};
  }
  const size_t colon = text.rfind(':');
  uint32_t port = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(text.substr(colon + 1), &port) || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\" is no address: expected unix:/path or 127.0.0.1:PORT"));
  }
  std::string host = text.substr(0, colon);
  if (absl::StartsWith(host, "[") && absl::EndsWith(host, "]")) host = host.substr(1, host.size() - 2);
  if (!IsLoopback(host)) {
    return absl::FailedPreconditionError(
        absl::StrCat("\"", text,
                     "\" is not a loopback address: other machines would reach it, which needs TLS, and this "
                     "build has none yet; listen on 127.0.0.1 and forward the port through ssh"));
  }
  return Address{text, ""};
}

}  // namespace muster::server
