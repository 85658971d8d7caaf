// Diagnoses the peers of a group. Each rank listens on a TCP port and answers how many collectives it has issued. When
// a collective fails, the ranks ask each other, so that the error names the rank that is gone, silent or lagging,
// whatever the transport reported. The answer holds only that number and the group's name.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/collectives/key_value.h"

namespace muster::collectives {

class Peers {
 public:
  // Listens and publishes the address. Thread-safe. `rendezvous` outlives it. Unavailable: no port on `host`.
  static absl::StatusOr<std::unique_ptr<Peers>> Join(int rank, int size, const std::string& name,
                                                     const std::string& host, KeyValue& rendezvous);
  ~Peers();
  Peers(const Peers&) = delete;

  // Counts one more collective of this rank; its number, from 1.
  uint64_t Issue() { return ++issued_; }

  // "rank 2 is gone (...); rank 3 does not answer (...); rank 4 lags (...)", or that all answer.
  // Takes at most `patience`.
  std::string Diagnose(absl::Duration patience = absl::Seconds(2)) const;

 private:
  Peers(int rank, int size, std::string name, KeyValue& rendezvous, int listener, int wake);
  void Answer();

  const int rank_;
  const int size_;
  const std::string name_;
  KeyValue& rendezvous_;
  const int listener_;
  const int wake_;  // eventfd: time to end
  std::atomic<uint64_t> issued_ = 0;
  std::thread thread_;
};

}  // namespace muster::collectives
