#include "worker/units/attention_choice.h"

#include <ATen/Context.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "worker/units/autograd.h"
#include "worker/units/operator_attention.h"

namespace muster::units {
namespace {

constexpr int kTrials = 5;

enum class Backend { kFlash, kMemoryEfficient, kCudnn, kPlain };

const char* NameOf(Backend backend) {
  switch (backend) {
    case Backend::kFlash:
      return "flash";
    case Backend::kMemoryEfficient:
      return "memory-efficient";
    case Backend::kCudnn:
      return "cudnn";
    case Backend::kPlain:
      break;
  }
  return "plain GEMMs";
}

void Allow(const std::vector<Backend>& backends) {
  const auto in = [&](Backend b) { return std::find(backends.begin(), backends.end(), b) != backends.end(); };
  at::Context& context = at::globalContext();
  context.setSDPUseFlash(in(Backend::kFlash));
  context.setSDPUseMemEfficient(in(Backend::kMemoryEfficient));
  context.setSDPUseCuDNN(in(Backend::kCudnn));
  context.setSDPUseMath(in(Backend::kPlain));
}

void Synchronise(const at::Device& device) {
  if (!device.is_cpu()) c10::impl::getDeviceGuardImpl(device.type())->synchronizeDevice(device.index());
}

int64_t KeyValueHeads(const AttentionShape& shape) {
  return shape.key_value_heads > 0 ? shape.key_value_heads : shape.heads;
}

// The gradient of attention's input, and the time of forward and backward.
struct Pass {
  at::Tensor gradient;
  double milliseconds;
};

Pass Run(const at::Tensor& input, const KeyWindow& seen, const AttentionShape& shape) {
  const c10::AutoGradMode on(true);
  const auto start = std::chrono::steady_clock::now();
  const at::Tensor x = input.detach().requires_grad_(true);
  const int64_t shared = KeyValueHeads(shape);  // as the block's: q, k, v beside each other
  const auto heads = [&](int64_t first, int64_t count) { return x.narrow(2, first, count).transpose(1, 2); };
  const at::Tensor y =
      AttendCausally(heads(0, shape.heads), heads(shape.heads, shared), heads(shape.heads + shared, shared), {}, seen);
  const at::Tensor gradient = Gradients(y, at::ones_like(y), {x})[0];
  Synchronise(shape.device);
  return {gradient, std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count()};
}

AttentionTrial Try(Backend backend, const at::Tensor& input, const KeyWindow& seen, const AttentionShape& shape) {
  AttentionTrial trial{.name = NameOf(backend), .milliseconds = std::numeric_limits<double>::infinity()};
  Allow({backend});
  try {
    const at::Tensor first = Run(input, seen, shape).gradient;  // warm-up: plans, workspaces
    for (int i = 0; i < kTrials && trial.refused.empty(); ++i) {
      const Pass pass = Run(input, seen, shape);
      trial.milliseconds = std::min(trial.milliseconds, pass.milliseconds);
      if (shape.deterministic && !at::equal(first, pass.gradient)) trial.refused = "not deterministic";
    }
  } catch (const c10::Error& e) {
    const std::string what = e.what_without_backtrace();
    trial.refused = what.substr(0, what.find('\n'));
  }
  return trial;
}

constexpr Backend kBackends[] = {Backend::kFlash, Backend::kMemoryEfficient, Backend::kCudnn, Backend::kPlain};

}  // namespace

const std::vector<std::string>& AttentionNames() {
  static const auto* const names = [] {
    auto* all = new std::vector<std::string>;
    for (const Backend backend : kBackends) all->emplace_back(NameOf(backend));
    return all;
  }();
  return *names;
}

absl::Status UseAttention(const std::string& name) {
  for (const Backend backend : kBackends) {
    if (name != NameOf(backend)) continue;
    Allow({backend, Backend::kPlain});
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("no implementation of attention is called \"", name, "\"; there are ",
                                                 absl::StrJoin(AttentionNames(), ", ")));
}

std::string AttentionChoice::Describe() const {
  const std::string all = absl::StrJoin(trials, ", ", [](std::string* out, const AttentionTrial& trial) {
    absl::StrAppend(out, trial.name, " ",
                    trial.refused.empty() ? absl::StrFormat("%.3g ms", trial.milliseconds)
                                          : absl::StrCat("refused (", trial.refused, ")"));
  });
  return absl::StrCat("attention by ", name.empty() ? "LibTorch's default" : name, ": ", all);
}

AttentionChoice ChooseAttention(const AttentionShape& shape) {
  std::vector<Backend> candidates = {Backend::kFlash, Backend::kPlain};
  if (!shape.device.is_cpu()) candidates.insert(candidates.begin() + 1, {Backend::kMemoryEfficient, Backend::kCudnn});
  const at::Tensor input =
      at::randn({shape.sequences, shape.tokens, shape.heads + 2 * KeyValueHeads(shape), shape.width}, shape.device)
          .to(shape.dtype);
  const KeyWindow seen = MakeKeyWindow(shape.window, shape.tokens, input.options());
  AttentionChoice choice;
  double best = std::numeric_limits<double>::infinity();
  std::vector<Backend> allowed = candidates;
  for (const Backend backend : candidates) {
    choice.trials.push_back(Try(backend, input, seen, shape));
    const AttentionTrial& trial = choice.trials.back();
    if (!trial.refused.empty() || trial.milliseconds >= best) continue;
    best = trial.milliseconds;
    choice.name = trial.name;
    allowed = {backend, Backend::kPlain};
  }
  Allow(allowed);
  return choice;
}

}  // namespace muster::units
