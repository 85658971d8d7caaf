#include "worker/units/attention_choice.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

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
