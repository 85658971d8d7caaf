// parallel: auto: the fastest mix of stages, schedule, strategy, microbatch, checkpointing and offloading that fits, by
// lower bounds and then the simulator. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "strategies/choose.h"

namespace muster::strategies {

// How a pipeline may go: the one list of what is tried.
struct PipelineShape {
  PipelineSchedule schedule;
  uint32_t chunks;  // on a stage
};
absl::Span<const PipelineShape> PipelineShapes();

// Tries every number of stages that divides the ranks, and 1, 2, 4, 8 and 16 ranks that compute each unit together
// where these share a node. Where data ranks outnumber the sequences of a step, so many of them share a sequence too
// that none is idle, or as many as ranks and tokens allow; where nothing fits otherwise, 2 to 64 of them do. On each
// mesh every shape (zero_bubble of one chunk only where some unit's backward splits, since it is 1F1B otherwise), each
// of DataStrategies, microbatches of powers of two and a rank's whole share, with and without activation checkpointing.
// What the spec says of microbatch, checkpointing (also false) and offloading stays; offload.optimizer is tried on GPUs
// where nothing of all this fits. Nothing is tried that ranks refuse: tensor ranks and offloading beside compression,
// offloading beside cuda_graphs. Of a model that normalizes by the samples of a microbatch
// (models::DependsOnMicrobatches), the results would be others: it has one stage, and of microbatches the spec's or a
// rank's whole share. What needs more memory than slots have by its lower bound is left out. The others are planned and
// simulated by their lower bound of time, the least first, and each only in the largest microbatch of those that fit,
// until no other can be among the five fastest, or the part of the budget for it is spent (Choice::stopped). Takes the
// fastest that fits, but a simpler one that is less than 2% slower.
//
// The candidates are the five fastest that fit, the fastest first (fewer where fewer fit), and of each number of
// stages, of ranks that compute a unit and of those that share a sequence, and by each schedule, that they do not have
// the best one, each with the reason why it lost. Where nothing fits, the ways of each mesh that need least by their
// bounds are planned as well, and the chosen one is the one that needs least of all that were planned; others may need
// less, so Choice::least_peak is not known.
//
// REQUIRES: `train` is resolved and says parallel: auto. Errors as Compile; InvalidArgument also where no way to run
// can be planned.
absl::StatusOr<Choice> ChooseMesh(const Train& train, const Inventory& inventory, absl::Span<const RankPlace> ranks,
                                  const Hardware& hardware, Budget* budget = nullptr);

// "4 stages by interleaved of 2 chunks, tensor 8 with sequence parallel, fsdp full_shard with activation_checkpointing,
// microbatch 2".
std::string MixName(const Train& train);

// The fields of a concrete `train` that parallel: auto chooses beside strategy and checkpointing, and no others.
Train ChosenOf(const Train& train);

}  // namespace muster::strategies
