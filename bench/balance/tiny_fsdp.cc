#include "bench/balance/tiny_fsdp.h"

#include "models/inventory.h"

namespace muster::bench {

std::vector<uint64_t> TinyFsdp(const Inventory& inventory, uint32_t ranks, double evenness_priority) {
  const double target = static_cast<double>(models::Parameters(inventory)) / ranks;
  std::vector<uint64_t> sizes(ranks);
  uint32_t rank = 0;
  for (const Unit& unit : inventory.units()) {
    for (const Tensor& tensor : unit.tensors()) {
      const uint64_t elements = models::Elements(tensor);
      const double threshold = target * (1 + evenness_priority * (static_cast<double>(sizes[rank]) / target - 1));
      const bool full = static_cast<double>(sizes[rank] + elements) > threshold;
      if (full && sizes[rank] > 0 && rank + 1 < ranks) ++rank;
      sizes[rank] += elements;
    }
  }
  return sizes;
}

}  // namespace muster::bench
