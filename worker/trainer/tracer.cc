#include "worker/trainer/tracer.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include "absl/time/clock.h"
#include "common/proto_time.h"

namespace muster::trainer {
namespace {

Lane LaneOf(Stream stream) {
  switch (stream) {
    case Stream::kCompute:
      return LANE_COMPUTE;
    case Stream::kGather:
      return LANE_GATHER;
    case Stream::kReduce:
      return LANE_REDUCE;
    case Stream::kTransfer:
      return LANE_TRANSFER;
    case Stream::kFetch:
      return LANE_FETCH;
    case Stream::kSendActivations:
    case Stream::kSendActivationsBack:
      return LANE_SEND_ACTIVATIONS;
    case Stream::kReceiveActivations:
    case Stream::kReceiveActivationsBack:
      return LANE_RECEIVE_ACTIVATIONS;
    case Stream::kSendGradients:
    case Stream::kSendGradientsBack:
      return LANE_SEND_GRADIENTS;
    case Stream::kReceiveGradients:
    case Stream::kReceiveGradientsBack:
      return LANE_RECEIVE_GRADIENTS;
    case Stream::kGatherBetween:
      return LANE_GATHER_BETWEEN;
    case Stream::kReduceBetween:
      return LANE_REDUCE_BETWEEN;
  }
  return LANE_UNSPECIFIED;
}

uint64_t Nanoseconds(engine::SteadyPoint from, engine::SteadyPoint to) {
  return static_cast<uint64_t>(std::max<int64_t>(0, std::chrono::nanoseconds(to - from).count()));
}

}  // namespace

void Tracer::Request(const std::optional<StepTraceRequest>& request) {
  if (!request.has_value() || request->id() == request_id_) return;
  request_id_ = request->id();
  left_ = request->steps();
}

void Tracer::BeginStep(engine::Engine& engine) {
  recording_ = left_ > 0;
  if (!recording_) return;
  host_.clear();
  engine.Record();
  wall_ = absl::Now();
  begin_ = std::chrono::steady_clock::now();
}

void Tracer::Host(const std::string& name, engine::SteadyPoint begin) {
  if (recording_) host_.push_back({name, Stream::kCompute, begin, std::chrono::steady_clock::now()});
}

std::optional<StepTrace> Tracer::EndStep(engine::Engine& engine) {
  if (!recording_) return std::nullopt;
  recording_ = false;
  --left_;
  StepTrace trace;
  trace.set_request_id(request_id_);
  trace.set_step(engine.step());
  trace.set_nanoseconds(Nanoseconds(begin_, std::chrono::steady_clock::now()));
  trace.set_last(left_ == 0);
  *trace.mutable_begin() = ToProto(wall_);
  std::map<std::string, uint32_t> names;
  const auto add = [&](const engine::OpSpan& from, Lane lane) {
    if (static_cast<size_t>(trace.spans_size()) >= kMostSpans) return trace.set_dropped(trace.dropped() + 1);
    const auto [name, added] = names.emplace(from.name, static_cast<uint32_t>(names.size()));
    if (added) trace.add_names(from.name);
    Span& span = *trace.add_spans();
    span.set_name(name->second);
    span.set_lane(lane);
    span.set_begin(Nanoseconds(begin_, from.begin));
    span.set_nanoseconds(Nanoseconds(from.begin, from.end));
  };
  for (const engine::OpSpan& span : host_) add(span, LANE_HOST);
  for (const engine::OpSpan& span : engine.TakeRecord()) add(span, span.exchange ? LANE_EXCHANGE : LaneOf(span.stream));
  return trace;
}

}  // namespace muster::trainer
