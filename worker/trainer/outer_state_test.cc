#include "worker/trainer/outer_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace muster::trainer {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::Pointwise;

std::string Bytes(std::initializer_list<int> bytes) {
  std::string text;
  for (const int byte : bytes) text.push_back(static_cast<char>(byte));
  return text;
}

std::vector<float> Through(ExchangedValues as, const std::vector<float>& values) {
  std::string encoded;
  Encode(as, values, encoded);
  EXPECT_EQ(encoded.size(), EncodedBytes(as, values.size()));
  std::vector<float> back(values.size());
  DecodeAndAdd(as, encoded, absl::MakeSpan(back));
  return back;
}

// 1.0f is 00 00 80 3f in memory.
TEST(Encode, BytesAreThoseOfTheFormat) {
  const auto encoded = [](ExchangedValues as, const std::vector<float>& values) {
    std::string to = "x";
    Encode(as, values, to);
    return to.substr(1);
  };
  EXPECT_EQ(encoded(EXCHANGED_VALUES_FP32, {1}), Bytes({0, 0, 0x80, 0x3f}));
  EXPECT_EQ(encoded(EXCHANGED_VALUES_BF16, {1, -2}), Bytes({0x80, 0x3f, 0x00, 0xc0}));
  EXPECT_EQ(encoded(EXCHANGED_VALUES_INT8, {127, -127, 0.4f, 63.6f}), Bytes({0, 0, 0x80, 0x3f, 127, -127, 0, 64}));
  // Codes 7, -7 (9), 3, -1 (15), 2: the lower half of a byte first.
  EXPECT_EQ(encoded(EXCHANGED_VALUES_INT4, {7, -7, 3, -1, 2}), Bytes({0, 0, 0x80, 0x3f, 0x97, 0xf3, 0x02}));
  EXPECT_EQ(encoded(EXCHANGED_VALUES_INT8, {0, 0}), Bytes({0, 0, 0, 0, 0, 0}));
}

TEST(Encode, LosesHalfAStepAtMost) {
  std::vector<float> values;
  for (int i = 0; i < 1000; ++i) values.push_back(std::sin(static_cast<float>(i * i)) * static_cast<float>(i % 37));
  EXPECT_EQ(Through(EXCHANGED_VALUES_FP32, values), values);
  EXPECT_THAT(Through(EXCHANGED_VALUES_BF16, values), Pointwise(FloatNear(37.0f / 256), values));
  EXPECT_THAT(Through(EXCHANGED_VALUES_INT8, values), Pointwise(FloatNear(37.0f / 127 / 2), values));
  EXPECT_THAT(Through(EXCHANGED_VALUES_INT4, values), Pointwise(FloatNear(37.0f / 7 / 2), values));
}

// Two tensors in two units, the first of which another rank has the first element of.
class Two final : public Parameters {
 public:
  Two() {
    for (const char* name : {"a", "b", "frozen"}) {
      Tensor& tensor = *inventory.add_units()->add_tensors();
      tensor.set_name(name);
      tensor.set_frozen(std::string(name) == "frozen");
    }
  }
  absl::StatusOr<std::vector<engine::StateView>> Pull() override {
    const auto view = [](const char* name, std::vector<float>& values, uint64_t begin) {
      engine::StateView of;
      of.kind = "parameter", of.tensor = name, of.shape = {begin + values.size()}, of.begin = begin;
      of.values = absl::MakeSpan(values);
      return of;
    };
    return std::vector<engine::StateView>{view("frozen", frozen, 0), view("a", a, 1), view("b", b, 0)};
  }
  absl::Status Push() override {
    ++pushes;
    return absl::OkStatus();
  }
  Inventory inventory;
  std::vector<float> a = {1, 2}, b = {10}, frozen = {5};
  int pushes = 0;
};

Sync SyncOf(double lr, double momentum, bool nesterov, uint32_t fragments = 1, double mix = 0) {
  Sync sync;
  sync.set_fragments(fragments);
  sync.set_values(EXCHANGED_VALUES_FP32);
  sync.set_mix(mix);
  sync.mutable_outer()->set_lr(lr);
  sync.mutable_outer()->set_momentum(momentum);
  sync.mutable_outer()->set_nesterov(nesterov);
  return sync;
}

std::string Fp32(const std::vector<float>& values) {
  std::string to;
  Encode(EXCHANGED_VALUES_FP32, values, to);
  return to;
}

// torch.optim.SGD([1.0], lr=0.7, momentum=0.9, nesterov=True) with gradients 0.2 and 0.1: 0.734, then 0.4876.
TEST(OuterState, StepsAsTorchsSgdWithTheMeanOfTheContributions) {
  Two two;
  const auto state = OuterState::Create(&two, two.inventory, SyncOf(0.7, 0.9, true)).value();
  two.a = {0.9f, 2}, two.b = {10};
  EXPECT_EQ(state->Contribution(0).value(), Fp32({1 - 0.9f, 0, 0}));
  ASSERT_TRUE(state->Apply(0, 1, {Fp32({0.1f, 0, 0}), Fp32({0.3f, 0, 0})}).ok());
  EXPECT_THAT(two.a, ElementsAre(FloatNear(0.734f, 1e-6f), 2));
  EXPECT_EQ(two.pushes, 1);
  ASSERT_TRUE(state->Apply(0, 2, {Fp32({0.1f, 0, 0})}).ok());
  EXPECT_THAT(two.a, ElementsAre(FloatNear(0.4876f, 1e-6f), 2));
  EXPECT_THAT(state->exchanges(), ElementsAre(2));
  EXPECT_THAT(two.frozen, ElementsAre(5));
  // Without Nesterov's: buffer 0.2, then 0.28.
  Two plain;
  const auto other = OuterState::Create(&plain, plain.inventory, SyncOf(0.5, 0.9, false)).value();
  ASSERT_TRUE(other->Apply(0, 1, {Fp32({0.2f, 0, 0})}).ok());
  ASSERT_TRUE(other->Apply(0, 2, {Fp32({0.1f, 0, 0})}).ok());
  EXPECT_THAT(plain.a, ElementsAre(FloatNear(1 - 0.5f * 0.2f - 0.5f * 0.28f, 1e-6f), 2));
  EXPECT_EQ(other->Apply(0, 3, {Fp32({0.2f})}).code(), absl::StatusCode::kInvalidArgument);
}

// Units 0 and 2 (frozen) are fragment 0, unit 1 is fragment 1.
TEST(OuterState, AFragmentChangesOnlyItsOwnUnits) {
  Two two;
  const auto state = OuterState::Create(&two, two.inventory, SyncOf(1, 0, false, 2, 0.25)).value();
  two.a = {3, 4}, two.b = {20};
  ASSERT_TRUE(state->Apply(1, 7, {Fp32({-2})}).ok());
  EXPECT_THAT(two.a, ElementsAre(3, 4));
  EXPECT_THAT(two.b, ElementsAre(0.25f * 20 + 0.75f * 12)) << "mixed with what the replica has";
  EXPECT_THAT(state->exchanges(), ElementsAre(0, 7));
  EXPECT_EQ(state->contribution_bytes(0), 8u);
  EXPECT_EQ(state->kept_bytes(), 24u);
}

TEST(OuterState, WhoCatchesUpKeepsHisOwnSteps) {
  Two ahead, behind;
  const auto first = OuterState::Create(&ahead, ahead.inventory, SyncOf(1, 0.9, true)).value();
  const auto second = OuterState::Create(&behind, behind.inventory, SyncOf(1, 0.9, true)).value();
  ASSERT_TRUE(first->Apply(0, 4, {Fp32({1, 1, 1})}).ok());
  behind.a = {1.5f, 2};  // half a unit on from where it began
  uint64_t exchange = 0;
  const std::string state = first->State(0, exchange);
  ASSERT_TRUE(second->Adopt(0, exchange, state).ok());
  EXPECT_THAT(second->exchanges(), ElementsAre(4));
  EXPECT_THAT(behind.a, ElementsAre(FloatNear(ahead.a[0] + 0.5f, 1e-6f), FloatNear(ahead.a[1], 1e-6f)));
  EXPECT_EQ(second->State(0, exchange), state) << "momentum, too";
  EXPECT_EQ(second->Adopt(0, 5, "short").code(), absl::StatusCode::kInvalidArgument);
}

TEST(OuterState, CheckpointsHaveItUnderTheTensorsNames) {
  Two two;
  const auto state = OuterState::Create(&two, two.inventory, SyncOf(1, 0.9, true)).value();
  ASSERT_TRUE(state->Apply(0, 1, {Fp32({1, 1, 1})}).ok());
  std::vector<std::string> names;
  for (const checkpoint::TensorRun& run : state->Runs()) {
    names.push_back(run.name);
    if (run.name == "outer.momentum.a") {
      EXPECT_EQ(run.begin, 1u);
      EXPECT_THAT(run.values, ElementsAre(1, 1));
    }
  }
  EXPECT_THAT(names, testing::UnorderedElementsAre("outer.parameter.a", "outer.momentum.a", "outer.parameter.b",
                                                   "outer.momentum.b"));
  two.a = {8, 9};
  ASSERT_TRUE(state->Restart().ok());
  EXPECT_EQ(state->Contribution(0).value(), Fp32({0, 0, 0}));
  EXPECT_THAT(state->exchanges(), ElementsAre(0));
}

}  // namespace
}  // namespace muster::trainer
