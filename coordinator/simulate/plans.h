// Makes the plans that the core asks for: after a while, in any order, sometimes twice, and now and then although the
// core has cancelled. In most seeds no real strategy is needed: the core only compares the names of tables and
// schedules. In the others the planner is the real one.
#pragma once

#include <map>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "coordinator/server/shell.h"
#include "coordinator/simulate/world.h"

namespace muster::simulate {

// Of one life of the coordinator.
class SlowPlans final : public server::CorePlans {
 public:
  explicit SlowPlans(World* world) : world_(world) {}

  void Request(const core::RequestPlan& request) override;
  void Cancel(const std::string& key) override;

 private:
  absl::StatusOr<core::PlannedPtr> RealPlan(const core::RequestPlan& request);
  void AnswerAfter(absl::Duration delay, const core::PlanReady& answer);

  World* const world_;
  std::set<std::string> cancelled_;
  std::map<std::string, absl::StatusOr<core::PlannedPtr>> made_;  // real ones, by key
};

}  // namespace muster::simulate
