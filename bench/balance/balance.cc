// How even the planners' tables are: the largest shard's bytes over the mean, for GPT-2's sizes on 2 to 64 ranks, with
// the busiest owner of a unit over its share, and the ranges of a gather, next to Tiny-FSDP's rule. Then ranks of 80 GB
// and 40 GB, and the time to plan 1.5B on 1,024 ranks. Markdown on stdout; only the times vary between runs.
//
//   bazel run //bench/balance
#include <algorithm>
#include <cstdio>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "bench/balance/tiny_fsdp.h"
#include "models/inventory.h"
#include "strategies/partition/explain.h"
#include "strategies/partition/planners.h"
#include "strategies/partition/table.h"

namespace muster {
namespace {

using Weighting = std::vector<uint64_t>;

struct Named {
  std::string name;
  Inventory inventory;
};

struct Planner {
  std::string name;
  std::function<PartitionTable(const Inventory&, const Weighting&)> plan;
};

std::vector<Named> Models() {
  std::vector<Named> models;
  for (const auto& [name, size] : {std::pair{"124M", GPT2_SIZE_SMALL}, std::pair{"350M", GPT2_SIZE_MEDIUM},
                                   std::pair{"774M", GPT2_SIZE_LARGE}, std::pair{"1.5B", GPT2_SIZE_XL}}) {
    Model model;
    model.mutable_gpt2()->set_size(size);
    models.push_back({name, *models::MakeInventory(*models::Resolve(model))});
  }
  return models;
}

std::vector<Planner> Planners() {
  const auto shards = [](const Weighting& w) { return static_cast<uint32_t>(w.size()); };
  return {
      {"even", [=](const Inventory& i, const Weighting& w) { return partition::Even(i, shards(w)); }},
      {"rows", [=](const Inventory& i, const Weighting& w) { return partition::Rows(i, shards(w)); }},
      {"whole", [=](const Inventory& i, const Weighting& w) { return partition::WholeTensors(i, shards(w)); }},
      {"whole, contiguous",
       [=](const Inventory& i, const Weighting& w) { return partition::WholeTensorsInRuns(i, shards(w)); }},
      {"ragged", [](const Inventory& i, const Weighting& w) { return partition::Ragged(i, w); }},
      {"ragged, contiguous", [](const Inventory& i, const Weighting& w) { return partition::RaggedInRuns(i, w); }},
  };
}

double OverMean(const std::vector<uint64_t>& sizes) {
  const double sum = std::accumulate(sizes.begin(), sizes.end(), 0.0);
  return static_cast<double>(*std::max_element(sizes.begin(), sizes.end())) * static_cast<double>(sizes.size()) / sum;
}

std::string Number(double n) { return absl::StrFormat("%.3f", n); }

// Busiest owner over its share: for the worst unit (among those worth more than a message to each rank), and for all
// units weighted by bytes.
std::string Busiest(const partition::Explanation& e) {
  double worst = 0, busiest_bytes = 0, bytes = 0;
  for (const partition::UnitExplanation& unit : e.units) {
    if (unit.bytes >= 4096 * e.bytes.size()) worst = std::max(worst, unit.over);
    busiest_bytes += static_cast<double>(unit.busiest_bytes);
    bytes += static_cast<double>(unit.bytes);
  }
  return absl::StrCat(Number(worst), ", ", Number(busiest_bytes * static_cast<double>(e.bytes.size()) / bytes));
}

// A row for each model and planner, a column for each number of ranks.
void PrintTable(const std::string& title, const std::vector<Named>& models, const std::vector<uint32_t>& ranks,
                const std::function<std::string(const partition::Explanation&)>& cell, bool tiny_fsdp) {
  std::printf("\n%s\n\n| model | placement |", title.c_str());
  for (const uint32_t n : ranks) std::printf(" %u ranks |", n);
  std::printf("\n|---|---|");
  for (size_t i = 0; i < ranks.size(); ++i) std::printf("---:|");
  std::printf("\n");
  for (const Named& model : models) {
    for (const Planner& planner : Planners()) {
      std::printf("| %s | %s |", model.name.c_str(), planner.name.c_str());
      for (const uint32_t n : ranks) {
        const partition::Explanation e =
            partition::Explain(planner.plan(model.inventory, Weighting(n, 1)), model.inventory);
        std::printf(" %s |", cell(e).c_str());
      }
      std::printf("\n");
    }
    for (const double evenness : {0.0, 0.5, 1.0}) {
      if (!tiny_fsdp) break;
      std::printf("| %s | Tiny-FSDP's rule, evenness %g |", model.name.c_str(), evenness);
      for (const uint32_t n : ranks) {
        std::printf(" %s |", Number(OverMean(bench::TinyFsdp(model.inventory, n, evenness))).c_str());
      }
      std::printf("\n");
    }
  }
}

void PrintMixedMemory(const std::vector<Named>& models) {
  std::printf("\nRagged shares of ranks of 80 GB and 40 GB, over what their memory entitles them to\n\n");
  std::printf("| model | ranks | least | most |\n|---|---|---:|---:|\n");
  const uint64_t large = 80'000'000'000, small = 40'000'000'000;
  for (const Named& model : models) {
    for (const Weighting& weights :
         {Weighting{large, small}, Weighting{large, large, large, large, small, small, small, small}}) {
      const partition::Explanation e =
          partition::Explain(partition::Ragged(model.inventory, weights), model.inventory, weights);
      const double bytes = std::accumulate(e.bytes.begin(), e.bytes.end(), 0.0);
      const double memory = std::accumulate(weights.begin(), weights.end(), 0.0);
      double least = 1e9;
      for (size_t s = 0; s < weights.size(); ++s) {
        least = std::min(least, static_cast<double>(e.bytes[s]) / bytes / (static_cast<double>(weights[s]) / memory));
      }
      std::printf("| %s | %zu × 80 GB, %zu × 40 GB | %.3f | %.3f |\n", model.name.c_str(), weights.size() / 2,
                  weights.size() / 2, least, e.over_share);
    }
  }
}

bool PrintTimes(const Named& model) {
  constexpr uint32_t kRanks = 1024;
  std::printf("\n%s on %u ranks: milliseconds, bytes of the table\n\n", model.name.c_str(), kRanks);
  std::printf("| placement | plan | check | explain | table |\n|---|---:|---:|---:|---:|\n");
  for (const Planner& planner : Planners()) {
    const absl::Time start = absl::Now();
    const PartitionTable table = planner.plan(model.inventory, Weighting(kRanks, 1));
    const absl::Time planned = absl::Now();
    const absl::Status status = partition::Check(table, model.inventory);
    const absl::Time checked = absl::Now();
    if (!status.ok()) {
      std::fprintf(stderr, "%s: %s\n", planner.name.c_str(), status.ToString().c_str());
      return false;
    }
    const partition::Explanation e = partition::Explain(table, model.inventory);
    const absl::Time explained = absl::Now();
    std::printf("| %s | %.1f | %.1f | %.1f | %s |\n", planner.name.c_str(), absl::ToDoubleMilliseconds(planned - start),
                absl::ToDoubleMilliseconds(checked - planned), absl::ToDoubleMilliseconds(explained - checked),
                absl::StrCat(table.ByteSizeLong()).c_str());
  }
  return true;
}

bool Run() {
  const std::vector<Named> models = Models();
  const std::vector<uint32_t> ranks{2, 4, 8, 64};
  PrintTable(
      "Largest shard over the mean, in bytes", models, ranks, [&](const auto& e) { return Number(e.over_mean); }, true);
  PrintTable(
      "Busiest owner of a unit, over its share of it: the worst unit of 4 KiB a rank and more, and all units", models,
      ranks, [&](const auto& e) { return Busiest(e); }, false);
  PrintTable(
      "Ranges of the largest gather", {models.front()}, ranks,
      [](const auto& e) { return absl::StrCat(e.most_ranges); }, false);
  PrintMixedMemory(models);
  return PrintTimes(models.back());
}

}  // namespace
}  // namespace muster

int main() { return muster::Run() ? 0 : 1; }
