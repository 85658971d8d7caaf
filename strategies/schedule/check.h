// Proves a schedule before it runs. Pure.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "proto/inventory.pb.h"
#include "strategies/schedule/schedule.h"

namespace muster {

// Internal (our own compiler is wrong), naming the op and the rule:
//  - indices: units, microbatches and slots exist; waits name earlier ops
//  - resident: a gathered unit (and one that it borrows from) is used only between its gather and its release; a unit
//    that is never gathered is always resident; nothing is left gathered; nothing is gathered twice
//  - slots: none has two live owners
//  - order: each (unit, microbatch) is forwarded once, after the units before it; its backward comes once, after its
//    forward and after the backward of the units behind it; a recomputation comes between the two
//  - reduction: with any kReduce, each contribution (owner of the tensors, unit that used them, microbatch) enters
//    exactly one reduction of its owner, after its backward: a tied tensor has one from its own unit and one from each
//    that borrows it; without a kReduce every gradient stays where it is
//  - step: one kOptimizerStep, after every backward, reduction and clipping; no parameter is used after it
//  - streams: ops are in order only within their stream and behind what they wait for. By that order alone a use comes
//    after its gather, a gather after the release of its slot, a release after the uses, a reduction after the
//    backwards that it takes, clipping and the step after all reductions
//  - groups: a reduction has a group, a gather may have one, no other op has
absl::Status Check(const Schedule& schedule, const Inventory& inventory);

// The schedules of a group's ranks: all issue the same collectives of each group in the same order. The message names
// the two ranks and the first ops that differ.
absl::Status CheckMatching(const std::vector<Schedule>& by_rank, const Inventory& inventory);

}  // namespace muster
