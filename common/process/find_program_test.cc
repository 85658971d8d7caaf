#include "common/process/find_program.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "testing/temporary_folder.h"

namespace muster {
namespace {

TEST(FindProgram, IsTheFirstThatMayBeRun) {
  TemporaryFolder folder;
  folder.Write("a/tool", "");
  chmod(folder.Write("b/tool", "").c_str(), 0755);
  chmod(folder.Write("c/tool", "").c_str(), 0755);
  const std::string path = "." + (":" + folder.path()) + "/a:" + folder.path() + "/b::" + folder.path() + "/c";
  EXPECT_EQ(FindProgram("tool", path), folder.path() + "/b/tool");
  EXPECT_EQ(FindProgram("./tool", path), "./tool");
  EXPECT_EQ(FindProgram("other", path), "");
  EXPECT_EQ(FindProgram("tool", ""), "");
}

}  // namespace
}  // namespace muster
