// Records steps while somebody asks (Assignment.trace), and costs nothing otherwise.
//
//   tracer.Hear(link.Newest().trace);
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

// At most so many spans of a step; the rest is counted.
inline constexpr size_t kMostSpans = 20'000;

// Of one thread.
class Tracer {
 public:
  // The newest request; each is granted once.
  void Hear(const std::optional<StepTraceRequest>& request);
  void BeginStep(engine::Engine& engine);
  // Something that the host did, from `begin` to now, inside of the step.
  void Host(const std::string& name, engine::SteadyPoint begin);
  // Behind the step; none: nobody asked.
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
