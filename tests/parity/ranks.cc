#include "tests/parity/ranks.h"

#include <cstdio>
#include <thread>

#include "worker/collectives/gloo.h"

namespace muster::parity {
namespace {

SetStrategy ZeroOf(uint32_t stage) {
  return [=](Strategy& s) { s.mutable_zero()->set_stage(stage); };
}
SetStrategy FsdpOf(Reshard reshard) {
  return [=](Strategy& s) { s.mutable_fsdp()->set_reshard(reshard); };
}

}  // namespace

void Ddp(Strategy& strategy) { strategy.mutable_ddp()->set_bucket_mib(0.1); }  // a few buckets
void FullShard(Strategy& strategy) { FsdpOf(RESHARD_FULL_SHARD)(strategy); }

const std::vector<NamedStrategy>& StrategyTable() {
  static const auto* const table = new std::vector<NamedStrategy>{
      {"ddp", 2, Ddp},
      {"zero 1", 2, ZeroOf(1)},
      {"zero 2", 2, ZeroOf(2)},
      {"zero 3", 2, ZeroOf(3)},
      {"fsdp full_shard", 2, FullShard},
      {"fsdp shard_grad_op", 2, FsdpOf(RESHARD_SHARD_GRAD_OP)},
      {"fsdp no_shard", 2, FsdpOf(RESHARD_NO_SHARD)},
      {"fsdp hybrid, 2 x 2", 4,
       [](Strategy& s) {
         s.mutable_fsdp()->set_reshard(RESHARD_HYBRID);
         s.mutable_fsdp()->set_shard_ranks(2);
       }},
  };
  return *table;
}

RankGroups::RankGroups(const engine::Configured& configured, collectives::KeyValue& rendezvous)
    : groups_(engine::MakeGroups(configured.mesh, configured.config.schedule.groups, configured.config.rank,
                                 [&](const GroupSpec& group, const Membership& own) {
                                   return collectives::MakeGloo({.rank = static_cast<int>(own.index),
                                                                 .size = static_cast<int>(own.size),
                                                                 .name = engine::NameOf(group, own),
                                                                 .host = "127.0.0.1"},
                                                                rendezvous);
                                 })
                  .value()) {}

void RunRanks(uint32_t ranks, const std::function<void(uint32_t)>& body) {
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < ranks; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

void PrintRow(const std::string& family, const NamedStrategy& strategy, uint32_t accumulation, const Difference& d) {
  std::printf("| %s | %s | %u | %u | %.1e | %.1e |\n", family.c_str(), strategy.name, strategy.ranks, accumulation,
              d.loss, d.norm);
}

}  // namespace muster::parity
