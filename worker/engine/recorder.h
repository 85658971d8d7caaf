// Where the time of a step goes: when each op began and ended. Off unless asked for, and then it costs a few clock
// readings an op.
#pragma once

#include <chrono>
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
};

// Of one thread.
class Recorder {
 public:
  // On a GPU ops are timed there, by events in the current stream; what the host waits for is not seen.
  explicit Recorder(bool cuda);
  ~Recorder();

  void Start();
  bool on() const { return on_; }
  // One op of the compute stream.
  void Begin();
  void End(std::string name);
  // One whose times are known.
  void Add(OpSpan span);
  // What was recorded since Start, which ends it. On a GPU waits for it.
  std::vector<OpSpan> Take();

 private:
  struct Events;  // of the GPU
  const bool cuda_;
  bool on_ = false;
  SteadyPoint begin_;
  std::vector<OpSpan> spans_;
  std::unique_ptr<Events> events_;
};

}  // namespace muster::engine
