#include "strategies/pipeline/cut.h"

#include <algorithm>
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

}  // namespace muster::pipeline
