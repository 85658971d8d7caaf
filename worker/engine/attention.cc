#include "worker/engine/attention.h"

#include <ATen/ops/full.h>

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/units/attention_choice.h"

namespace muster::engine {

bool IsDeterministic(const Train& train) { return !train.has_deterministic() || train.deterministic(); }

namespace {

units::AttentionChoice Try(const Config& config, at::Device device) {
  units::AttentionShape shape{.tokens = static_cast<int64_t>(config.inventory.context()),
                              .dtype = config.train.precision().compute() == DTYPE_BF16 ? at::kBFloat16 : at::kFloat,
                              .device = device,
                              .deterministic = IsDeterministic(config.train)};
  const auto& batch = config.train.batch();
  shape.sequences = std::max<int64_t>(1, batch.microbatch() > 0 ? batch.microbatch() : batch.sequences());
  for (const Unit& unit : config.inventory.units()) {
    if (unit.heads() == 0) continue;
    shape.heads = unit.heads();
    shape.width = static_cast<int64_t>(unit.tensors(0).shape(0)) / shape.heads;
  }
  return units::ChooseAttention(shape);
}

}  // namespace

absl::StatusOr<Attention> AgreeOnAttention(const Config& config, at::Device device) {
  collectives::Group* const world = config.groups[kWorldGroup];
  const std::vector<std::string>& names = units::AttentionNames();
  Attention attention;
  if (world == nullptr || world->rank() == 0) {
    const units::AttentionChoice choice = config.try_attention ? config.try_attention() : Try(config, device);
    // None passed: plain GEMMs are what LibTorch falls back to.
    attention = {choice.name.empty() ? names.back() : choice.name, choice.Describe()};
  }
  if (world != nullptr) {
    const auto own = std::find(names.begin(), names.end(), attention.name) - names.begin();
    const at::Tensor index = at::full({1}, static_cast<int64_t>(own), at::TensorOptions(at::kLong).device(device));
    if (absl::Status s = world->Broadcast(index, 0)->Wait(); !s.ok()) return s;
    const int64_t agreed = index.item<int64_t>();
    if (absl::Status s = world->Health(); !s.ok()) return s;
    if (agreed < 0 || agreed >= static_cast<int64_t>(names.size())) {
      return absl::InternalError(absl::StrCat("rank 0 chose implementation ", agreed, " of attention"));
    }
    attention.name = names[static_cast<size_t>(agreed)];
  }
  if (attention.log.empty()) attention.log = absl::StrCat("attention by ", attention.name, ", as rank 0 chose");
  if (!device.is_cuda()) return attention;
  if (absl::Status s = units::UseAttention(attention.name); !s.ok()) return s;
  return attention;
}

}  // namespace muster::engine
