// One to four ranks, over Gloo, against PyTorch's DistributedDataParallel on as many, and full_shard against FSDP2:
// batches of 7 and 10 sequences, which two, three and four do not all divide, accumulation 1 and 3, AdamW and SGD.
// Limits as in parity_test.cc.
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/parity/trial.h"

namespace muster::parity {
namespace {

using Case = std::tuple<uint32_t, uint32_t, std::string>;  // ranks, accumulation, optimizer

class Ranks : public testing::TestWithParam<Case> {};

TEST_P(Ranks, TrainAsDistributedDataParallel) {
  const auto& [ranks, accumulation, optimizer] = GetParam();
  const uint32_t sequences = accumulation == 1 ? 7 : 10, share = (sequences + ranks - 1) / ranks;
  ExpectSame({.optimizer = optimizer,
              .ranks = ranks,
              .sequences = sequences,
              .microbatch = (share + accumulation - 1) / accumulation,
              .lr = optimizer == "sgd" ? 0.1 : 3e-4});
}

std::string Name(const testing::TestParamInfo<Case>& info) {
  const auto& [ranks, accumulation, optimizer] = info.param;
  return absl::StrCat(ranks, "RanksAccumulating", accumulation, optimizer);
}
INSTANTIATE_TEST_SUITE_P(All, Ranks,
                         testing::Combine(testing::Values(1, 2, 3, 4), testing::Values(1, 3),
                                          testing::Values("adamw", "sgd")),
                         Name);

class Shards : public testing::TestWithParam<std::string> {};

TEST_P(Shards, TrainAsFsdp2) {
  ExpectSame({.optimizer = GetParam(),
              .ranks = 3,
              .strategy = FullShard,
              .fsdp2 = true,
              .sequences = 10,
              .microbatch = 2,
              .lr = GetParam() == "sgd" ? 0.1 : 3e-4});
}
INSTANTIATE_TEST_SUITE_P(All, Shards, testing::Values("adamw", "sgd"));

using OwnersCase = std::tuple<std::string, uint32_t, bool>;  // optimizer, ranks, whether tensors have owners

class Owners : public testing::TestWithParam<OwnersCase> {};

TEST_P(Owners, TrainAsDistributedDataParallel) {
  const auto& [optimizer, ranks, whole] = GetParam();
  const auto owners = [](Strategy& s) {
    s.mutable_zero()->set_stage(2);
    s.mutable_zero()->set_placement(PLACEMENT_WHOLE);
  };
  ExpectSame({.optimizer = optimizer,
              .ranks = ranks,
              .strategy = whole ? SetStrategy(owners) : Ddp,
              .sequences = 10,
              .microbatch = 2,
              .lr = 1e-4});
}

std::string OwnersName(const testing::TestParamInfo<OwnersCase>& info) {
  const auto& [optimizer, ranks, whole] = info.param;
  return absl::StrCat(ranks, "Ranks", whole ? "Zero" : "Ddp", optimizer);
}
INSTANTIATE_TEST_SUITE_P(All, Owners,
                         testing::Combine(testing::Values("lion", "muon", "adafactor"), testing::Values(2, 3),
                                          testing::Bool()),
                         OwnersName);

// What one process computes does not depend on the strategy, so the peer runs once for each family. Shares of 5 and 5,
// or of 3, 3, 2 and 2 sequences.
TEST(StrategyTable, OfLanguageModels) {
  const Lab lab;
  Model llama;
  Llama& m = *llama.mutable_llama();
  m.set_layers(2), m.set_heads(4), m.set_key_value_heads(2), m.set_width(48), m.set_inner(112);
  m.set_vocabulary(256), m.set_context(32);
  for (const auto& [family, model] :
       {std::pair("gpt2", std::optional<Model>()), std::pair("llama", std::optional(llama))}) {
    Trial trial{.sequences = 10, .microbatch = 10, .lr = 1e-3, .steps = 12, .model = model};
    const Curve theirs = lab.Theirs(trial);
    EXPECT_LT(theirs.losses.back(), 0.9 * theirs.losses.front()) << "it learned nothing";
    for (const NamedStrategy& strategy : StrategyTable()) {
      for (const uint32_t accumulation : {1u, 3u}) {
        trial.ranks = strategy.ranks, trial.strategy = strategy.set;
        trial.microbatch = ((10 + strategy.ranks - 1) / strategy.ranks + accumulation - 1) / accumulation;
        const Difference d = Compare(lab.Ours(trial), theirs);
        PrintRow(family, strategy, accumulation, d);
        EXPECT_TRUE(Same(d)) << family << ", " << strategy.name << ", accumulating " << accumulation;
      }
    }
  }
}

TEST(RanksMistakes, CatchesMeansOfUnevenSharesOfFsdp2) {
  ExpectCaught(
      {.ranks = 2, .strategy = FullShard, .fsdp2 = true, .sequences = 7, .microbatch = 4, .mistake = "mean_of_ranks"});
}
TEST(RanksMistakes, CatchesMeansOfUnevenShares) {
  ExpectCaught({.ranks = 2, .sequences = 7, .microbatch = 4, .mistake = "mean_of_ranks"});
}
TEST(RanksMistakes, CatchesWrongBetas) { ExpectCaught({.ranks = 2, .mistake = "betas"}); }

}  // namespace
}  // namespace muster::parity
