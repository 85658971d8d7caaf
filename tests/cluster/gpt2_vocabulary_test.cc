// A job over GPT-2's own vocabulary, from text to text: prepared, trained and sampled as a user does it.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <string>

#include <nlohmann/json.hpp>
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/cluster/cluster.h"

namespace muster::cluster {
namespace {

using nlohmann::json;

double Loss(const json& point) { return (point.contains("metrics") ? point["metrics"] : point)["loss"].get<double>(); }

TEST(Gpt2Vocabulary, FromTextToText) {
  const char* files = getenv("MUSTER_GPT2_VOCABULARY");
  ASSERT_NE(files, nullptr) << "run ./test.sh, or tools/fetch_gpt2_vocabulary.sh and pass "
                               "--test_env=MUSTER_GPT2_VOCABULARY=~/.cache/muster/gpt2-vocabulary";
  Cluster cluster;
  cluster.StartCoordinator();
  cluster.StartWorker(0, 1);

  const std::string tokens = cluster.folder() + "/pairs.bin";
  const Ran prepared =
      cluster.Muster({"data", "prepare", "/usr/share/common-licenses/GPL-3", tokens, "--tokenizer", files});
  ASSERT_EQ(prepared.exit_code, 0) << prepared.err;
  EXPECT_TRUE(absl::StrContains(prepared.err + prepared.out, "model.vocabulary must be at least 50257"))
      << prepared.err;

  const std::string job = cluster.folder() + "/pairs.yaml";
  std::ofstream(job) << "apiVersion: muster/v1\nkind: Job\nname: pairs\n"
                        "model: {family: gpt2, layers: 1, heads: 2, width: 32, vocabulary: 50257, context: 32}\n"
                        "data: {tokens: pairs.bin}\nbatch: {sequences: 4, microbatch: 4}\nsteps: 30\n"
                        "optimizer: {lr: 1e-2}\ncheckpoint: {path: "
                     << cluster.CheckpointPath("pairs") << "}\n";
  const Ran trained = cluster.Muster({"submit", "-f", job});
  ASSERT_EQ(trained.exit_code, 0) << trained.err << trained.out;

  const json points = json::parse(cluster.Muster({"metrics", "@last", "-o", "json"}).out, nullptr, false);
  ASSERT_TRUE(points.is_array());
  ASSERT_EQ(points.size(), 30u);
  EXPECT_NEAR(Loss(points.front()), std::log(50257.0), 0.1);
  EXPECT_LT(Loss(points.back()), Loss(points.front()) - 1);

  const std::vector<std::string> sample = {"sample",   "@last", "--prompt",      "The licenses",
                                           "--tokens", "12",    "--temperature", "0"};
  std::vector<std::string> with_files = sample;
  with_files.insert(with_files.end(), {"--tokenizer", files});
  const Ran text = cluster.Muster(with_files);
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_TRUE(absl::StartsWith(text.out, "The licenses")) << text.out;
  EXPECT_GT(text.out.size(), std::string("The licenses").size() + 12) << text.out;
  const Ran recorded = cluster.Muster(sample);
  EXPECT_EQ(recorded.exit_code, 0) << recorded.err;
  EXPECT_EQ(recorded.out, text.out) << "by the tokenizer that made the tokens";
}

}  // namespace
}  // namespace muster::cluster
