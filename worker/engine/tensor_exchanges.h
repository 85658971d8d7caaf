// The collectives that units issue inside their passes with the ranks that compute the other shares of them
// (Unit.tensor_exchange), or with those that have the other tokens of the same samples (Unit.context_exchange). A pass
// may have both: each kind is counted by itself.
//
//   exchanges.Begin();
//   unit.Forward(context, ...);  // calls context.tensor, which is `exchanges`
//   exchanges.End(unit.tensor_exchange(), inventory, unit, Pass::kForward, ...);
//
// Not thread-safe. A failed collective throws Failed.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "proto/inventory.pb.h"
#include "strategies/schedule/ops.h"
#include "worker/collectives/group.h"
#include "worker/engine/collectives_under_way.h"
#include "worker/units/unit.h"

namespace muster::engine {

class TensorExchanges final : public units::TensorRanks {
 public:
  // They outlive it; `progress` may be null. Collectives and waits become spans of the recorder. `ranks`: which they
  // are, for messages: "the ranks of its other shares".
  TensorExchanges(collectives::Group* group, const char* ranks, Recorder* recorder, OpListener* progress)
      : group_(group), ranks_(ranks), under_way_(recorder, progress) {}

  int64_t rank() const override { return group_->rank(); }
  int64_t size() const override { return group_->size(); }
  void StartSum(const at::Tensor& values) override;
  void StartSumScattered(const at::Tensor& all) override;
  void StartGather(const at::Tensor& part, const at::Tensor& all) override;
  void Finish() override { under_way_.Finish(); }
  void FinishFirst() override { under_way_.Finish(1); }

  void Begin();
  // Throws Failed, Internal, if the pass over so many samples exchanged something else than `declared`, of the unit: a
  // plan with other costs, and ranks that may not match.
  // `narrow`: GEMMs compute in two bytes, so what is exchanged of their results is half of what is declared.
  void End(const TensorExchange& declared, const Inventory& inventory, const Unit& unit, Pass pass, bool evaluation,
           bool narrow, int64_t samples) const;

  // On a CPU: time blocked in collectives since the last call.
  double TakeWaitedSeconds() { return under_way_.TakeWaitedSeconds(); }

 private:
  void Start(const char* name, std::unique_ptr<collectives::Work> work);

  collectives::Group* const group_;
  const char* const ranks_;
  CollectivesUnderWay under_way_;
  uint64_t collectives_ = 0, summed_bytes_ = 0, gathered_bytes_ = 0, scattered_bytes_ = 0;  // since Begin
};

}  // namespace muster::engine
