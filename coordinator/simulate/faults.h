// The faults of a simulated cluster, and when they happen.
#pragma once

#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/simulate/users.h"
#include "coordinator/simulate/world.h"

namespace muster::simulate {

class Faults {
 public:
  Faults(World* world, const std::vector<std::unique_ptr<User>>* users,
         const std::vector<std::unique_ptr<Reader>>* readers)
      : world_(world), users_(users), readers_(readers) {}

  // Plans 10 to 30 faults and some requests of users, all of them before `end`.
  void Plan(absl::Duration end);
  // Repairs everything that can be repaired, from then on every minute what was drained.
  void HealAll();

 private:
  void One();
  void HitCoordinator();
  void HitDaemon();
  void HitMachine();
  void HitNetwork();
  void HitRank();
  void Whim();
  // Those that only some seeds have.
  void PlanRare(absl::Duration end);
  void CopyAndRestore(absl::Duration end);
  void LongOutage();
  void FillStateDisk(absl::Duration time);
  WorkerNode& AnyNode();
  void Partition(WorkerNode& node);
  void Flap(WorkerNode& node, uint64_t times);
  void LackSomething(WorkerNode& node, absl::Duration time);
  // As an operator who mends what the coordinator has drained.
  void UndrainAll();

  World* const world_;
  const std::vector<std::unique_ptr<User>>* const users_;
  const std::vector<std::unique_ptr<Reader>>* const readers_;
  std::vector<std::string> drained_;
  uint64_t destroyed_ = 0;
  bool healed_ = false;
};

}  // namespace muster::simulate
