#include "common/log/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace muster {
namespace {

using ::testing::MatchesRegex;

std::string Line(const LogField& field) {
  std::string line;
  field.AppendTo(line);
  return line;
}

class LogTest : public ::testing::Test {
 protected:
  LogTest() {
    StartLog("worker", LogLevel::kInfo);
    ::testing::internal::CaptureStderr();
  }
  ~LogTest() override {
    SetLogContext({});
    StartLog("-", LogLevel::kInfo);
  }
  static std::string Written() { return ::testing::internal::GetCapturedStderr(); }
};

TEST_F(LogTest, ALineHasTimeLevelProgramMessageAndFields) {
  const RankId rank{JobId("gpt-abcd"), 2, 3};
  LogInfo("rank started", {rank, {"pid", 123}});
  LogWarn("no fields");
  EXPECT_THAT(
      Written(),
      MatchesRegex("20[0-9-]{8}T[0-9:]{8}\\.[0-9]{3}Z info  worker  rank started job=gpt-abcd generation=2 rank=3 "
                   "pid=123\n20[0-9-]{8}T[0-9:]{8}\\.[0-9]{3}Z warn  worker  no fields\n"));
}

TEST_F(LogTest, ContextStandsBeforeALinesOwnFields) {
  SetLogContext({{"node", NodeId("node-1")}});
  LogError("disk full", {{"path", "/var"}});
  EXPECT_THAT(Written(), MatchesRegex(".*Z error worker  disk full node=node-1 path=/var\n"));
}

// A node names itself: its id must not end the line and begin another.
TEST_F(LogTest, AValueCannotForgeALine) {
  LogInfo("node joined", {{"node", "n1\n2026-11-22T21:03:04.123Z info  coordinator  node joined node=n2"}});
  EXPECT_THAT(Written(), MatchesRegex(".*Z info  worker  node joined "
                                      "node=\"n1\\\\n2026-11-22T21:03:04\\.123Z info  coordinator  node joined "
                                      "node=n2\"\n"));
}

TEST_F(LogTest, BelowTheLevelNothingIsWritten) {
  LogDebug("unseen", {{"a", 1}});
  StartLog("worker", LogLevel::kError);
  LogWarn("unseen");
  LogError("seen");
  StartLog("worker", LogLevel::kOff);
  LogError("unseen");
  EXPECT_THAT(Written(), MatchesRegex("[^\n]* error worker  seen\n"));
}

TEST(LogField, QuotesWhatWouldNotBeOneWord) {
  const struct {
    std::string value, line;
  } kCases[] = {
      {"gpt-abcd", " v=gpt-abcd"},
      {"unix:/run/muster.sock", " v=unix:/run/muster.sock"},
      {"it's", " v=it's"},
      {"", " v=\"\""},
      {"two words", " v=\"two words\""},
      {"a=b", " v=\"a=b\""},
      {"say \"hi\"", " v=\"say \\\"hi\\\"\""},
      {"back\\slash", " v=\"back\\\\slash\""},
      {"a\nb\r\tc", " v=\"a\\nb\\r\\tc\""},
      {std::string("nul\0", 4), " v=\"nul\\u0000\""},
      {"\x1b[31mred\x7f", " v=\"\\u001b[31mred\\u007f\""},
      {"Zürich", " v=Zürich"},
      {"next\u0085line", " v=\"next\\u0085line\""},
      {"line\u2028separator", " v=\"line\\u2028separator\""},
      {"right\u202eto left", " v=\"right\\u202eto left\""},
      {"cut \xc3", " v=\"cut \\ufffd\""},
  };
  for (const auto& [value, line] : kCases) EXPECT_EQ(Line({"v", value}), line);
}

TEST(LogField, PrintsEachType) {
  EXPECT_EQ(Line({"v", true}), " v=true");
  EXPECT_EQ(Line({"v", -7}), " v=-7");
  EXPECT_EQ(Line({"v", std::numeric_limits<uint64_t>::max()}), " v=18446744073709551615");
  EXPECT_EQ(Line({"v", 5.6054321}), " v=5.60543");
  EXPECT_EQ(Line({"v", std::numeric_limits<double>::quiet_NaN()}), " v=nan");
  EXPECT_EQ(Line({"v", absl::Milliseconds(1500)}), " v=1.5s");
  EXPECT_EQ(Line({"v", absl::FromUnixMillis(1'700'000'000'123)}), " v=2023-11-14T22:13:20.123Z");
  EXPECT_EQ(Line({"v", NodeId("node-1")}), " v=node-1");
  EXPECT_EQ(Line({"v", absl::NotFoundError("no such job")}), " v=\"NOT_FOUND: no such job\"");
  EXPECT_EQ(Line(RankId{JobId("a job"), 1, 0}), " job=\"a job\" generation=1 rank=0");
}

TEST(LogLevel, IsReadFromItsName) {
  EXPECT_EQ(LogLevelOf("debug"), LogLevel::kDebug);
  EXPECT_EQ(LogLevelOf("info"), LogLevel::kInfo);
  EXPECT_EQ(LogLevelOf("warn"), LogLevel::kWarn);
  EXPECT_EQ(LogLevelOf("error"), LogLevel::kError);
  EXPECT_EQ(LogLevelOf("off"), LogLevel::kOff);
}

}  // namespace
}  // namespace muster
