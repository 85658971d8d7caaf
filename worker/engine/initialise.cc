#include "worker/engine/initialise.h"

#include <ATen/Parallel.h>
#include <ATen/core/PhiloxRNGEngine.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/sha256.h"
#include "models/box.h"

namespace muster::engine {
namespace {

uint64_t KeyOf(uint64_t seed, const std::string& name) {
  uint64_t key = 0;
  (void)absl::SimpleHexAtoi(Sha256Hex(absl::StrCat(seed, "/", name)).substr(0, 16), &key);
  return key;
}

// Four standard normal numbers: block `block` of the sequence.
std::array<float, 4> NormalBlock(uint64_t key, uint64_t block) {
  at::Philox4_32 philox(key, /*subsequence=*/block, /*offset=*/0);
  std::array<float, 4> out;
  for (int pair = 0; pair < 2; ++pair) {
    // (0, 1]: the logarithm is finite
    const double u = (static_cast<double>(philox()) + 1.0) * 0x1p-32;
    const double angle = static_cast<double>(philox()) * 0x1p-32 * 2.0 * M_PI;
    const double radius = std::sqrt(-2.0 * std::log(u));
    out[2 * pair] = static_cast<float>(radius * std::cos(angle));
    out[2 * pair + 1] = static_cast<float>(radius * std::sin(angle));
  }
  return out;
}

// Of consecutive elements of the whole tensor.
void Draw(uint64_t key, float deviation, uint64_t begin, absl::Span<float> values) {
  const uint64_t end = begin + values.size();
  at::parallel_for(static_cast<int64_t>(begin / 4), static_cast<int64_t>((end + 3) / 4), 1 << 14,
                   [&](int64_t from, int64_t to) {
                     for (int64_t block = from; block < to; ++block) {
                       const std::array<float, 4> normal = NormalBlock(key, static_cast<uint64_t>(block));
                       for (uint64_t k = 0; k < 4; ++k) {
                         const uint64_t i = 4 * static_cast<uint64_t>(block) + k;
                         if (i >= begin && i < end) values[i - begin] = deviation * normal[k];
                       }
                     }
                   });
}

}  // namespace

void Initialise(uint64_t seed, const Tensor& tensor, uint64_t begin, absl::Span<float> values) {
  if (tensor.init().kind() != Initialisation::NORMAL) {
    std::fill(values.begin(), values.end(), tensor.init().kind() == Initialisation::ONES ? 1.0f : 0.0f);
    return;
  }
  const uint64_t key = KeyOf(seed, tensor.name());
  const float deviation = static_cast<float>(tensor.init().standard_deviation());
  const models::FlatBox box = models::FlatBoxOf(tensor);
  for (uint64_t done = 0; done < values.size();) {
    const uint64_t n = std::min<uint64_t>(values.size() - done, box.Left(begin + done));
    Draw(key, deviation, box.Whole(begin + done), values.subspan(done, n));
    done += n;
  }
}

}  // namespace muster::engine
