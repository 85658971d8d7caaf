#include "worker/compression/device_sparse.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <tuple>

#include "worker/compression/select.h"

namespace muster::compression {
namespace {

constexpr int64_t kCandidates = 4;  // times as many as may be sent

// Where the first `most` of `marks` are, a vector of booleans; where there are fewer, the length of `marks`.
at::Tensor FirstOf(const at::Tensor& marks, int64_t most) {
  const at::Tensor counts = marks.cumsum(0, at::kInt);
  return at::searchsorted(counts, at::arange(1, most + 1, counts.options()));
}

// As units::Magnitude: NaN is larger than infinity.
at::Tensor Magnitudes(const at::Tensor& values) { return values.view(at::kInt).bitwise_and(0x7fffffff); }

// Indices of the `most` largest, ascending; of equally large ones the first. By a stable sort: topk costs less, but its
// choice among equals is no one's promise.
at::Tensor LargestOf(const at::Tensor& magnitudes, int64_t most) {
  const at::Tensor order = std::get<1>(magnitudes.sort(/*stable=*/true, /*dim=*/0, /*descending=*/true));
  return std::get<0>(order.narrow(0, 0, most).sort());
}

}  // namespace

at::Tensor FindLargest(const at::Tensor& sums, int64_t most) { return LargestOf(Magnitudes(sums), most); }

at::Tensor FindSampled(const at::Tensor& sums, int64_t most, uint64_t step) {
  const int64_t elements = sums.numel();
  const Sample sample = SampleOf(elements, step);
  const at::Tensor magnitudes = Magnitudes(sums), sampled = magnitudes.slice(0, sample.first, elements, sample.stride);
  const int64_t place = sample.PlaceOf(static_cast<double>(most), elements);
  const at::Tensor threshold =
      std::get<0>(sampled.sort(/*stable=*/false, /*dim=*/0, /*descending=*/true)).narrow(0, place, 1);
  const at::Tensor candidates = FirstOf(magnitudes.ge(threshold), std::min(elements, kCandidates * most));
  // A place without a candidate is less than all others.
  const at::Tensor of_candidates =
      at::where(candidates.lt(elements), magnitudes.index_select(0, candidates.clamp_max(elements - 1)), -1);
  return candidates.index_select(0, LargestOf(of_candidates, most));
}

DeviceSparseCode::DeviceSparseCode(int64_t elements, int64_t most, SentValues values, at::Device device)
    : elements_(elements),
      most_(most),
      values_(values),
      layout_(elements, most, values),
      bits_(at::arange(32, at::TensorOptions(at::kInt).device(device))),
      places_(at::arange(most, at::TensorOptions(at::kLong).device(device))) {}

// Words of the given bits, 0 or 1, int32, as many as 32 times the words.
at::Tensor DeviceSparseCode::Pack(const at::Tensor& bits) const {
  return bits.view({-1, 32}).bitwise_left_shift(bits_).sum(1, /*keepdim=*/false, at::kInt);
}

at::Tensor DeviceSparseCode::Unpack(const at::Tensor& words) const {
  return words.view({-1, 1}).bitwise_right_shift(bits_).bitwise_and(1).view({-1});
}

at::Tensor DeviceSparseCode::Encode(const at::Tensor& indices, const at::Tensor& values,
                                    const at::Tensor& message) const {
  const at::Tensor words = message.view(at::kInt), exists = indices.lt(elements_);
  words.narrow(0, 0, 1).copy_(exists.sum(0, /*keepdim=*/true, at::kInt));
  const int lower = layout_.lower;
  if (lower > 0) {
    const at::Tensor bits = words.new_zeros({32 * lower_words()});
    bits.narrow(0, 0, most_ * lower)
        .view({most_, lower})
        .copy_(indices.to(at::kInt)
                   .view({-1, 1})
                   .bitwise_right_shift(bits_.narrow(0, 0, lower))
                   .bitwise_and(1)
                   .mul(exists.view({-1, 1})));
    words.narrow(0, 1, lower_words()).copy_(Pack(bits));
  }
  const at::Tensor bits = words.new_zeros({32 * upper_words() + 1});  // the last: of places without an index
  const at::Tensor upper = indices.bitwise_right_shift(lower).add(places_);
  bits.index_fill_(0, at::where(exists, upper, 32 * upper_words()), 1);
  words.narrow(0, layout_.upper_at, upper_words()).copy_(Pack(bits.narrow(0, 0, 32 * upper_words())));

  const at::Tensor sent = message.narrow(0, layout_.values_at, layout_.words - layout_.values_at);
  if (values_ == SENT_VALUES_BF16) {
    sent.view(at::kBFloat16).zero_().narrow(0, 0, most_).copy_(values);
  } else if (values_ == SENT_VALUES_INT8) {
    const int64_t groups = layout_.codes_at - layout_.values_at;
    const at::Tensor padded = at::cat({values, values.new_zeros({groups * SparseLayout::kScaled - most_})})
                                  .view({groups, SparseLayout::kScaled});
    const at::Tensor scales = padded.abs().amax(1).div(127), wide = scales.view({groups, 1});
    const at::Tensor codes = at::where(wide.gt(0).logical_and(wide.isfinite()), padded.div(wide).round(), 0.0)
                                 .clamp(-127, 127)
                                 .to(at::kChar);
    sent.narrow(0, 0, groups).copy_(scales);
    const at::Tensor sent_codes = sent.narrow(0, groups, sent.numel() - groups).view(at::kChar);
    sent_codes.copy_(codes.view({-1}).narrow(0, 0, sent_codes.numel()));
  } else {
    sent.copy_(values);
  }
  return DecodeValues(message);
}

at::Tensor DeviceSparseCode::DecodeIndices(const at::Tensor& message) const {
  const at::Tensor words = message.view(at::kInt);
  const at::Tensor upper = FirstOf(Unpack(words.narrow(0, layout_.upper_at, upper_words())), most_);
  const int lower = layout_.lower;
  at::Tensor indices = upper.sub(places_).bitwise_left_shift(lower);
  if (lower > 0) {
    const at::Tensor bits = Unpack(words.narrow(0, 1, lower_words())).narrow(0, 0, most_ * lower).view({most_, lower});
    indices = indices.add(bits.bitwise_left_shift(bits_.narrow(0, 0, lower)).sum(1));
  }
  return at::where(places_.lt(words.narrow(0, 0, 1)), indices, elements_);
}

at::Tensor DeviceSparseCode::DecodeValues(const at::Tensor& message) const {
  const at::Tensor sent = message.narrow(0, layout_.values_at, layout_.words - layout_.values_at);
  if (values_ == SENT_VALUES_BF16) return sent.view(at::kBFloat16).narrow(0, 0, most_).to(at::kFloat);
  if (values_ != SENT_VALUES_INT8) return sent.clone();
  const int64_t groups = layout_.codes_at - layout_.values_at;
  const at::Tensor codes = sent.narrow(0, groups, sent.numel() - groups).view(at::kChar).narrow(0, 0, most_);
  const at::Tensor scales = sent.narrow(0, 0, groups).view({groups, 1}).expand({groups, SparseLayout::kScaled});
  return codes.to(at::kFloat).mul(scales.reshape({-1}).narrow(0, 0, most_));
}

}  // namespace muster::compression
