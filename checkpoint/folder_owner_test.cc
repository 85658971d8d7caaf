// A folder of checkpoints belongs to one job: who gets it, who is refused, and what the others leave alone.
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "checkpoint/adopt.h"
#include "checkpoint/checkpoint_fixture_test.h"
#include "common/failpoint.h"

namespace muster::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class OwnerTest : public CheckpointTest {
 protected:
  void TearDown() override { ASSERT_TRUE(failpoint::Arm("").ok()); }

  absl::Status WriteAs(const std::string& job, uint64_t step) {
    Fill(step);
    return Write(path_, MakeManifest(step, 1, job), Parts()).status();
  }
  void ExpectRefused(const absl::Status& status, const std::string& owner) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(absl::StrCat("belongs to job ", owner)), HasSubstr("{job}"), HasSubstr("resume_from")));
  }
  // As an older Muster left it, whose jobs shared folders: without an owner.
  void MixSteps() {
    for (const auto& [job, step] : {std::pair{"job-1", 10}, {"job-2", 15}, {"job-1", 20}, {"job-2", 30}}) {
      fs::remove(path_ + "/" + kOwnerFile);
      const std::string aside = absl::StrCat(path_, "-aside");
      fs::create_directories(aside);
      for (const std::string& name : Names()) fs::rename(path_ + "/" + name, aside + "/" + name);
      ASSERT_TRUE(WriteAs(job, step).ok());
      for (const auto& entry : fs::directory_iterator(aside)) {
        fs::rename(entry.path(), path_ / entry.path().filename());
      }
      fs::remove_all(aside);
    }
    fs::remove(path_ + "/" + kOwnerFile);
  }
};

TEST_F(OwnerTest, TheFirstClaimStaysAndOthersSeeTheOwner) {
  EXPECT_EQ(OwnerOf(path_).value().job(), "");
  ASSERT_TRUE(Claim(path_, {"job-1"}).ok());
  EXPECT_EQ(OwnerOf(path_).value().job(), "job-1");
  EXPECT_THAT(Slurp(path_ + "/owner.json"), HasSubstr("\"job\": \"job-1\"")) << "users read it too";
  EXPECT_THAT(Names(), IsEmpty()) << "nothing else is left of it";
  // At every start of a generation, whichever rank's.
  EXPECT_TRUE(Claim(path_, {"job-1"}).ok());
  EXPECT_TRUE(CheckFolder(path_, {"job-1"}).ok());
  ExpectRefused(Claim(path_, {"job-2"}), "job-1");
  ExpectRefused(CheckFolder(path_, {"job-2"}), "job-1");
  EXPECT_EQ(OwnerOf(path_).value().job(), "job-1");
}

TEST_F(OwnerTest, AFolderIsMadeAndTriedOut) {
  EXPECT_TRUE(Claim(path_ + "/new/folder", {"job-1"}).ok());
  EXPECT_TRUE(CheckFolder(path_ + "/other/folder", {"job-1"}).ok());
  EXPECT_EQ(OwnerOf(path_ + "/other/folder").value().job(), "") << "rank 0 alone makes it the job's";
  Dump(path_ + "/file", "");
  EXPECT_THAT(std::string(Claim(path_ + "/file", {"job-1"}).message()), HasSubstr("checkpoint.path"));
  fs::create_symlink("nowhere", path_ + "/link");
  for (const absl::Status& status : {Claim(path_ + "/link", {"job-1"}), CheckFolder(path_ + "/link/a", {"job-1"})}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(status.message(),
              absl::StrCat("checkpoint.path ", path_,
                           "/link is a broken symbolic link (to nowhere): ", "create what it names, or remove it"));
  }
  ASSERT_TRUE(WriteStep(1).ok());
  EXPECT_THAT(std::string(Claim(Directory(1), {"job-1"}).message()), HasSubstr("is itself a checkpoint"));
}

// A folder in the place of a checkpoint to come would fail the job that writes it.
TEST_F(OwnerTest, NoFolderIsMadeInThePlaceOfACheckpoint) {
  ASSERT_TRUE(Claim(path_, {"job-1"}).ok());
  const StepName later{15000, 1};
  fs::create_directory_symlink(path_, path_ + "-link");
  for (const std::string& path :
       {absl::StrCat(Directory(15000), "/in"), Directory(15000), absl::StrCat(path_, "/", later.Staging(), "/a/b"),
        absl::StrCat(path_, "/", later.Removing()), absl::StrCat(path_, "-link/", later.Directory(), "/in"),
        absl::StrCat(Directory(15000), "/../in")}) {
    for (const absl::Status& status : {Claim(path, {"job-2"}), CheckFolder(path, {"job-2"})}) {
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << path << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(", and only a checkpoint has such a name: ")) << path;
    }
  }
  for (const std::string file : {"owner.json.previous", ".owner.json.7"}) {
    EXPECT_EQ(Claim(absl::StrCat(path_, "-link/", file, "/in"), {"job-2"}).message(),
              absl::StrCat("checkpoint.path ", path_, "-link/", file, "/in is in ", file,
                           ", and only the file that says which job owns a folder of checkpoints has such a name: "
                           "name another folder"));
  }
  EXPECT_THAT(Names(), IsEmpty()) << "nothing was made";
  EXPECT_TRUE(WriteAs("job-1", 15000).ok());
  fs::remove(path_ + "-link");
  fs::create_directory_symlink(Directory(15000), path_ + "-link");
  EXPECT_THAT(std::string(Claim(path_ + "-link/in", {"job-2"}).message()),
              AllOf(HasSubstr("-link/in (through a symbolic link: "),
                    HasSubstr("/step-0000015000-g1/in) is in step-0000015000-g1, and only a checkpoint")));
  fs::remove(path_ + "-link");
  EXPECT_TRUE(Claim(path_ + "/step-15000-g1/in", {"job-2"}).ok()) << "no name of a checkpoint";
}

// The failure that lost users' work: with a checkpoint.path of two jobs, each removed what the other had published.
TEST_F(OwnerTest, NoOtherJobWritesRemovesOrCleansUpThere) {
  for (const uint64_t step : {1, 2, 3, 4}) ASSERT_TRUE(WriteAs("job-1", step).ok());
  const StepName under_way{5, 1};
  ASSERT_TRUE(Begin(path_, {"job-1"}, under_way).ok());
  const std::vector<std::string> before = Names();
  ExpectRefused(WriteAs("job-2", 7), "job-1");
  ExpectRefused(Begin(path_, {"job-2"}, under_way), "job-1");
  ExpectRefused(Retain(path_, {"job-2"}, 9, {"step-0000000007-g1"}).status(), "job-1");
  Abandon(path_, {"job-2"}, under_way);
  ExpectRefused(WriteAs("", 0), "job-1");
  EXPECT_EQ(Names(), before);
  for (const uint64_t step : {1, 2, 3, 4}) ExpectWhole(step);
  // The owner goes on.
  ASSERT_TRUE(WriteShard(path_, under_way, 0, Parts()).ok());
  ASSERT_TRUE(Finish(path_, MakeManifest(5)).ok());
  EXPECT_THAT(Retain(path_, {"job-1"}, 1, {"step-0000000005-g1"}).value(),
              ElementsAre("step-0000000004-g1", "step-0000000003-g1", "step-0000000002-g1", "step-0000000001-g1"));
}

TEST_F(OwnerTest, AFolderThatOlderJobsSharedHasNoOwner) {
  ASSERT_NO_FATAL_FAILURE(MixSteps());
  for (const char* job : {"job-1", "job-2", "job-3"}) {
    const absl::Status status = Claim(path_, {job});
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("holds checkpoints of job job-"));
  }
  EXPECT_THAT(Retain(path_, {"job-1"}, 1, {"step-0000000020-g1"}).value(), IsEmpty()) << "without an owner";
  // Somebody gave it to job-1 by hand.
  Dump(path_ + "/owner.json", R"({"format": 1, "job": "job-1"})");
  fs::remove(Directory(30) + "/" + kManifestFile);  // does not say whose it is
  ASSERT_TRUE(WriteAs("job-1", 40).ok());
  EXPECT_THAT(Retain(path_, {"job-1"}, 1, {"step-0000000040-g1"}).value(),
              ElementsAre("step-0000000020-g1", "step-0000000010-g1"));
  EXPECT_THAT(Names(), ElementsAre("step-0000000015-g1", "step-0000000030-g1", "step-0000000040-g1"));
}

TEST_F(OwnerTest, OnesOwnOlderFolderIsTakenAnImportedOneIsNot) {
  ASSERT_TRUE(WriteStep(1).ok());
  fs::remove(path_ + "/owner.json");
  EXPECT_THAT(std::string(Claim(path_, {"job-2"}).message()), HasSubstr("holds checkpoints of job job-1"));
  EXPECT_TRUE(Claim(path_, {"job-1"}).ok());
  fs::remove_all(path_);
  ASSERT_TRUE(WriteAs("", 0).ok());
  EXPECT_EQ(OwnerOf(path_).value().job(), "") << "an import is no job's";
  EXPECT_THAT(std::string(Claim(path_, {"job-1"}).message()), HasSubstr("holds imported checkpoints"));
}

TEST_F(OwnerTest, OtherNamesOfAFolderAreTheSameFolder) {
  ASSERT_TRUE(Claim(path_, {"job-1"}).ok());
  const TemporaryFolder elsewhere;
  const std::string alias = elsewhere.path() + "/alias";
  fs::create_directory_symlink(path_, alias);
  const std::string real = fs::canonical(std::string(path_)).native();
  const absl::Status refused = Claim(alias, {"job-2"});
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(
      refused.message(),
      absl::StrCat("checkpoint.path ", alias, " (through a symbolic link: ", real, ") belongs to job job-1 (", alias,
                   "/owner.json), not to job-2: name a folder outside of ", real,
                   " ({name} or {job} in checkpoint.path makes one per job; checkpoint.resume_from continues from "
                   "another job's checkpoint), or, if the other job is over, move or remove ",
                   real,
                   "; to let the next job that uses the folder go on from its checkpoints: muster checkpoint "
                   "adopt ",
                   alias));
  EXPECT_EQ(Claim(alias, {"job-2"}), refused) << "nothing changed";
  ExpectRefused(Claim(path_ + "/../" + fs::path(path_).filename().string(), {"job-2"}), "job-1");
  EXPECT_TRUE(Claim(alias, {"job-1"}).ok());
}

// The place is refused at once. As a broken link, it would be refused again after its target was created.
TEST_F(OwnerTest, ALinkIntoACheckpointIsRefusedWhetherItsTargetIsThere) {
  ASSERT_TRUE(Claim(path_, {"job-1"}).ok());
  const TemporaryFolder elsewhere;
  const std::string target = fs::canonical(std::string(path_)).native() + "/step-0000000020-g1/mine";
  fs::create_symlink(target, elsewhere.path() + "/second");
  fs::create_symlink("second", elsewhere.path() + "/first");
  for (const bool made : {false, true}) {
    if (made) fs::create_directories(target);
    EXPECT_EQ(Claim(elsewhere.path() + "/first/x", {"job-2"}),
              absl::FailedPreconditionError(absl::StrCat(
                  "checkpoint.path ", elsewhere.path(), "/first/x (through a symbolic link: ", target,
                  "/x) is in step-0000000020-g1, and only a checkpoint has such a name: name a folder outside of "
                  "checkpoints")))
        << made;
  }
}

TEST_F(OwnerTest, AnUnreadableOwnerIsNotTakenOver) {
  for (const char* text : {"", "{}", "{\"job\": ", "\xff\xfe"}) {
    Dump(path_ + "/owner.json", text);
    for (const char* job : {"job-1", "job-2"}) {
      const absl::Status status = Claim(path_, {job});
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("owner.json")) << text;
    }
    EXPECT_EQ(Slurp(path_ + "/owner.json"), text);
  }
  // A newer Muster may know more about an owner.
  Dump(path_ + "/owner.json", R"({"format": 2, "job": "job-1", "coordinator": "x"})");
  EXPECT_TRUE(Claim(path_, {"job-1"}).ok());
  ExpectRefused(Claim(path_, {"job-2"}), "job-1");
}

// The folder changes hands while a checkpoint is written, by somebody's hand.
TEST_F(OwnerTest, WhoLostTheFolderPublishesNothingAndLeavesItAlone) {
  ASSERT_TRUE(WriteStep(1).ok());
  const StepName name{2, 1};
  ASSERT_TRUE(Begin(path_, {"job-1"}, name).ok());
  ASSERT_TRUE(WriteShard(path_, name, 0, Parts()).ok());
  Dump(path_ + "/owner.json", R"({"format": 1, "job": "job-2"})");
  ExpectRefused(Finish(path_, MakeManifest(2)).status(), "job-2");
  Abandon(path_, {"job-1"}, name);
  EXPECT_THAT(Names(), ElementsAre(name.Staging(), "step-0000000001-g1"));
  ExpectRefused(Retain(path_, {"job-1"}, 2, {}).status(), "job-2");
  // Whoever removes the folder, or the file, of a job that runs takes nothing from it.
  fs::remove_all(path_);
  ASSERT_TRUE(WriteStep(3).ok());
  EXPECT_EQ(OwnerOf(path_).value().job(), "job-1");
}

TEST_F(OwnerTest, OfManyThreadsThatClaimAtOnceOneWins) {
  constexpr int kRounds = 50, kJobs = 8;
  for (int round = 0; round < kRounds; ++round) {
    const std::string path = absl::StrCat(path_, "/", round);
    std::vector<absl::Status> ends(kJobs);
    std::vector<std::thread> threads;
    for (int i = 0; i < kJobs; ++i) {
      threads.emplace_back([&, i] { ends[i] = Claim(path, {absl::StrCat("job-", i)}); });
    }
    for (std::thread& thread : threads) thread.join();
    const std::string owner = OwnerOf(path).value().job();
    for (int i = 0; i < kJobs; ++i) {
      if (owner == absl::StrCat("job-", i)) {
        EXPECT_TRUE(ends[i].ok()) << ends[i];
      } else {
        ExpectRefused(ends[i], owner);
      }
    }
  }
}

TEST_F(OwnerTest, OfManyProcessesThatClaimAtOnceOneWins) {
  constexpr int kRounds = 10, kJobs = 6;
  for (int round = 0; round < kRounds; ++round) {
    const std::string path = absl::StrCat(path_, "/", round), go = absl::StrCat(path_, "/go-", round);
    std::vector<pid_t> claimants;
    for (int i = 0; i < kJobs; ++i) {
      claimants.push_back(fork());
      if (claimants.back() != 0) continue;
      while (access(go.c_str(), F_OK) != 0) usleep(100);
      const absl::Status status = Claim(path, {absl::StrCat("job-", i)});
      _exit(status.ok() ? 0 : absl::IsFailedPrecondition(status) ? 1 : 2);
    }
    Dump(go, "");
    std::vector<int> codes;
    for (const pid_t claimant : claimants) {
      int status = 0;
      ASSERT_EQ(waitpid(claimant, &status, 0), claimant);
      codes.push_back(WEXITSTATUS(status));
    }
    EXPECT_EQ(std::count(codes.begin(), codes.end(), 0), 1);
    EXPECT_EQ(std::count(codes.begin(), codes.end(), 1), kJobs - 1);
    const std::string owner = OwnerOf(path).value().job();
    ASSERT_EQ(owner.size(), 5u);
    EXPECT_EQ(codes[owner[4] - '0'], 0);
  }
}

TEST_F(OwnerTest, KilledOrFailedInAClaimTheNextOneFindsNothingHalf) {
  ASSERT_TRUE(failpoint::Arm("none=kill").ok());
  ASSERT_TRUE(Claim(path_ + "/first", {"job-1"}).ok());
  std::vector<std::string> places;
  for (const auto& [name, count] : failpoint::Passed()) places.push_back(name);
  ASSERT_EQ(places.size(), 6u) << "create, write, sync, rename, and the folder's sync after each";
  for (const std::string& place : places) {
    SCOPED_TRACE(place);
    const std::string path = absl::StrCat(path_, "/", place);
    ASSERT_TRUE(failpoint::Arm(place + "=ENOSPC").ok());
    EXPECT_EQ(Claim(path, {"job-1"}).code(), absl::StatusCode::kResourceExhausted);
    ASSERT_TRUE(failpoint::Arm("").ok());
    const bool linked = place == "checkpoint.owner.folder" || place == "checkpoint.owner.sync_folder";
    EXPECT_EQ(OwnerOf(path).value().job(), linked ? "job-1" : "");
    fs::remove_all(path);

    const pid_t child = fork();
    if (child == 0) {
      if (!failpoint::Arm(place + "=kill").ok()) _exit(1);
      _exit(Claim(path, {"job-1"}).ok() ? 2 : 3);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    const std::string next = linked ? "job-1" : "job-2";
    ASSERT_TRUE(Claim(path, {next}).ok());
    EXPECT_EQ(OwnerOf(path).value().job(), next);
    // What the killed one left goes with the first retention.
    ASSERT_TRUE(Retain(path, {next}, 1, {}).ok());
    for (const auto& entry : fs::directory_iterator(path)) EXPECT_EQ(entry.path().filename(), kOwnerFile);
  }
}

// Two coordinators whose stores know a job of the same id: a copy of a store that was given another id, for example.
TEST_F(OwnerTest, AnotherStoresJobOfTheSameIdIsRefused) {
  const Holder here{"job-1", "aaaaaaaa11111111"}, there{"job-1", "bbbbbbbb22222222"};
  ASSERT_TRUE(Claim(path_, here).ok());
  EXPECT_THAT(Slurp(path_ + "/owner.json"), HasSubstr("\"store_id\": \"aaaaaaaa11111111\""));
  ASSERT_TRUE(Begin(path_, here, {1, 1}).ok());
  ASSERT_TRUE(WriteShard(path_, {1, 1}, 0, Parts()).ok());
  const absl::Status refused = Claim(path_, there);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("belongs to job job-1 of store aaaaaaaa "), HasSubstr("has store bbbbbbbb"),
                    HasSubstr("muster checkpoint adopt " + std::string(path_)), Not(HasSubstr("11111111"))));
  EXPECT_EQ(CheckFolder(path_, there), refused);
  EXPECT_EQ(Begin(path_, there, {2, 1}), refused);
  EXPECT_EQ(Finish(path_, MakeManifest(1), there.store_id).status(), refused);
  EXPECT_EQ(Retain(path_, there, 9, {}).status(), refused);
  Abandon(path_, there, {1, 1});
  EXPECT_THAT(Names(), ElementsAre(StepName{1, 1}.Staging()));
  EXPECT_TRUE(Claim(path_, here).ok());
  EXPECT_TRUE(Claim(path_, {"job-1"}).ok()) << "of a coordinator of an older build";
  EXPECT_THAT(std::string(Claim(path_, {"job-2", "bbbbbbbb22222222"}).message()),
              AllOf(HasSubstr("belongs to job job-1 of store aaaaaaaa "), HasSubstr("not to job-2 of store bbbbbbbb")));
}

TEST_F(OwnerTest, AnOlderBuildsFolderIsItsJobsInWhicheverStoreFirst) {
  const std::string older = R"({"format": 1, "job": "job-1", "written_by": "muster 0.1.0"})";
  Dump(path_ + "/owner.json", older);
  EXPECT_TRUE(CheckFolder(path_, {"job-1", "a"}).ok());
  EXPECT_TRUE(Begin(path_, {"job-1", "a"}, {1, 1}).ok());
  EXPECT_TRUE(Claim(path_, {"job-1"}).ok());
  EXPECT_EQ(Slurp(path_ + "/owner.json"), older) << "nothing to add";
  ASSERT_TRUE(Claim(path_, {"job-1", "a"}).ok());
  EXPECT_EQ(OwnerOf(path_).value().store_id(), "a");
  EXPECT_FALSE(Claim(path_, {"job-1", "b"}).ok());
  ExpectRefused(Claim(path_, {"job-2", "a"}), "job-1");
}

TEST_F(OwnerTest, AnAdoptedFolderIsTheNextJobsOrTheNamedOnes) {
  ASSERT_TRUE(Claim(path_, {"job-1", "a"}).ok());
  EXPECT_EQ(LookForAdoption(path_).status().code(), absl::StatusCode::kNotFound) << "no checkpoint";
  EXPECT_EQ(LookForAdoption(path_ + "/none").status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(WriteAs("job-1", 10).ok());
  ASSERT_TRUE(WriteAs("job-1", 20).ok());
  EXPECT_FALSE(IsAdopted(path_));
  absl::StatusOr<Adoptable> found = LookForAdoption(path_);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->owner.job() + " " + found->owner.store_id(), "job-1 a");
  EXPECT_EQ(found->newest, "step-0000000020-g1");
  EXPECT_EQ(found->writer, "job-1");

  ASSERT_TRUE(Adopt(path_, *found, "").ok());
  EXPECT_TRUE(IsAdopted(path_));
  EXPECT_EQ(OwnerOf(path_).value().job(), "");
  EXPECT_EQ(Adopt(path_, *found, "job-3").code(), absl::StatusCode::kAborted) << "no longer as it was seen";
  ASSERT_TRUE(Claim(path_, {"job-2", "b"}).ok());
  ExpectRefused(Claim(path_, {"job-3", "b"}), "job-2");
  ExpectRefused(WriteAs("job-1", 30), "job-2");
  // The former owner's checkpoints are not the new one's to remove.
  ASSERT_TRUE(WriteAs("job-2", 30).ok());
  EXPECT_THAT(Retain(path_, {"job-2", "b"}, 2, {"step-0000000030-g1"}).value(), IsEmpty());

  found = LookForAdoption(path_);
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->owner.job() + " " + found->owner.store_id() + " " + found->writer, "job-2 b job-2");
  ASSERT_TRUE(Adopt(path_, *found, "job-1").ok());
  ExpectRefused(Claim(path_, {"job-2", "b"}), "job-1");
  ASSERT_TRUE(Claim(path_, {"job-1", "c"}).ok());
  EXPECT_EQ(OwnerOf(path_).value().store_id(), "c");

  // What is damaged stands in the way of what the new job writes: also where only its data is.
  for (const fs::directory_entry& file : fs::directory_iterator(Directory(30))) {
    if (file.path().extension() != ".safetensors") continue;
    std::fstream bytes(file.path(), std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekg(-1, std::ios::end);
    const auto last = static_cast<char>(bytes.peek());
    bytes.seekp(-1, std::ios::end);
    bytes.put(static_cast<char>(~last));
    ASSERT_TRUE(bytes.flush()) << file.path();
  }
  EXPECT_THAT(std::string(LookForAdoption(path_).status().message()), HasSubstr("move step-0000000030-g1 out of"));
  fs::resize_file(Directory(30) + "/" + kManifestFile, 10);
  EXPECT_THAT(std::string(LookForAdoption(path_).status().message()), HasSubstr("move step-0000000030-g1 out of"));
  fs::remove(path_ + "/owner.json");
  fs::remove(path_ + "/owner.json.previous");
  EXPECT_THAT(std::string(LookForAdoption(path_).status().message()), HasSubstr("belongs to no job"));
}

TEST_F(OwnerTest, KilledOrFailedInAnAdoptionItCanBeRepeated) {
  const auto make = [&](const std::string& path) { ASSERT_TRUE(Write(path, MakeManifest(10), Parts()).ok()); };
  for (const std::string job : {"", "job-2"}) {
    ASSERT_TRUE(failpoint::Arm("none=kill").ok());
    const std::string first = absl::StrCat(path_, "/first", job);
    make(first);
    const size_t before = failpoint::Passed().size();
    ASSERT_TRUE(Adopt(first, LookForAdoption(first).value(), job).ok());
    std::vector<std::string> places;
    for (const auto& [name, count] : failpoint::Passed()) {
      if (absl::StrContains(name, "adopt")) places.push_back(name);
    }
    ASSERT_GE(failpoint::Passed().size(), before + 7);
    for (const std::string& place : places) {
      SCOPED_TRACE(absl::StrCat(place, " ", job));
      const std::string path = absl::StrCat(path_, "/", place, job);
      ASSERT_TRUE(failpoint::Arm("").ok());
      make(path);
      const pid_t child = fork();
      if (child == 0) {
        const Adoptable found = LookForAdoption(path).value();
        if (!failpoint::Arm(place + "=kill").ok()) _exit(1);
        _exit(Adopt(path, found, job).ok() ? 2 : 3);
      }
      int status = 0;
      ASSERT_EQ(waitpid(child, &status, 0), child);
      if (!WIFSIGNALED(status)) continue;  // of the other way to adopt
      EXPECT_THAT(OwnerOf(path).value().job(), AnyOf("job-1", job));
      const absl::StatusOr<Adoptable> again = LookForAdoption(path);
      ASSERT_TRUE(again.ok()) << again.status();
      EXPECT_THAT(again->owner.job(), AnyOf("job-1", job));
      ASSERT_TRUE(Adopt(path, *again, job).ok());
      ASSERT_TRUE(Claim(path, {"job-2", "b"}).ok());
      ASSERT_TRUE(Retain(path, {"job-2", "b"}, 1, {}).ok());
      size_t left = 0;
      for (const auto& entry : fs::directory_iterator(path)) left += entry.path().filename().string()[0] == '.';
      EXPECT_EQ(left, 0u) << "temporaries";
    }
  }
}

}  // namespace
}  // namespace muster::checkpoint
