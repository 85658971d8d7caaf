#include "coordinator/daemon/address.h"

#include <sys/un.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/tls/endpoint.h"

namespace muster::server {
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
      return absl::InvalidArgumentError(absl::StrCat("the socket path ", path, " has ", path.size(),
                                                     " bytes, more than ", sizeof(sockaddr_un::sun_path) - 1,
                                                     ": listen at a shorter one"));
    }
    return Address{absl::StrCat("unix:", path), path, true};
  }
  const absl::StatusOr<tls::Endpoint> endpoint = tls::ParseEndpoint(text);
  if (!endpoint.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(endpoint.status().message(), ", unix:/path, or 127.0.0.1:PORT for this machine alone"));
  }
  return Address{text, "", tls::IsLoopback(endpoint->host)};
}

}  // namespace muster::server
