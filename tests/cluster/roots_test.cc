// A worker whose jobs may use some folders only: from its flags to the files that a trainer opens.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/cluster/cluster.h"

namespace muster::cluster {
namespace {

namespace fs = std::filesystem;

TEST(Roots, AJobStaysBelowThemThoughALinkIsChanged) {
  Cluster cluster;
  for (const char* folder : {"/out", "/elsewhere"}) fs::create_directory(cluster.folder() + folder);
  fs::create_directory(cluster.folder() + "/out/a");
  fs::create_directory_symlink("a", cluster.folder() + "/out/link");
  cluster.worker_flags = {"--checkpoint-roots", cluster.folder() + "/out"};
  cluster.StartCoordinator();
  cluster.StartWorker(0, 1);
  const std::string outside = cluster.Submit({.name = "outside", .checkpoints = "elsewhere/{job}"});
  ASSERT_TRUE(cluster.WaitForState(outside, "failed"));
  const std::string said = cluster.Muster({"describe", outside}).out;
  EXPECT_TRUE(absl::StrContains(said, absl::StrCat("is not below ", cluster.folder(), "/out"))) << said;
  EXPECT_TRUE(absl::StrContains(said, "--checkpoint-roots")) << said;

  const std::string inside =
      cluster.Submit({.name = "inside", .steps = 1'000'000, .checkpoint_every = 10, .checkpoints = "out/link/{job}"});
  ASSERT_TRUE(cluster.WaitForStep(inside, 30));
  EXPECT_TRUE(fs::exists(absl::StrCat(cluster.folder(), "/out/a/", inside, "/owner.json")));
  // At once: the job writes a checkpoint all the time.
  fs::create_directory_symlink(cluster.folder() + "/elsewhere", cluster.folder() + "/out/other");
  fs::rename(cluster.folder() + "/out/other", cluster.folder() + "/out/link");
  // What fails first depends on the moment; the next generation is refused.
  ASSERT_TRUE(cluster.WaitForState(inside, "failed"));
  const std::string why = cluster.Muster({"describe", inside}).out;
  EXPECT_TRUE(absl::StrContains(why, absl::StrCat("is not below ", cluster.folder(), "/out"))) << why;
  EXPECT_TRUE(fs::is_empty(cluster.folder() + "/elsewhere"));
}

}  // namespace
}  // namespace muster::cluster
