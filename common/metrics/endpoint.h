// Serves one page over HTTP: GET /metrics, for Prometheus. Plain HTTP without a password, so on loopback addresses
// unless the operator says otherwise.
//
// Thread-safe. Its own thread serves a few connections at a time; it closes further and idle ones.
//
// This is not prometheus-cpp's Exposer, because that gives up bounds. An idle connection occupies one of its threads
// until it times out: with 4 threads and a limit of 3 s, 8 idle connections delayed a scrape by 6 s. It accepts
// connections that it cannot serve (224 of 300 stayed open). An error can only be an exception, which ends the process.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace muster {

class MetricsEndpoint {
 public:
  // Renders the page, on the endpoint's thread, one call at a time. An error becomes a 503 with its message.
  using Page = std::function<absl::StatusOr<std::string>()>;

  enum class Reach { kThisMachine, kNetwork };

  // `address`: "127.0.0.1:9464", "[::1]:0" (a free port). InvalidArgument: another form. FailedPrecondition: not
  // loopback, with kThisMachine. Unavailable: the port is taken.
  static absl::StatusOr<std::unique_ptr<MetricsEndpoint>> Start(const std::string& address, Reach reach, Page page);
  // Waits for the page that is being rendered.
  ~MetricsEndpoint();

  // The address with the chosen port: "127.0.0.1:43127".
  const std::string& address() const;

 private:
  class Server;
  explicit MetricsEndpoint(std::unique_ptr<Server> server);
  const std::unique_ptr<Server> server_;
};

// The page that a daemon serves at `address`; of 0.0.0.0 or [::], the one on this machine. InvalidArgument: another
// form of address. Unavailable: no one answers there within `timeout`, or something else than 200 OK, which the message
// has.
absl::StatusOr<std::string> FetchMetrics(const std::string& address, absl::Duration timeout);

}  // namespace muster
