#include "worker/exec/event_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/event_record.h"
#include "testing/temporary_folder.h"
#include "testing/wait.h"
#include "worker/exec/event_watch.h"

namespace muster::exec {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr pid_t kScript = 4711;

class EventFolderTest : public ::testing::Test {
 protected:
  static std::string Record(int64_t step, float loss) {
    TensorBoardEvent event;
    event.set_step(step);
    event.mutable_summary()->add_value()->set_tag("train/loss");
    event.mutable_summary()->mutable_value(0)->set_simple_value(loss);
    return EventRecord(event.SerializeAsString());
  }
  // Of a writer with that pid, in a folder of the run's.
  std::string Path(pid_t pid, const std::string& run = "runs/a") const {
    fs::create_directories(folder_.path() + "/" + run);
    return absl::StrCat(folder_.path(), "/", run, "/events.out.tfevents.1795742897.vm.example.org.", pid, ".0");
  }
  static void Write(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::app | std::ios::binary) << bytes;
  }
  EventFolder OfScript() const {
    return EventFolder({folder_.path()}, [] { return std::set<pid_t>{kScript}; });
  }
  static std::vector<uint64_t> Steps(const std::vector<MetricPoint>& points) {
    std::vector<uint64_t> steps;
    for (const MetricPoint& point : points) steps.push_back(point.step());
    return steps;
  }

  TemporaryFolder folder_;
};

TEST_F(EventFolderTest, ReadsAsTheFileGrows) {
  EventFolder events = OfScript();
  events.SkipExisting();
  Write(Path(kScript), Record(1, 0.5) + Record(2, 0.25));
  EXPECT_THAT(Steps(events.Read()), IsEmpty()) << "not found yet";
  events.Scan();
  std::vector<MetricPoint> points = events.Read();
  EXPECT_THAT(Steps(points), ElementsAre(1)) << "step 2 may get more";
  EXPECT_EQ(points[0].loss(), 0.5);
  EXPECT_THAT(Steps(events.Read()), ElementsAre(2)) << "it did not";
  const std::string torn = Record(3, 0.125);
  Write(Path(kScript), torn.substr(0, 20));
  EXPECT_THAT(Steps(events.Read()), IsEmpty());
  Write(Path(kScript), torn.substr(20) + Record(4, 1));
  EXPECT_THAT(Steps(events.Read(/*last=*/true)), ElementsAre(3, 4));
  EXPECT_EQ(events.TakeWarning(), "");
}

TEST_F(EventFolderTest, FilesOfOtherProcessesAreNotOurs) {
  EventFolder events = OfScript();
  Write(Path(4712), Record(1, 1));
  Write(Path(47), Record(2, 1));
  Write(folder_.path() + "/runs/a/events.out.tfevents.4711.vm", Record(3, 1));  // it names no process
  Write(folder_.path() + "/runs/a/log.4711.0", Record(4, 1));
  fs::create_directories(folder_.path() + "/.hidden");
  Write(Path(kScript, ".hidden"), Record(5, 1));
  events.Scan();
  EXPECT_THAT(Steps(events.Read(true)), IsEmpty());
}

TEST_F(EventFolderTest, AnyWriterOfANamedFolderFromNowOn) {
  EventFolder events({folder_.path()}, nullptr);
  const std::string path = Path(4712), later = folder_.path() + "/events.out.tfevents.1.vm";
  Write(path, Record(1, 1));
  events.SkipExisting();
  Write(path, Record(2, 1));
  Write(later, Record(3, 1));
  events.Scan();
  EXPECT_THAT(Steps(events.Read(true)), ::testing::UnorderedElementsAre(2, 3));
}

TEST_F(EventFolderTest, ADamagedFileEndsThere) {
  EventFolder events = OfScript();
  std::string damaged = Record(2, 1);
  damaged[damaged.size() - 8] = static_cast<char>(damaged[damaged.size() - 8] ^ 1);
  Write(Path(kScript), Record(1, 1) + damaged + Record(3, 1));
  events.Scan();
  EXPECT_THAT(Steps(events.Read(true)), ElementsAre(1));
  EXPECT_THAT(events.TakeWarning(), HasSubstr("its checksum is wrong"));
  EXPECT_EQ(events.TakeWarning(), "");
}

TEST_F(EventFolderTest, LargeEventsAreSkippedUnread) {
  EventFolder events = OfScript();
  Write(Path(kScript), Record(1, 1) + EventRecord(std::string(2 << 20, 'x')) + Record(2, 1));
  events.Scan();
  EXPECT_THAT(Steps(events.Read(true)), ElementsAre(1, 2));
}

TEST_F(EventFolderTest, LinksAreNotFollowedAndAFolderThatIsMissingIsEmpty) {
  const TemporaryFolder elsewhere;
  Write(absl::StrCat(elsewhere.path(), "/events.out.tfevents.1.vm.", kScript, ".0"), Record(1, 1));
  fs::create_directory_symlink(elsewhere.path(), folder_.path() + "/link");
  EventFolder events = OfScript();
  events.Scan();
  EXPECT_THAT(Steps(events.Read(true)), IsEmpty());
  EventFolder missing({folder_.path() + "/missing"}, nullptr);
  missing.SkipExisting();
  missing.Scan();
  EXPECT_THAT(Steps(missing.Read(true)), IsEmpty());
}

TEST_F(EventFolderTest, AFileInTwoOfTheFoldersIsReadOnce) {
  Write(Path(kScript), Record(1, 1));
  EventFolder events({folder_.path() + "/missing", folder_.path(), folder_.path() + "/runs/../runs"},
                     [] { return std::set<pid_t>{kScript}; });
  events.Scan();
  EXPECT_THAT(Steps(events.Read(true)), ElementsAre(1));
}

TEST_F(EventFolderTest, FilesOfOneStepMakeOnePoint) {
  Write(Path(kScript, "train"), Record(1, 0.5) + Record(2, 1));
  Write(Path(kScript, "other"), Record(1, 0.5) + Record(2, 1));
  EventFolder events = OfScript();
  events.Scan();
  EXPECT_THAT(Steps(events.Read(true)), ElementsAre(1, 2));
}

TEST(FoldersIn, AreAbsolutePathsOfArguments) {
  EXPECT_THAT(FoldersIn({"python", "train.py", "--lr=1e-3", "--output_dir=/scratch/a", "--logs", "/scratch/b", "",
                         "runs/c", "--expression=a=/b"}),
              ElementsAre("/scratch/a", "/scratch/b", "/b"));
  EXPECT_EQ(FoldersIn(std::vector<std::string>(20, "/a")).size(), 8u);
}

TEST_F(EventFolderTest, AThreadWatchesIt) {
  EventWatch watch(OfScript(), {.read = absl::Milliseconds(10), .scan = absl::Milliseconds(10)});
  Write(Path(kScript), Record(1, 1));
  std::vector<MetricPoint> seen;
  ASSERT_TRUE(Eventually([&] {
    for (MetricPoint& point : watch.Take()) seen.push_back(std::move(point));
    return !seen.empty();
  }));
  EXPECT_THAT(Steps(seen), ElementsAre(1));
  Write(Path(kScript), Record(2, 1));
  Write(Path(kScript, "late"), Record(3, 1));
  seen = watch.Finish(absl::Minutes(1));
  for (MetricPoint& point : watch.Take()) seen.push_back(std::move(point));
  EXPECT_THAT(Steps(seen), ::testing::UnorderedElementsAre(2, 3)) << "nothing is left behind";
}

}  // namespace
}  // namespace muster::exec
