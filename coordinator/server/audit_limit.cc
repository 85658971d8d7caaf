#include "coordinator/server/audit_limit.h"

#include <utility>

namespace muster::server {

std::optional<uint64_t> AuditLimit::Admit(const std::string& user, bool changed, SteadyTime now) {
  if (now - swept_ >= absl::Minutes(1)) {
    std::erase_if(users_, [&](const auto& entry) {
      return entry.second.left_out == 0 && now - entry.second.minute >= absl::Minutes(1);
    });
    swept_ = now;
  }
  const auto known = users_.find(user);
  if (changed) return known == users_.end() ? 0 : std::exchange(known->second.left_out, 0);
  User& of = known == users_.end() ? users_.emplace(user, User{.minute = now}).first->second : known->second;
  if (now - of.minute >= absl::Minutes(1)) {
    of.minute = now;
    of.unchanged = 0;
  }
  if (of.unchanged == kMostUnchanged) {
    ++of.left_out;
    return std::nullopt;
  }
  ++of.unchanged;
  return std::exchange(of.left_out, 0);
}

}  // namespace muster::server
