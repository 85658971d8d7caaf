#include "data/bpe.h"

#include <fstream>
#include <random>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include "absl/strings/str_cat.h"
#include "data/prepare.h"
#include "data/split.h"
#include "data/token_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Path(const std::string& name) { return absl::StrCat(::testing::TempDir(), "/", name); }

std::string Write(const std::string& name, const std::string& text) {
  std::ofstream(Path(name), std::ios::binary) << text;
  return Path(name);
}

// The 256 bytes in GPT-2's order of ids, then the results of `merges`, then <|endoftext|>.
nlohmann::json Vocabulary(const std::vector<std::string>& merged) {
  nlohmann::json names;
  uint32_t id = 0, other = 256;
  const auto add = [&](uint32_t c) {
    names[c < 0x80 ? std::string(1, static_cast<char>(c))
                   : std::string{static_cast<char>(0xc0 | c >> 6), static_cast<char>(0x80 | (c & 63))}] = id++;
  };
  for (uint32_t c = '!'; c <= '~'; ++c) add(c);
  for (uint32_t c = 0xa1; c <= 0xff; ++c) {
    if (c != 0xad) add(c);
  }
  while (id < 256) add(other++);
  for (const std::string& name : merged) names[name] = id++;
  names["<|endoftext|>"] = id;
  return names;
}

std::unique_ptr<Bpe> Small() {
  const std::string vocabulary = Write("vocab.json", Vocabulary({"he", "ll", "hell", "\u0120w", "aa", "hello"}).dump());
  return Bpe::Load(vocabulary, Write("merges.txt", "#version: 0.2\nh e\nl l\nhe ll\n\u0120 w\na a\nhell o\n")).value();
}

std::vector<std::string> Pieces(const std::string& text) {
  std::vector<std::string> pieces;
  Splitter().Split(text, true, [&](std::string_view piece) { pieces.emplace_back(piece); });
  return pieces;
}

TEST(Splitter, CutsAsGpt2) {
  EXPECT_THAT(Pieces("Hello world, it's 42  times!\n\n  x"),
              ElementsAre("Hello", " world", ",", " it", "'s", " 42", " ", " times", "!", "\n\n ", " x"));
  EXPECT_THAT(Pieces("  "), ElementsAre("  "));
  EXPECT_THAT(Pieces("a \n"), ElementsAre("a", " \n"));
  EXPECT_THAT(Pieces("we'll 'RE"), ElementsAre("we", "'ll", " '", "RE"));
  EXPECT_THAT(Pieces("\u00e4\u4e16\u754c\u0663\u00bd"), ElementsAre("\u00e4\u4e16\u754c", "\u0663\u00bd"));
  EXPECT_THAT(Pieces("x\u00a0y\u180ez"), ElementsAre("x", "\u00a0", "y", "\u180e", "z"));
  EXPECT_THAT(Pieces("ab\xff\xfe c\xe2\x82"), ElementsAre("ab", "\xff\xfe", " c", "\xe2\x82"));
}

TEST(Bpe, MergesByRankFromTheLeft) {
  const auto bpe = Small();
  std::vector<uint32_t> ids;
  bpe->Encode("hello wello aaaaa", ids);
  EXPECT_THAT(ids, ElementsAre(261, 259, 'e' - '!', 257, 'o' - '!', 220, 260, 260, 'a' - '!'));
  EXPECT_EQ(bpe->Decode(ids), "hello wello aaaaa");
  EXPECT_EQ(bpe->vocabulary(), 263u);
  EXPECT_EQ(bpe->end_of_text(), 262u);
  EXPECT_EQ(bpe->Decode({{262, 999}}), "<|endoftext|>");
}

// Any bytes survive a round trip, however the stream is cut into parts.
TEST(Bpe, AnyBytesInAnyParts) {
  const auto bpe = Small();
  std::mt19937 random(7);
  const std::string kinds[] = {"hello",      " ",    "  ", "'ll", "\n", "\u00e4", "\u4e16",
                               "\U0001F600", "\xff", "7",  "!",   "a",  "\xe4"};
  for (int round = 0; round < 300; ++round) {
    std::string text;
    for (int i = random() % 60; i > 0; --i) text += kinds[random() % std::size(kinds)];
    std::vector<uint32_t> whole, parts;
    bpe->Encode(text, whole);
    ASSERT_EQ(bpe->Decode(whole), text);
    std::string rest;
    for (size_t at = 0; at < text.size();) {
      const size_t size = std::min<size_t>(1 + random() % 20, text.size() - at);
      rest += text.substr(at, size);
      at += size;
      rest.erase(0, bpe->EncodePart(rest, /*last=*/false, parts));
    }
    bpe->EncodePart(rest, /*last=*/true, parts);
    ASSERT_EQ(parts, whole) << text;
  }
}

TEST(Bpe, LongRunsTakeNoLong) {
  const auto bpe = Small();
  std::vector<uint32_t> ids;
  bpe->Encode(std::string(1'000'000, 'a') + std::string(300'000, ' ') + "b", ids);
  EXPECT_EQ(ids.size(), 500'000u + 300'000 + 1);
}

TEST(Bpe, SaysWhatIsWrong) {
  const auto load = [](const std::string& vocabulary, const std::string& merges) {
    return std::string(Bpe::Load(Write("v", vocabulary), Write("m", merges)).status().message());
  };
  const std::string good = Vocabulary({"he"}).dump();
  EXPECT_EQ(Bpe::Load(Path("none"), Path("none")).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(load("PK\x03\x04", ""), HasSubstr("is no JSON object"));
  EXPECT_THAT(load("{\"a\": -1}", ""), HasSubstr("the id of \"a\""));
  EXPECT_THAT(load("{\"a\": 1}", ""), HasSubstr("has no id for byte 0"));
  EXPECT_THAT(load(good, "#version: 0.2\nh e\nhello\n"), HasSubstr("/m:3: expected two names"));
  EXPECT_THAT(load(good, "h e\nl l\n"), HasSubstr("/m:2: \"ll\" is not in the vocabulary"));
}

TEST(Bpe, PreparesATextInParts) {
  const auto bpe = Small();
  std::string text;
  for (int i = 0; i < 200'000; ++i) absl::StrAppend(&text, "hello w", i % 7, i % 11 == 0 ? "\n\n" : " ");
  PrepareOptions options{.texts = {Write("one.txt", text), Write("two.txt", "hello")},
                         .out = Path("tokens.bin"),
                         .bpe = bpe.get(),
                         .end_of_text = true,
                         .force = true};
  ASSERT_TRUE(Prepare(options).ok());
  std::vector<uint32_t> expected;
  bpe->Encode(text, expected);
  expected.insert(expected.end(), {262, 261, 262});
  const TokenFile file = TokenFile::Open(options.out, 0).value();
  std::vector<uint32_t> written(file.tokens());
  ASSERT_TRUE(file.Read(0, absl::MakeSpan(written)).ok());
  EXPECT_TRUE(written == expected);
  EXPECT_EQ(Readable({{261, 262}}, bpe.get()), "hello<|endoftext|>");
}

}  // namespace
}  // namespace muster::data
