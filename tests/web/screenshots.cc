// Writes pictures of the pages, at 1200 pixels and of some at 400, into the folder $MUSTER_SCREENSHOTS: docs/web.md
// shows them.
//   MUSTER_SCREENSHOTS=$PWD/docs/images bazel run //tests/web:screenshots
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/cluster/cluster.h"
#include "tests/web/browser.h"

namespace muster::web {
namespace {

TEST(Screenshots, OfEachPage) {
  const char* const folder = std::getenv("MUSTER_SCREENSHOTS");
  ASSERT_NE(folder, nullptr) << "say where: MUSTER_SCREENSHOTS=$PWD/docs/images bazel run //tests/web:screenshots";
  cluster::Cluster cluster;
  cluster.coordinator_flags = {"--web_address=127.0.0.1:0"};
  cluster.StartCoordinator();
  cluster.StartWorker(0, 2);
  cluster.StartWorker(1, 2);
  const std::string one =
      cluster.Submit({.name = "baseline", .steps = 200, .extra = "optimizer: {kind: adamw, lr: 1e-3}"});
  const std::string two =
      cluster.Submit({.name = "faster", .steps = 200, .extra = "optimizer: {kind: adamw, lr: 4e-3}"});
  ASSERT_TRUE(cluster.WaitForState(one, "completed") && cluster.WaitForState(two, "completed"));
  const std::string running = cluster.Submit({.name = "sharded",
                                              .steps = 1'000'000,
                                              .sequences = 16,
                                              .extra = "resources: {ranks: 4}\nstrategy: {kind: fsdp}"});
  cluster.Submit({.name = "next", .steps = 200, .priority = 5});
  cluster.Submit({.name = "later", .steps = 200});
  ASSERT_TRUE(cluster.WaitForStep(running, 300));
  cluster.Muster(
      {"quota", "set", "vision", "--cohort", "lab", "--nominal", "cpu=3", "--borrow", "cpu=1", "--user", "ann"});
  cluster.Muster({"quota", "set", "speech", "--cohort", "lab", "--nominal", "cpu=1", "--weight", "2", "--user", "eve"});
  const nlohmann::json ui = cluster.MusterJson({"ui"});
  const std::string url = ui.value("url", "");
  Browser stranger({.width = 1200, .height = 800});
  stranger.Open(url);
  ASSERT_TRUE(stranger.Await("document.querySelector('#sign-in')"));
  stranger.SaveScreenshot(absl::StrCat(folder, "/sign-in.png"));
  Browser browser({.width = 1200, .height = 800});
  browser.Open(ui.value("link", ""));
  ASSERT_TRUE(browser.Await("document.querySelector('#slots')"));
  const auto save = [&](const std::string& path, const std::string& ready, const std::string& name) {
    browser.Open(url + path);
    ASSERT_TRUE(browser.Await(ready)) << path;
    browser.SaveScreenshot(absl::StrCat(folder, "/", name, ".png"));
  };
  save("/", "document.querySelector('.row.node')", "cluster");
  save("/nodes/" + cluster.MusterJson({"nodes"}).at(0).at("id").get<std::string>(),
       "document.querySelectorAll('.charts canvas').length >= 2", "node");
  save("/queue", "document.querySelector('.row.queued')", "queue");
  save("/jobs", "document.querySelector('.row')", "jobs");
  save("/jobs/" + running, "document.querySelectorAll('.chart canvas').length >= 2", "job");
  save("/compare?jobs=" + one + "," + two, "document.querySelector('.chart canvas')", "compare");
  save("/projects", "document.querySelector('main h1')", "projects");
  // After the picture of the queue, whose jobs would wait for its nodes.
  cluster.Muster({"reservations", "set", "workshop", "--nodes", "all", "--start", "7d", "--for", "8h", "--user", "ann",
                  "--project", "vision", "--note", "hands-on course"});
  save("/reservations", "document.querySelector('#reservations tbody tr')", "reservations");
  save("/audit", "document.querySelector('#audit tbody tr')", "audit");
  browser.Open(url + "/jobs/" + running);
  ASSERT_TRUE(browser.Await("document.querySelector('#events li')"));
  browser.Click("#plan summary");
  ASSERT_TRUE(browser.Await("document.querySelector('#timeline')"));
  browser.Eval("document.querySelector('#plan').scrollIntoView()");
  browser.SaveScreenshot(absl::StrCat(folder, "/plan.png"));
  browser.Click("#plan summary");
  browser.Click("#trace summary");
  browser.Click("#trace button");
  ASSERT_TRUE(browser.Await("document.querySelector('#traced')"));
  browser.Eval("document.querySelector('#ranks').parentElement.scrollIntoView()");
  browser.SaveScreenshot(absl::StrCat(folder, "/ranks.png"));
}

}  // namespace
}  // namespace muster::web
