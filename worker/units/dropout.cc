#include "worker/units/dropout.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>

#include "common/philox.h"
#include "worker/units/cuda/device_rows.h"
#include "worker/units/row_shares.h"
#include "worker/units/vector_math.h"

namespace muster::units {
namespace {

constexpr int64_t kBlocks = 64;  // of four words, computed beside each other

// Words of blocks [block, block + kBlocks), in four arrays.
MUSTER_VECTOR void Words(uint64_t key, uint64_t block, uint32_t sample, uint32_t step, uint32_t place,
                         uint32_t (*words)[kBlocks]) {
#pragma omp simd
  for (int64_t b = 0; b < kBlocks; ++b) {
    const uint64_t at = block + static_cast<uint64_t>(b);
    uint32_t c0 = static_cast<uint32_t>(at), c1 = sample + (static_cast<uint32_t>(at >> 32) << 20), c2 = step,
             c3 = place;
    uint32_t low = static_cast<uint32_t>(key), high = static_cast<uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
      const uint64_t first = uint64_t{0xd2511f53} * c0, second = uint64_t{0xcd9e8d57} * c2;
      c0 = static_cast<uint32_t>(second >> 32) ^ c1 ^ low;
      c1 = static_cast<uint32_t>(second);
      c2 = static_cast<uint32_t>(first >> 32) ^ c3 ^ high;
      c3 = static_cast<uint32_t>(first);
      low += 0x9e3779b9;
      high += 0xbb67ae85;
    }
    words[0][b] = c0, words[1][b] = c1, words[2][b] = c2, words[3][b] = c3;
  }
}

template <typename N>
void DropRow(const float* factors, int64_t n, N* row) {
  for (int64_t i = 0; i < n; ++i) Put(static_cast<decltype(Wide(row[i]))>(Wide(row[i]) * factors[i]), row[i]);
}

}  // namespace

uint32_t DropoutPlace::least() const { return static_cast<uint32_t>(std::min(std::ceil(rate * 0x1p32), 0x1p32 - 1)); }

void DropoutFactors(const DropoutPlace& place, int64_t sample, int64_t first, int64_t n, float* out) {
  first += place.first_element;
  const uint32_t least = place.least();
  const float scale = place.scale();
  const uint32_t of = static_cast<uint32_t>(place.first_sample + sample);
  const at::Tensor& there = place.step_on_device;
  const uint32_t step = there.defined() ? static_cast<uint32_t>(*there.const_data_ptr<int64_t>()) : place.step;
  uint32_t words[4][kBlocks];
  for (int64_t begin = first / 4 * 4; begin < first + n; begin += 4 * kBlocks) {
    Words(place.seed ^ kDropoutKey, static_cast<uint64_t>(begin / 4), of, step, place.place, words);
    const int64_t from = std::max(begin, first), to = std::min(begin + 4 * kBlocks, first + n);
    for (int64_t i = from; i < to; ++i) {
      out[i - first] = words[i % 4][(i - begin) / 4] >= least ? scale : 0;
    }
  }
}

void DropRows(const DropoutPlace& place, int64_t tokens, int64_t first_row, const at::Tensor& t) {
  if (!place.on() || t.numel() == 0) return;
  const int64_t width = t.size(1);
  if (!t.is_cpu()) {
    const at::Tensor factors = at::empty({t.size(0), width}, t.options().dtype(at::kFloat));
    device::DropoutFactors(place, tokens, first_row, factors);
    at::Tensor(t).mul_(factors);
    return;
  }
  TORCH_CHECK(t.dim() == 2 && (width <= 1 || t.stride(1) == 1), "dropout takes whole rows");
  const int64_t stride = t.stride(0);
  const DropoutRows of = place.rows.Of(tokens, width);
  Dispatch(t, [&]<typename T, typename N>(T, N) {
    N* const data = t.mutable_data_ptr<N>();
    EachShare(t.size(0), width, [&](int64_t begin, int64_t rows) {
      std::vector<float> factors(static_cast<size_t>(width));
      for (int64_t r = begin; r < begin + rows; ++r) {
        const int64_t row = first_row + r;
        DropoutFactors(place, row / tokens, of.FirstElement(row % tokens), width, factors.data());
        DropRow(factors.data(), width, data + r * stride);
      }
    });
  });
}

at::Tensor DropoutFactors(const DropoutPlace& place, int64_t samples, int64_t rows, int64_t width, at::Device device) {
  at::Tensor factors = at::empty({samples * rows, width}, at::TensorOptions(at::kFloat).device(device));
  if (factors.numel() == 0) return factors;
  if (!device.is_cpu()) {
    device::DropoutFactors(place, rows, /*first_row=*/0, factors);
    return factors;
  }
  // Rows whose elements follow one another go together: a short row would use few of the numbers that come at once.
  const DropoutRows of = place.rows.Of(rows, width);
  const int64_t together = of.width == width && rows % of.size == 0 ? of.size : 1, elements = together * width;
  float* const data = factors.mutable_data_ptr<float>();
  EachShare(samples * rows / together, elements, [&](int64_t begin, int64_t parts) {
    for (int64_t part = begin; part < begin + parts; ++part) {
      const int64_t row = part * together;
      DropoutFactors(place, row / rows, of.FirstElement(row % rows), elements, data + row * width);
    }
  });
  return factors;
}

at::Tensor Dropped(const DropoutPlace& place, const at::Tensor& y) {
  if (!place.on()) return y;
  const at::Tensor factors = DropoutFactors(place, y.size(0), y.size(1), y.size(2), y.device());
  return y.mul(factors.view(y.sizes()).to(y.scalar_type()));
}

}  // namespace muster::units
