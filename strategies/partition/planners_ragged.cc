#include <algorithm>

#include "strategies/partition/cuts.h"
#include "strategies/partition/flat.h"
#include "strategies/partition/planners.h"

namespace muster::partition {
namespace {

// How far a part may be from its share so that a tensor stays whole or is cut between rows: a 64th of the share.
constexpr uint64_t kSlack = 64;
// How far a part of a unit may be from its share to compensate for other units: a 32nd of the share.
constexpr uint64_t kCorrection = 32;
// For a smaller part the message costs more than its bytes: small units have fewer owners. Elements.
constexpr uint64_t kSmallestPart = 1024;

// `weights` scaled to a sum below 2^24, so that they multiply with a model's elements (up to 2^40) within 64 bits.
std::vector<uint64_t> Scaled(absl::Span<const uint64_t> weights) {
  std::vector<uint64_t> scaled(weights.begin(), weights.end());
  const auto [least, most] = std::minmax_element(scaled.begin(), scaled.end());
  if (*least == *most) return std::vector<uint64_t>(scaled.size(), 1);
  const uint64_t limit = std::max<uint64_t>(1, (uint64_t{1} << 24) / scaled.size());
  int shift = 0;
  while ((*most >> shift) >= limit) ++shift;
  for (uint64_t& weight : scaled) weight = std::max<uint64_t>(1, weight >> shift);
  return scaled;
}

uint64_t Sum(absl::Span<const uint64_t> numbers) {
  uint64_t sum = 0;
  for (const uint64_t n : numbers) sum += n;
  return sum;
}

// Fills one unit's shares, one after another, with its tensors.
class UnitFiller {
 public:
  // Where each shard's part should end; a shard whose part would be empty gets none.
  UnitFiller(const Unit& unit, const std::vector<uint64_t>& ends) : unit_(unit), ends_(ends) {
    left_ = FlatOrder(unit);
    std::stable_sort(left_.begin(), left_.end(), [&](int a, int b) { return Size(a) > Size(b); });
    const std::vector<int> places = FlatOrder(unit);
    place_.resize(places.size());
    for (size_t i = 0; i < places.size(); ++i) place_[places[i]] = i;
  }

  void Fill() {
    size_t last = ends_.size() - 1;
    while (last > 0 && ends_[last] == ends_[last - 1]) --last;
    uint64_t begin = 0;
    for (size_t s = 0; s < ends_.size(); ++s) {
      const uint64_t wanted = ends_[s] - begin;
      begin = ends_[s];
      if (s == last) {
        FillShare(UINT64_MAX, 0);
      } else if (wanted > 0) {
        FillShare(begin, wanted / kSlack);
      }
      boundaries_.push_back(at_);
    }
  }

  const std::vector<int>& order() const { return order_; }
  const std::vector<uint64_t>& boundaries() const { return boundaries_; }

 private:
  uint64_t Size(int tensor) const { return PaddedElements(unit_.tensors(tensor)); }

  // Up to `end`, or `slack` to either side of it; UINT64_MAX: all of the rest.
  void FillShare(uint64_t end, uint64_t slack) {
    if (open_ >= 0 && !GoOn(end, slack)) return;
    const size_t first_whole = order_.size();
    int cut = -1;
    while (!left_.empty() && end > at_ + slack && cut < 0) {
      const uint64_t room = end - at_;
      const auto fits = std::find_if(left_.begin(), left_.end(), [&](int t) { return Size(t) <= room + slack; });
      if (fits != left_.end()) {
        at_ += Size(*fits);
        order_.push_back(*fits);
        left_.erase(fits);
      } else if (cut = ToCut(room, slack); cut < 0) {
        break;
      }
    }
    std::sort(order_.begin() + static_cast<std::ptrdiff_t>(first_whole), order_.end(),
              [&](int a, int b) { return place_[a] < place_[b]; });
    if (cut < 0) return;
    order_.push_back(cut);
    left_.erase(std::find(left_.begin(), left_.end(), cut));
    open_ = cut;
    taken_ = 0;
    GoOn(end, slack);
  }

  // Takes more of the tensor that the last share cut. Returns whether the tensor is used up.
  bool GoOn(uint64_t end, uint64_t slack) {
    const uint64_t rest = Size(open_) - taken_;
    uint64_t taken = Size(open_);
    if (end != UINT64_MAX && at_ + rest > end + slack) {
      const uint64_t room = end > at_ ? end - at_ : 0;
      taken = std::max(taken_, NearestCut(unit_.tensors(open_), taken_ + room, slack));
    }
    at_ += taken - taken_;
    taken_ = taken;
    if (taken_ < Size(open_)) return false;
    open_ = -1;
    return true;
  }

  // The largest tensor that can be cut about there; otherwise the one with the nearest cut; -1: none can be cut.
  int ToCut(uint64_t room, uint64_t slack) const {
    int best = -1;
    uint64_t best_off = 0;
    for (const int t : left_) {
      const uint64_t cut = NearestCut(unit_.tensors(t), room, slack);
      if (cut == 0) continue;
      const uint64_t off = cut > room ? cut - room : room - cut;
      if (off <= slack) return t;
      if (best >= 0 && off >= best_off) continue;
      best = t;
      best_off = off;
    }
    return best;
  }

  const Unit& unit_;
  const std::vector<uint64_t>& ends_;
  std::vector<size_t> place_;  // by tensor: its place in FlatOrder
  std::vector<int> left_;      // untouched tensors, the largest first
  int open_ = -1;              // the tensor that the last share cut, and how much of it is taken
  uint64_t taken_ = 0;
  uint64_t at_ = 0;
  std::vector<int> order_;
  std::vector<uint64_t> boundaries_{0};
};

// What each shard should own of the next unit, given what it owns of the units before.
class Shares {
 public:
  explicit Shares(absl::Span<const uint64_t> weights)
      : weights_(Scaled(weights)), all_weights_(Sum(weights_)), owned_(weights_.size()) {}

  // Where the shards' parts of a unit of `elements` should end.
  std::vector<uint64_t> Next(uint64_t elements) {
    seen_ += elements;
    std::vector<uint64_t> wanted(weights_.size());
    const uint64_t owners = std::max<uint64_t>(1, elements / kSmallestPart);
    const bool small = owners < weights_.size();
    for (const size_t s : small ? MostLacking(owners) : All()) {
      const uint64_t share = elements * weights_[s] / all_weights_;
      const uint64_t due = seen_ * weights_[s] / all_weights_;
      const uint64_t lacking = due > owned_[s] ? due - owned_[s] : 0;
      wanted[s] =
          small ? weights_[s]
                : std::max<uint64_t>(1, std::clamp(lacking, share - share / kCorrection, share + share / kCorrection));
    }
    // The product may not fit into 64 bits. A double may be off by an element.
    const double all = static_cast<double>(Sum(wanted));
    uint64_t sum = 0;
    for (uint64_t& w : wanted) {
      sum += w;
      w = static_cast<uint64_t>(static_cast<double>(sum) / all * static_cast<double>(elements));
    }
    return wanted;
  }

  void Own(absl::Span<const uint64_t> boundaries) {
    for (size_t s = 0; s < owned_.size(); ++s) owned_[s] += boundaries[s + 1] - boundaries[s];
  }

 private:
  std::vector<size_t> All() const {
    std::vector<size_t> shards(weights_.size());
    for (size_t s = 0; s < shards.size(); ++s) shards[s] = s;
    return shards;
  }

  // Shards with the smallest part of what is due.
  std::vector<size_t> MostLacking(uint64_t count) const {
    std::vector<size_t> shards = All();
    std::stable_sort(shards.begin(), shards.end(), [&](size_t a, size_t b) {
      const uint64_t due_a = seen_ * weights_[a] / all_weights_, due_b = seen_ * weights_[b] / all_weights_;
      return static_cast<int64_t>(due_a - owned_[a]) > static_cast<int64_t>(due_b - owned_[b]);
    });
    shards.resize(count);
    return shards;
  }

  std::vector<uint64_t> weights_;
  uint64_t all_weights_;
  std::vector<uint64_t> owned_;
  uint64_t seen_ = 0;
};

}  // namespace

PartitionTable Ragged(const Inventory& inventory, absl::Span<const uint64_t> weights, size_t most_bytes) {
  SizeLimit limit(most_bytes);
  PartitionTable table;
  table.set_shards(static_cast<uint32_t>(weights.size()));
  Shares shares(weights);
  for (const Unit& unit : inventory.units()) {
    const std::vector<uint64_t> ends = shares.Next(Flatten(unit).elements);
    UnitFiller filler(unit, ends);
    filler.Fill();
    shares.Own(filler.boundaries());
    AddUnit(table, unit, filler.order(), filler.boundaries());
    if (limit.Exceeded(table)) break;
  }
  return table;
}

PartitionTable RaggedInRuns(const Inventory& inventory, absl::Span<const uint64_t> weights, size_t most_bytes) {
  const std::vector<uint64_t> scaled = Scaled(weights);
  const uint64_t total = FlatElements(inventory), sum = Sum(scaled);
  std::vector<uint64_t> cuts{0};
  uint64_t due = 0;
  const auto next = [&] {  // where the next cut is due
    due += scaled[cuts.size() - 1];
    return total * due / sum;
  };
  uint64_t begin = 0, wanted = next();
  for (const Unit& unit : inventory.units()) {
    for (const int t : FlatOrder(unit)) {
      const Tensor& tensor = unit.tensors(t);
      const uint64_t end = begin + PaddedElements(tensor);
      while (cuts.size() < scaled.size() && wanted < end) {
        const uint64_t slack = total * scaled[cuts.size() - 1] / sum / (2 * kSlack);
        uint64_t cut = begin + NearestCut(tensor, wanted - std::min(wanted, begin), slack);
        if (wanted - std::min(wanted, begin) <= slack) cut = begin;
        if (end - wanted <= slack) cut = end;
        cuts.push_back(std::max(cut, cuts.back()));
        wanted = next();
      }
      begin = end;
    }
  }
  cuts.resize(scaled.size() + 1, total);
  return CutInRuns(inventory, cuts, most_bytes);
}

}  // namespace muster::partition
