// How busy this machine is, whoever keeps it busy, within the limits of CPU affinity and control groups.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "proto/job.pb.h"
#include "worker/agent/cgroup_limits.h"
#include "worker/agent/node.h"

namespace muster::agent {

// Where a machine says how busy it is.
struct NodeUseSources {
  std::string proc = "/proc";
  std::string cgroups = "/sys/fs/cgroup";
  std::string nvml = "libnvidia-ml.so.1";
};

// Not thread-safe.
class NodeUseMeter {
 public:
  // `slots`: of this node; with GPUs their use is measured, too.
  NodeUseMeter(const Machine& machine, const std::vector<Slot>& slots, NodeUseSources sources = {});

  // Without `time`. The first call has no measurement before it, so it has no busy_cores.
  NodeUse Measure(SteadyTime now);

 private:
  // CPU time that was used up to now, in seconds of a core. nullopt: it cannot be read.
  std::optional<double> UsedCoreSeconds(const CgroupLimits& limits) const;

  const Machine machine_;
  const NodeUseSources sources_;
  std::map<std::string, uint32_t> slot_of_;  // by uuid; empty: no GPUs
  std::optional<Gpus> gpus_;
  std::optional<double> used_;
  SteadyTime at_;
};

// Measures every ten seconds on a thread of its own, which is not joined: a broken GPU can block the driver's calls.
class NodeUseWatch {
 public:
  NodeUseWatch(const Machine& machine, const std::vector<Slot>& slots);
  ~NodeUseWatch();
  NodeUseWatch(const NodeUseWatch&) = delete;
  NodeUseWatch& operator=(const NodeUseWatch&) = delete;

  // The newest measurement, once.
  std::optional<NodeUse> Take();

 private:
  struct State {
    Mutex mutex;
    std::condition_variable_any ends;
    bool ending ABSL_GUARDED_BY(mutex) = false;
    std::optional<NodeUse> newest ABSL_GUARDED_BY(mutex);
  };
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace muster::agent
