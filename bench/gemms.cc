#include "bench/gemms.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <map>
#include <vector>

#include "worker/engine/cpu_allocator.h"

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
    qkv_ = Random({shape.sequences, shape.context, 3, shape.heads, c / shape.heads}).permute({2, 0, 3, 1, 4});
    d_attention_ = Random({shape.sequences, shape.context, shape.heads, c / shape.heads}).transpose(1, 2);
  }

  void Step() override {
    const c10::AutoGradMode off(false);
    for (const Linear& linear : linears_) {
      at::Tensor &x = activations_.at(linear.in), &y = activations_.at(linear.out);
      at::mm_out(outputs_.at(linear.out), x, linear.weight);
      at::mm_out(outputs_.at(linear.in), y, linear.weight.t());
      // The tied head keeps its weight as [out, in].
      at::Tensor gradient = linear.gradient;
      if (linear.tied) {
        gradient.addmm_(y.t(), x);
      } else {
        gradient.addmm_(x.t(), y);
      }
    }
    for (uint32_t layer = 0; layer < shape_.layers; ++layer) {
      const auto [out, sums] = at::_scaled_dot_product_flash_attention_for_cpu(qkv_[0], qkv_[1], qkv_[2], 0.0, true);
      at::_scaled_dot_product_flash_attention_for_cpu_backward(d_attention_, qkv_[0], qkv_[1], qkv_[2], out, sums, 0.0,
                                                               true);
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
  at::Tensor qkv_, d_attention_;
};

}  // namespace

std::unique_ptr<Gemms> MakeGemms(const Dimensions& shape) {
  engine::InstallCpuAllocator();
  at::set_num_threads(shape.threads);
  return std::make_unique<Gpt2Gemms>(shape);
}

}  // namespace muster::bench
