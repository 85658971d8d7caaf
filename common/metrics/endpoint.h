// Serves one page over HTTP: GET /metrics, for Prometheus. Plain HTTP without a password, so on loopback addresses
// only.
//
// Thread-safe. Its own thread serves a few connections at a time; it closes further and idle ones.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace muster {

class MetricsEndpoint {
 public:
  // Renders the page, on the endpoint's thread, one call at a time. An error becomes a 503 with its message.
  using Page = std::function<absl::StatusOr<std::string>()>;

  // `address`: "127.0.0.1:9464", "[::1]:0" (a free port). InvalidArgument: another form. FailedPrecondition: not
  // loopback. Unavailable: the port is taken.
  static absl::StatusOr<std::unique_ptr<MetricsEndpoint>> Start(const std::string& address, Page page);
  // Waits for the page that is being rendered.
  ~MetricsEndpoint();

  // The address with the chosen port: "127.0.0.1:43127".
  const std::string& address() const;

 private:
  class Server;
  explicit MetricsEndpoint(std::unique_ptr<Server> server);
  const std::unique_ptr<Server> server_;
};

}  // namespace muster
