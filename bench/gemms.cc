#include "bench/gemms.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <map>
#include <vector>

#include "worker/engine/cpu_allocator.h"
#include "worker/units/cpu_attention.h"
#include "worker/units/gemm.h"

namespace muster::bench {
namespace {

class Gpt2Gemms final : public Gemms {
 public:
  explicit Gpt2Gemms(const Dimensions& shape)
      : shape_(shape), rows_(static_cast<int64_t>(shape.sequences) * shape.context) {
    const int64_t c = shape.width;
    for (uint32_t layer = 0; layer < shape.layers; ++layer) {
      for (const auto& [in, out] : {std::pair{c, 3 * c}, {c, c}, {c, 4 * c}, {4 * c, c}}) AddLinear(in, out, false);
    }
    AddLinear(c, shape.vocabulary, true);
    qkv_ = Random({shape.sequences, shape.context, 3, shape.heads, c / shape.heads});
    d_qkv_ = at::empty_like(qkv_);
    d_attention_ = Random({shape.sequences, shape.context, c});
    attention_ = at::empty_like(d_attention_);
    log_sums_ = at::empty({shape.sequences, shape.heads, shape.context});
  }

  void Step() override {
    const c10::AutoGradMode off(false);
    for (const Linear& linear : linears_) {
      const at::Tensor &x = activations_.at(linear.in), &y = activations_.at(linear.out);
      gemms_.Compute(x, linear.weight, outputs_.at(linear.out));
      gemms_.Compute(y, linear.weight.t(), outputs_.at(linear.in));
      // The tied head keeps its weight as [out, in].
      if (linear.tied) {
        gemms_.AddTo(linear.gradient, y.t(), x);
      } else {
        gemms_.AddTo(linear.gradient, x.t(), y);
      }
    }
    const auto of = [](const at::Tensor& qkv, int64_t which) { return qkv.select(2, which); };
    for (uint32_t layer = 0; layer < shape_.layers; ++layer) {
      units::Attend(of(qkv_, 0), of(qkv_, 1), of(qkv_, 2), attention_, log_sums_);
      units::AttendBackward(of(qkv_, 0), of(qkv_, 1), of(qkv_, 2), attention_, log_sums_, d_attention_, of(d_qkv_, 0),
                            of(d_qkv_, 1), of(d_qkv_, 2));
    }
  }

 private:
  struct Linear {
    int64_t in, out;
    bool tied;
    at::Tensor weight, gradient;  // [in, out]; tied: the gradient is [out, in]
  };

  at::Tensor Random(at::IntArrayRef sizes) const {
    return at::randn(sizes).to(shape_.dtype == DTYPE_BF16 ? at::kBFloat16 : at::kFloat);
  }

  void AddLinear(int64_t in, int64_t out, bool tied) {
    const at::Tensor stored = tied ? Random({out, in}) : Random({in, out});
    linears_.push_back({in, out, tied, tied ? stored.t() : stored, at::zeros_like(stored)});
    for (const int64_t width : {in, out}) {
      if (activations_.contains(width)) continue;
      activations_[width] = Random({rows_, width});
      outputs_[width] = at::empty({rows_, width}, activations_[width].options());
    }
  }

  const Dimensions shape_;
  const int64_t rows_;
  std::vector<Linear> linears_;
  std::map<int64_t, at::Tensor> activations_, outputs_;  // by width, [rows, width]
  at::Tensor qkv_, d_qkv_, attention_, d_attention_, log_sums_;
  const units::Gemms gemms_{units::ChooseBf16Gemms().gemms, units::ChooseFp32Gemms().gemms};
};

}  // namespace

std::unique_ptr<Gemms> MakeGemms(const Dimensions& shape) {
  engine::InstallCpuAllocator();
  at::set_num_threads(shape.threads);
  return std::make_unique<Gpt2Gemms>(shape);
}

}  // namespace muster::bench
