// The collectives that units issue inside their passes (Unit.exchange), in a group of their own: between the ops of a
// step each rank issues other collectives when it gets to it, but passes come in one order on all ranks.
//
//   exchanges.Begin();
//   unit.Forward(context, ...);                        // calls context.ranks, which is `exchanges`
//   exchanges.End(inventory.units(u).exchange(), Pass::kForward);
//
// Not thread-safe. A failed collective throws Failed.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "proto/units.pb.h"
#include "strategies/schedule/ops.h"
#include "worker/collectives/group.h"
#include "worker/engine/collectives_under_way.h"
#include "worker/units/unit.h"

namespace muster::engine {

class Exchanges final : public units::SampleRanks {
 public:
  // They outlive it; `progress` may be null. Collectives and waits become spans of the recorder.
  Exchanges(collectives::Group* group, Recorder* recorder, OpListener* progress)
      : group_(*group), under_way_(recorder, progress) {}

  at::Tensor Gather(const at::Tensor& values) override;
  void Sum(const at::Tensor& values) override;

  void Begin();
  // Throws Failed, Internal, if the pass exchanged something else than the inventory declares: a plan with other costs,
  // and ranks that may not match.
  void End(const Exchange& declared, Pass pass) const;

  // On a CPU: time blocked in collectives since the last call.
  double TakeWaitedSeconds() { return under_way_.TakeWaitedSeconds(); }

 private:
  void Finish(const char* name, std::unique_ptr<collectives::Work> work);

  collectives::Group& group_;
  CollectivesUnderWay under_way_;
  uint32_t collectives_ = 0;  // since Begin
  uint64_t gathered_bytes_ = 0, summed_bytes_ = 0;
};

}  // namespace muster::engine
