#include "worker/engine/recorder.h"

#include <optional>
#include <utility>

#ifdef MUSTER_CUDA
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAFunctions.h>
#endif

namespace muster::engine {

#ifdef MUSTER_CUDA
struct Recorder::Events {
  struct Op {
    at::cuda::CUDAEvent begin{cudaEventDefault}, end{cudaEventDefault};  // with times
    std::optional<size_t> span;                                          // none: it has not ended
  };
  at::cuda::CUDAEvent base{cudaEventDefault};
  SteadyPoint base_time;
  std::vector<Op> ops;
};
#else
struct Recorder::Events {};
#endif

Recorder::Recorder(bool cuda) : cuda_(cuda) {}
Recorder::~Recorder() = default;

void Recorder::Start() {
  on_ = true;
  spans_.clear();
  open_.clear();
#ifdef MUSTER_CUDA
  if (!cuda_) return;
  events_ = std::make_unique<Events>();
  c10::cuda::device_synchronize();  // so that the base event has a known host time
  events_->base.record();
  c10::cuda::device_synchronize();
  events_->base_time = std::chrono::steady_clock::now();
#endif
}

void Recorder::Begin() {
  if (!on()) return;
  open_.push_back({.at = std::chrono::steady_clock::now()});
#ifdef MUSTER_CUDA
  if (!cuda_) return;
  open_.back().event = events_->ops.size();
  events_->ops.emplace_back().begin.record();
#endif
}

void Recorder::End(std::string name, Stream stream, bool exchange) {
  if (!on() || open_.empty()) return;
  const Open open = open_.back();
  open_.pop_back();
#ifdef MUSTER_CUDA
  if (cuda_) {
    events_->ops[open.event].end.record();
    events_->ops[open.event].span = spans_.size();
  }
#endif
  spans_.push_back({std::move(name), stream, open.at, std::chrono::steady_clock::now(), exchange});
}

void Recorder::Add(OpSpan span) {
  if (on()) spans_.push_back(std::move(span));
}

std::vector<OpSpan> Recorder::Take() {
  on_ = false;
#ifdef MUSTER_CUDA
  if (cuda_ && events_ != nullptr) {
    c10::cuda::device_synchronize();
    const auto at = [&](const at::cuda::CUDAEvent& event) {
      const std::chrono::duration<float, std::milli> since(events_->base.elapsed_time(event));
      return events_->base_time + std::chrono::duration_cast<std::chrono::steady_clock::duration>(since);
    };
    for (const Events::Op& op : events_->ops) {
      if (!op.span.has_value()) continue;
      spans_[*op.span].begin = at(op.begin);
      spans_[*op.span].end = at(op.end);
    }
    events_.reset();
  }
#endif
  return std::exchange(spans_, {});
}

}  // namespace muster::engine
