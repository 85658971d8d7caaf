// A second network between two hosts, of a bandwidth and a latency that a test chooses: a TUN device in each, and a
// thread for each direction that holds packets back. Not every kernel has `tc netem`.
//
//   auto wire = SlowWire::Make(*hosts, 1, 2).value();
//   wire->Set({.bits_per_second = 100e6, .one_way = absl::Milliseconds(1)});
//   ... wire->Address(1) ...
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tests/cluster/hosts.h"

namespace muster::cluster {

class SlowWire {
 public:
  struct Figures {
    double bits_per_second = 1e9;
    absl::Duration one_way = absl::ZeroDuration();
  };
  // Before anything on these hosts uses it. FailedPrecondition: no TUN devices here.
  static absl::StatusOr<std::unique_ptr<SlowWire>> Make(const Hosts& hosts, int first, int second);
  ~SlowWire();
  SlowWire(const SlowWire&) = delete;

  std::string Address(int host) const;
  // From now on, in each direction. Thread-safe.
  void Set(Figures figures);

 private:
  SlowWire() = default;
  void Carry(int from, int to);

  int hosts_[2] = {0, 0};
  int devices_[2] = {-1, -1};
  std::atomic<double> bytes_per_second_ = 125e6, one_way_seconds_ = 0;
  std::atomic<bool> ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace muster::cluster
