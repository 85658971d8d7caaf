// Predicts, by the simulator, the step that bench/networks.py measures: ranks on two nodes, half on each, over a link
// of so many Mbit/s. The rates of computing are those with which a step's computing is predicted to take what was
// measured: --alone-ms, of ranks that sum nothing, or nothing but their loss. They say nothing about moving and
// compressing bytes, which are measured on a core by itself (--socket-mb, --compressing-ns) and take longer where ranks
// share cores. With --auto also chooses levels and compression as the coordinator does where the spec leaves both to
// it. Prints one JSON line.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "bench/model.h"
#include "bench/shape_options.h"
#include "models/inventory.h"
#include "strategies/choose_communication.h"
#include "strategies/cost.h"
#include "strategies/fit.h"
#include "strategies/hardware.h"
#include "strategies/local_steps.h"

namespace {

using namespace muster;

// Of a frame of 1,514 bytes, which tc counts, TCP carries 1,448.
constexpr double kPayload = 1448.0 / 1514;
// Of a message between two processes by sockets, without a link: 32 us on idle cores, 37 while others compute on them.
constexpr double kKernelSeconds = 40e-6;

struct Step {
  double seconds = 0, computes = 0;
};

// With exchanges of replicas, where there is a Sync: a replica of a run, whose ranks are on a node.
absl::StatusOr<Step> Predict(const bench::Dimensions& shape, const strategies::Hardware& hardware,
                             const std::optional<Sync>& sync = std::nullopt) {
  absl::StatusOr<Train> train = bench::TrainOf(shape);
  if (!train.ok()) return train.status();
  const auto inventory = models::MakeInventory(*train, DEVICE_CPU);
  if (!inventory.ok()) return inventory.status();
  const uint32_t nodes = sync.has_value() ? 1 : 2;
  const std::vector<RankPlace> places = strategies::FullNodes(shape.ranks, shape.ranks / nodes, /*memory_bytes=*/0);
  const auto plan = strategies::PlanMemory(*train, *inventory, places);
  if (!plan.ok()) return plan.status();
  const Timeline timeline =
      strategies::PredictStep(*train, *inventory, plan->layout, plan->programs, places, hardware)[0].timeline;
  Step step{.seconds = timeline.seconds, .computes = timeline.busy[static_cast<size_t>(Stream::kCompute)]};
  if (!sync.has_value()) return step;
  *train->mutable_sync() = *sync;
  step.seconds +=
      strategies::PredictExchange(*train, *inventory, plan->layout, DEVICE_CPU, places, hardware, step.seconds)
          .step_seconds;
  return step;
}

// "flat", "levels", "int8" or "levels_int8", as networks.py names them.
absl::StatusOr<std::string> Choose(const bench::Dimensions& shape, const strategies::Hardware& hardware) {
  absl::StatusOr<Train> train = bench::TrainOf(shape);
  if (!train.ok()) return train.status();
  train->mutable_communication()->set_hierarchy(HIERARCHY_AUTO);
  train->mutable_communication()->mutable_compression()->mutable_auto_();
  const auto inventory = models::MakeInventory(*train, DEVICE_CPU);
  if (!inventory.ok()) return inventory.status();
  const std::vector<RankPlace> places = strategies::FullNodes(shape.ranks, shape.ranks / 2, /*memory_bytes=*/0);
  auto plan = strategies::PlanMemory(*train, *inventory, places);
  if (!plan.ok()) return plan.status();
  std::string reason;
  absl::Status status = strategies::ChooseLevels(*train, *inventory, places, hardware, /*budget=*/nullptr, *plan);
  if (status.ok()) {
    status = strategies::ChooseCompression(*train, *inventory, places, hardware, /*budget=*/nullptr, *plan, reason);
  }
  if (!status.ok()) return status;
  const Communication& chosen = train->communication();
  const bool levels = chosen.hierarchy() == HIERARCHY_ALWAYS;
  if (!chosen.compression().has_int8()) return levels ? "levels" : "flat";
  return levels ? "levels_int8" : "int8";
}

}  // namespace

int main(int argc, char** argv) {
  bench::Dimensions shape;
  double mbit = 0, link_milliseconds = 0, alone_milliseconds = 0, socket_megabytes = 0, compressing_nanoseconds = 0;
  double cores = std::max(1u, std::thread::hardware_concurrency());
  uint32_t replicas = 1, every = 50;
  bool choose = false;
  CLI::App app("The step that bench/networks.py measures, predicted");
  bench::AddShape(app, shape);
  app.add_option("--link-mbit,--link_mbit", mbit)->required();
  app.add_option("--link-ms,--link_ms", link_milliseconds, "of latency");
  app.add_option("--alone-ms,--alone_ms", alone_milliseconds, "a step of ranks that sum nothing")->required();
  app.add_option("--socket-mb", socket_megabytes, "a second that a core receives over sockets while it sends as many");
  app.add_option("--compressing-ns", compressing_nanoseconds,
                 "that a core takes for an element of a compressed sum; with --auto of int8");
  app.add_option("--cores", cores, "of the machine, which all ranks share");
  app.add_option("--replicas", replicas, "with local steps, each on a node of its own");
  app.add_option("--every", every, "steps between two exchanges of replicas");
  app.add_flag("--auto", choose, "choose levels and compression");
  CLI11_PARSE(app, argc, argv);

  strategies::Hardware hardware = *strategies::FindHardware("cpu");
  hardware.at_full_speed = 0;  // what was measured of a step includes the sharing of cores
  const double on_a_core = std::max(1.0, shape.ranks / cores), compressing = compressing_nanoseconds * 1e-9 * on_a_core;
  hardware.core.socket_bytes_per_second = socket_megabytes * 1e6 / on_a_core;
  hardware.core.compressing = {.top_k = compressing, .power_sgd = compressing, .int8 = compressing};
  hardware.inside.bytes_per_second /= on_a_core;
  hardware.ranks_per_node = shape.ranks / 2;
  hardware.between.bytes_per_second = mbit * 1e6 / 8 * kPayload / hardware.ranks_per_node;
  hardware.between.seconds = hardware.between.ring_seconds = kKernelSeconds + link_milliseconds / 1e3;
  bench::Dimensions exact = shape;
  exact.compression.clear(), exact.ranks_on_node = 0;
  // What travels takes a share of the cores, which is no computing.
  strategies::Hardware unlinked = hardware;
  unlinked.between = unlinked.inside = {.bytes_per_second = 1e15};
  unlinked.core.socket_bytes_per_second = 0;
  absl::StatusOr<Step> step = Predict(exact, unlinked);
  if (step.ok()) {
    const double scale = step->computes / (alone_milliseconds / 1e3);
    hardware.fp32_flops *= scale, hardware.bf16_flops *= scale, hardware.memory_bytes_per_second *= scale;
    hardware.op_seconds /= scale;
    std::optional<Sync> sync;
    if (replicas > 1) {
      sync = bench::SyncOf(replicas, every);
      shape.ranks /= replicas;
    }
    step = Predict(shape, hardware, sync);
  }
  const absl::StatusOr<std::string> chosen = choose && step.ok() ? Choose(exact, hardware) : "";
  for (const absl::Status& status : {step.status(), chosen.status()}) {
    if (status.ok()) continue;
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return 1;
  }
  nlohmann::json answer = {{"step_milliseconds", 1e3 * step->seconds}};
  if (choose) answer["chosen"] = *chosen;
  std::printf("%s\n", answer.dump().c_str());
}
