#include "data/images/image_order.h"

#include "data/images/random_purpose.h"
#include "data/sampler.h"

namespace muster::data {

uint64_t ImageOrder::Index(uint64_t sample) const {
  const uint64_t index = sample % options_.images;
  if (options_.order == DATA_ORDER_SEQUENTIAL) return index;
  const std::array<uint32_t, 4> key = RandomBits(options_.seed, sample / options_.images, RandomPurpose::kOrder);
  return Permute(uint64_t{key[1]} << 32 | key[0], options_.images, index);
}

}  // namespace muster::data
