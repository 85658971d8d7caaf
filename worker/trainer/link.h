// The trainer's client of the Trainer service (proto/trainer_service.proto). Keeps the command stream open, reconnects
// without end, and notifies the worker of new records. Training never waits for it: while the worker is away, the last
// received commands remain in force.
//
//   Link link({.socket = "/run/muster/trainer.sock", .key = key});
//   Assignment assignment = link.WaitForAssignment([] { return false; }).value();
//   while (!link.Newest().stop.has_value()) { ...; link.Ring(sequence, step); }
//
// Thread-safe. Owns two threads, which end with it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/worker.pb.h"

namespace muster::trainer {

class Link {
 public:
  struct Options {
    std::string socket;  // path
    RankKey key;
    absl::Duration first_backoff = absl::Milliseconds(200);
    absl::Duration max_backoff = absl::Seconds(2);
    absl::Duration doorbell = absl::Milliseconds(200);  // minimum interval between calls of Report
  };
  // The newest commands from the worker.
  struct Received {
    uint64_t assignments = 0;  // number of assignments received; grows when `published` may have changed
    std::vector<PublishedCheckpoint> published;
    std::optional<Stop> stop;
    std::optional<StepTraceRequest> trace;
    uint64_t checkpoint_request = 0;  // a changed value requests a checkpoint
    // Records in (undelivered_after, undelivered_until] are known not to have reached the coordinator.
    uint64_t undelivered_after = 0, undelivered_until = 0;
  };

  explicit Link(Options options);
  ~Link();
  Link(const Link&) = delete;

  // Waits without a deadline. Cancelled: a stop request came, or `interrupted` (polled several times a second) returned
  // true. FailedPrecondition: the versions do not match. InvalidArgument: the worker refuses the rank's key.
  absl::StatusOr<Assignment> WaitForAssignment(const std::function<bool()>& interrupted);

  Received Newest() const;

  // Notifies the worker that record `sequence` is in the outbox and step `step` is finished. Does not block; close
  // calls are sent as one.
  void Ring(uint64_t sequence, uint64_t step);

  // As Trainer.Sync, once, from any thread. `begun` is given the function that interrupts the call, and null at its
  // end. Cancelled: it was interrupted, or the rank has asked again.
  absl::StatusOr<SyncReply> Sync(const SyncRequest& request,
                                 const std::function<void(std::function<void()>)>& begun) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace muster::trainer
