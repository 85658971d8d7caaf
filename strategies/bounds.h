// What a way to train a model takes at least, found without a layout or a schedule: in time by the rates of the cost
// model, and in memory. What a search does not look at need not be planned. Pure.
//
// A step takes no less than a stage computes, and than its collectives keep the links busy, where compressed sums count
// as nothing; no less than one microbatch's way through all chunks of the model and back; and no less than the path of
// the first microbatch to a stage, all that the stage does, and the path of the last microbatch's gradient from there,
// with what both take from stage to stage: with equal stages and without that the bubble that the schedule's paper
// states. A rank holds no less than its share of parameters, gradients and state, and the activations between forward
// and backward when the pipeline is full.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

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
  // Where ranks compute units together, `inventory` is the largest share of the model: that of the first rank. All
  // outlive it.
  Bounds(const Inventory& inventory, absl::Span<const RankPlace> ranks, const Hardware& hardware);

  // `train` is resolved and concrete. `stages`: its cut. A unit like the one before it costs next to nothing.
  Least Of(const Train& train, const pipeline::StageOfUnit& stages);
  // How many units are not like the one before them.
  int kinds() const { return kinds_; }

 private:
  struct Stage;
  struct Sizes {
    double elements = 0, trained = 0;
    bool like_before = false;  // also what it reads
  };
  // Seconds for which a resource is busy (OpCost).
  struct Moving {
    double links = 0, network = 0;
  };
  Moving Links(const Train& train, const Stage& stage, const Mesh& mesh);
  const GroupTopology& Topology(const Mesh& mesh, int32_t group);
  // Whether some rank of one stage hands its activations to a rank of the other on another node.
  bool LeavesNodes(uint32_t stages, uint32_t from, uint32_t to);

  const Inventory& inventory_;
  const absl::Span<const RankPlace> ranks_;
  const Hardware& hardware_;
  std::vector<Sizes> sizes_;  // by unit
  int kinds_ = 0;
  std::map<std::tuple<uint32_t, uint32_t, uint32_t, uint32_t, int32_t>, GroupTopology> topologies_;
  std::map<std::tuple<uint32_t, uint32_t, uint32_t>, bool> leaves_nodes_;
};

// "optimizer state 31.2 GiB": the largest part.
std::string LargestPart(const Least& least);
std::string LargestPart(const Memory& memory);

}  // namespace muster::strategies
