// Accepts the coordinator's connections and hands them to gRPC, whose own listener (1.51) never accepts again after one
// EMFILE. Bounds how many there are, in all, of one peer address, and of peers that have not made an admitted call yet;
// those are closed after a while. An address that floods it with calls that are refused, or with connections without an
// admitted call, is shut out for a moment. Probes each of its addresses by connecting as a client would.
//
//   FrontDoor door(limits);
//   door.Open(address, builder, credentials)   // before the server is built
//   door.Start();                              // after
//   door.Known(context.peer());                // a call of that peer was admitted
//
// Thread-safe after Start.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <grpcpp/server_builder.h>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "coordinator/daemon/address.h"

namespace muster::server {

class FrontDoor {
 public:
  struct Limits {
    // 0: derived from the limit of open files.
    size_t connections = 0;                          // in all
    size_t of_peer = 0;                              // of one peer address; default: half of all
    size_t unknown = 0;                              // of peers without an admitted call; default: a quarter of all
    size_t unknown_of_peer = 64;                     // likewise of one peer address
    absl::Duration unknown_for = absl::Seconds(20);  // a tenth of that while its address has as many as it may
    // After a flood from an address, new connections of it are refused for so long.
    absl::Duration shut_out_for = absl::Seconds(5);
    // Between two probes; after three that fail, `failed` is called. Infinite: none.
    absl::Duration probe_every = absl::Seconds(10);
    absl::Duration probe_patience = absl::Seconds(10);
  };
  struct Counts {
    size_t known = 0, unknown = 0;
    uint64_t refused = 0;  // so far: over a limit, out of descriptors, or unknown for too long
  };

  // `failed`: ends the process, since no one can connect; the message says what the probes saw.
  FrontDoor(const Limits& limits, const Clock* clock, std::function<void(const absl::Status&)> failed);
  ~FrontDoor();
  FrontDoor(const FrontDoor&) = delete;

  // Listens on a TCP address or a Unix socket whose path is free. Returns the port (0: a socket). Unavailable: it is in
  // use.
  absl::StatusOr<int> Open(const Address& address, grpc::ServerBuilder& builder,
                           const std::shared_ptr<grpc::ServerCredentials>& credentials);
  void Start();
  // Accepts no more. Called before the server is shut down.
  void Stop();

  void Known(const std::string& peer);
  Counts counts() const;
  const Limits& limits() const { return limits_; }

 private:
  struct Listener {
    int fd = -1;
    bool local = false;  // a Unix socket: its folder decides who connects
    std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor;
  };
  struct Connection {
    int fd = -1;
    ino_t inode = 0;  // tells whether the descriptor is still this connection
    std::string host;
    bool known = false;
    SteadyTime since;
  };

  using Connections = std::map<std::string, Connection>;  // by peer, as gRPC names it
  struct Host {
    size_t open = 0, unknown = 0;
    uint64_t ended_unknown = 0;  // since the last sweep
    // It has sent a flood: no new connection before this, then few unknown ones at once, until kProbation has passed.
    std::optional<SteadyTime> shut_out_until;
  };

  absl::Status Listen(int family, const void* address, unsigned length, const std::string& text);
  void Accept(Listener& listener);
  // Whether the connection may stay.
  bool Admit(const Listener& listener, int fd, Connection& connection, std::string& peer);
  void Sweep();
  // Closes unknown connections that send or are sent more than a first call needs, and shuts out their addresses.
  void StopFloods();
  void ShutOut(const std::string& host, const char* why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Which limit a connection of that host would exceed; null: none.
  const char* OverLimit(bool local, const std::string& host, SteadyTime now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Connections::iterator Forget(Connections::iterator connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Probe();
  absl::Status ProbeOnce(const Listener& listener);
  void WaitForDescriptors(int listening);

  Limits limits_;
  const Clock* const clock_;
  const std::function<void(const absl::Status&)> failed_;
  std::vector<Listener> listeners_;
  int wake_ = -1, spare_ = -1;
  std::atomic<bool> stopping_ = false;
  std::thread accepting_, probing_;

  mutable Mutex mutex_;
  Connections connections_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> unknown_ ABSL_GUARDED_BY(mutex_);      // peers of TCP without an admitted call
  std::map<std::string, Host> hosts_ ABSL_GUARDED_BY(mutex_);  // by address; not of Unix sockets
  size_t known_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t refused_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t locals_ ABSL_GUARDED_BY(mutex_) = 0;  // names connections of Unix sockets, which have no address
  std::string own_ ABSL_GUARDED_BY(mutex_);      // the probe's
  SteadyTime complained_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace muster::server
