// Proves a schedule before it runs. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "proto/inventory.pb.h"
#include "strategies/schedule/schedule.h"

namespace muster {

// Internal (our own compiler is wrong), naming the op and the rule:
//  - indices: units, microbatches and slots exist; waits name earlier ops
//  - resident: a gathered unit (and one that it borrows from) is used only between its gather and its release; a unit
//    that is never gathered is always resident; nothing is left gathered; nothing is gathered twice
//  - slots: none has two live owners, and a unit has the same one each time; likewise for gradients
//  - order: each (unit, microbatch) is forwarded once, after the units before it; its backward comes once, after its
//    forward and after the backward of the units after it; a recomputation comes between the two. Units before the
//    first one that is trained (models::FirstTrained) have neither
//  - gradients: those of a unit that has a slot for them are added to only between their opening and their reduction,
//    which takes everything in the slot
//  - reduction: with any kReduce or kAllReduce, each contribution (owner of the tensors, unit that used them,
//    microbatch) enters exactly one reduction of its owner, after its backward: a tied tensor has one from its own unit
//    and one from each that borrows it. Where there are both, every unit's kAllReduce comes once, after its last
//    kReduce. A gradient outside of the slots is reduced once: a second reduction would add sums twice. Without any,
//    every gradient stays where it is. Where sums have two exchanges, every kAllReduce has one kFinishSum of the same
//    units and group, after it and before anything that reads the sum
//  - step: one kGradientNorm, then one kOptimizerStep, after every backward and reduction; no parameter is used
//    after it. A schedule without a backward, such as an evaluation, has neither
//  - streams: an op begins after the ends of what it waits for; ops of a stream end in their order, and those that
//    compute also begin in it (worker/engine/queue.h). By that order alone a use comes
//    after its gather, a gather after the release of its slot, a release after the uses, a reduction after the
//    backwards that it takes, a slot's opening after its last reduction, clipping and the step after all reductions, an
//    input's moves after each other and after what made it or used its slot
//  - inputs: only what a recomputed unit keeps is offloaded, right after its forward; it leaves the device after that
//    and before it is fetched, is fetched before its recomputation and stays in its slot until the unit's backward; two
//    inputs at most are on the device between their offload and their release; a unit has the same slots each time,
//    and none has two live owners
//  - scalars: with any kReduce or kAllReduce, and on every stage of a pipeline, one kReduceScalars comes after every
//  pass of the last unit, which adds to
//    the loss, and before the step, which reads it
//  - edges: what a chunk reads of another stage is received before the pass that reads it, over its edge, and what it
//    computes for one is sent after it, each once; a slot of activations is taken again only after the last pass that
//    reads it, and what that pass sends; two outputs of a direction at most are on their way
//  - tied: a unit that borrows a tensor of another stage's reads it after it is received, and its gradient is sent
//  after
//    all of its backwards; the owner sends the tensor while it is resident, and what it gets back is one contribution
//    more, after its own; each once; what is sent is sent when the step's end changes it
//  - groups: a reduction has a group, a gather may have one; kGradientNorm has that of the kReduces on all stages, and
//    none where every rank has the whole gradient; with any kReduce or kAllReduce, the passes of a unit that exchanges
//    have kExchangeGroup; those of a unit that several ranks compute together kTensorGroup, of one that exchanges with
//    ranks of the same sequences kContextGroup, and of one that does both kContextTensorGroup, but for the second half
//    of a backward; no other op has one
absl::Status Check(const Schedule& schedule, const Inventory& inventory);

// Equal for two ranks of a group only if they issue the same collectives in it, in the same order: what ranks compare
// before the first one.
std::string CollectivesDigest(const Schedule& schedule, int32_t group);

}  // namespace muster
