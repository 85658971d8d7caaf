#include <algorithm>
#include <cstdint>

#include "worker/units/adamw.h"
#include "worker/units/cuda/adamw_program.h"
#include "worker/units/cuda/run_program.h"

namespace muster::units {
namespace {

// Null: undefined.
template <typename T = float>
const T* Decided(const at::Tensor& t, const at::Tensor& on, int64_t numbers = 1) {
  if (!t.defined()) return nullptr;
  TORCH_CHECK(t.numel() == numbers && t.is_contiguous() && t.device() == on.device(),
              "AdamW's decision is on the parameters' device");
  return t.const_data_ptr<T>();
}

template <typename N>
programs::AdamWRun<N> PlaceOf(const AdamWRun& run, int64_t begin) {
  const auto checked = [&](const at::Tensor& t) {
    TORCH_CHECK(t.is_contiguous() && t.device() == run.parameter.device() && t.numel() == run.parameter.numel(),
                "a run of AdamW has contiguous tensors of one device and of one size");
    return t;
  };
  const auto numbers = [&](const at::Tensor& t) { return device::Numbers<float>(checked(t)); };
  return {.parameter = numbers(run.parameter),
          .gradient = numbers(run.gradient),
          .exp_avg = numbers(run.exp_avg),
          .exp_avg_sq = numbers(run.exp_avg_sq),
          .computed = run.computed.defined() ? device::Numbers<N>(checked(run.computed)) : nullptr,
          .elements = run.parameter.numel(),
          .end = static_cast<int32_t>(begin + programs::AdamWBlocks(run.parameter.numel())),
          .weight_decay = static_cast<float>(run.weight_decay)};
}

// With copies of N; float: without.
template <typename N>
void Update(const std::vector<AdamWRun>& runs, const AdamWNumbers& numbers, const AdamWDecision& decision) {
  for (size_t first = 0; first < runs.size(); first += programs::kAdamWRuns) {
    const at::Tensor& on = runs[first].parameter;
    programs::AdamWStep<N> program{
        .count = static_cast<int>(std::min<size_t>(programs::kAdamWRuns, runs.size() - first)),
        .learning_rate = numbers.learning_rate,
        .beta1 = numbers.beta1,
        .beta2 = numbers.beta2,
        .epsilon = static_cast<float>(numbers.epsilon),
        .step = static_cast<double>(numbers.step),
        .divisor = Decided(decision.divisor, on),
        .skip = Decided(decision.skip, on),
        .skipped = Decided(decision.skipped, on),
        .factor = static_cast<float>(numbers.factor),
        .now = Decided<double>(decision.now, on, 2)};
    int64_t blocks = 0;
    for (int i = 0; i < program.count; ++i) {
      const AdamWRun& run = runs[first + static_cast<size_t>(i)];
      TORCH_CHECK(run.parameter.device() == on.device(), "runs of AdamW are on one device");
      program.runs[i] = PlaceOf<N>(run, blocks);
      blocks = program.runs[i].end;
    }
    device::Run(program, on);
  }
}

}  // namespace

void UpdateByAdamW(const std::vector<AdamWRun>& runs, const AdamWNumbers& numbers, const AdamWDecision& decision) {
  if (runs.empty()) return;
  const at::Tensor& computed = runs.front().computed;
  if (!computed.defined()) return Update<float>(runs, numbers, decision);
  if (computed.scalar_type() == at::kBFloat16) return Update<programs::Bf16>(runs, numbers, decision);
  TORCH_CHECK(computed.scalar_type() == at::kHalf, "AdamW's copies are bf16 or fp16, not ", computed.scalar_type());
  Update<programs::Fp16>(runs, numbers, decision);
}

}  // namespace muster::units
