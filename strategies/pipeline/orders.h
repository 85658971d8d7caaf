// The order in which a stage of a pipeline computes the microbatches of a step. One small emitter for each schedule.
// Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "proto/spec.pb.h"
#include "strategies/schedule/phase.h"

namespace muster::pipeline {

struct OrderOptions {
  uint32_t stages = 1;
  uint32_t chunks = 1;  // on each stage; which of the model's: StageOfChunk in stages.h
  uint32_t microbatches = 1;
};

// Every forward, then every backward, both in the order of the microbatches (Huang et al. 2019, GPipe; PyTorch's
// ScheduleGPipe).
std::vector<Phase> GPipe(const OrderOptions& options);

// Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM",
// sections 2.2.1 (one chunk: PipeDream-Flush, 1F1B) and 2.2.2 (several: interleaved). With one chunk at most stages -
// stage microbatches are between their forward and their backward. Microbatches pass several chunks in groups of
// `stages`, the first groups with those that are left over, so that all idle no longer than published, (stages - 1)
// forwards and backwards of a chunk. (PyTorch's ScheduleInterleaved1F1B has equal groups, where the number allows it.)
std::vector<Phase> OneForwardOneBackward(const OrderOptions& options, uint32_t stage);

// Qi et al. 2024, "Zero Bubble Pipeline Parallelism", section 2.3 and figure 3: ZB-H1. 1F1B whose gradients of weights
// come `stage` microbatches after those of inputs, so they fill the end of the step, and every stage keeps as much as
// the first one of 1F1B: at most `stages` microbatches between their forward and their gradients of weights.
// REQUIRES: chunks = 1.
std::vector<Phase> ZeroBubbleH1(const OrderOptions& options, uint32_t stage);

// Section 6 of it: ZB-V, of two chunks a stage laid out in a V, in the order of PyTorch's ScheduleZBVZeroBubble. Every
// stage keeps at most 2 * stages microbatches of a chunk, as much as the first stage of 1F1B. REQUIRES: chunks = 2.
std::vector<Phase> ZeroBubbleV(const OrderOptions& options, uint32_t stage);

// The most (chunk, microbatch) pairs that are between their forward and their gradient of inputs on this stage at a
// time, or fewer: a bound that needs no order. Of one stage with all of the model, 1.
uint32_t LeastInFlight(PipelineSchedule schedule, const OrderOptions& options, uint32_t stage);

// By the schedule's name in a spec.
std::vector<Phase> OrderOf(PipelineSchedule schedule, const OrderOptions& options, uint32_t stage);

}  // namespace muster::pipeline
