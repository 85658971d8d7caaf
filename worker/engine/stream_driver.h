// The calls to a device that its queue makes: events, and graphs of what was issued to its streams. cuda_streams.cc
// implements it for CUDA; tests implement it without a device and enforce CUDA's rules.
//
// A device has the streams of schedules (Stream), one for copies of the state, and may have others, of process groups.
// Not thread-safe; but Query may be called on any thread, for an event of which no other call is made meanwhile.
#pragma once

#include <cstddef>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "strategies/schedule/schedule.h"

namespace muster::engine {

// Beside those of schedules: copies of the state to the host go on while the ops of the next steps run.
inline constexpr Stream kCopyStream = static_cast<Stream>(kStreams);
inline constexpr size_t kDeviceStreams = kStreams + 1;

// What was issued during a capture, to be issued again as a whole: one launch instead of hundreds. It reads and writes
// the memory that the captured work did. Destroy it before the process groups whose collectives it has.
class Graph {
 public:
  virtual ~Graph() = default;
  // To the current stream.
  virtual absl::Status Launch() = 0;
};

class StreamDriver {
 public:
  using Event = void*;

  virtual ~StreamDriver() = default;
  virtual absl::StatusOr<Event> MakeEvent() = 0;
  virtual void DestroyEvent(Event event) = 0;
  // Of all that `stream` holds now. An event may be recorded again when no one waits for it any more.
  virtual absl::Status Record(Event event, Stream stream) = 0;
  virtual absl::Status Wait(Stream stream, Event event) = 0;
  // Whether the device has reached the event's last record. Does not wait.
  virtual absl::StatusOr<bool> Query(Event event) = 0;
  // Calls `work` with `stream` as the current one.
  virtual void With(Stream stream, absl::FunctionRef<void()> work) = 0;

  // From BeginCapture to EndCapture what is issued to kCompute, and to streams that wait for an event which was
  // recorded there since, becomes a graph and does not run. CUDA's rules, whose violation fails the capture: streams
  // that take part wait for no event from before; no event is queried; the host waits for nothing; in the end kCompute
  // has waited for all that the other streams hold (CUDA programming guide, "Creating a graph using stream capture").
  //
  // BeginCapture waits for the device and frees memory that LibTorch keeps unused, because a graph has its own. After
  // its success EndCapture must be called; it ends the capture also when it fails.
  virtual absl::Status BeginCapture() = 0;
  virtual absl::StatusOr<std::unique_ptr<Graph>> EndCapture() = 0;
};

}  // namespace muster::engine
