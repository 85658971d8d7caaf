#include "data/tokenizer.h"

#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include "absl/strings/str_cat.h"
#include "data/prepare.h"
#include "data/regex.h"
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

// A folder with the two files.
std::string Pair(const std::string& vocabulary, const std::string& merges) {
  std::filesystem::create_directories(Path("pair"));
  Write("pair/vocab.json", vocabulary);
  Write("pair/merges.txt", merges);
  return Path("pair");
}

std::unique_ptr<Tokenizer> Small() {
  return Tokenizer::Load(Pair(Vocabulary({"he", "ll", "hell", "\u0120w", "aa", "hello"}).dump(),
                              "#version: 0.2\nh e\nl l\nhe ll\n\u0120 w\na a\nhell o\n"))
      .value();
}

std::vector<uint32_t> Ids(Tokenizer& tokenizer, const std::string& text) {
  std::vector<uint32_t> ids;
  EXPECT_TRUE(tokenizer.Encode(text, ids).ok());
  return ids;
}

TEST(Tokenizer, MergesByRankFromTheLeft) {
  const auto tokenizer = Small();
  const std::vector<uint32_t> ids = Ids(*tokenizer, "hello wello aaaaa");
  EXPECT_THAT(ids, ElementsAre(261, 259, 'e' - '!', 257, 'o' - '!', 220, 260, 260, 'a' - '!'));
  EXPECT_EQ(tokenizer->Decode(ids), "hello wello aaaaa");
  EXPECT_EQ(tokenizer->vocabulary(), 263u);
  EXPECT_EQ(tokenizer->end_of_text(), 262u);
  EXPECT_EQ(tokenizer->Decode({{262, 999}}), "<|endoftext|>");
}

// The tokens of the single bytes show the pieces as they are: nothing merges over a cut.
TEST(Tokenizer, APairOfFilesSplitsAsGpt2) {
  const auto tokenizer = Tokenizer::Load(Pair(Vocabulary({"aa", "\u0120a", "\u0120\u0120", "!a", "a1"}).dump(),
                                              "a a\n\u0120 a\n\u0120 \u0120\n! a\na 1\n"))
                             .value();
  const auto pieces = [&](const std::string& text) { return Ids(*tokenizer, text).size(); };
  EXPECT_EQ(pieces("aa"), 1u);
  EXPECT_EQ(pieces("a1"), 2u);
  EXPECT_EQ(pieces("!a"), 2u);
  EXPECT_EQ(pieces("a   a"), 3u) << "the last space belongs to the word";
  EXPECT_EQ(pieces("a\xff"
                   "a"),
            3u);
}

// Any bytes survive a round trip, however the stream is cut into parts.
TEST(Tokenizer, AnyBytesInAnyParts) {
  const auto tokenizer = Small();
  std::mt19937 random(7);
  const std::string kinds[] = {"hello",      " ",    "  ", "'ll", "\n", "\u00e4", "\u4e16",
                               "\U0001F600", "\xff", "7",  "!",   "a",  "\xe4",   "\xf0\x9f"};
  for (int round = 0; round < 300; ++round) {
    std::string text;
    for (int i = random() % 60; i > 0; --i) text += kinds[random() % std::size(kinds)];
    const std::vector<uint32_t> whole = Ids(*tokenizer, text);
    ASSERT_EQ(tokenizer->Decode(whole), text);
    std::vector<uint32_t> parts;
    for (size_t at = 0; at < text.size();) {
      const size_t size = std::min<size_t>(1 + random() % 20, text.size() - at);
      ASSERT_TRUE(tokenizer->EncodePart(std::string_view(text).substr(at, size), /*last=*/false, parts).ok());
      at += size;
    }
    ASSERT_TRUE(tokenizer->EncodePart("", /*last=*/true, parts).ok());
    ASSERT_EQ(parts, whole) << text;
  }
}

TEST(Tokenizer, LongRunsTakeNoLong) {
  const auto tokenizer = Small();
  EXPECT_EQ(Ids(*tokenizer, std::string(1'000'000, 'a') + std::string(300'000, ' ') + "b").size(),
            500'000u + 300'000 + 1);
}

TEST(Tokenizer, SaysWhatIsWrongWithAPair) {
  const auto load = [](const std::string& vocabulary, const std::string& merges) {
    return std::string(Tokenizer::Load(Pair(vocabulary, merges)).status().message());
  };
  const std::string good = Vocabulary({"he"}).dump();
  EXPECT_EQ(Tokenizer::Load(Path("none")).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(load("PK\x03\x04", ""), HasSubstr("is not a JSON object"));
  EXPECT_THAT(load("{\"a\": -1}", ""), HasSubstr("the id of \"a\""));
  EXPECT_THAT(load("{\"a\": 16777216}", ""), HasSubstr("the id of \"a\""));
  EXPECT_THAT(load("{\"a\": 1, \"b\": 1}", ""), HasSubstr("two tokens have the id 1"));
  EXPECT_THAT(load("{\"a\": 1}", ""), HasSubstr("has no token for byte 0"));
  EXPECT_THAT(load(std::string(1000, '['), ""), HasSubstr("nested too deep"));
  EXPECT_THAT(load(good, "#version: 0.2\nh e\nhello\n"), HasSubstr("merges.txt:3: expected two names"));
  EXPECT_THAT(load(good, "h e\nl l\n"), HasSubstr("merge 2, \"l\" and \"l\": \"ll\" is not in the vocabulary"));
}

// A tokenizer.json without merges, whose tokens are the bytes; `change` is merged into it.
nlohmann::json Plain(const nlohmann::json& change = nlohmann::json::object()) {
  nlohmann::json file = {{"model", {{"type", "BPE"}, {"vocab", Vocabulary({})}, {"merges", nlohmann::json::array()}}},
                         {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
                         {"decoder", {{"type", "ByteLevel"}}},
                         {"added_tokens", nlohmann::json::array()}};
  file.merge_patch(change);
  return file;
}

nlohmann::json Added(const std::string& content, uint32_t id, const std::vector<std::string>& flags = {}) {
  nlohmann::json token = {{"content", content}, {"id", id}};
  for (const char* flag : {"single_word", "lstrip", "rstrip", "normalized", "special"}) token[flag] = false;
  for (const std::string& flag : flags) token[flag] = true;
  return token;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const nlohmann::json& file) {
  return Tokenizer::Load(Write("tokenizer.json", file.dump()));
}

TEST(Tokenizer, SaysWhatIsNotSupported) {
  const auto says = [](const char* change) {
    return std::string(Load(Plain(nlohmann::json::parse(change))).status().message());
  };
  ASSERT_TRUE(Load(Plain()).ok()) << Load(Plain()).status();
  EXPECT_THAT(says(R"({"model": null})"), HasSubstr("tokenizer.json: no tokenizer"));
  EXPECT_THAT(says(R"({"model": {"type": "Unigram"}})"), HasSubstr("model.type is \"Unigram\"; supported: byte-level"));
  EXPECT_THAT(says(R"({"model": {"byte_fallback": true}})"), HasSubstr("model.byte_fallback"));
  EXPECT_THAT(says(R"({"model": {"dropout": 0.1}})"), HasSubstr("model.dropout"));
  EXPECT_THAT(says(R"({"model": {"end_of_word_suffix": "</w>"}})"), HasSubstr("model.end_of_word_suffix"));
  EXPECT_THAT(says(R"({"model": {"merges": ["a"]}})"), HasSubstr("merge 1 is not of two names"));
  EXPECT_THAT(says(R"({"model": {"unk_token": "x", "vocab": {"a": null}}})"), HasSubstr("has no token for byte 97"));
  EXPECT_THAT(says(R"({"normalizer": {"type": "NFKC"}})"), HasSubstr("normalizer is \"NFKC\"; supported: NFC"));
  EXPECT_THAT(says(R"({"pre_tokenizer": {"type": "Metaspace"}})"), HasSubstr("pre_tokenizer is \"Metaspace\""));
  EXPECT_THAT(says(R"({"pre_tokenizer": null})"), HasSubstr("has no ByteLevel"));
  EXPECT_THAT(says(R"({"decoder": {"type": "Metaspace"}})"), HasSubstr("decoder is \"Metaspace\""));
  EXPECT_THAT(says(R"({"post_processor": {"type": "BertProcessing"}})"), HasSubstr("post_processor is"));
  EXPECT_THAT(says(R"({"post_processor": {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A"}},
                      {"SpecialToken": {"id": "x"}}], "special_tokens": {"x": {"ids": [999]}}}})"),
              HasSubstr("no token has the id 999"));
  EXPECT_THAT(says(R"({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split", "invert": false,
                      "pattern": {"Regex": "(?<=a)b"}, "behavior": "Isolated"}, {"type": "ByteLevel",
                      "add_prefix_space": false}]}})"),
              HasSubstr("pre_tokenizer: regular expression, byte 1: this kind of group is not supported"));
  nlohmann::json file = Plain();
  file["added_tokens"] = {Added("<x>", 300)};
  EXPECT_THAT(std::string(Load(file).status().message()), HasSubstr("\"<x>\" says id 300, but"));
  file["added_tokens"] = {Added("<x>", 257), Added("<x>", 257, {"lstrip"})};
  EXPECT_THAT(std::string(Load(file).status().message()), HasSubstr("\"<x>\" comes twice"));
  file["added_tokens"] = {Added(std::string(2000, 'x'), 257)};
  EXPECT_THAT(std::string(Load(file).status().message()), HasSubstr("more than 1024 bytes"));
}

TEST(Tokenizer, RegularExpressionsAreWhatBothLibrariesAgreeOn) {
  const auto match = [](const std::string& pattern, const std::string& text) -> std::string {
    const auto regex = Regex::Make(pattern);
    if (!regex.ok()) return std::string(regex.status().message());
    const auto found = regex->Find(text, 0, /*whole=*/true);
    EXPECT_TRUE(found.ok()) << found.status();
    return found->kind == Regex::Found::kMatch ? text.substr(found->begin, found->end - found->begin) : "";
  };
  EXPECT_EQ(match("(?i:'s|'ll)", "it'\u017f"), "'\u017f");
  EXPECT_EQ(match("(?i:k[ab])", "\u212aB"), "\u212aB");
  EXPECT_EQ(match(R"(\s+(?!\S))", "a   b"), "  ");
  EXPECT_EQ(match(R"(\s)", "\u180e\u0085"), "\u0085") << "U+180E is no white space";
  EXPECT_EQ(match(R"([^\S\n]+)", "\n\t b"), "\t ");
  EXPECT_EQ(match(" ?[^(\\s|[.,!?\u2026])]+", "(.a)"), "a") << "a nested class is a union";
  EXPECT_EQ(match(R"([\p{Lu}\p{M}]+|\p{^L})", "a\u0301B1"), "\u0301B");
  EXPECT_EQ(match(R"(\x{4e16}|[\u0041-\u0043\-])", "z-"), "-");
  EXPECT_EQ(match("a{2,}?|b{,2}c", "bbbc"), "bbc");
  for (const char* refused :
       {"^a",          "a$",      "\\bx",   "\\w",         "\\h",     "(a)\\1",   "(?<=a)b", "(?i)a", "(?i:ss)",
        "(?i:\u00e9)", "(?i:a+)", "[a&&b]", "[[:alpha:]]", "[]a]",    "[a",       "(a",      "a)",    "a**",
        "a{2}+",       "a{1001}", "a*",     "(?=a)",       "(a?)+",   "\\p{Han}", "\\pL",    "\\x80", "\\x{110000}",
        "[b-a]",       "[\\d-z]", "x{",     "(?m:a)",      "(*UCP)a", "\\",       "[\\",     "a|",    "\U00031350"}) {
    EXPECT_THAT(match(refused, ""), HasSubstr("not supported")) << refused;
  }
  EXPECT_THAT(match(std::string(200, '(') + "a" + std::string(200, ')'), ""), HasSubstr("deep nesting"));
  EXPECT_THAT(match("(?:(?:(?:a{1000}){1000}){1000}){1000}", ""), HasSubstr("too large"));
}

// A pattern that backtracks without end is an error of the text that does it.
TEST(Tokenizer, StepsOfARegularExpressionAreBounded) {
  nlohmann::json file = Plain();
  file["pre_tokenizer"] = {{"type", "Sequence"},
                           {"pretokenizers",
                            {{{"type", "Split"},
                              {"pattern", {{"Regex", "(?:a+)+b|(?:a|aa)+c"}}},
                              {"behavior", "Isolated"},
                              {"invert", false}},
                             {{"type", "ByteLevel"}, {"add_prefix_space", false}}}}};
  const auto tokenizer = Load(file).value();
  std::vector<uint32_t> ids;
  EXPECT_TRUE(tokenizer->Encode("aaab", ids).ok());
  EXPECT_EQ(tokenizer->Encode(std::string(5000, 'a'), ids).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(tokenizer->Encode("aaab", ids).ok());
}

TEST(Tokenizer, BytesWithoutATokenAreLeftOutAndCounted) {
  nlohmann::json file = Plain();
  file["model"]["vocab"].erase("\u0100");  // byte 0
  const auto tokenizer = Load(file).value();
  EXPECT_EQ(Ids(*tokenizer, std::string("a\0b\0", 4)).size(), 2u);
  EXPECT_EQ(tokenizer->bytes_left_out(), 2u);
}

// Llama 3's shape: the template has a begin, and tokenizer_config.json names the end.
TEST(Tokenizer, PreparesTextsWithTheTemplatesTokens) {
  nlohmann::json file = Plain();
  file["added_tokens"] = {Added("<|begin_of_text|>", 257, {"special"}), Added("<|end_of_text|>", 258, {"special"})};
  file["post_processor"] = nlohmann::json::parse(R"({"type": "Sequence", "processors": [{"type": "ByteLevel"},
      {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|begin_of_text|>", "type_id": 0}},
       {"Sequence": {"id": "A", "type_id": 0}}],
       "special_tokens": {"<|begin_of_text|>": {"id": "<|begin_of_text|>", "ids": [257], "tokens": []}}}]})");
  std::filesystem::create_directories(Path("llama"));
  Write("llama/tokenizer.json", file.dump());
  Write("llama/tokenizer_config.json", R"({"eos_token": {"content": "<|end_of_text|>"}})");
  const auto tokenizer = Tokenizer::Load(Path("llama")).value();
  EXPECT_THAT(tokenizer->before_text(), ElementsAre(257));
  EXPECT_EQ(tokenizer->end_of_text(), 258u) << "not <|endoftext|>, which the vocabulary also has";
  EXPECT_EQ(tokenizer->vocabulary(), 259u);
  PrepareOptions options{.texts = {Write("one.txt", "a"), Write("two.txt", "b<|end_of_text|>")},
                         .out = Path("llama.bin"),
                         .tokenizer = tokenizer.get(),
                         .end_of_text = true,
                         .force = true};
  ASSERT_TRUE(Prepare(options).ok());
  const TokenFile tokens = TokenFile::Open(options.out, 0).value();
  std::vector<uint32_t> written(tokens.tokens());
  ASSERT_TRUE(tokens.Read(0, absl::MakeSpan(written)).ok());
  EXPECT_THAT(written, ElementsAre(257, 'a' - '!', 258, 257, 'b' - '!', 258, 258));
  EXPECT_EQ(Readable({{257, 64}}, tokenizer.get()), "<|begin_of_text|>a");
}

TEST(Tokenizer, PreparesATextInParts) {
  const auto tokenizer = Small();
  std::string text;
  for (int i = 0; i < 200'000; ++i) absl::StrAppend(&text, "hello w", i % 7, i % 11 == 0 ? "\n\n" : " ");
  PrepareOptions options{.texts = {Write("one.txt", text), Write("two.txt", "hello")},
                         .out = Path("tokens.bin"),
                         .tokenizer = tokenizer.get(),
                         .end_of_text = true,
                         .force = true};
  ASSERT_TRUE(Prepare(options).ok());
  std::vector<uint32_t> expected = Ids(*tokenizer, text);
  expected.insert(expected.end(), {262, 261, 262});
  const TokenFile file = TokenFile::Open(options.out, 0).value();
  std::vector<uint32_t> written(file.tokens());
  ASSERT_TRUE(file.Read(0, absl::MakeSpan(written)).ok());
  EXPECT_TRUE(written == expected);
  EXPECT_EQ(Readable({{261, 262}}, tokenizer.get()), "hello<|endoftext|>");
}

}  // namespace
}  // namespace muster::data
