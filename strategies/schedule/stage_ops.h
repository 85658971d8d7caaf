// The ops of a pipeline's stages that happen together: a send and its receive, and collectives over several stages.
// Pure.
#pragma once

#include <cstddef>
#include <map>
#include <tuple>
#include <vector>

#include "strategies/schedule/schedule.h"

namespace muster {

// A group that spans stages: axes, channel, from, to. Ordered, so that every walk over groups is the same.
using StageGroup = std::tuple<int, int, int, int>;
inline StageGroup StageGroupOf(const GroupSpec& group) {
  return {static_cast<int>(group.axes), static_cast<int>(group.channel), group.from, group.to};
}
inline bool IsEdge(const StageGroup& group) { return std::get<2>(group) >= 0; }

// Whether the op meets ops of other stages.
inline bool MeetsOtherStages(const Schedule& schedule, const Op& op) {
  return !schedule.edges.empty() && op.group >= 0 &&
         (schedule.groups[static_cast<size_t>(op.group)].axes & kPipelineAxis) != 0;
}

// By group and stage: its ops in the group, in their order. The k-th ops of the stages happen together.
using StageOps = std::map<StageGroup, std::map<size_t, std::vector<size_t>>>;
inline StageOps OpsThatMeet(const std::vector<const Schedule*>& stages) {
  StageOps ops;
  for (size_t p = 0; p < stages.size(); ++p) {
    for (size_t i = 0; i < stages[p]->ops.size(); ++i) {
      const Op& op = stages[p]->ops[i];
      if (!MeetsOtherStages(*stages[p], op)) continue;
      ops[StageGroupOf(stages[p]->groups[static_cast<size_t>(op.group)])][p].push_back(i);
    }
  }
  return ops;
}

}  // namespace muster
