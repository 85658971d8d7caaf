#include "worker/engine/offloaded_inputs.h"

#include <ATen/ops/as_strided.h>
#include <ATen/ops/zeros.h>

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "strategies/schedule/memory.h"
#include "worker/engine/failed.h"

namespace muster::engine {
namespace {

constexpr int64_t kInputAlignment = 64;

// All elements, in the order in which they lie in memory. REQUIRES: there are no gaps between them.
at::Tensor Flat(const at::Tensor& t) { return t.as_strided({t.numel()}, {1}); }

}  // namespace

OffloadedInputs::OffloadedInputs(const Options& options)
    : options_(options), of_unit_(static_cast<size_t>(options.inventory->units_size())) {
  for (const Op& op : options.schedule->ops) {
    const InputUse use = Traits(op.kind).inputs;
    if (use == InputUse::kOffload) of_unit_[op.unit].host = op.slot;
    if (use == InputUse::kFetch) of_unit_[op.unit].device = op.slot;
  }
  const auto sizes = [&](SlotPool pool) {
    return InputSlots(*options.schedule, pool, *options.inventory, options.samples);
  };
  for (const uint64_t bytes : sizes(SlotPool::kHostInputs)) {
    host_slots_.push_back(options.host->Zeros(static_cast<int64_t>(bytes), at::kByte));
  }
  for (const uint64_t bytes : sizes(SlotPool::kInputs)) {
    slots_.push_back(at::zeros({static_cast<int64_t>(bytes)}, at::TensorOptions(at::kByte).device(options.device)));
  }
}

at::Tensor OffloadedInputs::View(const at::Tensor& slot, const Layout& layout) {
  int64_t elements = 1;
  for (const int64_t n : layout.sizes) elements *= n;
  const int64_t bytes = elements * static_cast<int64_t>(at::elementSize(layout.dtype));
  // With its own version counter, so that autograd accepts a slot that is used again.
  return slot.variable_data()
      .narrow(0, layout.begin, bytes)
      .view(layout.dtype)
      .as_strided(layout.sizes, layout.strides);
}

void OffloadedInputs::Offload(const Op& op, const units::Activations& input) {
  OfUnit& unit = of_unit_[op.unit];
  const at::Tensor& slot = host_slots_[unit.host];
  unit.input.clear();
  int64_t begin = 0;
  for (const at::Tensor& tensor : input) {
    const at::Tensor from = tensor.is_non_overlapping_and_dense() ? tensor : tensor.contiguous();
    const int64_t bytes = static_cast<int64_t>(from.nbytes());
    if (begin + bytes > slot.numel()) {
      throw Failed{absl::InvalidArgumentError(absl::StrCat(
          "offload.activations: the input of ", options_.inventory->units(op.unit).name(), " takes ",
          FormatBytes(static_cast<uint64_t>(begin + bytes)), ", planned are ",
          FormatBytes(static_cast<uint64_t>(slot.numel())),
          "; its microbatch is larger than the job's, or the unit before it gives more than its inventory says"))};
    }
    const Layout layout{begin, from.sizes().vec(), from.strides().vec(), from.scalar_type()};
    Flat(View(slot, layout)).copy_(Flat(from), /*non_blocking=*/true);
    begin += (bytes + kInputAlignment - 1) / kInputAlignment * kInputAlignment;
    unit.input.push_back(layout);
  }
  options_.host->Evict(slot);
}

units::Activations OffloadedInputs::Fetch(const Op& op) {
  const OfUnit& unit = of_unit_[op.unit];
  units::Activations input;
  for (const Layout& layout : unit.input) {
    input.push_back(View(slots_[unit.device], layout));
    Flat(input.back()).copy_(Flat(View(host_slots_[unit.host], layout)), /*non_blocking=*/true);
  }
  options_.host->Evict(host_slots_[unit.host]);
  return input;
}

void OffloadedInputs::EndUse(int32_t unit) {
  if (!options_.poison) return;
  for (const Layout& layout : of_unit_[unit].input) {
    View(slots_[of_unit_[unit].device], layout).fill_(std::numeric_limits<double>::quiet_NaN());
  }
}

}  // namespace muster::engine
