// What a replica of a run with local steps keeps beside the model: the parameters as of the newest exchange and the
// outer optimizer's momentum, of the extents that this rank owns (Douillard et al. 2023, DiLoCo, algorithm 1).
//
//   std::string own = state->Contribution(fragment).value();          // how far this replica came: outer - parameters
//   state->Apply(fragment, exchange, {own, theirs}).value();          // on every replica, in the same order
//
// All replicas that apply the same contributions have the same bits afterwards, on processors that round alike.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "checkpoint/checkpoint.h"
#include "proto/inventory.pb.h"
#include "proto/spec.pb.h"
#include "worker/engine/engine.h"

namespace muster::trainer {

// Appends `values` as they travel: fp32 and bf16 as they are (bf16 rounded to nearest even); int8 and int4 in blocks of
// 256 and 32 values, each a fp32 scale and then codes round(value / scale) of 8 or 4 bits, two's complement, the lower
// half of a byte first; scale = largest magnitude / 127 or / 7.
void Encode(ExchangedValues as, absl::Span<const float> values, std::string& to);
// Bytes that Encode appends for so many values.
size_t EncodedBytes(ExchangedValues as, size_t values);
// Adds to `sum` what Encode made. REQUIRES: of that size.
void DecodeAndAdd(ExchangedValues as, absl::string_view from, absl::Span<float> sum);

// What OuterState needs of an engine; tests have one without a model.
class Parameters {
 public:
  virtual ~Parameters() = default;
  // Valid until Push; kind "parameter" only. Between Pull and Push they are those of the last step.
  virtual absl::StatusOr<std::vector<engine::StateView>> Pull() = 0;
  virtual absl::Status Push() = 0;
};
std::unique_ptr<Parameters> ParametersOf(engine::Engine& engine);

// One thread changes it; State may be called by others.
class OuterState {
 public:
  // Begins with the parameters as they are. `inventory`: of the whole model; tensors that it freezes are left alone.
  // `parameters` outlives it.
  static absl::StatusOr<std::unique_ptr<OuterState>> Create(Parameters* parameters, const Inventory& inventory,
                                                            const Sync& sync);

  // The newest exchange whose result a fragment has; 0: none.
  uint64_t exchange(uint32_t fragment) const;
  std::vector<uint64_t> exchanges() const;

  absl::StatusOr<std::string> Contribution(uint32_t fragment);
  // Takes the mean of the contributions as the gradient of a step of torch.optim.SGD on the outer parameters, and mixes
  // the result into the model's: mix * own + (1 - mix) * outer. InvalidArgument: one has another size.
  absl::Status Apply(uint32_t fragment, uint64_t exchange, const std::vector<absl::string_view>& contributions);

  // Outer parameters and momentum of a fragment, for a replica that catches up.
  std::string State(uint32_t fragment, uint64_t& exchange) const;
  // Takes those of another replica. What this replica's own steps have changed since its last exchange stays in its
  // parameters, and is part of its next contribution. InvalidArgument: another size.
  absl::Status Adopt(uint32_t fragment, uint64_t exchange, absl::string_view state);

  // "outer.parameter.<tensor>" and "outer.momentum.<tensor>", of what checkpoints take from this rank. Views: they
  // change with Apply, Adopt and Load.
  std::vector<checkpoint::TensorRun> Runs();
  // The parameters as they are now, as at the start of a run.
  absl::Status Restart();
  // As of the checkpoint; of one that has none, as Restart. Errors as Checkpoint::Read.
  absl::Status Load(const checkpoint::Checkpoint& checkpoint);

  // Bytes that a contribution to a fragment has, and that this keeps.
  uint64_t contribution_bytes(uint32_t fragment) const;
  uint64_t kept_bytes() const;

 private:
  struct Extent {
    size_t view = 0;          // index in Parameters::Pull's
    engine::StateView shape;  // without values
    std::vector<float> outer, momentum;
  };
  OuterState(Parameters* parameters, const Sync& sync);

  Parameters* const parameters_;
  const Sync sync_;
  mutable absl::Mutex mutex_;  // for State; only the owner's thread writes
  std::vector<std::vector<Extent>> fragments_;
  std::vector<uint64_t> exchanges_;
};

}  // namespace muster::trainer
