#include "strategies/bounds.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "models/inventory.h"
#include "strategies/compression.h"
#include "strategies/optimizer_plan.h"
#include "strategies/pipeline/orders.h"
#include "strategies/schedule/build.h"

namespace muster::strategies {

// What a stage's units take, together.
struct Bounds::Stage {
  double compute = 0;                // of all microbatches
  double exchanged = 0;              // the part of it in which ranks with the same samples wait for each other
  double forward = 0, backward = 0;  // of one microbatch of its first chunk, as far as the next stage waits for it
  double inputs = 0, weights = 0;    // of one microbatch of all its chunks: up to the gradient of inputs, and after it
  double elements = 0, trained = 0, largest = 0;
  // Of a sample: of all chunks, and of the one that keeps least; and what waits for the gradients of weights.
  double kept = 0, least_kept = 0, deferred = 0, least_deferred = 0;
  const Unit* last = nullptr;   // of its first chunk
  bool trained_before = false;  // some unit before that chunk is trained
};

namespace {

double Elements(const Unit& unit, bool trained) {
  double elements = 0;
  for (const Tensor& tensor : unit.tensors()) {
    if (!trained || !tensor.frozen()) elements += static_cast<double>(models::Elements(tensor));
  }
  return elements;
}

// In all that counts here, but for parameters and what it reads.
bool Alike(const Unit& a, const Unit& b) {
  return a.kind() == b.kind() && a.forward_flops() == b.forward_flops() &&
         a.weight_gradient_flops() == b.weight_gradient_flops() && a.saved_bytes() == b.saved_bytes() &&
         a.output_bytes() == b.output_bytes() && a.deferred_bytes() == b.deferred_bytes() &&
         a.piece_rows() == b.piece_rows() && a.has_tensor_exchange() == b.has_tensor_exchange() &&
         a.tensor_exchange().SerializeAsString() == b.tensor_exchange().SerializeAsString() &&
         a.has_context_exchange() == b.has_context_exchange() &&
         a.context_exchange().SerializeAsString() == b.context_exchange().SerializeAsString();
}

bool IsZeroBubble(const Train& train) {
  return train.parallel().pipeline() > 1 && train.pipeline().schedule() == PIPELINE_SCHEDULE_ZERO_BUBBLE;
}

// Ranks that share one copy of a stage's state.
uint32_t Shards(const Strategy& strategy, absl::Span<const RankPlace> ranks) {
  const auto all = static_cast<uint32_t>(ranks.size());
  if (strategy.has_zero()) return all;
  if (!strategy.has_fsdp() || strategy.fsdp().reshard() == RESHARD_NO_SHARD) return 1;
  if (strategy.fsdp().reshard() != RESHARD_HYBRID) return all;
  if (strategy.fsdp().shard_ranks() > 0) return std::min(all, strategy.fsdp().shard_ranks());
  return static_cast<uint32_t>(
      std::count_if(ranks.begin(), ranks.end(), [&](const RankPlace& rank) { return rank.node == ranks[0].node; }));
}

bool GathersIntoSlots(const Strategy& strategy) {
  return (strategy.has_fsdp() && strategy.fsdp().reshard() != RESHARD_NO_SHARD) || strategy.zero().stage() == 3;
}
bool KeepsGathered(const Strategy& strategy) { return strategy.fsdp().reshard() == RESHARD_SHARD_GRAD_OP; }
// Until the last microbatch's reduction.
bool KeepsAllGradients(const Strategy& strategy) {
  return !(strategy.has_zero() && strategy.zero().stage() > 1) && !GathersIntoSlots(strategy);
}

}  // namespace

Bounds::Bounds(const Inventory& inventory, absl::Span<const RankPlace> ranks, const Hardware& hardware)
    : inventory_(inventory), ranks_(ranks), hardware_(hardware) {
  const int first_trained = models::FirstTrained(inventory);
  for (int u = 0; u < inventory.units_size(); ++u) {
    const Unit& unit = inventory.units(u);
    Sizes& sizes = sizes_.emplace_back();
    sizes.elements = Elements(unit, false), sizes.trained = Elements(unit, true);
    sizes.like_before = u > 1 && u != first_trained && sizes.elements == sizes_[u - 1].elements &&
                        sizes.trained == sizes_[u - 1].trained && Alike(unit, inventory.units(u - 1)) &&
                        inventory.units(u - 1).output_bytes() == inventory.units(u - 2).output_bytes();
    kinds_ += !sizes.like_before;
  }
}

Least Bounds::Of(const Train& train, const pipeline::StageOfUnit& places) {
  const uint32_t count = std::max(1u, train.parallel().pipeline()), tensor = models::TensorRanks(inventory_),
                 context = models::ContextRanks(inventory_), world = static_cast<uint32_t>(ranks_.size());
  const Mesh copies = WithReplicasFor({.pipeline = count, .tensor = tensor, .context = context}, world);
  const uint32_t each = copies.sample_ranks();
  std::vector<RankPlace> alike;  // of the first stage, those with the first share
  for (const uint32_t rank : MembersOf(copies, {.axes = kDataAxes}, 0)) alike.push_back(ranks_[rank]);
  const uint32_t shards = Shards(train.strategy(), alike);
  const Mesh mesh = WithReplicasFor({.pipeline = count, .shard = shards, .tensor = tensor, .context = context}, world);
  const Rates rates = RatesOf(train, inventory_.device(), ranks_, hardware_);
  const double samples = static_cast<double>(ShareOf(train.batch().sequences(), each, 0).sequences),
               rows = MicrobatchRows(train.batch(), each), microbatches = Microbatches(train.batch(), each),
               last_rows = samples - rows * (microbatches - 1);
  const bool splits = IsZeroBubble(train), recompute = train.activation_checkpointing();
  const int first_trained = models::FirstTrained(inventory_);
  std::vector<Stage> stages(count);
  std::vector<double> chunk_kept(count), chunk_deferred(count);
  std::vector<uint32_t> chunks(count);
  // By a rank of stage `from` to one of stage `to`, or its gradient back.
  const auto handed = [&](const Unit& last, uint32_t from, uint32_t to, double of_samples) {
    const Link& link = LeavesNodes(count, from, to) ? hardware_.between : hardware_.inside;
    const uint64_t bytes = models::OutputBytes(last.outputs(), static_cast<uint64_t>(rates.width));
    return link.seconds + of_samples * static_cast<double>(bytes) / link.bytes_per_second;
  };
  double path = 0;  // of the first microbatch through all chunks and back; a forward may be repeated before its turn
  const auto begins_chunk = [&](int u) {
    return u == 0 || places[u - 1].stage != places[u].stage || places[u].begins_chunk;
  };
  for (int u = 0, after = 0; u < inventory_.units_size(); u = after) {
    const Unit& unit = inventory_.units(u);
    const uint32_t stage = places[u].stage;
    Stage& of = stages[stage];
    const bool begins = begins_chunk(u);
    if (begins) chunk_kept[stage] = 0, chunk_deferred[stage] = 0, ++chunks[stage];
    if (u > 0 && places[u - 1].stage != stage) {
      path += (u > first_trained ? 2 : 1) * handed(inventory_.units(u - 1), places[u - 1].stage, stage, rows);
    }
    // Units that are alike, together; the first of a chunk reads a slot.
    for (after = u + 1;
         !begins && after < inventory_.units_size() && sizes_[after].like_before && !begins_chunk(after);) {
      ++after;
    }
    const double units = after - u;
    const double elements = sizes_[u].elements,
                 input = u == 0 ? static_cast<double>(unit.saved_bytes())
                                : static_cast<double>(inventory_.units(u - 1).output_bytes());
    const bool goes_back = u >= first_trained;
    const bool again = recompute && u > 0 && goes_back && static_cast<double>(unit.saved_bytes()) > input;
    const auto pass = [&](double of_samples, const PassWork& work) {
      const OpCost cost = PassCost(rates, unit, elements, of_samples, work);
      return cost.latency + cost.work;
    };
    const auto exchange = [&](Pass kind, double of_samples, const PassWork& work) {
      if (!unit.has_tensor_exchange() && !unit.has_context_exchange()) return 0.0;
      const double computing = PassCost(rates, unit, elements, of_samples, work).work;
      const ExchangeTopologies groups{.tensor = Topology(mesh, kTensorGroup), .context = Topology(mesh, kContextGroup)};
      const OpCost cost =
          TensorExchangeCost(inventory_, unit, kind, rates.width, of_samples, computing, groups, hardware_);
      return cost.latency + cost.work;
    };
    const bool in_halves = splits && SplitsBackward(unit);
    const PassWork backward = in_halves ? BackwardInputsWork(unit) : Forwards(unit, 2);
    const Pass backward_pass = in_halves ? Pass::kBackwardInputs : Pass::kBackward;
    const double out = exchange(Pass::kForward, rows, Forwards(unit, 1)),
                 last_out = exchange(Pass::kForward, last_rows, Forwards(unit, 1)),
                 in = goes_back ? exchange(backward_pass, rows, backward) : 0,
                 last_in = goes_back ? exchange(backward_pass, last_rows, backward) : 0;
    const double forward = pass(rows, Forwards(unit, 1)) + out;
    const double back = goes_back ? pass(rows, backward) + in + (again ? forward : 0) : 0;
    const double last_back = goes_back ? pass(last_rows, backward) + last_in : 0;
    const double weights = goes_back && in_halves ? pass(rows, BackwardWeightsWork(unit)) : 0;
    const double forwards = goes_back ? again ? 4 : 3 : 1;
    const OpCost all = PassCost(rates, unit, microbatches * elements, samples, Forwards(unit, forwards));
    const double outs = again ? 2 : 1;
    const double exchanges = (microbatches - 1) * (outs * out + in) + outs * last_out + last_in;
    of.compute += units * (microbatches * all.latency + all.work + exchanges), of.exchanged += units * exchanges;
    of.inputs += units * (forward + back), of.weights += units * weights;
    path += units * (forward + back - (again ? forward : 0));
    if (chunks[stage] == 1) {
      if (begins) of.trained_before = u > first_trained;
      of.forward += units * forward, of.backward += units * last_back;
      of.last = &inventory_.units(after - 1);
    }
    of.elements += units * elements, of.trained += units * sizes_[u].trained;
    of.largest = std::max(of.largest, elements);
    // What comes from another stage lies in a slot.
    const double kept = !goes_back ? 0
                        : again    ? (begins ? 0 : input)
                                   : static_cast<double>(unit.saved_bytes()) - (begins ? input : 0);
    of.kept += units * std::max(0.0, kept), chunk_kept[stage] += units * std::max(0.0, kept);
    const bool ends = after == inventory_.units_size() || begins_chunk(after);
    const double deferred = in_halves && goes_back ? static_cast<double>(unit.deferred_bytes()) : 0;
    of.deferred += units * deferred, chunk_deferred[stage] += units * deferred;
    if (ends) {
      const bool first = chunks[stage] == 1;
      of.least_kept = first ? chunk_kept[stage] : std::min(of.least_kept, chunk_kept[stage]);
      of.least_deferred = first ? chunk_deferred[stage] : std::min(of.least_deferred, chunk_deferred[stage]);
    }
  }

  const Strategy& strategy = train.strategy();
  const double width = rates.width, master = static_cast<double>(DtypeBytes(StoredDtype(train, false)));
  const double state_bytes = NeedsWholeTensors(train.optimizer())
                                 ? 0
                                 : 4 * static_cast<double>(MostStateAnElement(AppliedOptimizer(train, /*sums=*/true)));
  const bool offloads = train.offload().optimizer() && inventory_.device() == DEVICE_CUDA;
  Least least;
  double before = 0, after = 0;
  for (uint32_t p = 0; p < count; ++p) {
    const Stage& stage = stages[p];
    // As AdamW and SGD do: weights, gradients and state, each read and written.
    const double own = stage.trained / shards;
    const double update =
        train.offload().optimizer() ? 0 : own * (16 + 2 * state_bytes) / hardware_.memory_bytes_per_second;
    double seconds = before + stage.compute + update;
    least.seconds = std::max(least.seconds, path + update);
    if (!splits) {
      seconds += after;
    } else if (train.pipeline().chunks() <= 1) {
      const double deferred = std::min<double>(p, microbatches);
      // All but what waits for the end of the step, and the last microbatch, which may be smaller.
      const double until_last = (microbatches - 1) * stage.inputs + (microbatches - 1 - deferred) * stage.weights;
      seconds = std::max(seconds, before + until_last + after + update);
    }
    least.seconds = std::max(least.seconds, seconds);
    before += stage.forward, after += stage.backward;
    if (p + 1 < count) {
      before += handed(*stage.last, p, p + 1, rows);
      if (stages[p + 1].trained_before) after += handed(*stage.last, p, p + 1, last_rows);
    }

    const uint32_t live = pipeline::LeastInFlight(
        train.pipeline().schedule(),
        {.stages = count, .chunks = chunks[p], .microbatches = static_cast<uint32_t>(microbatches)}, p);
    double kept = chunks[p] == 1 ? live * stage.kept : live * stage.least_kept;
    if (splits && chunks[p] == 1) {
      // In the steady state, which a step of so many microbatches reaches, p of them wait for their weights' gradients.
      kept = std::max(kept + (microbatches >= count + p ? p : 0) * stage.deferred, stage.deferred);
    } else if (splits) {
      // At the end of the step, one of each chunk for each stage before this one.
      kept = std::max(kept, std::max(1.0, microbatches >= 2 * count ? 2.0 * p : 0.0) * stage.least_deferred);
    }
    const double mine = stage.elements / shards;
    Least of{.stage = p};
    const bool whole = !GathersIntoSlots(strategy);
    double parameters = whole ? width * stage.elements : KeepsGathered(strategy) ? width * stage.elements : 0;
    if (!offloads && !(whole && master == width)) parameters += std::min(master, width) * mine;
    of.parameters = static_cast<uint64_t>(parameters);
    of.gradients = static_cast<uint64_t>(4 * (KeepsAllGradients(strategy) ? stage.trained : offloads ? 0 : own));
    of.optimizer_state = offloads ? 0 : static_cast<uint64_t>(state_bytes * own);
    of.activations = static_cast<uint64_t>(kept * std::min(rows, samples));
    if (p == 0 || of.bytes() > least.bytes()) {
      of.seconds = least.seconds;
      least = of;
    }
  }
  const Moving moving = Links(train, stages[0], mesh);
  const double of_both =
      hardware_.sharing == Sharing::kProcessor ? stages[0].compute - stages[0].exchanged + moving.links : moving.links;
  least.seconds = std::max({least.seconds, of_both, moving.network});
  return least;
}

// Of the collectives of a rank of stage 0.
Bounds::Moving Bounds::Links(const Train& train, const Stage& stage, const Mesh& mesh) {
  const Strategy& strategy = train.strategy();
  const double width = static_cast<double>(DtypeBytes(train.precision().compute())),
               reduced = static_cast<double>(DtypeBytes(train.precision().reduce())),
               microbatches = Microbatches(train.batch(), mesh.sample_ranks());
  Moving moving;
  const auto busy = [&](int32_t group) -> double& {
    return IsNetwork(Topology(mesh, group), hardware_) ? moving.network : moving.links;
  };
  if (mesh.shard > 1) {
    double& seconds = busy(kShardGroup);
    const auto moved = [&](double elements, double bytes) {
      return Moved(Topology(mesh, kShardGroup), hardware_, elements * bytes,
                   elements * bytes * (mesh.shard - 1) / mesh.shard)
          .work;
    };
    const bool freed = GathersIntoSlots(strategy) && !KeepsGathered(strategy);
    // A unit that is used twice in a row is gathered once.
    const double gathered =
        freed ? std::max(stage.elements, microbatches * 2 * (stage.elements - stage.largest)) : stage.elements;
    seconds += moved(gathered, width);
    seconds += moved((KeepsAllGradients(strategy) ? 1 : microbatches) * stage.trained, reduced);
  }
  // What compressed sums send depends on buckets and levels.
  if (mesh.replica > 1 && !Compresses(train.communication())) {
    const double bytes = stage.trained / mesh.shard * reduced;
    busy(kReplicaGroup) += Summed(Topology(mesh, kReplicaGroup), hardware_, bytes).work;
  }
  return moving;
}

bool Bounds::LeavesNodes(uint32_t stages, uint32_t from, uint32_t to) {
  const auto [at, fresh] = leaves_nodes_.emplace(std::tuple(stages, from, to), false);
  const Mesh mesh = WithReplicasFor({.pipeline = stages}, static_cast<uint32_t>(ranks_.size()));
  const absl::Span<const RankPlace> senders = OfStage(mesh, ranks_, from), receivers = OfStage(mesh, ranks_, to);
  for (size_t i = 0; fresh && i < senders.size(); ++i) at->second |= senders[i].node != receivers[i].node;
  return at->second;
}

const GroupTopology& Bounds::Topology(const Mesh& mesh, int32_t group) {
  const auto [at, fresh] =
      topologies_.emplace(std::tuple(mesh.pipeline, mesh.replica, mesh.shard, mesh.tensor, group), GroupTopology());
  if (fresh) at->second = TopologyOf(CommonGroups()[static_cast<size_t>(group)], mesh, 0, ranks_);
  return at->second;
}

namespace {

std::string Largest(const std::vector<std::pair<uint64_t, const char*>>& parts) {
  const auto& [bytes, name] = *std::max_element(parts.begin(), parts.end());
  return absl::StrCat(name, " ", FormatBytes(bytes));
}

}  // namespace

std::string LargestPart(const Least& least) {
  return Largest({{least.parameters, "parameters"},
                  {least.gradients, "gradients"},
                  {least.optimizer_state, "optimizer state"},
                  {least.activations, "activations"}});
}

std::string LargestPart(const Memory& memory) {
  return Largest({{memory.parameters, "parameters"},
                  {memory.gradients, "gradients"},
                  {memory.optimizer_state, "optimizer state"},
                  {memory.gather_buffers, "gathered parameters"},
                  {memory.reduce_buffers, "gradients to reduce"},
                  {memory.activations, "activations"}});
}

}  // namespace muster::strategies
