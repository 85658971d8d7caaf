#include "bench/faults/figures.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace muster::faults {
namespace {

// The smallest value that at least this share of all values does not exceed.
double Percentile(const std::vector<absl::Duration>& sorted, double share) {
  const double rank = std::ceil(share * static_cast<double>(sorted.size()));
  return absl::ToDoubleSeconds(sorted[static_cast<size_t>(std::max(rank, 1.0)) - 1]);
}

}  // namespace

void Figures::Print() const {
  std::printf("%-18s %-34s %6s %9s %9s %9s\n", "fault", "seconds until", "count", "median", "p99", "most");
  for (const auto& [key, unsorted] : times_) {
    std::vector<absl::Duration> times = unsorted;
    std::sort(times.begin(), times.end());
    std::printf("%-18s %-34s %6zu %9.2f %9.2f %9.2f\n", key.first.c_str(), key.second.c_str(), times.size(),
                Percentile(times, 0.5), Percentile(times, 0.99), absl::ToDoubleSeconds(times.back()));
  }
}

}  // namespace muster::faults
