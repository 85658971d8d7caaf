// Records compared with known bytes, and the folder across crashes; tests/tensorboard reads it with the real
// TensorBoard.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "common/crc32c.h"
#include "common/event_record.h"
#include "coordinator/metrics/event_file.h"
#include "coordinator/metrics/tensorboard_log.h"
#include "testing/temporary_folder.h"

namespace muster::metrics {
namespace {

namespace fs = std::filesystem;

MetricPoint Point(uint64_t step, double loss) {
  MetricPoint point;
  point.set_step(step);
  point.mutable_time()->set_seconds(1'700'000'000 + static_cast<int64_t>(step));
  point.set_loss(loss);
  return point;
}

WatchItem Metric(const std::string& job, uint64_t step, double loss) {
  WatchItem item;
  item.set_cursor(absl::StrCat("c", step));
  item.set_job(job);
  *item.mutable_metrics() = Point(step, loss);
  return item;
}

WatchItem Event(const std::string& job, uint64_t generation, JobState state) {
  WatchItem item;
  item.set_cursor("e");
  item.set_job(job);
  item.mutable_event()->set_job(job);
  item.mutable_event()->set_generation(generation);
  item.mutable_event()->set_job_state(state);
  return item;
}

std::string Contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// The events of a file; checks both checksums of each record.
std::vector<TensorBoardEvent> Events(const std::string& bytes) {
  std::vector<TensorBoardEvent> events;
  const auto number = [&](size_t at, int size) {
    uint64_t value = 0;
    for (int i = size; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[at + i]);
    return value;
  };
  for (size_t at = 0; at < bytes.size();) {
    if (at + 16 > bytes.size()) {
      ADD_FAILURE() << "a torn record";
      return events;
    }
    const uint64_t length = number(at, 8);
    EXPECT_EQ(number(at + 8, 4), MaskedCrc(bytes.substr(at, 8)));
    EXPECT_EQ(number(at + 12 + length, 4), MaskedCrc(bytes.substr(at + 12, length)));
    EXPECT_TRUE(events.emplace_back().ParseFromString(bytes.substr(at + 12, length)));
    at += 16 + length;
  }
  return events;
}

std::vector<int64_t> Steps(const std::string& path) {
  std::vector<int64_t> steps;
  for (const TensorBoardEvent& event : Events(Contents(path))) {
    if (event.has_summary()) steps.push_back(event.step());
  }
  return steps;
}

class TensorBoardTest : public ::testing::Test {
 protected:
  std::unique_ptr<TensorBoardLog> Open() {
    auto log = TensorBoardLog::Open(folder_);
    EXPECT_TRUE(log.ok()) << log.status();
    return *std::move(log);
  }
  std::string Path(const std::string& job, int generation) const {
    return absl::StrCat(folder_, "/", job, "/events.out.tfevents.000000000", generation, ".muster");
  }

  const TemporaryFolder temporary_;
  const std::string folder_ = temporary_.path() + "/tb";
};

TEST(EventFile, MasksAsTensorFlowDoes) {
  // crc32c::Mask of tensorflow/core/lib/hash/crc32c.h: rotate right by 15 bits, add a constant.
  ASSERT_EQ(Crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(MaskedCrc("123456789"), 0xc78ab0e5u);
}

TEST(EventFile, FirstRecordIsWhatEveryWriterWrites) {
  TensorBoardEvent event;
  event.set_file_version("brain.Event:2");
  const std::string record = EventRecord(event.SerializeAsString());
  EXPECT_EQ(record.substr(0, 8), std::string("\x0f\0\0\0\0\0\0\0", 8));
  EXPECT_EQ(record.substr(12, 15),
            "\x1a\x0d"
            "brain.Event:2");
}

TEST(EventFile, LongRunsAreThinned) {
  EXPECT_TRUE(IsWritten(1));
  EXPECT_TRUE(IsWritten(99'999));
  EXPECT_TRUE(IsWritten(100'000));
  EXPECT_FALSE(IsWritten(100'001));
  EXPECT_TRUE(IsWritten(100'002));
  EXPECT_FALSE(IsWritten(200'002));
  EXPECT_TRUE(IsWritten(200'004));
  uint64_t written = 0;
  for (uint64_t step = 1; step <= 3'200'000; ++step) written += IsWritten(step) ? 1 : 0;
  EXPECT_EQ(written, 100'000u + 5 * 50'000u);
}

TEST_F(TensorBoardTest, AFilePerGenerationThatVoidsWhatItRepeats) {
  const auto log = Open();
  ASSERT_TRUE(log->Write({Event("a", 1, JOB_STATE_STARTING), Metric("a", 1, 3), Metric("a", 2, 2), Metric("b", 1, 9),
                          Event("a", 2, JOB_STATE_STARTING), Metric("a", 2, 2.5)})
                  .ok());
  const std::vector<TensorBoardEvent> first = Events(Contents(Path("a", 1)));
  ASSERT_EQ(first.size(), 4u);
  EXPECT_EQ(first[0].file_version(), "brain.Event:2");
  EXPECT_EQ(first[1].session_log().status(), TensorBoardEvent::START);
  EXPECT_EQ(first[1].step(), 1);
  EXPECT_EQ(first[3].summary().value(0).tag(), "train/loss");
  EXPECT_EQ(first[3].summary().value(0).simple_value(), 2);
  EXPECT_EQ(first[3].wall_time(), 1'700'000'002);
  const std::vector<TensorBoardEvent> second = Events(Contents(Path("a", 2)));
  ASSERT_EQ(second.size(), 3u);
  EXPECT_EQ(second[1].session_log().status(), TensorBoardEvent::START);
  EXPECT_EQ(second[1].step(), 2);
  EXPECT_EQ(Steps(Path("b", 0)), std::vector<int64_t>{1});
}

// Whatever was written after the last Save, complete or torn, is there exactly once after the stream is read again.
TEST_F(TensorBoardTest, ACrashAtAnyInstantLosesAndDoublesNothing) {
  std::vector<WatchItem> items = {Event("a", 1, JOB_STATE_RUNNING)};
  for (uint64_t step = 1; step <= 6; ++step) items.push_back(Metric("a", step, 1.0 / static_cast<double>(step)));
  for (size_t saved = 0; saved < items.size(); ++saved) {
    for (size_t crash = saved; crash <= items.size(); ++crash) {
      fs::remove_all(folder_);
      {
        const auto log = Open();
        for (size_t i = 0; i < crash; ++i) {
          ASSERT_TRUE(log->Write({items[i]}).ok());
          if (i + 1 == saved) {
            ASSERT_TRUE(log->Save().ok());
          }
        }
      }
      if (crash > 2) fs::resize_file(Path("a", 1), fs::file_size(Path("a", 1)) - (crash > saved ? 3 : 0));
      const auto log = Open();
      ASSERT_EQ(log->cursor(), saved == 0 ? "" : items[saved - 1].cursor());
      ASSERT_TRUE(log->Write({items.begin() + static_cast<ptrdiff_t>(saved), items.end()}).ok());
      EXPECT_EQ(Steps(Path("a", 1)), (std::vector<int64_t>{1, 2, 3, 4, 5, 6})) << saved << " " << crash;
    }
  }
}

TEST_F(TensorBoardTest, ATruncatedFileRestartsFromTheBeginning) {
  {
    const auto log = Open();
    ASSERT_TRUE(log->Write({Event("a", 1, JOB_STATE_RUNNING), Metric("a", 1, 1)}).ok());
    ASSERT_TRUE(log->Save().ok());
  }
  fs::resize_file(Path("a", 1), 5);
  EXPECT_EQ(Open()->cursor(), "");
  std::ofstream(folder_ + "/progress") << "\xff not a message";
  EXPECT_EQ(Open()->cursor(), "");
}

TEST_F(TensorBoardTest, AFullDiskIsReportedAndTheSameCallMayBeRetried) {
  const auto log = Open();
  ASSERT_TRUE(log->Write({Event("a", 1, JOB_STATE_RUNNING), Metric("a", 1, 1)}).ok());
  signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small = {fs::file_size(Path("a", 1)) + 10, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const std::vector<WatchItem> more = {Metric("a", 2, 1), Metric("a", 3, 1)};
  EXPECT_TRUE(absl::IsResourceExhausted(log->Write(more)));
  EXPECT_EQ(log->cursor(), "c1");
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_TRUE(log->Write(more).ok());
  EXPECT_EQ(Steps(Path("a", 1)), (std::vector<int64_t>{1, 2, 3}));
}

TEST_F(TensorBoardTest, DeletingAJobRemovesItsFilesAndNoOthers) {
  const auto log = Open();
  ASSERT_TRUE(log->Write({Event("a", 1, JOB_STATE_RUNNING), Metric("a", 1, 1), Metric("b", 1, 1)}).ok());
  std::ofstream(folder_ + "/b/notes.txt") << "mine";
  log->Remove(JobId("a"));
  log->Remove(JobId("b"));
  log->Remove(JobId(".."));
  EXPECT_FALSE(fs::exists(folder_ + "/a"));
  EXPECT_TRUE(fs::exists(folder_ + "/b/notes.txt"));
  EXPECT_FALSE(fs::exists(Path("b", 0)));
  EXPECT_TRUE(log->Save().ok());
}

}  // namespace
}  // namespace muster::metrics
