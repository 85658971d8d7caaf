// Optimizers on given gradients beside torch.optim's: every parameter after every step, and the state after the last.
#include "worker/engine/optimizer.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "testing/optimizers.h"
#include "tests/parity/peer.h"

namespace muster::parity {
namespace {

using engine::FlatOptimizer;
using engine::StatePart;
using nlohmann::json;

constexpr int kUpdates = 12;

struct OptimizerTrial {
  std::string kind;
  Optimizer options;  // with a weight decay
  json torch;         // the same for torch.optim's class
  json adamw = {};    // muon's AdamW
  units::Bf16Gemms gemms = units::Bf16Gemms::kNative;
  bool on_device = false;  // by StepUnless, with a skipped update in the middle
  bool by_programs = false;
  double scale = 1;  // of gradients
};

struct Shaped {
  std::vector<int64_t> shape;
  bool decay, matrix;  // matrix: muon orthogonalizes it
};
// Wide, tall, square, one row, one column, convolutions, vectors, one number; an embedding, which AdamW has.
const std::vector<Shaped>& Shapes() {
  static const auto* const all = new std::vector<Shaped>{
      {{24, 72}, true, true},  {{80, 20}, true, true},      {{33, 33}, true, true},      {{1, 40}, true, true},
      {{40, 1}, true, true},   {{12, 5, 3, 3}, true, true}, {{16, 4, 1, 1}, true, true}, {{50, 24}, true, false},
      {{24, 24}, false, true}, {{24}, false, false},        {{7}, false, false},         {{1}, false, false}};
  return *all;
}

int64_t Elements(const std::vector<int64_t>& shape) {
  int64_t n = 1;
  for (const int64_t d : shape) n *= d;
  return n;
}

std::vector<float> Normal(int64_t n, uint32_t seed, double scale) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, static_cast<float>(scale));
  std::vector<float> values(static_cast<size_t>(n));
  for (float& v : values) v = normal(random);
  return values;
}

double RateAt(double peak, int step) { return peak * (1 - 0.05 * step); }
double FactorAt(int step) { return step == 4 ? 0.25 : 1; }  // of clipping
std::vector<float> GradientAt(const OptimizerTrial& trial, int step, size_t t) {
  return Normal(Elements(Shapes()[t].shape), static_cast<uint32_t>(100 * step + static_cast<int>(t)),
                trial.scale * (t % 3 == 0 ? 1e-3 : 1.0));
}

// Parameters after each step by tensor, and the state at the end by tensor and kind.
struct Updated {
  std::vector<std::vector<std::vector<float>>> parameters;
  std::vector<std::map<std::string, std::vector<float>>> state;
};

Updated OursOf(const OptimizerTrial& trial) {
  const size_t tensors = Shapes().size();
  std::vector<int64_t> begins;
  int64_t all = 0;
  for (const Shaped& s : Shapes()) begins.push_back(all), all += (Elements(s.shape) + 15) / 16 * 16;
  const at::Tensor parameters = at::zeros({all}), gradients = at::zeros({all});
  std::vector<engine::Run> runs;
  for (size_t t = 0; t < tensors; ++t) {
    const Shaped& s = Shapes()[t];
    const int64_t n = Elements(s.shape), next = t + 1 < tensors ? begins[t + 1] : all;
    const std::vector<float> from = Normal(n, static_cast<uint32_t>(t), 0.3);
    std::copy(from.begin(), from.end(), parameters.mutable_data_ptr<float>() + begins[t]);
    const bool whole = trial.kind != "muon" || s.matrix;
    const int64_t length = whole ? n : next - begins[t];
    runs.push_back({parameters.narrow(0, begins[t], length), gradients.narrow(0, begins[t], length), begins[t], length,
                    s.decay, whole ? s.shape : std::vector<int64_t>()});
  }
  const auto zeros = [](int64_t elements) { return at::zeros({elements}, at::kFloat); };
  const auto optimizer =
      engine::MakeOptimizer(trial.options, runs, all, zeros, units::Gemms(trial.gemms), trial.by_programs);
  const auto one = [](double value) { return at::full({1}, value, at::kFloat); };
  Updated updated;
  uint64_t skipped = 0;
  for (int step = 0; step < kUpdates; ++step) {
    if (trial.on_device && step == 6) {
      gradients.fill_(std::nanf(""));
      const engine::UpdateDecision skip{one(1), one(1), one(0)};
      optimizer->StepUnless(skip, static_cast<uint64_t>(step) + 1, RateAt(trial.options.lr(), step));
      skipped = 1;
    }
    for (size_t t = 0; t < tensors; ++t) {
      const std::vector<float> g = GradientAt(trial, step, t);
      std::copy(g.begin(), g.end(), gradients.mutable_data_ptr<float>() + begins[t]);
    }
    const uint64_t number = static_cast<uint64_t>(step) + 1 + skipped;
    const double rate = RateAt(trial.options.lr(), step);
    if (trial.on_device) {
      const engine::UpdateDecision decision{one(1 / FactorAt(step)), one(0), one(static_cast<double>(skipped))};
      optimizer->StepUnless(decision, number, rate);
    } else {
      optimizer->Step(number, rate, FactorAt(step));
    }
    std::vector<std::vector<float>>& after = updated.parameters.emplace_back();
    for (size_t t = 0; t < tensors; ++t) {
      const float* p = parameters.const_data_ptr<float>() + begins[t];
      after.emplace_back(p, p + Elements(Shapes()[t].shape));
    }
  }
  updated.state.resize(tensors);
  for (const StatePart& part : optimizer->State()) {
    for (size_t t = 0; t < tensors; ++t) {
      const int64_t at = begins[t] - part.begin;
      if (at < 0 || at >= part.length) continue;
      if (!part.shape.empty() && at != 0) continue;
      const at::Tensor own = part.shape.empty() ? part.values.narrow(0, at, Elements(Shapes()[t].shape)) : part.values;
      updated.state[t][part.kind].assign(own.const_data_ptr<float>(), own.const_data_ptr<float>() + own.numel());
    }
  }
  return updated;
}

json TheirsOf(const OptimizerTrial& trial) {
  json config = {{"kind", trial.kind},
                 {"options", trial.torch},
                 {"weight_decay", trial.options.weight_decay()},
                 {"tensors", json::array()},
                 {"steps", json::array()}};
  if (!trial.adamw.is_null()) config["adamw"] = trial.adamw;
  for (size_t t = 0; t < Shapes().size(); ++t) {
    const Shaped& s = Shapes()[t];
    config["tensors"].push_back({{"shape", s.shape},
                                 {"decay", s.decay},
                                 {"matrix", trial.kind == "muon" && s.matrix},
                                 {"values", Normal(Elements(s.shape), static_cast<uint32_t>(t), 0.3)}});
  }
  for (int step = 0; step < kUpdates; ++step) {
    json gradients = json::array();
    for (size_t t = 0; t < Shapes().size(); ++t) {
      std::vector<float> g = GradientAt(trial, step, t);
      for (float& v : g) v *= static_cast<float>(FactorAt(step));
      gradients.push_back(g);
    }
    config["steps"].push_back(
        {{"gradients", gradients},
         {"rates", {RateAt(trial.options.lr(), step), RateAt(trial.options.muon().adamw_lr(), step)}}});
  }
  const auto answer = Peer::Get().AskOptimizer(config);
  EXPECT_TRUE(answer.ok()) << answer.status();
  return answer.value_or(json());
}

// |a - b| over |b|, as vectors.
double Apart(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return INFINITY;
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - b[i], 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference) / std::max(1e-30, std::sqrt(norm));
}

// The largest difference of any tensor's movement since the start, over that movement; and of any state.
struct Farthest {
  double movement = 0, state = 0;
};
Farthest Compared(const OptimizerTrial& trial, const json& theirs) {
  const Updated ours = OursOf(trial);
  Farthest farthest;
  for (size_t t = 0; t < Shapes().size(); ++t) {
    const std::vector<float> from = Normal(Elements(Shapes()[t].shape), static_cast<uint32_t>(t), 0.3);
    for (size_t step = 0; step < kUpdates; ++step) {
      std::vector<float> a = ours.parameters[step][t], b = theirs["parameters"][step][t];
      for (size_t i = 0; i < a.size(); ++i) a[i] -= from[i], b[i] -= from[i];
      const double apart = Apart(a, b);
      farthest.movement = apart <= farthest.movement ? farthest.movement : apart;  // NaN stays
    }
    const std::map<std::string, std::vector<float>> state = theirs["state"][t];
    EXPECT_EQ(state.size(), ours.state[t].size()) << t;
    for (const auto& [kind, values] : state) {
      const auto found = ours.state[t].find(kind);
      const double apart = found == ours.state[t].end() ? INFINITY : Apart(found->second, values);
      EXPECT_LT(apart, INFINITY) << "tensor " << t << " has no " << kind << " of that size";
      farthest.state = apart <= farthest.state ? farthest.state : apart;
    }
  }
  std::printf("%s: movements %.2g, state %.2g\n", trial.kind.c_str(), farthest.movement, farthest.state);
  return farthest;
}

Farthest Compared(const OptimizerTrial& trial) { return Compared(trial, TheirsOf(trial)); }

OptimizerTrial MuonTrial() {
  OptimizerTrial trial{.kind = "muon", .options = OptimizerOf("muon", 0.02)};
  trial.options.set_weight_decay(0.1);
  trial.options.mutable_muon()->set_adamw_lr(3e-3);
  trial.options.mutable_muon()->set_adamw_weight_decay(0.02);
  trial.adamw = {{"betas", {0.9, 0.999}}, {"eps", 1e-8}, {"weight_decay", 0.02}};
  trial.torch = json::object();
  return trial;
}

// fp32 of a movement that is small beside the parameter has 1e-6 of it.
constexpr double kSameOperations = 1e-5;

void ExpectTorchs(const OptimizerTrial& trial, double movement = kSameOperations) {
  const Farthest d = Compared(trial);
  EXPECT_LE(d.movement, movement);
  EXPECT_LE(d.state, kSameOperations);
}

TEST(Optimizers, MuonIsTorchs) { ExpectTorchs(MuonTrial()); }

TEST(Optimizers, MuonIsTorchsWithEveryOption) {
  OptimizerTrial trial = MuonTrial();
  Muon& m = *trial.options.mutable_muon();
  m.set_momentum(0.8), m.set_nesterov(false), m.set_ns_steps(3), m.set_adjust_lr_fn(ADJUST_LR_FN_MATCH_RMS_ADAMW);
  m.set_adamw_beta1(0.8), m.set_adamw_beta2(0.95), m.set_adamw_eps(1e-6), m.set_adamw_weight_decay(0);
  trial.torch = {{"momentum", 0.8}, {"nesterov", false}, {"ns_steps", 3}, {"adjust_lr_fn", "match_rms_adamw"}};
  trial.adamw = {{"betas", {0.8, 0.95}}, {"eps", 1e-6}, {"weight_decay", 0.0}};
  ExpectTorchs(trial);
}

TEST(Optimizers, MuonDecidingOnTheDeviceIsTorchsWithoutTheSkippedStep) {
  OptimizerTrial trial = MuonTrial();
  trial.on_device = true;
  ExpectTorchs(trial);
}

// Both round at the same points, so that single roundings of bf16 differ.
TEST(Optimizers, MuonThroughPanelsIsAlmostTorchs) {
  OptimizerTrial trial = MuonTrial();
  trial.gemms = units::Bf16Gemms::kPanels;
  ExpectTorchs(trial, 0.015);
}

// What torch.optim.Muon's epsilon is for.
TEST(Optimizers, MuonTakesVanishingGradientsAsTorchDoes) {
  OptimizerTrial trial = MuonTrial();
  trial.scale = 1e-9;
  EXPECT_LE(Compared(trial).movement, 1e-4);
}

TEST(Optimizers, CatchesMistakesInMuon) {
  const auto mistaken = [](const json& torch, const json& adamw) {
    OptimizerTrial trial = MuonTrial();
    trial.torch.update(torch), trial.adamw.update(adamw);
    return Compared(trial).movement;
  };
  for (const json& torch : std::vector<json>{{{"momentum", 0.949}},
                                             {{"nesterov", false}},
                                             {{"ns_steps", 4}},
                                             {{"adjust_lr_fn", "match_rms_adamw"}},
                                             {{"weight_decay", 0.11}},
                                             {{"ns_coefficients", {3.4445, -4.775, 2.03}}}}) {
    EXPECT_GT(mistaken(torch, json::object()), 100 * kSameOperations) << torch;
  }
  for (const json& adamw : std::vector<json>{{{"betas", {0.9, 0.99}}}, {{"weight_decay", 0.03}}}) {
    EXPECT_GT(mistaken(json::object(), adamw), 100 * kSameOperations) << adamw;
  }
}

OptimizerTrial AdamWTrial() {
  OptimizerTrial trial{.kind = "adamw", .options = OptimizerOf("adamw", 3e-3)};
  trial.options.set_weight_decay(0.1);
  trial.torch = json::object();
  return trial;
}

// By LibTorch's operator and by the program of GPUs; decided by the host and on the device, with a skipped step. Of
// gradients beside which epsilon counts, most of the movement is the weight decay's, for which torch multiplies by
// 1 - lr * weight_decay: rounded to fp32, that is 1e-4 off.
TEST(Optimizers, AdamWIsTorchs) {
  for (const auto& [scale, limit] : {std::pair(1.0, kSameOperations), std::pair(1e-9, 2e-4)}) {
    OptimizerTrial trial = AdamWTrial();
    trial.scale = scale;
    const json theirs = TheirsOf(trial);
    for (const bool by_programs : {false, true}) {
      for (const bool on_device : {false, true}) {
        SCOPED_TRACE(absl::StrCat(by_programs ? "GPUs'" : "LibTorch's", on_device ? ", on the device" : ""));
        trial.by_programs = by_programs, trial.on_device = on_device;
        const Farthest d = Compared(trial, theirs);
        EXPECT_LE(d.movement, limit);
        EXPECT_LE(d.state, kSameOperations);
      }
    }
  }
}

TEST(Optimizers, CatchesMistakesInAdamW) {
  for (const json& torch : std::vector<json>{
           {{"betas", {0.9, 0.998}}}, {{"betas", {0.89, 0.999}}}, {{"eps", 1e-6}}, {{"weight_decay", 0.11}}}) {
    OptimizerTrial trial = AdamWTrial();
    trial.torch = torch, trial.by_programs = trial.on_device = true;
    EXPECT_GT(Compared(trial).movement, 5 * kSameOperations) << torch;
  }
}

OptimizerTrial AdafactorTrial() {
  OptimizerTrial trial{.kind = "adafactor", .options = OptimizerOf("adafactor", 0.01)};
  trial.options.set_weight_decay(0.1);
  trial.torch = json::object();
  return trial;
}

TEST(Optimizers, AdafactorIsTorchs) { ExpectTorchs(AdafactorTrial()); }

// A rate above 1 / sqrt(t) is bounded by it, epsilon 2 bounds the tensors' size, and d the updates'.
TEST(Optimizers, AdafactorIsTorchsWithEveryOption) {
  OptimizerTrial trial = AdafactorTrial();
  trial.options.set_lr(0.7);
  Adafactor& a = *trial.options.mutable_adafactor();
  a.set_beta2_decay(-0.5), a.set_eps1(1e-3), a.set_eps2(0.5), a.set_d(1.5);
  trial.torch = {{"beta2_decay", -0.5}, {"eps", {1e-3, 0.5}}, {"d", 1.5}};
  ExpectTorchs(trial);
}

TEST(Optimizers, AdafactorDecidingOnTheDeviceIsTorchsWithoutTheSkippedStep) {
  OptimizerTrial trial = AdafactorTrial();
  trial.on_device = true;
  ExpectTorchs(trial);
}

TEST(Optimizers, AdafactorTakesVanishingGradientsAsTorchDoes) {
  OptimizerTrial trial = AdafactorTrial();
  trial.scale = 1e-9;
  EXPECT_LE(Compared(trial).movement, kSameOperations);
}

TEST(Optimizers, CatchesMistakesInAdafactor) {
  for (const json& torch : std::vector<json>{{{"beta2_decay", -0.75}},
                                             {{"eps", {1e-2, 1e-3}}},
                                             {{"eps", {nullptr, 0.4}}},
                                             {{"d", 1.1}},
                                             {{"weight_decay", 0.11}}}) {
    OptimizerTrial trial = AdafactorTrial();
    trial.torch = torch;
    EXPECT_GT(Compared(trial).movement, 100 * kSameOperations) << torch;
  }
}

}  // namespace
}  // namespace muster::parity
