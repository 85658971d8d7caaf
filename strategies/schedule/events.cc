#include "strategies/schedule/events.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <numeric>
#include <queue>
#include <utility>

#include "absl/container/btree_map.h"

namespace muster {
namespace {

// The times at which a slot is taken: intervals that do not overlap, by their begin.
using Taken = absl::btree_map<uint32_t, uint32_t>;

template <typename T>
using SmallestFirst = std::priority_queue<T, std::vector<T>, std::greater<>>;

bool IsFree(const Taken& taken, const Hold& hold) {
  const auto after = taken.upper_bound(hold.end);
  return after == taken.begin() || std::prev(after)->second < hold.begin;
}

}  // namespace

std::vector<int32_t> AssignSlots(const std::vector<Span>& spans, const std::vector<Hold>& holds, int32_t& slots) {
  std::vector<size_t> order(spans.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return spans[a].bytes > spans[b].bytes; });
  std::vector<std::vector<Hold>> of(spans.size());
  for (const Hold& hold : holds) of[hold.span].push_back(hold);
  std::vector<Taken> taken;
  std::vector<int32_t> slot(spans.size(), -1);
  for (const size_t s : order) {
    if (of[s].empty()) continue;
    size_t at = 0;
    const auto fits = [&](const Hold& hold) { return IsFree(taken[at], hold); };
    while (at < taken.size() && !std::all_of(of[s].begin(), of[s].end(), fits)) ++at;
    if (at == taken.size()) taken.emplace_back();
    for (const Hold& hold : of[s]) taken[at].emplace(hold.begin, hold.end);
    slot[s] = static_cast<int32_t>(at);
  }
  slots = static_cast<int32_t>(taken.size());
  return slot;
}

std::vector<int32_t> FirstFreeSlots(const std::vector<Stay>& stays, int32_t& slots) {
  SmallestFirst<std::pair<uint32_t, int32_t>> held;  // ends, and their slots
  SmallestFirst<int32_t> free;
  std::vector<int32_t> slot;
  slots = 0;
  for (const Stay& stay : stays) {
    // As begins ascend, what is free now is free for all later stays until one of them takes it.
    for (; !held.empty() && held.top().first < stay.begin; held.pop()) free.push(held.top().second);
    if (free.empty()) free.push(slots++);
    slot.push_back(free.top());
    free.pop();
    held.emplace(stay.end, slot.back());
  }
  return slot;
}

}  // namespace muster
