#include "worker/trainer/outer_state.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checkpoint/bf16.h"

namespace muster::trainer {
namespace {

constexpr size_t kInt8Block = 256, kInt4Block = 32;

// The scale of a block whose largest code is `most`; 0: all of it is 0.
float ScaleOf(absl::Span<const float> block, float most) {
  float largest = 0;
  for (const float value : block) largest = std::max(largest, std::abs(value));
  return largest / most;
}

int CodeOf(float value, float scale, int most) {
  if (scale == 0) return 0;
  return std::clamp(static_cast<int>(std::nearbyint(value / scale)), -most, most);
}

// visit(first value, values) of each block.
template <typename Visit>
void ForBlocks(size_t values, size_t block, const Visit& visit) {
  for (size_t first = 0; first < values; first += block) visit(first, std::min(block, values - first));
}

}  // namespace

size_t EncodedBytes(ExchangedValues as, size_t values) {
  switch (as) {
    case EXCHANGED_VALUES_BF16:
      return 2 * values;
    case EXCHANGED_VALUES_INT8:
      return values + sizeof(float) * ((values + kInt8Block - 1) / kInt8Block);
    case EXCHANGED_VALUES_INT4: {
      const size_t whole = values / kInt4Block, rest = values % kInt4Block;
      return whole * (sizeof(float) + kInt4Block / 2) + (rest == 0 ? 0 : sizeof(float) + (rest + 1) / 2);
    }
    default:
      return sizeof(float) * values;
  }
}

void Encode(ExchangedValues as, absl::Span<const float> values, std::string& to) {
  const size_t begin = to.size();
  to.resize(begin + EncodedBytes(as, values.size()));
  char* out = to.data() + begin;
  switch (as) {
    case EXCHANGED_VALUES_BF16:
      for (size_t i = 0; i < values.size(); ++i) {
        const uint16_t bf16 = checkpoint::ToBf16(values[i]);
        std::memcpy(out + 2 * i, &bf16, 2);
      }
      return;
    case EXCHANGED_VALUES_INT8:
      return ForBlocks(values.size(), kInt8Block, [&](size_t first, size_t count) {
        const float scale = ScaleOf(values.subspan(first, count), 127);
        std::memcpy(out, &scale, sizeof scale);
        out += sizeof scale;
        for (size_t i = 0; i < count; ++i) *out++ = static_cast<char>(CodeOf(values[first + i], scale, 127));
      });
    case EXCHANGED_VALUES_INT4:
      return ForBlocks(values.size(), kInt4Block, [&](size_t first, size_t count) {
        const float scale = ScaleOf(values.subspan(first, count), 7);
        std::memcpy(out, &scale, sizeof scale);
        out += sizeof scale;
        for (size_t i = 0; i < count; i += 2) {
          const int low = CodeOf(values[first + i], scale, 7);
          const int high = i + 1 < count ? CodeOf(values[first + i + 1], scale, 7) : 0;
          *out++ = static_cast<char>((low & 15) | ((high & 15) << 4));
        }
      });
    default:
      std::memcpy(out, values.data(), sizeof(float) * values.size());
  }
}

void DecodeAndAdd(ExchangedValues as, absl::string_view from, absl::Span<float> sum) {
  const char* in = from.data();
  switch (as) {
    case EXCHANGED_VALUES_BF16:
      for (float& value : sum) {
        uint16_t bf16;
        std::memcpy(&bf16, in, 2);
        in += 2;
        value += checkpoint::FromBf16(bf16);
      }
      return;
    case EXCHANGED_VALUES_INT8:
      return ForBlocks(sum.size(), kInt8Block, [&](size_t first, size_t count) {
        float scale;
        std::memcpy(&scale, in, sizeof scale);
        in += sizeof scale;
        for (size_t i = 0; i < count; ++i) sum[first + i] += scale * static_cast<float>(static_cast<int8_t>(*in++));
      });
    case EXCHANGED_VALUES_INT4:
      return ForBlocks(sum.size(), kInt4Block, [&](size_t first, size_t count) {
        float scale;
        std::memcpy(&scale, in, sizeof scale);
        in += sizeof scale;
        // The sign is the fourth bit.
        const auto value = [](int code) { return static_cast<float>((code & 7) - (code & 8)); };
        for (size_t i = 0; i < count; i += 2) {
          const int codes = static_cast<uint8_t>(*in++);
          sum[first + i] += scale * value(codes & 15);
          if (i + 1 < count) sum[first + i + 1] += scale * value(codes >> 4);
        }
      });
    default:
      for (float& to : sum) {
        float value;
        std::memcpy(&value, in, sizeof value);
        in += sizeof value;
        to += value;
      }
  }
}

namespace {

class EngineParameters final : public Parameters {
 public:
  explicit EngineParameters(engine::Engine* engine) : engine_(engine) {}

  absl::StatusOr<std::vector<engine::StateView>> Pull() override {
    if (absl::Status status = engine_->Pull(); !status.ok()) return status;
    std::vector<engine::StateView> views = engine_->State();
    std::erase_if(views, [](const engine::StateView& view) { return view.kind != "parameter"; });
    return views;
  }
  absl::Status Push() override { return engine_->Push(); }

 private:
  engine::Engine* const engine_;
};

}  // namespace

std::unique_ptr<Parameters> ParametersOf(engine::Engine& engine) { return std::make_unique<EngineParameters>(&engine); }

OuterState::OuterState(Parameters* parameters, const Sync& sync)
    : parameters_(parameters), sync_(sync), fragments_(sync.fragments()), exchanges_(sync.fragments()) {}

absl::StatusOr<std::unique_ptr<OuterState>> OuterState::Create(Parameters* parameters, const Inventory& inventory,
                                                               const Sync& sync) {
  std::unique_ptr<OuterState> state(new OuterState(parameters, sync));
  std::map<std::string, int> units;  // of the tensors that are trained
  for (int u = 0; u < inventory.units_size(); ++u) {
    for (const Tensor& tensor : inventory.units(u).tensors()) {
      if (!tensor.frozen()) units.emplace(tensor.name(), u);
    }
  }
  const absl::StatusOr<std::vector<engine::StateView>> views = parameters->Pull();
  if (!views.ok()) return views.status();
  for (size_t i = 0; i < views->size(); ++i) {
    const engine::StateView& view = (*views)[i];
    const auto unit = units.find(view.tensor);
    if (unit == units.end()) continue;
    if (!view.bf16.empty()) return absl::UnimplementedError("local steps need parameters in fp32");
    Extent extent{.view = i, .shape = view, .outer = {view.values.begin(), view.values.end()}, .momentum = {}};
    extent.momentum.resize(view.values.size());
    extent.shape.values = {};
    state->fragments_[static_cast<size_t>(unit->second) % state->fragments_.size()].push_back(std::move(extent));
  }
  return state;
}

uint64_t OuterState::exchange(uint32_t fragment) const {
  absl::MutexLock lock(&mutex_);
  return exchanges_[fragment];
}

std::vector<uint64_t> OuterState::exchanges() const {
  absl::MutexLock lock(&mutex_);
  return exchanges_;
}

absl::StatusOr<std::string> OuterState::Contribution(uint32_t fragment) {
  const absl::StatusOr<std::vector<engine::StateView>> views = parameters_->Pull();
  if (!views.ok()) return views.status();
  std::string encoded;
  encoded.reserve(contribution_bytes(fragment));
  std::vector<float> way;
  for (const Extent& extent : fragments_[fragment]) {
    const absl::Span<const float> own = (*views)[extent.view].values;
    way.resize(own.size());
    for (size_t i = 0; i < own.size(); ++i) way[i] = extent.outer[i] - own[i];
    Encode(sync_.values(), way, encoded);
  }
  return encoded;
}

absl::Status OuterState::Apply(uint32_t fragment, uint64_t exchange,
                               const std::vector<absl::string_view>& contributions) {
  for (const absl::string_view contribution : contributions) {
    if (contribution.size() == contribution_bytes(fragment)) continue;
    return absl::InvalidArgumentError(absl::StrCat("a contribution to fragment ", fragment, " has ",
                                                   contribution.size(), " bytes, and this rank's ",
                                                   contribution_bytes(fragment)));
  }
  absl::StatusOr<std::vector<engine::StateView>> views = parameters_->Pull();
  if (!views.ok()) return views.status();
  const auto lr = static_cast<float>(sync_.outer().lr()), momentum = static_cast<float>(sync_.outer().momentum());
  const auto mix = static_cast<float>(sync_.mix()), among = static_cast<float>(contributions.size());
  const bool nesterov = sync_.outer().nesterov();
  {
    absl::MutexLock lock(&mutex_);
    size_t at = 0;
    std::vector<float> gradient;
    for (Extent& extent : fragments_[fragment]) {
      const size_t size = extent.outer.size(), bytes = EncodedBytes(sync_.values(), size);
      gradient.assign(size, 0.0f);
      for (const absl::string_view contribution : contributions) {
        DecodeAndAdd(sync_.values(), contribution.substr(at, bytes), absl::MakeSpan(gradient));
      }
      at += bytes;
      const absl::Span<float> own = (*views)[extent.view].values;
      for (size_t i = 0; i < size; ++i) {
        const float mean = gradient[i] / among;
        extent.momentum[i] = momentum * extent.momentum[i] + mean;
        const float step = nesterov ? mean + momentum * extent.momentum[i] : extent.momentum[i];
        extent.outer[i] -= lr * step;
        own[i] = mix == 0 ? extent.outer[i] : mix * own[i] + (1 - mix) * extent.outer[i];
      }
    }
    exchanges_[fragment] = exchange;
  }
  return parameters_->Push();
}

std::string OuterState::State(uint32_t fragment, uint64_t& exchange) const {
  std::string state;
  absl::MutexLock lock(&mutex_);
  exchange = exchanges_[fragment];
  for (const Extent& extent : fragments_[fragment]) {
    Encode(EXCHANGED_VALUES_FP32, extent.outer, state);
    Encode(EXCHANGED_VALUES_FP32, extent.momentum, state);
  }
  return state;
}

absl::Status OuterState::Adopt(uint32_t fragment, uint64_t exchange, absl::string_view state) {
  size_t bytes = 0;
  for (const Extent& extent : fragments_[fragment]) bytes += 2 * sizeof(float) * extent.outer.size();
  if (state.size() != bytes) {
    return absl::InvalidArgumentError(absl::StrCat("the state of fragment ", fragment, " of another replica has ",
                                                   state.size(), " bytes, and this rank's ", bytes));
  }
  absl::StatusOr<std::vector<engine::StateView>> views = parameters_->Pull();
  if (!views.ok()) return views.status();
  {
    absl::MutexLock lock(&mutex_);
    const char* at = state.data();
    std::vector<float> theirs;
    for (Extent& extent : fragments_[fragment]) {
      const size_t size = extent.outer.size();
      theirs.resize(size);
      std::memcpy(theirs.data(), at, sizeof(float) * size);
      std::memcpy(extent.momentum.data(), at + sizeof(float) * size, sizeof(float) * size);
      at += 2 * sizeof(float) * size;
      const absl::Span<float> own = (*views)[extent.view].values;
      for (size_t i = 0; i < size; ++i) own[i] = theirs[i] + (own[i] - extent.outer[i]);
      extent.outer.swap(theirs);
    }
    exchanges_[fragment] = exchange;
  }
  return parameters_->Push();
}

std::vector<checkpoint::TensorRun> OuterState::Runs() {
  std::vector<checkpoint::TensorRun> runs;
  for (std::vector<Extent>& fragment : fragments_) {
    for (Extent& extent : fragment) {
      const engine::StateView& of = extent.shape;
      if (!of.counts) continue;
      const auto add = [&](const char* kind, std::vector<float>& values) {
        runs.push_back({.name = absl::StrCat("outer.", kind, ".", of.tensor),
                        .shape = of.shape,
                        .begin = of.begin,
                        .values = absl::MakeSpan(values),
                        .box = of.box});
      };
      add("parameter", extent.outer);
      add("momentum", extent.momentum);
    }
  }
  return runs;
}

absl::Status OuterState::Restart() {
  const absl::StatusOr<std::vector<engine::StateView>> views = parameters_->Pull();
  if (!views.ok()) return views.status();
  absl::MutexLock lock(&mutex_);
  for (std::vector<Extent>& fragment : fragments_) {
    for (Extent& extent : fragment) {
      const absl::Span<const float> own = (*views)[extent.view].values;
      std::copy(own.begin(), own.end(), extent.outer.begin());
      std::fill(extent.momentum.begin(), extent.momentum.end(), 0.0f);
    }
  }
  std::fill(exchanges_.begin(), exchanges_.end(), 0);
  return absl::OkStatus();
}

absl::Status OuterState::Load(const checkpoint::Checkpoint& checkpoint) {
  const Manifest& manifest = checkpoint.manifest();
  if (manifest.exchanges_size() != static_cast<int>(fragments_.size())) return Restart();
  checkpoint::BlockScratch scratch;
  absl::MutexLock lock(&mutex_);
  for (std::vector<Extent>& fragment : fragments_) {
    for (Extent& extent : fragment) {
      const auto read = [&](const char* kind, std::vector<float>& values) {
        return checkpoint.Read({.name = absl::StrCat("outer.", kind, ".", extent.shape.tensor),
                                .shape = extent.shape.shape,
                                .begin = extent.shape.begin,
                                .values = absl::MakeSpan(values),
                                .box = extent.shape.box},
                               scratch);
      };
      if (absl::Status status = read("parameter", extent.outer); !status.ok()) return status;
      if (absl::Status status = read("momentum", extent.momentum); !status.ok()) return status;
    }
  }
  exchanges_.assign(manifest.exchanges().begin(), manifest.exchanges().end());
  return absl::OkStatus();
}

uint64_t OuterState::contribution_bytes(uint32_t fragment) const {
  uint64_t bytes = 0;
  for (const Extent& extent : fragments_[fragment]) bytes += EncodedBytes(sync_.values(), extent.outer.size());
  return bytes;
}

uint64_t OuterState::kept_bytes() const {
  uint64_t bytes = 0;
  for (const std::vector<Extent>& fragment : fragments_) {
    for (const Extent& extent : fragment) bytes += 2 * sizeof(float) * extent.outer.size();
  }
  return bytes;
}

}  // namespace muster::trainer
