// The web page in Chromium, from a real coordinator with real jobs: what it shows is what the command line says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "testing/wait.h"
#include "tests/cluster/cluster.h"
#include "tests/web/browser.h"

namespace muster::web {
namespace {

using cluster::Cluster;
using cluster::Number;
using cluster::Ran;
using nlohmann::json;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kTab[] = "\uE004", kEnter[] = "\uE007", kLeft[] = "\uE012", kRight[] = "\uE014", kDown[] = "\uE015";

class WebPage : public ::testing::Test {
 protected:
  void Start(int slots = 2, const std::vector<std::string>& flags = {}) {
    cluster_.coordinator_flags = flags;
    cluster_.coordinator_flags.emplace_back("--web_address=127.0.0.1:0");
    cluster_.worker_flags = {"--exec_jobs", "on"};
    cluster_.StartCoordinator();
    cluster_.StartWorker(0, slots);
  }
  // Through the link that `muster ui` prints. Returns the page's address.
  std::string SignIn(Browser& browser) {
    const json ui = cluster_.MusterJson({"ui"});
    browser.Open(ui.value("link", ""));
    browser.Await("document.querySelector('#slots')?.textContent");
    return ui.value("url", "");
  }
  // A program as a job of one rank; its id.
  std::string Run(const std::string& script, const std::vector<std::string>& flags = {}) {
    std::vector<std::string> arguments = {"run", "--workdir", "/tmp", "-d", "-o", "name", "--max-restarts", "0"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    arguments.insert(arguments.end(), {"--", "bash", "-c", script});
    const Ran ran = cluster_.Muster(arguments);
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    return std::string(absl::StripAsciiWhitespace(ran.out));
  }
  json Describe(const std::string& id) { return cluster_.MusterJson({"describe", id}); }

  Cluster cluster_;
};

// Reports a step every 200 ms, without end: fewer than the 20 a second above which reports are dropped.
constexpr char kReporting[] =
    R"(for i in $(seq 1 100000); do echo "{\"step\": $i, \"eval/Reward\": 7}" >> "$MUSTER_REPORT_FILE"; )"
    R"(echo "line $i"; sleep 0.2; done)";

TEST_F(WebPage, SaysWhatTheCommandLineSays) {
  Start();
  const std::string id = cluster_.Submit({.name = "small", .steps = 40});
  ASSERT_TRUE(cluster_.WaitForState(id, "completed"));
  const std::string waiting =
      cluster_.Submit({.name = "wide", .extra = "resources: {ranks: 2}\nstrategy: {kind: ddp}"});
  const std::string second =
      cluster_.Submit({.name = "wider", .extra = "resources: {ranks: 2}\nstrategy: {kind: ddp}"});
  Browser browser;
  const std::string url = SignIn(browser);

  const json nodes = cluster_.MusterJson({"nodes"});
  EXPECT_THAT(browser.Text("#slots"), StartsWith("1 nodes, 2 slots, "));
  EXPECT_THAT(browser.Text(".row.node"), HasSubstr(nodes.at(0).at("id").get<std::string>()));

  const std::string node = nodes.at(0).at("id");
  browser.Open(url + "/nodes/" + node);
  ASSERT_TRUE(browser.Await("document.querySelector('[data-title=\"busy cores\"]')"));
  EXPECT_EQ(browser.Text("h1"), node);
  EXPECT_THAT(browser.Text("#use"), HasSubstr("cores busy"));
  EXPECT_EQ(browser.Eval("document.querySelectorAll('#held tbody tr').length"), 2);

  browser.Open(url + "/jobs/" + id);
  ASSERT_TRUE(browser.Await("document.querySelector('#spec')"));
  EXPECT_EQ(browser.Text("#job"), id);
  EXPECT_EQ(browser.Text("#step"), "40");
  const std::vector<double> losses = cluster_.Losses(id);
  ASSERT_EQ(losses.size(), 40u);
  const json points = browser.Eval("document.querySelector('[data-title=\"loss\"]').dataset.points");
  EXPECT_EQ(points, "40");
  const json last =
      json::parse(browser.Eval("document.querySelector('[data-title=\"loss\"]').dataset.last").get<std::string>());
  EXPECT_NEAR(last[0].get<double>(), losses.back(), 1e-6);
  const json described = Describe(id);
  EXPECT_EQ(browser.Eval("document.querySelectorAll('#checkpoints tbody tr').length"),
            described["job"]["checkpoints"].size());
  const Ran events = cluster_.Muster({"events", id, "-o", "json"});
  EXPECT_EQ(browser.Eval("document.querySelectorAll('#events li').length"),
            std::count(events.out.begin(), events.out.end(), '\n'));
  const Ran logs = cluster_.Muster({"logs", id, "--raw"});
  EXPECT_EQ(browser.Eval("document.querySelectorAll('#log > div').length"),
            std::count(logs.out.begin(), logs.out.end(), '\n'));

  // The plan: who owns what, and a step; each is drawn.
  browser.Click("#plan summary");
  for (const char* canvas : {"ownership", "timeline"}) {
    EXPECT_TRUE(browser.Await(absl::StrCat(
        "(() => { const c = document.getElementById('", canvas, "'); if (!c || !c.width) return false; ",
        "const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data; const colors = new Set(); ",
        "for (let i = 0; i < d.length; i += 4) colors.add(d[i] * 65536 + d[i + 1] * 256 + d[i + 2]); return "
        "colors.size > 3; })()")));
  }

  browser.Open(url + "/queue");
  browser.Await("document.querySelector('h1')?.textContent === 'Queue'");
  std::set<std::string> queued;
  for (const json& job : cluster_.MusterJson({"ps"})) {
    if (Number(job["job"].value("queue_position", json(0))) > 0) queued.insert(job["job"]["id"].get<std::string>());
  }
  if (cluster_.State(second) == "queued") {
    browser.Await("document.querySelector('.row.queued')");
    EXPECT_THAT(browser.Text(".rows"), HasSubstr(second));
  }
  EXPECT_EQ(browser.Errors(), json::array());
}

TEST_F(WebPage, GoesOnAfterARestartOfTheCoordinatorWithoutAGap) {
  Start();
  const std::string id = Run(kReporting);
  ASSERT_TRUE(cluster_.WaitForStep(id, 10));
  Browser browser;
  const std::string url = SignIn(browser);
  browser.Open(url + "/jobs/" + id);
  const std::string chart = "document.querySelector('[data-title=\"eval/Reward\"]')";
  ASSERT_TRUE(browser.Await(absl::StrCat("Number(", chart, "?.dataset.step) >= 20")));
  cluster_.KillCoordinator();
  ASSERT_TRUE(browser.Await("true"));
  const uint64_t before = std::stoull(browser.Eval(chart + ".dataset.step").get<std::string>());
  cluster_.StartCoordinator();
  ASSERT_TRUE(browser.Await(absl::StrCat("Number(", chart, "?.dataset.step) >= ", before + 20), absl::Minutes(2)));
  // Each step from the first to the newest is there once.
  EXPECT_EQ(browser.Eval(absl::StrCat(chart, ".dataset.step - ", chart, ".dataset.points")), 0);
  EXPECT_TRUE(browser.Await("document.querySelectorAll('#log > div').length > 0"));
  // Each line follows the one before it.
  EXPECT_EQ(browser.Eval("[...document.querySelectorAll('#log > div')].map((d) => d.textContent).filter((t) => "
                         "t.includes('line')).filter((t, i, all) => "
                         "i > 0 && t !== `[0] line ${1 + Number(all[i - 1].split(' ')[2])}`)"),
            json::array());
}

// Browsers open six connections to a host, for all tabs together.
TEST_F(WebPage, MoreTabsThanABrowserHasConnectionsFollowTheirJob) {
  constexpr char kCountStreams[] =
      "window.streams = 0; window.EventSource = class extends EventSource { constructor(...of) { super(...of); "
      "++window.streams; } };";
  Start();
  const std::string id = Run(kReporting);
  ASSERT_TRUE(cluster_.WaitForStep(id, 10));
  Browser browser;
  const std::string url = SignIn(browser);
  const std::string first = browser.Tab(), chart = "document.querySelector('[data-title=\"eval/Reward\"]')";
  const auto step = [&] {
    return std::stoull(browser.Eval(absl::StrCat(chart, "?.dataset.step ?? '0'")).get<std::string>());
  };
  for (int tab = 0; tab < 8; ++tab) {
    if (tab > 0) browser.NewTab();
    browser.BeforeEachPage(kCountStreams);
    browser.Open(url + "/jobs/" + id);
    ASSERT_TRUE(browser.Await(chart)) << "tab " << tab;
    const uint64_t loaded = step();
    ASSERT_TRUE(browser.Await(absl::StrCat("Number(", chart, ".dataset.step) > ", loaded + 10))) << "tab " << tab;
    EXPECT_TRUE(browser.Await("document.querySelectorAll('#log > div').length > 10"));
    EXPECT_EQ(browser.Eval("window.streams"), 1) << "tab " << tab;
  }
  browser.ShowTab(first);
  ASSERT_TRUE(browser.Await("!document.hidden"));
  // It goes on, with all that came while it was hidden.
  std::vector<uint64_t> reported;  // a script that reports too often loses some
  for (const json& point : json::parse(cluster_.Muster({"metrics", id, "-o", "json"}).out)) {
    reported.push_back(Number(point["step"]));
  }
  ASSERT_TRUE(browser.Await(absl::StrCat("Number(", chart, ".dataset.step) > ", reported.back() + 10)));
  const json shown = browser.Eval(absl::StrCat(chart, ".data[0].filter((step) => step <= ", reported.back(), ")"));
  EXPECT_EQ(shown, json(reported));
  EXPECT_EQ(browser.Errors(), json::array());
}

// What the ranks of a job do in a step, recorded on its page.
TEST_F(WebPage, TracesTheRanksOfAJob) {
  Start();
  const std::string id = cluster_.Submit({.name = "gang",
                                          .steps = 1'000'000,
                                          .checkpoint_every = 1'000'000,
                                          .extra = "resources: {ranks: 2}\nstrategy: {kind: ddp}"});
  ASSERT_TRUE(cluster_.WaitForStep(id, 10));
  Browser browser;
  const std::string url = SignIn(browser);
  browser.Open(url + "/jobs/" + id);
  ASSERT_TRUE(browser.Await("document.querySelector('#trace')"));
  EXPECT_TRUE(browser.Await(
      "[...document.querySelectorAll('.rank .dim')].filter((at) => /^step \\d/.test(at.textContent)).length === 2"))
      << "each rank at a step: " << browser.Text("#ranks");
  // By the keyboard: opened, recorded, and named box by box.
  browser.Eval("document.querySelector('#trace summary').focus()");
  browser.Press(kEnter);
  ASSERT_TRUE(browser.Await("document.querySelector('#trace').open"));
  for (int presses = 0; presses < 3; ++presses) browser.Press(kTab);
  ASSERT_EQ(browser.Eval("document.activeElement.textContent"), "Record");
  browser.Press(kEnter);
  ASSERT_TRUE(browser.Await("document.querySelector('#traced')"));
  browser.Eval("document.querySelector('#traced').focus()");
  std::set<std::string> rows, ops_shown;
  const int lanes = std::stoi(browser.Eval("document.querySelector('#traced').dataset.rows").get<std::string>());
  EXPECT_GE(lanes, 4) << "at least what the host and the compute stream of two ranks did";
  browser.Press(kRight);
  for (int lane = 0; lane < lanes; ++lane) {
    for (int box = 0; box < 8; ++box) {
      const std::string says = browser.Text("#trace .says");
      const std::vector<std::string> parts = absl::StrSplit(says, ": ");
      ASSERT_EQ(parts.size(), 3u) << says;
      rows.insert(parts[0]);
      ops_shown.insert(absl::StrSplit(parts[1], ", ").operator std::vector<std::string>().back());
      browser.Press(lane % 2 == 0 ? kRight : kLeft);
    }
    browser.Press(kDown);
  }
  for (const char* row : {"rank 0 compute", "rank 1 compute", "rank 0 host", "rank 1 host"}) {
    EXPECT_TRUE(rows.contains(row)) << row;
  }
  std::set<std::string> traced;
  for (const json& rank : cluster_.MusterJson({"trace", id, "--steps", "1", "--by", "op"})) {
    for (const json& row : rank["rows"]) traced.insert(row["what"].get<std::string>());
  }
  int known = 0;
  for (const std::string& op : ops_shown) known += traced.contains(op) ? 1 : 0;
  EXPECT_GE(known, 5) << json(traced) << json(ops_shown);
  EXPECT_EQ(browser.Errors(), json::array());
}

// Answers requests for a trace with one step: a sum of 4 ms, another one after it, and a wait of 2 ms inside the first.
constexpr char kTraceOfExchanges[] = R"(
const real = window.fetch;
const traced = {generation: '1', missing: [], ranks: [{rank: 0, node: 'a', name: 'rank 0 (tensor 0)', steps: [
  {step: '7', begin: '2026-01-31T12:00:00Z', names: ['Forward h.0 m0', 'AllReduce', 'Wait'], spans: [
    {name: 2, lane: 'LANE_EXCHANGE', begin: '3000000', nanoseconds: '2000000'},
    {name: 1, lane: 'LANE_EXCHANGE', begin: '1000000', nanoseconds: '4000000'},
    {name: 1, lane: 'LANE_EXCHANGE', begin: '5000000', nanoseconds: '2000000'},
    {name: 0, lane: 'LANE_COMPUTE', begin: '0', nanoseconds: '9000000'}]}]}]};
window.fetch = async (url, ...rest) =>
  String(url).endsWith('/trace') ? new Response(JSON.stringify(traced)) : real(url, ...rest);)";

TEST_F(WebPage, SpansOfALaneThatOverlapHaveRowsOfTheirOwn) {
  Start();
  const std::string id = cluster_.Submit({.name = "gang", .steps = 1});
  ASSERT_TRUE(cluster_.WaitForState(id, "completed"));
  Browser browser;
  browser.BeforeEachPage(kTraceOfExchanges);
  const std::string url = SignIn(browser);
  browser.Open(url + "/jobs/" + id);
  ASSERT_TRUE(browser.Await("document.querySelector('#trace')"));
  browser.Click("#trace summary");
  browser.Click("#trace button");
  ASSERT_TRUE(browser.Await("document.querySelector('#traced')"));
  browser.Eval("document.querySelector('#traced').focus()");
  std::vector<std::string> says;
  for (const char* key : {kRight, kRight, kDown, kDown}) {
    browser.Press(key);
    says.push_back(browser.Text("#trace .says"));
  }
  EXPECT_EQ(says, (std::vector<std::string>{"rank 0 (tensor 0) exchange: step 7, AllReduce: 4 ms, from 1 ms",
                                            "rank 0 (tensor 0) exchange: step 7, AllReduce: 2 ms, from 5 ms",
                                            "rank 0 (tensor 0) exchange (2): step 7, Wait: 2 ms, from 3 ms",
                                            "rank 0 (tensor 0) compute: step 7, Forward h.0 m0: 9 ms, from 0 ms"}));
  EXPECT_EQ(browser.Eval("document.querySelector('#traced').dataset.rows"), "3");
  EXPECT_EQ(browser.Errors(), json::array());
}

// The shards of each row of the picture of who owns what, in the order of its boxes.
std::map<std::string, std::vector<int>> OwnersShown(Browser& browser, int boxes) {
  std::map<std::string, std::vector<int>> owners;
  browser.Eval("document.querySelector('#ownership').focus()");
  const int rows = std::stoi(browser.Eval("document.querySelector('#ownership').dataset.rows").get<std::string>());
  browser.Press(kRight);
  for (int row = 0; row < rows; ++row) {
    for (int box = 1; box < boxes; ++box) browser.Press(kLeft);
    for (int box = 0; box < boxes; ++box) {
      if (box > 0) browser.Press(kRight);
      const std::vector<std::string> parts =
          absl::StrSplit(browser.Text("#plan .says"), absl::MaxSplits(": shard ", 1));
      if (parts.size() == 2) owners[parts[0]].push_back(std::atoi(parts[1].c_str()));
    }
    browser.Press(kDown);
  }
  return owners;
}

// Two shards of two tensor ranks, which share sequences: shard s of share t is number 2 s + t of the table, as the rank
// that owns it.
TEST_F(WebPage, DrawsTheOwnersOfTensorShares) {
  Start(4);
  const std::string id =
      cluster_.Submit({.name = "shares",
                       .steps = 1,
                       .extra = "resources: {ranks: 4}\nparallel: {tensor: 2, context: 2}\nstrategy: {kind: fsdp}"});
  ASSERT_TRUE(cluster_.WaitForState(id, "completed"));
  Browser browser;
  const std::string url = SignIn(browser);
  browser.Open(url + "/jobs/" + id);
  ASSERT_TRUE(browser.Await("document.querySelectorAll('.rank').length === 4"));
  EXPECT_THAT(browser.Eval("document.querySelectorAll('.rank')[3].title").get<std::string>(),
              HasSubstr("shard 1, context 1, tensor 1"));
  ASSERT_TRUE(browser.Await("document.querySelector('#plan')"));
  browser.Click("#plan summary");
  ASSERT_TRUE(browser.Await("document.querySelector('#ownership')"));
  std::map<std::string, std::vector<int>> owners = OwnersShown(browser, /*boxes=*/2);
  for (const char* unit : {"h.0", "h.1"}) {
    EXPECT_EQ(owners[absl::StrCat(unit, " tensor 0")], (std::vector<int>{0, 2})) << unit;
    EXPECT_EQ(owners[absl::StrCat(unit, " tensor 1")], (std::vector<int>{1, 3})) << unit;
  }
  EXPECT_EQ(browser.Errors(), json::array());
}

TEST_F(WebPage, TextOfStrangersStaysText) {
  Start();
  const std::string evil = "<img src=x onerror=\\\"document.title='owned'\\\"><script>document.title='owned'</script>";
  const std::string id = Run(absl::StrCat("echo \"", evil, "\"; printf '\\033[31mred\\033]0;owned\\007\\n'; exit 3"));
  ASSERT_TRUE(cluster_.WaitForState(id, "failed"));
  Browser browser;
  const std::string url = SignIn(browser);
  browser.Open(url + "/jobs/" + id);
  ASSERT_TRUE(browser.Await("document.querySelectorAll('#log > div').length >= 2"));
  EXPECT_THAT(browser.Text("#log"), HasSubstr("<img src=x onerror="));
  EXPECT_THAT(browser.Text("#failure"), HasSubstr("exited with code 3"));
  EXPECT_THAT(browser.Text("#ranks"), HasSubstr("exited with code 3"));
  EXPECT_EQ(browser.Eval("document.querySelectorAll('img, main script').length"), 0);
  EXPECT_EQ(browser.Eval("document.title"), "Muster");
  browser.Open(url + "/jobs/%3Cimg%20src=x%20onerror=document.title='owned'%3E");
  ASSERT_TRUE(browser.Await("!document.getElementById('notice').hidden"));
  EXPECT_EQ(browser.Eval("document.title"), "Muster");
  // A script that gets into the page by another way is not run.
  browser.Eval(
      "(() => { const s = document.createElement('script'); s.textContent = \"document.title='owned'\"; "
      "document.body.append(s); })()");
  EXPECT_EQ(browser.Eval("document.title"), "Muster");
}

TEST_F(WebPage, ShowsTheAuditLogAndFindsJobsByLabel) {
  Start();
  const std::string id = cluster_.Submit({.name = "labeled", .steps = 20, .extra = "labels: {team: nlp}"});
  const std::string other = cluster_.Submit({.name = "other", .steps = 20});
  cluster_.Muster({"note", id, "<b>looks good</b>"});
  cluster_.Muster({"cancel", "-y", other});
  Browser browser;
  const std::string url = SignIn(browser);
  browser.Open(url + "/audit?method=Cancel");
  ASSERT_TRUE(browser.Await("document.querySelector('#audit tbody tr')"));
  EXPECT_EQ(browser.Eval("document.querySelectorAll('#audit tbody tr').length"), 1);
  EXPECT_EQ(browser.Eval("document.querySelector('#audit tbody tr').children[6].textContent"), "job/" + other);
  EXPECT_EQ(browser.Eval("document.querySelector('#audit-link').hidden"), false);
  const nlohmann::json said = cluster_.MusterJson({"audit", "--method", "Cancel"});
  EXPECT_EQ(browser.Eval("document.querySelector('#audit tbody tr').children[1].textContent"), said[0]["user"]);
  browser.Open(url + "/jobs/" + id);
  ASSERT_TRUE(browser.Await("document.querySelector('#note')"));
  EXPECT_EQ(browser.Eval("document.querySelector('#note').textContent"), "<b>looks good</b>") << "stays text";
  EXPECT_EQ(browser.Eval("document.querySelector('#labels').textContent"), "team=nlp ");
  browser.Open(url + "/jobs");
  ASSERT_TRUE(browser.Await("document.querySelectorAll('.row').length === 2"));
  browser.Eval(
      "(() => { const f = document.querySelector('input[type=search]'); f.value = 'team=nlp'; f.dispatchEvent(new "
      "Event('input')); })()");
  EXPECT_TRUE(browser.Await("document.querySelectorAll('.row').length === 1"));
}

// At 400 pixels, where the table is wider than the page.
TEST_F(WebPage, ListsReservationsAsTheCommandLineDoes) {
  Start();
  const std::string outside = Run("sleep 100000");
  ASSERT_TRUE(cluster_.WaitForState(outside, "running"));
  Browser browser({.width = 400, .height = 800});
  const std::string url = SignIn(browser);
  browser.Open(url + "/reservations");
  ASSERT_TRUE(browser.Await("document.querySelector('#none')?.hidden === false"));
  EXPECT_THAT(browser.Text("#none"), HasSubstr("muster reservations set"));

  // The open page follows what is set and what runs.
  const std::string node = cluster_.MusterJson({"nodes"}).at(0).at("id"), user = Describe(outside)["job"]["owner"];
  const std::string evil = "<img src=x onerror=document.title='owned'>";
  const Ran later = cluster_.Muster({"reservations", "set", "later", "--nodes", node, "--start", "7d", "--for", "8h",
                                     "--user", user, "--user", evil, "--note", evil});
  ASSERT_EQ(later.exit_code, 0) << later.err;
  const Ran lab = cluster_.Muster({"reservations", "set", "lab", "--nodes", node, "--for", "1h", "--user", user});
  ASSERT_EQ(lab.exit_code, 0) << lab.err;
  const std::string inside = Run("sleep 100000", {"--reservation", "lab"});
  const std::string waiting = Run("true", {"--reservation", "later"});
  const std::string rows = "[...document.querySelectorAll('#reservations tbody tr')]";
  ASSERT_TRUE(browser.Await(absl::StrCat("JSON.stringify(", rows,
                                         ".map((row) => row.children[6].textContent)) === JSON.stringify(['", inside,
                                         " running', '", waiting, " queued'])")));
  const json shown = browser.Eval(rows + ".map((row) => [...row.children].map((cell) => cell.textContent))");
  const json said = cluster_.MusterJson({"reservations"});
  ASSERT_EQ(said.size(), 2u);
  const auto time = [&](const json& at) {
    return browser.Eval(absl::StrCat("new Date('", at.get<std::string>(), "').toLocaleString()")).get<std::string>();
  };
  for (size_t i = 0; i < 2; ++i) {
    const json& of = said[i];
    const auto joined = [&](const char* field) {
      return absl::StrJoin(of[field].get<std::vector<std::string>>(), ", ");
    };
    EXPECT_EQ(shown[i], json::array({of["name"], of["state"], time(of["start"]), time(of["end"]), joined("nodes"),
                                     joined("users"), shown[i][6], joined("overlapping_jobs"), of["note"]}));
  }
  EXPECT_EQ(shown[0][7], outside);
  EXPECT_THAT(shown[1][5].get<std::string>(), HasSubstr(evil));
  EXPECT_EQ(browser.Eval("document.querySelectorAll('main img').length"), 0);
  EXPECT_EQ(browser.Eval("document.title"), "Muster");
  EXPECT_LE(browser.Eval("document.documentElement.scrollWidth").get<int>(), 400);

  const std::string until = "lab until " + time(said[0]["end"]);
  browser.Open(url + "/");
  ASSERT_TRUE(browser.Await("document.querySelector('.row.node .reservation a')"));
  EXPECT_EQ(browser.Eval("document.querySelector('.row.node .reservation').textContent"), until);
  browser.Open(url + "/nodes/" + node);
  ASSERT_TRUE(browser.Await("document.querySelector('#reserved')?.hidden === false"));
  EXPECT_EQ(browser.Eval("document.querySelector('#reserved').textContent"), "reserved: " + until);
  browser.Open(url + "/jobs/" + waiting);
  ASSERT_TRUE(browser.Await("document.querySelector('#reservation')?.textContent === 'later'"));
  browser.Eval("document.querySelector('#reservation').focus()");
  browser.Press(kEnter);
  EXPECT_TRUE(browser.Await(rows + ".length === 2"));
  EXPECT_THAT(browser.Url(), EndsWith("/reservations"));
  EXPECT_EQ(browser.Errors(), json::array());
}

TEST_F(WebPage, FitsATelephoneInTheDark) {
  Start();
  const std::string id = cluster_.Submit({.name = "a-name-as-long-as-names-are-allowed-here", .steps = 20});
  ASSERT_TRUE(cluster_.WaitForState(id, "completed"));
  Browser browser({.width = 400, .height = 800, .dark = true});
  const std::string url = SignIn(browser);
  for (const std::string& page :
       {std::string("/"), std::string("/queue"), std::string("/jobs"), "/jobs/" + id, "/compare?jobs=" + id,
        std::string("/projects"), std::string("/reservations"), std::string("/nodes/none"), std::string("/audit")}) {
    browser.Open(url + page);
    browser.Await("document.querySelector('main h1')");
    EXPECT_LE(browser.Eval("document.documentElement.scrollWidth").get<int>(), 400) << page;
  }
  const auto brightness = [&](const std::string& color) {
    return browser
        .Eval(absl::StrCat(
            "(() => { const c = document.createElement('canvas').getContext('2d'); c.fillStyle = ", color,
            "; c.fillRect(0, 0, 1, 1); const d = c.getImageData(0, 0, 1, 1).data; return d[0] + d[1] + d[2]; })()"))
        .get<int>();
  };
  EXPECT_GT(brightness("getComputedStyle(document.body).color"), 500);
  EXPECT_EQ(browser.Eval("getComputedStyle(document.documentElement).colorScheme"), "light dark");
}

TEST_F(WebPage, IsUsedByTheKeyboardAlone) {
  Start();
  const std::string id = Run("sleep 100000");
  ASSERT_TRUE(cluster_.WaitForState(id, "running"));
  Browser browser;
  SignIn(browser);
  const auto tab_to = [&](const std::string& condition) {
    for (int presses = 0; presses < 60; ++presses) {
      if (browser.Eval(absl::StrCat("!!(", condition, ")")) == true) return true;
      browser.Press(kTab);
    }
    return false;
  };
  ASSERT_TRUE(tab_to("document.activeElement.getAttribute('href') === '/jobs'"));
  browser.Press(kEnter);
  ASSERT_TRUE(browser.Await("document.querySelector('input[type=search]')"));
  ASSERT_TRUE(browser.Await("document.querySelector('.row a')"));
  ASSERT_TRUE(tab_to("document.activeElement.type === 'search'"));
  browser.Press(id);
  ASSERT_TRUE(tab_to(absl::StrCat("document.activeElement.textContent === '", id, "'")));
  browser.Press(kEnter);
  ASSERT_TRUE(browser.Await(absl::StrCat("document.querySelector('#job')?.textContent === '", id, "'")));
  EXPECT_THAT(browser.Url(), HasSubstr("/jobs/" + id));
  ASSERT_TRUE(tab_to("document.activeElement.textContent === 'pause'"));
  browser.Press(kEnter);
  EXPECT_TRUE(cluster_.WaitForState(id, "paused"));
  EXPECT_TRUE(browser.Await("document.querySelector('main p')?.textContent.startsWith('paused')"));
  EXPECT_EQ(browser.Eval("document.activeElement.textContent"), "pause") << "what had the focus was drawn anew";
}

TEST_F(WebPage, ComparesJobs) {
  Start();
  const std::string one = cluster_.Submit({.name = "one", .steps = 30, .extra = "optimizer: {kind: adamw, lr: 1e-3}"});
  const std::string two = cluster_.Submit({.name = "two", .steps = 20, .extra = "optimizer: {kind: adamw, lr: 3e-3}"});
  ASSERT_TRUE(cluster_.WaitForState(one, "completed") && cluster_.WaitForState(two, "completed"));
  Browser browser;
  const std::string url = SignIn(browser);
  browser.Open(url + "/jobs");
  for (const std::string& id : {one, two}) {
    ASSERT_TRUE(browser.Await(absl::StrCat("document.querySelector('[aria-label=\"compare ", id, "\"]')")));
    browser.Click(absl::StrCat("[aria-label=\"compare ", id, "\"]"));
  }
  browser.Click("#compare");
  ASSERT_TRUE(browser.Await("document.querySelector('#compared')"));
  EXPECT_THAT(browser.Url(), HasSubstr(absl::StrCat("/compare?jobs=", one, ",", two)));
  const std::string fields =
      browser.Eval("[...document.querySelectorAll('table')].at(-1).innerText").get<std::string>();
  EXPECT_THAT(fields, HasSubstr("train.optimizer.lr\t0.001\t0.003"));
  EXPECT_THAT(fields, HasSubstr("train.steps\t30\t20"));
  const json last = json::parse(browser.Eval("document.querySelector('.chart').dataset.last").get<std::string>());
  ASSERT_EQ(last.size(), 2u);
  EXPECT_NEAR(last[0].get<double>(), cluster_.Losses(one).back(), 1e-6);
  EXPECT_NEAR(last[1].get<double>(), cluster_.Losses(two).back(), 1e-6);
}

TEST_F(WebPage, DrawsOnlyTheJobsInSight) {
  constexpr int kJobs = 1000;
  Start(1, {"--max_queued_jobs_of_user=0", "--max_submits_of_user=0"});
  Browser browser;
  const std::string url = SignIn(browser);
  const std::string running = Run("sleep 100000");
  const std::string refused =
      browser
          .Eval(absl::StrCat(
              "(async () => { const {csrf} = await (await fetch('/api/v1/session')).json(); let left = ", kJobs,
              ", refused = ''; const submit = async () => { while (left-- > 0 && !refused) { const r = await "
              "fetch('/api/v1/jobs', {method: 'POST', ",
              "headers: {'Content-Type': 'application/json', 'X-Muster-CSRF': csrf}, body: JSON.stringify({request_id: "
              "'r' + left, spec: "
              "{name: 'many', exec: {command: ['true']}}})}); ",
              "if (!r.ok) refused = await r.text(); } }; await Promise.all(Array.from({length: 6}, submit)); return "
              "refused; })()"))
          .get<std::string>();
  ASSERT_EQ(refused, "");
  browser.Open(url + "/jobs");
  ASSERT_TRUE(browser.Await(
      absl::StrCat("document.querySelector('#count')?.textContent === '", kJobs + 1, " of ", kJobs + 1, " jobs'"),
      absl::Minutes(2)));
  EXPECT_LE(browser.Eval("document.querySelectorAll('.row').length").get<int>(), 150);
  browser.Eval("(() => { const box = document.querySelector('.rows'); box.scrollTop = box.scrollHeight; })()");
  EXPECT_TRUE(browser.Await(
      "document.querySelectorAll('.row').length > 10 && [...document.querySelectorAll('.row')].at(-1).style.top === '" +
      std::to_string(28 * kJobs) + "px'"));
  EXPECT_LE(browser.Eval("document.querySelectorAll('.row').length").get<int>(), 150);
}

}  // namespace
}  // namespace muster::web
