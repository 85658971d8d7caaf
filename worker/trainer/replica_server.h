// Serves what a rank offers to the other replicas of its run (proto/replicas_service.proto), and fetches from theirs.
//
// Between replicas bytes travel in plain text: whoever can read the network between the nodes reads parameters, as of
// the collectives inside a replica. The secret keeps others from asking.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include <grpcpp/server.h>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "worker/trainer/outer_state.h"

namespace muster::trainer {

using Bytes = std::shared_ptr<const std::string>;

// Thread-safe.
class ReplicaServer {
 public:
  // Listens on a free port of `host`, an address of this machine. `state` outlives the server. Unavailable: it cannot.
  static absl::StatusOr<std::unique_ptr<ReplicaServer>> Start(const std::string& host, const OuterState* state);
  ~ReplicaServer();

  const std::string& address() const { return address_; }  // "host:port"
  // Until there is one, all calls are refused.
  void UseSecret(const std::string& secret);
  // Of `replica` to the exchange after `base`, in place of all contributions to earlier ones of the fragment.
  void Offer(uint32_t fragment, uint64_t base, uint32_t replica, Bytes contribution);

 private:
  class Service;
  class Call;
  explicit ReplicaServer(const OuterState* state);
  struct Found {
    Bytes bytes;
    uint64_t exchange = 0;
  };
  absl::StatusOr<Found> Find(uint32_t fragment, const uint64_t* base, uint32_t replica, const std::string& secret);

  const OuterState* const state_;
  std::string address_;
  absl::Mutex mutex_;
  std::string secret_ ABSL_GUARDED_BY(mutex_);
  struct Offers {
    uint64_t base = 0;
    std::map<uint32_t, Bytes> of_replica;
  };
  std::map<uint32_t, Offers> offers_ ABSL_GUARDED_BY(mutex_);  // by fragment
  std::unique_ptr<Service> service_;
  std::unique_ptr<grpc::Server> server_;
};

// Is given the function that interrupts a call, and null at its end.
using Begun = std::function<void(std::function<void()>)>;

// What a rank of another replica, or of this one, serves. `base`: as FetchReplicaRequest. Errors are those of the call.
// DeadlineExceeded: it took longer than `patience`.
struct Fetched {
  std::string bytes;
  uint64_t exchange = 0;  // of a state
};
absl::StatusOr<Fetched> FetchFrom(const std::string& address, const std::string& secret, uint32_t fragment,
                                  const uint64_t* base, uint32_t replica, absl::Duration patience, const Begun& begun);

}  // namespace muster::trainer
