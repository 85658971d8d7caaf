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
  ASSERT_EQ(cluster_.Muster({"delete", "-y", first}).exit_code, 0);
  // Its checkpoints are still there, and no others.
  const std::string weights = Exported(path);
  const std::string second = Submit(file);
  ASSERT_TRUE(cluster_.WaitForState(second, "failed"));
  const std::string said = cluster_.Muster({"describe", second}).out;
  EXPECT_TRUE(absl::StrContains(said, absl::StrCat("belongs to job ", first))) << said;
  EXPECT_TRUE(absl::StrContains(said, "move or remove its folder")) << said;
  EXPECT_EQ(Exported(path), weights);
  fs::rename(path, path + "-old");
  ASSERT_EQ(cluster_.Muster({"delete", "-y", second}).exit_code, 0);
  const std::string third = Submit(file);
  ASSERT_TRUE(cluster_.WaitForState(third, "completed"));
  EXPECT_EQ(cluster_.Muster({"checkpoint", "verify", third}).exit_code, 0);
  EXPECT_EQ(Exported(path + "-old"), weights);
}

// The coordinator's state is lost, the checkpoints are not.
TEST_F(FolderOwnerTest, AFolderOfALostStoreIsAdoptedAndTheNextJobGoesOn) {
  const std::string path = cluster_.CheckpointPath("long");
  const JobOptions options{.name = "long", .steps = 1'000'000, .checkpoint_every = 20};
  const std::string lost = cluster_.Submit(options);
  ASSERT_TRUE(cluster_.WaitForStep(lost, 50));
  const auto adopt = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"checkpoint", "adopt", path});
    return cluster_.Muster(more);
  };
  // Whether the job resumed from the newest checkpoint of a folder, and got further.
  const auto goes_on = [&](const std::string& job, const std::string& folder, const json& from) {
    if (!cluster_.WaitForStep(job, from["step"].get<uint64_t>() + 30)) return false;
    const std::string name = fs::path(from["directory"].get<std::string>()).filename();
    return absl::StrContains(cluster_.Muster({"logs", job}).out, "resuming from its folder") &&
           absl::StrContains(cluster_.Muster({"logs", job}).out, absl::StrCat("checkpoint=", folder, "/", name));
  };
  const auto owner = [&] { return json::parse(std::ifstream(path + "/owner.json")); };
  const Ran running = adopt({"-y"});
  EXPECT_EQ(running.exit_code, 2);
  EXPECT_TRUE(absl::StrContains(running.err, absl::StrCat(lost, ", which owns the folder, is running"))) << running.err;
  ASSERT_EQ(cluster_.StopWorker(0), 0);
  cluster_.KillCoordinator();
  const std::string store = owner()["store_id"];
  cluster_.coordinator_state = cluster_.folder() + "/new-state";
  cluster_.StartCoordinator();
  cluster_.StartWorker(0, 1);

  const Ran refused_job = cluster_.Muster({"submit", "-d", "-o", "name", cluster_.WriteJob(options)});
  ASSERT_EQ(refused_job.exit_code, 0) << refused_job.err;
  const std::string refused(absl::StripAsciiWhitespace(refused_job.out));
  ASSERT_TRUE(cluster_.WaitForState(refused, "failed"));
  const std::string said = cluster_.Muster({"describe", refused}).out;
  EXPECT_TRUE(absl::StrContains(said, absl::StrCat("belongs to job ", lost, " of store ", store.substr(0, 8)))) << said;
  EXPECT_TRUE(absl::StrContains(said, absl::StrCat("not to ", refused, " of store "))) << said;
  EXPECT_TRUE(absl::StrContains(said, "muster checkpoint adopt " + path)) << said;
  ASSERT_EQ(cluster_.Muster({"delete", "-y", refused}).exit_code, 0);

  const json newest = cluster_.MusterJson({"checkpoint", "ls", path})[0];
  const Ran asked = adopt({});
  EXPECT_EQ(asked.exit_code, 2) << "no terminal to ask";
  EXPECT_TRUE(absl::StrContains(asked.err, absl::StrCat("owner: job ", lost, " of store ", store.substr(0, 8),
                                                        " -> the next job that uses the folder")))
      << asked.err;
  EXPECT_TRUE(absl::StrContains(asked.err, absl::StrCat("written by job ", lost, "; the new owner resumes from it")))
      << asked.err;
  EXPECT_TRUE(absl::StrContains(asked.err, "add -y")) << asked.err;
  EXPECT_EQ(owner()["job"], lost) << "nothing has changed";
  const Ran adopted = adopt({"-y"});
  ASSERT_EQ(adopted.exit_code, 0) << adopted.err;
  EXPECT_TRUE(absl::StrContains(adopted.err, "released: the next job that uses the folder becomes its owner"))
      << adopted.err;
  const std::string next = cluster_.Submit(options);
  EXPECT_TRUE(goes_on(next, path, newest)) << cluster_.Muster({"logs", next}).out;
  EXPECT_EQ(owner()["job"], next);
  EXPECT_NE(owner()["store_id"], store);

  // To a job by its name, which has not started: on the way the folder was moved.
  ASSERT_EQ(cluster_.Muster({"cancel", "-y", next}).exit_code, 0);
  ASSERT_TRUE(cluster_.WaitForState(next, "cancelled"));
  const std::string moved = cluster_.CheckpointPath("moved");
  fs::rename(path, moved);
  const json of_moved = cluster_.MusterJson({"checkpoint", "ls", moved})[0];
  EXPECT_EQ(cluster_.Muster({"checkpoint", "adopt", moved, "-y", "--job", next}).exit_code, 2) << "it has ended";
  ASSERT_EQ(cluster_.StopWorker(0), 0);
  const std::string named = cluster_.Submit({.name = "moved", .steps = 1'000'000, .checkpoint_every = 20});
  const Ran by_name = cluster_.Muster({"checkpoint", "adopt", moved, "--yes", "--job", "@last"});
  ASSERT_EQ(by_name.exit_code, 0) << by_name.err;
  EXPECT_TRUE(absl::StrContains(by_name.err, absl::StrCat("-> job ", named))) << by_name.err;
  EXPECT_TRUE(absl::StrContains(by_name.err, "adopted by job " + named)) << by_name.err;
  EXPECT_FALSE(absl::StrContains(by_name.err, "note:")) << by_name.err;
  cluster_.StartWorker(0, 1);
  EXPECT_TRUE(goes_on(named, moved, of_moved)) << cluster_.Muster({"logs", named}).out;
  EXPECT_EQ(cluster_.Generation(named), 1u);

  const Ran nothing = cluster_.Muster({"checkpoint", "adopt", cluster_.folder(), "-y"});
  EXPECT_EQ(nothing.exit_code, 2);
  EXPECT_TRUE(absl::StrContains(nothing.err, "holds no checkpoints")) << nothing.err;
}

}  // namespace
}  // namespace muster::cluster
