// What a way to train a model takes at least, found without a layout or a schedule: in time by the rates of the cost
// model, and in memory. What a search does not look at need not be planned. Pure.
//
// A step takes no less than a stage computes, and than its collectives keep the links busy; and no less than the path
// of the first microbatch to a stage, all that the stage does, and the path of the last microbatch's gradient from
// there: with equal stages the bubble that the schedule's paper states. A rank holds no less than its share of
// parameters, gradients and state, and the activations between forward and backward when the pipeline is full.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>

#include "absl/types/span.h"
#include "strategies/cost.h"
#include "strategies/hardware.h"
#include "strategies/partition/planners.h"
#include "strategies/pipeline/stages.h"

namespace muster::strategies {

struct Least {
  double seconds = 0;  // of a step
  // Of a rank of the stage that needs most.
  uint64_t parameters = 0, gradients = 0, optimizer_state = 0, activations = 0;
  uint32_t stage = 0;
  uint64_t bytes() const { return parameters + gradients + optimizer_state + activations; }
};

// Of one model on given ranks. Not thread-safe.
class Bounds {
 public:
  // All outlive it.
  Bounds(const Inventory& inventory, absl::Span<const RankPlace> ranks, const Hardware& hardware)
      : inventory_(inventory), ranks_(ranks), hardware_(hardware) {}

  // `train` is resolved and concrete. `stages`: its cut.
  Least Of(const Train& train, const pipeline::StageOfUnit& stages);

 private:
  struct Stage;
  double Links(const Train& train, const Stage& stage, const Mesh& mesh);
  const GroupTopology& Topology(const Mesh& mesh, int32_t group);

  const Inventory& inventory_;
  const absl::Span<const RankPlace> ranks_;
  const Hardware& hardware_;
  std::map<std::tuple<uint32_t, uint32_t, uint32_t, int32_t>, GroupTopology> topologies_;
};

// "optimizer state 31.2 GiB": the largest part.
std::string LargestPart(const Least& least);
std::string LargestPart(const Memory& memory);

}  // namespace muster::strategies
