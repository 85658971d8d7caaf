// What the judge checks at the end of a run.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "coordinator/simulate/accounts.h"
#include "coordinator/simulate/judge.h"

namespace muster::simulate {

void Judge::ConcludeUndisturbed() {
  for (const auto& [id, account] : books_.jobs) {
    if (account.refused || account.timed_out || account.failed_with_one_before) continue;
    if (account.state == JOB_STATE_FAILED)
      Fail("a coordinator outage is harmless", absl::StrCat(id.value(), " failed"));
    uint64_t faults = 0;
    for (const auto& [number, generation] : account.generations) {
      const EndReason reason = generation.reason();
      if (reason != END_REASON_FAILED && reason != END_REASON_LOST) continue;
      // A generation that the restored store does not know, or whose end it does not know, is lost.
      if (++faults <= restores_) continue;
      return Fail("a coordinator outage is harmless",
                  absl::StrCat(Text(id, number), " has ended: ", EndReason_Name(reason)));
    }
  }
}

void Judge::Conclude(size_t read_to) {
  for (const auto& [id, account] : books_.jobs) {
    if (account.deleted) continue;
    if (!Terminal(account.state)) {
      Fail("every job ends", absl::StrCat(id.value(), " is ", JobState_Name(account.state)));
    }
    const auto faults = static_cast<uint64_t>(
        std::count_if(account.generations.begin(), account.generations.end(), [](const auto& generation) {
          return generation.second.reason() == END_REASON_FAILED || generation.second.reason() == END_REASON_LOST;
        }));
    if (account.restarts > faults) {
      Fail("only faults cost restarts", absl::StrCat(id.value(), ": ", account.restarts, " of ", faults, " faults"));
    }
    // A restarted coordinator has lost what it counted since the job's last change.
    const double life = absl::ToDoubleSeconds(account.ended_at - account.submitted_at),
                 counted = Sum(account.time_breakdown);
    if (account.coordinator_starts == coordinator_starts_ && std::abs(life - counted) > 1e-3) {
      Fail("each moment counts once", absl::StrCat(id.value(), " counts ", counted, " s of ", life));
    }
    if (books_.cancelled.contains(id) && account.state == JOB_STATE_FAILED) {
      Fail("cancelled is cancelled", absl::StrCat(id.value(), " is ", JobState_Name(account.state)));
    }
    // The record of the last checkpoint may have been acknowledged by a coordinator whose store is gone.
    if (account.state == JOB_STATE_COMPLETED && restores_ == 0 &&
        (account.published.empty() || account.published.rbegin()->first != account.steps)) {
      Fail("completed means all steps", absl::StrCat(id.value(), " has completed, but its last step is not published"));
    }
  }
  if (!books_.slots.empty()) {
    Fail("all slots are free at the end", absl::StrCat("slot ", books_.slots.begin()->first.second, " of ",
                                                       books_.slots.begin()->first.first, " is held"));
  }
  for (; read_to < books_.stream.size(); ++read_to) {
    const Books::StreamEvent& next = books_.stream[read_to];
    if (next.job.empty() || !books_.jobs[next.job].deleted) {
      return Fail("streams are the history", absl::StrCat("a reader never got event ", next.sequence));
    }
  }
}

}  // namespace muster::simulate
