#include "worker/engine/storage.h"

#include <ATen/ops/as_strided.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "models/inventory.h"
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

void Storage::Arrangement::Add(partition::OwnedUnit unit, uint32_t shard) {
  if (begin.empty()) begin = own_begin = {0}, mine_begin = {0};
  int64_t own = own_begin.back();
  for (const partition::OwnedRange& range : unit.ranges) {
    if (range.shard != shard) continue;
    const int64_t length = static_cast<int64_t>(range.end - range.begin);
    mine.push_back({static_cast<int32_t>(units.size()), static_cast<int64_t>(range.begin), length, own});
    own += length;
  }
  begin.push_back(begin.back() + static_cast<int64_t>(unit.flat.elements));
  own_begin.push_back(own);
  mine_begin.push_back(mine.size());
  units.push_back(std::move(unit));
}

Storage::Storage(const Options& options)
    : inventory_(options.inventory),
      table_(options.table),
      schedule_(options.schedule),
      shard_(options.shard),
      shards_inside_(options.shards_inside),
      replicas_inside_(options.replicas_inside),
      poison_(options.poison),
      host_(options.host) {
  for (partition::OwnedUnit& unit : partition::OwnedUnits(*table_, *inventory_)) {
    const int32_t u = static_cast<int32_t>(all_.units.size());
    partition::OwnedUnit trained = partition::TrainedPart(unit);
    size_t next = 0;
    for (size_t i = 0; i < unit.flat.tensors.size(); ++i) {
      const partition::FlatTensor& tensor = unit.flat.tensors[i];
      const bool frozen = tensor.frozen;
      places_[tensor.name] = {u, i, frozen ? -1 : static_cast<int64_t>(trained.flat.tensors[next++].begin)};
    }
    all_.Add(std::move(unit), shard_);
    trained_.Add(std::move(trained), shard_);
  }
  const size_t units = all_.units.size();
  slotted_.resize(units), gradient_slotted_.resize(units), reduced_.resize(units), offloaded_.resize(units);
  const int64_t all = all_.begin.back(), own = all_.own_begin.back();
  const int64_t all_trained = trained_.begin.back(), own_trained = trained_.own_begin.back();
  const at::TensorOptions fp32 = at::TensorOptions(at::kFloat).device(options.device);
  const at::TensorOptions compute = fp32.dtype(options.compute), narrow = fp32.dtype(options.reduce);
  const bool narrows =
      options.reduce != at::kFloat &&
      std::any_of(schedule_->ops.begin(), schedule_->ops.end(), [](const Op& op) { return ReducesGradients(op.kind); });
  std::vector<uint64_t> elements, trained_elements;
  for (const partition::OwnedUnit& unit : all_.units) elements.push_back(unit.flat.elements);
  for (const partition::OwnedUnit& unit : trained_.units) trained_elements.push_back(unit.flat.elements);
  FindPlaces(*schedule_, SlotPool::kParameters, all_.begin, slotted_);
  FindPlaces(*schedule_, SlotPool::kGradients, trained_.begin, gradient_slotted_);
  slots_ = Buffers(GatherSlots(*schedule_, elements), compute);
  if (slots_.empty()) computed_ = at::zeros({all}, compute);
  FindParts();
  const bool keeps_range = options.compute != at::kHalf;
  master_within_ = slots_.empty() && options.compute == options.master && !offloads();
  frozen_within_ = slots_.empty() && keeps_range && !offloads();
  const auto stored = [&](int64_t length, at::ScalarType dtype) {
    return offloads() ? host_->Zeros(length, dtype) : at::zeros({length}, fp32.dtype(dtype));
  };
  if (!master_within_) master_ = stored(own_trained, options.master);
  if (!frozen_within_) frozen_ = stored(own - own_trained, keeps_range ? options.compute : at::kFloat);
  if (offloads()) {
    const auto any = [&](auto&& is) { return std::any_of(schedule_->ops.begin(), schedule_->ops.end(), is); };
    host_gradients_ = host_->Zeros(own_trained, at::kFloat);
    if (options.compute != options.master) host_computed_ = host_->Zeros(own_trained, options.compute);
    if (!keeps_range) host_frozen_ = host_->Zeros(own - own_trained, options.compute);
    const bool into_slots = any([](const Op& op) { return op.kind == OpKind::kFetch && op.slot >= 0; });
    if (!slots_.empty() && !into_slots) own_computed_ = at::zeros({own}, compute);
    over_replicas_ = any([](const Op& op) { return op.kind == OpKind::kAllReduce; });
  }
  const std::vector<uint64_t> gradient_slots = GradientSlots(*schedule_, trained_elements);
  gradient_slots_ = Buffers(gradient_slots, fp32);
  if (gradient_slots_.empty()) {
    gradients_ = at::zeros({all_trained}, fp32);
    if (narrows) travelling_ = at::zeros({all_trained}, narrow);
  } else {
    if (!offloads() || over_replicas_) own_gradients_ = at::zeros({own_trained}, fp32);
    if (narrows) travelling_slots_ = Buffers(gradient_slots, narrow);
  }
  const int64_t scratch = PlaceFrozenVectors();
  if (scratch > 0) scratch_ = at::zeros({scratch}, fp32);
  FindExtents();
  FindTied(options.compute, options.device);
}

void Storage::FindTied(at::ScalarType compute, at::Device device) {
  const at::TensorOptions fp32 = at::TensorOptions(at::kFloat).device(device);
  std::map<std::string, int32_t> unit_of;
  for (int32_t u = 0; u < inventory_->units_size(); ++u) unit_of[inventory_->units(u).name()] = u;
  for (size_t t = 0; t < schedule_->tied.size(); ++t) {
    const TiedTensor& tensor = inventory_->tied(static_cast<int>(t));
    const bool owned = places_.contains(tensor.tensor().name());
    const std::vector<int64_t> shape(tensor.tensor().shape().begin(), tensor.tensor().shape().end());
    Tied& tied = tied_.emplace_back();
    tied.unit = unit_of.at(owned ? tensor.owner() : tensor.user()), tied.owned = owned;
    tied.name = tensor.tensor().name();
    tied.parameters = schedule_->tied[t].parameters;
    if (!owned) tied.value = at::zeros(shape, fp32.dtype(compute));
    if (tensor.tensor().frozen()) continue;
    tied.gradient = schedule_->tied[t].gradient;
    tied.added = at::zeros(shape, fp32);
  }
}

template <typename Visit>
void Storage::EachTied(const Op& op, const Visit& visit) const {
  for (const Tied& tied : tied_) {
    if (tied.unit == op.unit && (op.group == tied.parameters || op.group == tied.gradient)) visit(tied);
  }
}

std::vector<at::Tensor> Storage::TiedParameters(const Op& op) const {
  std::vector<at::Tensor> tensors;
  EachTied(op, [&](const Tied& tied) {
    if (!tied.owned) return tensors.push_back(tied.value.view({-1}));
    const Place& place = places_.at(tied.name);
    const partition::FlatTensor& flat = all_.units[place.unit].flat.tensors[place.index];
    tensors.push_back(
        Computed(place.unit).narrow(0, static_cast<int64_t>(flat.begin), static_cast<int64_t>(flat.elements)));
  });
  return tensors;
}

std::vector<at::Tensor> Storage::TiedGradients(const Op& op) const {
  std::vector<at::Tensor> tensors;
  EachTied(op, [&](const Tied& tied) {
    if (tied.added.defined()) tensors.push_back(tied.added.view({-1}));
  });
  return tensors;
}

void Storage::AddTied(const Op& op) {
  EachTied(op, [&](const Tied& tied) {
    if (!tied.added.defined()) return;
    Gradient(tied.unit).narrow(0, places_.at(tied.name).trained, tied.added.numel()).add_(tied.added.view({-1}));
  });
}

// Those of a unit that lie together do so in the scratch, too, so that units may join them. Returns the most elements
// that a unit needs.
int64_t Storage::PlaceFrozenVectors() {
  int64_t most = 0;
  for (int32_t u = 0; u < inventory_->units_size(); ++u) {
    std::map<std::string, bool> vectors;
    for (const Tensor& tensor : inventory_->units(u).tensors()) {
      vectors[tensor.name()] = tensor.frozen() && tensor.shape_size() < 2;
    }
    const partition::FlatUnit& flat = all_.units[static_cast<size_t>(u)].flat;
    int64_t at = 0;
    for (size_t i = 0; i < flat.tensors.size(); ++i) {
      if (!vectors.at(flat.tensors[i].name)) continue;
      places_.at(flat.tensors[i].name).scratch = at;
      const uint64_t next = i + 1 < flat.tensors.size() ? flat.tensors[i + 1].begin : flat.elements;
      at += static_cast<int64_t>(next - flat.tensors[i].begin);
    }
    most = std::max(most, at);
  }
  return most;
}

// Padding goes with the tensor before it.
void Storage::FindParts() {
  int64_t frozen = 0;
  parts_begin_ = {0};
  for (int32_t u = 0; u < static_cast<int32_t>(all_.units.size()); ++u) {
    const partition::FlatUnit& flat = all_.units[u].flat;
    const size_t first = parts_.size();
    for (const Mine& mine : all_.MineOf(u, u + 1)) {
      for (size_t i = 0; i < flat.tensors.size(); ++i) {
        const int64_t start = static_cast<int64_t>(flat.tensors[i].begin),
                      next =
                          static_cast<int64_t>(i + 1 < flat.tensors.size() ? flat.tensors[i + 1].begin : flat.elements);
        const int64_t begin = std::max(mine.begin, start), end = std::min(mine.begin + mine.length, next);
        if (begin >= end) continue;
        Part part{u, begin, end - begin, flat.tensors[i].frozen, frozen, mine.own + begin - mine.begin};
        if (part.frozen) {
          frozen += part.length;
        } else {
          const int64_t at = places_.at(flat.tensors[i].name).trained + begin - start;
          for (const Mine& its : trained_.MineOf(u, u + 1)) {
            if (its.begin <= at && at < its.begin + its.length) part.at = its.own + at - its.begin;
          }
        }
        Part* const last = parts_.size() > first ? &parts_.back() : nullptr;
        if (last != nullptr && last->frozen == part.frozen && last->begin + last->length == part.begin &&
            last->at + last->length == part.at && last->own + last->length == part.own) {
          last->length += part.length;
        } else {
          parts_.push_back(part);
        }
      }
    }
    parts_begin_.push_back(parts_.size());
  }
}

void Storage::FindExtents() {
  std::map<std::string, const Tensor*> tensors;
  for (const Unit& unit : inventory_->units()) {
    for (const Tensor& tensor : unit.tensors()) tensors[tensor.name()] = &tensor;
  }
  for (const Part& part : parts_) {
    for (const partition::FlatTensor& flat : all_.units[part.unit].flat.tensors) {
      const int64_t start = static_cast<int64_t>(flat.begin), begin = std::max(part.begin, start),
                    end = std::min(part.begin + part.length, start + static_cast<int64_t>(flat.elements));
      if (begin >= end) continue;
      const int64_t in_part = begin - part.begin;
      extents_.push_back({tensors.at(flat.name), begin - start, end - begin, part.frozen ? -1 : part.at + in_part,
                          Stored(part).narrow(0, in_part, end - begin),
                          models::Counts(*inventory_, *tensors.at(flat.name))});
    }
  }
}

at::Tensor Storage::Computed(int32_t unit) const {
  const Slotted& place = slotted_[unit];
  const int64_t elements = all_.Elements(unit);
  if (place.slot >= 0) return slots_[place.slot].narrow(0, place.begin, elements);
  // A unit without elements is never gathered.
  return computed_.defined() ? computed_.narrow(0, all_.begin[unit], elements) : slots_[0].narrow(0, 0, 0);
}

at::Tensor Storage::Gradient(int32_t unit) const {
  const Slotted& place = gradient_slotted_[unit];
  const int64_t elements = trained_.Elements(unit);
  if (place.slot >= 0) return gradient_slots_[place.slot].narrow(0, place.begin, elements);
  // A unit without elements is never reduced.
  return gradients_.defined() ? gradients_.narrow(0, trained_.begin[unit], elements)
                              : gradient_slots_[0].narrow(0, 0, 0);
}

at::Tensor Storage::Travelling(int32_t unit) const {
  const Slotted& place = gradient_slotted_[unit];
  if (travelling_.defined()) return travelling_.narrow(0, trained_.begin[unit], trained_.Elements(unit));
  if (place.slot < 0 || travelling_slots_.empty()) return Gradient(unit);
  return travelling_slots_[place.slot].narrow(0, place.begin, trained_.Elements(unit));
}

at::Tensor Storage::Stored(const Part& part) const {
  if (IsWithin(part)) return Computed(part);
  return (part.frozen ? frozen_ : master_).narrow(0, part.at, part.length);
}

at::Tensor Storage::OwnedGradient(const Mine& mine) const {
  if (own_gradients_.defined()) return own_gradients_.narrow(0, mine.own, mine.length);
  // Of a slot, what was reduced there, and goes on to host memory.
  const at::Tensor whole = gradients_.defined() ? Gradient(mine.unit) : Travelling(mine.unit);
  return whole.narrow(0, mine.begin, mine.length);
}

at::Tensor Storage::UpdateGradient(const Mine& mine) const {
  return offloads() ? host_gradients_.narrow(0, mine.own, mine.length) : OwnedGradient(mine);
}

at::Tensor Storage::ToFetch(const Part& part) const {
  const at::Tensor& computed = part.frozen ? host_frozen_ : host_computed_;
  return computed.defined() ? computed.narrow(0, part.at, part.length) : Stored(part);
}

at::Tensor Storage::Fetched(const Part& part) const {
  if (own_computed_.defined()) return own_computed_.narrow(0, part.own, part.length);
  return Computed(part);
}

std::vector<units::Parameter> Storage::Parameters(int32_t unit) const {
  std::vector<units::Parameter> parameters;
  const auto add = [&](const std::string& name) {
    const Place& place = places_.at(name);
    const partition::FlatTensor& flat = all_.units[place.unit].flat.tensors[place.index];
    std::vector<int64_t> shape;
    for (const Tensor& tensor : inventory_->units(place.unit).tensors()) {
      if (tensor.name() == name) shape.assign(tensor.shape().begin(), tensor.shape().end());
    }
    const int64_t begin = static_cast<int64_t>(flat.begin), elements = static_cast<int64_t>(flat.elements);
    at::Tensor gradient;
    if (place.trained >= 0) {
      gradient = Gradient(place.unit).narrow(0, place.trained, elements).view(shape);
    } else if (place.scratch >= 0) {
      gradient = scratch_.narrow(0, place.scratch, elements).view(shape);
    }
    // With its own version counter, so that autograd accepts a slot that is gathered again.
    parameters.push_back(
        {Computed(place.unit).narrow(0, begin, elements).view(shape).variable_data(), std::move(gradient)});
  };
  for (const Tensor& tensor : inventory_->units(unit).tensors()) add(tensor.name());
  for (const Borrow& borrow : inventory_->units(unit).borrows()) {
    if (places_.contains(borrow.tensor())) {
      add(borrow.tensor());
      continue;
    }
    for (const Tied& tied : tied_) {
      if (tied.name == borrow.tensor()) parameters.push_back({tied.value.variable_data(), tied.added});
    }
  }
  return parameters;
}

std::vector<Run> Storage::Runs(int32_t unit, int32_t unit_end, IsWhole whole) const {
  std::map<std::string, const Tensor*> alone;
  for (int32_t u = unit; u < unit_end; ++u) {
    for (const Tensor& tensor : inventory_->units(u).tensors()) {
      if (whole(u, tensor)) alone[tensor.name()] = &tensor;
    }
  }
  struct RunCandidate {
    size_t mine;
    int64_t begin, length;  // in trained_.mine[mine]
    bool decay;
    at::Tensor master, computed;
    const Tensor* whole;
  };
  const bool copies = computed_.defined() && !master_within_ && !offloads();
  // The part of what this rank owns that has all of these elements, by their number among those that are trained.
  const auto part_of = [this](int64_t own) -> const Part& {
    for (const Part& part : parts_) {
      if (!part.frozen && own >= part.at && own < part.at + part.length) return part;
    }
    TORCH_CHECK(false, "this rank does not own its trained element ", own);
  };
  std::vector<RunCandidate> candidates;
  for (size_t m = trained_.mine_begin[unit]; m < trained_.mine_begin[unit_end]; ++m) {
    const Mine& mine = trained_.mine[m];
    const partition::FlatUnit& flat = trained_.units[mine.unit].flat;
    for (size_t i = 0; i < flat.tensors.size(); ++i) {
      // Padding belongs to the tensor before it: its gradient and state are zero, so it stays zero.
      const uint64_t next = i + 1 < flat.tensors.size() ? flat.tensors[i + 1].begin : flat.elements;
      const int64_t first = static_cast<int64_t>(flat.tensors[i].begin), begin = std::max(mine.begin, first);
      int64_t end = std::min(mine.begin + mine.length, static_cast<int64_t>(next));
      if (begin >= end) continue;
      const auto found = alone.find(flat.tensors[i].name);
      const Tensor* const own = found == alone.end() ? nullptr : found->second;
      if (own != nullptr) {
        const int64_t elements = static_cast<int64_t>(flat.tensors[i].elements);
        TORCH_CHECK(begin == first && end >= first + elements, "this rank owns only a part of ", own->name());
        end = first + elements;
      }
      const int64_t number = mine.own + begin - mine.begin, length = end - begin;
      const Part& part = part_of(number);
      const auto there = [&](const at::Tensor& of_part) { return of_part.narrow(0, number - part.at, length); };
      candidates.push_back({m, begin - mine.begin, length, flat.tensors[i].decay, there(Stored(part)),
                            copies ? there(Computed(part)) : at::Tensor(), own});
    }
  }
  // Merges neighboring runs that are contiguous in every buffer.
  std::vector<Run> runs;
  const auto follows = [](const at::Tensor& before, const at::Tensor& t) {
    const auto begins_at = [](const at::Tensor& of) { return static_cast<const char*>(of.const_data_ptr()); };
    return !t.defined() || begins_at(before) + before.nbytes() == begins_at(t);
  };
  const auto join = [](const at::Tensor& t, int64_t more) {
    return t.defined() ? t.as_strided({t.numel() + more}, {1}, t.storage_offset()) : t;
  };
  for (const RunCandidate& candidate : candidates) {
    const Mine& mine = trained_.mine[candidate.mine];
    Run run{candidate.master, UpdateGradient(mine).narrow(0, candidate.begin, candidate.length),
            mine.own - FirstTrained(unit) + candidate.begin, candidate.length, candidate.decay};
    run.computed = candidate.computed;
    if (candidate.whole != nullptr) {
      run.shape.assign(candidate.whole->shape().begin(), candidate.whole->shape().end());
      runs.push_back(std::move(run));
    } else if (!runs.empty() && runs.back().shape.empty() && runs.back().decay == run.decay &&
               runs.back().begin + runs.back().length == run.begin && follows(runs.back().parameter, run.parameter) &&
               follows(runs.back().gradient, run.gradient) && follows(runs.back().computed, run.computed)) {
      Run& before = runs.back();
      before.parameter = join(before.parameter, run.length);
      before.gradient = join(before.gradient, run.length);
      before.computed = join(before.computed, run.length);
      before.length += run.length;
    } else {
      runs.push_back(std::move(run));
    }
  }
  return runs;
}

void Storage::ZeroGradients() {
  if (gradients_.defined()) gradients_.zero_();
  for (const Tied& tied : tied_) {
    if (!tied.owned && tied.added.defined()) tied.added.zero_();
  }
  std::fill(reduced_.begin(), reduced_.end(), false);
  std::fill(offloaded_.begin(), offloaded_.end(), false);
}

void Storage::Renew() {
  if (offloads()) {
    EndStep({.kind = OpKind::kOptimizerStep});
    if (host_frozen_.defined()) host_frozen_.copy_(frozen_);
    for (const Part& part : parts_) {
      if (computed_.defined() || own_computed_.defined()) Fetched(part).copy_(ToFetch(part));
    }
    return;
  }
  for (const Part& part : parts_) {
    if (computed_.defined() && !IsWithin(part)) Computed(part).copy_(Stored(part));
  }
}

at::Tensor Storage::OfStep(const Op& op, const at::Tensor& trained) const {
  const int32_t unit = std::max(0, op.unit), unit_end = op.unit < 0 ? inventory_->units_size() : op.unit_end;
  return trained.narrow(0, FirstTrained(unit), TrainedElements(unit, unit_end));
}

void Storage::BeginStep(const Op& op) const {
  for (const at::Tensor& read : {master_, host_gradients_}) host_->Expect(OfStep(op, read));
}

void Storage::EndStep(const Op& op) {
  if (host_computed_.defined()) {
    OfStep(op, host_computed_).copy_(OfStep(op, master_));
    host_->Evict(OfStep(op, host_computed_));
  }
  host_->Evict(OfStep(op, master_));
  host_->Evict(OfStep(op, host_gradients_));
}

// After a step, what is frozen is there.
void Storage::Fetch(const Op& op) {
  for (const Part& part : PartsOf(op.unit, op.unit_end)) {
    if (part.frozen && op.slot < 0) continue;
    host_->Expect(ToFetch(part));
    Fetched(part).copy_(ToFetch(part), /*non_blocking=*/true);
    host_->Evict(ToFetch(part));
  }
}

// Adds on the device, so that the host need not wait.
void Storage::Offload(const Op& op) {
  for (const Mine& mine : trained_.MineOf(op.unit, op.unit_end)) {
    const at::Tensor host = UpdateGradient(mine), own = OwnedGradient(mine);
    if (!offloaded_[mine.unit]) {
      host.copy_(own, /*non_blocking=*/true);
    } else if (own.is_cpu()) {
      host.add_(own);
    } else {
      host.copy_(host.to(own.device(), /*non_blocking=*/true).add_(own), /*non_blocking=*/true);
    }
  }
  std::fill(offloaded_.begin() + op.unit, offloaded_.begin() + op.unit_end, true);
}

std::vector<at::Tensor> Storage::BeginGather(const Op& op) {
  const bool has_own = GathersInPlace() || AxesOf(op) == kShardsInside;
  for (const Part& part : PartsOf(op.unit, op.unit_end)) {
    if (!has_own) Computed(part).copy_(Gathers(part));
  }
  std::vector<at::Tensor> buffers;
  for (int32_t u = op.unit; u < op.unit_end; ++u) buffers.push_back(Computed(u));
  return buffers;
}

std::vector<collectives::RankShare> Storage::Arrangement::Shares(
    const Op& op, const std::vector<at::Tensor>& buffers,
    absl::FunctionRef<std::optional<uint32_t>(uint32_t owner)> root) const {
  std::vector<collectives::RankShare> shares;
  for (int32_t u = op.unit; u < op.unit_end; ++u) {
    for (const partition::OwnedRange& range : units[u].ranges) {
      const std::optional<uint32_t> its = root(range.shard);
      if (!its.has_value()) continue;
      const int64_t first = static_cast<int64_t>(range.begin), end = static_cast<int64_t>(range.end);
      shares.push_back({buffers[u - op.unit].narrow(0, first, end - first), static_cast<int>(*its)});
    }
  }
  return shares;
}

std::optional<uint32_t> Storage::RootOf(const Op& op, uint32_t owner) const {
  const NodePlace its = NodePlaceOf(owner, shards_inside_);
  switch (AxesOf(op)) {
    case kShardsInside:
      return its.place;
    case kShardsBetween:
      if (its.place != NodePlaceOf(shard_, shards_inside_).place) return std::nullopt;
      return its.node;
    default:
      return owner;
  }
}

// Inside nodes: the ranges of each node's owners lie together.
std::vector<at::Tensor> Storage::Wholes(const Op& op, std::vector<at::Tensor> buffers) const {
  if (AxesOf(op) != kShardsInside) return buffers;
  std::vector<at::Tensor> wholes;
  for (const at::Tensor& buffer : buffers) {
    for (at::Tensor& whole : buffer.chunk(table_->shards() / shards_inside_)) wholes.push_back(std::move(whole));
  }
  return wholes;
}

std::vector<collectives::RankShare> Storage::ParameterShares(const Op& op,
                                                             const std::vector<at::Tensor>& buffers) const {
  return all_.Shares(op, buffers, [&](uint32_t owner) { return RootOf(op, owner); });
}

std::vector<collectives::RankShare> Storage::GradientShares(const Op& op,
                                                            const std::vector<at::Tensor>& buffers) const {
  return trained_.Shares(op, buffers, [&](uint32_t owner) { return RootOf(op, owner); });
}

void Storage::Release(const Op& op) {
  for (int32_t u = op.unit; poison_ && u < op.unit_end; ++u) {
    if (slotted_[u].slot >= 0) Computed(u).fill_(std::numeric_limits<double>::quiet_NaN());
  }
}

void Storage::OpenGradients(const Op& op) {
  gradient_slots_[op.slot].narrow(0, 0, trained_.begin[op.unit_end] - trained_.begin[op.unit]).zero_();
}

std::vector<at::Tensor> Storage::BeginReduce(const Op& op) {
  const bool first = AxesOf(op) != kShardsBetween;
  std::vector<at::Tensor> buffers;
  for (int32_t u = op.unit; u < op.unit_end; ++u) {
    const at::Tensor gradient = Gradient(u), travelling = Travelling(u);
    if (first && !travelling.is_same(gradient) && travelling.scalar_type() != at::kFloat) travelling.copy_(gradient);
    buffers.push_back(travelling);
  }
  return buffers;
}

void Storage::EndReduce(const Op& op) {
  for (const Mine& mine : trained_.MineOf(op.unit, op.unit_end)) {
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

namespace {

at::Tensor OfUnits(const at::Tensor& all, const std::vector<int64_t>& begin, const Op& op) {
  return all.narrow(0, begin[op.unit], begin[op.unit_end] - begin[op.unit]);
}

}  // namespace

// Where the rank owns all, they are summed in the reduce dtype.
void Storage::BeginSum(const Op& op) {
  if (!OwnsAll() || own_gradients_.defined() || !travelling_.defined()) return;
  OfUnits(travelling_, trained_.begin, op).copy_(OfUnits(gradients_, trained_.begin, op));
}

std::vector<Storage::Summed> Storage::AllSummed(const Op& op) const {
  if (own_gradients_.defined()) return {{OfUnits(own_gradients_, trained_.own_begin, op), FirstTrained(op.unit)}};
  if (OwnsAll()) {
    return {{OfUnits(travelling_.defined() ? travelling_ : gradients_, trained_.begin, op), FirstTrained(op.unit)}};
  }
  std::vector<Summed> owned;
  for (const Mine& mine : trained_.MineOf(op.unit, op.unit_end)) owned.push_back({OwnedGradient(mine), mine.own});
  return owned;
}

std::vector<collectives::RankShare> Storage::SummedParts(const Op& op) const {
  std::vector<collectives::RankShare> parts;
  for (const Summed& whole : AllSummed(op)) {
    for (uint32_t r = 0; r < replicas_inside_; ++r) {
      const NodePart part = NodePartOf(whole.values.numel(), replicas_inside_, r);
      parts.push_back({whole.values.narrow(0, part.begin, part.end - part.begin), static_cast<int>(r)});
    }
  }
  return parts;
}

std::vector<Storage::Summed> Storage::SummedIn(const Op& op, int place) const {
  std::vector<Summed> summed = AllSummed(op);
  if (AxesOf(op) != kReplicasBetween) return summed;
  for (Summed& of : summed) {
    const NodePart part = NodePartOf(of.values.numel(), replicas_inside_, static_cast<uint32_t>(place));
    of = {of.values.narrow(0, part.begin, part.end - part.begin), of.own + part.begin};
  }
  return summed;
}

void Storage::EndSum(const Op& op) {
  if (!travelling_.defined() || !OwnsAll()) return;
  OfUnits(gradients_, trained_.begin, op).copy_(OfUnits(travelling_, trained_.begin, op));
}

std::vector<int32_t> Storage::UsedBy(int32_t unit) const {
  std::vector<int32_t> used = {unit};
  for (const Borrow& borrow : inventory_->units(unit).borrows()) {
    if (const auto found = places_.find(borrow.tensor()); found != places_.end()) used.push_back(found->second.unit);
  }
  return used;
}

std::vector<Access> Storage::Accesses(const Op& op) const {
  std::vector<Access> accesses;
  const OpTraits& traits = Traits(op.kind);
  const auto each_unit = [&](auto&& touch) {
    for (int32_t u = op.unit; u < op.unit_end; ++u) touch(u);
  };
  const auto parameters = [&](int32_t u) { accesses.push_back(Reads(Computed(u))); };
  switch (traits.parameters) {
    case ParameterUse::kNone:
      break;
    case ParameterUse::kGatherBetween:
    case ParameterUse::kGather:
      for (const Part& part : PartsOf(op.unit, op.unit_end)) {
        if (!GathersInPlace()) accesses.push_back(Reads(Gathers(part)));
      }
      each_unit([&](int32_t u) {
        const at::Tensor whole = Computed(u);
        int64_t begin = 0;
        const auto write_to = [&](int64_t end) { accesses.push_back(Writes(whole.narrow(0, begin, end - begin))); };
        if (GathersInPlace()) {
          for (const Part& part : PartsOf(u, u + 1)) {  // sent from its place, where it stays as it is
            write_to(part.begin);
            accesses.push_back(Reads(Computed(part)));
            begin = part.begin + part.length;
          }
        }
        write_to(whole.numel());
      });
      break;
    case ParameterUse::kFetch:
      for (const Part& part : PartsOf(op.unit, op.unit_end)) {
        if (part.frozen && op.slot < 0) continue;
        accesses.push_back(Reads(ToFetch(part)));
        accesses.push_back(Writes(Fetched(part)));
      }
      break;
    case ParameterUse::kReadIfBackwardDoes:
      if (inventory_->units(op.unit).backward_without_parameters()) break;
      [[fallthrough]];
    case ParameterUse::kRead:
      for (const int32_t u : UsedBy(op.unit)) parameters(u);
      break;
    case ParameterUse::kSend:
      each_unit(parameters);
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
    case GradientUse::kAddTied:
      accesses.push_back(Writes(Gradient(op.unit)));
      break;
    case GradientUse::kReduceInside:
      each_unit([&](int32_t u) {
        accesses.push_back(Writes(Gradient(u)));
        accesses.push_back(Writes(Travelling(u)));
      });
      break;
    case GradientUse::kReduce:
    case GradientUse::kScatter:
    case GradientUse::kAllReduce:
    case GradientUse::kGather:
    case GradientUse::kFinishSum:
      each_unit([&](int32_t u) {
        // What one shard owns is summed in place.
        if (traits.gradients != GradientUse::kReduce && !OwnsAll()) return;
        accesses.push_back(Writes(Gradient(u)));
        accesses.push_back(Writes(Travelling(u)));
      });
      for (const Mine& mine : trained_.MineOf(op.unit, op.unit_end)) accesses.push_back(Writes(OwnedGradient(mine)));
      break;
    case GradientUse::kOffload:
      for (const Mine& mine : trained_.MineOf(op.unit, op.unit_end)) {
        accesses.push_back(Reads(OwnedGradient(mine)));
        accesses.push_back(Writes(UpdateGradient(mine)));
      }
      break;
    case GradientUse::kMeasure:
      for (const Mine& mine : trained_.mine) accesses.push_back(Reads(UpdateGradient(mine)));
      break;
    case GradientUse::kApply: {
      const int32_t unit = std::max(0, op.unit), unit_end = op.unit < 0 ? inventory_->units_size() : op.unit_end;
      for (const Mine& mine : trained_.MineOf(unit, unit_end)) accesses.push_back(Reads(UpdateGradient(mine)));
      for (const Part& part : PartsOf(unit, unit_end)) {
        if (part.frozen) continue;
        accesses.push_back(Writes(Stored(part)));
        if (offloads()) {
          accesses.push_back(Writes(ToFetch(part)));
        } else if (computed_.defined() && !master_within_) {
          accesses.push_back(Writes(Computed(part)));
        }
      }
      break;
    }
  }
  for (const Tied& tied : tied_) {
    if (tied.owned || tied.unit != op.unit) continue;
    if (op.kind == OpKind::kReceiveTied) accesses.push_back(Writes(tied.value));
    if (traits.pass != Pass::kNone) accesses.push_back(Reads(tied.value));
    if (!tied.added.defined()) continue;
    if (traits.gradients == GradientUse::kAdd) accesses.push_back(Writes(tied.added));
    if (op.kind == OpKind::kSendTiedGradient) accesses.push_back(Reads(tied.added));
  }
  return accesses;
}

at::Tensor Storage::OwnedNorm() const {
  const bool all_count =
      std::all_of(extents_.begin(), extents_.end(), [](const OwnedExtent& extent) { return extent.counts; });
  const at::Tensor& own = offloads() ? host_gradients_ : own_gradients_;
  if (all_count && own.defined()) return FlatNorm(own);
  if (all_count && OwnsAll()) return FlatNorm(gradients_);  // zeros between the tensors
  std::vector<at::Tensor> norms;
  const auto add = [&](const at::Tensor& gradient) { norms.push_back(FlatNorm(gradient).view({1})); };
  if (all_count) {
    for (const Mine& mine : trained_.mine) add(OwnedGradient(mine));
  } else {
    for (const OwnedExtent& extent : extents_) {
      if (!extent.counts || extent.own < 0) continue;
      const auto after = std::partition_point(trained_.mine.begin(), trained_.mine.end(),
                                              [&](const Mine& mine) { return mine.own <= extent.own; });
      const Mine& mine = *std::prev(after);
      add(UpdateGradient(mine).narrow(0, extent.own - mine.own, extent.length));
    }
  }
  if (norms.empty()) return at::zeros({}, own.defined() ? own.options() : gradients_.options());
  return at::linalg_vector_norm(at::cat(norms));
}

}  // namespace muster::engine
