// Hugging Face's own libraries against ours: weights in both directions, and byte pairs.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "data/bpe.h"
#include "gtest/gtest.h"
#include "worker/trainer/fake_trainer_server.h"

namespace muster::trainer {
namespace {

using nlohmann::json;

constexpr double kLimit = 1e-6;  // relative; fp32 sums in another order are some 1e-7 away

class Transformers : public ::testing::Test {
 protected:
  json Peer(std::vector<std::string> arguments) {
    const char* python = getenv("MUSTER_PEER_PYTHON");
    if (python == nullptr) {
      ADD_FAILURE() << "MUSTER_PEER_PYTHON is not set: run ./test.sh, or tools/fetch_torch.sh peer and pass "
                       "--test_env=MUSTER_PEER_PYTHON=~/.cache/muster/peer/bin/python";
      return {};
    }
    arguments.insert(arguments.begin(), {python, "tests/parity/transformers_peer.py"});
    Process peer(arguments, bench_.Path("peer"));
    EXPECT_EQ(peer.Wait(), 0) << python << " failed; does it have transformers?\n" << peer.Log();
    return json::parse(peer.Output(), nullptr, false);
  }
  std::string Run(const std::vector<std::string>& arguments) {
    Process trainer = StartTrainer(arguments, bench_.Path("trainer"));
    EXPECT_EQ(trainer.Wait(), 0) << trainer.Log();
    return trainer.Output();
  }
  double OurLoss(const std::string& folder) {
    const json found =
        json::parse(Run({"eval", "--checkpoint", folder, "--data", bench_.Path("val.bin"), "--json"}), nullptr, false);
    return found.value("loss", std::nan(""));
  }
  // Of the models in `folders`, or of those that `make`, triples of folder, dtype and shard size, tells it to write
  // first. All in one process: importing their library takes seconds.
  std::vector<double> TheirLosses(const std::vector<std::string>& folders, const std::vector<std::string>& make = {}) {
    std::vector<std::string> arguments = {make.empty() ? "loss" : "make", bench_.Path("val.bin")};
    const std::vector<std::string>& rest = make.empty() ? folders : make;
    arguments.insert(arguments.end(), rest.begin(), rest.end());
    const json found = Peer(arguments);
    EXPECT_EQ(found.size(), folders.size());
    return found.size() == folders.size() ? found.get<std::vector<double>>() : std::vector<double>(folders.size());
  }

  Bench bench_;
};

TEST_F(Transformers, WhatTheyWriteHasTheSameLossHere) {
  std::vector<std::string> folders, make;
  for (const auto& [dtype, shard] : {std::pair("float32", "5GB"), std::pair("float32", "30KB"),
                                     std::pair("bfloat16", "5GB"), std::pair("float16", "20KB")}) {
    folders.push_back(bench_.Path(absl::StrCat(dtype, shard)));
    make.insert(make.end(), {folders.back(), dtype, shard});
  }
  const std::vector<double> theirs = TheirLosses(folders, make);
  for (size_t i = 0; i < folders.size(); ++i) {
    EXPECT_NEAR(OurLoss(folders[i]) / theirs[i], 1, kLimit) << folders[i];
    EXPECT_GT(theirs[i], 4) << "no model whose loss says anything";
  }
}

TEST_F(Transformers, WhatIsExportedHasTheSameLossThere) {
  JobSpec spec = bench_.MakeJob();
  spec.mutable_train()->set_steps(40);
  spec.mutable_train()->mutable_checkpoint()->set_every_steps(0);
  spec.mutable_train()->mutable_optimizer()->set_lr(1e-2);
  Process trainer = bench_.Start(bench_.Assign(spec, 1));
  ASSERT_EQ(trainer.Wait(), 0) << trainer.Log();
  const std::string from = bench_.Path("checkpoints");
  const double ours = OurLoss(from);
  EXPECT_LT(ours, 5) << "the model learned nothing, so the comparison is void";
  std::vector<std::string> folders;
  for (const char* size : {"5GB", "9kB"}) {
    folders.push_back(bench_.Path(absl::StrCat("out-", size)));
    Run({"export", "--checkpoint", from, "--out", folders.back(), "--max_shard_size", size});
  }
  const std::vector<double> theirs = TheirLosses(folders);
  for (size_t i = 0; i < folders.size(); ++i) EXPECT_NEAR(theirs[i] / ours, 1, kLimit) << folders[i];
}

TEST_F(Transformers, BytePairsAreTheirs) {
  for (const char* seed : {"1", "2"}) {
    const json theirs = Peer({"ids", bench_.Path(""), bench_.Path("text"), seed});
    const auto bpe = data::Bpe::Load(bench_.Path("vocab.json"), bench_.Path("merges.txt"));
    ASSERT_TRUE(bpe.ok()) << bpe.status();
    std::ifstream file(bench_.Path("text"), std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    std::vector<uint32_t> ours;
    (*bpe)->Encode(text, ours);
    ASSERT_GT(text.size(), 50'000u);
    EXPECT_TRUE(json(ours) == theirs) << "seed " << seed << ": " << ours.size() << " ids, theirs " << theirs.size();
    EXPECT_TRUE((*bpe)->Decode(ours) == text);
  }
}

}  // namespace
}  // namespace muster::trainer
