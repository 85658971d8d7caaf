// Records the steps that a trace request (Assignment.trace) asks for; costs nothing otherwise.
//
//   tracer.Request(link.Newest().trace);
//   tracer.BeginStep(engine);
//   ...
//   tracer.Host("data", begin, end);
//   ...
//   if (std::optional<StepTrace> trace = tracer.EndStep(engine)) outbox.Append(...)
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/trace.pb.h"
#include "proto/worker.pb.h"
#include "worker/engine/engine.h"
#include "worker/engine/recorder.h"

namespace muster::trainer {

// Spans kept per step; the rest are only counted.
inline constexpr size_t kMostSpans = 20'000;

// Not thread-safe.
class Tracer {
 public:
  // Takes the newest request; a repeated one is ignored.
  void Request(const std::optional<StepTraceRequest>& request);
  // Whether the next step is to be recorded. No other step may be in flight then.
  bool requested() const { return left_ > 0; }
  void BeginStep(engine::Engine& engine);
  // Adds a span of host work in the current step, from `begin` to now.
  void Host(const std::string& name, engine::SteadyPoint begin);
  // After a step. None: no trace was requested.
  std::optional<StepTrace> EndStep(engine::Engine& engine);

 private:
  uint64_t request_id_ = 0;
  uint32_t left_ = 0;  // steps of it
  bool recording_ = false;
  absl::Time wall_;
  engine::SteadyPoint begin_;
  std::vector<engine::OpSpan> host_;
};

}  // namespace muster::trainer
