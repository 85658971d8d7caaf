// One to four ranks, over Gloo, against PyTorch's DistributedDataParallel on as many, and full_shard against FSDP2:
// batches of 7 and 10 sequences, which two, three and four do not all divide, accumulation 1 and 3, AdamW and SGD.
// Limits as in parity_test.cc.
#include <gtest/gtest.h>

#include <string>
#include <tuple>

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
              .sharded = true,
              .sequences = 10,
              .microbatch = 2,
              .lr = GetParam() == "sgd" ? 0.1 : 3e-4});
}
INSTANTIATE_TEST_SUITE_P(All, Shards, testing::Values("adamw", "sgd"));

using OwnersCase = std::tuple<std::string, uint32_t, bool>;  // optimizer, ranks, whether tensors have owners

class Owners : public testing::TestWithParam<OwnersCase> {};

TEST_P(Owners, TrainAsDistributedDataParallel) {
  const auto& [optimizer, ranks, whole] = GetParam();
  ExpectSame({.optimizer = optimizer, .ranks = ranks, .whole = whole, .sequences = 10, .microbatch = 2, .lr = 1e-4});
}

std::string OwnersName(const testing::TestParamInfo<OwnersCase>& info) {
  const auto& [optimizer, ranks, whole] = info.param;
  return absl::StrCat(ranks, "Ranks", whole ? "Zero" : "Ddp", optimizer);
}
INSTANTIATE_TEST_SUITE_P(All, Owners,
                         testing::Combine(testing::Values("lion", "muon", "adafactor"), testing::Values(2, 3),
                                          testing::Bool()),
                         OwnersName);

TEST(RanksMistakes, CatchesMeansOfUnevenSharesOfFsdp2) {
  ExpectCaught({.ranks = 2, .sharded = true, .sequences = 7, .microbatch = 4, .mistake = "mean_of_ranks"});
}
TEST(RanksMistakes, CatchesMeansOfUnevenShares) {
  ExpectCaught({.ranks = 2, .sequences = 7, .microbatch = 4, .mistake = "mean_of_ranks"});
}
TEST(RanksMistakes, CatchesWrongBetas) { ExpectCaught({.ranks = 2, .mistake = "betas"}); }

}  // namespace
}  // namespace muster::parity
