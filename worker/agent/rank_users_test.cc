#include "worker/agent/rank_users.h"

#include <gtest/gtest.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "testing/temporary_folder.h"

namespace muster::agent {
namespace {

TEST(ParseUserMap, UsersOfTheSystemAndNumbers) {
  const auto users = ParseUserMap(
      "# who is who\n\nann  ann\nbob\t61001:61002,44,100 umask=027  # the bob of the lab\r\n"
      "cy 61003:61003\n");
  ASSERT_TRUE(users.ok()) << users.status();
  ASSERT_EQ(users->size(), 3u);
  EXPECT_EQ(users->at("ann").system, "ann");
  EXPECT_EQ(users->at("ann").ids.umask, 077u) << "private unless the line says otherwise";
  EXPECT_EQ(users->at("bob").ids, (rundir::User{61001, 61002, {44, 100}, 027}));
  EXPECT_EQ(users->at("cy").ids, (rundir::User{61003, 61003, {}, 077}));
}

TEST(ParseUserMap, ErrorsNameTheLineAndTheReason) {
  const std::pair<const char*, const char*> cases[] = {
      {"ann ann\nbob", "line 2: expected `owner user`"},
      {"ann ann 077", "line 1: expected `owner user`"},
      {"ann ann umask=888", "line 1: expected"},
      {"ann ann umask=7777", "line 1: expected"},
      {"\n\nann 61001", "line 3: \"61001\" is neither"},
      {"ann 61001:", "is neither"},
      {"ann 61001:61001,", "is neither"},
      {"ann 61001:x", "is neither"},
      {"ann -1:5", "is neither"},
      {"ann root", "line 1: no rank may run as root"},
      {"ann 0:5", "line 1: no rank may run as root (uid 0)"},
      {"ann 5:0", "line 1: no rank may have root's group (gid 0)"},
      {"ann 5:5,0", "line 1: no rank may have root's group (gid 0)"},
      {"ann 5:5\nann 6:6", "line 2: owner ann is there twice"},
  };
  for (const auto& [text, message] : cases) {
    const auto users = ParseUserMap(text);
    ASSERT_TRUE(absl::IsInvalidArgument(users.status())) << text;
    EXPECT_TRUE(absl::StrContains(users.status().message(), message)) << users.status();
  }
}

TEST(RankUsers, OffIsThisProcess) {
  const auto users = RankUsers::Make("off", "unix:/c.sock");
  ASSERT_TRUE(users.ok());
  EXPECT_FALSE(users->switches());
  EXPECT_EQ(users->Find("ann").value(), std::nullopt);
}

class RankUsersTest : public ::testing::Test {
 protected:
  RankUsers Make(const std::string& map, const std::string& coordinator = "head:7070") {
    auto users = RankUsers::Make(folder_.Write("users", map), coordinator);
    EXPECT_TRUE(users.ok()) << users.status();
    return users.value_or(RankUsers());
  }
  static void ExpectRefusal(const absl::StatusOr<std::optional<RankUser>>& user, const std::string& why) {
    ASSERT_TRUE(absl::IsPermissionDenied(user.status())) << user.status();
    EXPECT_TRUE(absl::StrContains(user.status().message(), why)) << user.status();
    EXPECT_TRUE(absl::StrContains(user.status().message(), "--run-as-owner")) << user.status();
  }
  TemporaryFolder folder_;
};

TEST_F(RankUsersTest, EveryRankHasAUserOrIsRefused) {
  const RankUsers users = Make("ann 61001:61001,44\nnone no-such-user-here\n");
  EXPECT_TRUE(users.switches());
  const auto ann = users.Find("ann");
  ASSERT_TRUE(ann.ok() && ann->has_value()) << ann.status();
  EXPECT_EQ((*ann)->ids, (rundir::User{61001, 61001, {44}, 077}));
  ExpectRefusal(users.Find("bob"), "has no line for bob");
  ExpectRefusal(users.Find("none"), "this machine has no user no-such-user-here");
  ExpectRefusal(users.Find(""), "does not say who submitted the job");
}

TEST_F(RankUsersTest, AChangeOfTheFileNeedsNoRestart) {
  const RankUsers users = Make("ann 61001:61001\n");
  folder_.Write("users", "ann 61001:61001\nbob 61002:61002\n");
  EXPECT_EQ(users.Find("bob").value()->ids.uid, 61002u);
  folder_.Write("users", "ann 61001:61001\nbob\n");
  ExpectRefusal(users.Find("ann"), absl::StrCat(folder_.path(), "/users, line 2: expected"));
}

TEST_F(RankUsersTest, AccountsOfTheSystemAreRefused) {
  const auto users = RankUsers::Make("system", "head:7070");
  ASSERT_TRUE(users.ok());
  ExpectRefusal(users->Find("root"), "account of the system (uid 0, below 1000)");
  ExpectRefusal(users->Find("daemon"), "below 1000");
  ExpectRefusal(users->Find("no-such-user-here"), "this machine has no user");
  const passwd* unprivileged = getpwuid(65534);  // every system has it, without other groups
  ASSERT_NE(unprivileged, nullptr);
  const auto user = users->Find(unprivileged->pw_name);
  ASSERT_TRUE(user.ok()) << user.status();
  EXPECT_EQ((*user)->ids, (rundir::User{65534, unprivileged->pw_gid, {unprivileged->pw_gid}, 077}));
}

TEST_F(RankUsersTest, OnlyTheAdministratorMayWriteTheFile) {
  const std::string map = folder_.Write("users", "ann 61001:61001\n");
  chmod(map.c_str(), 0666);
  const auto users = RankUsers::Make(map, "head:7070");
  EXPECT_TRUE(absl::IsPermissionDenied(users.status())) << users.status();
  EXPECT_TRUE(absl::IsNotFound(RankUsers::Make(folder_.path() + "/none", "").status()));
}

TEST_F(RankUsersTest, OthersPassThroughTheRunFolderAndNoMore) {
  const std::string run = folder_.path() + "/a/run";
  EXPECT_TRUE(absl::StrContains(MakePassableRunFolder(run).message(), folder_.path() + " has mode 700"));
  chmod(folder_.path().c_str(), 0755);
  chmod((folder_.path() + "/a").c_str(), 0755);
  ASSERT_TRUE(MakePassableRunFolder(run).ok()) << MakePassableRunFolder(run);
  struct stat info {};
  ASSERT_EQ(stat(run.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0711u);
  chmod(run.c_str(), 0733);
  EXPECT_TRUE(absl::IsPermissionDenied(MakePassableRunFolder(run)));
}

}  // namespace
}  // namespace muster::agent
