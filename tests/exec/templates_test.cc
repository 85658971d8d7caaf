// Templates, through the command line and a coordinator that is killed: real processes, no workers.
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/cluster/cluster.h"

namespace muster::cluster {
namespace {

using nlohmann::json;

TEST(TemplatesTest, OneSurvivesItsCoordinatorAndJobsAreMergedOverIt) {
  Cluster cluster;
  cluster.StartCoordinator();
  const auto write = [&](const std::string& name, const std::string& text) {
    std::ofstream(absl::StrCat(cluster.folder(), "/", name)) << text;
    return absl::StrCat(cluster.folder(), "/", name);
  };
  const std::string base =
      write("base.yaml", "optimizer: {kind: sgd, lr: 0.5, momentum: 0.25}\npriority: 3\nlabels: {team: nlp}\n");
  const Ran set = cluster.Muster({"templates", "set", "base", base});
  ASSERT_EQ(set.exit_code, 0) << set.err;
  EXPECT_EQ(set.err, "template base: set\n");
  cluster.KillCoordinator();
  cluster.StartCoordinator();
  const Ran shown = cluster.Muster({"templates", "show", "base"});
  EXPECT_EQ(shown.out, "optimizer: {kind: sgd, lr: 0.5, momentum: 0.25}\npriority: 3\nlabels: {team: nlp}\n")
      << shown.err;

  // Its model, data and checkpoints are the file's, its optimizer and label the template's.
  const std::string file = cluster.WriteJob({.name = "merged"});
  const Ran submitted = cluster.Muster({"submit", "-d", file, "--template", "base", "--set", "seed=7", "-o", "name"});
  ASSERT_EQ(submitted.exit_code, 0) << submitted.err;
  const std::string id = submitted.out.substr(0, submitted.out.find('\n'));
  const json job = cluster.Job(id);
  const json& spec = job["spec"];
  EXPECT_EQ(spec["template"], "base") << job;
  EXPECT_EQ(Number(spec["seed"]), 7u);
  EXPECT_EQ(job["labels"], json::array({"team=nlp"}));
  EXPECT_TRUE(absl::StrContains(cluster.Muster({"describe", id}).out, "base"));

  // The coordinator's errors, too, are in the line that is wrong.
  ASSERT_EQ(cluster.Muster({"templates", "set", "wrong", write("wrong.yaml", "# a comment\nresources: {ranks: 0}\n")})
                .exit_code,
            0)
      << "values are checked with the job";
  const Ran wrong = cluster.Muster({"submit", "-d", file, "--template", "wrong"});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_EQ(wrong.err, "template wrong:2:20: resources.ranks: must be at least 1, got 0\n");

  const Ran listed = cluster.Muster({"templates", "-o", "name"});
  EXPECT_EQ(listed.out, "base\nwrong\n");
  EXPECT_EQ(cluster.Muster({"templates", "delete", "base"}).exit_code, 0);
  const Ran gone = cluster.Muster({"submit", "-d", file, "--template", "base"});
  EXPECT_EQ(gone.exit_code, 2);
  EXPECT_EQ(gone.err, "muster: --template: there is no template base; muster templates lists them\n");
  EXPECT_EQ(cluster.State(id), "queued") << "a job does not need its template any more";

  const json audit = cluster.MusterJson({"audit", "--object", "template/"});
  ASSERT_EQ(audit.size(), 3u) << audit;  // oldest first
  EXPECT_EQ(audit[0]["method"], "Jobs/SetTemplate");
  EXPECT_EQ(audit[0]["object"], "template/base");
  EXPECT_EQ(audit[0]["code"], "OK");
  EXPECT_EQ(audit[1]["object"], "template/wrong");
  EXPECT_EQ(audit[2]["method"], "Jobs/DeleteTemplate");
}

}  // namespace
}  // namespace muster::cluster
