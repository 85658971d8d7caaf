// Counts what one training step of a GPT-2 or a Llama of 12 layers would launch on a GPU, by the row programs and by
// LibTorch's operators alone, without a GPU: the step runs on the CPU as a GPU runs it, and the dispatched operators
// that write numbers are counted, with our own row programs. Views and allocations launch nothing. An operator counts
// once, also where CUDA needs several kernels for it, so the counts are lower bounds. The last column is a step with
// `cuda_graphs: true`: what its graph has is one launch, and the rest is what the host still writes for each step.
//
//   bazel run //bench:launches -- --sequences 2 --dtype bf16
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "bench/model.h"
#include "bench/shape_options.h"
#include "worker/engine/engine.h"
#include "worker/engine/stream_driver.h"
#include "worker/tasks/language_model.h"

namespace muster::bench {
namespace {

// What is recorded on one thread: operators call others.
struct Recording {
  std::vector<bool> open;  // by depth: whether something below it launches
  int of_lists = 0;        // open operators of lists of tensors, which a GPU has kernels for and a CPU takes one by one
  std::map<std::string, int> launches;
};

// LibTorch's callbacks are plain functions. The step runs on one thread.
Recording& Recorded() {
  static thread_local Recording recording;
  return recording;
}

bool Writes(const c10::FunctionSchema& schema) {
  if (schema.name().starts_with("aten::empty") || schema.name().starts_with("aten::new_empty")) return false;
  if (schema.name() == "aten::resize_" || schema.name() == "aten::set_" || schema.name() == "aten::_unsafe_view") {
    return false;
  }
  // The host reads a number, which LibTorch's AdamW does on a CPU only.
  if (schema.name() == "aten::item" || schema.name() == "aten::_local_scalar_dense") return false;
  return std::none_of(schema.returns().begin(), schema.returns().end(), [](const c10::Argument& result) {
    return result.alias_info() != nullptr && !result.alias_info()->isWrite();  // a view
  });
}

// An operator with a kernel of its own launches, whatever that kernel calls on a CPU.
bool HasKernel(const c10::FunctionSchema& schema) {
  const auto found = c10::Dispatcher::singleton().findSchema(schema.operator_name());
  return found.has_value() && found->hasKernelForDispatchKey(c10::DispatchKey::CPU);
}

// A device on this CPU that has graphs. A launch only counts: no one looks at the numbers.
class CountingDriver final : public engine::StreamDriver {
 public:
  absl::StatusOr<Event> MakeEvent() override { return &recorded_; }
  void DestroyEvent(Event) override {}
  absl::Status Record(Event, Stream) override { return absl::OkStatus(); }
  absl::Status Wait(Stream, Event) override { return absl::OkStatus(); }
  absl::StatusOr<bool> Query(Event) override { return true; }
  void With(Stream, absl::FunctionRef<void()> work) override { work(); }
  absl::Status BeginCapture() override { return absl::OkStatus(); }
  absl::StatusOr<std::unique_ptr<engine::Graph>> EndCapture() override { return std::make_unique<OneLaunch>(); }

 private:
  class OneLaunch final : public engine::Graph {
   public:
    absl::Status Launch() override {
      ++Recorded().launches["the graph of the step"];
      return absl::OkStatus();
    }
  };
  int recorded_ = 0;
};

bool OfLists(const at::RecordFunction& function) {
  return std::string_view(function.name()).starts_with("aten::_foreach_");
}

std::unique_ptr<at::ObserverContext> Begin(const at::RecordFunction& function) {
  if (OfLists(function)) ++Recorded().of_lists;
  Recorded().open.push_back(false);
  return nullptr;
}

void End(const at::RecordFunction& function, at::ObserverContext*) {
  Recording& recording = Recorded();
  if (recording.open.empty()) return;
  if (OfLists(function)) --recording.of_lists;
  bool launched = recording.open.back();
  recording.open.pop_back();
  const std::string name = function.name();
  const auto schema = function.operator_schema();
  const bool ours = name.starts_with("muster::");
  if (recording.of_lists > 0) return;
  if (ours || (schema.has_value() && Writes(*schema) && (!launched || HasKernel(*schema)))) {
    launched = true;
    ++recording.launches[name];
  }
  if (launched && !recording.open.empty()) recording.open.back() = true;
}

}  // namespace

// Launches of a step, by operator, after those that only the first ones make.
absl::StatusOr<std::map<std::string, int>> Count(const Dimensions& shape, bool portable, bool graphs) {
  absl::StatusOr<engine::Configured> configured = Configure(shape);
  if (!configured.ok()) return configured.status();
  engine::Config& config = configured->config;
  config.portable = portable, config.device_rows = !portable;
  config.streams = config.decide_on_device = true;
  config.recorded = graphs;
  if (graphs) config.stream_driver = [] { return std::make_unique<CountingDriver>(); };
  absl::StatusOr<std::unique_ptr<engine::Engine>> engine = engine::Engine::Create(config);
  if (!engine.ok()) return engine.status();
  const std::vector<uint32_t> tokens = MakeTokens(shape);
  const engine::Batch batch = tasks::TokenBatch(shape.sequences, tokens, shape.sequences);
  for (int step = 0; step < 2; ++step) {
    if (const auto done = (*engine)->Step(batch, 1e-4); !done.ok()) return done.status();
  }
  Recorded() = {};
  const at::CallbackHandle handle =
      at::addGlobalCallback(at::RecordFunctionCallback(Begin, End).scopes({at::RecordScope::FUNCTION}));
  const auto counted = (*engine)->Step(batch, 1e-4);
  at::removeCallback(handle);
  if (!counted.ok()) return counted.status();
  return Recorded().launches;
}

}  // namespace muster::bench

int main(int argc, char** argv) {
  using namespace muster;
  bench::Dimensions shape{.layers = 12, .heads = 12, .width = 48, .vocabulary = 512, .context = 32, .sequences = 2};
  CLI::App app("Counts the launches of a training step, row programs against LibTorch's operators");
  bench::AddShape(app, shape);
  CLI11_PARSE(app, argc, argv);
  std::map<std::string, int> counts[3];
  std::set<std::string> names;
  int sums[3] = {0, 0, 0};
  for (int i = 0; i < 3; ++i) {
    auto counted = bench::Count(shape, /*portable=*/i == 1, /*graphs=*/i == 2);
    if (!counted.ok()) {
      std::fprintf(stderr, "%s\n", counted.status().ToString().c_str());
      return 1;
    }
    counts[i] = *std::move(counted);
    for (const auto& [name, n] : counts[i]) names.insert(name), sums[i] += n;
  }
  std::printf("%-56s %12s %12s %12s\n", "operator", "row programs", "portable", "with a graph");
  for (const std::string& name : names) {
    std::printf("%-56s %12d %12d %12d\n", name.c_str(), counts[0][name], counts[1][name], counts[2][name]);
  }
  std::printf("%-56s %12d %12d %12d\n", "all", sums[0], sums[1], sums[2]);
}
