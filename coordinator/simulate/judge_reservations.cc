// What those are promised for whom nodes are reserved.
#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/proto_time.h"
#include "coordinator/simulate/judge.h"

namespace muster::simulate {
namespace {

template <typename Names>
bool Has(const Names& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

void Judge::CheckReservations(const std::string& name, const Generation& generation, const JobAccount& account) {
  const absl::Time now = FromProto(generation.created());
  // When its time limit stops it, at the earliest; the core counts what the stop may take, too.
  const absl::Time until = now + account.time_limit - absl::Seconds(account.held_seconds) - absl::Milliseconds(1);
  const auto is_on = [&](const Reservation& reservation) {
    return std::any_of(generation.ranks().begin(), generation.ranks().end(),
                       [&](const RankPlacement& rank) { return Has(reservation.nodes(), rank.node()); });
  };
  for (const auto& [reserved, reservation] : books_.reservations) {
    if (reserved == account.reservation || reservation.state() == RESERVATION_STATE_ENDED) continue;
    if (FromProto(reservation.end()) <= now) continue;
    if (FromProto(reservation.start()) >= until) {
      started_before_reservations_ += is_on(reservation);
      continue;
    }
    if (!account.reservation.empty() && FromProto(reservation.start()) > now) continue;  // its own ends before
    if (!is_on(reservation)) continue;
    return Fail("no job starts where it could run into a reservation",
                absl::StrCat(name, " is on a node of ", reserved, ", which begins ",
                             absl::FormatDuration(FromProto(reservation.start()) - now), " later"));
  }
  if (account.reservation.empty()) return;
  ++started_in_reservations_;
  const auto own = books_.reservations.find(account.reservation);
  if (own == books_.reservations.end() || own->second.state() != RESERVATION_STATE_ACTIVE) {
    return Fail("a job runs in its reservation while that lasts", absl::StrCat(name, " in ", account.reservation));
  }
  for (const RankPlacement& rank : generation.ranks()) {
    if (Has(own->second.nodes(), rank.node())) continue;
    return Fail("a job runs on the nodes of its reservation", absl::StrCat(name, " is on ", rank.node()));
  }
  if (!Has(own->second.users(), account.owner) && !Has(own->second.projects(), account.project)) {
    Fail("only those run in a reservation whom it is for", absl::StrCat(name, " of ", account.owner));
  }
}

}  // namespace muster::simulate
