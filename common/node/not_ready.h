// Why a node gets no ranks though it is live: what its worker found when it checked the machine.
#pragma once

#include <string>

#include "absl/strings/str_cat.h"
#include "proto/job.pb.h"

namespace muster {

// "disk: 3 MiB free in /var/lib/muster; device 1: no answer within 1m30s"
inline std::string ProblemsOf(const Preflight& preflight) {
  std::string problems;
  for (const PreflightCheck& check : preflight.checks()) {
    if (check.problem().empty()) continue;
    absl::StrAppend(&problems, problems.empty() ? "" : "; ", check.name(), ": ", check.problem());
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
