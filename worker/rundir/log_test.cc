#include "worker/rundir/log.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "testing/temporary_folder.h"
#include "worker/rundir/segments.h"

namespace muster::rundir {
namespace {

TEST(Log, PositionsRunThroughSegments) {
  TemporaryFolder dir;
  auto writer = LogWriter::Open(dir.path()).value();
  const std::string line = std::string(999, 'x') + "\n";
  for (int i = 0; i < 2500; ++i) ASSERT_TRUE(writer->Append(line).ok());
  EXPECT_EQ(ListSegments(dir.path(), "log"), (std::vector<uint64_t>{0, 1, 2}));
  EXPECT_EQ(std::filesystem::file_size(SegmentPath(dir.path(), "log", 0)), kLogSegmentBytes);
  EXPECT_EQ(LogEnd(dir.path()), 2'500'000u);

  std::string all;
  while (true) {
    const LogChunk piece = ReadLog(dir.path(), all.size(), 64 * 1024).value();
    EXPECT_EQ(piece.offset, all.size());
    if (piece.bytes.empty()) break;
    all += piece.bytes;
  }
  EXPECT_EQ(all.size(), 2'500'000u);
  EXPECT_EQ(all.substr(kLogSegmentBytes / 1000 * 1000, 1000), line);

  auto again = LogWriter::Open(dir.path()).value();
  ASSERT_TRUE(again->Append("more").ok());
  EXPECT_EQ(ReadLog(dir.path(), 2'500'000, 100)->bytes, "more");
}

TEST(Log, KeepsTheFirstAndTheNewestSegmentsAndReadersJumpTheGap) {
  TemporaryFolder dir;
  auto writer = LogWriter::Open(dir.path()).value();
  const std::string half(kLogSegmentBytes / 2, 'a');
  for (int i = 0; i < 2 * 70; ++i) ASSERT_TRUE(writer->Append(half).ok());
  const std::vector<uint64_t> kept = ListSegments(dir.path(), "log");
  ASSERT_EQ(kept.size(), 1 + kLogSegmentsKept);
  EXPECT_EQ(kept.front(), 0u);
  EXPECT_EQ(kept[1], 70 - kLogSegmentsKept);
  // Up to the gap, and then after it.
  const LogChunk before = ReadLog(dir.path(), kLogSegmentBytes - 10, 1000).value();
  EXPECT_EQ(before.offset, kLogSegmentBytes - 10);
  EXPECT_EQ(before.bytes.size(), 10u);
  const LogChunk after = ReadLog(dir.path(), kLogSegmentBytes, 1000).value();
  EXPECT_EQ(after.offset, kept[1] * kLogSegmentBytes);
  EXPECT_EQ(after.bytes.size(), 1000u);
}

TEST(Log, NothingThereIsEmpty) {
  TemporaryFolder dir;
  EXPECT_EQ(ReadLog(dir.path(), 0, 100)->bytes, "");
  EXPECT_EQ(LogEnd(dir.path()), 0u);
  EXPECT_TRUE(LastLogLines(dir.path(), 20, 100).empty());
  auto writer = LogWriter::Open(dir.path()).value();
  EXPECT_EQ(ReadLog(dir.path(), 0, 100)->offset, 0u);
}

TEST(Log, FullDiskIsCountedAndReportedLater) {
  TemporaryFolder dir;
  auto writer = LogWriter::Open(dir.path()).value();
  ASSERT_TRUE(writer->Append("begin\n").ok());
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, SIG_IGN);
  rlimit full = before;
  full.rlim_cur = 10;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
  EXPECT_FALSE(writer->Append("0123456789").ok());  // 4 fit
  EXPECT_FALSE(writer->Append("lost").ok());
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  ASSERT_TRUE(writer->Append("end\n").ok());
  EXPECT_EQ(ReadLog(dir.path(), 0, 1000)->bytes,
            "begin\n0123\n[10 bytes of output are missing here: the disk was full]\nend\n");
}

TEST(Log, LastLines) {
  TemporaryFolder dir;
  auto writer = LogWriter::Open(dir.path()).value();
  for (int i = 0; i < 10'000; ++i) ASSERT_TRUE(writer->Append(absl::StrCat("line ", i, "\n")).ok());
  ASSERT_TRUE(writer->Append("a\rb\xFF\n" + std::string(50, 'y')).ok());
  EXPECT_EQ(LastLogLines(dir.path(), 4, 10), (std::vector<std::string>{"line 9999", "a", "b?", std::string(10, 'y')}));
}

TEST(ReplaceInvalidUtf8, KeepsLengthsAndGoodText) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"plain", "plain"},
      {"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80", "\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80"},
      {"a\xFF"
       "b\x80",
       "a?b?"},
      {"\xC0\xAF", "??"},            // overlong
      {"\xED\xA0\x80", "???"},       // surrogate
      {"\xF4\x90\x80\x80", "????"},  // beyond U+10FFFF
      {"\xE2\x82", "??"},            // cut off
      {"\xE2\x82x\xC3\xA9", "??x\xC3\xA9"},
  };
  for (auto [bytes, expected] : cases) {
    ReplaceInvalidUtf8(bytes);
    EXPECT_EQ(bytes, expected);
  }
}

}  // namespace
}  // namespace muster::rundir
