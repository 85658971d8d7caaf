#include "worker/engine/attention.h"

#include <algorithm>

#include "worker/units/attention_choice.h"

namespace muster::engine {

bool IsDeterministic(const Train& train) { return !train.has_deterministic() || train.deterministic(); }

std::string ChooseAttention(const Config& config, at::Device device) {
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
  return units::ChooseAttention(shape).Describe();
}

}  // namespace muster::engine
