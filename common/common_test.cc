#include <errno.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/bytes.h"
#include "common/clock.h"
#include "common/counted.h"
#include "common/crc32c.h"
#include "common/file_error.h"
#include "common/ids.h"
#include "common/sha256.h"

namespace muster {
namespace {

TEST(Counted, HasTheNounOfTheNumber) {
  EXPECT_EQ(Counted(0, "slot", "slots"), "0 slots");
  EXPECT_EQ(Counted(1, "slot is", "slots are"), "1 slot is");
  EXPECT_EQ(Counted(1000, "slot is", "slots are"), "1000 slots are");
}

TEST(FormatBitRate, ThreeDigitsInDecimalBits) {
  EXPECT_EQ(FormatBitRate(0), "0 bit/s");
  EXPECT_EQ(FormatBitRate(12.5e6), "100 Mbit/s");
  EXPECT_EQ(FormatBitRate(12.02e6), "96.2 Mbit/s");
  EXPECT_EQ(FormatBitRate(1.25e9), "10 Gbit/s");
  EXPECT_EQ(FormatBitRate(124.95e6), "1 Gbit/s");
  EXPECT_EQ(FormatBitRate(1e18), "8000000 Tbit/s");
}

TEST(FormatSpan, AtMostTwoUnits) {
  EXPECT_EQ(FormatSpan(absl::Seconds(48)), "48s");
  EXPECT_EQ(FormatSpan(absl::Milliseconds(59'700)), "1m 00s");
  EXPECT_EQ(FormatSpan(absl::Minutes(125)), "2h 05m");
  EXPECT_EQ(FormatSpan(absl::Seconds(164'414)), "1d 21h");
}

TEST(FormatLatency, ThreeDigits) {
  EXPECT_EQ(FormatLatency(85e-6), "85 us");
  EXPECT_EQ(FormatLatency(1.0849e-3), "1.08 ms");
  EXPECT_EQ(FormatLatency(2.5), "2.5 s");
  EXPECT_EQ(FormatLatency(4e3), "4000 s");
}

TEST(FormatBytes, ThreeDigitsInBinaryUnits) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(999), "999 B");
  EXPECT_EQ(FormatBytes(1000), "0.98 KiB");
  EXPECT_EQ(FormatBytes(1024), "1 KiB");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatBytes(1234567), "1.18 MiB");
  EXPECT_EQ(FormatBytes(uint64_t{1000} << 20), "0.98 GiB");
  EXPECT_EQ(FormatBytes((uint64_t{613} << 30) / 10), "61.3 GiB");
  EXPECT_EQ(FormatBytes(uint64_t{80} << 30), "80 GiB");
  EXPECT_EQ(FormatBytes(uint64_t{100} << 30), "100 GiB");
  EXPECT_EQ(FormatBytes(~uint64_t{0}), "16 EiB");
}

TEST(Sha256, KnownVectors) {
  // FIPS 180-4, examples for SHA-256.
  EXPECT_EQ(Sha256Hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Sha256Hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Sha256, PiecesGiveTheSame) {
  Sha256 sha;
  sha.Update("a");
  sha.Update("bc");
  EXPECT_EQ(sha.FinishHex(), Sha256Hex("abc"));
}

TEST(Crc32c, KnownVectors) {
  // RFC 3720, section B.4; and the check value of the catalogues.
  EXPECT_EQ(Crc32c(""), 0u);
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(Crc32c(std::string(32, '\xFF')), 0x62A8AB43u);
  EXPECT_EQ(Crc32c("123456789"), 0xE3069283u);
}

TEST(Crc32c, PiecesGiveTheSame) {
  const std::string text = "the quick brown fox jumps over the lazy dog";
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    EXPECT_EQ(ExtendCrc32c(Crc32c(text.substr(0, cut)), text.substr(cut)), Crc32c(text)) << cut;
  }
}

TEST(FakeClock, WallJumpsLeaveSteadyAlone) {
  FakeClock clock;
  const Now before = clock.Read();
  clock.JumpWall(-absl::Hours(5));
  EXPECT_EQ(clock.Read().steady, before.steady);
  clock.Advance(absl::Seconds(2));
  EXPECT_EQ(clock.Read().steady - before.steady, absl::Seconds(2));
}

TEST(RealClock, SteadyNeverGoesBack) {
  RealClock clock;
  const SteadyTime a = clock.Read().steady;
  EXPECT_GE(clock.Read().steady, a);
}

TEST(IsFullDisk, NoSpaceOrNoQuota) {
  EXPECT_TRUE(IsFullDisk(ENOSPC));
  EXPECT_TRUE(IsFullDisk(EDQUOT));
  for (const int other : {0, EFBIG, EIO, EACCES, ENOENT}) EXPECT_FALSE(IsFullDisk(other)) << other;
}

TEST(FileError, NamesTheCauseAndWhereToLook) {
  for (const int full : {ENOSPC, EDQUOT, EFBIG}) {
    EXPECT_EQ(FileError(full, "writing x").code(), absl::StatusCode::kResourceExhausted);
  }
  EXPECT_EQ(FileError(ENOSPC, "writing x").message(),
            "writing x: no space left on the device: remove files, or name a folder on another disk (see df)");
  EXPECT_EQ(FileError(EDQUOT, "writing x").message(),
            "writing x: disk quota exceeded: remove files, or ask for a larger quota (see quota)");
  EXPECT_EQ(FileError(EROFS, "writing x").code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(FileError(EROFS, "writing x").message(),
            "writing x: the file system is read-only: name a folder on another one, or remount it for writing (see "
            "mount)");
  EXPECT_EQ(FileError(EIO, "writing x").code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(FileError(ENOENT, "opening x").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(FileError(EACCES, "opening x").code(), absl::StatusCode::kPermissionDenied);
}

TEST(ExistingPart, IsTheNearestFolderOrLink) {
  std::string folder = ::testing::TempDir() + "/existing.XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string link = folder + "/link";
  std::filesystem::create_symlink("nowhere", link);
  const std::vector<std::pair<std::string, std::string>> cases = {
      {folder + "/a/b", folder}, {folder + "/a/", folder}, {link + "/a", link}, {link + "/", link}, {"/", "/"},
      {"/nonexistent", "/"},     {"nonexistent/a", "."},   {"", "."},
  };
  for (const auto& [path, part] : cases) EXPECT_EQ(ExistingPart(path), part) << path;
  std::filesystem::remove_all(folder);
}

TEST(RankId, OrdersByJobThenGenerationThenRank) {
  const RankId a{JobId("a"), 1, 5}, b{JobId("a"), 2, 0}, c{JobId("b"), 1, 0};
  EXPECT_EQ((std::set<RankId>{c, b, a}), (std::set<RankId>{a, b, c}));
  EXPECT_LT(a, b);
  EXPECT_LT(b, c);
  EXPECT_EQ(a.ToString(), "a/1/5");
}

}  // namespace
}  // namespace muster
