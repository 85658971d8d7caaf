#include "coordinator/web/sessions.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <sstream>

#include "testing/temporary_folder.h"

namespace muster::web {
namespace {

class SessionsTest : public ::testing::Test {
 protected:
  std::string path() const { return folder_.path() + "/web_sessions.pb"; }
  std::unique_ptr<Sessions> Open() { return Sessions::Open(path(), &clock_).value(); }
  std::string File() const {
    std::stringstream text;
    text << std::ifstream(path()).rdbuf();
    return text.str();
  }

  const TemporaryFolder folder_;
  FakeClock clock_;
};

TEST_F(SessionsTest, SurvivesARestartWithoutATokenInTheFile) {
  const std::string id = Open()->Create({false, "a-token-that-is-secret", "ann", "submitter"}).value();
  EXPECT_EQ(File().find("a-token-that-is-secret"), std::string::npos);
  EXPECT_EQ(File().find(id), std::string::npos);
  struct stat info {};
  ASSERT_EQ(stat(path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);

  const std::unique_ptr<Sessions> later = Open();
  const std::optional<Session> session = later->Find(id);
  ASSERT_TRUE(session.has_value());
  EXPECT_EQ(session->credential.token, "a-token-that-is-secret");
  EXPECT_EQ(session->credential.user, "ann");
  EXPECT_FALSE(session->credential.local);
  EXPECT_FALSE(session->csrf.empty());
  std::string other = id;
  other[0] = other[0] == 'a' ? 'b' : 'a';
  EXPECT_FALSE(later->Find(other).has_value());
  EXPECT_FALSE(later->Find("").has_value());
}

TEST_F(SessionsTest, EndsWhenItIsEndedOrOld) {
  const std::unique_ptr<Sessions> sessions = Open();
  const std::string first = sessions->Create({true, "", "root", "local"}).value();
  const std::string second = sessions->Create({true, "", "root", "local"}).value();
  sessions->End(first);
  EXPECT_FALSE(sessions->Find(first).has_value());
  EXPECT_FALSE(Open()->Find(first).has_value()) << "also in the file";
  EXPECT_TRUE(sessions->Find(second).has_value());
  clock_.Advance(Sessions::kLife);
  EXPECT_FALSE(sessions->Find(second).has_value());
}

TEST_F(SessionsTest, OneUserDoesNotPushOutTheOthers) {
  const std::unique_ptr<Sessions> sessions = Open();
  const std::string ann = sessions->Create({true, "", "ann", "local"}).value();
  clock_.Advance(absl::Seconds(1));
  const std::string first = sessions->Create({true, "", "bob", "local"}).value();
  for (size_t i = 0; i < Sessions::kMostOfUser; ++i) {
    clock_.Advance(absl::Seconds(1));
    ASSERT_TRUE(sessions->Create({true, "", "bob", "local"}).ok());
  }
  EXPECT_FALSE(sessions->Find(first).has_value());
  EXPECT_TRUE(sessions->Find(ann).has_value());
}

TEST_F(SessionsTest, ADamagedFileIsAnEmptyOne) {
  const std::string id = Open()->Create({true, "", "ann", "local"}).value();
  std::ofstream(path()) << "\xff\xff\xff";
  const std::unique_ptr<Sessions> sessions = Open();
  EXPECT_FALSE(sessions->Find(id).has_value());
  EXPECT_TRUE(sessions->Create({true, "", "ann", "local"}).ok());
}

}  // namespace
}  // namespace muster::web
