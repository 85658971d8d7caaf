// Makes the plans that the core asks for: after a while, in any order, sometimes twice, and now and then although the
// core has cancelled. No real strategy is needed: the core only compares the names of tables and schedules.
#pragma once

#include <set>
#include <string>

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
  void AnswerAfter(absl::Duration delay, const core::PlanReady& answer);

  World* const world_;
  std::set<std::string> cancelled_;
};

}  // namespace muster::simulate
