// Two jobs and one folder of checkpoints: the second is refused, at submit or where it starts, and no command on a job
// reads another's. The same file, submitted again and again, works.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/cluster/cluster.h"

namespace muster::cluster {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class FolderOwnerTest : public ::testing::Test {
 protected:
  FolderOwnerTest() {
    cluster_.StartCoordinator();
    cluster_.StartWorker(0, 1);
  }
  std::string Submit(const std::string& file) {
    const Ran ran = cluster_.Muster({"submit", "-d", "-o", "name", file});
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    return std::string(absl::StripAsciiWhitespace(ran.out));
  }
  std::string PathOf(const std::string& id) { return cluster_.Job(id)["spec"]["checkpoint"]["path"]; }
  // What export writes of a folder or a job; empty: it refused, and said `says`.
  std::string Exported(const std::string& from, const std::string& says = "") {
    const std::string out = absl::StrCat(cluster_.folder(), "/export-", count_++);
    const Ran ran = cluster_.Muster({"export", from, out});
    EXPECT_EQ(ran.exit_code == 0, says.empty()) << ran.err;
    EXPECT_TRUE(absl::StrContains(ran.err, says)) << ran.err;
    if (ran.exit_code != 0) return "";
    std::ifstream in(out + "/model.safetensors", std::ios::binary);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }

  Cluster cluster_;
  int count_ = 0;
};

TEST_F(FolderOwnerTest, TheSameFileSubmittedAgainAndAgainIsAJobEach) {
  const std::string with_path = cluster_.WriteJob({.name = "loop", .steps = 10, .checkpoints = "out/{name}/{job}"});
  const std::string without = cluster_.folder() + "/plain.yaml";
  std::ofstream(without) << "apiVersion: muster/v1\nkind: Job\nname: plain\n"
                            "model: {family: gpt2, layers: 1, heads: 2, width: 32, vocabulary: 256, context: 16}\n"
                            "data: {tokens: train.bin}\nbatch: {sequences: 4}\nsteps: 3\n";
  std::vector<std::string> ids;
  // Twice at once, and once more when these are over.
  for (const std::string& file : {with_path, with_path, without, without}) ids.push_back(Submit(file));
  for (const std::string& id : ids) ASSERT_TRUE(cluster_.WaitForState(id, "completed"));
  for (const std::string& file : {with_path, without}) {
    ids.push_back(Submit(file));
    ASSERT_TRUE(cluster_.WaitForState(ids.back(), "completed"));
  }
  std::set<std::string> paths;
  for (const std::string& id : ids) {
    const bool plain = absl::StartsWith(id, "plain");
    const std::string path = PathOf(id);
    EXPECT_EQ(path, absl::StrCat(cluster_.folder(), plain ? "/runs/" : "/out/loop/", id));
    EXPECT_TRUE(fs::exists(path + "/owner.json"));
    paths.insert(path);
    const json all = cluster_.MusterJson({"checkpoint", "ls", id});
    ASSERT_FALSE(all.empty()) << id;
    EXPECT_EQ(all[0]["step"], plain ? 3 : 10);
    EXPECT_EQ(cluster_.Muster({"checkpoint", "verify", id}).exit_code, 0);
  }
  EXPECT_EQ(paths.size(), ids.size());
  // No checkpoints at all, where that is asked for.
  const Ran none = cluster_.Muster({"submit", "-d", "-o", "name", without, "--set", "checkpoint.path=\"\""});
  ASSERT_EQ(none.exit_code, 0) << none.err;
  const std::string id(absl::StripAsciiWhitespace(none.out));
  ASSERT_TRUE(cluster_.WaitForState(id, "completed"));
  EXPECT_EQ(PathOf(id), "");
  Exported(id, "writes no checkpoints");
  // What a resolved spec says is what is meant when it is read again.
  const Ran resolved = cluster_.Muster({"validate", "--resolved", without});
  EXPECT_TRUE(absl::StrContains(resolved.out, absl::StrCat("path: \"", cluster_.folder(), "/runs/{job}\"")))
      << resolved.out;
}

TEST_F(FolderOwnerTest, ASecondJobInOneFolderIsRefusedAndTheFirstLosesNothing) {
  const std::string path = cluster_.CheckpointPath("one");
  const std::string one = cluster_.Submit({.name = "one", .steps = 1'000'000, .checkpoint_every = 10});
  ASSERT_TRUE(cluster_.WaitForStep(one, 20));
  const auto submit = [&](const std::string& name, const std::string& checkpoints) {
    return cluster_.Muster(
        {"submit", "-d", "-o", "name", cluster_.WriteJob({.name = name, .steps = 30, .checkpoints = checkpoints})});
  };
  for (const std::string& same : {path, path + "/", path + "/../" + fs::path(path).filename().string()}) {
    const Ran refused = submit("two", same);
    EXPECT_EQ(refused.exit_code, 2) << same;
    EXPECT_TRUE(absl::StrContains(refused.err, absl::StrCat("belongs to job \"one\" (", one, ", running)")))
        << refused.err;
    EXPECT_TRUE(absl::StrContains(refused.err, "{job}")) << refused.err;
  }
  const Ran planned = cluster_.Muster({"plan", cluster_.WriteJob({.name = "two", .steps = 30, .checkpoints = path})});
  EXPECT_EQ(planned.exit_code, 0);
  EXPECT_TRUE(absl::StrContains(planned.out, "submit would be refused: checkpoint.path")) << planned.out;

  // By a name that the coordinator cannot see through it is accepted, and refused where it starts.
  fs::create_directory_symlink(path, cluster_.folder() + "/alias");
  const Ran accepted = submit("two", cluster_.folder() + "/alias");
  ASSERT_EQ(accepted.exit_code, 0) << accepted.err;
  const std::string two(absl::StripAsciiWhitespace(accepted.out));
  ASSERT_EQ(cluster_.Muster({"cancel", "-y", one}).exit_code, 0);
  ASSERT_TRUE(cluster_.WaitForState(one, "cancelled"));
  ASSERT_TRUE(cluster_.WaitForState(two, "failed"));
  const std::string said = cluster_.Muster({"describe", two}).out;
  EXPECT_TRUE(absl::StrContains(said, absl::StrCat("belongs to job ", one))) << said;
  EXPECT_EQ(cluster_.Generation(two), 1u) << "no restart can help";

  EXPECT_EQ(cluster_.Muster({"checkpoint", "verify", one}).exit_code, 0);
  const json published = cluster_.Job(one)["checkpoints"];
  ASSERT_GE(published.size(), 2u);
  for (const json& checkpoint : published) {
    EXPECT_TRUE(fs::exists(absl::StrCat(path, "/", checkpoint["directory"].get<std::string>(), "/manifest.json")));
  }
  EXPECT_FALSE(Exported(one).empty());
  Exported(two, "has no checkpoint yet");
  for (const std::vector<std::string>& reads : std::vector<std::vector<std::string>>{
           {"eval", two, cluster_.folder() + "/train.bin"}, {"sample", two, "--prompt", "x"}}) {
    const Ran refused = cluster_.Muster(reads);
    EXPECT_EQ(refused.exit_code, 2);
    EXPECT_EQ(refused.out, "");
  }
  // Read only it goes on from there.
  const Ran goes_on = cluster_.Muster(
      {"submit", "-d", "-o", "name", cluster_.WriteJob({.name = "three", .steps = 1, .checkpoints = "out/{job}"}),
       "--set", absl::StrCat("checkpoint.resume_from=", path), "--set", "steps=1000005"});
  ASSERT_EQ(goes_on.exit_code, 0) << goes_on.err;
  const std::string three(absl::StripAsciiWhitespace(goes_on.out));
  ASSERT_TRUE(cluster_.WaitForStep(three, 20));
  EXPECT_EQ(cluster_.Muster({"cancel", "-y", three}).exit_code, 0);
  ASSERT_TRUE(cluster_.WaitForState(three, "cancelled"));
  EXPECT_EQ(cluster_.Muster({"checkpoint", "verify", one}).exit_code, 0);
}

TEST_F(FolderOwnerTest, ADeletedJobsFolderIsTakenOverOnlyByHand) {
  const std::string path = cluster_.CheckpointPath("kept");
  const std::string file = cluster_.WriteJob({.name = "kept", .steps = 20});
  const std::string first = Submit(file);
  ASSERT_TRUE(cluster_.WaitForState(first, "completed"));
  const Ran again = cluster_.Muster({"submit", "-d", file});
  EXPECT_EQ(again.exit_code, 2);
  EXPECT_TRUE(absl::StrContains(again.err, absl::StrCat("muster delete ", first))) << again.err;
  ASSERT_EQ(cluster_.Muster({"delete", first}).exit_code, 0);
  // Its checkpoints are still there, and no others.
  const std::string weights = Exported(path);
  const std::string second = Submit(file);
  ASSERT_TRUE(cluster_.WaitForState(second, "failed"));
  const std::string said = cluster_.Muster({"describe", second}).out;
  EXPECT_TRUE(absl::StrContains(said, absl::StrCat("belongs to job ", first))) << said;
  EXPECT_TRUE(absl::StrContains(said, "move or remove its folder")) << said;
  EXPECT_EQ(Exported(path), weights);
  fs::rename(path, path + "-old");
  ASSERT_EQ(cluster_.Muster({"delete", second}).exit_code, 0);
  const std::string third = Submit(file);
  ASSERT_TRUE(cluster_.WaitForState(third, "completed"));
  EXPECT_EQ(cluster_.Muster({"checkpoint", "verify", third}).exit_code, 0);
  EXPECT_EQ(Exported(path + "-old"), weights);
}

}  // namespace
}  // namespace muster::cluster
