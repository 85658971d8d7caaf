#include "worker/units/attention_choice.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"

namespace muster::units {
namespace {

// A CPU has two of the implementations: enough to see that the one it names is measured, fastest and in use.
TEST(AttentionChoice, TheFastestIsUsedFromThenOn) {
  at::set_num_threads(1);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const AttentionChoice choice =
        ChooseAttention({.sequences = 2, .heads = 2, .tokens = 128, .width = 16, .dtype = dtype});
    ASSERT_EQ(choice.trials.size(), 2u);
    const AttentionTrial &flash = choice.trials[0], &plain = choice.trials[1];
    EXPECT_EQ(flash.refused + plain.refused, "");
    EXPECT_GT(flash.milliseconds, 0);
    EXPECT_GT(plain.milliseconds, 0);
    const bool by_flash = flash.milliseconds <= plain.milliseconds;
    EXPECT_EQ(choice.name, by_flash ? "flash" : "plain GEMMs");
    EXPECT_EQ(at::globalContext().userEnabledFlashSDP(), by_flash);
    EXPECT_TRUE(at::globalContext().userEnabledMathSDP()) << "where the fastest cannot, the plain one must";
    EXPECT_TRUE(absl::StartsWith(choice.Describe(), "attention by " + choice.name + ": flash "));
  }
}

// Sizes of q and k of each call of LibTorch's operator.
std::vector<std::pair<std::vector<int64_t>, std::vector<int64_t>>>& Calls() {
  static auto& calls = *new std::vector<std::pair<std::vector<int64_t>, std::vector<int64_t>>>;
  return calls;
}

// A trial of other heads than the model's, or of its whole context where it has a window, would choose another kernel.
TEST(AttentionChoice, TriesTheModelsHeadsAndWindow) {
  at::set_num_threads(1);
  const auto record = [](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
    if (std::string(function.name()) == "aten::scaled_dot_product_attention") {
      const auto sizes = [&](size_t i) { return function.inputs()[i].toTensor().sizes().vec(); };
      Calls().emplace_back(sizes(0), sizes(1));
    }
    return nullptr;
  };
  using Sizes = std::vector<int64_t>;
  const struct {
    AttentionShape shape;
    std::vector<std::pair<Sizes, Sizes>> calls;  // of one pass
  } cases[] = {
      {{.sequences = 2, .heads = 4, .tokens = 200, .width = 8}, {{{2, 4, 200, 8}, {2, 4, 200, 8}}}},
      {{.sequences = 2, .heads = 6, .tokens = 200, .width = 8, .key_value_heads = 2},
       {{{2, 6, 200, 8}, {2, 2, 200, 8}}}},
      {{.heads = 4, .tokens = 200, .width = 8, .key_value_heads = 1, .window = 9},
       {{{1, 4, 128, 8}, {1, 4, 128, 8}}, {{1, 4, 72, 8}, {1, 4, 88, 8}}}},  // repeated under the window's mask
  };
  for (const auto& c : cases) {
    Calls().clear();
    const at::CallbackHandle handle = at::addThreadLocalCallback(
        at::RecordFunctionCallback(record).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
    const AttentionChoice choice = ChooseAttention(c.shape);
    at::removeCallback(handle);
    EXPECT_NE(choice.name, "") << choice.Describe();
    ASSERT_GE(Calls().size(), 6 * c.calls.size()) << "a warm-up and five trials";
    for (size_t i = 0; i < Calls().size(); ++i) EXPECT_EQ(Calls()[i], c.calls[i % c.calls.size()]) << "call " << i;
  }
}

TEST(AttentionChoice, WhatFailsIsNamedAndNotChosen) {
  const AttentionChoice choice = ChooseAttention({.tokens = 4, .width = 2, .dtype = at::kLong});
  EXPECT_EQ(choice.name, "");
  for (const AttentionTrial& trial : choice.trials) EXPECT_NE(trial.refused, "") << trial.name;
  EXPECT_TRUE(absl::StartsWith(choice.Describe(), "attention by LibTorch's default: flash refused ("));
  EXPECT_TRUE(at::globalContext().userEnabledFlashSDP());
}

TEST(AttentionChoice, NamesAreThoseOfTheManifest) {
  // Written into checkpoints: a name that changes would no longer be found.
  EXPECT_EQ(AttentionNames(), (std::vector<std::string>{"flash", "memory-efficient", "cudnn", "plain GEMMs"}));
  const absl::Status unknown = UseAttention("quick");
  EXPECT_EQ(unknown, absl::InvalidArgumentError("no implementation of attention is called \"quick\"; there are flash, "
                                                "memory-efficient, cudnn, plain GEMMs"));
}

}  // namespace
}  // namespace muster::units
