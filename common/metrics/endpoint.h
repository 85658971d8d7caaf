// Serves one page over HTTP: GET /metrics, for Prometheus. Plain HTTP without a password, so on loopback addresses
// only.
//
// Thread-safe. A thread of its own serves a few connections at once; more are closed, and so are silent ones.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace muster {

class MetricsEndpoint {
 public:
  // Makes the page; on the endpoint's thread, one call at a time. An error becomes a 503 with its message.
  using Page = std::function<absl::StatusOr<std::string>()>;

  // `address`: "127.0.0.1:9464", "[::1]:0" (a free port). InvalidArgument: not of this form. FailedPrecondition: not
  // loopback. Unavailable: the port is taken.
  static absl::StatusOr<std::unique_ptr<MetricsEndpoint>> Start(const std::string& address, Page page);
  // Ends when the page at hand is made.
  ~MetricsEndpoint();

  // With the port that was chosen: "127.0.0.1:43127".
  const std::string& address() const;

 private:
  class Server;
  explicit MetricsEndpoint(std::unique_ptr<Server> server);
  const std::unique_ptr<Server> server_;
};

}  // namespace muster
