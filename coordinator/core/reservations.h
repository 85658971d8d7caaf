// Reservations: nodes that are kept for some users and projects, or for maintenance, in a window of time. The words and
// the rules are those of `scontrol create reservation`:
//   - A job that does not name the reservation is not started on its nodes if it could still run there in the window;
//     without a time_limit it always could. What runs already is not stopped.
//   - A job that names it runs on its nodes only, from its start to its end. At the end it is paused, with a
//     checkpoint, and the reservation is taken from it, as Slurm holds jobs whose reservation is over.
// Private to coordinator/core.
//
// Windows are times of the wall clock, since users mean those. Everything else decides by the state of a reservation,
// which goes from INACTIVE over ACTIVE to ENDED as Advance sees the clock pass. When the clock is set, windows that
// have not begun move; Advance is due at least once a minute, so that it notices. A clock that is wrong for some days
// removes none: one that has ended is deleted only when the steady clock has seen it so for a week, too.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/core/generations.h"
#include "coordinator/core/time_limits.h"
#include "coordinator/scheduler/place.h"

namespace muster::core {

// The one that the job names; null: none, or it was deleted.
const Reservation* ReservationOf(const Job& job, const Records& records);
// The job names one that has not begun.
bool WaitsForReservation(const Job& job, const Records& records);
// Why no job runs yet in the reservation of that name. Empty: they may, or there is none.
std::string BeginsLater(const std::string& name, absl::Time now, const Records& records);
bool HasNode(const Reservation& reservation, const std::string& node);
// The one that the node is in now, or will be in next; null: none.
const Reservation* NextReservation(const std::string& node, const Records& records);
// Why a waiting job can no longer run in the reservation that it names. Empty: it can, or it names none.
std::string LostReservation(const Job& job, const Records& records);
// Takes a reservation that is lost from its job, which runs without it when it is resumed. Returns why it is lost, as
// above.
std::string LeaveLostReservation(JobEntry& job, const Records& records);
// Whether a new job may name the reservation that its spec names. NotFound: there is none of that name.
// PermissionDenied: it is for others. FailedPrecondition: it has ended.
absl::Status CheckReservation(const JobSpec& spec, const std::string& owner, const std::string& project,
                              const Records& records);

// That has begun, or is to come.
bool AnyReservation(const Records& records);
// How many windows a job that names none and holds slots for so long, if it starts now, could still run in. They are
// those that begin first, so jobs for which there are as many keep off the same nodes.
size_t WindowsWithin(absl::Duration ends_in, absl::Time now, const Records& records);
// `reservation`: that the job names, or empty. Its demand keeps off all nodes outside of it; without one, off nodes
// that are reserved while it could still run, if it holds slots for so long.
void KeepOffReserved(const std::string& reservation, absl::Duration ends_in, absl::Time now, const Records& records,
                     scheduler::Demand& demand);

// How long the job holds its slots at most, by its time limit or the end of its reservation: from now, or from its
// start.
absl::Duration EndsIn(const JobEntry& job, const TimeLimits& limits, const Generations& generations,
                      const Records& records, Now now);

class Reservations {
 public:
  // All outlive it.
  Reservations(Records* records, Generations* generations, const TimeLimits* limits)
      : records_(records), generations_(generations), limits_(limits) {}

  void On(const SetReservation& event, Transaction& transaction);
  void On(const DeleteReservation& event, Transaction& transaction);

  // Called after every event: begins and ends windows, and stops the jobs in those that have ended.
  void Advance(Transaction& transaction);
  // When it is due again, as of `now`; nullopt: there are none.
  std::optional<SteadyTime> due(Now now) const;

  // By start, then by name.
  std::vector<Reservation> List(Now now) const;

 private:
  void Erase(const std::string& name, Transaction& transaction);
  // How long it is still listed, after its end. REQUIRES: it has ended.
  absl::Duration KeptFor(const Reservation& reservation, Now now) const;
  // The first of those that ended a week ago by the wall clock, whenever the coordinator was started: it gives way to a
  // new one where there are as many as there may be. Empty: none.
  std::string LongEnded(absl::Time now) const;
  void StopJobs(Transaction& transaction);

  Records* const records_;
  Generations* const generations_;
  const TimeLimits* const limits_;
  std::map<std::string, SteadyTime> ended_since_;  // when this run of the coordinator first saw it ENDED, by name
  bool jobs_to_stop_ = true;                       // jobs may run in a reservation that has ended
};

}  // namespace muster::core
