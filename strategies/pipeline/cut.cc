#include "strategies/pipeline/cut.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "models/inventory.h"

namespace muster::pipeline {
namespace {

// What the worst of some chunks take, for comparisons: what fits is better than what is fast.
struct Load {
  double lacking = 0, seconds = 0, kept = 0;
  friend auto operator<=>(const Load&, const Load&) = default;
};

// Of two sets of chunks.
Load Worst(const Load& a, const Load& b) {
  const auto [seconds, kept] = std::max(std::pair(a.seconds, a.kept), std::pair(b.seconds, b.kept));
  return {std::max(a.lacking, b.lacking), seconds, kept};
}

class Cutter {
 public:
  explicit Cutter(absl::Span<const UnitLoad> units) : until_(1) {
    for (const UnitLoad& unit : units) {
      const UnitLoad& before = until_.back();
      until_.push_back({before.work + unit.work, before.elements + unit.elements, before.kept_bytes + unit.kept_bytes});
    }
  }

  // Of units [begin, end) as a chunk.
  Load Of(size_t begin, size_t end, const ChunkPlace& place) const {
    const UnitLoad &a = until_[begin], &b = until_[end];
    const double kept = b.kept_bytes - a.kept_bytes;
    const double bytes = place.element_bytes * (b.elements - a.elements) + place.kept_times * kept;
    return {std::max(0.0, bytes - place.room_bytes), (b.work - a.work) / place.speed, kept};
  }

 private:
  std::vector<UnitLoad> until_;  // by unit: of those before it
};

}  // namespace

std::vector<UnitLoad> LoadsOf(const Inventory& inventory) {
  std::vector<UnitLoad> loads;
  const int first_trained = models::FirstTrained(inventory);
  for (int u = 0; u < inventory.units_size(); ++u) {
    const Unit& unit = inventory.units(u);
    UnitLoad& load = loads.emplace_back();
    load.work = (u < first_trained ? 1 : 3) * unit.forward_flops();  // a backward takes twice a forward
    for (const Tensor& tensor : unit.tensors()) load.elements += static_cast<double>(models::Elements(tensor));
    load.kept_bytes = u < first_trained ? 0 : static_cast<double>(unit.saved_bytes());
  }
  return loads;
}

absl::StatusOr<Cut> CutUnits(absl::Span<const UnitLoad> units, absl::Span<const ChunkPlace> places,
                             strategies::Budget* budget) {
  const size_t count = units.size(), chunks = places.size();
  const auto what = [&] {
    return absl::StrCat("a cut of ", count, " units into ", chunks, " chunks; use fewer stages or chunks");
  };
  if (absl::Status s = strategies::Hold(budget, chunks * (count + 1) * sizeof(int), what); !s.ok()) return s;
  const Cutter cutter(units);
  // By number of units: the least that the worst of so many chunks may take; and, by chunk too, where the last begins.
  constexpr double kNone = std::numeric_limits<double>::infinity();
  std::vector<Load> least(count + 1, {kNone, kNone, kNone}), next;
  std::vector<std::vector<int>> begin(chunks, std::vector<int>(count + 1));
  least[0] = {};
  for (size_t c = 0; c < chunks; ++c) {
    next.assign(count + 1, {kNone, kNone, kNone});
    uint64_t tried = 0;
    for (size_t end = c + 1; end + (chunks - c - 1) <= count; ++end) {
      // With an earlier begin the chunk takes more: from the first one that alone takes more than the best, none is
      // better.
      for (size_t b = end; b-- > c; ++tried) {
        const Load own = cutter.Of(b, end, places[c]);
        if (b + 1 < end && own >= next[end]) break;
        if (const Load all = Worst(least[b], own); all < next[end]) {
          next[end] = all;
          begin[c][end] = static_cast<int>(b);
        }
      }
    }
    std::swap(least, next);
    if (absl::Status s = strategies::Spend(budget, count + tried, what); !s.ok()) return s;
  }
  Cut cut{.begins = std::vector<int>(chunks)};
  size_t end = count;
  for (size_t c = chunks; c-- > 0; end = static_cast<size_t>(cut.begins[c])) {
    cut.begins[c] = begin[c][end];
    const double lacking = cutter.Of(static_cast<size_t>(cut.begins[c]), end, places[c]).lacking;
    if (lacking > cut.lacking_bytes) cut.lacking_bytes = lacking, cut.lacks = static_cast<uint32_t>(c);
  }
  return cut;
}

namespace {

// What the chunks of a cut take, by stage.
class StageLoads {
 public:
  StageLoads(absl::Span<const UnitLoad> units, absl::Span<const ChunkPlace> places,
             absl::Span<const uint32_t> stage_of_chunk)
      : cutter_(units), units_(units.size()), places_(places), stage_of_chunk_(stage_of_chunk) {}

  // For comparisons: what the stages lack; then a microbatch's rounds, each as slow as its slowest chunk; then the
  // slowest stage; then how even stages are.
  std::tuple<double, double, double, double> Of(const std::vector<int>& begins) {
    seconds_.assign(places_.size(), 0), bytes_.assign(places_.size(), 0);
    double rounds = 0, slowest = 0;
    for (size_t c = 0; c < begins.size(); ++c) {
      const size_t end = c + 1 < begins.size() ? static_cast<size_t>(begins[c + 1]) : units_;
      const uint32_t stage = stage_of_chunk_[c];
      ChunkPlace all = places_[stage];
      all.room_bytes = 0;  // what it lacks then is what it takes
      const Load load = cutter_.Of(static_cast<size_t>(begins[c]), end, all);
      seconds_[stage] += load.seconds, bytes_[stage] += load.lacking;
      slowest = std::max(slowest, load.seconds);
      if ((c + 1) % places_.size() == 0) rounds += std::exchange(slowest, 0);
    }
    double squares = 0;
    lacking_ = 0;
    for (uint32_t stage = 0; stage < places_.size(); ++stage) {
      squares += seconds_[stage] * seconds_[stage];
      const double lacking = bytes_[stage] - places_[stage].room_bytes;
      if (lacking > lacking_) lacking_ = lacking, lacks_ = stage;
    }
    return {lacking_, rounds, *std::max_element(seconds_.begin(), seconds_.end()), squares};
  }
  // Of the last one.
  double lacking() const { return lacking_; }
  uint32_t lacks() const { return lacks_; }

 private:
  const Cutter cutter_;
  const size_t units_;
  const absl::Span<const ChunkPlace> places_;
  const absl::Span<const uint32_t> stage_of_chunk_;
  std::vector<double> seconds_, bytes_;
  double lacking_ = 0;
  uint32_t lacks_ = 0;
};

}  // namespace

absl::StatusOr<Cut> CutStages(absl::Span<const UnitLoad> units, absl::Span<const ChunkPlace> places,
                              absl::Span<const uint32_t> stage_of_chunk, strategies::Budget* budget) {
  const size_t chunks = stage_of_chunk.size();
  std::vector<ChunkPlace> by_chunk;
  for (const uint32_t stage : stage_of_chunk) {
    by_chunk.push_back(places[stage]);
    by_chunk.back().room_bytes *= static_cast<double>(places.size()) / static_cast<double>(chunks);
  }
  absl::StatusOr<Cut> cut = CutUnits(units, by_chunk, budget);
  if (!cut.ok() || chunks == places.size()) return cut;
  // Each try looks at all chunks.
  constexpr size_t kMostSteps = 4'000'000;
  const auto what = [&] { return absl::StrCat("a cut into ", chunks, " chunks; use fewer stages or chunks"); };
  StageLoads loads(units, places, stage_of_chunk);
  auto best = loads.Of(cut->begins);
  std::vector<int> begins = cut->begins;
  size_t steps = 0;
  for (bool better = true; better && steps < kMostSteps;) {
    better = false;
    // The last unit of one chunk to another one, by the begins of those from `first` to `last`.
    for (size_t first = 1; first < chunks; ++first) {
      for (size_t last = first; last < chunks && steps < kMostSteps; ++last) {
        for (const int by : {-1, 1}) {
          const int end = last + 1 < chunks ? begins[last + 1] : static_cast<int>(units.size());
          if (begins[first] + by <= begins[first - 1] || begins[last] + by >= end) continue;
          std::vector<int> moved = begins;
          for (size_t c = first; c <= last; ++c) moved[c] += by;
          steps += chunks;
          if (const auto now = loads.Of(moved); now < best) best = now, begins = std::move(moved), better = true;
        }
      }
    }
  }
  if (absl::Status s = strategies::Spend(budget, steps, what); !s.ok()) return s;
  loads.Of(begins);
  return Cut{.begins = std::move(begins), .lacking_bytes = loads.lacking(), .lacks = loads.lacks()};
}

}  // namespace muster::pipeline
