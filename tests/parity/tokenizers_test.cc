// Tokenizers of tokenizer.json: ids and texts against Hugging Face's tokenizers package, for random tokenizers in the
// shapes that models publish, random text of all planes, and streams that are cut anywhere.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include "absl/strings/str_cat.h"
#include "data/tokenizer.h"
#include "data/utf8.h"
#include "testing/temporary_folder.h"

namespace muster::data {
namespace {

using nlohmann::json;

json ReadJsonFile(const std::string& path) {
  std::ifstream file(path);
  return json::parse(file);
}

// As Python and Rust decode bytes: what is no character becomes U+FFFD, once for each longest beginning of one.
std::string Lossy(const std::string& bytes) {
  std::string text;
  for (size_t at = 0; at < bytes.size();) {
    if (const size_t length = CharacterBytes(bytes, at); length > 0) {
      text += bytes.substr(at, length);
      at += length;
      continue;
    }
    text += "\uFFFD";
    size_t length = 1;
    while (length < 3 && at + length < bytes.size() && IncompleteBytes(bytes.substr(at, length + 1)) == length + 1) {
      ++length;
    }
    at += length;
  }
  return text;
}

std::vector<uint32_t> InParts(Tokenizer& tokenizer, const std::string& text, std::mt19937& random) {
  std::vector<uint32_t> ids;
  const size_t most = 1 + random() % 40;
  for (size_t at = 0; at < text.size();) {
    const size_t size = std::min<size_t>(1 + random() % most, text.size() - at);
    EXPECT_TRUE(tokenizer.EncodePart(std::string_view(text).substr(at, size), /*last=*/false, ids).ok());
    at += size;
  }
  EXPECT_TRUE(tokenizer.EncodePart("", /*last=*/true, ids).ok());
  return ids;
}

void Compare(const std::string& folder) {
  auto tokenizer = Tokenizer::Load(folder + "/tokenizer.json");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const json texts = ReadJsonFile(folder + "/texts.json"), expected = ReadJsonFile(folder + "/expected.json");
  ASSERT_EQ(texts.size(), expected["ids"].size());
  std::mt19937 random(5);
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::string text = texts[i].get<std::string>();
    const auto ids = expected["ids"][i].get<std::vector<uint32_t>>();
    std::vector<uint32_t> ours;
    ASSERT_TRUE((*tokenizer)->Encode(text, ours).ok());
    ASSERT_EQ(ours, ids) << expected["kind"] << ", text " << i << ": " << texts[i].dump(-1, ' ', true);
    ASSERT_EQ(Lossy((*tokenizer)->Decode(ids)), expected["texts"][i].get<std::string>())
        << texts[i].dump(-1, ' ', true);
    ASSERT_EQ(InParts(**tokenizer, text, random), ids) << "in parts: " << texts[i].dump(-1, ' ', true);
    for (const uint32_t id : ids) ASSERT_LT(id, (*tokenizer)->vocabulary());
  }
  std::vector<uint32_t> around = (*tokenizer)->before_text();
  around.insert(around.end(), (*tokenizer)->after_text().begin(), (*tokenizer)->after_text().end());
  EXPECT_EQ(around, expected["around"].get<std::vector<uint32_t>>());
}

TEST(Tokenizers, RandomOnesHaveThePackagesIdsAndTexts) {
  const char* const python = getenv("MUSTER_PEER_PYTHON");
  ASSERT_NE(python, nullptr) << "MUSTER_PEER_PYTHON is not set: run ./test.sh, or tools/fetch_torch.sh peer and pass "
                                "--test_env=MUSTER_PEER_PYTHON=~/.cache/muster/peer/bin/python";
  const TemporaryFolder made;
  // Our own paths, without a character that the shell interprets.
  const std::string command =
      absl::StrCat("'", python, "' tests/parity/tokenizers_peer.py ", made.path(), " 1 > ", made.path(), "/number");
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  size_t number = 0;
  std::ifstream(made.path() + "/number") >> number;
  ASSERT_GE(number, 50u);
  for (size_t i = 0; i < number; ++i) {
    SCOPED_TRACE(absl::StrCat("tokenizer ", i));
    Compare(absl::StrCat(made.path(), "/", i));
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace muster::data
