#include "worker/rundir/outbox.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/crc32c.h"
#include "common/file/read_file.h"
#include "testing/small_disk.h"
#include "testing/sync_watch.h"
#include "testing/temporary_folder.h"
#include "worker/rundir/segments.h"

namespace muster::rundir {
namespace {

Record Point(uint64_t step) {
  Record record;
  record.mutable_metrics()->set_step(step);
  record.mutable_metrics()->set_loss(1.0 / static_cast<double>(step + 1));
  return record;
}

// About a third of a segment.
Record Large() {
  Record record;
  record.mutable_checkpoint()->set_directory(std::string(350'000, 'x'));
  return record;
}

class OutboxTest : public ::testing::Test {
 protected:
  std::unique_ptr<OutboxWriter> Open() {
    auto writer = OutboxWriter::Open(folder_.path());
    EXPECT_TRUE(writer.ok()) << writer.status();
    return writer.ok() ? std::move(*writer) : nullptr;
  }
  std::string Segment(uint64_t index) const { return SegmentPath(folder_.path(), "outbox", index); }
  void Cut(uint64_t index, uint64_t bytes) {
    std::filesystem::resize_file(Segment(index), std::filesystem::file_size(Segment(index)) - bytes);
  }
  void Flip(uint64_t index, std::streamoff at) {
    std::fstream file(Segment(index), std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at);
    const char c = static_cast<char>(file.get());
    file.seekp(at);
    file.put(static_cast<char>(c ^ 0x40));
  }
  std::vector<uint64_t> Sequences(const absl::StatusOr<std::vector<Record>>& records) {
    EXPECT_TRUE(records.ok()) << records.status();
    std::vector<uint64_t> sequences;
    if (!records.ok()) return sequences;
    for (const Record& record : *records) sequences.push_back(record.sequence());
    return sequences;
  }

  TemporaryFolder folder_;
};

TEST(Crc32c, KnownVectors) {
  // RFC 3720, appendix B.4.
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(Crc32c(std::string(32, '\xFF')), 0x62A8AB43u);
  EXPECT_EQ(Crc32c("123456789"), 0xE3069283u);
}

TEST_F(OutboxTest, WhatIsDurableIsSynced) {
  const SyncWatch watch(folder_.path());
  const auto writer = Open();
  EXPECT_EQ(watch.Unsynced(), std::vector<std::string>{});
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(writer->Append(Large(), false).ok());  // over the ends of segments
  ASSERT_TRUE(writer->Append(Point(1), true).ok());
  EXPECT_EQ(watch.Unsynced(), std::vector<std::string>{}) << "and all before it";
  ASSERT_TRUE(writer->Append(Point(2), false).ok());
  EXPECT_EQ(watch.Unsynced(), std::vector<std::string>{Segment(2)});
}

TEST_F(OutboxTest, NumbersFromOneAndReadsBehind) {
  auto writer = Open();
  for (uint64_t step = 1; step <= 5; ++step) EXPECT_EQ(writer->Append(Point(step), step == 5).value(), step);
  OutboxReader reader(folder_.path());
  EXPECT_EQ(Sequences(reader.Read(0, 2)), (std::vector<uint64_t>{1, 2}));
  EXPECT_EQ(Sequences(reader.Read(2, 10)), (std::vector<uint64_t>{3, 4, 5}));
  EXPECT_EQ(Sequences(reader.Read(5, 10)), std::vector<uint64_t>{});
  EXPECT_EQ(Sequences(reader.Read(1, 2)), (std::vector<uint64_t>{2, 3}));  // again, as after a reconnect
  EXPECT_EQ(writer->Append(Point(6), false).value(), 6u);
  const auto more = reader.Read(5, 10);
  EXPECT_EQ(Sequences(more), std::vector<uint64_t>{6});
  EXPECT_EQ(more->at(0).metrics().step(), 6u);
}

TEST_F(OutboxTest, NoOutboxYetIsNoError) {
  OutboxReader reader(folder_.path() + "/not-there");
  EXPECT_EQ(Sequences(reader.Read(0, 10)), std::vector<uint64_t>{});
  EXPECT_TRUE(reader.Drop(10).ok());
}

TEST_F(OutboxTest, WriterGoesOnBehindWhatIsThere) {
  Open()->Append(Point(1), false).value();
  EXPECT_EQ(Open()->Append(Point(2), false).value(), 2u);
  OutboxReader reader(folder_.path());
  EXPECT_EQ(Sequences(reader.Read(0, 10)), (std::vector<uint64_t>{1, 2}));
}

TEST_F(OutboxTest, TornTailOfEveryLengthIsNotThereYetAndIsOverwritten) {
  auto first = Open();
  first->Append(Point(1), false).value();
  const uint64_t one = std::filesystem::file_size(Segment(0));
  first->Append(Point(2), false).value();
  const std::string whole = ReadWhole(Segment(0)).value();
  for (uint64_t size = one; size < whole.size(); ++size) {
    std::ofstream(Segment(0), std::ios::binary | std::ios::trunc) << whole.substr(0, size);
    OutboxReader reader(folder_.path());
    EXPECT_EQ(Sequences(reader.Read(0, 10)), std::vector<uint64_t>{1}) << size;
    EXPECT_EQ(Open()->Append(Point(7), false).value(), 2u) << size;
    EXPECT_EQ(Sequences(reader.Read(1, 10)), std::vector<uint64_t>{2}) << size;
  }
}

TEST_F(OutboxTest, ZerosAtTheEndAreTorn) {
  Open()->Append(Point(1), false).value();
  std::ofstream(Segment(0), std::ios::app | std::ios::binary) << std::string(100, '\0');
  OutboxReader reader(folder_.path());
  EXPECT_EQ(Sequences(reader.Read(0, 10)), std::vector<uint64_t>{1});
  EXPECT_EQ(Open()->Append(Point(2), false).value(), 2u);
  EXPECT_EQ(Sequences(reader.Read(1, 10)), std::vector<uint64_t>{2});
}

TEST_F(OutboxTest, DamageInTheMiddleIsDataLossBehindTheGoodRecords) {
  auto writer = Open();
  writer->Append(Point(1), false).value();
  const auto one = static_cast<std::streamoff>(std::filesystem::file_size(Segment(0)));
  writer->Append(Point(2), false).value();
  writer->Append(Point(3), false).value();
  Flip(0, one + 10);
  OutboxReader reader(folder_.path());
  EXPECT_EQ(Sequences(reader.Read(0, 10)), std::vector<uint64_t>{1});
  const auto damaged = reader.Read(1, 10);
  EXPECT_EQ(damaged.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(damaged.status().message().find(absl::StrCat("outbox.000000:", one)), std::string::npos)
      << damaged.status();
  EXPECT_EQ(OutboxWriter::Open(folder_.path()).status().code(), absl::StatusCode::kDataLoss);
}

// No writer leaves a segment without a record. A program that makes thousands of them costs its reader one look.
TEST_F(OutboxTest, ASegmentWithoutARecordIsDamage) {
  Open()->Append(Point(1), false).value();
  for (int i = 1; i <= 3; ++i) std::ofstream{Segment(i)};
  OutboxReader reader(folder_.path());
  EXPECT_EQ(Sequences(reader.Read(0, 10)), std::vector<uint64_t>{1});
  const auto damaged = reader.Read(1, 10);
  EXPECT_EQ(damaged.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(damaged.status().message().find("outbox.000001:0 (no record"), std::string::npos) << damaged.status();
  std::filesystem::remove(Segment(1)), std::filesystem::remove(Segment(2));
  EXPECT_EQ(Sequences(reader.Read(1, 10)), std::vector<uint64_t>{}) << "the newest one may have none yet";
}

TEST_F(OutboxTest, ReadsNoFurtherThanSoManyBytes) {
  auto writer = Open();
  for (int i = 0; i < 5; ++i) writer->Append(Large(), false).value();
  OutboxReader reader(folder_.path());
  EXPECT_EQ(Sequences(reader.Read(0, 100, 1)), std::vector<uint64_t>{1}) << "one at least";
  EXPECT_EQ(Sequences(reader.Read(1, 100, kOutboxSegmentBytes)).size(), 3u) << "the third makes it a MiB";
  EXPECT_EQ(Sequences(reader.Read(4, 100, kOutboxSegmentBytes)), std::vector<uint64_t>{5});
}

TEST_F(OutboxTest, SegmentsRollAndAreDroppedButTheNewest) {
  auto writer = Open();
  for (int i = 0; i < 7; ++i) writer->Append(Large(), false).value();  // two to a segment
  EXPECT_EQ(ListSegments(folder_.path(), "outbox"), (std::vector<uint64_t>{0, 1, 2, 3}));
  OutboxReader reader(folder_.path());
  EXPECT_EQ(Sequences(reader.Read(0, 100)), (std::vector<uint64_t>{1, 2, 3, 4, 5, 6, 7}));
  ASSERT_TRUE(reader.Drop(3).ok());
  EXPECT_EQ(ListSegments(folder_.path(), "outbox"), (std::vector<uint64_t>{1, 2, 3}));
  ASSERT_TRUE(reader.Drop(100).ok());
  EXPECT_EQ(ListSegments(folder_.path(), "outbox"), std::vector<uint64_t>{3});
  EXPECT_EQ(Sequences(reader.Read(7, 100)), std::vector<uint64_t>{});
  EXPECT_EQ(Sequences(OutboxReader(folder_.path()).Read(0, 100)), std::vector<uint64_t>{7});
  EXPECT_EQ(Open()->Append(Point(8), false).value(), 8u);
}

TEST_F(OutboxTest, CutOffRecordInAnOlderSegmentIsDataLoss) {
  auto writer = Open();
  for (int i = 0; i < 4; ++i) writer->Append(Large(), false).value();
  Cut(0, 5);
  OutboxReader reader(folder_.path());
  EXPECT_EQ(Sequences(reader.Read(0, 100)), std::vector<uint64_t>{1});
  EXPECT_EQ(reader.Read(1, 100).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(OutboxTest, LostSegmentIsDataLoss) {
  auto writer = Open();
  for (int i = 0; i < 6; ++i) writer->Append(Large(), false).value();
  std::filesystem::remove(Segment(1));
  OutboxReader reader(folder_.path());
  EXPECT_EQ(Sequences(reader.Read(0, 100)), (std::vector<uint64_t>{1, 2}));
  EXPECT_EQ(reader.Read(2, 100).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(OutboxTest, CrashRightAfterASegmentBeganKeepsTheNumbering) {
  auto writer = Open();
  for (int i = 0; i < 2; ++i) writer->Append(Large(), false).value();
  std::ofstream(Segment(1));  // made, and nothing written yet
  OutboxReader reader(folder_.path());
  ASSERT_TRUE(reader.Drop(2).ok());
  EXPECT_EQ(Open()->Append(Point(3), false).value(), 3u);
  EXPECT_EQ(Sequences(reader.Read(0, 10)), (std::vector<uint64_t>{1, 2, 3}));
}

TEST_F(OutboxTest, TooLargeARecordIsRefusedAndTheNextIsTaken) {
  auto writer = Open();
  Record record;
  record.mutable_checkpoint()->set_directory(std::string(kOutboxSegmentBytes, 'x'));
  EXPECT_EQ(writer->Append(record, false).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(writer->Append(Point(1), false).value(), 1u);
}

TEST_F(OutboxTest, FullDiskLeavesNoTornRecordAndTheNumberIsUsedAgain) {
  auto writer = Open();
  writer->Append(Point(1), false).value();
  const uint64_t size = std::filesystem::file_size(Segment(0));
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, SIG_IGN);
  rlimit limit = before;
  limit.rlim_cur = size + 12;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  const auto refused = writer->Append(Large(), false);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_FALSE(refused.ok());
  EXPECT_EQ(std::filesystem::file_size(Segment(0)), size);
  EXPECT_EQ(writer->Append(Point(2), false).value(), 2u);
  EXPECT_EQ(Sequences(OutboxReader(folder_.path()).Read(0, 10)), (std::vector<uint64_t>{1, 2}));
}

// The end of a rank and its checkpoints have to arrive; metrics do not.
TEST_F(OutboxTest, AFullDiskStillTakesWhatMustNotBeLost) {
  const SmallDisk disk(folder_.path() + "/disk", 4);
  ASSERT_TRUE(disk.ok());
  const auto writer = *OutboxWriter::Open(disk.path());
  ASSERT_EQ(writer->Append(Point(1), false).value(), 1u);
  disk.Fill();
  uint64_t last = 1;
  absl::Status full;
  while (full.ok() && last < 10'000) {
    const auto sequence = writer->Append(Point(last), false);
    full = sequence.status();
    if (full.ok()) last = *sequence;
  }
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted) << full;
  for (int i = 0; i < 100; ++i) {
    const auto sequence = writer->Append(Point(0), /*durable=*/true);
    ASSERT_TRUE(sequence.ok()) << i << ": " << sequence.status();
    EXPECT_EQ(*sequence, ++last);
  }
  EXPECT_FALSE(writer->Append(Point(0), false).ok());
  disk.Free();
  EXPECT_EQ(writer->Append(Point(0), false).value(), last + 1);
  EXPECT_EQ(Sequences(OutboxReader(disk.path()).Read(0, 20'000)).size(), last + 1);
}

// The first record that does not fit would begin the next segment.
TEST_F(OutboxTest, WithoutANextSegmentTheOldOneTakesWhatMustNotBeLost) {
  const SmallDisk disk(folder_.path() + "/disk", 8);
  ASSERT_TRUE(disk.ok());
  const auto writer = *OutboxWriter::Open(disk.path());
  ASSERT_TRUE(disk.TakeNoMoreFiles());
  uint64_t last = 0;
  absl::StatusOr<uint64_t> sequence = 0;
  while ((sequence = writer->Append(Point(last), false)).ok() && last < 100'000) last = *sequence;
  EXPECT_EQ(sequence.status().code(), absl::StatusCode::kResourceExhausted) << sequence.status();
  EXPECT_GT(std::filesystem::file_size(disk.path() + "/outbox.000000"), (1u << 20) - 100);
  for (int i = 0; i < 10; ++i) {
    ASSERT_EQ(writer->Append(Point(0), /*durable=*/true).value(), ++last);
  }
  EXPECT_FALSE(writer->Append(Point(0), false).ok());
  EXPECT_GT(std::filesystem::file_size(disk.path() + "/outbox.000000"), 1u << 20);
  OutboxReader reader(disk.path());
  EXPECT_EQ(Sequences(reader.Read(0, 200'000)).size(), last);
  EXPECT_TRUE(reader.Drop(last).ok());
  const auto next = *OutboxWriter::Open(disk.path());
  EXPECT_EQ(next->Append(Point(0), true).value(), ++last);

  while ((sequence = next->Append(Large(), true)).ok() && last < 100'000) last = *sequence;
  EXPECT_EQ(sequence.status().code(), absl::StatusCode::kResourceExhausted) << "what no reader would take";
  EXPECT_LE(std::filesystem::file_size(disk.path() + "/outbox.000000"), 2u << 20);
  EXPECT_EQ(Sequences(OutboxReader(disk.path()).Read(0, 200'000)).size(), last);
}

// The file of the next segment could be created, but nothing written to it.
TEST_F(OutboxTest, AFullDiskDoesNotBeginASegmentThatTakesNothing) {
  const SmallDisk disk(folder_.path() + "/disk", 8);
  ASSERT_TRUE(disk.ok());
  const auto writer = *OutboxWriter::Open(disk.path());
  uint64_t last = 0;
  while (std::filesystem::file_size(disk.path() + "/outbox.000000") < (1u << 20) - 100) {
    last = writer->Append(Point(last), false).value();
  }
  disk.Fill();
  for (int i = 0; i < 100; ++i) {
    const auto sequence = writer->Append(Point(0), /*durable=*/true);
    ASSERT_TRUE(sequence.ok()) << i << ": " << sequence.status();
    EXPECT_EQ(*sequence, ++last);
  }
  EXPECT_EQ(Sequences(OutboxReader(disk.path()).Read(0, 200'000)).size(), last);
  disk.Free();
  ASSERT_EQ(writer->Append(Point(0), false).value(), ++last);
  EXPECT_EQ(ListSegments(disk.path(), "outbox"), (std::vector<uint64_t>{0, 1}));
  EXPECT_EQ(Sequences(OutboxReader(disk.path()).Read(0, 200'000)).size(), last);
}

TEST_F(OutboxTest, ADiskThatFillsBeforeTheFirstRecordTakesWhatMustNotBeLost) {
  const SmallDisk disk(folder_.path() + "/disk", 4);
  ASSERT_TRUE(disk.ok());
  const auto writer = *OutboxWriter::Open(disk.path());
  disk.Fill();
  for (uint64_t i = 1; i <= 100; ++i) EXPECT_EQ(writer->Append(Point(0), /*durable=*/true).value(), i);
  EXPECT_EQ(Sequences(OutboxReader(disk.path()).Read(0, 200)).size(), 100u);
}

TEST_F(OutboxTest, ReaderBesideAWriterSeesEachRecordOnceAndInOrder) {
  constexpr uint64_t kRecords = 3000;
  std::atomic<bool> failed = false;
  std::thread producer([&] {
    auto writer = Open();
    Record record;
    record.mutable_checkpoint()->set_directory(std::string(1500, 'x'));
    for (uint64_t i = 0; i < kRecords && !failed; ++i) failed = failed || !writer->Append(record, false).ok();
  });
  OutboxReader reader(folder_.path());
  uint64_t next = 1;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (next <= kRecords && !failed && std::chrono::steady_clock::now() < deadline) {
    const auto records = reader.Read(next - 1, 50);
    if (!records.ok()) {
      ADD_FAILURE() << records.status();
      failed = true;
      break;
    }
    for (const Record& record : *records) {
      EXPECT_EQ(record.sequence(), next);
      ++next;
    }
    EXPECT_TRUE(reader.Drop(next - 1).ok());
  }
  producer.join();
  EXPECT_FALSE(failed);
  EXPECT_EQ(next, kRecords + 1);
  EXPECT_EQ(ListSegments(folder_.path(), "outbox").size(), 1u);
}

}  // namespace
}  // namespace muster::rundir
