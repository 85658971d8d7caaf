#include "worker/data/token_file.h"

#include <stdlib.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::data {
namespace {

using ::testing::HasSubstr;

class TokenFileTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& bytes) {
    const std::string path = absl::StrCat(::testing::TempDir(), "/tokens.bin");
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  std::string WriteTokens(const std::vector<uint16_t>& tokens) {
    return Write(std::string(reinterpret_cast<const char*>(tokens.data()), tokens.size() * 2));
  }
};

void ExpectError(const absl::Status& status, absl::StatusCode code, const std::string& part) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(part));
}

TEST_F(TokenFileTest, ReadsLittleEndianTokens) {
  const auto file = TokenFile::Open(Write(std::string("\x01\x00\x02\x01\xff\xff", 6)), 2).value();
  EXPECT_EQ(file.tokens(), 3u);
  std::vector<uint16_t> tokens(2);
  ASSERT_TRUE(file.Read(1, absl::MakeSpan(tokens)).ok());
  EXPECT_EQ(tokens, (std::vector<uint16_t>{0x0102, 0xffff}));
}

TEST_F(TokenFileTest, SaysWhatIsWrongWithAFile) {
  const auto open = [&](const std::string& bytes, uint64_t context) {
    return TokenFile::Open(Write(bytes), context).status();
  };
  ExpectError(TokenFile::Open("/does/not/exist.bin", 4).status(), absl::StatusCode::kNotFound, "/does/not/exist.bin");
  ExpectError(TokenFile::Open(::testing::TempDir(), 4).status(), absl::StatusCode::kInvalidArgument, "regular file");
  ExpectError(open("", 4), absl::StatusCode::kInvalidArgument, "is empty");
  ExpectError(open("abc", 1), absl::StatusCode::kInvalidArgument, "odd number");
  ExpectError(open("abcdefgh", 4), absl::StatusCode::kInvalidArgument, "holds 4 tokens, but one sample needs 5");
  EXPECT_TRUE(open("abcdefghij", 4).ok());
}

TEST_F(TokenFileTest, RecognisesHeadersOfLlmC) {
  const auto open = [&](int32_t magic, int32_t version) {
    std::string bytes(1024 + 64, '\0');
    bytes.replace(0, 4, std::string(reinterpret_cast<char*>(&magic), 4));
    bytes.replace(4, 4, std::string(reinterpret_cast<char*>(&version), 4));
    return TokenFile::Open(Write(bytes), 4).status();
  };
  ExpectError(open(20240520, 1), absl::StatusCode::kInvalidArgument, "tail -c +1025");
  ExpectError(open(20240801, 7), absl::StatusCode::kInvalidArgument, "4 bytes per token");
  EXPECT_TRUE(open(20240520, 2).ok());
}

TEST_F(TokenFileTest, NamesTheFirstTokenBehindTheVocabulary) {
  std::vector<uint16_t> tokens(1'200'000, 99);
  {
    const auto file = TokenFile::Open(WriteTokens(tokens), 4).value();
    EXPECT_TRUE(file.CheckVocabulary(100).ok());
    ExpectError(file.CheckVocabulary(99), absl::StatusCode::kOutOfRange, "token 99 at position 0");
  }
  tokens[1'100'000] = 100;
  tokens[1'150'000] = 65535;
  const auto file = TokenFile::Open(WriteTokens(tokens), 4).value();
  ExpectError(file.CheckVocabulary(100), absl::StatusCode::kOutOfRange, "token 100 at position 1100000");
  ExpectError(file.CheckVocabulary(65535), absl::StatusCode::kOutOfRange, "token 65535 at position 1150000");
  EXPECT_TRUE(file.CheckVocabulary(65536).ok());
}

TEST_F(TokenFileTest, AFileCutWhileItIsReadIsAnError) {
  const std::string path = WriteTokens(std::vector<uint16_t>(5000, 1));
  const auto file = TokenFile::Open(path, 4).value();
  ASSERT_EQ(truncate(path.c_str(), 4000), 0);
  std::vector<uint16_t> tokens(10);
  EXPECT_TRUE(file.Read(1990, absl::MakeSpan(tokens)).ok());
  ExpectError(file.Read(1991, absl::MakeSpan(tokens)), absl::StatusCode::kDataLoss, "became shorter");
  ExpectError(file.CheckVocabulary(256), absl::StatusCode::kDataLoss, "became shorter");
}

}  // namespace
}  // namespace muster::data
