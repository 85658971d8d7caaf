#include <ATen/ops/isfinite.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "worker/compression/compressed_sum.h"
#include "worker/compression/device_sparse.h"
#include "worker/compression/host_spans.h"
#include "worker/compression/select.h"
#include "worker/compression/sparse_code.h"

namespace muster::compression {
namespace {

// Messages of all ranks, one after another, that an all-gather fills in.
Works Gather(collectives::Group& group, const at::Tensor& messages) {
  Works works;
  works.push_back(group.AllGather({messages}));
  return works;
}

// What every implementation keeps.
struct Kept {
  explicit Kept(const Options& options)
      : momentum_used(options.compression.top_k().momentum_correction()),
        residual(Zeros(options)),
        momentum(momentum_used ? Zeros(options) : at::Tensor()),
        next_momentum(momentum_used ? Zeros(options) : at::Tensor()) {}
  static at::Tensor Zeros(const Options& options) {
    return at::zeros({options.elements}, at::TensorOptions(at::kFloat).device(options.device));
  }
  std::vector<StateTensor> State() const {
    std::vector<StateTensor> state = {{"residual", residual}};
    if (momentum_used) state.push_back({"momentum", momentum});
    return state;
  }
  // gradients become what is added to what is kept: with momentum (Lin et al. 2018, section 3.2: u = m u + g,
  // v = v + u; with Nesterov's, as PyTorch's SGD defines it, v = v + g + m u). What was sent of u is cleared (momentum
  // factor masking).
  void AddMomentum(const at::Tensor& gradients, const Options& options) const {
    if (!momentum_used) return;
    next_momentum.copy_(momentum).mul_(options.momentum).add_(gradients);
    if (options.nesterov) {
      gradients.add_(next_momentum, options.momentum);
    } else {
      gradients.copy_(next_momentum);
    }
  }

  const bool momentum_used;
  const at::Tensor residual, momentum, next_momentum;
};

class HostTopK final : public CompressedSum {
 public:
  explicit HostTopK(const Options& options) : options_(options), kept_(options) {}

  Works Begin(const at::Tensor& gradients, uint64_t step) override {
    gradients_ = gradients;
    const TopK& top_k = options_.compression.top_k();
    const int64_t most = strategies::SentElements(top_k, options_.elements, step);
    kept_.AddMomentum(gradients, options_);
    const absl::Span<float> values = FloatsOf(kept_.residual);
    if (top_k.selection() == SELECTION_SAMPLED) {
      selector_.AddAndSample(FloatsOf(gradients), values, most, step, own_.indices);
    } else {
      selector_.AddAndFind(FloatsOf(gradients), values, most, step, own_.indices);
    }
    own_.values.clear();
    for (const int32_t i : own_.indices) own_.values.push_back(values[static_cast<size_t>(i)]);
    code_ = SparseCode(options_.elements, most, top_k.values());
    if (!messages_.defined() || messages_.numel() != code_.words() * options_.group->size()) {
      messages_ = at::zeros({code_.words() * options_.group->size()}, at::kFloat);
    }
    code_.Encode(own_, Message(options_.group->rank()));
    return Gather(*options_.group, messages_);
  }

  void End() override {
    const int ranks = options_.group->size();
    bool finite = true;
    for (int rank = 0; rank < ranks; ++rank) {
      code_.Decode(Message(rank), of_rank_);
      finite = finite &&
               std::all_of(of_rank_.values.begin(), of_rank_.values.end(), [](float v) { return std::isfinite(v); });
    }
    const absl::Span<float> sum = FloatsOf(gradients_);
    finite ? Keep() : Restore(sum);
    std::fill(sum.begin(), sum.end(), 0.0f);
    for (int rank = 0; rank < ranks; ++rank) {
      code_.Decode(Message(rank), of_rank_);
      for (size_t i = 0; i < of_rank_.indices.size(); ++i) {
        sum[static_cast<size_t>(of_rank_.indices[i])] += of_rank_.values[i];
      }
    }
  }

  std::vector<StateTensor> State() override { return kept_.State(); }

 private:
  absl::Span<uint32_t> Message(int rank) const {
    return WordsOf(messages_).subspan(static_cast<size_t>(rank * code_.words()), static_cast<size_t>(code_.words()));
  }
  // What was not sent.
  void Keep() const {
    const absl::Span<float> residual = FloatsOf(kept_.residual);
    for (size_t i = 0; i < own_.indices.size(); ++i) residual[static_cast<size_t>(own_.indices[i])] -= own_.values[i];
    if (!kept_.momentum_used) return;
    kept_.momentum.copy_(kept_.next_momentum);
    const absl::Span<float> momentum = FloatsOf(kept_.momentum);
    for (const int32_t i : own_.indices) momentum[static_cast<size_t>(i)] = 0;
  }

  // What was kept before, but for a rounding.
  void Restore(absl::Span<const float> added) const {
    const absl::Span<float> residual = FloatsOf(kept_.residual);
    for (size_t i = 0; i < residual.size(); ++i) {
      const float before = residual[i] - added[i];
      residual[i] = std::isfinite(before) ? before : 0;
    }
  }

  const Options options_;
  const Kept kept_;
  Selector selector_;
  SparseCode code_{0, 0, SENT_VALUES_FP32};
  Sparse own_, of_rank_;
  at::Tensor gradients_, messages_;
};

// By LibTorch's operators, of which none waits for a GPU.
class DeviceTopK final : public CompressedSum {
 public:
  explicit DeviceTopK(const Options& options) : options_(options), kept_(options) {}

  Works Begin(const at::Tensor& gradients, uint64_t step) override {
    if (options_.elements == 0) return {};
    gradients_ = gradients;
    const TopK& top_k = options_.compression.top_k();
    const int64_t most = strategies::SentElements(top_k, options_.elements, step);
    if (most != most_) {
      code_ = DeviceSparseCode(options_.elements, most, top_k.values(), options_.device);
      messages_ = at::zeros({options_.group->size(), code_.words()}, gradients.options());
      most_ = most;
    }
    kept_.AddMomentum(gradients, options_);
    gradients.add_(kept_.residual);
    const bool samples = top_k.selection() == SELECTION_SAMPLED;
    const at::Tensor indices = samples ? FindSampled(gradients, most, step) : FindLargest(gradients, most);
    // A place without an element has the first one's index, and the value 0, which changes nothing.
    const at::Tensor exists = indices.lt(options_.elements);
    own_ = at::where(exists, indices, indices.narrow(0, 0, 1));
    const at::Tensor values = at::where(exists, gradients.index_select(0, own_), 0.0);
    own_values_ = code_.Encode(indices, values, messages_[options_.group->rank()]);
    return Gather(*options_.group, messages_.view({-1}));
  }

  void End() override {
    if (options_.elements == 0) return;
    at::Tensor finite;
    // One more, for places without an element.
    const at::Tensor sum = at::zeros({options_.elements + 1}, gradients_.options());
    for (int rank = 0; rank < options_.group->size(); ++rank) {
      const at::Tensor values = code_.DecodeValues(messages_[rank]);
      sum.index_add_(0, code_.DecodeIndices(messages_[rank]), values);
      const at::Tensor all = values.isfinite().all();
      finite = finite.defined() ? finite.logical_and(all) : all;
    }
    const at::Tensor left = gradients_.index_add(0, own_, own_values_, -1);
    kept_.residual.copy_(at::where(finite, left, kept_.residual));
    if (kept_.momentum_used) {
      const at::Tensor momentum = kept_.next_momentum.index_fill(0, own_, 0);
      kept_.momentum.copy_(at::where(finite, momentum, kept_.momentum));
    }
    gradients_.copy_(sum.narrow(0, 0, options_.elements));
  }

  std::vector<StateTensor> State() override { return kept_.State(); }

 private:
  const Options options_;
  const Kept kept_;
  int64_t most_ = -1;
  DeviceSparseCode code_;
  at::Tensor own_, own_values_, gradients_, messages_;
};

}  // namespace

std::unique_ptr<CompressedSum> MakeTopKSum(const Options& options) {
  if (options.portable || !options.device.is_cpu()) return std::make_unique<DeviceTopK>(options);
  return std::make_unique<HostTopK>(options);
}

}  // namespace muster::compression
