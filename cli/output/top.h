// The page of `muster top`. Pure.
#pragma once

#include <string>

#include "absl/time/time.h"
#include "cli/output/screen.h"
#include "proto/jobs.pb.h"

namespace muster::cli {

// Columns by which `top` sorts.
enum class TopSort { kSubmitted, kJob, kState, kTokens, kMemory, kBusy, kLeft };
inline constexpr const char* kTopSorts[] = {"submitted", "job", "state", "tokens", "memory", "busy", "left"};

struct TopView {
  TopSort sort = TopSort::kSubmitted;
  bool reverse = false;
  int first = 0;        // job that is shown first, from 0
  int first_node = 0;   // likewise
  int nodes_shown = 0;  // set by TopPage
  bool keys = false;    // ends with a line of the keys, where there is room for it
};

// Applies a key, as a terminal sends it: the arrows, page up and down, j, k, g, n, s and r. False: it means nothing
// here.
bool PressTopKey(const std::string& key, TopView& view);

// A line of totals, the running and waiting jobs with their metrics, and the nodes with their ranks.
// On a terminal of known height the page fits it: `view.first` and `view.first_node`, which are brought into range, say
// which jobs and nodes are shown. Nodes give way to three jobs, and all but one job to the first node. Lines that are
// wider than the terminal are for OnScreen to cut.
std::string TopPage(const v1::ListJobsReply& jobs, const v1::ListNodesReply& nodes, const Screen& screen,
                    absl::Time now, TopView& view);

}  // namespace muster::cli
