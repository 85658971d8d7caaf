// The time of a schedule, found by simulating it: each stream runs its ops in order, and an op begins when the ops that
// it waits for have ended, and those of its stream before it, but for OpCost::in_flight. Pure and deterministic.
//
//   const Timeline timeline = Simulate(schedule, costs, Sharing::kLinks);
//   timeline.seconds;                      // of the step
//   timeline.exposed;                      // communication not overlapped with compute
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "strategies/schedule/schedule.h"

namespace muster {

struct OpCost {
  double latency = 0;    // seconds that nothing else slows
  double work = 0;       // seconds, when no other op shares its resource
  bool network = false;  // its resource is the network between nodes, which only such ops share
  // Of an op of the network with Sharing::kProcessor: seconds of the processor that moving its bytes takes, evenly
  // while it works. Ops that compute meanwhile get the rest, and at least half of the processor.
  double processor = 0;
  // Seconds of the processor before the op begins, as soon as what it waits for has ended: the op before it on its
  // stream may still be in progress. Timeline::busy and communication count them.
  double preparing = 0;
  // Ops of its stream that may be in progress when it begins, itself among them: of CPU ranks, whose collectives wait
  // for none of their stream to end. They end in order.
  uint32_t in_flight = 1;
};

// Which ops share a resource: each of n ops at work at the same time is n times slower.
enum class Sharing {
  kLinks,      // ops with a process group, on other streams than kCompute, share the links
  kProcessor,  // all ops share one processor, which also moves the bytes: ranks on cores of their own machine
};

struct OpTime {
  double begin = 0, end = 0;  // seconds from the step's begin
};

struct Timeline {
  std::vector<OpTime> ops;              // by op
  double seconds = 0;                   // until the last op has ended
  std::array<double, kStreams> busy{};  // by stream: one of its ops was in progress
  double communication = 0;             // at least one op of a stream other than kCompute was in progress
  double exposed = 0;                   // and no op of kCompute
};

// What passes from the begin of one op to the begin of a later one counts so many times more: for a schedule that
// leaves out what repeats itself. Times of ops are those without it.
struct Repeated {
  size_t from = 0, to = 0;  // ops
  double times = 0;
};

// What all ranks of a stage of a pipeline run, and what it costs them.
struct StageCosts {
  const Schedule* schedule;
  const std::vector<OpCost>* costs;
};
// By stage. A send and its receive begin together, as do collectives over several stages. Stages share no resource.
// `repeated` names ops of stage 0. REQUIRES: as Simulate; the stages passed CheckStages.
std::vector<Timeline> SimulateStages(const std::vector<StageCosts>& stages, Sharing sharing,
                                     const Repeated& repeated = {});

// REQUIRES: a cost for each op, none negative; waits name earlier ops.
Timeline Simulate(const Schedule& schedule, const std::vector<OpCost>& costs, Sharing sharing,
                  const Repeated& repeated = {});

}  // namespace muster
