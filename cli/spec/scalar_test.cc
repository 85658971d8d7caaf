#include "cli/spec/scalar.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "common/format_double.h"

namespace muster::cli {
namespace {

TEST(CoreType, FollowsTheCoreSchemaAndNotYaml11) {
  using enum ScalarType;
  const std::pair<const char*, ScalarType> kCases[] = {
      {"", kNull},         {"~", kNull},      {"null", kNull},    {"NULL", kNull},    {"nUll", kString},
      {"true", kBool},     {"False", kBool},  {"tRue", kString},  {"yes", kString},   {"no", kString},
      {"on", kString},     {"off", kString},  {"y", kString},     {"0", kInteger},    {"010", kInteger},
      {"-12", kInteger},   {"+12", kInteger}, {"0o17", kInteger}, {"0x1F", kInteger}, {"0o8", kString},
      {"0x", kString},     {"-0x1", kString}, {"1_000", kString}, {"1:30", kString},  {"0b1", kString},
      {"1.5", kFloat},     {".5", kFloat},    {"1.", kFloat},     {"1e3", kFloat},    {"3e-4", kFloat},
      {"-1.5E+3", kFloat}, {".inf", kFloat},  {"-.INF", kFloat},  {".nan", kFloat},   {"nan", kString},
      {"inf", kString},    {".", kString},    {"e3", kString},    {"1e", kString},    {"1.5.5", kString},
      {"-", kString},      {"+.inf", kFloat}, {"-.nan", kString}, {"1 2", kString},   {"٣", kString},
  };
  for (const auto& [text, type] : kCases) EXPECT_EQ(CoreType(text), type) << "\"" << text << "\"";
}

TEST(Integers, ReadDecimalOctalAndHexadecimal) {
  EXPECT_EQ(*ParseUnsigned("010"), 10u);
  EXPECT_EQ(*ParseUnsigned("0o10"), 8u);
  EXPECT_EQ(*ParseUnsigned("0x10"), 16u);
  EXPECT_EQ(*ParseUnsigned("-0"), 0u);
  EXPECT_EQ(*ParseUnsigned("18446744073709551615"), std::numeric_limits<uint64_t>::max());
  EXPECT_FALSE(ParseUnsigned("18446744073709551616").ok());
  EXPECT_FALSE(ParseUnsigned("-1").ok());
  EXPECT_EQ(*ParseSigned("-9223372036854775808"), std::numeric_limits<int64_t>::min());
  EXPECT_FALSE(ParseSigned("9223372036854775808").ok());
  EXPECT_FALSE(ParseSigned("-9223372036854775809").ok());
}

TEST(Doubles, RefuseWhatIsNotFiniteOrDoesNotFit) {
  EXPECT_EQ(*ParseDouble("3e-4"), 3e-4);
  EXPECT_EQ(*ParseDouble("+1.5"), 1.5);
  EXPECT_EQ(*ParseDouble("0x10"), 16);
  EXPECT_TRUE(absl::IsInvalidArgument(ParseDouble(".nan").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ParseDouble("-.inf").status()));
  EXPECT_TRUE(absl::IsOutOfRange(ParseDouble("1e999").status()));
  EXPECT_TRUE(absl::IsOutOfRange(ParseDouble("1e-999").status()));
}

TEST(Doubles, ShortestTextReadsAsTheSameNumber) {
  EXPECT_EQ(FormatDouble(3e-4), "0.0003");
  EXPECT_EQ(FormatDouble(1e-8), "1e-8");
  EXPECT_EQ(FormatDouble(1), "1");
  EXPECT_EQ(FormatDouble(1e300), "1e300");
  EXPECT_EQ(FormatDouble(0.1), "0.1");
  std::mt19937_64 random(7);
  for (int i = 0; i < 20000; ++i) {
    double value;
    const uint64_t bits = random();
    std::memcpy(&value, &bits, sizeof(value));
    if (!std::isfinite(value)) continue;
    const std::string text = FormatDouble(value);
    const ScalarType type = CoreType(text);
    ASSERT_TRUE(type == ScalarType::kFloat || type == ScalarType::kInteger) << text;
    ASSERT_EQ(*ParseDouble(text), value) << text;
  }
}

TEST(Describe, CutsAndEscapes) {
  EXPECT_EQ(DescribeScalar("12", ScalarType::kInteger), "the number 12");
  EXPECT_EQ(DescribeScalar("a\x1b[1m", ScalarType::kString), "the string \"a\\033[1m\"");
  EXPECT_EQ(DescribeScalar(std::string(39, 'x') + "ä", ScalarType::kString),
            "the string \"" + std::string(39, 'x') + "...\"");
}

}  // namespace
}  // namespace muster::cli
