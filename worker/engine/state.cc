#include "worker/engine/state.h"

#include <ATen/ops/zeros.h>

#include <utility>

namespace muster::engine {

void State::Add(std::string kind, const at::Tensor& arena) {
  arenas_.push_back({std::move(kind), arena, arena.is_cpu() ? arena : at::zeros(arena.sizes(), at::kFloat)});
}

std::vector<StateView> State::Views(const PartitionTable& table, uint32_t shard, const ArenaLayout& layout) {
  std::vector<StateView> views;
  for (const Arena& arena : arenas_) {
    float* base = arena.host.mutable_data_ptr<float>();
    for (const UnitPartition& unit : table.units()) {
      for (const Piece& piece : unit.pieces()) {
        const Place& place = layout.places.at(piece.tensor());
        for (const Extent& extent : piece.extents()) {
          if (extent.shard() != shard) continue;
          views.push_back({arena.kind, piece.tensor(), std::vector<uint64_t>(place.shape.begin(), place.shape.end()),
                           extent.begin(), absl::MakeSpan(base + place.begin + extent.begin(), extent.length())});
        }
      }
    }
  }
  return views;
}

void State::ToHost() {
  for (Arena& arena : arenas_) {
    if (!arena.host.is_same(arena.device)) arena.host.copy_(arena.device);
  }
}

void State::FromHost() {
  for (Arena& arena : arenas_) {
    if (!arena.host.is_same(arena.device)) arena.device.copy_(arena.host);
  }
}

}  // namespace muster::engine
