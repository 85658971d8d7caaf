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
#include "data/tokenizer.h"
#include "gtest/gtest.h"
#include "models/inventory.h"
#include "worker/trainer/fake_trainer_server.h"

namespace muster::trainer {
namespace {

using nlohmann::json;

// config.json of small models of each kind, with every part that a variant adds.
const std::pair<const char*, const char*> kGpt2 = {
    "gpt2", R"({"model_type": "gpt2", "vocab_size": 256, "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 4,
                "bos_token_id": 0, "eos_token_id": 0})"};
const std::pair<const char*, const char*> kLlamas[] = {
    {"llama2", R"({"model_type": "llama", "vocab_size": 256, "max_position_embeddings": 16, "hidden_size": 32,
                   "intermediate_size": 88, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
                   "rms_norm_eps": 1e-5})"},
    {"llama3", R"({"model_type": "llama", "vocab_size": 256, "max_position_embeddings": 16, "hidden_size": 32,
                   "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
                   "head_dim": 16, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3",
                   "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                   "original_max_position_embeddings": 8}})"},
    {"smollm2", R"({"model_type": "llama", "vocab_size": 256, "max_position_embeddings": 16, "hidden_size": 48,
                    "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 3, "num_key_value_heads": 1,
                    "rms_norm_eps": 1e-5, "rope_theta": 100000, "tie_word_embeddings": true})"},
    {"mistral", R"({"model_type": "mistral", "vocab_size": 256, "max_position_embeddings": 16, "hidden_size": 32,
                    "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
                    "head_dim": 8, "rms_norm_eps": 1e-5, "sliding_window": null, "rope_theta": 1000000.0})"},
    {"window", R"({"model_type": "mistral", "vocab_size": 256, "max_position_embeddings": 16, "hidden_size": 32,
                   "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
                   "rms_norm_eps": 1e-5, "sliding_window": 5})"},
    {"window1", R"({"model_type": "mistral", "vocab_size": 256, "max_position_embeddings": 16, "hidden_size": 32,
                    "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
                    "rms_norm_eps": 1e-5, "sliding_window": 1})"},
    {"window16", R"({"model_type": "mistral", "vocab_size": 256, "max_position_embeddings": 16, "hidden_size": 32,
                     "intermediate_size": 80, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4,
                     "rms_norm_eps": 1e-5, "sliding_window": 16})"},
    {"window4096", R"({"model_type": "mistral", "vocab_size": 256, "max_position_embeddings": 16, "hidden_size": 32,
                       "intermediate_size": 80, "num_hidden_layers": 1, "num_attention_heads": 4,
                       "num_key_value_heads": 4, "rms_norm_eps": 1e-5, "sliding_window": 4096})"},
    {"qwen2window", R"({"model_type": "qwen2", "vocab_size": 256, "max_position_embeddings": 16, "hidden_size": 32,
                        "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 4,
                        "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "use_sliding_window": true, "sliding_window": 4,
                        "max_window_layers": 2})"},
    {"qwen3window", R"({"model_type": "qwen3", "vocab_size": 256, "max_position_embeddings": 16, "hidden_size": 32,
                        "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 4,
                        "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-6, "use_sliding_window": true,
                        "sliding_window": 3,
                        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]})"},
    {"ministral", R"({"model_type": "ministral", "vocab_size": 256, "max_position_embeddings": 16, "hidden_size": 32,
                      "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4,
                      "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-5, "sliding_window": 6,
                      "layer_types": ["full_attention", "sliding_attention"]})"},
    {"qwen2", R"({"model_type": "qwen2", "vocab_size": 256, "max_position_embeddings": 16, "hidden_size": 32,
                  "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
                  "rms_norm_eps": 1e-6, "tie_word_embeddings": true, "use_sliding_window": false})"},
    {"qwen3", R"({"model_type": "qwen3", "vocab_size": 256, "max_position_embeddings": 16, "hidden_size": 32,
                  "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
                  "head_dim": 16, "rms_norm_eps": 1e-6, "tie_word_embeddings": false})"},
    {"linear", R"({"model_type": "llama", "vocab_size": 256, "max_position_embeddings": 16, "hidden_size": 32,
                   "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
                   "rope_scaling": {"rope_type": "linear", "factor": 2.5}})"},
    {"yarn", R"({"model_type": "llama", "vocab_size": 256, "max_position_embeddings": 16, "hidden_size": 64,
                 "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
                 "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}})"},
    {"dynamic", R"({"model_type": "llama", "vocab_size": 256, "max_position_embeddings": 16, "hidden_size": 32,
                    "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
                    "rope_scaling": {"rope_type": "dynamic", "factor": 4.0}})"},
    {"longrope", R"({"model_type": "llama", "vocab_size": 256, "max_position_embeddings": 32, "hidden_size": 32,
                     "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
                     "rope_scaling": {"rope_type": "longrope", "original_max_position_embeddings": 8,
                     "short_factor": [1.0, 1.1, 1.3, 1.5], "long_factor": [1.0, 2.0, 3.5, 5.0]}})"}};

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
        json::parse(Run({"eval", "--checkpoint", folder, "--data", bench_.Path("val.bin"), "--threads", "1", "--json"}),
                    nullptr, false);
    return found.value("loss", std::nan(""));
  }
  // Of the models in `folders`, or of those that `make`, fours of folder, dtype, shard size and config.json, tells it
  // to write first. All in one process: importing their library takes seconds.
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
    make.insert(make.end(), {folders.back(), dtype, shard, kGpt2.second});
  }
  for (const auto& [name, config] : kLlamas) {
    folders.push_back(bench_.Path(name));
    make.insert(make.end(), {folders.back(), "float32", "5GB", config});
  }
  const std::vector<double> theirs = TheirLosses(folders, make);
  for (size_t i = 0; i < folders.size(); ++i) {
    EXPECT_NEAR(OurLoss(folders[i]) / theirs[i], 1, kLimit) << folders[i];
    EXPECT_GT(theirs[i], 4) << "no model whose loss says anything";
  }
}

// Small models of each family, and of what a family's options add.
std::vector<std::pair<std::string, Model>> Exported(const Model& gpt2) {
  std::vector<std::pair<std::string, Model>> models = {{"gpt2", gpt2}};
  Model llama;
  Llama& m = *llama.mutable_llama();
  m.set_layers(2), m.set_heads(4), m.set_key_value_heads(2), m.set_width(32), m.set_inner(80);
  m.set_vocabulary(256), m.set_context(16), m.set_rope_base(500'000);
  models.emplace_back("llama", llama);
  m.set_window(6);
  models.emplace_back("mistral", llama);
  m.add_full_layers(1);
  models.emplace_back("ministral", llama);
  m.set_tied_head(true), m.set_qkv_bias(true);
  models.emplace_back("qwen2", llama);
  m.clear_window(), m.clear_full_layers();
  m.set_qkv_bias(false), m.set_qk_norm(true), m.set_head_width(16);
  m.mutable_rope_scaling()->set_kind(ROPE_SCALING_KIND_YARN);
  m.mutable_rope_scaling()->set_factor(2), m.mutable_rope_scaling()->set_original_context(8);
  models.emplace_back("qwen3", llama);
  m.set_qk_norm(false), m.set_head_width(8);
  m.mutable_rope_scaling()->set_kind(ROPE_SCALING_KIND_DYNAMIC);
  for (const uint32_t original : {24u, 16u, 10u}) {  // longer than the job's context, as long, and shorter
    m.mutable_rope_scaling()->set_original_context(original);
    models.emplace_back(absl::StrCat("dynamic", original), llama);
  }
  m.mutable_rope_scaling()->set_kind(ROPE_SCALING_KIND_LONGROPE);
  for (const double x : {1.0, 1.2, 1.7, 2.0}) m.mutable_rope_scaling()->add_short_factors(x);
  for (const double x : {1.5, 3.0, 5.0, 9.0}) m.mutable_rope_scaling()->add_long_factors(x);
  for (const uint32_t original : {24u, 16u, 10u}) {
    m.mutable_rope_scaling()->set_original_context(original);
    models.emplace_back(absl::StrCat("longrope", original), llama);
  }
  for (auto& [name, model] : models) model = models::Resolve(model).value();
  return models;
}

TEST_F(Transformers, WhatIsExportedHasTheSameLossThere) {
  std::vector<std::string> folders, theirs;
  std::vector<double> ours;
  for (const auto& [name, model] : Exported(bench_.MakeJob().train().model())) {
    JobSpec spec = bench_.MakeJob();
    spec.set_name(name);
    *spec.mutable_train()->mutable_model() = model;
    spec.mutable_train()->set_steps(40);
    spec.mutable_train()->mutable_checkpoint()->set_path(bench_.Path(name));
    spec.mutable_train()->mutable_checkpoint()->set_every_steps(0);
    spec.mutable_train()->mutable_optimizer()->set_lr(1e-2);
    Process trainer = bench_.Start(bench_.Assign(spec, folders.size() + 1));
    ASSERT_EQ(trainer.Wait(), 0) << trainer.Log();
    const double loss = OurLoss(bench_.Path(name));
    EXPECT_LT(loss, 5) << name << ": the model learned nothing, so the comparison is void";
    for (const char* size : {"5GB", "9kB"}) {
      folders.push_back(bench_.Path(absl::StrCat(name, "-", size)));
      Run({"export", "--checkpoint", bench_.Path(name), "--out", folders.back(), "--max-shard-size", size});
      theirs.push_back(absl::StrCat(folders.back(), ":", models::TargetsPerSample(*models::MakeInventory(model))));
      ours.push_back(loss);
    }
  }
  const std::vector<double> losses = TheirLosses(theirs);
  for (size_t i = 0; i < folders.size(); ++i) EXPECT_NEAR(losses[i] / ours[i], 1, kLimit) << folders[i];
}

TEST_F(Transformers, BytePairsAreTheirs) {
  for (const char* seed : {"1", "2"}) {
    const json theirs = Peer({"ids", bench_.Path(""), bench_.Path("text"), seed});
    const auto tokenizer = data::Tokenizer::Load(bench_.Path(""));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    std::ifstream file(bench_.Path("text"), std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    std::vector<uint32_t> ours;
    ASSERT_TRUE((*tokenizer)->Encode(text, ours).ok());
    ASSERT_GT(text.size(), 50'000u);
    EXPECT_TRUE(json(ours) == theirs) << "seed " << seed << ": " << ours.size() << " ids, theirs " << theirs.size();
    EXPECT_TRUE((*tokenizer)->Decode(ours) == text);
  }
}

}  // namespace
}  // namespace muster::trainer
