#include "worker/compression/select.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <numeric>

#include "worker/units/vector_math.h"

namespace muster::compression {
namespace {

using units::Magnitude;

constexpr int64_t kLeastSample = 1024, kMostSample = 1 << 16;
constexpr size_t kTogether = 32;

// values += added, and of each kTogether sums a bit for each one that reaches the threshold.
MUSTER_VECTOR void AddAndMark(const float* added, float* values, uint32_t threshold, size_t blocks, uint32_t* marks) {
  for (size_t b = 0; b < blocks; ++b) {
    uint32_t reaching = 0;
    for (size_t i = 0; i < kTogether; ++i) {
      float& value = values[b * kTogether + i];
      value += added[b * kTogether + i];
      reaching |= static_cast<uint32_t>(Magnitude(value) >= threshold) << i;
    }
    marks[b] = reaching;
  }
}

// One pass over memory.
void AddReaching(absl::Span<const float> added, absl::Span<float> values, uint32_t threshold,
                 std::vector<uint32_t>& marks, std::vector<int32_t>& indices) {
  const size_t blocks = values.size() / kTogether;
  marks.resize(blocks);
  AddAndMark(added.data(), values.data(), threshold, blocks, marks.data());
  indices.clear();
  for (size_t b = 0; b < blocks; ++b) {
    for (uint32_t left = marks[b]; left != 0; left &= left - 1) {
      indices.push_back(static_cast<int32_t>(b * kTogether) + std::countr_zero(left));
    }
  }
  for (size_t i = blocks * kTogether; i < values.size(); ++i) {
    values[i] += added[i];
    if (Magnitude(values[i]) >= threshold) indices.push_back(static_cast<int32_t>(i));
  }
}

}  // namespace

Sample SampleOf(int64_t elements, uint64_t step) {
  const int64_t least = std::min(elements, std::clamp(elements / 64, kLeastSample, kMostSample));
  Sample sample{.stride = elements / least};
  sample.first = static_cast<int64_t>(step * 0x9e3779b97f4a7c15u >> 33) % sample.stride;
  sample.size = (elements - sample.first + sample.stride - 1) / sample.stride;
  return sample;
}

int64_t Sample::PlaceOf(double most, int64_t elements) const {
  const double part = most / static_cast<double>(elements);
  return std::clamp<int64_t>(std::llround(part * static_cast<double>(size)), 1, size) - 1;
}

// About `most` of the sums reach it.
uint32_t Selector::Threshold(absl::Span<const float> added, absl::Span<const float> values, double most,
                             uint64_t step) {
  const auto elements = static_cast<int64_t>(values.size());
  const Sample sample = SampleOf(elements, step);
  magnitudes_.clear();
  for (auto i = static_cast<size_t>(sample.first); i < values.size(); i += static_cast<size_t>(sample.stride)) {
    magnitudes_.push_back(Magnitude(values[i] + added[i]));
  }
  const auto place = magnitudes_.begin() + sample.PlaceOf(most, elements);
  std::nth_element(magnitudes_.begin(), place, magnitudes_.end(), std::greater<>());
  return *place;
}

void Selector::KeepLargest(absl::Span<const float> values, int64_t most, std::vector<int32_t>& indices) {
  if (static_cast<int64_t>(indices.size()) <= most) return;
  magnitudes_.clear();
  for (const int32_t i : indices) magnitudes_.push_back(Magnitude(values[static_cast<size_t>(i)]));
  const auto place = magnitudes_.begin() + (most - 1);
  std::nth_element(magnitudes_.begin(), place, magnitudes_.end(), std::greater<>());
  const uint32_t threshold = *place;
  int64_t equal = most - std::count_if(magnitudes_.begin(), place, [&](uint32_t m) { return m > threshold; });
  const auto is_kept = [&](int32_t i) {
    const uint32_t magnitude = Magnitude(values[static_cast<size_t>(i)]);
    return magnitude > threshold || (magnitude == threshold && equal-- > 0);
  };
  size_t kept = 0;
  for (const int32_t i : indices) {
    if (is_kept(i)) indices[kept++] = i;
  }
  indices.resize(kept);
}

void Selector::AddAndFind(absl::Span<const float> added, absl::Span<float> values, int64_t most, uint64_t step,
                          std::vector<int32_t>& indices) {
  if (values.empty()) return indices.clear();
  // From a sample, so few enough that sorting them costs little; if it misled, of all.
  AddReaching(added, values, Threshold(added, values, 1.5 * static_cast<double>(most), step), marks_, indices);
  if (static_cast<int64_t>(indices.size()) < most) {
    indices.resize(values.size());
    std::iota(indices.begin(), indices.end(), 0);
  }
  KeepLargest(values, most, indices);
}

void Selector::AddAndSample(absl::Span<const float> added, absl::Span<float> values, int64_t most, uint64_t step,
                            std::vector<int32_t>& indices) {
  if (values.empty()) return indices.clear();
  AddReaching(added, values, Threshold(added, values, static_cast<double>(most), step), marks_, indices);
  KeepLargest(values, most, indices);
}

}  // namespace muster::compression
