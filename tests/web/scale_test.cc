// The page with 10,000 jobs and a job of 1,000 ranks, in Chromium: what is in the document is bounded, and all of it is
// found by scrolling and filtering. The ranks are those of nodes that only send what a node sends; the jobs are a
// hundred, multiplied on their way to the page. Prints how long the views take; those are figures of this machine and
// no limits:
//
//   bazel run //tests/web:scale_test
#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "testing/fake_worker.h"
#include "testing/wait.h"
#include "tests/cluster/cluster.h"
#include "tests/web/browser.h"

namespace muster::web {
namespace {

using cluster::Cluster;
using nlohmann::json;

constexpr int kReal = 100, kTimes = 100, kJobs = kReal * kTimes;
constexpr int kNodes = 125, kSlots = 8, kRanks = kNodes * kSlots;

// When the first row came, and each task of the page's thread of more than 50 ms.
constexpr char kMeasure[] = R"(
  window.longTasks = [];
  new PerformanceObserver((list) => longTasks.push(...list.getEntries().map((entry) => Math.round(entry.duration))))
    .observe({type: 'longtask', buffered: true});
  new MutationObserver((_, observer) => {
    if (!document.querySelector('.row, .chart')) return;
    window.firstView = Math.round(performance.now());
    observer.disconnect();
  }).observe(document, {childList: true, subtree: true});
)";

// Each job of a list is there a hundred times, under ids of its own, in pages of a thousand.
constexpr char kManyJobs[] = R"(
  const real = window.fetch;
  window.fetch = async (path, options) => {
    const url = new URL(path, location.origin);
    if (url.pathname !== '/api/v1/jobs' || options?.method === 'POST') return real(path, options);
    const from = Number(url.searchParams.get('page') || 0), limit = Number(url.searchParams.get('limit'));
    url.searchParams.set('page', '');
    const {jobs} = await (await real(url)).json();
    const at = (i) => {
      const {job, ...rest} = jobs[i % jobs.length], time = Math.floor(i / jobs.length);
      return {...rest, job: {...job, id: time > 0 ? `${job.id}-${time}` : job.id}};
    };
    const end = Math.min(from + limit, 100 * jobs.length);
    const page = {jobs: Array.from({length: end - from}, (_, i) => at(from + i))};
    if (end < 100 * jobs.length) page.next_page = String(end);
    return new Response(JSON.stringify(page), {headers: {'Content-Type': 'application/json'}});
  };
)";

// Nodes whose ranks all run, and report a step every second.
class Nodes {
 public:
  explicit Nodes(const std::string& address) {
    for (int i = 0; i < kNodes; ++i) {
      workers_.push_back(std::make_unique<FakeWorker>(
          address,
          FakeWorker::Options{
              .node = absl::StrCat("node-", i), .boot = absl::StrCat("boot-", i), .slots = kSlots, .obedient = true}));
    }
    for (const auto& worker : workers_) EXPECT_TRUE(worker->WaitForWelcome());
    thread_ = std::thread([this] {
      for (uint64_t step = 1; !over_; ++step) {
        for (const auto& worker : workers_) {
          worker->SendHeartbeat(step);
          worker->SendStep(step);
        }
        absl::SleepFor(absl::Seconds(1));
      }
    });
  }
  ~Nodes() {
    over_ = true;
    thread_.join();
    for (const auto& worker : workers_) worker->Break();
  }

 private:
  std::vector<std::unique_ptr<FakeWorker>> workers_;
  std::atomic<bool> over_ = false;
  std::thread thread_;
};

class Scale : public ::testing::Test {
 protected:
  Scale() {
    cluster_.coordinator_flags = {"--web_address=127.0.0.1:0", "--max_queued_jobs_of_user=0",
                                  "--max_submits_of_user=0"};
    cluster_.StartCoordinator();
  }
  void SignIn(Browser& browser) {
    const json ui = cluster_.MusterJson({"ui"});
    url_ = ui.value("url", "");
    browser.BeforeEachPage(kMeasure);
    browser.Open(ui.value("link", ""));
    ASSERT_TRUE(browser.Await("document.querySelector('#slots')?.textContent"));
  }
  void Print(Browser& browser, const std::string& what) {
    const json tasks = browser.Eval("window.longTasks");
    int sum = 0, longest = 0;
    for (const json& task : tasks) sum += task.get<int>(), longest = std::max(longest, task.get<int>());
    std::printf("%s: first view after %s ms; tasks of more than 50 ms: %zu, %d ms together, the longest %d ms\n",
                what.c_str(), browser.Eval("window.firstView ?? 'no'").dump().c_str(), tasks.size(), sum, longest);
    std::fflush(stdout);
  }
  // Of the whole document.
  int Elements(Browser& browser) { return browser.Eval("document.querySelectorAll('*').length").get<int>(); }

  Cluster cluster_;
  std::string url_;
};

TEST_F(Scale, TenThousandJobs) {
  // The jobs that a coordinator takes within a test, many times over: this is about the page.
  Browser browser;
  SignIn(browser);
  constexpr char kSubmit[] = R"((async () => {
    const {csrf} = await (await fetch('/api/v1/session')).json();
    for (let i = 0; i < 100; ++i) {
      const spec = {name: 'many', labels: ['shard=s' + i], exec: {command: ['true']}};
      const reply = await fetch('/api/v1/jobs', {method: 'POST', body: JSON.stringify({request_id: 'r' + i, spec}),
        headers: {'Content-Type': 'application/json', 'X-Muster-CSRF': csrf}});
      if (!reply.ok) return await reply.text();
    }
    return '';
  })())";
  ASSERT_EQ(browser.Eval(kSubmit), "");
  browser.BeforeEachPage(kManyJobs);
  const std::string all =
      absl::StrCat("document.querySelector('#count')?.textContent === '", kJobs, " of ", kJobs, " jobs'");
  browser.Open(url_ + "/jobs");
  ASSERT_TRUE(browser.Await(all, absl::Minutes(2)));
  Print(browser, "the list of 10,000 jobs");
  EXPECT_LE(Elements(browser), 2000);

  // By scrolling: the last row is the last job, and the keyboard gets back.
  browser.Eval("(() => { const box = document.querySelector('.rows'); box.scrollTop = box.scrollHeight; })()");
  EXPECT_TRUE(
      browser.Await(absl::StrCat("document.querySelectorAll('.row').length > 10 && "
                                 "[...document.querySelectorAll('.row')].at(-1).style.top === '",
                                 28 * (kJobs - 1), "px'")));
  const std::string last =
      browser.Eval("[...document.querySelectorAll('.row a')].at(-1).textContent").get<std::string>();
  browser.Eval("document.querySelector('.rows').focus()");
  browser.Press("\uE011");  // Home
  EXPECT_TRUE(browser.Await("document.querySelector('.row').style.top === '0px'"));
  EXPECT_LE(Elements(browser), 2000);

  // By filtering.
  const auto filter = [&](const std::string& text) {
    browser.Eval(absl::StrCat("(() => { const f = document.querySelector('input[type=search]'); f.value = '", text,
                              "'; f.dispatchEvent(new Event('input')); })()"));
  };
  filter(last);
  EXPECT_TRUE(browser.Await("document.querySelectorAll('.row').length === 1"));
  EXPECT_EQ(browser.Text(".row a"), last);
  filter("shard=s7");
  EXPECT_TRUE(browser.Await(
      absl::StrCat("document.querySelector('#count').textContent === '", 11 * kTimes, " of ", kJobs, " jobs'")))
      << "s7 and s70 to s79";
  filter("");
  // What changes is shown without loading the page again.
  constexpr char kCancel[] = R"((async () => {
    const {csrf} = await (await fetch('/api/v1/session')).json();
    const cancel = (id) => fetch(`/api/v1/jobs/${id}/cancel`,
      {method: 'POST', headers: {'Content-Type': 'application/json', 'X-Muster-CSRF': csrf}, body: '{}'});
    let cancelled = 0;
    for (const id of [...document.querySelectorAll('.row a')].map((a) => a.textContent).slice(0, 20)) {
      cancelled += (await cancel(id)).ok ? 1 : 0;
    }
    return cancelled;
  })())";
  EXPECT_EQ(browser.Eval(kCancel), 20);
  filter("cancelled");
  EXPECT_TRUE(browser.Await(
      absl::StrCat("document.querySelector('#count').textContent === '", 20 * kTimes, " of ", kJobs, " jobs'")));
  Print(browser, "the same, scrolled, filtered, and with 20 of them cancelled");

  browser.Open(url_ + "/queue");
  ASSERT_TRUE(browser.Await("document.querySelectorAll('.row.queued').length > 10", absl::Minutes(2)));
  Print(browser, "the queue of 10,000 jobs");
  EXPECT_LE(Elements(browser), 2000);
  EXPECT_EQ(browser.Errors(), json::array());
}

TEST_F(Scale, AThousandRanks) {
  Nodes nodes(cluster_.address());
  const std::string id =
      cluster_.Submit({.name = "wide",
                       .steps = 1'000'000,
                       .sequences = 2 * kRanks,
                       .extra = absl::StrCat("resources: {ranks: ", kRanks, "}\nstrategy: {kind: ddp}")});
  ASSERT_TRUE(cluster_.WaitForState(id, "running"));
  Browser browser;
  SignIn(browser);
  ASSERT_TRUE(browser.Await("document.querySelectorAll('.row.node').length > 10"));
  EXPECT_EQ(browser.Text("#slots"), absl::StrCat(kNodes, " nodes, ", kRanks, " slots, 0 free"));
  Print(browser, "the cluster of 125 nodes");
  EXPECT_LE(Elements(browser), 2000);

  browser.Open(url_ + "/jobs/" + id);
  const std::string cells = "[...document.querySelectorAll('#ranks .rank')]";
  ASSERT_TRUE(browser.Await(absl::StrCat(cells, ".length > 20")));
  Print(browser, "a job of 1,000 ranks");
  EXPECT_TRUE(browser.Await("/^1000 ranks, at steps? \\d/.test(document.querySelector('#ranks-outline').textContent)"))
      << browser.Text("#ranks-outline");
  const json placed = cluster_.MusterJson({"describe", id})["generations"][0]["ranks"];
  ASSERT_EQ(placed.size(), static_cast<size_t>(kRanks));
  EXPECT_LE(Elements(browser), 2000);
  // By scrolling, every rank is where the command line says that it is.
  std::map<int, std::string> shown;
  const int height = browser.Eval("document.querySelector('#ranks').scrollHeight").get<int>();
  for (int top = 0; top < height; top += 300) {
    browser.Eval(absl::StrCat("(() => { document.querySelector('#ranks').scrollTop = ", top, "; })()"));
    browser.Eval("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))");
    for (const json& title : browser.Eval(absl::StrCat(cells, ".map((cell) => cell.title)"))) {
      const std::vector<std::string> words = absl::StrSplit(title.get<std::string>(), absl::ByAnyChar(" :"));
      shown[std::stoi(words.at(1))] = words.at(3);
    }
    EXPECT_LE(Elements(browser), 2000);
  }
  ASSERT_EQ(shown.size(), static_cast<size_t>(kRanks));
  for (int rank = 0; rank < kRanks; ++rank) EXPECT_EQ(shown[rank], placed[rank]["node"].get<std::string>()) << rank;
  // It is read anew every two seconds, and stays where it was scrolled to.
  const int top = browser.Eval("document.querySelector('#ranks').scrollTop").get<int>();
  EXPECT_GT(top, 0);
  const std::string reads = absl::StrCat(
      "performance.getEntriesByType('resource').filter((entry) => entry.name.includes('/jobs/", id, "?')).length");
  const int before = browser.Eval(reads).get<int>();
  EXPECT_TRUE(browser.Await(absl::StrCat(reads, " > ", before + 2)));
  EXPECT_EQ(browser.Eval("document.querySelector('#ranks').scrollTop"), top);
  Print(browser, "the same after some seconds of its steps");
  EXPECT_EQ(browser.Errors(), json::array());
}

}  // namespace
}  // namespace muster::web
