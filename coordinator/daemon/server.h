// The whole coordinator in one object: state folder, loop, services, listeners.
//
//   auto server = Server::Start(options);   // serves when it returns
//   ...
//   server->Shutdown();                     // within seconds; the destructor does it too
//
// Thread-safe after Start.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "coordinator/daemon/front_door.h"
#include "coordinator/server/loop.h"

namespace muster::server {

struct ServerOptions {
  std::string state_dir;            // created with mode 0700 if it is missing
  std::vector<std::string> listen;  // addresses, at least one
  std::string token_file;           // required to listen on TCP without an authority
  absl::Duration node_certificate_life = absl::Hours(24 * 30);
  uint64_t min_free_bytes = uint64_t{256} << 20;
  uint32_t max_ranks = 4096;          // limit for a job; Submit refuses larger ones
  std::string tensorboard_dir;        // a folder of event files; empty: none are written
  std::string metrics_address;        // for Prometheus: 127.0.0.1:PORT; empty: not served
  bool allow_remote_metrics = false;  // metrics_address need not be loopback
  std::string web_address;            // of the web page: 127.0.0.1:PORT; empty: not served
  std::string notify_file;            // destinations of notices (coordinator/notify/config.h); empty: none
  std::string tracking_file;          // tracking servers (coordinator/tracking/config.h); empty: none
  bool private_jobs = false;          // only its owner and admins read a job; /metrics has no figures of single jobs
  core::Options core;
  WorkerSessions::Options workers;
  PlanPool::Options plans;
  store::HistoryLimits history;
  uint64_t audit_kept = Ledger::kAuditEntriesKept;
  bool allow_network_filesystem = false;  // state_dir may be on one
  // The type of the file system of a folder; 0: as the system says.
  long file_system_type = 0;
  FrontDoor::Limits connections;
  absl::Duration certificate_check = absl::Hours(1);  // how often the coordinator's own is looked at
};

class Server {
 public:
  // With a certificate authority in `state_dir` (common/tls/trust_folder.h) every TCP address uses TLS. Without one,
  // only loopback TCP addresses are allowed.
  //
  // FailedPrecondition: another coordinator uses the folder or a socket, an address needs TLS but there is no
  // authority, TCP without a token file or an authority, a newer schema. InvalidArgument: an address or the token file.
  // PermissionDenied: other users may enter a folder or read the token file. DataLoss: damaged files. Unavailable: a
  // port is in use. `clock` outlives the server.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options, const Clock* clock);
  ~Server();

  // One for each of `listen`, with the actual ports.
  const std::vector<std::string>& addresses() const;
  // The address of /metrics; empty: not served.
  std::string metrics_address() const;
  // "http://127.0.0.1:7080"; empty: no web page is served.
  std::string web_url() const;

  // Refuses new calls, ends streams with UNAVAILABLE, and stores what is staged.
  void Shutdown();

 private:
  struct Parts;
  explicit Server(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace muster::server
