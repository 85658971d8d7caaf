#include "strategies/pipeline/cut.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "absl/functional/function_ref.h"
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

  size_t units() const { return until_.size() - 1; }
  // Of the units before `end`.
  double WorkUntil(size_t end) const { return until_[end].work; }
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

// Cuts into one chunk at each place, by the chunks' ends. With a unit more a chunk takes no less. So if any cut stays
// within a bound, then also the one whose chunks, from the first on, take as many units as they can.
class Ends {
 public:
  Ends(const Cutter& cutter, absl::Span<const ChunkPlace> places) : cutter_(cutter), places_(places) {}

  Load WorstOf(const std::vector<size_t>& ends) const {
    Load worst;
    for (size_t c = 0; c < ends.size(); ++c)
      worst = Worst(worst, cutter_.Of(c == 0 ? 0 : ends[c - 1], ends[c], places_[c]));
    return worst;
  }

  // Each as far as it can be. False: no cut stays within `most`.
  bool Furthest(const Load& most, std::vector<size_t>& ends) {
    ends.resize(places_.size());
    for (size_t c = 0, begin = 0; c < ends.size(); begin = ends[c++]) {
      ends[c] = Reach(c, begin, most);
      if (ends[c] == begin) return false;
    }
    return ends.back() == cutter_.units();
  }

  // Each as near as it can be. REQUIRES: some cut stays within `most`.
  std::vector<size_t> Nearest(const Load& most) {
    std::vector<size_t> ends(places_.size(), cutter_.units());
    for (size_t c = ends.size(); c-- > 1;) {
      size_t least = c, fits = ends[c] - 1;  // begins of the chunk; other chunks need a unit each
      while (least < fits) {
        const size_t middle = least + (fits - least) / 2;
        if (Within(cutter_.Of(middle, ends[c], places_[c]), most)) {
          fits = middle;
        } else {
          least = middle + 1;
        }
        ++tried_;
      }
      ends[c - 1] = fits;
    }
    return ends;
  }

  // How far the chunk can go from `begin`, so that later ones have a unit each; `begin`: one unit is too much.
  size_t Reach(size_t chunk, size_t begin, const Load& most) {
    size_t fits = begin, last = cutter_.units() - (places_.size() - chunk - 1);
    while (fits < last) {
      const size_t middle = fits + (last - fits + 1) / 2;
      if (Within(cutter_.Of(begin, middle, places_[chunk]), most)) {
        fits = middle;
      } else {
        last = middle - 1;
      }
      ++tried_;
    }
    return fits;
  }

  // Whether each chunk has a unit and is within `most`.
  bool Hold(const std::vector<size_t>& ends, const Load& most) const {
    for (size_t c = 0, begin = 0; c < ends.size(); begin = ends[c++]) {
      if (ends[c] <= begin || !Within(cutter_.Of(begin, ends[c], places_[c]), most)) return false;
    }
    return true;
  }

  uint64_t TakeTried() { return std::exchange(tried_, 0); }

 private:
  static bool Within(const Load& load, const Load& most) {
    return load.lacking <= most.lacking && std::pair(load.seconds, load.kept) <= std::pair(most.seconds, most.kept);
  }

  const Cutter& cutter_;
  const absl::Span<const ChunkPlace> places_;
  uint64_t tried_ = 0;
};

// Between the nearest and the furthest ends, so that chunks take about as long as each other: where that is not
// possible for one, it ends at its bound, and those on either side of it are evened out on their own.
class Evened {
 public:
  Evened(const Cutter& cutter, absl::Span<const ChunkPlace> places, std::vector<size_t> nearest,
         std::vector<size_t> furthest)
      : cutter_(cutter),
        nearest_(std::move(nearest)),
        furthest_(std::move(furthest)),
        speed_until_(1),
        ends_(furthest_) {
    for (const ChunkPlace& place : places) speed_until_.push_back(speed_until_.back() + place.speed);
    Between(0, places.size());
  }
  const std::vector<size_t>& ends() const { return ends_; }

 private:
  // Where chunks [first, last) end, of which the last one's end is known.
  void Between(size_t first, size_t last) {
    const double begin = cutter_.WorkUntil(first == 0 ? 0 : ends_[first - 1]),
                 rate = (cutter_.WorkUntil(ends_[last - 1]) - begin) / (speed_until_[last] - speed_until_[first]);
    size_t bound = last;
    double most = 0;
    for (size_t c = first; c + 1 < last; ++c) {
      const double until = begin + rate * (speed_until_[c + 1] - speed_until_[first]);
      ends_[c] = NearestTo(until, nearest_[c], furthest_[c]);
      const double off = std::max(cutter_.WorkUntil(nearest_[c]) - until, until - cutter_.WorkUntil(furthest_[c]));
      if (off > most) most = off, bound = c;
    }
    if (bound == last) return;
    Between(first, bound + 1);
    Between(bound + 1, last);
  }

  size_t NearestTo(double work, size_t from, size_t to) const {
    const size_t first = from;
    while (from < to) {
      const size_t middle = from + (to - from) / 2;
      if (cutter_.WorkUntil(middle) < work) {
        from = middle + 1;
      } else {
        to = middle;
      }
    }
    const bool before = from > first && work - cutter_.WorkUntil(from - 1) <= cutter_.WorkUntil(from) - work;
    return before ? from - 1 : from;
  }

  const Cutter& cutter_;
  const std::vector<size_t> nearest_, furthest_;
  std::vector<double> speed_until_;  // by chunk: of those before it
  std::vector<size_t> ends_;
};

// Of the cuts whose chunks take no more than the slowest one of `ends`, one whose chunks take about as long as each
// other. `ends` themselves, where the search by bounds misses every one (Ends).
absl::StatusOr<std::vector<size_t>> EvenedOut(const Cutter& cutter, absl::Span<const ChunkPlace> places,
                                              const std::vector<size_t>& ends, strategies::Budget* budget,
                                              absl::FunctionRef<std::string()> what) {
  Ends all(cutter, places);
  const Load most = all.WorstOf(ends);
  std::vector<size_t> furthest;
  if (!all.Furthest(most, furthest)) return ends;
  const std::vector<size_t> nearest = all.Nearest(most);
  std::vector<size_t> evened = Evened(cutter, places, nearest, furthest).ends();
  for (size_t c = 0, begin = 0; c < evened.size(); begin = evened[c++]) {
    evened[c] = std::min(std::max({evened[c], nearest[c], begin + 1}), all.Reach(c, begin, most));
  }
  if (absl::Status s = strategies::Spend(budget, all.TakeTried(), what); !s.ok()) return s;
  return all.Hold(evened, most) ? evened : ends;
}

// By dynamic programming: no other cut is better. Its work grows with the square of the number of units.
absl::StatusOr<std::vector<size_t>> ExactEnds(const Cutter& cutter, absl::Span<const ChunkPlace> places,
                                              strategies::Budget* budget, absl::FunctionRef<std::string()> what) {
  const size_t count = cutter.units(), chunks = places.size();
  if (absl::Status s = strategies::Hold(budget, chunks * (count + 1) * sizeof(int), what); !s.ok()) return s;
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
  std::vector<size_t> ends(chunks, count);
  for (size_t c = chunks; c-- > 1;) ends[c - 1] = static_cast<size_t>(begin[c][ends[c]]);
  return ends;
}

// By bisection of the bound on the slowest chunk: in places * log(units) for each half. Best if places are alike;
// otherwise a small chunk between two large ones may be missed, for which some chunk takes less than it can.
absl::StatusOr<std::vector<size_t>> BisectedEnds(const Cutter& cutter, absl::Span<const ChunkPlace> places,
                                                 strategies::Budget* budget, absl::FunctionRef<std::string()> what) {
  Ends all(cutter, places);
  constexpr double kAny = std::numeric_limits<double>::infinity();
  std::vector<size_t> furthest, tried;
  all.Furthest({kAny, kAny, kAny}, furthest);
  Load best = all.WorstOf(furthest);
  // The least of each part, given that of those before it: half of what is left is tried until nothing is between.
  Load most{kAny, kAny, kAny};
  for (double Load::*part : {&Load::lacking, &Load::seconds, &Load::kept}) {
    for (double least = 0; least < best.*part;) {
      const double middle = least + (best.*part - least) / 2;
      most.*part = middle < best.*part ? middle : least;
      if (all.Furthest(most, tried)) {
        std::swap(furthest, tried);
        best = all.WorstOf(furthest);
      } else {
        least = std::nextafter(most.*part, kAny);
      }
      if (absl::Status s = strategies::Spend(budget, all.TakeTried(), what); !s.ok()) return s;
    }
    most.*part = best.*part;
  }
  return furthest;
}

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

namespace {

// As CutUnits. Not `even`: of the cuts that are as good, any.
absl::StatusOr<Cut> CutInto(absl::Span<const UnitLoad> units, absl::Span<const ChunkPlace> places, bool even,
                            strategies::Budget* budget) {
  constexpr size_t kMostExact = 512;  // units
  const auto what = [&] {
    return absl::StrCat("a cut of ", units.size(), " units into ", places.size(),
                        " chunks; use fewer stages or chunks");
  };
  const Cutter cutter(units);
  absl::StatusOr<std::vector<size_t>> ends =
      units.size() <= kMostExact ? ExactEnds(cutter, places, budget, what) : BisectedEnds(cutter, places, budget, what);
  if (ends.ok() && even) ends = EvenedOut(cutter, places, *ends, budget, what);
  if (!ends.ok()) return ends.status();
  Cut cut;
  for (size_t c = 0, begin = 0; c < places.size(); begin = (*ends)[c++]) {
    cut.begins.push_back(static_cast<int>(begin));
    const double lacking = cutter.Of(begin, (*ends)[c], places[c]).lacking;
    if (lacking > cut.lacking_bytes) cut.lacking_bytes = lacking, cut.lacks = static_cast<uint32_t>(c);
  }
  return cut;
}

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

absl::StatusOr<Cut> CutUnits(absl::Span<const UnitLoad> units, absl::Span<const ChunkPlace> places,
                             strategies::Budget* budget) {
  return CutInto(units, places, /*even=*/true, budget);
}

absl::StatusOr<Cut> CutStages(absl::Span<const UnitLoad> units, absl::Span<const ChunkPlace> places,
                              absl::Span<const uint32_t> stage_of_chunk, strategies::Budget* budget) {
  const size_t chunks = stage_of_chunk.size();
  std::vector<ChunkPlace> by_chunk;
  for (const uint32_t stage : stage_of_chunk) {
    by_chunk.push_back(places[stage]);
    by_chunk.back().room_bytes *= static_cast<double>(places.size()) / static_cast<double>(chunks);
  }
  // Where large chunks come one after another, fewer rounds are slow than where they are spread.
  const bool even = chunks == places.size();
  absl::StatusOr<Cut> cut = CutInto(units, by_chunk, even, budget);
  if (!cut.ok() || even) return cut;
  // Each try looks at all chunks.
  constexpr size_t kMostSteps = 1'000'000;
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
