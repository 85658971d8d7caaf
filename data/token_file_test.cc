#include "data/token_file.h"

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
  static std::string Path(const std::string& name) { return absl::StrCat(::testing::TempDir(), "/", name); }
  static void WriteTo(const std::string& name, const std::string& bytes) {
    std::ofstream(Path(name), std::ios::binary) << bytes;
  }
  std::string Write(const std::string& bytes) {
    WriteTo("tokens.bin", bytes);
    return Path("tokens.bin");
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
  EXPECT_EQ(file.shards()[0].format(), TokenFormat::kNanoGpt);
  std::vector<uint32_t> tokens(2);
  ASSERT_TRUE(file.Read(1, absl::MakeSpan(tokens)).ok());
  EXPECT_EQ(tokens, (std::vector<uint32_t>{0x0102, 0xffff}));
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
  ExpectError(open("ab", 4), absl::StatusCode::kInvalidArgument, "holds 1 token, but one sample needs 5");
  EXPECT_TRUE(open("abcdefghij", 4).ok());
}

template <typename T>
std::string Bytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::string LlmC(uint32_t magic, uint32_t version, uint32_t count, const std::string& tokens) {
  std::vector<uint32_t> header(256, 0);
  header[0] = magic;
  header[1] = version;
  header[2] = count;
  return Bytes(header) + tokens;
}

struct Megatron {
  uint8_t dtype = 8;
  uint64_t version = 1;
  std::vector<int32_t> lengths;
  std::vector<int64_t> places;
  std::vector<int64_t> documents;
  std::string Index() const {
    return std::string("MMIDIDX\0\0", 9) + Bytes<uint64_t>({version}) + static_cast<char>(dtype) +
           Bytes<uint64_t>({lengths.size(), documents.size()}) + Bytes(lengths) + Bytes(places) + Bytes(documents);
  }
};

std::vector<uint32_t> All(const TokenFile& file) {
  std::vector<uint32_t> tokens(file.tokens());
  EXPECT_TRUE(file.Read(0, absl::MakeSpan(tokens)).ok());
  return tokens;
}

TEST_F(TokenFileTest, ReadsLlmC) {
  const auto narrow = TokenFile::Open(Write(LlmC(20240520, 1, 3, Bytes<uint16_t>({7, 50256, 0}))), 2).value();
  EXPECT_EQ(All(narrow), (std::vector<uint32_t>{7, 50256, 0}));
  EXPECT_EQ(narrow.shards()[0].format(), TokenFormat::kLlmC);
  const auto wide = TokenFile::Open(Write(LlmC(20240801, 7, 2, Bytes<uint32_t>({128255, 65536}))), 1).value();
  EXPECT_EQ(All(wide), (std::vector<uint32_t>{128255, 65536}));
  EXPECT_EQ(wide.shards()[0].width(), 4u);
  ExpectError(wide.CheckVocabulary(128255), absl::StatusCode::kOutOfRange, "token 128255 at position 0");
  EXPECT_TRUE(wide.CheckVocabulary(128256).ok());
}

TEST_F(TokenFileTest, ReadsMegatronByEitherNameOrNone) {
  const Megatron index{.dtype = 4, .lengths = {2, 0, 1}, .places = {0, 8, 8}, .documents = {0, 1, 3}};
  WriteTo("pair.idx", index.Index());
  WriteTo("pair.bin", Bytes<int32_t>({70000, 5, 6}));
  for (const char* name : {"pair.idx", "pair.bin", "pair", "pair.*"}) {
    const auto file = TokenFile::Open(Path(name), 2).value();
    EXPECT_EQ(All(file), (std::vector<uint32_t>{70000, 5, 6})) << name;
    ASSERT_EQ(file.shards().size(), 1u) << name;
    EXPECT_EQ(file.shards()[0].format(), TokenFormat::kMegatron);
    EXPECT_EQ(file.shards()[0].documents(), 2u);
  }
}

TEST_F(TokenFileTest, EveryWidthOfMegatron) {
  const auto read = [&](uint8_t dtype, int64_t width, const std::string& tokens) {
    WriteTo("w.idx", Megatron{.dtype = dtype, .lengths = {2}, .places = {0}, .documents = {0, 1}}.Index());
    WriteTo("w.bin", tokens);
    const auto file = TokenFile::Open(Path("w"), 1).value();
    EXPECT_EQ(file.shards()[0].width(), width);
    EXPECT_FALSE(file.CheckVocabulary(9).ok());
    return All(file);
  };
  EXPECT_EQ(read(1, 1, Bytes<uint8_t>({3, 255})), (std::vector<uint32_t>{3, 255}));
  EXPECT_EQ(read(3, 2, Bytes<int16_t>({3, 32767})), (std::vector<uint32_t>{3, 32767}));
  EXPECT_EQ(read(8, 2, Bytes<uint16_t>({3, 65535})), (std::vector<uint32_t>{3, 65535}));
  EXPECT_EQ(read(4, 4, Bytes<int32_t>({3, -1})), (std::vector<uint32_t>{3, UINT32_MAX}));
  EXPECT_EQ(read(5, 8, Bytes<int64_t>({3, int64_t{1} << 40})), (std::vector<uint32_t>{3, UINT32_MAX}));
}

TEST_F(TokenFileTest, ShardsAreOneStream) {
  WriteTo("s_10.bin", Bytes<uint16_t>({4, 5}));
  WriteTo("s_01.bin", Bytes<uint16_t>({1, 2, 3}));
  WriteTo("s_11.bin", LlmC(20240801, 7, 1, Bytes<uint32_t>({60000})));
  const auto file = TokenFile::Open(Path("s_*.bin"), 4).value();
  EXPECT_EQ(All(file), (std::vector<uint32_t>{1, 2, 3, 4, 5, 60000}));
  for (uint64_t begin = 0; begin < 6; ++begin) {
    for (uint64_t count = 0; begin + count <= 6; ++count) {
      std::vector<uint32_t> part(count);
      ASSERT_TRUE(file.Read(begin, absl::MakeSpan(part)).ok());
      const auto all = All(file);
      EXPECT_EQ(part, std::vector<uint32_t>(all.begin() + begin, all.begin() + begin + count));
    }
  }
  ExpectError(file.CheckVocabulary(5), absl::StatusCode::kOutOfRange, "s_10.bin: token 5 at position 1");
  ExpectError(TokenFile::Open(Path("t_*.bin"), 4).status(), absl::StatusCode::kNotFound, "no file on this machine");
  ExpectError(TokenFile::Open(Path("s_*.bin"), 6).status(), absl::StatusCode::kInvalidArgument, "holds 6 tokens");
  WriteTo("s_02.bin", "");
  ExpectError(TokenFile::Open(Path("s_*.bin"), 4).status(), absl::StatusCode::kInvalidArgument, "s_02.bin is empty");
}

TEST_F(TokenFileTest, EveryWayToBeWrong) {
  const std::string text = "In the beginning God created the heaven and the earth. And the earth was without form.\n";
  const struct {
    std::string bytes, says;
  } kFiles[] = {
      {LlmC(20240520, 1, 4, Bytes<uint16_t>({1, 2, 3})), "says 4 tokens of 2 bytes, which makes 1032: it was cut"},
      {LlmC(20240520, 1, 2, Bytes<uint16_t>({1, 2, 3})), "it was added to"},
      {LlmC(20240520, 2, 0, ""), "with version 2, expected version 1"},
      {LlmC(20240801, 1, 0, ""), "with version 1, expected version 7"},
      {LlmC(20240520, 1, 0, "").substr(0, 600), "less than its 1024 bytes of header"},
      {LlmC(20240520, 1, 0, ""), "holds 0 tokens"},
      {std::string("MMIDIDX\0\0", 9), "is a Megatron index; it must be called X.idx"},
      {"\x1f\x8b" + std::string(100, 'x'), "compressed by gzip"},
      {"PK\x03\x04" + std::string(100, 'x'), "zip archive"},
      {"\x93NUMPY" + std::string(100, 'x'), "NumPy array"},
      {text, "is plain text"},
      {text + "x", "is plain text"},
  };
  for (const auto& [bytes, says] : kFiles) {
    ExpectError(TokenFile::Open(Write(bytes), 1).status(), absl::StatusCode::kInvalidArgument, says);
  }
}

TEST_F(TokenFileTest, EveryWayForAMegatronPairToBeWrong) {
  const Megatron good{.lengths = {2, 1}, .places = {0, 4}, .documents = {0, 2}};
  const std::string tokens = Bytes<uint16_t>({1, 2, 3});
  const auto with = [&](auto change) {
    Megatron index = good;
    change(index);
    return index.Index();
  };
  const struct {
    std::string index, tokens, says;
  } kPairs[] = {
      {good.Index(), tokens.substr(0, 5), "it was cut"},
      {good.Index(), tokens + "ab", "do not belong together"},
      {good.Index().substr(0, 30), tokens, "bytes of header of a Megatron index: it was cut"},
      {good.Index().substr(0, 60), tokens, "it was cut or damaged"},
      {with([](Megatron& m) { m.version = 2; }), tokens, "of version 2, expected version 1"},
      {with([](Megatron& m) { m.dtype = 7; }), tokens, "dtype code 7"},
      {with([](Megatron& m) { m.places[1] = 2; }), tokens, "sequence 1 begins at byte 2 of the .bin file, expected 4"},
      {with([](Megatron& m) { m.lengths[0] = -2; }), tokens, "has a length of -2"},
  };
  for (const auto& [index, bytes, says] : kPairs) {
    WriteTo("bad.idx", index);
    WriteTo("bad.bin", bytes);
    ExpectError(TokenFile::Open(Path("bad.bin"), 1).status(), absl::StatusCode::kInvalidArgument, says);
  }
  WriteTo("alone.idx", good.Index());
  ExpectError(TokenFile::Open(Path("alone.idx"), 1).status(), absl::StatusCode::kNotFound, "is Megatron's index of it");
}

TEST_F(TokenFileTest, NamesTheFirstTokenBeyondTheVocabulary) {
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

// Blocks of 1 MiB: all of them, or about so many over all shards.
TEST_F(TokenFileTest, ChecksSoManyBytesOfTheStream) {
  constexpr uint64_t kBlockTokens = (1 << 20) / 2, kMiB = 1 << 20;
  std::vector<uint16_t> tokens(8 * kBlockTokens + 10, 7);
  WriteTo("c_1.bin", Bytes<uint16_t>(tokens));
  tokens[4 * kBlockTokens] = 300;
  WriteTo("c_2.bin", Bytes<uint16_t>(tokens));
  const auto file = TokenFile::Open(Path("c_?.bin"), 4).value();
  ExpectError(file.CheckVocabulary(256), absl::StatusCode::kOutOfRange, "c_2.bin: token 300 at position 2097152");
  EXPECT_FALSE(file.CheckVocabulary(256, 18 * kMiB).ok()) << "everything";
  EXPECT_FALSE(file.CheckVocabulary(7, 0).ok()) << "the first block";
  // Of 18 blocks each ninth, or the first alone: the token is in the fourteenth.
  EXPECT_TRUE(file.CheckVocabulary(256, 2 * kMiB).ok());
  EXPECT_TRUE(file.CheckVocabulary(256, kMiB).ok());
  // Of each shard one, which is all of it.
  for (int i = 0; i < 8; ++i)
    WriteTo(absl::StrCat("d_", i, ".bin"), Bytes<uint16_t>({7, 7, static_cast<uint16_t>(i == 4 ? 300 : 7)}));
  const auto small = TokenFile::Open(Path("d_?.bin"), 4).value();
  EXPECT_FALSE(small.CheckVocabulary(256, 8 * kMiB).ok());
  EXPECT_FALSE(small.CheckVocabulary(256, 4 * kMiB).ok()) << "each second, from the first on";
  EXPECT_TRUE(small.CheckVocabulary(256, 3 * kMiB).ok()) << "each third";
}

TEST_F(TokenFileTest, AFileCutWhileItIsReadIsAnError) {
  const std::string path = WriteTokens(std::vector<uint16_t>(5000, 1));
  const auto file = TokenFile::Open(path, 4).value();
  ASSERT_EQ(truncate(path.c_str(), 4000), 0);
  std::vector<uint32_t> tokens(10);
  EXPECT_TRUE(file.Read(1990, absl::MakeSpan(tokens)).ok());
  ExpectError(file.Read(1991, absl::MakeSpan(tokens)), absl::StatusCode::kDataLoss, "became shorter");
  ExpectError(file.CheckVocabulary(256), absl::StatusCode::kDataLoss, "became shorter");
}

}  // namespace
}  // namespace muster::data
