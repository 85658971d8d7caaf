#include "data/sampler.h"

#include <algorithm>
#include <bit>

namespace muster::data {
namespace {

// The finalizer of SplitMix64 (Steele, Lea and Flood 2014): each output bit depends on every input bit.
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

enum class Use : uint64_t { kOrder = 1, kOffset = 2 };

uint64_t Key(uint64_t seed, uint64_t epoch, Use use) {
  return Mix(Mix(Mix(seed) ^ epoch) ^ static_cast<uint64_t>(use));
}

// Small domains have few bits per half, so more rounds than the four that large ones need.
constexpr int kRounds = 8;

}  // namespace

uint64_t Permute(uint64_t key, uint64_t size, uint64_t index) {
  if (size <= 1) return index;
  const int half = static_cast<int>(std::bit_width(size - 1) + 1) / 2;
  const uint64_t mask = (uint64_t{1} << half) - 1;
  uint64_t value = index;
  do {
    uint64_t left = value >> half;
    uint64_t right = value & mask;
    for (int round = 0; round < kRounds; ++round) {
      const uint64_t mixed = left ^ (Mix(key ^ Mix(right * kRounds + round)) & mask);
      left = right;
      right = mixed;
    }
    value = left << half | right;
  } while (value >= size);
  return value;
}

Order::Order(const Options& options) : options_(options), windows_((options.tokens - 1) / options.context) {
  if (options_.order != DATA_ORDER_SEQUENTIAL) windows_ = std::max<uint64_t>(1, windows_ - 1);
}

uint64_t Order::Begin(uint64_t sample) const {
  const uint64_t index = sample % windows_;
  if (options_.order == DATA_ORDER_SEQUENTIAL) return index * options_.context;
  const uint64_t epoch = sample / windows_;
  const uint64_t slack = options_.tokens - 1 - windows_ * options_.context;
  const uint64_t offset = Key(options_.seed, epoch, Use::kOffset) % (std::min(slack, options_.context - 1) + 1);
  return offset + Permute(Key(options_.seed, epoch, Use::kOrder), windows_, index) * options_.context;
}

absl::Status ReadSamples(const TokenFile& file, const Order& order, uint64_t first, uint64_t count,
                         std::vector<uint32_t>& out) {
  const uint64_t length = order.context() + 1;
  out.resize(count * length);
  for (uint64_t i = 0; i < count; ++i) {
    const absl::Span<uint32_t> row = absl::MakeSpan(out).subspan(i * length, length);
    if (absl::Status status = file.Read(order.Begin(first + i), row); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace muster::data
