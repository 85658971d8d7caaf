// Records when each op of a step began and ended. Off by default; when on, it costs a few clock reads per op.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "strategies/schedule/schedule.h"

namespace muster::engine {

using SteadyPoint = std::chrono::steady_clock::time_point;

struct OpSpan {
  // As Print(Op), or "Prepare": before the first op; "Wait": for what the op's `waits` name; "Issue": a collective.
  std::string name;
  Stream stream = Stream::kCompute;
  SteadyPoint begin, end;
  // Inside a pass of a unit: a collective with other ranks, by its kind, or "Wait" for those that are under way. Its
  // time is also part of the op's.
  bool exchange = false;
};

// Not thread-safe.
class Recorder {
 public:
  // On a GPU, ops are timed by CUDA events in the current stream; host waits are not recorded.
  explicit Recorder(bool cuda);
  ~Recorder();

  void Start();
  bool on() const { return on_ && pauses_ == 0; }
  // While one lives nothing is recorded: what is issued becomes part of a graph, and its events have no times. The
  // recorder outlives it.
  class [[nodiscard]] Pause {
   public:
    explicit Pause(Recorder* recorder) : recorder_(*recorder) { ++recorder_.pauses_; }
    ~Pause() { --recorder_.pauses_; }
    Pause(const Pause&) = delete;

   private:
    Recorder& recorder_;
  };
  // One op, or what is inside it: End is of the newest Begin that has none yet. On a GPU both are called with the op's
  // stream as the current one. Nothing while it is off: a name that must be formatted is made only if on().
  void Begin();
  void End(std::string name, Stream stream = Stream::kCompute, bool exchange = false);
  // Whether times are those of the device, which the host does not know.
  bool by_device() const { return cuda_; }
  // Adds a span with known times.
  void Add(OpSpan span);
  // Stops, and returns the spans since Start. On a GPU, waits for the device.
  std::vector<OpSpan> Take();

 private:
  struct Events;  // of the GPU
  struct Open {
    SteadyPoint at;
    size_t event = 0;  // of the GPU's
  };
  const bool cuda_;
  bool on_ = false;
  int pauses_ = 0;          // that live
  std::vector<Open> open_;  // begun and not ended
  std::vector<OpSpan> spans_;
  std::unique_ptr<Events> events_;
};

}  // namespace muster::engine
