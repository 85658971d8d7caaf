#include "worker/agent/job_paths.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "testing/temporary_folder.h"

namespace muster::agent {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class JobPaths : public testing::Test {
 protected:
  JobPaths() {
    for (const char* folder : {"data", "runs", "state/trust", "elsewhere"}) fs::create_directories(At(folder));
    rules_ = {.data_roots = {At("data")}, .checkpoint_roots = {At("runs"), At("more")}, .own = {At("state")}};
  }
  std::string At(const std::string& name) const { return folder_.path() + "/" + name; }
  std::string Checkpoint(const std::string& path) {
    Train train;
    train.mutable_checkpoint()->set_path(path);
    return std::string(CheckPaths(train, rules_).message());
  }
  std::string Tokens(const std::string& path) {
    Train train;
    train.mutable_data()->set_tokens(path);
    return std::string(CheckPaths(train, rules_).message());
  }
  TemporaryFolder folder_;
  PathRules rules_;
};

TEST_F(JobPaths, LieBelowTheirRoots) {
  EXPECT_EQ(Checkpoint(At("runs/a/b")), "") << "it need not be there yet";
  EXPECT_EQ(Checkpoint(At("more/a")), "") << "nor need the root";
  EXPECT_EQ(Tokens(At("data/train.bin")), "");
  EXPECT_THAT(Checkpoint(At("elsewhere/a")), HasSubstr("checkpoint.path: " + At("elsewhere/a") + " is not below "));
  EXPECT_THAT(Checkpoint(At("elsewhere/a")), HasSubstr("(--checkpoint-roots)"));
  EXPECT_THAT(Checkpoint(At("data/a")), HasSubstr("is not below"));
  EXPECT_THAT(Tokens(At("runs/a")), HasSubstr("data.tokens: "));
  EXPECT_THAT(Checkpoint(At("runs-of-others")), HasSubstr("is not below")) << "not only the same beginning";
  EXPECT_THAT(Checkpoint(At("runs/../elsewhere")), HasSubstr("is not below"));
}

TEST_F(JobPaths, LinksCountAsWhatTheyPointTo) {
  fs::create_directory_symlink(At("elsewhere"), At("runs/link"));
  EXPECT_THAT(Checkpoint(At("runs/link/a")), HasSubstr("(" + At("elsewhere/a") + ") is not below"));
  fs::create_directory_symlink(At("runs"), At("elsewhere/back"));
  EXPECT_EQ(Checkpoint(At("elsewhere/back/a")), "");
}

TEST_F(JobPaths, TheDaemonsOwnFoldersAreForNoJob) {
  rules_.data_roots.clear();
  rules_.checkpoint_roots.clear();
  EXPECT_EQ(Checkpoint("/anywhere"), "");
  for (const char* path : {"state", "state/trust", "state/new", "runs/../state/x"}) {
    EXPECT_THAT(Checkpoint(At(path)), HasSubstr("a folder of the worker daemon itself")) << path;
    EXPECT_THAT(Tokens(At(path)), HasSubstr("a folder of the worker daemon itself")) << path;
  }
  EXPECT_THAT(Checkpoint(folder_.path()), HasSubstr("is, or holds,")) << "around it";
  EXPECT_EQ(Checkpoint(At("states")), "");
}

TEST_F(JobPaths, NoWayLeadsOutOfARoot) {
  fs::create_directories(At("runs/mine"));
  fs::create_symlink("mine", At("runs/stays"));
  fs::create_symlink(At("runs/mine"), At("runs/absolute"));
  EXPECT_EQ(Checkpoint(At("runs/stays/a")), "");
  EXPECT_EQ(Checkpoint(At("runs/absolute/a")), "");
  fs::create_symlink("../elsewhere", At("runs/leaves"));
  fs::create_symlink("/proc/self/root/tmp", At("runs/magic"));
  fs::create_symlink(At("elsewhere/later"), At("runs/later"));
  EXPECT_THAT(Checkpoint(At("runs/leaves/a")), HasSubstr("is not below"));
  EXPECT_THAT(Checkpoint(At("runs/magic/a")), HasSubstr("(--checkpoint-roots)"));
  EXPECT_THAT(Checkpoint(At("runs/later/a")), HasSubstr("is a symbolic link to something that is not there"));
  EXPECT_THAT(Checkpoint(At("runs/new/../../elsewhere/a")), HasSubstr("is not below"));
}

TEST_F(JobPaths, NoRootHoldsADaemonsFolder) {
  EXPECT_TRUE(CheckRules(rules_).ok());
  rules_.own.push_back(At("runs/state"));
  EXPECT_THAT(std::string(CheckRules(rules_).message()),
              HasSubstr("--checkpoint-roots: " + At("runs") + " holds a folder of this daemon, " + At("runs/state")));
  fs::create_directory_symlink(At("state"), At("alias"));
  rules_ = {.data_roots = {At("alias")}, .checkpoint_roots = {}, .own = {At("state/trust")}};
  EXPECT_THAT(std::string(CheckRules(rules_).message()), HasSubstr("--data-roots: "));
}

// Two workers on one machine, or a worker beside its coordinator: each knows only its own folders.
TEST_F(JobPaths, NoDaemonsFolderIsForAJob) {
  rules_.data_roots.clear();
  for (const char* name : {"node_id", "trainer.sock", "state.db"}) {
    const std::string daemon = std::string("runs/of-") + name;
    fs::create_directories(At(daemon + "/trust"));
    std::ofstream(At(daemon + "/lock")) << "1";
    std::ofstream(At(daemon + "/" + name)) << "";
    for (const char* below : {"", "/trust", "/new/a"}) {
      EXPECT_THAT(Checkpoint(At(daemon + below)), HasSubstr("lies in the folder of another daemon, " + At(daemon)));
    }
    EXPECT_THAT(Tokens(At(daemon + "/" + name)), HasSubstr("lies in the folder of another daemon"));
    fs::remove(At(daemon + "/" + name));
    fs::remove(At(daemon + "/trust"));
    EXPECT_EQ(Checkpoint(At(daemon + "/a")), "") << "a lock alone is no daemon's";
  }
}

}  // namespace
}  // namespace muster::agent
