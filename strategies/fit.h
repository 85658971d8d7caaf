// Whether ranks fit into the memory of their slots, and what would fit. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "strategies/budget.h"
#include "strategies/compile.h"
#include "strategies/schedule/op_names.h"

namespace muster::strategies {

// The share of a slot's memory that a predicted peak may take. The rest is for the process itself: program and
// libraries, a device's context, collectives' buffers, and what the prediction misses.
inline constexpr double kUsable = 0.9;

// The smallest slot for a peak.
uint64_t SlotBytesFor(uint64_t peak_bytes);

// A job's plan on given ranks.
struct MemoryPlan {
  Layout layout;
  std::vector<RankProgram> programs;  // by stage of the pipeline: of its ranks, or its outline
  std::vector<Memory> by_shard;
  std::vector<uint32_t> held;  // shards that own less than their speed's share, since their ranks' memory holds no more
  bool no_cut_fits = false;    // of a pipeline that the planner cuts: no other cut was found to need less

  const Memory& of(uint32_t rank) const { return by_shard[layout.roles[rank].shard()]; }
  uint64_t peak() const;  // of the rank that needs most
};

// Whether the ranks of any stage sum gradients over replicas: one that trains nothing has none to sum.
bool SumsOverReplicas(const MemoryPlan& memory_plan);

// `train` is resolved and concrete. Shares by speed are limited by the ranks' memory. A pipeline is cut so that its
// slowest stage is as fast as can be. If a stage does not fit then, it is cut again for what the stages' memory takes,
// where the first cut shows how a stage's memory grows with its units; a cut that fits is found unless that differs
// much among units. Errors as MakeLayout.
absl::StatusOr<MemoryPlan> PlanMemory(const Train& train, const Inventory& inventory, absl::Span<const RankPlace> ranks,
                                      Budget* budget = nullptr);

// What is kept of the program that the trainers of a stage compile, which may be too large to keep.
struct WholeProgram {
  std::string digest;
  OpNames names;
  size_t outlined = 0;  // so many of its first ops are those of the plan's program
};

// By stage; the whole step is proven across stages (CheckStages). Errors as Compile; Internal: the stages do not fit
// together.
absl::StatusOr<std::vector<WholeProgram>> CompileWhole(const Train& train, const Inventory& inventory,
                                                       const MemoryPlan& memory_plan, Budget* budget = nullptr);

// Empty: every rank fits, or its slot's memory is unknown. Otherwise names the rank that does not, with figures: "rank
// 3 needs 61.2 GiB (its predicted peak of 55.1 GiB and 10% to spare), its slot has 40 GiB"; of a pipeline also its
// stage.
std::string WhyUnfit(const MemoryPlan& memory_plan, absl::Span<const RankPlace> ranks);

// Suggests what would fit such slots, each suggestion tried: checkpointing, more sharding, a smaller microbatch, more
// ranks. "it would fit with activation_checkpointing: true (31 GiB a rank), ..."; or says that nothing does, and how
// much the smallest of them needs. Tries only what a spec may ask for, and spends at most half of the remaining budget.
// REQUIRES: `train` is concrete and does not fit.
std::string WhatWouldFit(const Train& train, const Inventory& inventory, absl::Span<const RankPlace> ranks,
                         Budget* budget = nullptr);

// "ddp", "zero 2", "fsdp full_shard", with ", activation checkpointing" where the spec has it.
std::string NameOf(const Train& train);

// fsdp with default options.
Strategy FsdpOf(Reshard reshard);

// `train` with another strategy, whose options are the defaults.
Train With(const Train& train, Strategy strategy, bool activation_checkpointing);

}  // namespace muster::strategies
