// Ranks as threads of this process, for comparisons under every strategy.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "proto/spec.pb.h"
#include "tests/parity/peer.h"
#include "worker/collectives/group.h"
#include "worker/collectives/key_value.h"
#include "worker/engine/configure.h"
#include "worker/engine/mesh_groups.h"

namespace muster::parity {

using SetStrategy = std::function<void(Strategy&)>;
void Ddp(Strategy& strategy);
void FullShard(Strategy& strategy);

// One for each way in which a rank's parameters, gradients and state are cut, with fewest ranks.
struct NamedStrategy {
  const char* name;
  uint32_t ranks;
  SetStrategy set;
};
const std::vector<NamedStrategy>& StrategyTable();

// A rank's process groups by Gloo over loopback, as the trainer makes them. All ranks make theirs at the same time.
class RankGroups {
 public:
  RankGroups(const engine::Configured& configured, collectives::KeyValue& rendezvous);
  const std::vector<collectives::Group*>& by_number() const { return groups_.by_number; }

 private:
  engine::MeshGroups groups_;
};

// Runs body(rank) in a thread each, and waits.
void RunRanks(uint32_t ranks, const std::function<void(uint32_t)>& body);

// Prints a row of the table of family, strategy, ranks and accumulation.
void PrintRow(const std::string& family, const NamedStrategy& strategy, uint32_t accumulation, const Difference& d);

}  // namespace muster::parity
