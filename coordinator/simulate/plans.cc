#include "coordinator/simulate/plans.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/simulate/coordinator.h"
#include "coordinator/spec/plan.h"
#include "strategies/schedule/op_names.h"

namespace muster::simulate {
namespace {

core::PlannedPtr AnyPlan(const core::RequestPlan& request) {
  auto planned = std::make_shared<core::Planned>();
  const size_t ranks = request.slots.ranks.size();
  planned->table_sha256 = absl::StrCat("table on ", ranks, " ranks");
  for (uint32_t rank = 0; rank < ranks; ++rank) planned->roles.emplace_back().set_rank(rank);
  planned->digests = {"digest"};
  static const auto& names = *new OpNames([] {
    Inventory inventory;
    Schedule schedule;
    for (int32_t u = 0; u < 100; ++u) {
      inventory.add_units()->set_name(absl::StrCat("u", u));
      schedule.ops.push_back({.kind = OpKind::kRelease, .unit = u, .unit_end = u + 1});
    }
    return OpNames(schedule, inventory);
  }());
  planned->op_names = {names};
  return planned;
}

}  // namespace

// As server::PlanPool, which keeps answers too.
absl::StatusOr<core::PlannedPtr> SlowPlans::RealPlan(const core::RequestPlan& request) {
  const auto known = made_.find(request.key);
  if (known != made_.end()) return known->second;
  world_->Count("planned by the real planner");
  strategies::Budget budget(strategies::Budget::Limits{});
  const auto plan = spec::MakePlan(request.spec, {request.slots, core::HardwareFor(request.slots)}, &budget);
  absl::StatusOr<core::PlannedPtr> planned;
  if (plan.ok()) {
    planned = plan->planned;
  } else {
    planned = plan.status();
  }
  if (!planned.ok() || (*planned)->unfit.has_value()) world_->Count("refused by the real planner");
  return made_.emplace(request.key, std::move(planned)).first->second;
}

void SlowPlans::Request(const core::RequestPlan& request) {
  Random& random = world_->random;
  world_->Count("plan requested");
  cancelled_.erase(request.key);
  const core::PlanReady answer{request.key, world_->settings.real_plans ? RealPlan(request) : AnyPlan(request)};
  // Most plans take milliseconds, some the whole of what is allowed, in a long queue.
  const absl::Duration most = random.Percent(10) ? absl::Seconds(20) : absl::Milliseconds(200);
  AnswerAfter(random.Between(absl::ZeroDuration(), most), answer);
  if (random.Percent(5)) AnswerAfter(random.Between(absl::ZeroDuration(), 2 * most), answer);
}

void SlowPlans::Cancel(const std::string& key) {
  world_->Count("plan cancelled");
  if (world_->random.Percent(50)) cancelled_.insert(key);  // else it is just being posted
}

void SlowPlans::AnswerAfter(absl::Duration delay, const core::PlanReady& answer) {
  World* const world = world_;
  world->agenda.After(delay, [this, world, answer, life = world->coordinator->life()] {
    if (!life->alive() || cancelled_.contains(answer.key)) return;
    world->coordinator->Post([answer](server::Turn& turn) { turn.Handle(answer); });
  });
}

}  // namespace muster::simulate
