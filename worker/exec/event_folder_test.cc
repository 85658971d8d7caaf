#include "worker/exec/event_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

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
  static std::string ThisHost() {
    char name[256] = {};
    EXPECT_EQ(gethostname(name, sizeof name - 1), 0);
    return name;
  }
  // Of a writer with that pid, in a folder of the run's.
  std::string Path(pid_t pid, const std::string& run = "runs/a", const std::string& host = ThisHost()) const {
    fs::create_directories(folder_.path() + "/" + run);
    return absl::StrCat(folder_.path(), "/", run, "/events.out.tfevents.1795742897.", host, ".", pid, ".0");
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
  Write(Path(kScript, "runs/a", "other-host"), Record(6, 1));
  Write(Path(kScript, "runs/a", ThisHost() + ".1"), Record(7, 1));
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
  EXPECT_THAT(events.TakeWarning(), HasSubstr(": its checksum is wrong"));
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
  Write(absl::StrCat(elsewhere.path(), "/events.out.tfevents.1.", ThisHost(), ".", kScript, ".0"), Record(1, 1));
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

TEST(WriterIs, OfThisHostByItsWholeName) {
  const std::string name = "events.out.tfevents.1795742897.vm.example.org.4711.0";
  EXPECT_TRUE(WriterIs(name, "vm.example.org", {kScript}));
  EXPECT_TRUE(WriterIs(name + ".v2", "vm.example.org", {kScript})) << "TensorFlow's";
  EXPECT_FALSE(WriterIs(name, "vm.example.org", {4712}));
  EXPECT_FALSE(WriterIs(name, "vm", {kScript}));
  EXPECT_FALSE(WriterIs(name, "example.org", {kScript}));
  EXPECT_FALSE(WriterIs(name, "", {kScript}));
}

TEST_F(EventFolderTest, ALookIsBoundedAndTheFilesTakeTurns) {
  EventFolder events = OfScript();
  // Twice what one look reads, in events that are read: a text, whose step has no scalar.
  TensorBoardEvent text;
  text.set_step(1);
  text.mutable_summary()->add_value()->set_tag(std::string(1 << 19, 'x'));
  const std::string block = EventRecord(text.SerializeAsString());
  std::string many;
  while (many.size() < 2 * EventFolder::kBytesAtOnce) many += block;
  Write(Path(kScript, "a"), many + Record(1, 1) + Record(2, 1));
  Write(Path(kScript, "b"), Record(3, 1) + Record(4, 1));
  events.Scan();
  EXPECT_THAT(Steps(events.Read()), IsEmpty());
  EXPECT_TRUE(events.more());
  EXPECT_THAT(Steps(events.Read()), ElementsAre(3)) << "the other file comes first";
  std::vector<uint64_t> rest;
  do {
    for (const uint64_t step : Steps(events.Read(/*last=*/true))) rest.push_back(step);
  } while (events.more());
  EXPECT_THAT(rest, ::testing::UnorderedElementsAre(1, 2, 4));
}

TEST_F(EventFolderTest, AFloodOfStepsIsThinnedAsItIsRead) {
  EventFolder events = OfScript();
  std::string flood;
  for (int step = 1; step <= 50'000; ++step) flood += Record(step, 1);
  ASSERT_LT(flood.size(), EventFolder::kBytesAtOnce);
  Write(Path(kScript), flood);
  events.Scan();
  const std::vector<uint64_t> steps = Steps(events.Read(/*last=*/true));
  EXPECT_LE(steps.size(), 2 * EventFolder::kMostWaiting);
  EXPECT_GT(steps.size(), EventFolder::kMostWaiting / 2);
  EXPECT_LT(steps.front(), 1000u);
  EXPECT_EQ(steps.back(), 50'000u);
}

TEST_F(EventFolderTest, TheNumbersOfFilesAndEntriesAreBoundedAndSaidSo) {
  for (size_t i = 0; i < EventFolder::kMostFiles + 1; ++i) {
    Write(Path(kScript, absl::StrCat("runs/", i)), Record(static_cast<int64_t>(i), 1));
  }
  EventFolder events = OfScript();
  events.Scan();
  EXPECT_EQ(events.Read(true).size(), EventFolder::kMostFiles);
  EXPECT_THAT(events.TakeWarning(), HasSubstr("only 64 event files are read"));

  const TemporaryFolder crowded;
  const std::string folder = crowded.path() + "/a";
  fs::create_directories(folder + "/inner");
  Write(folder + "/file", "");
  for (int i = 0; i < EventFolder::kMostEntries; ++i)
    fs::create_hard_link(folder + "/file", absl::StrCat(folder, "/", i));
  fs::create_directories(crowded.path() + "/b/c/d");
  Write(crowded.path() + "/b/c/d/events.out.tfevents.1.vm", Record(1, 1));
  EventFolder bounded({crowded.path()}, nullptr);
  bounded.Scan();
  EXPECT_FALSE(bounded.has_files()) << "too deep: the nearest entries come first";
  EXPECT_THAT(bounded.TakeWarning(), HasSubstr("only the nearest 10000 entries"));
  bounded.Scan();
  EXPECT_EQ(bounded.TakeWarning(), "") << "once";
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
