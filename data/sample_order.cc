#include "data/sample_order.h"

#include "data/random_purpose.h"
#include "data/sampler.h"

namespace muster::data {

uint64_t SampleOrder::Index(uint64_t sample) const {
  const uint64_t index = sample % options_.samples;
  if (options_.order == DATA_ORDER_SEQUENTIAL) return index;
  const std::array<uint32_t, 4> key = RandomBits(options_.seed, sample / options_.samples, RandomPurpose::kOrder);
  return Permute(uint64_t{key[1]} << 32 | key[0], options_.samples, index);
}

}  // namespace muster::data
