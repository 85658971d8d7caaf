#include "strategies/local_steps.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "strategies/cost.h"
#include "strategies/optimizer_plan.h"
#include "strategies/partition/table.h"

namespace muster::strategies {
namespace {

// Of an element as it travels, with its part of a scale.
double ExchangedBits(ExchangedValues values) {
  switch (values) {
    case EXCHANGED_VALUES_BF16:
      return 16;
    case EXCHANGED_VALUES_INT8:
      return 8 + 32.0 / 256;
    case EXCHANGED_VALUES_INT4:
      return 4 + 32.0 / 32;
    default:
      return 32;
  }
}

// Bytes that a contribution and the outer step read and write of an element, and that each contribution adds.
constexpr double kOuterBytes = 53, kBytesPerContribution = 9;

// A window's first bytes: ten segments of 1,448.
constexpr double kFirstWindow = 14'480;

double FetchSeconds(double bytes, double bytes_per_second, double latency) {
  const double round_trip = 2 * latency, held = std::min(bytes, bytes_per_second * round_trip);
  const double rounds = std::max(1.0, std::ceil(std::log2(held / kFirstWindow + 1)));
  return round_trip * (1 + rounds) + bytes / bytes_per_second;
}

// At which the rank that fetches from other replicas does so: with the ports of its node's ranks, which those of other
// shares use as well. The least of all nodes.
double FetchRate(const Layout& layout, absl::Span<const RankPlace> ranks, const Hardware& hardware) {
  struct OnNode {
    double ranks = 0, fetching = 0;
  };
  std::map<uint32_t, OnNode> nodes;
  for (size_t rank = 0; rank < layout.roles.size(); ++rank) {
    OnNode& node = nodes[ranks[rank].node];
    ++node.ranks;
    if (layout.roles[rank].replica() == 0) ++node.fetching;
  }
  double least = 0;
  for (const auto& [index, node] : nodes) {
    if (node.fetching == 0) continue;
    const double rate = hardware.between.bytes_per_second * node.ranks / node.fetching;
    least = least == 0 ? rate : std::min(least, rate);
  }
  return least;
}

}  // namespace

ReplicaExchange PredictExchange(const Train& train, const Inventory& inventory, const Layout& layout, Device device,
                                absl::Span<const RankPlace> ranks, const Hardware& hardware, double step_seconds) {
  const Sync& sync = train.sync();
  const std::vector<uint64_t> owned = partition::TrainedElements(layout.table, inventory);
  const auto elements = static_cast<double>(*std::max_element(owned.begin(), owned.end()));
  const double others = sync.replicas() - 1, fragments = sync.fragments(), part = elements / fragments;
  ReplicaExchange exchange{.sent_bytes = elements * ExchangedBits(sync.values()) / 8, .kept_bytes = 8 * elements};
  const double bytes = exchange.sent_bytes / fragments;

  double travels = others * FetchSeconds(bytes, FetchRate(layout, ranks, hardware), hardware.between.seconds);
  if (const double followers = layout.mesh.replica - 1; followers > 0) {
    const bool near =
        std::all_of(ranks.begin(), ranks.end(), [&](const RankPlace& r) { return r.node == ranks[0].node; });
    const Link& link = near ? hardware.inside : hardware.between;
    travels += others * FetchSeconds(followers * bytes, link.bytes_per_second, link.seconds);
  }
  const bool on_host = device != DEVICE_CUDA;
  const double memory = on_host ? hardware.memory_bytes_per_second : hardware.host_memory_bytes_per_second;
  double computes = RatesOf(train, device, ranks, hardware).slowdown * part *
                    (kOuterBytes + kBytesPerContribution * sync.replicas()) / memory;
  if (!on_host) {
    // All state comes for the contribution and for the outer step; the parameters go back after it.
    const std::vector<uint64_t> state = StateBytes(train.optimizer(), inventory, layout.table);
    const auto most = static_cast<double>(*std::max_element(state.begin(), state.end()));
    computes += (2 * most + 3 * 4 * elements) / hardware.host_bytes_per_second;
  }

  exchange.seconds = travels + computes;
  const double waits = std::max(0.0, travels - sync.delay() * step_seconds) + computes;
  exchange.step_seconds = waits * fragments / sync.every();
  return exchange;
}

}  // namespace muster::strategies
