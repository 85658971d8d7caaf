#include "strategies/cost.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "models/inventory.h"
#include "strategies/compression.h"
#include "strategies/optimizer_plan.h"
#include "strategies/partition/table.h"

namespace muster::strategies {
namespace {

// Ranks on the fullest node.
double Crowd(absl::Span<const RankPlace> ranks) {
  std::map<uint32_t, uint32_t> of_node;
  uint32_t most = 1;
  for (const RankPlace& rank : ranks) most = std::max(most, ++of_node[rank.node]);
  return most;
}

double Doublings(uint32_t n) { return n <= 1 ? 0 : std::bit_width(n - 1); }

// By Op::group.
std::vector<GroupTopology> TopologiesOf(const std::vector<GroupSpec>& groups, const Mesh& mesh, uint32_t stage,
                                        absl::Span<const RankPlace> ranks) {
  std::vector<GroupTopology> topologies;
  for (const GroupSpec& group : groups) topologies.push_back(TopologyOf(group, mesh, stage, ranks));
  return topologies;
}

}  // namespace

Rates RatesOf(const Train& train, Device device, absl::Span<const RankPlace> ranks, const Hardware& hardware) {
  const bool tf32 = train.precision().tf32() && hardware.tf32_flops > 0;
  // GPUs compute fp16 as fast as bf16, CPUs by GEMMs of fp32.
  const bool narrow =
      train.precision().compute() == DTYPE_BF16 || (train.precision().compute() == DTYPE_FP16 && device == DEVICE_CUDA);
  Rates rates{.flops = narrow ? hardware.bf16_flops
                       : tf32 ? hardware.tf32_flops
                              : hardware.fp32_flops,
              .memory_bytes_per_second = hardware.memory_bytes_per_second,
              .op_seconds = hardware.op_seconds,
              .width = static_cast<double>(DtypeBytes(train.precision().compute()))};
  if (hardware.at_full_speed > 0) rates.slowdown = std::max(1.0, Crowd(ranks) / hardware.at_full_speed);
  return rates;
}

PassWork Forwards(const Unit& unit, double forwards) {
  return {.launches = forwards, .moves = forwards, .flops = forwards * unit.forward_flops()};
}

PassWork BackwardInputsWork(const Unit& unit) {
  return {.launches = 1, .moves = 2, .flops = 2 * unit.forward_flops() - unit.weight_gradient_flops()};
}

PassWork BackwardWeightsWork(const Unit& unit) { return {.launches = 1, .flops = unit.weight_gradient_flops()}; }

OpCost PassCost(const Rates& rates, const Unit& unit, double elements, double samples, const PassWork& work) {
  const double activations = static_cast<double>(unit.saved_bytes() + unit.output_bytes()) * rates.width / 4;
  const double bytes = elements * rates.width + samples * activations;
  return {.latency = work.launches * rates.op_seconds,
          .work = rates.slowdown *
                  (work.flops * samples / rates.flops + work.moves * bytes / rates.memory_bytes_per_second)};
}

GroupTopology TopologyOf(const GroupSpec& group, const Mesh& mesh, uint32_t stage, absl::Span<const RankPlace> ranks) {
  GroupTopology topology;
  topology.least_on_node = mesh.ranks();
  std::set<uint32_t> seen;  // groups of the kind, by their first rank
  const uint32_t first = RankAt(mesh, {.pipeline = stage}), end = first + mesh.ranks_of_stage();
  for (uint32_t rank = first; rank < end; ++rank) {
    const std::optional<Membership> own = MembershipOf(mesh, group, rank);
    if (!own.has_value() || !seen.insert(own->first).second) continue;
    std::map<uint32_t, uint32_t> on_node;
    for (const uint32_t member : MembersOf(mesh, group, rank)) ++on_node[ranks[member].node];
    for (const auto& [node, count] : on_node) topology.least_on_node = std::min(topology.least_on_node, count);
    topology.ranks = std::max(topology.ranks, own->size);
    topology.nodes = std::max(topology.nodes, static_cast<uint32_t>(on_node.size()));
  }
  return topology;
}

namespace {

// Gloo announces a message to its sender before the sender sends it (gloo/transport/tcp/pair.cc), so a message that is
// not awaited ahead takes two latencies.
constexpr double kAnnounced = 2;
// The largest sum that every rank of a few sends to each other one (worker/collectives/gloo.cc).
constexpr double kStraightBytes = 1024;
constexpr uint32_t kStraightRanks = 8;

bool OverSockets(const GroupTopology& g, const Hardware& hardware) { return hardware.sums_by_rings && g.nodes > 1; }

// Gloo's threads of a group (ProcessGroupGloo::Options), each of which runs a sum.
constexpr uint32_t kSumsInFlight = 2;
// Messages to each rank wait for no thread, but for older reductions (worker/collectives/gloo.cc).
constexpr uint32_t kPostedInFlight = 4;

// Gloo's ring has two segments in flight and goes around twice (gloo/allreduce.cc): each rank passes on 2 (ranks - 1)
// messages one after another. A rank at a link between nodes waits for the link each time, and all others for it. Over
// a link with 20 ms of latency two ranks take 60 to 80 ms, four on two nodes 250 to 400, and eight 700, whatever the
// size.
double SocketSumLatency(const GroupTopology& g, const Hardware& hardware, double bytes) {
  const double one = kAnnounced * hardware.between.seconds;
  if (bytes <= kStraightBytes && g.ranks <= kStraightRanks) return one;
  return 2.0 * (g.ranks - 1) * one;
}

double TreeLatency(const GroupTopology& g, const Hardware& hardware) {
  return Doublings(g.ranks / g.nodes + (g.ranks % g.nodes > 0 ? 1 : 0)) * hardware.inside.seconds +
         Doublings(g.nodes) * hardware.between.seconds;
}

double RingLatency(const GroupTopology& g, const Hardware& hardware) {
  const double inside = g.ranks - g.nodes, between = g.nodes - 1;  // hops
  return between > 0 ? hardware.between.seconds + (between - 1) * hardware.between.ring_seconds +
                           inside * hardware.inside.ring_seconds
                     : hardware.inside.seconds + (inside - 1) * hardware.inside.ring_seconds;
}

// At which a rank itself receives and sends what the group moves.
double RankRate(const GroupTopology& g, const Hardware& hardware) {
  return OverSockets(g, hardware) && hardware.core.socket_bytes_per_second > 0 ? hardware.core.socket_bytes_per_second
                                                                               : hardware.inside.bytes_per_second;
}

// Of what takes `inside` seconds over the links of a node, and the bytes that enter a node over its ports.
double Slower(const GroupTopology& g, const Hardware& hardware, double entering, double inside) {
  if (g.nodes <= 1) return inside;
  return std::max(inside, entering / (g.least_on_node * hardware.between.bytes_per_second));
}

}  // namespace

OpCost Moved(const GroupTopology& g, const Hardware& hardware, double bytes, double incoming) {
  if (g.ranks <= 1) return {};
  const double moving = incoming / RankRate(g, hardware);
  const double inside = g.least_on_node == 1 && g.nodes == g.ranks ? 0 : moving;
  const double entering = bytes * (g.ranks - 1) / g.ranks;
  if (!OverSockets(g, hardware)) {
    return {.latency = RingLatency(g, hardware), .work = Slower(g, hardware, entering, inside)};
  }
  return {.latency = kAnnounced * hardware.between.seconds,
          .work = Slower(g, hardware, entering, inside),
          .processor = moving};
}

// Twice what moves its bytes: to where they are added, and back.
OpCost Summed(const GroupTopology& g, const Hardware& hardware, double bytes) {
  if (g.ranks <= 1 || bytes == 0) return {};
  const double ring = bytes * (g.ranks - 1) / g.ranks, tree = bytes * (g.nodes - 1) / g.nodes;
  const double moving = ring / RankRate(g, hardware);
  const double inside = g.least_on_node == 1 && g.nodes == g.ranks ? 0 : moving;
  const double work = 2 * Slower(g, hardware, hardware.sums_by_rings ? ring : tree, inside);
  if (!OverSockets(g, hardware)) return {.latency = 2 * TreeLatency(g, hardware), .work = work};
  return {.latency = SocketSumLatency(g, hardware, bytes), .work = work, .processor = 2 * moving};
}

bool IsNetwork(const GroupTopology& g, const Hardware& hardware) {
  return g.nodes > 1 && (hardware.sharing == Sharing::kProcessor || g.nodes == g.ranks);
}

namespace {

// Of one of a unit's exchanges: what it declares of the pass.
OpCost ExchangeCost(const Inventory& inventory, const Unit& unit, const TensorExchange& exchange, Pass pass,
                    double width, double samples, double computing, const GroupTopology& group,
                    const Hardware& hardware) {
  const TensorExchange::Pass& own = GoesBack(pass) ? exchange.backward() : exchange.forward();
  // What is declared is in fp32.
  const double of_fp32 = samples * (unit.has_attention() ? width / 4 : 1), ranks = group.ranks,
               summed = of_fp32 * static_cast<double>(own.summed_bytes()) + static_cast<double>(own.constant_bytes());
  const double gathered = of_fp32 * static_cast<double>(own.gathered_bytes()),
               scattered = of_fp32 * static_cast<double>(own.scattered_bytes());
  // A sum takes twice what moves its bytes.
  const OpCost parts[] = {Moved(group, hardware, 2 * summed, 2 * summed * (ranks - 1) / ranks),
                          Moved(group, hardware, ranks * gathered, (ranks - 1) * gathered),
                          Moved(group, hardware, ranks * scattered, (ranks - 1) * scattered)};
  const double rows = samples * static_cast<double>(models::TargetsPerSample(inventory));
  const double pieces = unit.piece_rows() == 0 ? 1 : std::ceil(rows / static_cast<double>(unit.piece_rows()));
  const double chunks = static_cast<double>(models::RowChunks(
      static_cast<uint64_t>(rows), static_cast<uint64_t>(pieces), static_cast<uint64_t>(group.ranks)));
  OpCost cost{.latency = parts[1].latency *
                         (own.collectives() + own.piece_collectives() * pieces + own.chunked_collectives() * chunks),
              .work = 0};
  for (const OpCost& part : parts) cost.work += part.work;
  if (hardware.sharing == Sharing::kProcessor) return cost;  // which moves the bytes itself
  // A chunk of GEMMs runs beside the exchanges of another one, but for the first or the last. The first half of a
  // backward computes no gradients of weights.
  const double beside = of_fp32 * ((pass == Pass::kBackward ? static_cast<double>(own.overlapped_bytes()) : 0) +
                                   static_cast<double>(own.chunked_bytes()) * (chunks - 1) / chunks);
  const double under_way = Moved(group, hardware, beside, beside * (ranks - 1) / ranks).work;
  cost.work -= std::min(under_way, computing / 2);
  return cost;
}

}  // namespace

OpCost TensorExchangeCost(const Inventory& inventory, const Unit& unit, Pass pass, double width, double samples,
                          double computing, const ExchangeTopologies& groups, const Hardware& hardware) {
  OpCost cost;
  if (samples == 0) return cost;
  const auto add = [&](const TensorExchange& exchange, const GroupTopology& group) {
    const OpCost its = ExchangeCost(inventory, unit, exchange, pass, width, samples, computing, group, hardware);
    cost.latency += its.latency, cost.work += its.work;
  };
  if (unit.has_tensor_exchange()) add(unit.tensor_exchange(), groups.tensor);
  if (unit.has_context_exchange()) add(unit.context_exchange(), groups.context);
  return cost;
}

namespace {

class CostModel {
 public:
  // Of the ranks of a stage.
  CostModel(const Train& train, const StageModel& model, const Mesh& mesh, uint32_t stage, const RankProgram& program,
            absl::Span<const RankPlace> ranks, const Hardware& hardware)
      : train_(train),
        inventory_(model.inventory()),
        table_(model.table()),
        hardware_(hardware),
        last_microbatch_(program.schedule.microbatches - 1),
        left_out_(program.left_out),
        mesh_(mesh),
        schedule_(program.schedule),
        groups_(TopologiesOf(program.schedule.groups, mesh, stage, ranks)),
        share_(ShareOf(train.batch().sequences(), mesh.sample_ranks(), 0).sequences),
        rates_(RatesOf(train, model.inventory().device(), ranks, hardware)),
        compute_bytes_(rates_.width),
        reduce_bytes_(DtypeBytes(train.precision().reduce())),
        state_rate_(hardware.memory_bytes_per_second),
        update_flops_(hardware.bf16_flops) {
    const Inventory& inventory = model.inventory();
    const PartitionTable& table = model.table();
    std::vector<uint64_t> own(table.shards());
    for (int u = 0; u < inventory.units_size(); ++u) {
      const partition::OwnedUnit unit = partition::OwnedUnitOf(table, inventory, u);
      std::vector<uint64_t> of(table.shards());
      for (const partition::OwnedRange& range : unit.ranges) of[range.shard] += range.end - range.begin;
      parameters_.Add(unit.flat.elements, unit.ranges.size(), of);
      const partition::OwnedUnit trained = partition::TrainedPart(unit);
      std::fill(of.begin(), of.end(), 0);
      for (const partition::OwnedRange& range : trained.ranges) of[range.shard] += range.end - range.begin;
      gradients_.Add(trained.flat.elements, trained.ranges.size(), of);
      for (size_t s = 0; s < own.size(); ++s) own[s] += of[s];
    }
    own_ = *std::max_element(own.begin(), own.end());
    if (train.offload().optimizer()) {
      state_rate_ = hardware.host_memory_bytes_per_second;
      update_flops_ = hardware.host_bf16_flops;
    }
    const std::vector<uint64_t> state =
        StateBytes(AppliedOptimizer(train, SumsOverReplicas(program.schedule)), inventory, table);
    state_bytes_ = *std::max_element(state.begin(), state.end());
  }

  // Seconds of the op that are exchanges of ranks that compute its unit together, or share its sequences.
  double TensorSeconds(const Op& op) const {
    const Pass pass = Traits(op.kind).pass;
    if (pass == Pass::kNone || !ExchangesInside(inventory_.units(op.unit))) return 0;
    const OpCost cost = Exchanged(op, pass, Compute(op, Traits(op.kind)).work);
    return cost.latency + cost.work;
  }

  OpCost Of(const Op& op) const {
    const OpTraits& traits = Traits(op.kind);
    const OpCost computing = Compute(op, traits);
    OpCost cost;
    for (const OpCost& part :
         {computing, Exchanged(op, traits.pass, computing.work), Sent(op, traits.payload),
          Summed(op.group, traits.scalar_bytes), Memory(op, traits.memory), Orthogonalization(op, traits.memory)}) {
      cost.preparing += part.preparing;
      cost.latency += part.latency;
      cost.work += part.work;
      cost.processor += part.processor;
    }
    cost.network = traits.pass == Pass::kNone && op.group >= 0 && IsNetwork(groups_[op.group], hardware_);
    // Their bytes share the link, but their messages do not wait for each other.
    if (cost.network && OverSockets(groups_[op.group], hardware_)) {
      cost.in_flight = SumsByRing(op) ? kSumsInFlight : kPostedInFlight;
    }
    return cost;
  }

 private:
  // By unit.
  struct Sizes {
    std::vector<uint64_t> elements, least, most;  // all, and the least and most that a shard owns
    std::vector<uint64_t> shares;                 // ranges of one owner

    void Add(uint64_t all, uint64_t ranges, const std::vector<uint64_t>& of) {
      elements.push_back(all);
      shares.push_back(ranges);
      least.push_back(*std::min_element(of.begin(), of.end()));
      most.push_back(*std::max_element(of.begin(), of.end()));
    }
  };

  // With ranks that have the same samples.
  static bool ExchangesInside(const Unit& unit) { return unit.has_tensor_exchange() || unit.has_context_exchange(); }

  static uint64_t Sum(const std::vector<uint64_t>& by_unit, const Op& op) {
    return std::accumulate(by_unit.begin() + op.unit, by_unit.begin() + op.unit_end, uint64_t{0});
  }

  // Bytes that the op reads or writes beside its passes, over the rate of that memory.
  OpCost Memory(const Op& op, MemoryTraffic traffic) const {
    const auto work = [](double bytes, double rate) { return OpCost{.work = bytes / rate}; };
    switch (traffic) {
      case MemoryTraffic::kNone:
        break;
      case MemoryTraffic::kUnitGradients:
        return work(4.0 * static_cast<double>(Sum(gradients_.elements, op)), hardware_.memory_bytes_per_second);
      case MemoryTraffic::kOwnedGradients:
        return work(4.0 * static_cast<double>(own_), state_rate_);
      case MemoryTraffic::kOptimizerState:
        return work(StepBytes(op), state_rate_);
      case MemoryTraffic::kHostParameters:
        return work(compute_bytes_ * static_cast<double>(Sum(parameters_.most, op)), hardware_.host_bytes_per_second);
      case MemoryTraffic::kHostGradients:
        // A later microbatch's are added to those of the ones before, which come and go.
        return work((op.microbatch > 0 ? 12.0 : 4.0) * static_cast<double>(Sum(gradients_.most, op)),
                    hardware_.host_bytes_per_second);
      case MemoryTraffic::kHostInput:
        return work(Sequences(op) * static_cast<double>(inventory_.units(op.unit - 1).output_bytes()),
                    hardware_.host_bytes_per_second);
    }
    return {};
  }

  // Of the op's units, where it names them.
  OpCost Orthogonalization(const Op& op, MemoryTraffic traffic) const {
    if (traffic != MemoryTraffic::kOptimizerState || !train_.optimizer().has_muon()) return {};
    const int unit_end = op.unit < 0 ? inventory_.units_size() : op.unit_end;
    return {.work = rates_.slowdown *
                    UpdateFlops(train_.optimizer(), inventory_, table_, std::max(0, op.unit), unit_end) /
                    update_flops_};
  }

  // Of the op's microbatch; the last one may have fewer.
  double Sequences(const Op& op) const {
    const uint64_t microbatch = train_.batch().microbatch() > 0 ? train_.batch().microbatch() : share_;
    const uint64_t index = static_cast<uint64_t>(op.microbatch) + (op.microbatch == last_microbatch_ ? left_out_ : 0);
    return static_cast<double>(std::min(microbatch, share_ - std::min(share_, microbatch * index)));
  }

  OpCost Compute(const Op& op, const OpTraits& traits) const {
    const double forwards = traits.forwards;
    if (forwards == 0) return {};
    const Unit& unit = inventory_.units(op.unit);
    const double sequences = Sequences(op);
    if (sequences == 0) return {};
    const PassWork work = traits.pass == Pass::kBackwardInputs    ? BackwardInputsWork(unit)
                          : traits.pass == Pass::kBackwardWeights ? BackwardWeightsWork(unit)
                                                                  : Forwards(unit, forwards);
    return PassCost(rates_, unit, static_cast<double>(parameters_.elements[op.unit]), sequences, work);
  }

  OpCost Moved(int32_t group, double bytes, double incoming) const {
    return strategies::Moved(groups_[group], hardware_, bytes, incoming);
  }

  // From one rank to another.
  OpCost Handed(int32_t group, double bytes) const {
    const Link& link = groups_[group].nodes > 1 ? hardware_.between : hardware_.inside;
    return {.latency = link.seconds, .work = bytes / link.bytes_per_second};
  }

  // Each collective waits for the one before. A rank without samples takes part, too.
  OpCost Exchanged(const Op& op, Pass pass, double computing) const {
    if (pass == Pass::kNone || op.group < 0) return {};
    const Unit& unit = inventory_.units(op.unit);
    if (ExchangesInside(unit)) {
      return TensorExchangeCost(inventory_, unit, pass, compute_bytes_, Sequences(op), computing,
                                {.tensor = groups_[kTensorGroup], .context = groups_[kContextGroup]}, hardware_);
    }
    const Exchange& exchange = unit.exchange();
    const double gathered = static_cast<double>(exchange.gathered_bytes()), ranks = groups_[op.group].ranks;
    OpCost cost = GoesBack(pass) ? Summed(op.group, static_cast<double>(exchange.summed_bytes()))
                                 : Moved(op.group, ranks * gathered, (ranks - 1) * gathered);
    cost.latency *= exchange.collectives();
    return cost;
  }

  OpCost Sent(const Op& op, Payload payload) const {
    switch (payload) {
      case Payload::kNone:
        break;
      case Payload::kParameters:
        return Sharded(op, parameters_, compute_bytes_);
      case Payload::kGradients:
        return Sharded(op, gradients_, reduce_bytes_);
      case Payload::kOwnedGradients:
        if (Compresses(train_.communication())) return Compressed(op);
        return Summed(op.group, static_cast<double>(Sum(gradients_.most, op)) * reduce_bytes_ / PartsIn(op));
      case Payload::kGradientParts: {
        const double bytes = static_cast<double>(Sum(gradients_.most, op)) * reduce_bytes_,
                     ranks = groups_[op.group].ranks;
        return Moved(op.group, bytes, bytes * (ranks - 1) / ranks);
      }
      case Payload::kActivations: {
        const EdgeUse edge = Traits(op.kind).edge;
        const bool handed_on = edge == EdgeUse::kSendActivation || edge == EdgeUse::kReceiveGradient;
        const double bytes = Sequences(op) * static_cast<double>(models::OutputBytes(
                                                 handed_on ? inventory_.units(op.unit).outputs() : InputsOf(op.unit),
                                                 static_cast<uint64_t>(compute_bytes_)));
        return Handed(op.group, bytes);
      }
      case Payload::kTied:
        return Tied(op, compute_bytes_);
      case Payload::kTiedGradients:
        return Tied(op, 4);
    }
    return {};
  }

  // Gloo's own sum, rather than messages to each rank.
  bool SumsByRing(const Op& op) const {
    const Compression& compression = train_.communication().compression();
    return (op.kind == OpKind::kAllReduce || op.kind == OpKind::kFinishSum) &&
           (!Compresses(train_.communication()) || compression.has_power_sgd());
  }

  // One exchange of a compressed sum, and the passes over gradients and residuals that come with it.
  OpCost Compressed(const Op& op) const {
    const Compression& compression = train_.communication().compression();
    const GroupTopology& group = groups_[op.group];
    const bool first = op.kind == OpKind::kAllReduce;
    // Of the shard with most to sum.
    double bytes = 0, elements = 0;
    for (const std::vector<SummedRange>& of_shard :
         SummedRanges(table_, inventory_, op, mesh_.replicas_inside, /*place=*/0)) {
      double own_bytes = 0, own_elements = 0;
      for (const SummedRange& range : of_shard) {
        const ExchangedBytes exchanged = BytesOf(compression, range.elements, range.parts, group.ranks);
        own_bytes += static_cast<double>(first ? exchanged.first : exchanged.second);
        own_elements += static_cast<double>(range.elements);
      }
      bytes = std::max(bytes, own_bytes), elements = std::max(elements, own_elements);
    }
    const double ranks = group.ranks;
    OpCost cost;
    if (compression.has_power_sgd()) {
      cost = Summed(op.group, bytes);
    } else if (compression.has_int8() && first) {  // to each rank its part
      const double on_node = group.least_on_node;
      cost =
          Moved(op.group, bytes * on_node * (ranks - on_node) / std::max(1.0, ranks - 1), bytes * (ranks - 1) / ranks);
    } else {
      cost = Moved(op.group, ranks * bytes, (ranks - 1) * bytes);
    }
    if (first) {
      const double computing = rates_.slowdown * elements * CompressingSeconds(compression);
      // The thread of a CPU rank that computes also compresses, before it hands the sum to Gloo's threads. A GPU's
      // streams are in order.
      if (hardware_.sharing == Sharing::kProcessor) {
        cost.preparing = computing;
      } else {
        cost.work += computing;
        cost.processor += computing;
      }
    }
    return cost;
  }

  // Of a sum of one element, on a core of its own.
  double CompressingSeconds(const Compression& compression) const {
    const double measured = compression.has_top_k()       ? hardware_.core.compressing.top_k
                            : compression.has_power_sgd() ? hardware_.core.compressing.power_sgd
                                                          : hardware_.core.compressing.int8;
    if (measured > 0) return measured;
    const CompressionWork work = WorkOf(compression);
    return work.bytes / hardware_.memory_bytes_per_second + work.flops / hardware_.fp32_flops;
  }

  // What the first unit of a chunk reads.
  const google::protobuf::RepeatedPtrField<Activation>& InputsOf(int32_t unit) const {
    const auto chunk = std::find_if(inventory_.chunks().begin(), inventory_.chunks().end(),
                                    [&](const Chunk& c) { return static_cast<int32_t>(c.begin()) == unit; });
    return chunk->inputs();
  }

  OpCost Tied(const Op& op, double width) const {
    const std::string& unit = inventory_.units(op.unit).name();
    const GroupSpec& edge = schedule_.groups[static_cast<size_t>(op.group)];
    const auto [owner, user] =
        edge.channel == Channel::kTied ? std::pair(edge.from, edge.to) : std::pair(edge.to, edge.from);
    double bytes = 0;
    for (const TiedTensor& tied : inventory_.tied()) {
      if (static_cast<int32_t>(tied.owner_stage()) != owner || static_cast<int32_t>(tied.user_stage()) != user)
        continue;
      if (tied.owner() == unit || tied.user() == unit)
        bytes += width * static_cast<double>(models::Elements(tied.tensor()));
    }
    return Handed(op.group, bytes);
  }

  // Of what a node has, each of its ranks moves so manyth part between nodes.
  double PartsIn(const Op& op) const {
    const Axes axes = AxesOf(schedule_, op.group);
    return axes == kShardsBetween ? mesh_.shards_inside : axes == kReplicasBetween ? mesh_.replicas_inside : 1;
  }

  OpCost Sharded(const Op& op, const Sizes& sizes, double width) const {
    const bool levels = mesh_.shard_levels() && op.group >= 0;
    const double parts = PartsIn(op), bytes = static_cast<double>(Sum(sizes.elements, op)) * width / parts;
    const double own = levels ? bytes / groups_[op.group].ranks : static_cast<double>(Sum(sizes.least, op)) * width;
    OpCost cost = Moved(op.group, bytes, bytes - own);
    if (!op.even && op.group >= 0) {
      cost.latency += static_cast<double>(Sum(sizes.shares, op)) / parts * hardware_.share_seconds;
    }
    return cost;
  }

  OpCost Summed(int32_t group, double bytes) const {
    return group < 0 ? OpCost() : strategies::Summed(groups_[group], hardware_, bytes);
  }

  // Of the op's units, where it names them. Reads and writes: weights and gradients, the gradient cleared for the next
  // step, and the optimizer state.
  double StepBytes(const Op& op) const {
    const double all =
        (4 * 4 + (compute_bytes_ == 2 ? 2 : 0)) * static_cast<double>(own_) + 2 * static_cast<double>(state_bytes_);
    if (op.unit < 0 || own_ == 0) return all;
    return all * static_cast<double>(Sum(gradients_.most, op)) / static_cast<double>(own_);
  }

  const Train& train_;
  const Inventory& inventory_;
  const PartitionTable& table_;
  const Hardware& hardware_;
  const int32_t last_microbatch_;
  const uint32_t left_out_;
  const Mesh mesh_;
  const Schedule& schedule_;
  const std::vector<GroupTopology> groups_;
  const uint64_t share_;  // sequences of a step
  const Rates rates_;
  const double compute_bytes_, reduce_bytes_;
  double state_rate_;    // bytes per second of the memory that has the optimizer's state
  double update_flops_;  // FLOP/s of the optimizer's GEMMs
  Sizes parameters_, gradients_;
  uint64_t own_ = 0;          // the most trained elements that any shard owns
  uint64_t state_bytes_ = 0;  // the most optimizer state
};

}  // namespace

namespace {

// The second half of an outline's microbatches but the last, as often more as it leaves out microbatches; of a pipeline
// whole groups of as many as there are stages. Ops of stage 0.
Repeated RepeatedBy(const RankProgram& program, uint32_t stages) {
  if (program.left_out == 0) return {};
  const int32_t last = program.schedule.microbatches - 1, group = static_cast<int32_t>(stages),
                middle = last - std::max(1, (last - last / 2) / group) * group;
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

absl::Status SpendOnTimes(absl::Span<const RankProgram> programs, Budget* budget) {
  constexpr uint64_t kWorkPerTimed = 10, kBytesPerTimed = sizeof(Op) + sizeof(OpCost) + sizeof(OpTime) + 8;
  uint64_t ops = 0;
  for (const RankProgram& program : programs) ops += program.schedule.ops.size();
  const auto what = [&] { return absl::StrCat("a schedule of ", ops, " ops; raise batch.microbatch"); };
  const absl::Status status = Spend(budget, ops * kWorkPerTimed, what);
  return status.ok() ? Hold(budget, ops * kBytesPerTimed, what) : status;
}

std::vector<Predicted> PredictStep(const Train& train, const Inventory& inventory, const Layout& layout,
                                   absl::Span<const RankProgram> programs, absl::Span<const RankPlace> ranks,
                                   const Hardware& hardware) {
  std::vector<Predicted> predicted(programs.size());
  std::vector<StageCosts> stages;
  for (uint32_t stage = 0; stage < programs.size(); ++stage) {
    const StageModel stage_model(inventory, layout, stage);
    const CostModel model(train, stage_model, layout.mesh, stage, programs[stage], ranks, hardware);
    const std::vector<Op>& ops = programs[stage].schedule.ops;
    predicted[stage].costs.reserve(ops.size());
    for (const Op& op : ops) {
      predicted[stage].costs.push_back(model.Of(op));
      predicted[stage].exchanged += model.TensorSeconds(op);
    }
    // Of an outline, as of the whole step.
    const double outlined = programs[stage].schedule.microbatches;
    predicted[stage].exchanged *= (outlined + programs[stage].left_out) / outlined;
    stages.push_back({&programs[stage].schedule, &predicted[stage].costs});
  }
  std::vector<Timeline> timelines =
      SimulateStages(stages, hardware.sharing, RepeatedBy(programs[0], layout.mesh.pipeline));
  for (size_t stage = 0; stage < programs.size(); ++stage) predicted[stage].timeline = std::move(timelines[stage]);
  return predicted;
}

size_t SlowestStage(absl::Span<const Predicted> stages) {
  const auto computes = [](const Predicted& stage) {
    return stage.timeline.busy[static_cast<size_t>(Stream::kCompute)];
  };
  return static_cast<size_t>(
      std::max_element(stages.begin(), stages.end(),
                       [&](const Predicted& a, const Predicted& b) { return computes(a) < computes(b); }) -
      stages.begin());
}

}  // namespace muster::strategies
