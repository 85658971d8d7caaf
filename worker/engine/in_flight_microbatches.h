// The activations of the microbatches in flight through the units.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "proto/inventory.pb.h"
#include "strategies/schedule/chunks.h"
#include "strategies/schedule/schedule.h"
#include "worker/collectives/group.h"
#include "worker/engine/access_order.h"
#include "worker/engine/exchanges.h"
#include "worker/engine/offloaded_inputs.h"
#include "worker/engine/received.h"
#include "worker/engine/tensor_exchanges.h"
#include "worker/units/unit.h"

namespace muster::engine {

// Serves passes through a schedule, one after another; each consumes what it keeps. The schedule and the units outlive
// it. An empty microbatch is skipped, except up to the last unit that exchanges with other ranks.
class InFlightMicrobatches {
 public:
  struct Options {
    const Schedule* schedule;  // all outlive it
    const Inventory* inventory;
    const std::vector<std::unique_ptr<units::UnitModule>>* modules;
    Exchanges* exchanges = nullptr;       // null: no unit exchanges with other ranks' samples
    TensorExchanges* tensor = nullptr;    // null: units are whole
    TensorExchanges* sequence = nullptr;  // null: this rank has all tokens of its samples
    OffloadedInputs* inputs = nullptr;    // null: none are offloaded
    // Of a stage of a pipeline; null: there are no edges.
    const ReceivedActivations* received = nullptr;
    const std::vector<collectives::Group*>* groups = nullptr;  // by Op::group
    at::ScalarType compute = at::kFloat;
    bool poison = false;  // fill released inputs with NaN
  };
  // `contexts`: one per microbatch.
  InFlightMicrobatches(const Options& options, std::vector<units::Context> contexts);

  // Saves only the unit's input if the schedule recomputes it, and nothing if it has no backward.
  void Forward(const Op& op);
  void Recompute(const Op& op);
  void Backward(const Op& op);
  // Its two halves.
  void BackwardInputs(const Op& op);
  void BackwardWeights(const Op& op);
  void OffloadInput(const Op& op);
  void ReleaseInput(const Op& op);
  void FetchInput(const Op& op);
  // Begin to receive or to send; nothing for an empty microbatch.
  std::vector<std::unique_ptr<collectives::Work>> Receive(const Op& op);
  std::vector<std::unique_ptr<collectives::Work>> Send(const Op& op);
  // Frees the outputs that were sent last, of which no pass waited for the send. REQUIRES: what is issued from now on
  // runs after all sends so far.
  void EndSends();

  // What the op touches of inputs that are offloaded, and of what stages send each other.
  std::vector<Access> Accesses(const Op& op) const;

 private:
  struct UnitState {  // what one microbatch keeps at one unit
    units::Saved saved;
    units::Activations input;  // until it is recomputed, except while it is offloaded
    units::Saved deferred;     // from BackwardInputs to BackwardWeights
  };
  bool Skips(const Op& op) const { return contexts_[op.microbatch].samples == 0 && op.unit > last_exchanging_; }
  units::UnitModule& ModuleOf(const Op& op) const { return *(*options_.modules)[op.unit]; }
  units::Context ContextOf(const Op& op) const;
  // Runs a unit's pass, and checks what it exchanges with the ranks of the op's group.
  template <typename F>
  units::Activations Run(const Op& op, F&& pass);
  // `pass`: from what the unit saved and the gradient of its output to that of its input.
  template <typename F>
  void GoBack(const Op& op, F&& pass);
  UnitState& StateOf(const Op& op) { return states_[op.microbatch][op.unit]; }
  bool Offloads(int32_t unit) const { return options_.inputs != nullptr && options_.inputs->Has(unit); }
  // What flows through a chunk, in one microbatch: activations forward, their gradients back.
  units::Activations& FlowOf(const Op& op) { return flows_[op.microbatch][chunk_of_[op.unit]]; }
  // Before the pass: what its chunk reads, if the unit is the chunk's first (or its last, backward).
  void BeginChunk(const Op& op);
  // After the pass: what its chunk hands on, if the unit is the chunk's last (or its first, backward).
  void EndChunk(const Op& op);
  // Whether the pass makes what its chunk hands to another chunk of this stage, which computes at some other time.
  bool HandsOver(const Op& op) const;
  // Whether the pass makes what its chunk sends to another stage.
  bool Sends(const Op& op) const;
  const ChunkEdges* EdgesOf(const Op& op) const;
  // What BeginChunk frees: an output that is sent by then. Null: nothing.
  const units::Activations* FreedBy(const Op& pass) const;
  std::vector<Access> EdgeAccesses(const Op& op) const;
  // Stands for the memory of an input, which is not yet there when an op that makes it is posted.
  Access InputOf(int32_t unit, int32_t microbatch, bool write) const;

  const Options options_;
  const std::vector<units::Context> contexts_;
  const std::vector<ChunkSpan> chunks_;
  const std::vector<int32_t> chunk_of_;                 // by unit
  std::vector<std::vector<units::Activations>> flows_;  // by microbatch and chunk
  // Activations and gradients, by microbatch and chunk: what was received, and what is to be sent.
  std::array<std::vector<std::vector<units::Activations>>, 2> received_, outputs_;
  // The outputs that were sent last: they stay until a pass has waited for their send.
  std::map<int32_t, std::deque<units::Activations*>> sent_;  // by edge
  std::vector<std::vector<UnitState>> states_;
  std::vector<bool> recomputed_, goes_back_;  // by unit
  int32_t last_exchanging_ = -1;              // unit; -1: none
};

}  // namespace muster::engine
