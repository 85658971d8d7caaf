#include "data/prepare.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "data/token_file.h"
#include "data/tokenizer_origin.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class PrepareTest : public ::testing::Test {
 protected:
  PrepareTest() {
    std::string pattern = absl::StrCat(::testing::TempDir(), "/prepare.XXXXXX");
    directory_ = mkdtemp(pattern.data());
  }
  ~PrepareTest() override { std::filesystem::remove_all(directory_); }

  std::string Path(const std::string& name) const { return directory_ + "/" + name; }
  std::string Text(const std::string& bytes) const {
    std::ofstream(Path("text.txt"), std::ios::binary) << bytes;
    return Path("text.txt");
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory_)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }
  std::string Content(const std::string& name) const {
    std::stringstream content;
    content << std::ifstream(Path(name), std::ios::binary).rdbuf();
    return content.str();
  }

  std::string directory_;
};

TEST_F(PrepareTest, BytesBecomeTokens) {
  const auto prepared = Prepare({.texts = {Text("A\n\xff")}, .out = Path("out.bin")}).value();
  EXPECT_EQ(prepared.tokens, 3u);
  EXPECT_EQ(Content("out.bin"), std::string("A\0\n\0\xff\0", 6));
  EXPECT_THAT(Names(), ElementsAre("out.bin", "out.bin.tokenizer.json", "text.txt"));
}

TEST_F(PrepareTest, SplitsOffTheEndForValidation) {
  std::string text;
  for (int i = 0; i < 3'000'000; ++i) text.push_back(static_cast<char>(i * 7));
  uint64_t done = 0;
  PrepareOptions options{.texts = {Text(text)},
                         .out = Path("a.bin"),
                         .validation_out = Path("b.bin"),
                         .validation_fraction = 0.25,
                         .progress = [&](uint64_t d, uint64_t total) {
                           EXPECT_GT(d, done);
                           EXPECT_EQ(total, 3'000'000u);
                           done = d;
                         }};
  const auto prepared = Prepare(options).value();
  EXPECT_EQ(done, 3'000'000u);
  EXPECT_EQ(prepared.tokens, 2'250'000u);
  EXPECT_EQ(prepared.validation_tokens, 750'000u);
  std::string whole;
  for (const char c : text) whole.append({c, '\0'});
  EXPECT_TRUE(Content("a.bin") == whole.substr(0, 4'500'000));
  EXPECT_TRUE(Content("b.bin") == whole.substr(4'500'000));
}

TEST_F(PrepareTest, RefusesToOverwriteUnlessForced) {
  const std::string text = Text("hello");
  std::ofstream(Path("out.bin")) << "old";
  const absl::Status status = Prepare({.texts = {text}, .out = Path("out.bin")}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists) << status;
  EXPECT_EQ(Content("out.bin"), "old");
  std::ofstream(Path("val.bin")) << "old";
  EXPECT_EQ(Prepare({.texts = {text}, .out = Path("new.bin"), .validation_out = Path("val.bin")}).status().code(),
            absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(Names(), ElementsAre("out.bin", "text.txt", "val.bin"));
  EXPECT_TRUE(Prepare({.texts = {text}, .out = Path("out.bin"), .force = true}).ok());
  EXPECT_EQ(Content("out.bin").size(), 10u);
}

TEST_F(PrepareTest, SaysWhatIsWrong) {
  const auto code = [](const PrepareOptions& options) { return Prepare(options).status().code(); };
  const std::string text = Text("hello");
  EXPECT_EQ(code({.texts = {Path("none.txt")}, .out = Path("o")}), absl::StatusCode::kNotFound);
  EXPECT_EQ(code({.texts = {directory_}, .out = Path("o")}), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(code({.texts = {text}, .out = Path("no/folder/o")}), absl::StatusCode::kNotFound);
  EXPECT_EQ(code({.texts = {text}, .out = directory_}), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(code({.texts = {text}, .out = text, .force = true}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.texts = {text}, .out = Path("o"), .validation_out = Path("o")}), absl::StatusCode::kInvalidArgument);
  for (const double fraction : {0.0, 1.0, -1.0, std::nan(""), 0.01}) {
    EXPECT_EQ(code({.texts = {text}, .out = Path("o"), .validation_out = Path("v"), .validation_fraction = fraction}),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(code({.texts = {Text("")}, .out = Path("o")}), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Names(), ElementsAre("text.txt"));
}

// As text its bytes would be tokens again.
TEST_F(PrepareTest, RefusesATokenFileAsText) {
  for (const TokenFormat format : {TokenFormat::kNanoGpt, TokenFormat::kLlmC}) {
    const std::string tokens = Path("a.bin");
    ASSERT_TRUE(Prepare({.texts = {Text("hello")}, .out = tokens, .format = format, .force = true}).ok());
    // llm.c's header says it without the record beside it.
    if (format == TokenFormat::kLlmC) std::filesystem::remove(tokens + ".tokenizer.json");
    const absl::Status again = Prepare({.texts = {tokens}, .out = Path("b.bin"), .force = true}).status();
    EXPECT_EQ(again.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(again.message(), tokens + " is a token file, not text");
  }
}

TEST_F(PrepareTest, AFullDiskLeavesNoFiles) {
  const std::string text = Text(std::string(1'000'000, 'x'));
  signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  for (const rlim_t limit : {0, 100'000, 1'999'998}) {
    const rlimit small = {limit, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    const absl::Status status = Prepare({.texts = {text}, .out = Path("o"), .validation_out = Path("v")}).status();
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_THAT(Names(), ElementsAre("text.txt"));
  }
}

TEST_F(PrepareTest, SaysBesideTheTokensWhatMadeThem) {
  ASSERT_TRUE(Prepare({.texts = {Text("hello hello")}, .out = Path("t1.bin"), .validation_out = Path("t2.bin")}).ok());
  EXPECT_EQ(Content("t1.bin.tokenizer.json"), "{\"token_file_bytes\":\"20\"}\n");
  const auto bytes = ReadTokenizerOrigin(Path("t1.bin"));
  ASSERT_TRUE(bytes.ok() && bytes->has_value());
  EXPECT_EQ((*bytes)->ByteSizeLong(), 0u) << "each byte is a token";
  EXPECT_TRUE(ReadTokenizerOrigin(Path("t?.*"))->has_value());
  EXPECT_EQ(TokenFile::Open(Path("t?.*"), 1)->shards().size(), 2u) << "what lies beside is no token file";
  TokenizerOrigin other;
  other.set_path("/tokenizers/gpt2"), other.set_sha256("0123456789");
  ASSERT_TRUE(WriteTokenizerOrigin(Path("t2.bin"), other).ok());
  EXPECT_EQ((*ReadTokenizerOrigin(Path("t2.bin")))->path(), "/tokenizers/gpt2");
  const absl::Status several = ReadTokenizerOrigin(Path("t?.*")).status();
  EXPECT_EQ(several.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(several.message(),
            absl::StrCat(Path("t2.bin"), " was made with the tokenizer /tokenizers/gpt2 (sha256 01234567), but ",
                         Path("t1.bin"),
                         " with bytes as tokens: the same ids mean different text; prepare it with the other one, or, "
                         "if their ids are the same, remove ",
                         Path("t2.bin"), ".tokenizer.json"));
  std::ofstream(Path("t1.bin"), std::ios::app) << "more";
  EXPECT_FALSE(ReadTokenizerOrigin(Path("t1.bin"))->has_value()) << "another program wrote the file";
  EXPECT_FALSE(ReadTokenizerOrigin(Path("t?.*"))->has_value()) << "of one it is not known";
  EXPECT_FALSE(ReadTokenizerOrigin(Path("none.bin"))->has_value());
}

TEST_F(PrepareTest, TokensOfAnotherTokenizerAreRefusedWhereBothAreKnown) {
  ASSERT_TRUE(Prepare({.texts = {Text("hello hello")}, .out = Path("t.bin")}).ok());
  TokenizerOrigin bytes, other;
  other.set_path("/tokenizers/gpt2"), other.set_sha256("0123456789");
  EXPECT_TRUE(CheckTokenizer(Path("t.bin"), "x", bytes).ok());
  EXPECT_TRUE(CheckTokenizer(Path("t.bin"), "x", std::nullopt).ok());
  EXPECT_TRUE(CheckTokenizer("", "x", other).ok());
  const absl::Status refused = CheckTokenizer(Path("t.bin"), "the data of runs/a", other);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("t.bin was made with bytes as tokens, but the data of runs/a with the "
                                           "tokenizer /tokenizers/gpt2 (sha256 01234567)"));
  // The same files elsewhere.
  ASSERT_TRUE(WriteTokenizerOrigin(Path("t.bin"), other).ok());
  other.set_path("/copy/of/gpt2");
  EXPECT_TRUE(CheckTokenizer(Path("t.bin"), "x", other).ok());
  unlink(Path("t.bin.tokenizer.json").c_str());
  EXPECT_TRUE(CheckTokenizer(Path("t.bin"), "x", bytes).ok());
}

// Who may read the tokens may read what made them.
TEST_F(PrepareTest, TheRecordHasTheModeOfItsTokenFile) {
  const auto mode = [&](const std::string& name) {
    struct stat found {};
    EXPECT_EQ(stat(Path(name).c_str(), &found), 0) << name;
    return found.st_mode & 0777;
  };
  for (const mode_t mask : {022, 027, 077}) {
    const mode_t before = umask(mask);
    const auto prepared = Prepare({.texts = {Text("hello")}, .out = Path("t.bin"), .force = true});
    umask(before);
    ASSERT_TRUE(prepared.ok()) << prepared.status();
    EXPECT_EQ(mode("t.bin"), 0666 & ~mask);
    EXPECT_EQ(mode("t.bin.tokenizer.json"), 0666 & ~mask);
  }
}

TEST_F(PrepareTest, SeveralTextsAreConcatenated) {
  std::ofstream(Path("b.txt")) << "cd";
  std::ofstream(Path("empty.txt"));
  const auto prepared = Prepare({.texts = {Text("ab"), Path("empty.txt"), Path("b.txt")}, .out = Path("o")}).value();
  EXPECT_EQ(prepared.tokens, 4u);
  EXPECT_EQ(Content("o"), std::string("a\0b\0c\0d\0", 8));
}

TEST_F(PrepareTest, WritesLlmCWithTheCountOfEachSide) {
  PrepareOptions options{.texts = {Text("abcdefghij")},
                         .out = Path("a.bin"),
                         .format = TokenFormat::kLlmC,
                         .validation_out = Path("b.bin"),
                         .validation_fraction = 0.3};
  ASSERT_TRUE(Prepare(options).ok());
  const Inspection train = Inspect(Path("a.bin")).value(), held_out = Inspect(Path("b.bin")).value();
  EXPECT_EQ(train.shards[0].format, "llmc");
  EXPECT_EQ(Readable(train.first, nullptr), "abcdefg");
  EXPECT_EQ(Readable(held_out.first, nullptr), "hij");
  EXPECT_EQ(train.bytes, 1024u + 14);
}

TEST_F(PrepareTest, InspectCountsTokens) {
  ASSERT_TRUE(Prepare({.texts = {Text("abab\x01")}, .out = Path("out.bin")}).ok());
  const Inspection found = Inspect(Path("out.bin")).value();
  EXPECT_EQ(found.tokens, 5u);
  EXPECT_EQ(found.bytes, 10u);
  EXPECT_EQ(found.smallest, 1u);
  EXPECT_EQ(found.largest, uint32_t{'b'});
  EXPECT_EQ(found.distinct, 3u);
  EXPECT_NEAR(found.entropy_bits, 1.5219, 1e-4);
  EXPECT_EQ(Readable(found.first, nullptr), "abab.");
  ASSERT_EQ(found.shards.size(), 1u);
  EXPECT_EQ(found.shards[0].format, "nanogpt");
  EXPECT_THAT(std::string(Inspect(Text("odd")).status().message()), HasSubstr("odd number"));
}

}  // namespace
}  // namespace muster::data
