#include "worker/engine/pending_collectives.h"

#include <algorithm>
#include <utility>

namespace muster::engine {

void PendingCollectives::Add(int32_t op, Stream stream, std::unique_ptr<collectives::Work> work, Then then) {
  streams_[static_cast<size_t>(stream)].push_back({op, std::move(work), std::move(then)});
}

absl::Status PendingCollectives::Wait(int32_t op, Stream stream) {
  std::deque<Pending>& waiting = streams_[static_cast<size_t>(stream)];
  while (!waiting.empty() && waiting.front().op <= op) {
    Pending& first = waiting.front();
    if (absl::Status status = first.work->Wait(); !status.ok()) return status;
    if (first.then) first.then(*first.work);
    waiting.pop_front();
  }
  return absl::OkStatus();
}

bool PendingCollectives::empty() const {
  return std::all_of(streams_.begin(), streams_.end(), [](const auto& stream) { return stream.empty(); });
}

std::optional<int32_t> PendingCollectives::First(Stream stream) const {
  const std::deque<Pending>& waiting = streams_[static_cast<size_t>(stream)];
  if (waiting.empty()) return std::nullopt;
  return waiting.front().op;
}

void PendingCollectives::Abandon() {
  for (auto& stream : streams_) stream.clear();
}

}  // namespace muster::engine
