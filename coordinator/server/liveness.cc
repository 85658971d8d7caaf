#include "coordinator/server/liveness.h"

#include <algorithm>

namespace muster::server {

std::vector<Liveness::Silent> Liveness::Check(SteadyTime now) {
  absl::Duration missed = absl::ZeroDuration();
  if (last_check_.has_value()) missed = std::max(absl::ZeroDuration(), now - *last_check_ - limit_ / 2);
  last_check_ = now;
  std::vector<Silent> silent;
  for (auto& [node, contact] : last_contact_) {
    contact = contact + missed;
    if (now - contact > limit_) silent.push_back({node, now - contact});
  }
  return silent;
}

}  // namespace muster::server
