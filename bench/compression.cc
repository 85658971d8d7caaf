// What compressing and applying a sum of gradients takes of one core, without what travels; likewise an exchange of two
// replicas with local steps:
//
//   bazel build //bench:compression && bazel-bin/bench/compression
//
// Milliseconds for each million elements, in buckets of a quarter of a million; the smallest and the median of 30
// steps. With --json one line: the median by kind.
#include <ATen/Parallel.h>
#include <ATen/ops/randn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "bench/model.h"
#include "strategies/compression.h"
#include "worker/collectives/threads.h"
#include "worker/compression/compressed_sum.h"
#include "worker/trainer/outer_state.h"

namespace {

using muster::compression::CompressedSum;

constexpr int64_t kBucket = 250'000, kBuckets = 4;
constexpr int kSteps = 30;

// The smallest and the median.
std::pair<double, double> Measure(const muster::compression::Options& options) {
  const auto groups = muster::collectives::MakeThreads(1, absl::Seconds(30));
  std::vector<std::unique_ptr<CompressedSum>> sums;
  std::vector<at::Tensor> given, gradients;
  for (int64_t b = 0; b < kBuckets; ++b) {
    muster::compression::Options own = options;
    own.group = groups[0].get(), own.elements = kBucket, own.parts = {{0, {500, 500}}};
    sums.push_back(MakeCompressedSum(own));
    given.push_back(at::randn({kBucket}));
    gradients.push_back(at::randn({kBucket}));
  }
  std::vector<double> times;
  for (uint64_t step = 0; step < kSteps; ++step) {
    for (int64_t b = 0; b < kBuckets; ++b) gradients[b].copy_(given[b]);
    const auto begin = std::chrono::steady_clock::now();
    for (int64_t b = 0; b < kBuckets; ++b) {
      for (auto& work : sums[b]->Begin(gradients[b], step)) (void)work->Wait();
      for (auto& work : sums[b]->Continue()) (void)work->Wait();
      sums[b]->End();
    }
    times.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
  }
  std::sort(times.begin(), times.end());
  return {times.front(), times[times.size() / 2]};
}

// Parameters without a model.
class Tensors final : public muster::trainer::Parameters {
 public:
  Tensors() : values_(kBuckets, std::vector<float>(kBucket, 1.0f)) {
    for (int64_t b = 0; b < kBuckets; ++b) inventory.add_units()->add_tensors()->set_name(std::to_string(b));
  }
  absl::StatusOr<std::vector<muster::engine::StateView>> Pull() override {
    std::vector<muster::engine::StateView> views(kBuckets);
    for (int64_t b = 0; b < kBuckets; ++b) {
      views[b].kind = "parameter", views[b].tensor = std::to_string(b), views[b].shape = {kBucket};
      views[b].values = absl::MakeSpan(values_[b]);
    }
    return views;
  }
  absl::Status Push() override { return absl::OkStatus(); }
  // As steps do.
  void Change() {
    for (std::vector<float>& tensor : values_) {
      for (size_t i = 0; i < tensor.size(); ++i) tensor[i] += 1e-6f * static_cast<float>(i % 1000);
    }
  }

  muster::Inventory inventory;

 private:
  std::vector<std::vector<float>> values_;
};

std::pair<double, double> MeasureExchange(muster::ExchangedValues values) {
  Tensors tensors;
  muster::Sync sync = muster::bench::SyncOf(/*replicas=*/2, /*every=*/1);
  sync.set_values(values);
  const auto state = muster::trainer::OuterState::Create(&tensors, tensors.inventory, sync);
  std::vector<double> times;
  for (uint64_t exchange = 1; state.ok() && exchange <= kSteps; ++exchange) {
    tensors.Change();
    const auto begin = std::chrono::steady_clock::now();
    const absl::StatusOr<std::string> own = (*state)->Contribution(0);
    if (!own.ok() || !(*state)->Apply(0, exchange, {*own, *own}).ok()) break;
    times.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
  }
  if (times.size() < kSteps) return {};
  std::sort(times.begin(), times.end());
  return {times.front(), times[times.size() / 2]};
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("What compressing and applying a sum of gradients, or an exchange of replicas, takes of one core");
  bool json = false;
  app.add_flag("--json", json, "one line");
  CLI11_PARSE(app, argc, argv);
  at::set_num_threads(1);
  std::vector<std::pair<std::string, muster::compression::Options>> kinds;
  for (const bool sampled : {false, true}) {
    for (const double ratio : {0.1, 0.01, 0.001}) {
      muster::compression::Options options;
      muster::TopK& top_k = *options.compression.mutable_top_k();
      top_k.set_ratio(ratio), top_k.set_values(muster::SENT_VALUES_BF16);
      top_k.set_selection(sampled ? muster::SELECTION_SAMPLED : muster::SELECTION_EXACT);
      kinds.emplace_back(muster::strategies::NameOf(options.compression) + (sampled ? " sampled" : ""), options);
    }
  }
  muster::compression::Options power, int8;
  power.compression.mutable_power_sgd()->set_rank(4);
  int8.compression.mutable_int8()->set_block(256);
  kinds.emplace_back("power_sgd of rank 4", power);
  kinds.emplace_back("int8", int8);
  nlohmann::json medians;
  const auto add = [&](const std::string& name, const std::pair<double, double>& times) {
    if (!json) std::printf("%-24s %6.2f %6.2f\n", name.c_str(), times.first, times.second);
    medians[name] = times.second;
  };
  for (const auto& [name, options] : kinds) add(name, Measure(options));
  for (const auto& [name, values] : {std::pair{"exchange in fp32", muster::EXCHANGED_VALUES_FP32},
                                     {"exchange in bf16", muster::EXCHANGED_VALUES_BF16},
                                     {"exchange in int8", muster::EXCHANGED_VALUES_INT8},
                                     {"exchange in int4", muster::EXCHANGED_VALUES_INT4}}) {
    add(name, MeasureExchange(values));
  }
  if (json) std::printf("%s\n", medians.dump().c_str());
}
