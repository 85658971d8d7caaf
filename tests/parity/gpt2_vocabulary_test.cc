// GPT-2's own vocabulary: our byte pairs against Hugging Face's GPT2Tokenizer.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "data/tokenizer.h"
#include "testing/temporary_folder.h"

namespace muster::data {
namespace {

using nlohmann::json;

std::string Environment(const char* name) {
  const char* value = getenv(name);
  EXPECT_NE(value, nullptr) << name
                            << " is not set: run ./test.sh, or tools/fetch_torch.sh peer and "
                               "tools/fetch_gpt2_vocabulary.sh, and pass both with --test_env";
  return value == nullptr ? "" : value;
}

class Gpt2Vocabulary : public ::testing::Test {
 protected:
  Gpt2Vocabulary() : folder_(Environment("MUSTER_GPT2_VOCABULARY")) {}

  std::unique_ptr<Tokenizer> Load() const {
    auto tokenizer = Tokenizer::Load(folder_);
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
  }

  const std::string folder_;
};

TEST_F(Gpt2Vocabulary, KnownIds) {
  const auto tokenizer = Load();
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(tokenizer->vocabulary(), 50257u);
  EXPECT_EQ(tokenizer->end_of_text(), 50256u);
  std::vector<uint32_t> ids;
  ASSERT_TRUE(tokenizer->Encode("Hello world, this is GPT-2.", ids).ok());
  EXPECT_EQ(ids, (std::vector<uint32_t>{15496, 995, 11, 428, 318, 402, 11571, 12, 17, 13}));
}

TEST_F(Gpt2Vocabulary, EveryByteAndAnyBytesComeBack) {
  const auto tokenizer = Load();
  ASSERT_NE(tokenizer, nullptr);
  for (int byte = 0; byte < 256; ++byte) {
    std::vector<uint32_t> ids;
    ASSERT_TRUE(tokenizer->Encode(std::string(1, static_cast<char>(byte)), ids).ok());
    ASSERT_EQ(ids.size(), 1u) << byte;
    ASSERT_EQ(tokenizer->Decode(ids), std::string(1, static_cast<char>(byte))) << byte;
  }
  std::mt19937 random(3);
  for (int round = 0; round < 2000; ++round) {
    std::string text(random() % 50, '\0');
    for (char& c : text) c = static_cast<char>(random());
    std::vector<uint32_t> ids;
    ASSERT_TRUE(tokenizer->Encode(text, ids).ok());
    ASSERT_EQ(tokenizer->Decode(ids), text);
  }
}

TEST_F(Gpt2Vocabulary, TextsHaveTheReferencesIds) {
  const auto tokenizer = Load();
  ASSERT_NE(tokenizer, nullptr);
  const TemporaryFolder made;
  const std::string texts_path = made.path() + "/texts.json", ids_path = made.path() + "/ids.json";
  // Our own paths, without a character that the shell interprets.
  const std::string command =
      absl::StrCat("HF_HUB_OFFLINE=1 '", Environment("MUSTER_PEER_PYTHON"),
                   "' tests/parity/transformers_peer.py gpt2 '", folder_, "' ", texts_path, " 1 > ", ids_path);
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  std::ifstream texts_file(texts_path), ids_file(ids_path);
  const json texts = json::parse(texts_file), expected = json::parse(ids_file);
  ASSERT_EQ(texts.size(), expected.size());
  ASSERT_GE(texts.size(), 12'000u);
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::string text = texts[i].get<std::string>();
    if (absl::StrContains(text, "<|endoftext|>")) continue;  // an end there, text here
    std::vector<uint32_t> ids;
    ASSERT_TRUE(tokenizer->Encode(text, ids).ok());
    ASSERT_EQ(ids, expected[i].get<std::vector<uint32_t>>()) << "text " << i << ": " << texts[i];
    ASSERT_EQ(tokenizer->Decode(ids), text) << i;
  }
}

}  // namespace
}  // namespace muster::data
