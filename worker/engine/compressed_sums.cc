#include "worker/engine/compressed_sums.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace muster::engine {

CompressedSums::CompressedSums(const Config& config, const Storage& storage, at::Device device)
    : config_(config),
      storage_(storage),
      place_(static_cast<int>(
          NodePlaceOf(CoordinateOf(config.mesh, config.rank).replica, config.mesh.replicas_inside).place)) {
  const Train& train = config.train;
  compression::Options options{
      .compression = train.communication().compression(), .seed = train.seed(), .device = device};
  if (options.compression.top_k().momentum_correction()) {
    options.momentum = train.optimizer().sgd().momentum(), options.nesterov = train.optimizer().sgd().nesterov();
  }
  for (const Op& op : config.schedule.ops) {
    if (op.kind != OpKind::kAllReduce) continue;
    options.group = config.groups[static_cast<size_t>(op.group)];
    std::vector<Sum>& sums = sums_[op.unit];
    for (const Storage::Summed& range : storage.SummedIn(op, place_)) {
      options.elements = range.values.numel();
      options.parts = PartsOf(range.own, options.elements);
      sums.push_back({range.own, options.parts, compression::MakeCompressedSum(options)});
    }
  }
}

// Whole rows of tensors.
std::vector<strategies::GradientPart> CompressedSums::PartsOf(int64_t own, int64_t elements) const {
  std::vector<strategies::GradientPart> parts;
  for (const OwnedExtent& extent : storage_.extents()) {
    if (extent.own < 0) continue;  // frozen
    const auto& shape = extent.tensor->shape();
    const strategies::GradientPart tensor{extent.own - extent.begin - own, {shape.begin(), shape.end()}};
    std::optional<strategies::GradientPart> rows = strategies::RowsWithin(
        tensor, std::max<int64_t>(0, extent.own - own), std::min(elements, extent.own + extent.length - own));
    if (rows.has_value()) parts.push_back(*std::move(rows));
  }
  return parts;
}

Works CompressedSums::Begin(const Op& op, uint64_t step) {
  Works works;
  std::vector<Sum>& sums = Of(op);
  const std::vector<Storage::Summed> ranges = storage_.SummedIn(op, place_);
  for (size_t i = 0; i < sums.size(); ++i) {
    for (auto& work : sums[i].sum->Begin(ranges[i].values, step)) works.push_back(std::move(work));
  }
  return works;
}

Works CompressedSums::Continue(const Op& op) {
  Works works;
  for (Sum& of : Of(op)) {
    for (auto& work : of.sum->Continue()) works.push_back(std::move(work));
  }
  return works;
}

void CompressedSums::End(const Op& op) {
  for (Sum& of : Of(op)) of.sum->End();
}

void CompressedSums::AddTo(State& state) const {
  for (const auto& [unit, sums] : sums_) {
    for (const Sum& of : sums) {
      for (const compression::StateTensor& kept : of.sum->State()) {
        if (kept.part < 0) {
          state.AddOfReplica(kept.name, of.own, kept.values);
        } else {
          state.AddFactorOfReplica(kept.name, of.own + of.parts[static_cast<size_t>(kept.part)].begin, kept.values);
        }
      }
    }
  }
}

}  // namespace muster::engine
