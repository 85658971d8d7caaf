// A month under three policies. In each, a job holds its slots for kMonthStart, the time that it runs, and where it is
// stopped kMonthStop; ranks of a job may be on any nodes, so free slots are all that counts.
#pragma once

#include "coordinator/simulate/month/tally.h"
#include "coordinator/simulate/month/workload.h"

namespace muster::simulate {

// First in, first out: no job starts before one that was submitted earlier.
MonthFigures ReplayFifo(const Month& month);

// As a Slurm cluster with priority/multifactor and sched/backfill: the order follows from age (weight 1,000; at most 7
// days), classic fair share of the user within its account (weight 10,000; shares are the nominal quotas; half-life 7
// days) and size (weight 1,000). Backfill plans a start for each of the first 500 jobs by their time limits
// (bf_max_job_test), and starts those that delay no job before them. No preemption, no limits of an account.
MonthFigures ReplaySlurm(const Month& month);

// Muster's own core and scheduler (core::Core), with a project for each of the month's: one cohort, nominal quotas,
// weights as the quotas, borrowing without a limit, and the coordinator's defaults beside that. The workers are
// simulated: they start ranks, stop them with a checkpoint, and write one every hour.
MonthFigures ReplayMuster(const Month& month);

}  // namespace muster::simulate
