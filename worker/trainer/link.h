// The trainer's end of the Trainer service (proto/trainer_service.proto): keeps the command stream open, for ever, and
// rings the worker's doorbell. Training never waits for it: while the worker is away, what was last heard stands.
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
    absl::Duration doorbell = absl::Milliseconds(200);  // at least between two calls of Report
  };
  // What the worker last said.
  struct Told {
    uint64_t assignments = 0;  // how many came; rises when `published` may have changed
    std::vector<PublishedCheckpoint> published;
    std::optional<Stop> stop;
    std::optional<StepTraceRequest> trace;
    uint64_t checkpoint_request = 0;  // another one than before: somebody asks for a checkpoint
    // Records behind `unheard_after`, up to `unheard_until`, are known not to have reached the coordinator.
    uint64_t unheard_after = 0, unheard_until = 0;
  };

  explicit Link(Options options);
  ~Link();
  Link(const Link&) = delete;

  // Waits as long as it takes. Cancelled: told to stop, or `interrupted` (asked several times a second) said so.
  // FailedPrecondition: versions that do not fit; InvalidArgument: the worker refuses the rank's key.
  absl::StatusOr<Assignment> WaitForAssignment(const std::function<bool()>& interrupted);

  Told Newest() const;

  // There is a record `sequence` in the outbox, and step `step` is finished. Returns at once; calls close together
  // reach the worker as one.
  void Ring(uint64_t sequence, uint64_t step);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace muster::trainer
