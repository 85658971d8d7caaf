#include "coordinator/core/reservations.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/name.h"
#include "common/proto_time.h"
#include "common/some_of.h"
#include "common/utf8.h"
#include "coordinator/core/projects.h"
#include "coordinator/scheduler/pass.h"

namespace muster::core {
namespace {

constexpr size_t kMostReservations = 64;
constexpr int kMostReservedNodes = 5000, kMostReservingUsers = 1000;
constexpr size_t kReservedNamed = 3;  // of users, projects and nodes, in messages
constexpr size_t kMostNameBytes = 128, kReservationNoteBytes = 1024;
constexpr absl::Duration kLongestWindow = absl::Hours(24 * 366);
constexpr absl::Duration kClockChecked = absl::Minutes(1);
constexpr absl::Duration kKeepEndedReservations = absl::Hours(24 * 7);

absl::Time StartOf(const Reservation& reservation) { return FromProto(reservation.start()); }
absl::Time EndOf(const Reservation& reservation) { return FromProto(reservation.end()); }

bool HasEnded(const Reservation& reservation) { return reservation.state() == RESERVATION_STATE_ENDED; }

// Null: there is none.
const Reservation* FindReservation(const std::string& name, const Records& records) {
  const auto found = records.reservations.find(name);
  return found == records.reservations.end() ? nullptr : &found->second;
}

bool IsToBegin(const Reservation* reservation) {
  return reservation != nullptr && reservation->state() == RESERVATION_STATE_INACTIVE;
}

using NameList = google::protobuf::RepeatedPtrField<std::string>;
bool Has(const NameList& sorted, const std::string& name) {
  return std::binary_search(sorted.begin(), sorted.end(), name);
}

bool IsFor(const Reservation& reservation, const std::string& owner, const std::string& project) {
  return Has(reservation.users(), owner) || Has(reservation.projects(), project.empty() ? kDefaultProject : project);
}

std::string UtcTime(absl::Time time) { return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", time, absl::UTCTimeZone()); }

// "ann, project nlp"; "maintenance"
std::string ForWhom(const Reservation& reservation) {
  std::vector<std::string> whom(reservation.users().begin(), reservation.users().end());
  for (const std::string& project : reservation.projects()) whom.push_back(absl::StrCat("project ", project));
  if (whom.empty()) return "maintenance";
  return SomeOf(whom, kReservedNamed);
}

absl::Status CheckNames(const NameList& names, const char* whose) {
  if (names.size() > kMostReservingUsers) {
    return absl::InvalidArgumentError(absl::StrCat("a reservation is for at most ", kMostReservingUsers, " ", whose));
  }
  for (const std::string& name : names) {
    if (name.empty() || name.size() > kMostNameBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("the names of ", whose, " have 1 to ", kMostNameBytes, " characters"));
    }
  }
  return absl::OkStatus();
}

// All but its nodes.
absl::Status CheckFields(const Reservation& reservation, const Reservation* known, const Records& records,
                         absl::Time now) {
  if (!IsName(reservation.name())) {
    return absl::InvalidArgumentError(
        "the name of a reservation may have 1 to 40 characters of a-z, 0-9 and -, and begins and ends with none of -");
  }
  const absl::Time start = StartOf(reservation), end = EndOf(reservation);
  if (!reservation.has_start() || !reservation.has_end() || start >= end) {
    return absl::InvalidArgumentError("a reservation begins before it ends");
  }
  if (end <= now) return absl::InvalidArgumentError(absl::StrCat("its end, ", UtcTime(end), ", has passed"));
  if (end - start > kLongestWindow) return absl::InvalidArgumentError("a reservation lasts at most 366 days");
  if (absl::Status s = CheckNames(reservation.users(), "users"); !s.ok()) return s;
  if (absl::Status s = CheckNames(reservation.projects(), "projects"); !s.ok()) return s;
  for (const std::string& project : reservation.projects()) {
    if (project == kDefaultProject || records.projects.contains(project)) continue;
    if (known != nullptr && Has(known->projects(), project)) continue;  // it was deleted since
    return absl::InvalidArgumentError(absl::StrCat("there is no project ", project, "; muster quota lists them"));
  }
  const std::string& note = reservation.note();
  if (note.size() > kReservationNoteBytes || CleanText(note, kReservationNoteBytes) != note) {
    return absl::InvalidArgumentError(
        absl::StrCat("a note is one line of text, of at most ", kReservationNoteBytes, " bytes"));
  }
  return absl::OkStatus();
}

absl::Status CheckNodes(const Reservation& reservation, const Reservation* known, const Records& records) {
  if (reservation.nodes().empty() || reservation.nodes_size() > kMostReservedNodes) {
    return absl::InvalidArgumentError(absl::StrCat("a reservation has 1 to ", kMostReservedNodes, " nodes"));
  }
  for (const std::string& node : reservation.nodes()) {
    // One that was forgotten since may stay.
    if (records.FindNode(NodeId(node)) == nullptr && !(known != nullptr && HasNode(*known, node))) {
      return absl::NotFoundError(absl::StrCat("no node ", node, "; muster nodes lists them"));
    }
  }
  for (const auto& [name, other] : records.reservations) {
    if (name == reservation.name() || HasEnded(other)) continue;
    // One that has begun lasts, wherever the clock was set since.
    const bool active = other.state() == RESERVATION_STATE_ACTIVE;
    if ((!active && StartOf(other) >= EndOf(reservation)) || EndOf(other) <= StartOf(reservation)) continue;
    for (const std::string& node : reservation.nodes()) {
      if (!HasNode(other, node)) continue;
      return absl::FailedPreconditionError(absl::StrCat("node ", node, " is in reservation ", name, " from ",
                                                        UtcTime(StartOf(other)), " to ", UtcTime(EndOf(other))));
    }
  }
  return absl::OkStatus();
}

ReservationState StateAt(const Reservation& reservation, absl::Time now) {
  return now < StartOf(reservation) ? RESERVATION_STATE_INACTIVE
         : now < EndOf(reservation) ? RESERVATION_STATE_ACTIVE
                                    : RESERVATION_STATE_ENDED;
}

template <typename Names>
void SortNames(Names& names) {
  const std::set<std::string> sorted(names.begin(), names.end());
  names.Assign(sorted.begin(), sorted.end());
}

// Jobs that are not stopping.
bool RunsIn(const JobEntry& job, const std::string& reservation) {
  const JobState state = job.machine.state();
  return job.record().reservation() == reservation && (state == JOB_STATE_STARTING || state == JOB_STATE_RUNNING);
}

// Changes of an active reservation leave its running jobs in it.
absl::Status CheckJobsStay(const Reservation& reservation, const Records& records) {
  for (const JobEntry* job : records.Live()) {
    if (!RunsIn(*job, reservation.name())) continue;
    const std::string runs = absl::StrCat("job ", job->record().id(), " runs in reservation ", reservation.name());
    if (reservation.state() != RESERVATION_STATE_ACTIVE) {
      return absl::FailedPreconditionError(
          absl::StrCat(runs, ", which would begin later: pause or cancel such jobs first"));
    }
    for (const RankPlacement& rank : job->newest()->record().ranks()) {
      if (HasNode(reservation, rank.node())) continue;
      return absl::FailedPreconditionError(
          absl::StrCat(runs, " on ", rank.node(), ", which it would lose: pause or cancel such jobs first"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

const Reservation* ReservationOf(const Job& job, const Records& records) {
  return FindReservation(job.reservation(), records);
}

bool HasNode(const Reservation& reservation, const std::string& node) { return Has(reservation.nodes(), node); }

const Reservation* NextReservation(const std::string& node, const Records& records) {
  const Reservation* next = nullptr;
  for (const auto& [name, reservation] : records.reservations) {
    if (HasEnded(reservation) || !HasNode(reservation, node)) continue;
    if (next == nullptr || StartOf(reservation) < StartOf(*next)) next = &reservation;
  }
  return next;
}

bool WaitsForReservation(const Job& job, const Records& records) { return IsToBegin(ReservationOf(job, records)); }

std::string BeginsLater(const std::string& name, absl::Time now, const Records& records) {
  const Reservation* reservation = FindReservation(name, records);
  if (!IsToBegin(reservation)) return "";
  return absl::StrCat("reservation ", name, " begins in ", scheduler::InMinutes(StartOf(*reservation) - now));
}

std::string LostReservation(const Job& job, const Records& records) {
  if (job.reservation().empty()) return "";
  const Reservation* reservation = ReservationOf(job, records);
  const std::string its = absl::StrCat("its reservation ", job.reservation());
  if (reservation == nullptr) return its + " was deleted";
  if (HasEnded(*reservation)) return its + " has ended";
  return IsFor(*reservation, job.owner(), job.project()) ? "" : its + " is no longer for its user or project";
}

std::string LeaveLostReservation(JobEntry& job, const Records& records) {
  std::string why = LostReservation(job.record(), records);
  if (!why.empty()) job.machine.fields().clear_reservation();
  return why;
}

absl::Status CheckReservation(const JobSpec& spec, const std::string& owner, const std::string& project,
                              const Records& records) {
  const std::string& name = spec.resources().reservation();
  if (name.empty()) return absl::OkStatus();
  const Reservation* reservation = FindReservation(name, records);
  if (reservation == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("resources.reservation: there is no reservation ", name, "; muster reservations lists them"));
  }
  if (!IsFor(*reservation, owner, project)) {
    return absl::PermissionDeniedError(absl::StrCat("resources.reservation: ", name, " is for ", ForWhom(*reservation),
                                                    ", not for ", owner,
                                                    project.empty() ? "" : absl::StrCat(" or project ", project)));
  }
  if (HasEnded(*reservation)) {
    return absl::FailedPreconditionError(
        absl::StrCat("resources.reservation: ", name, " ended at ", UtcTime(EndOf(*reservation))));
  }
  return absl::OkStatus();
}

bool AnyReservation(const Records& records) {
  return std::any_of(records.reservations.begin(), records.reservations.end(),
                     [](const auto& entry) { return !HasEnded(entry.second); });
}

size_t WindowsWithin(absl::Duration ends_in, absl::Time now, const Records& records) {
  return static_cast<size_t>(std::count_if(
      records.reservations.begin(), records.reservations.end(),
      [&](const auto& entry) { return !HasEnded(entry.second) && StartOf(entry.second) - now < ends_in; }));
}

void KeepOffReserved(const std::string& reservation, absl::Duration ends_in, absl::Time now, const Records& records,
                     scheduler::Demand& demand) {
  demand.reservation = reservation;
  if (!reservation.empty()) {
    const Reservation* own = FindReservation(reservation, records);
    for (const auto& [id, node] : records.nodes) {
      if (own == nullptr || !HasNode(*own, id.value())) demand.avoid.insert(id);
    }
    absl::StrAppend(&demand.where, ", in reservation ", reservation);
    return;
  }
  std::vector<const Reservation*> by_start;
  for (const auto& [name, other] : records.reservations) {
    if (!HasEnded(other)) by_start.push_back(&other);
  }
  std::stable_sort(by_start.begin(), by_start.end(), [](const Reservation* a, const Reservation* b) {
    return std::tuple(a->state() != RESERVATION_STATE_ACTIVE, StartOf(*a)) <
           std::tuple(b->state() != RESERVATION_STATE_ACTIVE, StartOf(*b));
  });
  for (const Reservation* other : by_start) {
    const bool active = other->state() == RESERVATION_STATE_ACTIVE;
    const absl::Duration begins_in = active ? -absl::InfiniteDuration() : StartOf(*other) - now;
    const scheduler::Closed window{begins_in - ends_in, EndOf(*other) - now, records.reserved_nodes.at(other->name())};
    // Between two windows of the same nodes that are too near for the job it cannot start: they are one to it.
    const auto joined = std::find_if(demand.closed.begin(), demand.closed.end(), [&](const scheduler::Closed& earlier) {
      return earlier.nodes == window.nodes && window.from < earlier.until;
    });
    if (joined != demand.closed.end()) {
      joined->until = std::max(joined->until, window.until);
      continue;
    }
    demand.closed.push_back(window);
    if (!window.Now()) continue;
    const std::string without = SomeOf(*window.nodes, kReservedNamed, ", ",
                                       [](std::string* out, const NodeId& node) { out->append(node.value()); });
    absl::StrAppend(&demand.where, ", without ", without, ": reservation ", other->name(),
                    active ? absl::StrCat(" ends in ", scheduler::InMinutes(window.until))
                           : absl::StrCat(" begins in ", scheduler::InMinutes(begins_in),
                                          ", a time_limit that ends before would do"));
  }
}

absl::Duration EndsIn(const JobEntry& job, const TimeLimits& limits, const Generations& generations,
                      const Records& records, Now now) {
  const absl::Duration limit = limits.EndsIn(job, now.steady);
  const Reservation* reservation = ReservationOf(job.record(), records);
  if (reservation == nullptr) return limit;
  return std::min(limit,
                  EndOf(*reservation) - now.wall + generations.StopDeadline(job.record().spec(), END_REASON_PAUSED));
}

void Reservations::On(const SetReservation& event, Transaction& transaction) {
  Reservation reservation = event.reservation;
  const std::string& name = reservation.name();
  SortNames(*reservation.mutable_nodes());
  SortNames(*reservation.mutable_users());
  SortNames(*reservation.mutable_projects());
  reservation.clear_overlapping_jobs();
  const Reservation* const known = FindReservation(name, *records_);
  transaction.status = CheckFields(reservation, known, *records_, transaction.now.wall);
  if (transaction.status.ok()) transaction.status = CheckNodes(reservation, known, *records_);
  if (!transaction.status.ok()) return;
  const bool full = known == nullptr && records_->reservations.size() >= kMostReservations;
  const std::string gives_way = full ? LongEnded(transaction.now.wall) : "";
  if (full && gives_way.empty()) {
    transaction.status = absl::ResourceExhaustedError(
        absl::StrCat("there are ", kMostReservations, " reservations, which is the limit"));
    return;
  }
  reservation.set_state(StateAt(reservation, transaction.now.wall));
  // It has begun, wherever the clock was set since.
  if (known != nullptr && known->state() == RESERVATION_STATE_ACTIVE && StartOf(*known) == StartOf(reservation)) {
    reservation.set_state(RESERVATION_STATE_ACTIVE);
  }
  if (known != nullptr && known->SerializeAsString() == reservation.SerializeAsString()) return;  // a retry
  transaction.status = CheckJobsStay(reservation, *records_);
  if (!transaction.status.ok()) return;
  if (full) Erase(gives_way, transaction);
  transaction.AddEvent(
      nullptr, 0, "", "reservation.set",
      absl::StrCat("reservation ", name, " was set: ", reservation.nodes_size(),
                   reservation.nodes_size() == 1 ? " node" : " nodes", " from ", UtcTime(StartOf(reservation)), " to ",
                   UtcTime(EndOf(reservation)), " for ", ForWhom(reservation)));
  transaction.TouchReservation(name);
  records_->KeepReservation(std::move(reservation));
}

void Reservations::On(const DeleteReservation& event, Transaction& transaction) {
  if (!records_->reservations.contains(event.name)) return;  // a retry
  for (const JobEntry* job : std::as_const(*records_).Live()) {
    if (!RunsIn(*job, event.name)) continue;
    transaction.status = absl::FailedPreconditionError(absl::StrCat("job ", job->record().id(), " runs in reservation ",
                                                                    event.name, ": pause or cancel such jobs first"));
    return;
  }
  Erase(event.name, transaction);
}

void Reservations::Erase(const std::string& name, Transaction& transaction) {
  records_->EraseReservation(name);
  ended_since_.erase(name);
  transaction.deleted_keys.push_back(ReservationKey(name));
  transaction.AddEvent(nullptr, 0, "", "reservation.deleted", absl::StrCat("reservation ", name, " was deleted"));
}

void Reservations::Advance(Transaction& transaction) {
  const absl::Time now = transaction.now.wall;
  std::vector<std::string> old;
  for (auto& [name, reservation] : records_->reservations) {
    if (HasEnded(reservation)) {
      ended_since_.try_emplace(name, transaction.now.steady);
      if (KeptFor(reservation, transaction.now) <= absl::ZeroDuration()) old.push_back(name);
    } else {
      ended_since_.erase(name);
    }
    // When the clock is set back, a window that has begun does not go back, and one that had ended is to come again,
    // unless its nodes were reserved for others since.
    const ReservationState seen = StateAt(reservation, now);
    const ReservationState state = HasEnded(reservation) ? seen : std::max(reservation.state(), seen);
    if (state == reservation.state()) continue;
    if (HasEnded(reservation) && !CheckNodes(reservation, &reservation, *records_).ok()) continue;
    if (transaction.Full()) return;
    reservation.set_state(state);
    transaction.TouchReservation(name);
    if (state == RESERVATION_STATE_ENDED) {
      jobs_to_stop_ = true;
      transaction.AddEvent(nullptr, 0, "", "reservation.ended", absl::StrCat("reservation ", name, " has ended"));
    } else if (state == RESERVATION_STATE_INACTIVE) {
      transaction.AddEvent(
          nullptr, 0, "", "reservation.set",
          absl::StrCat("the clock was set back: reservation ", name, " begins at ", UtcTime(StartOf(reservation))));
    } else {
      transaction.AddEvent(nullptr, 0, "", "reservation.began",
                           absl::StrCat("reservation ", name, " has begun: for ", ForWhom(reservation), " until ",
                                        UtcTime(EndOf(reservation))));
    }
  }
  StopJobs(transaction);
  for (const std::string& name : old) {
    if (jobs_to_stop_ || transaction.Full()) return;
    Erase(name, transaction);
  }
}

std::string Reservations::LongEnded(absl::Time now) const {
  if (jobs_to_stop_) return "";
  const Reservation* first = nullptr;
  for (const auto& [name, reservation] : records_->reservations) {
    if (!HasEnded(reservation) || now < EndOf(reservation) + kKeepEndedReservations) continue;
    if (first == nullptr || EndOf(reservation) < EndOf(*first)) first = &reservation;
  }
  return first == nullptr ? "" : first->name();
}

absl::Duration Reservations::KeptFor(const Reservation& reservation, Now now) const {
  const auto since = ended_since_.find(reservation.name());
  const absl::Duration seen = since == ended_since_.end() ? absl::ZeroDuration() : now.steady - since->second;
  return kKeepEndedReservations - std::min(seen, now.wall - EndOf(reservation));
}

void Reservations::StopJobs(Transaction& transaction) {
  if (!jobs_to_stop_) return;
  for (JobEntry* job : records_->Live()) {
    const Reservation* reservation = ReservationOf(job->record(), *records_);
    if (reservation == nullptr || !HasEnded(*reservation) || !RunsIn(*job, reservation->name())) continue;
    if (transaction.Full()) return;
    generations_->Stop(*job, END_REASON_PAUSED, STOP_INTENT_PAUSE,
                       absl::StrCat("its reservation ", reservation->name(), " has ended"), transaction);
  }
  jobs_to_stop_ = false;
}

std::optional<SteadyTime> Reservations::due(Now now) const {
  if (records_->reservations.empty()) return std::nullopt;
  absl::Duration next = kClockChecked;
  for (const auto& [name, reservation] : records_->reservations) {
    const absl::Duration change = HasEnded(reservation)     ? KeptFor(reservation, now)
                                  : IsToBegin(&reservation) ? StartOf(reservation) - now.wall
                                                            : EndOf(reservation) - now.wall;
    next = std::min(next, std::max(change, absl::ZeroDuration()));
  }
  return now.steady + next;
}

std::vector<Reservation> Reservations::List(Now now) const {
  std::map<std::string, std::set<const JobEntry*>> jobs_on;  // by node
  if (!records_->reservations.empty()) {
    for (const JobEntry* job : std::as_const(*records_).Live()) {
      if (Records::SlotsHeldBy(*job) == 0) continue;
      for (const RankPlacement& rank : job->newest()->record().ranks()) jobs_on[rank.node()].insert(job);
    }
  }
  std::vector<Reservation> all;
  for (const auto& [name, reservation] : records_->reservations) {
    Reservation& shown = all.emplace_back(reservation);
    if (HasEnded(reservation)) continue;
    std::set<std::string> overlapping;
    for (const std::string& node : reservation.nodes()) {
      const auto jobs = jobs_on.find(node);
      if (jobs == jobs_on.end()) continue;
      for (const JobEntry* job : jobs->second) {
        if (job->record().reservation() == name || overlapping.contains(job->record().id())) continue;
        const absl::Duration ends_in = EndsIn(*job, *limits_, *generations_, *records_, now);
        if (ends_in > StartOf(reservation) - now.wall) overlapping.insert(job->record().id());
      }
    }
    shown.mutable_overlapping_jobs()->Assign(overlapping.begin(), overlapping.end());
  }
  std::sort(all.begin(), all.end(), [](const Reservation& a, const Reservation& b) {
    return std::tuple(StartOf(a), a.name()) < std::tuple(StartOf(b), b.name());
  });
  return all;
}

}  // namespace muster::core
