#include "worker/engine/reductions.h"

#include <ATen/ops/zeros.h>

#include <utility>

namespace muster::engine {

void Reductions::SetGradients(const at::Tensor& gradients) {
  gradients_ = gradients;
  if (config_->train.precision().reduce() != DTYPE_BF16 || config_->groups[kWorldGroup] == nullptr) return;
  narrow_ = at::zeros(gradients.sizes(), gradients.options().dtype(at::kBFloat16));
}

void Reductions::Issue(int32_t index, const std::string& name, const at::Tensor& values, std::function<void()> then) {
  const Op& op = config_->schedule.ops[index];
  InFlight::Then done;
  if (then || recorder_->on()) {
    done = [this, then = std::move(then), name, stream = op.stream,
            begin = std::chrono::steady_clock::now()](const collectives::Work& work) {
      recorder_->Add({name, stream, begin, work.done_at().value_or(std::chrono::steady_clock::now())});
      if (then) then();
    };
  }
  in_flight_.Add(index, op.stream, config_->groups[op.group]->AllReduce(values), std::move(done));
}

void Reductions::Begin(int32_t index, const std::string& name) {
  const Op& op = config_->schedule.ops[index];
  const int64_t begin = layout_->units[op.unit], elements = layout_->units[op.unit_end] - begin;
  const at::Tensor own = gradients_.narrow(0, begin, elements);
  if (!narrow_.defined()) return Issue(index, name, own, nullptr);
  const at::Tensor narrow = narrow_.narrow(0, begin, elements);
  narrow.copy_(own);
  Issue(index, name, narrow, [own, narrow] { own.copy_(narrow); });
}

void Reductions::BeginScalars(int32_t index, const std::string& name, const at::Tensor& scalars) {
  Issue(index, name, scalars, nullptr);
}

absl::Status Reductions::WaitFor(const Op& op) {
  if (in_flight_.empty() || op.waits.empty()) return absl::OkStatus();
  const auto begin = std::chrono::steady_clock::now();
  for (const int32_t earlier : op.waits) {
    absl::Status status = in_flight_.Wait(earlier, config_->schedule.ops[earlier].stream);
    if (!status.ok()) return status;
  }
  const auto end = std::chrono::steady_clock::now();
  waited_ += end - begin;
  recorder_->Add({"Wait", Stream::kCompute, begin, end});
  return absl::OkStatus();
}

}  // namespace muster::engine
