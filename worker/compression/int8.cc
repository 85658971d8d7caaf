#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "worker/compression/block_code.h"
#include "worker/compression/compressed_sum.h"
#include "worker/compression/host_spans.h"

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
        residual_(at::zeros({options.elements}, at::TensorOptions(at::kFloat).device(options.device))),
        on_host_(options.device.is_cpu() && !options.portable) {
    sent_ = at::empty({ranks_ * words()}, residual_.options());
    received_ = at::empty_like(sent_);
    padded_ = at::zeros({ranks_ * blocks_ * block_}, residual_.options());
    sum_ = at::empty({blocks_, block_}, residual_.options());
  }

  Works Begin(const at::Tensor& gradients, uint64_t) override {
    gradients_ = gradients;
    padded_.narrow(0, 0, options_.elements).copy_(gradients).add_(residual_);
    for (int64_t rank = 0; rank < ranks_; ++rank) Encode(PartOf(rank), Message(sent_, rank));
    Works works;
    works.push_back(options_.group->AllToAll(sent_, received_));
    return works;
  }

  Works Continue() override {
    Decode(Message(received_, 0), sum_);
    for (int64_t rank = 1; rank < ranks_; ++rank) AddDecoded(Message(received_, rank), sum_);
    const int64_t own = options_.group->rank();
    Encode(sum_, Message(received_, own));
    PartOf(own).add_(sum_);
    Works works;
    works.push_back(options_.group->AllGather({received_}));
    return works;
  }

  void End() override {
    const int64_t part = blocks_ * block_;
    for (int64_t rank = 0; rank < ranks_; ++rank) {
      const int64_t left = std::min(part, options_.elements - rank * part);
      if (left <= 0) break;
      Decode(Message(received_, rank), sum_);
      gradients_.narrow(0, rank * part, left).copy_(sum_.view({-1}).narrow(0, 0, left));
    }
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

  at::Tensor Scales(const at::Tensor& message) const { return message.narrow(0, 0, blocks_); }
  at::Tensor Codes(const at::Tensor& message) const { return message.narrow(0, blocks_, words() - blocks_); }
  at::Tensor WideCodes(const at::Tensor& message) const {
    return Codes(message).view(at::kChar).view({blocks_, block_}).to(at::kFloat);
  }

  // What is not sent stays in `values`, [blocks, block]. Values that are not finite make a scale that is not, which is
  // sent.
  void Encode(const at::Tensor& values, const at::Tensor& message) const {
    if (on_host_) return EncodeBlocks(FloatsOf(values), FloatsOf(Scales(message)), CodesOf(Codes(message)));
    const at::Tensor scales = values.abs().amax(1).div_(127), wide = scales.view({blocks_, 1});
    const at::Tensor codes = at::where(wide.gt(0).logical_and(wide.isfinite()), values.div(wide).round_(), 0.0);
    Scales(message).copy_(scales);
    Codes(message).copy_(codes.clamp_(-127, 127).to(at::kChar).view({-1}).view(at::kFloat));
    values.sub_(WideCodes(message).mul_(wide));
  }
  void Decode(const at::Tensor& message, const at::Tensor& values) const {
    if (on_host_) return DecodeBlocks(FloatsOf(Scales(message)), CodesOf(Codes(message)), FloatsOf(values));
    values.copy_(WideCodes(message).mul_(Scales(message).view({blocks_, 1})));
  }
  void AddDecoded(const at::Tensor& message, const at::Tensor& values) const {
    if (on_host_) return AddBlocks(FloatsOf(Scales(message)), CodesOf(Codes(message)), FloatsOf(values));
    values.add_(WideCodes(message).mul_(Scales(message).view({blocks_, 1})));
  }

  const Options options_;
  const int64_t ranks_, block_, blocks_;  // blocks of a rank's part
  const at::Tensor residual_;
  const bool on_host_;
  at::Tensor sent_, received_, padded_, gradients_;  // padded_: what is to be sent, then what is left of it
  at::Tensor sum_;                                   // of a part, [blocks, block]
};

}  // namespace

std::unique_ptr<CompressedSum> MakeInt8Sum(const Options& options) { return std::make_unique<Int8Sum>(options); }

}  // namespace muster::compression
