// A synthetic month of a shared cluster: who submits which jobs when. The same seed gives the same month.
//
// 32 nodes with 8 GPUs, 40 users in five projects, whose nominal quotas add up to the cluster. The distributions follow
// what was published of such clusters (Jeon et al. 2019, "Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN
// Training Workloads"; Hu et al. 2021, "Characterization and Prediction of Deep Learning Workloads in Large-Scale GPU
// Datacenters"): half of the jobs use one GPU, while jobs of 16 GPUs or more use most of the GPU time; run times are
// log-normal with a heavy tail and grow with the number of GPUs; submits follow the hours of the day and the days of
// the week; few users submit most jobs. Users request time limits of 1.2 to 10 times the run time, rounded up to a
// usual value (Mu'alem and Feitelson 2001). Jobs are drawn until the offered GPU time is `load` of what the cluster
// has.
//
// Projects do not demand what they own: one asks for twice its quota, one for half, and one has most of its work in the
// third week, before a deadline.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace muster::simulate {

inline constexpr uint32_t kMonthNodes = 32, kMonthSlotsOfNode = 8, kMonthSlots = kMonthNodes * kMonthSlotsOfNode;
// Of every start: the slots are held before training begins. Of a stop in good order: until its checkpoint is written.
inline constexpr absl::Duration kMonthStart = absl::Minutes(1), kMonthStop = absl::Seconds(30);

struct MonthProject {
  std::string name;
  uint32_t nominal = 0;  // slots
  uint32_t users = 0;
};

struct MonthJob {
  absl::Duration submitted;  // since the month began
  uint32_t project = 0, user = 0;
  uint32_t ranks = 1;
  absl::Duration runs;        // trains for so long, beside starts and stops
  absl::Duration time_limit;  // longer
};

struct Month {
  absl::Duration length;
  std::vector<MonthProject> projects;
  std::vector<MonthJob> jobs;  // by time

  std::string UserName(uint32_t user) const;
};

struct MonthOptions {
  uint64_t seed = 1;
  uint32_t days = 30;
  double load = 0.9;  // GPU time of all jobs, of what the cluster has
};
Month MakeMonth(const MonthOptions& options);

}  // namespace muster::simulate
