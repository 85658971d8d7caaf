// One rank of bench/ranks.py: reads lines "N" from standard input, runs N steps, and answers with one JSON line of
// their times and the memory so far. `--reduce full` trains by ddp, `loss` the same without its sums of gradients,
// `none` without any reduction (ranks diverge), `only` nothing but the reductions. `--graphs on` and `off` are with and
// without CUDA graphs, by the same queue; on a CPU, which has none, steps are only recorded. `--replicas`: so many jobs
// of an equal part of the ranks each, that exchange every `--every` steps how far they came (`sync` of a spec).
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/zeros.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "bench/file_key_value.h"
#include "bench/local_steps.h"
#include "bench/model.h"
#include "bench/paced_ops.h"
#include "bench/shape_options.h"
#include "bench/status.h"
#include "strategies/partition/flat.h"
#include "worker/collectives/gloo.h"
#ifdef MUSTER_CUDA
#include "worker/collectives/nccl.h"
#endif
#include "worker/engine/engine.h"
#include "worker/engine/mesh_groups.h"
#include "worker/tasks/language_model.h"

namespace {

using namespace muster;

struct Rank {
  std::unique_ptr<bench::FileKeyValue> rendezvous;
  engine::MeshGroups groups;
  std::optional<bench::PacedOps> paced;
  std::vector<std::string> op_names;
  std::unique_ptr<engine::Engine> engine;
  std::unique_ptr<bench::Replica> replica;  // null: the ranks are one job
  std::vector<uint32_t> tokens;
  uint64_t planned_bytes = 0;
  int units = 0;                               // of its stage
  std::vector<double> losses;                  // since the last pause
  std::function<absl::Status(int left)> step;  // `left`: steps to come before the next pause, this one included
};

// The compute ops, as a single rank would run them.
void WithoutReductions(Schedule& schedule) {
  std::erase_if(schedule.ops, [](const Op& op) { return op.group >= 0; });
  for (Op& op : schedule.ops) op.waits.clear();
}

// Ranks sum the loss, and no gradients: they stay together, as all that train a model do.
void WithoutGradients(Schedule& schedule) {
  std::erase_if(schedule.ops, [](const Op& op) { return op.group >= 0 && op.kind != OpKind::kReduceScalars; });
  int32_t scalars = -1;
  for (size_t i = 0; i < schedule.ops.size(); ++i) {
    Op& op = schedule.ops[i];
    op.waits.clear();
    if (op.kind == OpKind::kReduceScalars) scalars = static_cast<int32_t>(i);
    if (op.kind == OpKind::kOptimizerStep) op.waits = {scalars};
  }
}

std::vector<int64_t> Buckets(const engine::Config& config) {
  std::vector<int64_t> buckets;
  for (const Op& op : config.schedule.ops) {
    if (op.kind != OpKind::kAllReduce) continue;
    int64_t elements = 0;
    for (int32_t u = op.unit; u < op.unit_end; ++u) {
      elements += static_cast<int64_t>(partition::Flatten(config.inventory.units(u)).elements);
    }
    buckets.push_back(elements);
  }
  return buckets;
}

absl::Status ReduceOnly(collectives::Group& group, const std::vector<at::Tensor>& buckets) {
  std::vector<std::unique_ptr<collectives::Work>> works;
  for (const at::Tensor& bucket : buckets) works.push_back(group.AllReduce(bucket));
  for (const auto& work : works) {
    if (absl::Status status = work->Wait(); !status.ok()) return status;
  }
  return absl::OkStatus();
}

struct Options {
  std::string folder, reduce = "full", write, graphs, host = "127.0.0.1";
  bool sockets = false, cuda = false;
  double share = 0;  // of a core; 0: ops are not timed
  uint32_t replicas = 1, replica = 0, every = 50;
};

// Name, begin and end of each op that computed, in milliseconds.
nlohmann::json OpsOf(const std::vector<bench::PacedOps::Span>& spans, const std::vector<std::string>& names) {
  nlohmann::json ops = nlohmann::json::array();
  for (const bench::PacedOps::Span& span : spans) {
    ops.push_back({names[static_cast<size_t>(span.op)], 1e3 * span.begin.count(), 1e3 * span.end.count()});
  }
  return ops;
}

absl::StatusOr<std::unique_ptr<collectives::Group>> Join(const GroupSpec& group, const Membership& own,
                                                         const Options& options, Rank& of) {
  const std::string name = engine::NameOf(group, own);
  const int rank = static_cast<int>(own.index), size = static_cast<int>(own.size);
#ifdef MUSTER_CUDA
  if (options.cuda) {
    return collectives::MakeNccl({.rank = rank, .size = size, .name = name, .host = "127.0.0.1"}, *of.rendezvous);
  }
#endif
  return collectives::MakeGloo(
      {.rank = rank, .size = size, .name = name, .host = options.host, .direct = !options.sockets}, *of.rendezvous);
}

absl::Status Prepare(const bench::Dimensions& shape, const Options& options, Rank& rank) {
  auto configured = bench::Configure(shape);
  if (!configured.ok()) return configured.status();
  engine::Config& config = configured->config;
  rank.units = config.inventory.units_size();
  rank.planned_bytes = configured->memory.peak - configured->memory.fixed;  // of tensors
  const Inventory inventory = config.inventory;
  const std::string meeting = options.folder + "/replica-" + std::to_string(options.replica);
  std::filesystem::create_directories(meeting);
  rank.rendezvous = std::make_unique<bench::FileKeyValue>(meeting);
  auto groups = engine::MakeGroups(
      configured->mesh, config.schedule.groups, shape.rank,
      [&](const GroupSpec& group, const Membership& own) -> absl::StatusOr<std::unique_ptr<collectives::Group>> {
        if (group.channel == Channel::kExchange && !UsesGroup(config.schedule, kExchangeGroup)) return nullptr;
        return Join(group, own, options, rank);
      });
  if (!groups.ok()) return groups.status();
  rank.groups = *std::move(groups);
  if (options.reduce == "only") {
    std::vector<at::Tensor> buckets;
    for (const int64_t elements : Buckets(config)) buckets.push_back(at::zeros({elements}));
    rank.step = [&rank, buckets](int) { return ReduceOnly(*rank.groups.by_number[kWorldGroup], buckets); };
    return absl::OkStatus();
  }
  if (options.reduce == "full" || options.reduce == "loss") config.groups = rank.groups.by_number;
  if (options.reduce == "loss") WithoutGradients(config.schedule), config.unproven = true;
  if (options.reduce == "none") WithoutReductions(config.schedule);
  config.recorded = options.graphs == "on";
  config.streams = !options.graphs.empty() && !options.cuda;
  if (options.share > 0) {
    config.progress = &rank.paced.emplace(options.share);
    for (const Op& op : config.schedule.ops) rank.op_names.push_back(Print(op, config.inventory));
  }
  auto made = engine::Engine::Create(config);
  if (!made.ok()) return made.status();
  rank.engine = *std::move(made);
  if (options.replicas > 1) {
    auto replica = bench::Replica::Join({.folder = options.folder,
                                         .host = options.host,
                                         .replicas = options.replicas,
                                         .replica = options.replica,
                                         .ranks = shape.ranks,
                                         .rank = shape.rank,
                                         .every = options.every},
                                        *rank.engine, inventory, rank.groups.by_number[kWorldGroup]);
    if (!replica.ok()) return replica.status();
    rank.replica = *std::move(replica);
  }
  rank.tokens = bench::MakeTokens(shape);
  const uint32_t context_rank = ContextRankAt(config.mesh, CoordinateOf(config.mesh, shape.rank));
  rank.step = [&rank, shape, context_rank](int left) {
    engine::Engine& engine = *rank.engine;
    const engine::Batch batch = tasks::TokenBatch(shape.sequences, rank.tokens, shape.sequences * shape.sample_ranks(),
                                                  shape.context_ranks, context_rank);
    while (engine.in_flight() < std::min(left, engine.most_in_flight())) {
      if (absl::Status s = engine.Issue(batch, 1e-4); !s.ok()) return s;
    }
    const auto result = engine.Await();
    if (!result.ok()) return result.status();
    rank.losses.push_back(result->loss);
    return rank.replica == nullptr ? absl::OkStatus() : rank.replica->AfterStep();
  };
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  bench::Dimensions shape;
  Options options;
  CLI::App app("One rank of bench/ranks.py");
  bench::AddShape(app, shape);
  app.add_option("--folder", options.folder, "where the ranks meet")->required();
  app.add_option("--strategy", shape.strategy);
  app.add_option("--host", options.host, "this rank's address")->envname("MUSTER_BENCH_HOST");
  app.add_flag("--sockets", options.sockets, "also where ranks could read each other's memory");
  app.add_option("--reduce", options.reduce)->check(CLI::IsMember({"full", "loss", "none", "only"}));
  app.add_option("--share", options.share, "of a core: say when each op computed, which took as long as on so much");
  app.add_option("--replicas", options.replicas, "jobs that exchange how far they came");
  app.add_option("--every", options.every, "steps between two exchanges of replicas");
  app.add_option("--graphs", options.graphs)->check(CLI::IsMember({"on", "off"}));
  app.add_option("--write", options.write,
                 "of one rank: a file for the model and its batch, as it was before the first step");
  CLI11_PARSE(app, argc, argv);

  options.cuda = shape.cuda;
  shape.ranks /= options.replicas;
  options.replica = shape.rank / shape.ranks, shape.rank %= shape.ranks;
  const uint64_t before = bench::StatusBytes("VmRSS"), code = bench::StatusBytes("RssFile");
  Rank rank;
  absl::Status prepared = Prepare(shape, options, rank);
  if (prepared.ok() && !options.write.empty()) prepared = bench::Write(*rank.engine, rank.tokens, options.write);
  if (!prepared.ok()) {
    std::fprintf(stderr, "%s\n", prepared.ToString().c_str());
    return 1;
  }
  std::printf("{\"ready\": true, \"units\": %d}\n", rank.units);
  std::fflush(stdout);
  for (int steps = 0; std::cin >> steps;) {
    nlohmann::json answer;
    std::vector<double> times;
    const auto begin = std::chrono::steady_clock::now();
    const auto since = [](std::chrono::steady_clock::time_point start) {
      return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    };
    for (int i = 0; i < steps; ++i) {
      const auto start = std::chrono::steady_clock::now();
      if (const absl::Status status = rank.step(steps - i); !status.ok()) {
        std::fprintf(stderr, "%s\n", status.ToString().c_str());
        return 1;
      }
      times.push_back(since(start));
    }
    // Where the host runs ahead, only the whole round has a time.
    if (rank.engine != nullptr && rank.engine->most_in_flight() > 1) times.assign(times.size(), since(begin) / steps);
    answer["milliseconds"] = times;
    if (rank.paced.has_value()) answer["ops"] = OpsOf(rank.paced->Take(), rank.op_names);
    answer["losses"] = std::exchange(rank.losses, {});
    answer["peak_bytes"] = bench::StatusBytes("VmHWM");
    answer["memory_bytes"] = bench::StatusBytes("VmHWM") - before;
    answer["code_bytes"] = bench::StatusBytes("RssFile") - code;
    if (rank.engine != nullptr) {
      answer["tensor_bytes"] = rank.engine->peak_memory_bytes();
      answer["offloaded_bytes"] = rank.engine->host_memory_bytes();
    }
    answer["planned_bytes"] = rank.planned_bytes;
    std::cout << answer << std::endl;
  }
}
