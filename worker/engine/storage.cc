#include "worker/engine/storage.h"

#include <ATen/ops/as_strided.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "strategies/schedule/memory.h"
#include "worker/engine/norm.h"

namespace muster::engine {
namespace {

// Finds each unit's place in its slot of one pool.
template <typename Slotted>
void FindPlaces(const Schedule& schedule, SlotPool pool, const std::vector<int64_t>& begin,
                std::vector<Slotted>& places) {
  for (const Op& op : schedule.ops) {
    if (Traits(op.kind).slots != pool || op.slot < 0) continue;
    for (int32_t u = op.unit; u < op.unit_end; ++u) places[u] = {op.slot, begin[u] - begin[op.unit]};
  }
}

std::vector<at::Tensor> Buffers(const std::vector<uint64_t>& elements, const at::TensorOptions& options) {
  std::vector<at::Tensor> buffers;
  for (const uint64_t n : elements) buffers.push_back(at::zeros({static_cast<int64_t>(n)}, options));
  return buffers;
}

}  // namespace

Storage::Storage(const Options& options)
    : inventory_(options.inventory),
      table_(options.table),
      schedule_(options.schedule),
      shard_(options.shard),
      poison_(options.poison),
      units_(partition::OwnedUnits(*options.table, *options.inventory)),
      slotted_(units_.size()),
      gradient_slotted_(units_.size()),
      reduced_(units_.size()) {
  int64_t all = 0, own = 0;
  for (int32_t u = 0; u < inventory_->units_size(); ++u) {
    begin_.push_back(all);
    own_begin_.push_back(own);
    mine_begin_.push_back(mine_.size());
    const auto& tensors = units_[u].flat.tensors;
    for (size_t i = 0; i < tensors.size(); ++i) places_[tensors[i].name] = {u, i};
    for (const partition::OwnedRange& range : units_[u].ranges) {
      if (range.shard != shard_) continue;
      const int64_t length = static_cast<int64_t>(range.end - range.begin);
      mine_.push_back({u, static_cast<int64_t>(range.begin), length, own});
      own += length;
    }
    all += Elements(u);
  }
  begin_.push_back(all);
  own_begin_.push_back(own);
  mine_begin_.push_back(mine_.size());

  const at::TensorOptions fp32 = at::TensorOptions(at::kFloat).device(options.device);
  const at::TensorOptions compute = fp32.dtype(options.compute), narrow = fp32.dtype(options.reduce);
  const bool narrows =
      options.reduce != at::kFloat &&
      std::any_of(schedule_->ops.begin(), schedule_->ops.end(), [](const Op& op) { return ReducesGradients(op.kind); });
  std::vector<uint64_t> elements;
  for (const partition::OwnedUnit& unit : units_) elements.push_back(unit.flat.elements);
  FindPlaces(*schedule_, SlotPool::kParameters, begin_, slotted_);
  FindPlaces(*schedule_, SlotPool::kGradients, begin_, gradient_slotted_);
  slots_ = Buffers(GatherSlots(*schedule_, elements), compute);
  if (slots_.empty()) computed_ = at::zeros({all}, compute);
  master_within_ = slots_.empty() && options.compute == at::kFloat;
  if (!master_within_) master_ = at::zeros({own}, fp32);
  const std::vector<uint64_t> gradient_slots = GradientSlots(*schedule_, elements);
  gradient_slots_ = Buffers(gradient_slots, fp32);
  if (gradient_slots_.empty()) {
    gradients_ = at::zeros({all}, fp32);
    if (narrows) travelling_ = at::zeros({all}, narrow);
  } else {
    own_gradients_ = at::zeros({own}, fp32);
    if (narrows) travelling_slots_ = Buffers(gradient_slots, narrow);
  }
  FindExtents();
}

void Storage::FindExtents() {
  std::map<std::string, const Tensor*> tensors;
  for (const Unit& unit : inventory_->units()) {
    for (const Tensor& tensor : unit.tensors()) tensors[tensor.name()] = &tensor;
  }
  for (const Mine& mine : mine_) {
    for (const partition::FlatTensor& flat : units_[mine.unit].flat.tensors) {
      const int64_t begin = std::max(mine.begin, static_cast<int64_t>(flat.begin)),
                    end = std::min(mine.begin + mine.length, static_cast<int64_t>(flat.begin + flat.elements));
      if (begin >= end) continue;
      extents_.push_back({tensors.at(flat.name), begin - static_cast<int64_t>(flat.begin), end - begin,
                          mine.own + begin - mine.begin, Master(mine).narrow(0, begin - mine.begin, end - begin)});
    }
  }
}

at::Tensor Storage::Computed(int32_t unit) const {
  const Slotted& place = slotted_[unit];
  if (place.slot >= 0) return slots_[place.slot].narrow(0, place.begin, Elements(unit));
  // A unit without elements is never gathered.
  return computed_.defined() ? computed_.narrow(0, begin_[unit], Elements(unit)) : slots_[0].narrow(0, 0, 0);
}

at::Tensor Storage::Gradient(int32_t unit) const {
  const Slotted& place = gradient_slotted_[unit];
  if (place.slot >= 0) return gradient_slots_[place.slot].narrow(0, place.begin, Elements(unit));
  return gradients_.defined() ? gradients_.narrow(0, begin_[unit], Elements(unit)) : own_gradients_.narrow(0, 0, 0);
}

at::Tensor Storage::Travelling(int32_t unit) const {
  const Slotted& place = gradient_slotted_[unit];
  if (travelling_.defined()) return travelling_.narrow(0, begin_[unit], Elements(unit));
  if (place.slot < 0 || travelling_slots_.empty()) return Gradient(unit);
  return travelling_slots_[place.slot].narrow(0, place.begin, Elements(unit));
}

at::Tensor Storage::Master(const Mine& mine) const {
  if (master_within_) return Computed(mine.unit).narrow(0, mine.begin, mine.length);
  return master_.narrow(0, mine.own, mine.length);
}

at::Tensor Storage::OwnedGradient(const Mine& mine) const {
  if (gradients_.defined()) return Gradient(mine.unit).narrow(0, mine.begin, mine.length);
  return own_gradients_.narrow(0, mine.own, mine.length);
}

absl::Span<const Storage::Mine> Storage::MineOf(int32_t unit, int32_t unit_end) const {
  return absl::MakeSpan(mine_).subspan(mine_begin_[unit], mine_begin_[unit_end] - mine_begin_[unit]);
}

std::vector<units::Parameter> Storage::Parameters(int32_t unit) const {
  std::vector<units::Parameter> parameters;
  const auto add = [&](const std::string& name) {
    const auto& [owner, index] = places_.at(name);
    const partition::FlatTensor& flat = units_[owner].flat.tensors[index];
    std::vector<int64_t> shape;
    for (const Tensor& tensor : inventory_->units(owner).tensors()) {
      if (tensor.name() == name) shape.assign(tensor.shape().begin(), tensor.shape().end());
    }
    const int64_t begin = static_cast<int64_t>(flat.begin), elements = static_cast<int64_t>(flat.elements);
    // With its own version counter, so that autograd accepts a slot that is gathered again.
    parameters.push_back({Computed(owner).narrow(0, begin, elements).view(shape).variable_data(),
                          Gradient(owner).narrow(0, begin, elements).view(shape)});
  };
  for (const Tensor& tensor : inventory_->units(unit).tensors()) add(tensor.name());
  for (const Borrow& borrow : inventory_->units(unit).borrows()) add(borrow.tensor());
  return parameters;
}

std::vector<Run> Storage::Runs() const {
  struct RunCandidate {
    size_t mine;
    int64_t begin, length;  // in mine_[mine]
    bool decay;
  };
  std::vector<RunCandidate> candidates;
  for (size_t m = 0; m < mine_.size(); ++m) {
    const Mine& mine = mine_[m];
    const partition::FlatUnit& flat = units_[mine.unit].flat;
    for (size_t i = 0; i < flat.tensors.size(); ++i) {
      // Padding belongs to the tensor before it: its gradient and state are zero, so it stays zero.
      const uint64_t next = i + 1 < flat.tensors.size() ? flat.tensors[i + 1].begin : flat.elements;
      const int64_t begin = std::max(mine.begin, static_cast<int64_t>(flat.tensors[i].begin)),
                    end = std::min(mine.begin + mine.length, static_cast<int64_t>(next));
      if (begin >= end || flat.tensors[i].frozen) continue;
      candidates.push_back({m, begin - mine.begin, end - begin, flat.tensors[i].decay});
    }
  }
  // Merges neighboring runs that are contiguous in every buffer.
  std::vector<Run> runs;
  const auto ends_at = [](const at::Tensor& t) { return t.const_data_ptr<float>() + t.numel(); };
  const auto join = [](const at::Tensor& t, int64_t more) {
    return t.as_strided({t.numel() + more}, {1}, t.storage_offset());
  };
  for (const RunCandidate& candidate : candidates) {
    const Mine& mine = mine_[candidate.mine];
    Run run{Master(mine).narrow(0, candidate.begin, candidate.length),
            OwnedGradient(mine).narrow(0, candidate.begin, candidate.length), mine.own + candidate.begin,
            candidate.length, candidate.decay};
    if (!runs.empty() && runs.back().decay == run.decay && runs.back().begin + runs.back().length == run.begin &&
        ends_at(runs.back().parameter) == run.parameter.const_data_ptr<float>() &&
        ends_at(runs.back().gradient) == run.gradient.const_data_ptr<float>()) {
      Run& before = runs.back();
      before.parameter = join(before.parameter, run.length);
      before.gradient = join(before.gradient, run.length);
      before.length += run.length;
    } else {
      runs.push_back(std::move(run));
    }
  }
  return runs;
}

void Storage::ZeroGradients() {
  if (gradients_.defined()) gradients_.zero_();
  std::fill(reduced_.begin(), reduced_.end(), false);
}

void Storage::Renew() {
  if (master_within_ || !computed_.defined() || !OwnsAll()) return;
  computed_.copy_(master_);
}

std::vector<at::Tensor> Storage::BeginGather(const Op& op) {
  if (!master_within_) {
    for (const Mine& mine : MineOf(op.unit, op.unit_end)) {
      Computed(mine.unit).narrow(0, mine.begin, mine.length).copy_(Master(mine));
    }
  }
  std::vector<at::Tensor> buffers;
  for (int32_t u = op.unit; u < op.unit_end; ++u) buffers.push_back(Computed(u));
  return buffers;
}

std::vector<collectives::RankShare> Storage::SharesOf(const Op& op, const std::vector<at::Tensor>& buffers) const {
  std::vector<collectives::RankShare> shares;
  for (int32_t u = op.unit; u < op.unit_end; ++u) {
    for (const partition::OwnedRange& range : units_[u].ranges) {
      const int64_t begin = static_cast<int64_t>(range.begin), end = static_cast<int64_t>(range.end);
      shares.push_back({buffers[u - op.unit].narrow(0, begin, end - begin), static_cast<int>(range.shard)});
    }
  }
  return shares;
}

void Storage::Release(const Op& op) {
  for (int32_t u = op.unit; poison_ && u < op.unit_end; ++u) {
    if (slotted_[u].slot >= 0) Computed(u).fill_(std::numeric_limits<double>::quiet_NaN());
  }
}

void Storage::OpenGradients(const Op& op) {
  gradient_slots_[op.slot].narrow(0, 0, begin_[op.unit_end] - begin_[op.unit]).zero_();
}

std::vector<at::Tensor> Storage::BeginReduce(const Op& op) {
  std::vector<at::Tensor> buffers;
  for (int32_t u = op.unit; u < op.unit_end; ++u) {
    const at::Tensor gradient = Gradient(u), travelling = Travelling(u);
    if (!travelling.is_same(gradient) && travelling.scalar_type() != at::kFloat) travelling.copy_(gradient);
    buffers.push_back(travelling);
  }
  return buffers;
}

void Storage::EndReduce(const Op& op) {
  for (const Mine& mine : MineOf(op.unit, op.unit_end)) {
    const at::Tensor own = OwnedGradient(mine), sum = Travelling(mine.unit).narrow(0, mine.begin, mine.length);
    if (own.const_data_ptr() == sum.const_data_ptr()) continue;  // reduced in place
    if (reduced_[mine.unit]) {
      own.add_(sum);
    } else {
      own.copy_(sum);
    }
  }
  std::fill(reduced_.begin() + op.unit, reduced_.begin() + op.unit_end, true);
}

std::vector<at::Tensor> Storage::BeginAllReduce(const Op& op) {
  const auto whole = [&](const at::Tensor& t, const std::vector<int64_t>& at) {
    return t.narrow(0, at[op.unit], at[op.unit_end] - at[op.unit]);
  };
  if (own_gradients_.defined()) return {whole(own_gradients_, own_begin_)};
  if (OwnsAll()) {
    if (!travelling_.defined()) return {whole(gradients_, begin_)};
    whole(travelling_, begin_).copy_(whole(gradients_, begin_));
    return {whole(travelling_, begin_)};
  }
  std::vector<at::Tensor> owned;
  for (const Mine& mine : MineOf(op.unit, op.unit_end)) owned.push_back(OwnedGradient(mine));
  return owned;
}

void Storage::EndAllReduce(const Op& op) {
  if (!travelling_.defined() || !OwnsAll()) return;
  const int64_t begin = begin_[op.unit], elements = begin_[op.unit_end] - begin;
  gradients_.narrow(0, begin, elements).copy_(travelling_.narrow(0, begin, elements));
}

std::vector<int32_t> Storage::UsedBy(int32_t unit) const {
  std::vector<int32_t> used = {unit};
  for (const Borrow& borrow : inventory_->units(unit).borrows()) used.push_back(places_.at(borrow.tensor()).first);
  return used;
}

std::vector<Access> Storage::Accesses(const Op& op) const {
  std::vector<Access> accesses;
  const OpTraits& traits = Traits(op.kind);
  const auto each_unit = [&](auto&& touch) {
    for (int32_t u = op.unit; u < op.unit_end; ++u) touch(u);
  };
  const auto parameters = [&](int32_t u) { accesses.push_back(Reads(Computed(u))); };
  const auto all_owned = [&](auto&& touch) {
    for (const Mine& mine : mine_) touch(mine);
  };
  switch (traits.parameters) {
    case ParameterUse::kNone:
      break;
    case ParameterUse::kGather:
      for (const Mine& mine : MineOf(op.unit, op.unit_end)) accesses.push_back(Reads(Master(mine)));
      each_unit([&](int32_t u) { accesses.push_back(Writes(Computed(u))); });
      break;
    case ParameterUse::kReadIfBackwardDoes:
      if (inventory_->units(op.unit).backward_without_parameters()) break;
      [[fallthrough]];
    case ParameterUse::kRead:
      for (const int32_t u : UsedBy(op.unit)) parameters(u);
      break;
    case ParameterUse::kRelease:
      each_unit([&](int32_t u) {
        if (slotted_[u].slot >= 0) accesses.push_back(Writes(Computed(u)));
      });
      break;
  }
  switch (traits.gradients) {
    case GradientUse::kNone:
      break;
    case GradientUse::kOpen:
      each_unit([&](int32_t u) { accesses.push_back(Writes(Gradient(u))); });
      break;
    case GradientUse::kAdd:
      for (const int32_t u : UsedBy(op.unit)) accesses.push_back(Writes(Gradient(u)));
      break;
    case GradientUse::kReduce:
    case GradientUse::kAllReduce:
      each_unit([&](int32_t u) {
        // What one shard owns is summed in place.
        if (traits.gradients == GradientUse::kAllReduce && !OwnsAll()) return;
        accesses.push_back(Writes(Gradient(u)));
        accesses.push_back(Writes(Travelling(u)));
      });
      for (const Mine& mine : MineOf(op.unit, op.unit_end)) accesses.push_back(Writes(OwnedGradient(mine)));
      break;
    case GradientUse::kMeasure:
      all_owned([&](const Mine& mine) { accesses.push_back(Reads(OwnedGradient(mine))); });
      break;
    case GradientUse::kApply:
      all_owned([&](const Mine& mine) {
        accesses.push_back(Reads(OwnedGradient(mine)));
        accesses.push_back(Writes(Master(mine)));
      });
      if (computed_.defined()) accesses.push_back(Writes(computed_));
      break;
  }
  return accesses;
}

at::Tensor Storage::OwnedNorm() const {
  if (own_gradients_.defined()) return FlatNorm(own_gradients_);
  if (OwnsAll()) return FlatNorm(gradients_);  // zeros between the tensors
  std::vector<at::Tensor> norms;
  for (const Mine& mine : mine_) norms.push_back(FlatNorm(OwnedGradient(mine)).view({1}));
  if (norms.empty()) return at::zeros({}, gradients_.options());
  return at::linalg_vector_norm(at::cat(norms));
}

}  // namespace muster::engine
