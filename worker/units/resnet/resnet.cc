#include "worker/units/resnet/resnet.h"

#include <ATen/ops/batch_norm.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/relu.h>
#include <c10/util/Exception.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "models/resnet/resnet.h"
#include "worker/units/autograd_unit.h"
#include "worker/units/classifier_head.h"
#include "worker/units/gemm.h"
#include "worker/units/row_kernels.h"
#include "worker/units/sync_batch_norm.h"

namespace muster::units {
namespace {

// Convolutions, each followed by a batch normalization (Ioffe and Szegedy 2015): three parameters and two buffers each,
// in this order.
class Convolutions : public AutogradUnit {
 public:
  Convolutions(const Resnet& model, std::vector<Parameter> parameters, const UnitOptions& options)
      : AutogradUnit(std::move(parameters)),
        buffers_(options.buffers),
        momentum_(model.batch_norm_momentum()),
        synchronized_(model.sync_batch_norm()),
        widens_(Gemms(options.bf16_gemms).ThroughPanels(Leaf(0))) {}

 protected:
  at::Tensor Normalized(const Context& context, const at::Tensor& x, int index, int64_t stride) const {
    const at::Tensor& weight = Leaf(3 * index);
    const int64_t padding = weight.size(2) / 2;
    const auto convolve = [&](const at::Tensor& in, const at::Tensor& w) {
      return at::conv2d(in, w, {}, {stride, stride}, {padding, padding});
    };
    // Without instructions for their dtype, LibTorch's convolutions are several times slower; these round as they do.
    const at::Tensor y =
        widens_ ? convolve(x.to(at::kFloat), weight.to(at::kFloat)).to(x.scalar_type()) : convolve(x, weight);
    const bool train = context.mode != Mode::kEvaluate && context.mode != Mode::kGenerate;
    const at::ScalarType wide = WideType(weight.scalar_type());
    const at::Tensor scale = Leaf(3 * index + 1).to(wide), shift = Leaf(3 * index + 2).to(wide);
    // A forward that is computed again does not count twice.
    const bool counts = context.mode != Mode::kRecompute;
    const at::Tensor mean = counts ? buffers_[2 * index] : at::Tensor(),
                     variance = counts ? buffers_[2 * index + 1] : at::Tensor();
    if (train && synchronized_ && context.ranks != nullptr) {
      return SyncBatchNorm(y, scale, shift, {mean, variance, momentum_, models::kBatchNormEpsilon}, *context.ranks);
    }
    TORCH_CHECK(!train || y.numel() > y.size(1),
                "batch normalization needs more than one value for each channel: the microbatch is one image, and its "
                "features one pixel");
    return at::batch_norm(y, scale, shift, mean, variance, train, momentum_, models::kBatchNormEpsilon,
                          /*cudnn_enabled=*/true);
  }

 private:
  const std::vector<at::Tensor> buffers_;
  const double momentum_;
  const bool synchronized_;
  const bool widens_;
};

class ResnetStemUnit final : public Convolutions {
 public:
  ResnetStemUnit(const Resnet& model, std::vector<Parameter> p, const UnitOptions& options)
      : Convolutions(model, std::move(p), options), imagenet_(model.stem() == RESNET_STEM_IMAGENET) {}

 private:
  at::Tensor Compute(const Context& context, const at::Tensor& in, at::Tensor*) const override {
    at::Tensor y = Normalized(context, in.to(Leaf(0).scalar_type()), 0, imagenet_ ? 2 : 1);
    at::relu_(y);
    return imagenet_ ? at::max_pool2d(y, {3, 3}, {2, 2}, {1, 1}) : y;
  }

  const bool imagenet_;
};

class ResidualBlock final : public Convolutions {
 public:
  ResidualBlock(const Resnet& model, models::ResnetBlock block, std::vector<Parameter> p, const UnitOptions& options)
      : Convolutions(model, std::move(p), options), block_(std::move(block)) {}

 private:
  at::Tensor Compute(const Context& context, const at::Tensor& in, at::Tensor*) const override {
    const int convolutions = block_.bottleneck ? 3 : 2;
    at::Tensor y = in;
    for (int i = 0; i < convolutions; ++i) {
      // The stride is that of the first 3x3 convolution.
      y = Normalized(context, y, i, i == (block_.bottleneck ? 1 : 0) ? block_.stride : 1);
      if (i + 1 < convolutions) at::relu_(y);
    }
    y.add_(block_.projection ? Normalized(context, in, convolutions, block_.stride) : Shortcut(in));
    return at::relu_(y);
  }

  // He et al. 2016, section 3.3, option A.
  at::Tensor Shortcut(const at::Tensor& in) const {
    if (block_.stride == 1 && block_.in == block_.out) return in;
    const at::Tensor strided = in.slice(2, 0, std::nullopt, block_.stride).slice(3, 0, std::nullopt, block_.stride);
    const int64_t before = (block_.out - block_.in) / 2;
    return at::constant_pad_nd(strided, {0, 0, 0, 0, before, block_.out - block_.in - before});
  }

  const models::ResnetBlock block_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<UnitModule>> MakeResnetUnit(const Inventory& inventory, const Unit& unit,
                                                           std::vector<Parameter> parameters,
                                                           const UnitOptions& options) {
  const Resnet& m = inventory.model().resnet();
  if (unit.kind() == "resnet.stem") return std::make_unique<ResnetStemUnit>(m, std::move(parameters), options);
  if (unit.kind() == "resnet.head") return MakeClassifierHead(parameters[0], parameters[1]);
  if (unit.kind() == "resnet.block") {
    for (models::ResnetBlock& block : models::ResnetBlocks(m)) {
      if (block.name != unit.name()) continue;
      return std::make_unique<ResidualBlock>(m, std::move(block), std::move(parameters), options);
    }
  }
  return absl::UnimplementedError(absl::StrCat("resnet has no unit ", unit.name(), " of kind ", unit.kind()));
}

}  // namespace muster::units
