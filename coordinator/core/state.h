// A Core's parts, and which of them handles which event. Each part changes what it owns; parts use those that stand
// above them. Private to coordinator/core.
#pragma once

#include <optional>
#include <vector>

#include "coordinator/core/exchanges.h"
#include "coordinator/core/generations.h"
#include "coordinator/core/growth.h"
#include "coordinator/core/hangs.h"
#include "coordinator/core/jobs.h"
#include "coordinator/core/nodes.h"
#include "coordinator/core/preemption.h"
#include "coordinator/core/projects.h"
#include "coordinator/core/queue.h"
#include "coordinator/core/records.h"
#include "coordinator/core/requests.h"
#include "coordinator/core/reservations.h"
#include "coordinator/core/time_limits.h"
#include "coordinator/core/views.h"
#include "coordinator/core/wanted_plans.h"

namespace muster::core {

struct Core::State {
  explicit State(const Options& o) : options(o) {}

  // Errors as Core::Recover.
  absl::Status Recover(const std::vector<Row>& rows, Now now);

  template <typename Event>
  void On(const Event& event, Transaction& transaction) {
    if constexpr (requires { requests.On(event, transaction); }) {
      requests.On(event, transaction);
    } else if constexpr (requires { nodes.On(event, transaction); }) {
      nodes.On(event, transaction);
    } else if constexpr (requires { projects.On(event, transaction); }) {
      projects.On(event, transaction);
    } else if constexpr (requires { reservations.On(event, transaction); }) {
      reservations.On(event, transaction);
    } else if constexpr (requires { exchanges.On(event, transaction); }) {
      exchanges.On(event, transaction);
    } else {
      generations.On(event, transaction);
    }
  }
  void On(const PlanReady& event, Transaction& transaction);
  void On(const StoreRestored&, Transaction& transaction);
  void On(const Tick& event, Transaction& transaction);

  const Options options;
  Records records;
  Plans plans;
  Projects projects{&options, &records};
  Jobs jobs{&options, &records, &plans, &projects};
  Generations generations{&options, &records, &plans, &jobs};
  TimeLimits time_limits{&jobs, &generations};
  Reservations reservations{&records, &generations, &time_limits};
  Hangs hangs{&options, &records, &generations};
  Nodes nodes{&options, &records, &generations, &hangs};
  Preemption preemption{&options, &records, &projects, &generations};
  Queue queue{&options, &records, &plans, &jobs, &generations, &time_limits, &projects, &preemption};
  Growth growth{&options, &records, &plans, &queue, &generations};
  Requests requests{&options, &records, &plans, &jobs, &generations, &queue, &projects};
  Exchanges exchanges{&options, &records, &generations};
  Views views{&records, &plans, &generations, &queue};

  std::optional<SteadyTime> more_work;  // the last transaction was full
};

}  // namespace muster::core
