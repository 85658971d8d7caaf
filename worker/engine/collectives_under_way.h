// The collectives that a unit has issued inside its pass and not waited for, for Exchanges and TensorExchanges: how
// long the pass waits for them, their spans in a trace, and what a rank that hangs in one of them shows.
//
// Not thread-safe. A failed collective throws Failed.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "worker/collectives/group.h"
#include "worker/engine/op_listener.h"
#include "worker/engine/recorder.h"

namespace muster::engine {

class CollectivesUnderWay {
 public:
  // Both outlive it; `progress` may be null.
  CollectivesUnderWay(Recorder* recorder, OpListener* progress) : recorder_(*recorder), progress_(progress) {}

  // `name` of its kind: "AllReduce".
  void Start(const char* name, std::unique_ptr<collectives::Work> work);
  // Waits for all that were started, or the first `count` of them. Records OpSpan::exchange spans: one of each
  // collective, from its start until it is done, and "Wait". On a GPU the second one alone: for how long the stream
  // waits.
  void Finish() { Finish(started_.size()); }
  void Finish(size_t count);
  bool empty() const { return started_.empty(); }
  void Forget() { started_.clear(); }

  // On a CPU: time blocked in Finish since the last call.
  double TakeWaitedSeconds();

 private:
  struct Started {
    const char* name;
    SteadyPoint at;
    std::unique_ptr<collectives::Work> work;
  };

  Recorder& recorder_;
  OpListener* const progress_;
  std::vector<Started> started_;
  std::chrono::duration<double> waited_{};
};

}  // namespace muster::engine
