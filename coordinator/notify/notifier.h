// Delivers notices of state events: one thread for each destination, which follows the coordinator's event stream from
// a place on disk. The stream is the queue, so a destination that is away costs no memory, and nothing waits for it.
//
// At least once: the place moves on after a delivery, so a coordinator that is killed in between delivers again, with
// the same id. A notice that fails is tried again after a second, then after twice that and so on, up to five minutes;
// later ones wait for it, until it is given up.
//
// Thread-safe.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/notify/config.h"
#include "coordinator/server/loop.h"

namespace muster::notify {

struct NotifierOptions {
  std::string folder;  // of the places; made if it is missing
  std::vector<Destination> destinations;
  absl::Duration first_pause = absl::Seconds(1);
  absl::Duration longest_pause = absl::Minutes(5);
};

class Notifier {
 public:
  // `loop` outlives it. Errors of the folder, and of a place that is there but cannot be read.
  static absl::StatusOr<std::unique_ptr<Notifier>> Start(const NotifierOptions& options, server::Loop* loop);
  ~Notifier();

  // Stops in the middle of a delivery, which is repeated after the next start. REQUIRES: the loop has not stopped.
  void Stop();

 private:
  class Courier;
  explicit Notifier(std::vector<std::unique_ptr<Courier>> couriers);
  std::vector<std::unique_ptr<Courier>> couriers_;
};

}  // namespace muster::notify
