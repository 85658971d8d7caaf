#include "coordinator/core/draw.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "coordinator/core/transitions.h"

namespace muster::core {
namespace {

template <typename State, size_t N>
void Draw(const std::string& title, const std::string& prefix, const std::array<Move<State>, N>& moves,
          const std::string& (*name)(State), std::string& out) {
  const auto label = [&](State s) { return std::string(absl::StripPrefix(name(s), prefix)); };
  absl::StrAppend(&out, "\n## ", title, "\n\n```mermaid\nstateDiagram-v2\n    [*] --> ", label(moves[0].from), "\n");
  for (const Move<State>& move : moves) {
    absl::StrAppend(&out, "    ", label(move.from), " --> ", label(move.to), ": ", move.when, "\n");
  }
  std::string last;
  for (const Move<State>& move : moves) {
    if (!Terminal(moves, move.to)) continue;
    const std::string line = absl::StrCat("    ", label(move.to), " --> [*]\n");
    if (out.find(line) == std::string::npos || out.find(line) < out.rfind("## ")) absl::StrAppend(&out, line);
  }
  absl::StrAppend(&out, "```\n");
}

}  // namespace

std::string DrawStates() {
  std::string out =
      "# State machines\n\nDrawn from the constants in `coordinator/core/transitions.h` by\n"
      "`bazel run //docs:update`; a test fails when they differ.\n";
  Draw<JobState>("Job", "JOB_STATE_", kJobMoves, &JobState_Name<JobState>, out);
  Draw<GenerationState>("Generation", "GENERATION_STATE_", kGenerationMoves, &GenerationState_Name<GenerationState>,
                        out);
  Draw<RankState>("Rank", "RANK_STATE_", kRankMoves, &RankState_Name<RankState>, out);
  Draw<NodeState>("Node", "NODE_STATE_", kNodeMoves, &NodeState_Name<NodeState>, out);
  return out;
}

}  // namespace muster::core
