// The kinds of ops in a schedule, and one table row for each kind. The printer, the checker, the memory walk and the
// cost model read the rows instead of switching over kinds.
//
//   if (Traits(op.kind).pass == Pass::kBackward) ...
//
// To add an op: its kind and its row in this file, the row that ops_test.cc expects, and a handler in
// worker/engine/step_tasks.cc.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "strategies/schedule/mesh.h"

namespace muster {

// A schedule's digest and the progress page hold the numbers: new kinds come last, before kEnd.
enum class OpKind : uint8_t {
  kGather,             // from their owners: the parameters of units [unit, unit_end) become resident in `slot`
  kForward,            // unit, microbatch
  kBackward,           // unit, microbatch: gradients of the unit's input and of its parameters
  kRecompute,          // unit, microbatch: forward again, to have Saved back
  kRelease,            // the parameters of units [unit, unit_end) are no longer resident
  kOpenGradients,      // a gradient of zeros for units [unit, unit_end), in `slot` of the gradient slots
  kReduce,             // gradients of units [unit, unit_end) to their owners; frees their slot
  kAllReduce,          // gradients that this rank's shard owns of units [unit, unit_end), over its replicas
  kSendActivation,     // what the unit, the last of its chunk, hands on for the microbatch, to the next stage
  kReceiveActivation,  // what the unit, the first of its chunk, reads, from the stage before, into `slot`
  kOffload,            // adds the owned gradients of units [unit, unit_end) to those in host memory
  kFetch,             // the owned parameters of units [unit, unit_end) from host memory, into `slot` where it names one
  kReduceScalars,     // loss sum and votes of the step over all ranks
  kGradientNorm,      // global norm over owned extents (a group: summed over it), and the factor where the spec clips
  kOptimizerStep,     // over owned extents, of units [unit, unit_end) where it names them
  kSnapshot,          // owned state to host memory, for a checkpoint
  kOffloadInput,      // unit, microbatch: what its forward keeps for its recomputation goes to host memory, into `slot`
  kReleaseInput,      // unit, microbatch: what was offloaded leaves the device
  kFetchInput,        // unit, microbatch: it comes back, into `slot` of the device, until the unit's backward has ended
  kSendGradient,      // of what the unit, the first of its chunk, has read, to the stage before
  kReceiveGradient,   // of what the unit, the last of its chunk, has handed on, from the next stage, into `slot`
  kSendTied,          // the unit's tensors that another stage's unit borrows (Inventory.tied), to that stage
  kReceiveTied,       // the tensors that the unit borrows from another stage's
  kSendTiedGradient,  // of the latter, after all microbatches
  kReceiveTiedGradient,  // of the former; adds it to the unit's gradient
  kBackwardInputs,       // unit, microbatch: the first half of kBackward, the gradient of the unit's input
  kBackwardWeights,      // the second half: adds the gradients of its parameters
  // Of axes with two levels (LevelGroups), before what travels between nodes, or after it:
  kGatherBetween,     // as kGather, of what ranks of this place in their nodes own; kGather then has the rest
  kReduceInside,      // gradients of units [unit, unit_end), at the rank of each node that has the owner's place
  kScatterGradients,  // of those that this rank's shard owns of the units, a part to each replica of the node
  kGatherGradients,   // those parts, summed over replicas, to all replicas of the node
  kFinishSum,         // the second half of kAllReduce, where a compressed sum has two exchanges
  kEnd,               // not an op: the number of kinds
};
inline constexpr size_t kOpKinds = static_cast<size_t>(OpKind::kEnd);

// Both directions of the link to the host are used at the same time: what comes from there has a stream of its own. So
// do the four directions of a pipeline's traffic, none of which may hold up another one.
enum class Stream : uint8_t {
  kCompute,
  kGather,
  kReduce,
  kTransfer,
  kFetch,
  kSendActivations,
  kReceiveActivations,
  kSendGradients,
  kReceiveGradients,
  // The same four between chunks whose activations go to an earlier stage.
  kSendActivationsBack,
  kReceiveActivationsBack,
  kSendGradientsBack,
  kReceiveGradientsBack,
  // What travels between nodes, beside what does inside them.
  kGatherBetween,
  kReduceBetween
};
inline constexpr size_t kStreams = 15;

// Of one of the first four.
constexpr Stream OnTheWayBack(Stream stream) {
  return static_cast<Stream>(static_cast<uint8_t>(stream) + static_cast<uint8_t>(Stream::kSendActivationsBack) -
                             static_cast<uint8_t>(Stream::kSendActivations));
}

// What an op works on, and so which of its indices must be set.
enum class OpScope : uint8_t {
  kStep,        // all of the rank's state
  kUnits,       // units [unit, unit_end)
  kMicrobatch,  // unit and microbatch
};

// Whether Op::group may, or must, name a process group.
enum class GroupUse : uint8_t { kNone, kOptional, kRequired };

// The pool in which the op takes Op::slot.
enum class SlotPool : uint8_t { kNone, kParameters, kGradients, kInputs, kHostInputs, kActivations };

// A pass of the model over a (unit, microbatch), and what happens to the activations.
enum class Pass : uint8_t {
  kNone,
  kForward,          // keeps what the backward needs, or only its input if it is recomputed
  kRecompute,        // restores the rest
  kBackward,         // frees both
  kBackwardInputs,   // frees both, and keeps what the gradients of parameters need
  kBackwardWeights,  // frees that
};

// What the op does with parameters.
enum class ParameterUse : uint8_t {
  kNone,
  kGather,              // makes them resident
  kGatherBetween,       // takes their slot, for kGather
  kFetch,               // brings the owned ones, which makes them resident where no op gathers them
  kRead,                // needs them resident, those that the unit borrows included
  kSend,                // likewise, of its units alone
  kReadIfBackwardDoes,  // likewise, except for a unit with backward_without_parameters
  kRelease,             // ends what kGather began
};

// What the op does with gradients.
enum class GradientUse : uint8_t {
  kNone,
  kOpen,          // takes their slot
  kAdd,           // adds the contribution of a (unit, microbatch)
  kAddTied,       // adds what another stage's units contribute
  kReduce,        // sums contributions over ranks, at their owners; frees their slot
  kReduceInside,  // sums them over the ranks of a node, for kReduce
  kAllReduce,     // sums over replicas what an owner has; all of it, where a schedule has no kReduce
  kScatter,       // the same over those of a node, a part at each, for kAllReduce
  kGather,        // the parts after it
  kFinishSum,     // kAllReduce has only begun: completes it
  kOffload,       // adds what an owner has to its gradients in host memory; frees their slot, unless kReduce did
  kMeasure,       // takes the norm of all of them
  kApply,         // updates parameters with them
};

// What the op does with the input of a recomputed unit, which its forward keeps.
enum class InputUse : uint8_t {
  kNone,
  kOffload,  // copies it to host memory
  kRelease,  // frees the device's copy
  kFetch,    // makes another one
};

// What the op moves between neighboring stages of a pipeline, and in which direction.
enum class EdgeUse : uint8_t {
  kNone,
  kSendActivation,
  kReceiveActivation,
  kSendGradient,
  kReceiveGradient,
  kSendTied,
  kReceiveTied,
  kSendTiedGradient,
  kReceiveTiedGradient
};

// What the op does with the step's scalars, to which the passes of the last unit add the loss.
enum class ScalarUse : uint8_t {
  kNone,
  kSum,   // over ranks
  kRead,  // decides by them
};

// What the op sends over the links of its group.
enum class Payload : uint8_t {
  kNone,
  kParameters,      // of its units, between owners and the others, in the dtype of computing
  kGradients,       // likewise, in the dtype of reductions
  kOwnedGradients,  // what one shard owns of its units, summed over the group
  kGradientParts,   // of that, each rank's part, from or to all of the group
  kActivations,     // what flows between two units, of a microbatch
  kTied,            // tensors that another stage borrows, in the dtype of computing
  kTiedGradients,   // their gradients, fp32
};

// What the op reads or writes in memory beside its passes.
enum class MemoryTraffic : uint8_t {
  kNone,
  kUnitGradients,   // of its units, once
  kOwnedGradients,  // of all that the rank owns, once
  kOptimizerState,  // weights, gradients and state of all that the rank owns, or of its units
  kHostParameters,  // what the rank owns of its units, between host and device
  kHostGradients,
  kHostInput,  // of its unit and microbatch, between host and device
};

struct OpTraits {
  OpKind kind;
  std::string_view name;  // as printed, in schedules, traces and messages
  Stream stream;          // that the builder puts it on, or on the one OnTheWayBack, or kReduceBetween
  OpScope scope;
  // Rules of the checker.
  GroupUse group = GroupUse::kNone;
  SlotPool slots = SlotPool::kNone;
  Pass pass = Pass::kNone;  // also of the memory walk
  ParameterUse parameters = ParameterUse::kNone;
  GradientUse gradients = GradientUse::kNone;
  bool after_step = false;  // may come after the optimizer's step
  // Its cost is the sum of these, and of what a pass exchanges.
  double forwards = 0;  // passes that take as long as a forward of the unit
  Payload payload = Payload::kNone;
  uint32_t scalar_bytes = 0;  // summed over its group, where it has one
  MemoryTraffic memory = MemoryTraffic::kNone;
  ScalarUse scalars = ScalarUse::kNone;  // a rule of the checker
  InputUse inputs = InputUse::kNone;     // likewise, and of the memory walk
  EdgeUse edge = EdgeUse::kNone;         // likewise

  bool operator==(const OpTraits&) const = default;
};

inline constexpr std::array<OpTraits, kOpKinds> kOpTable = {{
    {.kind = OpKind::kGather,
     .name = "Gather",
     .stream = Stream::kGather,
     .scope = OpScope::kUnits,
     .group = GroupUse::kOptional,
     .slots = SlotPool::kParameters,
     .parameters = ParameterUse::kGather,
     .after_step = true,
     .payload = Payload::kParameters},
    {.kind = OpKind::kForward,
     .name = "Forward",
     .stream = Stream::kCompute,
     .scope = OpScope::kMicrobatch,
     .group = GroupUse::kOptional,
     .pass = Pass::kForward,
     .parameters = ParameterUse::kRead,
     .forwards = 1},
    {.kind = OpKind::kBackward,
     .name = "Backward",
     .stream = Stream::kCompute,
     .scope = OpScope::kMicrobatch,
     .group = GroupUse::kOptional,
     .pass = Pass::kBackward,
     .parameters = ParameterUse::kReadIfBackwardDoes,
     .gradients = GradientUse::kAdd,
     .forwards = 2},
    {.kind = OpKind::kRecompute,
     .name = "Recompute",
     .stream = Stream::kCompute,
     .scope = OpScope::kMicrobatch,
     .group = GroupUse::kOptional,
     .pass = Pass::kRecompute,
     .parameters = ParameterUse::kRead,
     .forwards = 1},
    {.kind = OpKind::kRelease,
     .name = "Release",
     .stream = Stream::kCompute,
     .scope = OpScope::kUnits,
     .parameters = ParameterUse::kRelease,
     .after_step = true},
    {.kind = OpKind::kOpenGradients,
     .name = "OpenGradients",
     .stream = Stream::kCompute,
     .scope = OpScope::kUnits,
     .slots = SlotPool::kGradients,
     .gradients = GradientUse::kOpen,
     .memory = MemoryTraffic::kUnitGradients},
    {.kind = OpKind::kReduce,
     .name = "Reduce",
     .stream = Stream::kReduce,
     .scope = OpScope::kUnits,
     .group = GroupUse::kRequired,
     .gradients = GradientUse::kReduce,
     .payload = Payload::kGradients},
    {.kind = OpKind::kAllReduce,
     .name = "AllReduce",
     .stream = Stream::kReduce,
     .scope = OpScope::kUnits,
     .group = GroupUse::kRequired,
     .gradients = GradientUse::kAllReduce,
     .payload = Payload::kOwnedGradients},
    {.kind = OpKind::kSendActivation,
     .name = "SendActivation",
     .stream = Stream::kSendActivations,
     .scope = OpScope::kMicrobatch,
     .group = GroupUse::kRequired,
     .payload = Payload::kActivations,
     .edge = EdgeUse::kSendActivation},
    {.kind = OpKind::kReceiveActivation,
     .name = "ReceiveActivation",
     .stream = Stream::kReceiveActivations,
     .scope = OpScope::kMicrobatch,
     .group = GroupUse::kRequired,
     .slots = SlotPool::kActivations,
     .payload = Payload::kActivations,
     .edge = EdgeUse::kReceiveActivation},
    {.kind = OpKind::kOffload,
     .name = "Offload",
     .stream = Stream::kTransfer,
     .scope = OpScope::kUnits,
     .gradients = GradientUse::kOffload,
     .memory = MemoryTraffic::kHostGradients},
    {.kind = OpKind::kFetch,
     .name = "Fetch",
     .stream = Stream::kFetch,
     .scope = OpScope::kUnits,
     .slots = SlotPool::kParameters,
     .parameters = ParameterUse::kFetch,
     .after_step = true,
     .memory = MemoryTraffic::kHostParameters},
    {.kind = OpKind::kReduceScalars,
     .name = "ReduceScalars",
     .stream = Stream::kReduce,
     .scope = OpScope::kStep,
     .group = GroupUse::kRequired,
     .scalar_bytes = 32,
     .scalars = ScalarUse::kSum},
    {.kind = OpKind::kGradientNorm,
     .name = "GradientNorm",
     .stream = Stream::kCompute,
     .scope = OpScope::kStep,
     .group = GroupUse::kOptional,
     .gradients = GradientUse::kMeasure,
     .scalar_bytes = 8,
     .memory = MemoryTraffic::kOwnedGradients},
    {.kind = OpKind::kOptimizerStep,
     .name = "OptimizerStep",
     .stream = Stream::kCompute,
     .scope = OpScope::kStep,
     .gradients = GradientUse::kApply,
     .memory = MemoryTraffic::kOptimizerState,
     .scalars = ScalarUse::kRead},
    // In no schedule yet; costs nothing until it is.
    {.kind = OpKind::kSnapshot,
     .name = "Snapshot",
     .stream = Stream::kTransfer,
     .scope = OpScope::kStep,
     .after_step = true},
    {.kind = OpKind::kOffloadInput,
     .name = "OffloadInput",
     .stream = Stream::kTransfer,
     .scope = OpScope::kMicrobatch,
     .slots = SlotPool::kHostInputs,
     .memory = MemoryTraffic::kHostInput,
     .inputs = InputUse::kOffload},
    {.kind = OpKind::kReleaseInput,
     .name = "ReleaseInput",
     .stream = Stream::kCompute,
     .scope = OpScope::kMicrobatch,
     .inputs = InputUse::kRelease},
    {.kind = OpKind::kFetchInput,
     .name = "FetchInput",
     .stream = Stream::kFetch,
     .scope = OpScope::kMicrobatch,
     .slots = SlotPool::kInputs,
     .memory = MemoryTraffic::kHostInput,
     .inputs = InputUse::kFetch},
    {.kind = OpKind::kSendGradient,
     .name = "SendGradient",
     .stream = Stream::kSendGradients,
     .scope = OpScope::kMicrobatch,
     .group = GroupUse::kRequired,
     .payload = Payload::kActivations,
     .edge = EdgeUse::kSendGradient},
    {.kind = OpKind::kReceiveGradient,
     .name = "ReceiveGradient",
     .stream = Stream::kReceiveGradients,
     .scope = OpScope::kMicrobatch,
     .group = GroupUse::kRequired,
     .slots = SlotPool::kActivations,
     .payload = Payload::kActivations,
     .edge = EdgeUse::kReceiveGradient},
    {.kind = OpKind::kSendTied,
     .name = "SendTied",
     .stream = Stream::kSendActivations,
     .scope = OpScope::kUnits,
     .group = GroupUse::kRequired,
     .parameters = ParameterUse::kSend,
     .payload = Payload::kTied,
     .edge = EdgeUse::kSendTied},
    {.kind = OpKind::kReceiveTied,
     .name = "ReceiveTied",
     .stream = Stream::kReceiveActivations,
     .scope = OpScope::kUnits,
     .group = GroupUse::kRequired,
     .payload = Payload::kTied,
     .edge = EdgeUse::kReceiveTied},
    {.kind = OpKind::kSendTiedGradient,
     .name = "SendTiedGradient",
     .stream = Stream::kSendGradients,
     .scope = OpScope::kUnits,
     .group = GroupUse::kRequired,
     .payload = Payload::kTiedGradients,
     .edge = EdgeUse::kSendTiedGradient},
    {.kind = OpKind::kReceiveTiedGradient,
     .name = "ReceiveTiedGradient",
     .stream = Stream::kReceiveGradients,
     .scope = OpScope::kUnits,
     .group = GroupUse::kRequired,
     .gradients = GradientUse::kAddTied,
     .payload = Payload::kTiedGradients,
     .edge = EdgeUse::kReceiveTiedGradient},
    {.kind = OpKind::kBackwardInputs,
     .name = "BackwardInputs",
     .stream = Stream::kCompute,
     .scope = OpScope::kMicrobatch,
     .group = GroupUse::kOptional,
     .pass = Pass::kBackwardInputs,
     .parameters = ParameterUse::kReadIfBackwardDoes,
     .forwards = 1},
    {.kind = OpKind::kBackwardWeights,
     .name = "BackwardWeights",
     .stream = Stream::kCompute,
     .scope = OpScope::kMicrobatch,
     .pass = Pass::kBackwardWeights,
     .gradients = GradientUse::kAdd,
     .forwards = 1},
    {.kind = OpKind::kGatherBetween,
     .name = "GatherBetween",
     .stream = Stream::kGatherBetween,
     .scope = OpScope::kUnits,
     .group = GroupUse::kRequired,
     .slots = SlotPool::kParameters,
     .parameters = ParameterUse::kGatherBetween,
     .after_step = true,
     .payload = Payload::kParameters},
    {.kind = OpKind::kReduceInside,
     .name = "ReduceInside",
     .stream = Stream::kReduce,
     .scope = OpScope::kUnits,
     .group = GroupUse::kRequired,
     .gradients = GradientUse::kReduceInside,
     .payload = Payload::kGradients},
    {.kind = OpKind::kScatterGradients,
     .name = "ScatterGradients",
     .stream = Stream::kReduce,
     .scope = OpScope::kUnits,
     .group = GroupUse::kRequired,
     .gradients = GradientUse::kScatter,
     .payload = Payload::kGradientParts},
    {.kind = OpKind::kGatherGradients,
     .name = "GatherGradients",
     .stream = Stream::kGather,
     .scope = OpScope::kUnits,
     .group = GroupUse::kRequired,
     .gradients = GradientUse::kGather,
     .payload = Payload::kGradientParts},
    {.kind = OpKind::kFinishSum,
     .name = "FinishSum",
     .stream = Stream::kReduce,
     .scope = OpScope::kUnits,
     .group = GroupUse::kRequired,
     .gradients = GradientUse::kFinishSum,
     .payload = Payload::kOwnedGradients},
}};

// Also catches a missing row: the array would end in an empty one.
constexpr bool EveryKindHasItsRow() {
  for (size_t kind = 0; kind < kOpKinds; ++kind) {
    if (kOpTable[kind].kind != static_cast<OpKind>(kind) || kOpTable[kind].name.empty()) return false;
  }
  return true;
}
static_assert(EveryKindHasItsRow(), "kOpTable needs one row for each OpKind, in its order");

// REQUIRES: a kind before kEnd.
constexpr const OpTraits& Traits(OpKind kind) { return kOpTable[static_cast<size_t>(kind)]; }

// Passes the gradient on to the unit before.
constexpr bool GoesBack(Pass pass) { return pass == Pass::kBackward || pass == Pass::kBackwardInputs; }
constexpr bool GoesBack(OpKind kind) { return GoesBack(Traits(kind).pass); }

// Contributions are summed over ranks.
constexpr bool ReducesGradients(OpKind kind) {
  return Traits(kind).gradients == GradientUse::kReduce || Traits(kind).gradients == GradientUse::kAllReduce;
}

// Groups whose ranks are on different nodes, one on each.
constexpr bool IsBetweenNodes(Axes axes) { return axes == kReplicasBetween || axes == kShardsBetween; }

}  // namespace muster
