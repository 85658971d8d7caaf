#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "worker/compression/compressed_sum.h"

namespace muster::compression {
namespace {

// Codes of 8 bits of blocks with a scale each: every rank gets its part of the codes of all, sums them, and all gather
// the codes of the sums. The errors of both roundings are kept, that of a sum by the rank that made it.
class Int8Sum final : public CompressedSum {
 public:
  explicit Int8Sum(const Options& options)
      : options_(options),
        ranks_(options.group->size()),
        block_(options.compression.int8().block()),
        blocks_((((options.elements + ranks_ - 1) / ranks_) + block_ - 1) / block_),
        residual_(at::zeros({options.elements}, at::TensorOptions(at::kFloat).device(options.device))) {
    sent_ = at::empty({ranks_ * words()}, residual_.options());
    received_ = at::empty_like(sent_);
    padded_ = at::zeros({ranks_ * blocks_ * block_}, residual_.options());
  }

  Works Begin(const at::Tensor& gradients, uint64_t) override {
    gradients_ = gradients;
    padded_.narrow(0, 0, options_.elements).copy_(gradients).add_(residual_);
    for (int64_t rank = 0; rank < ranks_; ++rank) {
      const at::Tensor part = PartOf(rank), message = Message(sent_, rank);
      Encode(part, message);
      part.sub_(Decode(message));  // what is not sent
    }
    Works works;
    works.push_back(options_.group->AllToAll(sent_, received_));
    return works;
  }

  Works Continue() override {
    const at::Tensor sum = Decode(Message(received_, 0));
    for (int64_t rank = 1; rank < ranks_; ++rank) sum.add_(Decode(Message(received_, rank)));
    const int64_t own = options_.group->rank();
    Encode(sum, Message(received_, own));
    PartOf(own).add_(sum.sub_(Decode(Message(received_, own))));
    Works works;
    works.push_back(options_.group->AllGather({received_}));
    return works;
  }

  void End() override {
    std::vector<at::Tensor> sums;
    for (int64_t rank = 0; rank < ranks_; ++rank) sums.push_back(Decode(Message(received_, rank)).view({-1}));
    gradients_.copy_(at::cat(sums).narrow(0, 0, options_.elements));
    const at::Tensor finite = gradients_.isfinite().all();
    residual_.copy_(at::where(finite, padded_.narrow(0, 0, options_.elements), residual_));
    padded_.zero_();
  }

  std::vector<StateTensor> State() override { return {{"residual", residual_}}; }

 private:
  // Of a rank's part: its scales, then its codes.
  int64_t words() const { return blocks_ * (1 + block_ / 4); }
  at::Tensor Message(const at::Tensor& messages, int64_t rank) const {
    return messages.narrow(0, rank * words(), words());
  }
  at::Tensor PartOf(int64_t rank) const {
    return padded_.narrow(0, rank * blocks_ * block_, blocks_ * block_).view({blocks_, block_});
  }

  // Values that are not finite make a scale that is not, which is sent.
  void Encode(const at::Tensor& values, const at::Tensor& message) const {
    const at::Tensor scales = values.abs().amax(1).div_(127), wide = scales.view({blocks_, 1});
    const at::Tensor codes = at::where(wide.gt(0).logical_and(wide.isfinite()), values.div(wide).round_(), 0.0);
    message.narrow(0, 0, blocks_).copy_(scales);
    message.narrow(0, blocks_, words() - blocks_)
        .copy_(codes.clamp_(-127, 127).to(at::kChar).view({-1}).view(at::kFloat));
  }
  at::Tensor Decode(const at::Tensor& message) const {
    const at::Tensor codes = message.narrow(0, blocks_, words() - blocks_).view(at::kChar).view({blocks_, block_});
    return codes.to(at::kFloat).mul_(message.narrow(0, 0, blocks_).view({blocks_, 1}));
  }

  const Options options_;
  const int64_t ranks_, block_, blocks_;  // blocks of a rank's part
  const at::Tensor residual_;
  at::Tensor sent_, received_, padded_, gradients_;  // padded_: what is to be sent, then what is left of it
};

}  // namespace

std::unique_ptr<CompressedSum> MakeInt8Sum(const Options& options) { return std::make_unique<Int8Sum>(options); }

}  // namespace muster::compression
