// A network between two network namespaces, of a bandwidth and a latency that its user chooses: a TUN device in each,
// and a thread for each direction that holds packets back. Not every kernel has `tc netem`.
//
//   auto wire = SlowWire::Make({"/proc/100/ns/net", "/proc/101/ns/net"}).value();
//   wire->Set({.bits_per_second = 100e6, .one_way = absl::Milliseconds(1)});
//   ... SlowWire::Address(0) ...
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace muster {

class SlowWire {
 public:
  struct Figures {
    double bits_per_second = 1e9;
    absl::Duration one_way = absl::ZeroDuration();
  };
  // By the paths of the namespaces. The devices are called slow0. FailedPrecondition: no TUN devices here.
  static absl::StatusOr<std::unique_ptr<SlowWire>> Make(const std::array<std::string, 2>& namespaces);
  ~SlowWire();
  SlowWire(const SlowWire&) = delete;

  // Of an end: 0 or 1.
  static std::string Address(int end) { return end == 0 ? "10.78.0.1" : "10.78.0.2"; }
  // From now on, in each direction. Thread-safe.
  void Set(Figures figures);

 private:
  SlowWire() = default;
  void Carry(int from, int to);

  int devices_[2] = {-1, -1};
  std::atomic<double> bytes_per_second_ = 125e6, one_way_seconds_ = 0;
  std::atomic<bool> ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace muster
