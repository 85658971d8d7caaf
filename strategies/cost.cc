#include "strategies/cost.h"

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "strategies/partition/table.h"

namespace muster::strategies {
namespace {

// The groups of one kind, as the cost model sees them: the most ranks and the most nodes of any group.
struct GroupTopology {
  uint32_t ranks = 1;
  uint32_t nodes = 1;
  uint32_t least_on_node = 1;  // their ports carry the traffic into the node
};

double Doublings(uint32_t n) { return n <= 1 ? 0 : std::bit_width(n - 1); }

std::array<GroupTopology, kGroups> TopologiesOf(const Layout& layout, absl::Span<const RankPlace> ranks) {
  std::array<std::map<uint32_t, std::map<uint32_t, uint32_t>>, kGroups> groups;  // kind -> group -> node -> ranks
  for (const RankRole& role : layout.roles) {
    const uint32_t node = ranks[role.rank()].node;
    ++groups[kWorldGroup][0][node];
    ++groups[kShardGroup][role.replica()][node];
    ++groups[kReplicaGroup][role.shard()][node];
  }
  std::array<GroupTopology, kGroups> topologies;
  for (size_t kind = 0; kind < kGroups; ++kind) {
    GroupTopology& topology = topologies[kind];
    topology.least_on_node = static_cast<uint32_t>(ranks.size());
    for (const auto& [group, nodes] : groups[kind]) {
      uint32_t members = 0;
      for (const auto& [node, count] : nodes) {
        members += count;
        topology.least_on_node = std::min(topology.least_on_node, count);
      }
      topology.ranks = std::max(topology.ranks, members);
      topology.nodes = std::max(topology.nodes, static_cast<uint32_t>(nodes.size()));
    }
  }
  return topologies;
}

class CostModel {
 public:
  CostModel(const Train& train, const Inventory& inventory, const Layout& layout, const RankProgram& program,
            absl::Span<const RankPlace> ranks, const Hardware& hardware)
      : train_(train),
        inventory_(inventory),
        hardware_(hardware),
        last_microbatch_(program.schedule.microbatches - 1),
        left_out_(program.left_out),
        groups_(TopologiesOf(layout, ranks)),
        share_(ShareOf(train.batch().sequences(), static_cast<uint32_t>(ranks.size()), 0).sequences),
        compute_bytes_(train.precision().compute() == DTYPE_BF16 ? 2 : 4),
        reduce_bytes_(train.precision().reduce() == DTYPE_BF16 ? 2 : 4) {
    std::vector<uint64_t> own(layout.table.shards());
    for (int u = 0; u < inventory.units_size(); ++u) {
      const partition::OwnedUnit unit = partition::OwnedUnitOf(layout.table, inventory, u);
      std::vector<uint64_t> of(layout.table.shards());
      for (const partition::OwnedRange& range : unit.ranges) of[range.shard] += range.end - range.begin;
      elements_.push_back(unit.flat.elements);
      shares_.push_back(unit.ranges.size());
      least_.push_back(*std::min_element(of.begin(), of.end()));
      most_.push_back(*std::max_element(of.begin(), of.end()));
      for (size_t s = 0; s < own.size(); ++s) own[s] += of[s];
    }
    own_ = *std::max_element(own.begin(), own.end());
    const bool tf32 = train.precision().tf32() && hardware.tf32_flops > 0;
    flops_ = compute_bytes_ == 2 ? hardware.bf16_flops : tf32 ? hardware.tf32_flops : hardware.fp32_flops;
    if (hardware.at_full_speed > 0) slowdown_ = std::max(1.0, Crowd(ranks) / hardware.at_full_speed);
  }

  OpCost Of(const Op& op) const {
    const OpTraits& traits = Traits(op.kind);
    OpCost cost;
    for (const OpCost& part : {Compute(op, traits.forwards), Sent(op, traits.payload),
                               Summed(op.group, traits.scalar_bytes), Memory(Touched(op, traits.memory))}) {
      cost.latency += part.latency;
      cost.work += part.work;
    }
    return cost;
  }

 private:
  // Ranks on the fullest node.
  static double Crowd(absl::Span<const RankPlace> ranks) {
    std::map<uint32_t, uint32_t> of_node;
    uint32_t most = 1;
    for (const RankPlace& rank : ranks) most = std::max(most, ++of_node[rank.node]);
    return most;
  }

  static uint64_t Sum(const std::vector<uint64_t>& by_unit, const Op& op) {
    return std::accumulate(by_unit.begin() + op.unit, by_unit.begin() + op.unit_end, uint64_t{0});
  }

  OpCost Memory(double bytes) const { return {.work = bytes / hardware_.memory_bytes_per_second}; }

  // Bytes that the op reads or writes beside its passes.
  double Touched(const Op& op, MemoryTraffic traffic) const {
    switch (traffic) {
      case MemoryTraffic::kNone:
        break;
      case MemoryTraffic::kUnitGradients:
        return 4.0 * static_cast<double>(Sum(elements_, op));
      case MemoryTraffic::kOwnedGradients:
        return 4.0 * static_cast<double>(own_);
      case MemoryTraffic::kOptimizerState:
        return StepBytes() * static_cast<double>(own_);
    }
    return 0;
  }

  OpCost Compute(const Op& op, double forwards) const {
    if (forwards == 0) return {};
    const Unit& unit = inventory_.units(op.unit);
    const uint64_t microbatch = train_.batch().microbatch() > 0 ? train_.batch().microbatch() : share_;
    // The last one may have fewer sequences.
    const uint64_t index = static_cast<uint64_t>(op.microbatch) + (op.microbatch == last_microbatch_ ? left_out_ : 0);
    const uint64_t before = microbatch * index;
    const double sequences = static_cast<double>(std::min(microbatch, share_ - std::min(share_, before)));
    if (sequences == 0) return {};
    const double activations = static_cast<double>(unit.saved_bytes() + unit.output_bytes()) * compute_bytes_ / 4;
    const double bytes = static_cast<double>(elements_[op.unit]) * compute_bytes_ + sequences * activations;
    return {.latency = forwards * hardware_.op_seconds,
            .work = slowdown_ * forwards *
                    (unit.forward_flops() * sequences / flops_ + bytes / hardware_.memory_bytes_per_second)};
  }

  // A rank receives all but its own share; a node receives the other nodes' share.
  OpCost Moved(int32_t group, double bytes, double incoming) const {
    const GroupTopology& g = groups_[group];
    if (g.ranks <= 1) return {};
    const double inside = g.least_on_node == 1 && g.nodes == g.ranks ? 0 : incoming / hardware_.inside.bytes_per_second;
    const double between = bytes * (g.nodes - 1) / g.nodes / (g.least_on_node * hardware_.between.bytes_per_second);
    const double latency = Doublings(g.ranks / g.nodes + (g.ranks % g.nodes > 0 ? 1 : 0)) * hardware_.inside.seconds +
                           Doublings(g.nodes) * hardware_.between.seconds;
    return {.latency = latency, .work = g.nodes > 1 ? std::max(inside, between) : inside};
  }

  OpCost Sent(const Op& op, Payload payload) const {
    switch (payload) {
      case Payload::kNone:
        break;
      case Payload::kParameters:
        return Sharded(op, compute_bytes_);
      case Payload::kGradients:
        return Sharded(op, reduce_bytes_);
      case Payload::kOwnedGradients:
        return Summed(op.group, static_cast<double>(Sum(most_, op)) * reduce_bytes_);
    }
    return {};
  }

  OpCost Sharded(const Op& op, double width) const {
    const double bytes = static_cast<double>(Sum(elements_, op)) * width;
    OpCost cost = Moved(op.group, bytes, bytes - static_cast<double>(Sum(least_, op)) * width);
    if (!op.even && op.group >= 0) cost.latency += static_cast<double>(Sum(shares_, op)) * hardware_.share_seconds;
    return cost;
  }

  OpCost Summed(int32_t group, double bytes) const {
    if (group < 0 || bytes == 0) return {};
    const double ranks = groups_[group].ranks;
    const OpCost once = Moved(group, bytes, bytes * (ranks - 1) / ranks);
    return {.latency = 2 * once.latency, .work = 2 * once.work};
  }

  // Reads and writes for each element: weights and gradients, the gradient cleared for the next step, and the optimizer
  // state.
  double StepBytes() const {
    const double state = static_cast<double>(StateTensors(train_.optimizer()));
    return 4 * (4 + 2 * state) + (compute_bytes_ == 2 ? 2 : 0);
  }

  const Train& train_;
  const Inventory& inventory_;
  const Hardware& hardware_;
  const int32_t last_microbatch_;
  const uint32_t left_out_;
  const std::array<GroupTopology, kGroups> groups_;
  const uint64_t share_;  // sequences of a step
  const double compute_bytes_, reduce_bytes_;
  std::vector<uint64_t> elements_, least_, most_;  // by unit: all, and the least and most that a shard owns
  std::vector<uint64_t> shares_;                   // by unit
  uint64_t own_ = 0;                               // the most that any shard owns
  double flops_ = 0;
  double slowdown_ = 1;  // of compute, when ranks of a node share its cores
};

}  // namespace

namespace {

// The second half of an outline's microbatches but the last, as often more as it leaves out microbatches.
Repeated RepeatedBy(const RankProgram& program) {
  if (program.left_out == 0) return {};
  const int32_t last = program.schedule.microbatches - 1, middle = last / 2;
  Repeated repeated{.times = static_cast<double>(program.left_out) / (last - middle)};
  for (size_t i = 0; i < program.schedule.ops.size(); ++i) {
    const Op& op = program.schedule.ops[i];
    if (op.kind != OpKind::kForward || op.unit != 0) continue;
    if (op.microbatch == middle) repeated.from = i;
    if (op.microbatch == last) repeated.to = i;
  }
  return repeated;
}

}  // namespace

absl::Status SpendOnTimes(const RankProgram& program, Budget* budget) {
  constexpr uint64_t kWorkPerTimed = 10, kBytesPerTimed = sizeof(Op) + sizeof(OpCost) + sizeof(OpTime) + 8;
  const uint64_t ops = program.schedule.ops.size();
  const auto what = [&] { return absl::StrCat("a schedule of ", ops, " ops; raise batch.microbatch"); };
  const absl::Status status = Spend(budget, ops * kWorkPerTimed, what);
  return status.ok() ? Hold(budget, ops * kBytesPerTimed, what) : status;
}

Predicted PredictStep(const Train& train, const Inventory& inventory, const Layout& layout, const RankProgram& program,
                      absl::Span<const RankPlace> ranks, const Hardware& hardware) {
  const CostModel model(train, inventory, layout, program, ranks, hardware);
  Predicted predicted;
  predicted.costs.reserve(program.schedule.ops.size());
  for (const Op& op : program.schedule.ops) predicted.costs.push_back(model.Of(op));
  predicted.timeline = Simulate(program.schedule, predicted.costs, hardware.sharing, RepeatedBy(program));
  return predicted;
}

}  // namespace muster::strategies
