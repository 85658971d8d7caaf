// The engine on one GPU against the engine on the CPU: the same losses, norms and weights, by our row programs and by
// LibTorch's operators (`portable`), which tell a wrong row program from anything else. Fails where there is no GPU.
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "worker/engine/strategy_trials_test.h"

namespace muster::engine {
namespace {

Trial OnGpu(Trial trial, bool portable = false) {
  trial.name += portable ? " on a GPU, portable" : " on a GPU";
  trial.set = [=](Config& c) { c.cuda = true, c.portable = portable; };
  return trial;
}

// Other orders of sums and other exponentials than on the CPU: limits are ten times those between strategies of one
// device.
void ExpectClose(const Trial& trial) {
  const Curve cpu = Train(trial);
  for (const bool portable : {true, false}) {
    SCOPED_TRACE(portable ? "portable" : "row programs");
    const Curve gpu = Train(OnGpu(trial, portable));
    EXPECT_LE(Relative(gpu.losses, cpu.losses), 5e-5);
    EXPECT_LE(Relative(gpu.norms, cpu.norms), 3e-4);
    EXPECT_NEAR(gpu.evaluation, cpu.evaluation, 5e-5 * cpu.evaluation);
  }
}

TEST(EngineOnGpu, TrainsAsOnTheCpuInFp32) {
  for (const bool sgd : {false, true}) ExpectClose({.name = "single", .choose = Single, .microbatch = 3, .sgd = sgd});
}

TEST(EngineOnGpu, TrainsALlamaAsOnTheCpu) {
  for (const bool norms_of_heads : {false, true}) {
    Trial trial{.name = "single", .choose = Single, .microbatch = 3, .sgd = true, .model = LlamaTrialModel()};
    trial.model.mutable_llama()->set_qk_norm(norms_of_heads);
    ExpectClose(trial);
  }
}

// Gradients go to host memory and parameters come from there, beside the computing.
TEST(EngineOnGpu, TrainsWithWhatIsOffloaded) {
  for (const bool parameters : {false, true}) {
    for (const Dtype compute : {DTYPE_FP32, DTYPE_BF16}) {
      Trial trial{.name = "single", .choose = Single, .microbatch = 3, .compute = compute};
      const Curve kept = Train(OnGpu(trial));
      trial.choose = [=](::muster::Train& train) {
        Single(train);
        train.mutable_offload()->set_optimizer(true), train.mutable_offload()->set_parameters(parameters);
      };
      const Curve offloaded = Train(OnGpu(trial));
      EXPECT_LE(Relative(offloaded.losses, kept.losses), compute == DTYPE_FP32 ? 5e-5 : 5e-3);
      EXPECT_LE(Relative(offloaded.norms, kept.norms), compute == DTYPE_FP32 ? 3e-4 : 3e-2);
    }
  }
}

TEST(EngineOnGpu, RecomputesToTheSame) {
  Trial trial{.name = "single", .choose = Single, .microbatch = 3};
  const Curve kept = Train(OnGpu(trial));
  trial.choose = [](::muster::Train& train) { Single(train), train.set_activation_checkpointing(true); };
  EXPECT_EQ(Train(OnGpu(trial)).weights, kept.weights);
  trial.choose = [recomputed = trial.choose](::muster::Train& train) {
    recomputed(train), train.mutable_offload()->set_activations(true);
  };
  EXPECT_EQ(Train(OnGpu(trial)).weights, kept.weights) << "with inputs from host memory";
}

TEST(EngineOnGpu, EqualRunsAreBitEqual) {
  for (const Dtype compute : {DTYPE_FP32, DTYPE_BF16}) {
    const Trial trial{.name = "single", .choose = Single, .microbatch = 3, .compute = compute};
    EXPECT_EQ(Train(OnGpu(trial)).weights, Train(OnGpu(trial)).weights);
  }
}

// All but the first are launched as a graph.
TEST(EngineOnGpu, LaunchedStepsAreBitEqual) {
  for (const Dtype compute : {DTYPE_FP32, DTYPE_BF16}) {
    Trial trial = OnGpu({.name = "single", .choose = Single, .microbatch = 3, .compute = compute, .ahead = true});
    const Curve plain = Train(trial);
    trial.set = [set = trial.set](Config& c) { set(c), c.recorded = true; };
    const Curve seen = Train(trial);
    EXPECT_EQ(seen.losses, plain.losses);
    EXPECT_EQ(seen.weights, plain.weights);
  }
}

// The state is copied to the host beside a further step, whose update waits for that.
TEST(EngineOnGpu, TheNextStepDoesNotChangeWhatIsBeingCopied) {
  for (const bool graphs : {false, true}) {
    Trial trial = OnGpu({.name = "single", .choose = Single, .microbatch = 3});
    trial.set = [set = trial.set, graphs](Config& c) { set(c), c.recorded = graphs; };
    const Curve before = Train(trial, {.steps = 4});
    trial.step_beside_copies = true;
    EXPECT_EQ(Train(trial, {.steps = 4}).state, before.state);
  }
}

TEST(EngineOnGpu, UpdatesAsOnTheCpuInBf16) {
  Trial trial{.name = "single", .choose = Single, .microbatch = 3, .sgd = true, .compute = DTYPE_BF16};
  trial.set = [](Config& c) { c.device_rows = true; };
  const Curve initial = Train(trial, {.steps = 0}), cpu = Train(trial);
  for (const bool portable : {true, false}) {
    EXPECT_LE(UpdateError(Train(OnGpu(trial, portable)), cpu, initial), 0.05)
        << (portable ? "portable" : "row programs");
  }
}

TEST(EngineOnGpu, GoesOnFromWhatTheCpuLeft) {
  const Trial trial{.name = "single", .choose = Single, .microbatch = 3, .sgd = true};
  const Curve half = Train(trial, {.steps = kSteps / 2}), whole = Train(trial);
  const Curve rest = Train(OnGpu(trial), {.from = &half, .first = kSteps / 2, .steps = kSteps / 2});
  EXPECT_NEAR(rest.losses.back(), whole.losses.back(), 5e-5 * whole.losses.back());
}

}  // namespace
}  // namespace muster::engine
