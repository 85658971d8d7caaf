// Folders of checkpoints: placeholders, and one job a folder.
#include "coordinator/core/job_paths.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/world_test.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::core {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

JobSpec SpecAt(const std::string& name, const std::string& path) {
  JobSpec spec = Spec(name);
  spec.mutable_train()->mutable_checkpoint()->set_path(path);
  return spec;
}

std::string PathOf(World& w, const JobId& id) { return w.Get(id).spec().train().checkpoint().path(); }

absl::Status SubmitStatus(World& w, const JobSpec& spec, const std::string& request) {
  return w.Do(SubmitJob{request, "me", spec, request}).status;
}

TEST(JobPaths, NormalizedOnesAreEqualForOneFolder) {
  for (const auto& [path, normalized] :
       std::vector<std::pair<std::string, std::string>>{{"/runs/a", "/runs/a"},
                                                        {"/runs/a/", "/runs/a"},
                                                        {"//runs/./a//.", "/runs/a"},
                                                        {"/jobs/../runs/b/../a", "/runs/a"},
                                                        {"/../../runs/a", "/runs/a"},
                                                        {"/runs/..a/...", "/runs/..a/..."},
                                                        {"/", "/"},
                                                        {"/a/..", "/"}}) {
    EXPECT_EQ(NormalizedPath(path), normalized) << path;
  }
}

TEST(JobPaths, PlaceholdersAreExpandedWhereTheJobGetsItsId) {
  World w;
  JobSpec spec = SpecAt("a", "/runs/{name}/x-{job}-{job}");
  spec.mutable_train()->mutable_checkpoint()->set_resume_from("/runs/{name}/before");
  spec.mutable_train()->mutable_data()->set_tokens("/data/{name}.bin");
  const JobId id = w.Submit(spec);
  ASSERT_EQ(id.value(), "a-s1");
  EXPECT_EQ(PathOf(w, id), "/runs/a/x-a-s1-a-s1");
  EXPECT_EQ(w.Get(id).spec().train().checkpoint().resume_from(), "/runs/a/before");
  EXPECT_EQ(w.Get(id).spec().train().data().tokens(), "/data/{name}.bin") << "as it is written";
}

TEST(JobPaths, ARetriedRequestIsTheSameJobThoughItsPathWasExpanded) {
  World w;
  const JobSpec spec = SpecAt("a", "/runs/{job}");
  const Outcome first = w.Do(SubmitJob{"r", "me", spec, "aaaa"});
  const Outcome again = w.Do(SubmitJob{"r", "me", spec, "bbbb"});
  ASSERT_TRUE(again.status.ok()) << again.status;
  EXPECT_EQ(again.job, first.job);
  EXPECT_EQ(w.Do(SubmitJob{"r", "me", SpecAt("a", "/other/{job}"), "cccc"}).status.code(),
            absl::StatusCode::kAlreadyExists);
}

TEST(JobPaths, TheSameSpecTwiceIsTwoFolders) {
  World w;
  const JobId one = w.Submit(SpecAt("a", "/runs/{job}")), two = w.Submit(SpecAt("a", "/runs/{job}"));
  EXPECT_NE(PathOf(w, one), PathOf(w, two));
  // {name} is no folder of the job's own.
  EXPECT_TRUE(SubmitStatus(w, SpecAt("a", "/named/{name}"), "q1").ok());
  EXPECT_FALSE(SubmitStatus(w, SpecAt("a", "/named/{name}"), "q2").ok());
  EXPECT_TRUE(SubmitStatus(w, SpecAt("b", "/named/{name}"), "q3").ok());
  // Jobs without checkpoints have nothing to share.
  EXPECT_TRUE(SubmitStatus(w, SpecAt("a", ""), "q4").ok());
  EXPECT_TRUE(SubmitStatus(w, SpecAt("a", ""), "q5").ok());
}

TEST(JobPaths, AFolderOfAnotherJobIsRefusedHoweverItIsWritten) {
  World w;
  const JobId one = w.Submit(SpecAt("one", "/runs/a"));
  int request = 0;
  for (const char* path : {"/runs/a", "/runs/a/", "/runs/./a", "//runs//a", "/runs/b/../a"}) {
    const Outcome refused = w.Do(SubmitJob{absl::StrCat("x", ++request), "me", SpecAt("two", path), "zzzz"});
    EXPECT_EQ(refused.status.code(), absl::StatusCode::kFailedPrecondition) << path;
    EXPECT_THAT(
        std::string(refused.status.message()),
        AllOf(HasSubstr(absl::StrCat("checkpoint.path ", path, " belongs to job \"one\" (", one.value(), ", queued)")),
              HasSubstr("{job}"), Not(HasSubstr("muster delete"))));
  }
  EXPECT_TRUE(SubmitStatus(w, SpecAt("two", "/runs/a/b"), "y1").ok()) << "below it nothing is in the way";
  EXPECT_TRUE(SubmitStatus(w, SpecAt("two", "/runs"), "y2").ok());
  EXPECT_FALSE(SubmitStatus(w, SpecAt("two", absl::StrCat("/runs/{job}/../a")), "y3").ok());
}

// coordinator/spec refuses what is wrong without the id.
TEST(JobPaths, AnIdThatIsTheNameOfACheckpointIsRefused) {
  World w;
  const JobSpec spec = SpecAt("step-0000015000", "/runs/x/{job}/in");
  const absl::Status refused = w.Do(SubmitJob{"q1", "me", spec, "g123"}).status;
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(
      refused.message(),
      "checkpoint.path /runs/x/step-0000015000-g123/in is in step-0000015000-g123, and only a checkpoint has such "
      "a name: name a folder outside of checkpoints");
  EXPECT_TRUE(w.Do(SubmitJob{"q2", "me", spec, "g12x"}).status.ok());
}

TEST(JobPaths, AnEndedJobKeepsItsFolderUntilItIsDeleted) {
  World w;
  w.Do(NodeConnected{Hello("n", 1)});
  const JobId one = w.Submit(SpecAt("one", "/runs/a"));
  w.Report(one, RANK_STATE_RUNNING);
  ASSERT_TRUE(w.Checkpoint(one, 10).status.ok());
  ASSERT_TRUE(w.Do(CancelJob{one}).status.ok());
  w.Report(one, RANK_STATE_EXITED, RankExit::STOPPED);
  const absl::Status refused = SubmitStatus(w, SpecAt("one", "/runs/a"), "r");
  EXPECT_EQ(refused.message(),
            "checkpoint.path /runs/a belongs to job \"one\" (one-s1, cancelled): choose another path, or put {job} in "
            "it for a folder per job; to use the folder again, forget that job (muster delete one-s1) and move or "
            "remove its checkpoints");
  w.Restart();
  EXPECT_EQ(SubmitStatus(w, SpecAt("two", "/runs/a"), "r").message(), refused.message()) << "also after a restart";
  ASSERT_TRUE(w.Do(DeleteJob{one}).status.ok());
  EXPECT_TRUE(SubmitStatus(w, SpecAt("two", "/runs/a"), "r").ok());
  EXPECT_FALSE(SubmitStatus(w, SpecAt("three", "/runs/a"), "q3").ok());
}

// Its path was a link to another job's folder, for example: its worker refused it, and the folder is not its own.
TEST(JobPaths, AJobThatSavedNothingAtItsPathIsNotSaidToOwnTheFolder) {
  World w;
  w.Do(NodeConnected{Hello("n", 1)});
  const JobId one = w.Submit(SpecAt("one", "/runs/alias"));
  w.Report(one, RANK_STATE_EXITED, RankExit::REFUSED);
  ASSERT_EQ(w.State(one), JOB_STATE_FAILED);
  EXPECT_EQ(
      SubmitStatus(w, SpecAt("two", "/runs/alias/"), "r").message(),
      "checkpoint.path /runs/alias/ is the path of job \"one\" (one-s1, failed), which saved no checkpoint there: "
      "choose another path, or put {job} in it for a folder per job; to use the path again, delete that job "
      "(muster delete one-s1), and if the folder exists, read /runs/alias/owner.json first: if it names one-s1, "
      "move or remove the folder; if it names another job, the folder is that job's, so choose another path");
  ASSERT_TRUE(w.Do(DeleteJob{one}).status.ok());
  EXPECT_TRUE(SubmitStatus(w, SpecAt("two", "/runs/alias"), "r").ok());
}

// An older Muster let jobs share a folder: its store is read, each of them keeps it, and no other job gets it.
TEST(JobPaths, AStoreOfJobsThatShareAFolderIsRead) {
  World w;
  const JobId one = w.Submit(SpecAt("one", "/runs/a")), two = w.Submit(SpecAt("two", "/runs/b"));
  Job shared = w.Get(two);
  shared.mutable_spec()->mutable_train()->mutable_checkpoint()->set_path("/runs/a/");
  w.rows["job/" + two.value()] = shared.SerializeAsString();
  w.Restart();
  for (const JobId& id : {one, two}) {
    EXPECT_FALSE(SubmitStatus(w, SpecAt("three", "/runs/a"), "r").ok());
    ASSERT_TRUE(w.Do(CancelJob{id}).status.ok());
    ASSERT_TRUE(w.Do(DeleteJob{id}).status.ok());
  }
  EXPECT_TRUE(SubmitStatus(w, SpecAt("three", "/runs/a"), "r").ok());
}

TEST(JobPaths, APlanSaysWhatSubmitWould) {
  World w;
  w.Submit(SpecAt("one", "/runs/one"));
  EXPECT_THAT(w.core->FolderConflict(SpecAt("two", "/runs/one")), HasSubstr("belongs to job \"one\""));
  EXPECT_THAT(w.core->FolderConflict(SpecAt("one", "/runs/{name}")), HasSubstr("belongs to job \"one\""));
  EXPECT_EQ(w.core->FolderConflict(SpecAt("two", "/runs/{name}")), "");
  EXPECT_EQ(w.core->FolderConflict(SpecAt("two", "/runs/{job}")), "");
  EXPECT_EQ(w.core->FolderConflict(SpecAt("two", "")), "");
}

}  // namespace
}  // namespace muster::core
