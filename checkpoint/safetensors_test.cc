#include "checkpoint/safetensors.h"

#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::checkpoint {
namespace {

using ::testing::HasSubstr;

SafetensorsHeader Sample() {
  return {.tensors = {{"a", "F32", {2, 3}, 0, 24},
                      {"b \"quoted\" \n é", "BF16", {4}, 24, 32},
                      {"c", "I64", {}, 32, 40},
                      {"empty", "F32", {0, 7}, 40, 40}},
          .metadata = {{"format", "pt"}, {"note", "x"}}};
}

TEST(Safetensors, WhatIsWrittenIsRead) {
  const std::string bytes = EncodeHeader(Sample());
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  EXPECT_EQ(length + 8, bytes.size());
  EXPECT_EQ(bytes.size() % 64, 0u);
  EXPECT_EQ(ParseHeader(bytes.substr(8), 40).value(), Sample());
}

TEST(Safetensors, RefusesWhatTheFormatForbids) {
  const auto error = [](const std::string& json, uint64_t buffer) {
    const auto header = ParseHeader(json, buffer);
    EXPECT_FALSE(header.ok()) << json;
    EXPECT_EQ(header.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(header.status().message());
  };
  const auto tensor = [](const std::string& name, const std::string& rest) {
    return absl::StrCat("\"", name, "\":{", rest, "}");
  };
  const std::string a = tensor("a", R"("dtype":"F32","shape":[2],"data_offsets":[0,8])");
  const auto b = [&](int begin, int end) {
    return tensor("b", absl::StrCat(R"("dtype":"F32","shape":[2],"data_offsets":[)", begin, ",", end, "]"));
  };
  EXPECT_TRUE(ParseHeader("{" + a + "," + b(8, 16) + "}   ", 16).ok());
  EXPECT_TRUE(ParseHeader("{}", 0).ok());

  EXPECT_THAT(error("", 0), HasSubstr("begin with {"));
  EXPECT_THAT(error(" {}", 0), HasSubstr("begin with {"));
  EXPECT_THAT(error("{", 0), HasSubstr("not JSON"));
  EXPECT_THAT(error("{} x", 0), HasSubstr("not JSON"));
  EXPECT_THAT(error("{\"\xff\":1}", 0), HasSubstr("not JSON"));
  EXPECT_THAT(error("{" + a + "," + a + "}", 8), HasSubstr("twice"));
  EXPECT_THAT(error("{" + tensor("a", R"("dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8])") + "}", 8),
              HasSubstr("twice"));
  EXPECT_THAT(error("{" + a + "," + b(4, 12) + "}", 12), HasSubstr("overlaps"));
  EXPECT_THAT(error("{" + a + "," + b(0, 8) + "}", 8), HasSubstr("overlaps"));
  EXPECT_THAT(error("{" + a + "," + b(12, 20) + "}", 20), HasSubstr("hole"));
  EXPECT_THAT(error("{" + b(8, 16) + "}", 16), HasSubstr("hole"));
  EXPECT_THAT(error("{" + a + "}", 9), HasSubstr("something was added"));
  EXPECT_THAT(error("{" + a + "}", 7), HasSubstr("it was cut"));
  EXPECT_THAT(error("{" + tensor("a", R"("dtype":"F32","shape":[3],"data_offsets":[0,8])") + "}", 8),
              HasSubstr("need 12"));
  EXPECT_THAT(error("{" + tensor("a", R"("dtype":"F32","shape":[2],"data_offsets":[8,0])") + "}", 8),
              HasSubstr("range"));
  EXPECT_THAT(error("{" + tensor("a", R"("dtype":"F32","shape":[2],"data_offsets":[0,8,9])") + "}", 8),
              HasSubstr("range"));
  EXPECT_THAT(error("{" + tensor("a", R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])") + "}", 8),
              HasSubstr("whole"));
  EXPECT_THAT(error("{" + tensor("a", R"("dtype":"F32","shape":[2.0],"data_offsets":[0,8])") + "}", 8),
              HasSubstr("whole"));
  EXPECT_THAT(error("{" + tensor("a", R"("dtype":"F99","shape":[2],"data_offsets":[0,8])") + "}", 8),
              HasSubstr("dtype"));
  EXPECT_THAT(error("{" + tensor("a", R"("dtype":"F32","shape":[2])") + "}", 8), HasSubstr("exactly"));
  EXPECT_THAT(error("{" + tensor("a", R"("dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1)") + "}", 8),
              HasSubstr("exactly"));
  EXPECT_THAT(error("{\"__metadata__\":{\"a\":1}}", 0), HasSubstr("not a string"));
  EXPECT_THAT(
      error("{" + tensor("a", R"("dtype":"F64","shape":[4611686018427387904,4],"data_offsets":[0,0])") + "}", 0),
      HasSubstr("too large"));
}

class SafetensorsFileTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& bytes) {
    const std::string path = absl::StrCat(::testing::TempDir(), "/t.safetensors");
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
};

TEST_F(SafetensorsFileTest, ReadsRangesOfTensors) {
  std::string data(40, '\0');
  for (int i = 0; i < 40; ++i) data[i] = static_cast<char>(i);
  const auto file = SafetensorsFile::Open(Write(EncodeHeader(Sample()) + data)).value();
  std::string part(8, '\0');
  ASSERT_TRUE(file.Read(file.header().tensors[1], 0, 8, part.data()).ok());
  EXPECT_EQ(part, data.substr(24, 8));
  ASSERT_TRUE(file.Read(file.header().tensors[0], 4, 8, part.data()).ok());
  EXPECT_EQ(part, data.substr(4, 8));
}

TEST_F(SafetensorsFileTest, RefusesLengthsThatCannotBe) {
  const auto error = [&](uint64_t length, const std::string& rest) {
    std::string bytes(8, '\0');
    std::memcpy(bytes.data(), &length, 8);
    return std::string(SafetensorsFile::Open(Write(bytes + rest)).status().message());
  };
  EXPECT_THAT(error(100'000'001, "{}"), HasSubstr("over 100 MB"));
  EXPECT_THAT(error(~uint64_t{0}, "{}"), HasSubstr("over 100 MB"));
  EXPECT_THAT(error(3, "{}"), HasSubstr("longer than the file"));
  EXPECT_EQ(error(2, "{}"), "");
  EXPECT_THAT(std::string(SafetensorsFile::Open(Write("short")).status().message()), HasSubstr("too short"));
  EXPECT_EQ(SafetensorsFile::Open("/none").status().code(), absl::StatusCode::kNotFound);
}

// Whatever is in the header: an error or a header that covers the buffer exactly; never a crash.
TEST(Safetensors, DamagedHeadersAreErrorsOrWhole) {
  std::mt19937_64 random(1);
  const std::string good = EncodeHeader(Sample()).substr(8);
  int accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string text = good;
    for (uint64_t edits = 1 + random() % 4; edits > 0; --edits) {
      const size_t at = random() % text.size();
      switch (random() % 4) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text.erase(at, 1 + random() % 8);
          break;
        case 2:
          text.insert(at, text.substr(random() % text.size(), random() % 40));
          break;
        default:
          text[at] = "{}[]\",:0123456789"[random() % 17];
      }
    }
    const auto header = ParseHeader(text, 40);
    if (!header.ok()) continue;
    ++accepted;
    uint64_t covered = 0;
    for (const TensorEntry& tensor : header->tensors) {
      EXPECT_EQ(tensor.begin, covered);
      covered = tensor.end;
    }
    EXPECT_EQ(covered, 40u);
  }
  EXPECT_GT(accepted, 10);
  EXPECT_LT(accepted, 15000);
}

// An unclosed nest of any depth is an error, not a stack overflow.
TEST(Safetensors, DeepNestsAreErrors) {
  EXPECT_FALSE(ParseHeader("{\"a\":" + std::string(1'000'000, '['), 0).ok());
  EXPECT_FALSE(ParseHeader("{\"a\":" + std::string(300'000, '[') + std::string(300'000, ']') + "}", 0).ok());
}

}  // namespace
}  // namespace muster::checkpoint
