// Why a node gets no ranks though it is live: what its worker found when it checked the machine.
#pragma once

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/job.pb.h"

namespace muster {

// "disk: 3 MiB free in /var/lib/muster; device 1: no answer within 1m30s". A problem that names its program itself has
// no name before it: "muster-trainer does not load: ..." of the check "trainer".
inline std::string ProblemsOf(const Preflight& preflight) {
  std::string problems;
  for (const PreflightCheck& check : preflight.checks()) {
    if (check.problem().empty()) continue;
    const bool named = absl::StartsWith(check.problem(), absl::StrCat("muster-", check.name(), " "));
    absl::StrAppend(&problems, problems.empty() ? "" : "; ", named ? "" : check.name(), named ? "" : ": ",
                    check.problem());
  }
  return problems;
}

// Why no rank may be placed on the node until its worker reports a preflight without a problem. Empty: ranks may be
// placed, as on nodes of older workers, which report none.
inline std::string NotReady(const Node& node) {
  if (!node.has_preflight()) return "";
  if (!node.preflight().has_time()) return "its worker is checking the machine";
  if (std::string problems = ProblemsOf(node.preflight()); !problems.empty()) return problems;
  if (node.wanted_preflight() > node.preflight().number()) return "its worker is checking the machine after faults";
  return "";
}

}  // namespace muster
