#include "strategies/schedule/chunks.h"

namespace muster {

std::vector<ChunkSpan> ChunksOf(const Inventory& inventory) {
  const int32_t units = inventory.units_size();
  if (inventory.chunks().empty()) return {{0, units}};
  std::vector<ChunkSpan> chunks;
  for (int c = 0; c < inventory.chunks_size(); ++c) {
    const Chunk& chunk = inventory.chunks(c);
    const auto begin = static_cast<int32_t>(chunk.begin());
    const int32_t end = c + 1 < inventory.chunks_size() ? static_cast<int32_t>(inventory.chunks(c + 1).begin()) : units;
    const uint32_t model_end = chunk.model_begin() + static_cast<uint32_t>(end - begin);
    chunks.push_back({begin, end, chunk.model_begin() == 0, model_end == inventory.model_units()});
  }
  return chunks;
}

std::vector<int32_t> ChunkByUnit(const Inventory& inventory) {
  std::vector<int32_t> by_unit;
  int32_t number = 0;
  for (const ChunkSpan& chunk : ChunksOf(inventory)) {
    by_unit.insert(by_unit.end(), static_cast<size_t>(chunk.end - chunk.begin), number++);
  }
  return by_unit;
}

std::vector<uint64_t> InputBytes(const Inventory& inventory) {
  std::vector<uint64_t> bytes;
  const std::vector<ChunkSpan> chunks = ChunksOf(inventory);
  for (size_t c = 0; c < chunks.size(); ++c) {
    for (int32_t u = chunks[c].begin; u < chunks[c].end; ++u) {
      if (u > chunks[c].begin) {
        bytes.push_back(inventory.units(u - 1).output_bytes());
      } else {
        bytes.push_back(chunks[c].first ? inventory.units(u).saved_bytes()
                                        : inventory.chunks(static_cast<int>(c)).input_bytes());
      }
    }
  }
  return bytes;
}

}  // namespace muster
