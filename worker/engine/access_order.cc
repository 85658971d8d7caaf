#include "worker/engine/access_order.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace muster::engine {
namespace {

void Join(AccessOrder::Clock& clock, const AccessOrder::Clock& other) {
  for (size_t s = 0; s < clock.size(); ++s) clock[s] = std::max(clock[s], other[s]);
}

Access Of(const at::Tensor& tensor, bool write) {
  const auto begin = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
  return {begin, begin + tensor.nbytes(), write};
}

}  // namespace

Access Reads(const at::Tensor& contiguous) { return Of(contiguous, false); }
Access Writes(const at::Tensor& contiguous) { return Of(contiguous, true); }

absl::StatusOr<AccessOrder::Clock> AccessOrder::Run(const std::string& name, Stream stream,
                                                    absl::Span<const Clock> after, absl::Span<const Access> accesses) {
  const size_t lane = static_cast<size_t>(stream);
  Clock begin = fence_;
  if (begins_in_order_ || stream == Stream::kCompute) Join(begin, ended_[lane]);
  for (const Clock& clock : after) Join(begin, clock);

  for (const Access& access : accesses) {
    for (const Past& past : past_) {
      const bool overlap = past.access.begin < access.end && access.begin < past.access.end;
      const bool before = past.number <= begin[static_cast<size_t>(past.stream)];
      if (!overlap || before || (!access.write && !past.access.write)) continue;
      return absl::FailedPreconditionError(absl::StrCat(name, access.write ? " writes" : " reads", " memory that ",
                                                        past.name, past.access.write ? " writes" : " reads",
                                                        ", and does not wait for it"));
    }
  }

  Clock& end = ended_[lane];
  Join(end, begin);
  ++end[lane];
  for (const Access& access : accesses) {
    if (access.begin == access.end) continue;
    // A write that is after all of what was here takes its place.
    if (access.write) {
      std::erase_if(
          past_, [&](const Past& past) { return access.begin <= past.access.begin && past.access.end <= access.end; });
    }
    past_.push_back({access, stream, end[lane], name});
  }
  return end;
}

void AccessOrder::Fence() {
  for (size_t s = 0; s < kStreams; ++s) Join(fence_, ended_[s]);
  std::erase_if(past_, [&](const Past& past) { return past.number <= fence_[static_cast<size_t>(past.stream)]; });
}

}  // namespace muster::engine
