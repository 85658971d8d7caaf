#include "worker/agent/feed.h"

#include <gtest/gtest.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "testing/temporary_folder.h"
#include "worker/rundir/log.h"

namespace muster::agent {
namespace {

class FeedTest : public ::testing::Test {
 protected:
  FeedTest() : dir_(run_.path(), {JobId("a"), 1, 0}) {
    EXPECT_TRUE(dir_.Create({}).ok());
    outbox_ = rundir::OutboxWriter::Open(dir_.path()).value();
    log_ = rundir::LogWriter::Open(dir_.path()).value();
    feed_ = std::make_unique<Feed>(dir_);
  }

  void Write(uint64_t from, uint64_t to) {
    for (uint64_t step = from; step <= to; ++step) {
      Record record;
      record.mutable_metrics()->set_step(step);
      ASSERT_TRUE(outbox_->Append(record, false).ok());
    }
  }
  void Finish() {
    Record record;
    record.mutable_finished();
    ASSERT_TRUE(outbox_->Append(record, true).ok());
  }
  std::vector<WorkerMessage> Collect(bool ended = false) {
    std::vector<WorkerMessage> messages;
    feed_->Collect(ended, clock_.Read(), messages);
    return messages;
  }
  // "first-last" sequence numbers of one collection.
  static std::string Sequences(const std::vector<WorkerMessage>& messages) {
    std::vector<uint64_t> all;
    for (const WorkerMessage& message : messages) {
      for (const Record& record : message.records().records()) all.push_back(record.sequence());
    }
    for (size_t i = 1; i < all.size(); ++i) EXPECT_EQ(all[i], all[i - 1] + 1);
    return all.empty() ? "" : absl::StrCat(all.front(), "-", all.back());
  }
  static std::string Text(const std::vector<WorkerMessage>& messages) {
    std::string text;
    for (const WorkerMessage& message : messages) text += message.logs().chunk().text();
    return text;
  }

  TemporaryFolder run_;
  rundir::RankDir dir_;
  FakeClock clock_;
  std::unique_ptr<rundir::OutboxWriter> outbox_;
  std::unique_ptr<rundir::LogWriter> log_;
  std::unique_ptr<Feed> feed_;
};

TEST_F(FeedTest, SendsOnceWithinAWindowAndAgainAfterAReconnect) {
  Write(1, 2000);
  EXPECT_EQ(Sequences(Collect()), "1-512");
  EXPECT_EQ(Sequences(Collect()), "") << "the window is full";
  feed_->AcknowledgeRecords(300);
  EXPECT_EQ(Sequences(Collect()), "513-1024");
  feed_->Reconnected();
  EXPECT_EQ(Sequences(Collect()), "301-812");
  EXPECT_EQ(feed_->facts().step, 1024u);
}

// A coordinator takes messages of up to 8 MiB. A program can write records of a MiB to its outbox.
TEST_F(FeedTest, LargeRecordsGoInSeveralMessages) {
  Record large;
  NamedMetric& metric = *large.mutable_metrics()->add_reported();
  metric.set_name(std::string(900'000, 'x'));
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(outbox_->Append(large, false).ok());
  const std::vector<WorkerMessage> first = Collect();
  for (const WorkerMessage& message : first) EXPECT_LT(message.ByteSizeLong(), 2u << 20);
  EXPECT_EQ(Sequences(first), "1-10") << "8 MiB are in flight";
  EXPECT_EQ(Sequences(Collect()), "");
  feed_->AcknowledgeRecords(4);
  EXPECT_EQ(Sequences(Collect()), "11-14");
  feed_->Reconnected();
  EXPECT_EQ(Sequences(Collect()), "5-14");
}

TEST_F(FeedTest, KnowsWhatItCannotHaveSent) {
  Write(1, 3);
  EXPECT_EQ(feed_->MayHaveSent(3), 3u) << "an earlier daemon may have";
  Write(4, 6);
  EXPECT_EQ(feed_->MayHaveSent(6), 3u);
  Collect();
  EXPECT_EQ(feed_->MayHaveSent(6), 6u);
  feed_->Reconnected();
  Write(7, 8);
  EXPECT_EQ(feed_->MayHaveSent(8), 6u) << "what a stream before this one sent is out";
  EXPECT_EQ(feed_->MayHaveSent(5), 5u);
}

TEST_F(FeedTest, DrainedOnceEverythingIsAcknowledged) {
  Write(1, 3);
  EXPECT_FALSE(feed_->records_drained());
  Collect(true);
  EXPECT_FALSE(feed_->records_drained());
  feed_->AcknowledgeRecords(3);
  EXPECT_TRUE(feed_->records_drained());
  EXPECT_TRUE(feed_->logs_drained());
}

TEST_F(FeedTest, NewDaemonLearnsFromRecordsThatTheCoordinatorHas) {
  for (uint64_t step = 1; step <= 6000; ++step) {  // more than a segment
    Record record;
    record.mutable_checkpoint()->set_step(step);
    record.mutable_checkpoint()->set_directory(std::string(200, 'x'));
    ASSERT_TRUE(outbox_->Append(record, false).ok());
  }
  Finish();
  EXPECT_EQ(Sequences(Collect()), "1-512");
  feed_->AcknowledgeRecords(6001);  // it had them from the daemon before
  EXPECT_FALSE(feed_->records_drained()) << "not read yet";
  EXPECT_EQ(Sequences(Collect()), "");
  EXPECT_TRUE(feed_->records_drained());
  EXPECT_TRUE(feed_->facts().finished);
  EXPECT_TRUE(feed_->facts().damage.ok()) << feed_->facts().damage;
  EXPECT_EQ(feed_->facts().step, 6000u);
}

TEST_F(FeedTest, MalformedRecordEndsTheFeedBehindTheGoodOnes) {
  Write(1, 2);
  ASSERT_TRUE(outbox_->Append(Record(), false).ok());
  Write(3, 4);
  EXPECT_EQ(Sequences(Collect()), "1-2");
  EXPECT_TRUE(absl::IsDataLoss(feed_->facts().damage));
  feed_->AcknowledgeRecords(2);
  EXPECT_TRUE(feed_->records_drained());
  EXPECT_EQ(Sequences(Collect()), "");
}

TEST_F(FeedTest, TheLongestNameOfACheckpointThatWritersAllowIsSent) {
  Record record;
  record.mutable_checkpoint()->set_directory(std::string(rundir::kMaxCheckpointNameBytes, 'x'));
  ASSERT_TRUE(outbox_->Append(record, true).ok());
  EXPECT_EQ(Sequences(Collect()), "1-1");
  EXPECT_TRUE(feed_->facts().damage.ok()) << feed_->facts().damage;
  record.mutable_checkpoint()->set_directory(std::string(257, 'x'));
  ASSERT_TRUE(outbox_->Append(record, true).ok());
  EXPECT_EQ(Sequences(Collect()), "") << "the coordinator would end the node's stream";
}

TEST_F(FeedTest, LinesGoWholeAndUnfinishedOnesAfterAWhile) {
  ASSERT_TRUE(log_->Append("one\ntwo\nthr").ok());
  EXPECT_EQ(Text(Collect()), "one\ntwo\n");
  EXPECT_EQ(Text(Collect()), "");
  clock_.Advance(absl::Milliseconds(900));
  ASSERT_TRUE(log_->Append("ee\nfou").ok());
  EXPECT_EQ(Text(Collect()), "three\n");
  EXPECT_EQ(Text(Collect()), "");
  clock_.Advance(absl::Seconds(2));
  EXPECT_EQ(Text(Collect()), "fou");
  ASSERT_TRUE(log_->Append("r").ok());
  EXPECT_EQ(Text(Collect(true)), "r");
}

TEST_F(FeedTest, LogHasAWindowToo) {
  ASSERT_TRUE(log_->Append(std::string(400'000, 'x') + "\n").ok());
  std::vector<WorkerMessage> first = Collect(true);
  ASSERT_EQ(first.size(), 4u);
  EXPECT_EQ(first[3].logs().chunk().offset(), 3u * 64 * 1024);
  EXPECT_EQ(Text(Collect(true)), "");
  feed_->AcknowledgeLogs(64 * 1024);
  EXPECT_EQ(Text(Collect(true)).size(), 64u * 1024);
  feed_->Reconnected();
  EXPECT_EQ(Collect(true).front().logs().chunk().offset(), 64u * 1024);
  feed_->AcknowledgeLogs(400'001);  // the coordinator has it from the daemon before
  EXPECT_EQ(Text(Collect(true)), "");
  EXPECT_TRUE(feed_->logs_drained());
}

TEST(ChunkLength, Table) {
  struct Case {
    std::string bytes;
    bool all;
    size_t length;
  };
  const std::string euro = "\xE2\x82\xAC";
  const Case cases[] = {
      {"a\nb", false, 2},
      {"ab", false, 0},
      {"ab", true, 2},
      {std::string(8, 'x'), false, 8},
      {"ab" + euro, true, 5},
      {"ab" + euro.substr(0, 2), true, 2},
      {"ab" + euro.substr(0, 1), true, 2},
      {euro.substr(0, 2), true, 2},  // nothing before it: it goes as it is
      {"ab\x80\x80\x80\x80", true, 6},
      {"ab\xFF", true, 2},
      {"", true, 0},
  };
  for (const Case& c : cases) EXPECT_EQ(ChunkLength(c.bytes, 8, c.all), c.length) << c.bytes;
}

}  // namespace
}  // namespace muster::agent
