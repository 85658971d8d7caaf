#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "cli/output/collectives.h"
#include "cli/output/describe.h"
#include "cli/output/format.h"
#include "cli/output/live.h"
#include "cli/output/plot.h"
#include "cli/output/scaling.h"
#include "cli/output/table.h"
#include "cli/output/top.h"
#include "cli/output/trace.h"

namespace muster::cli {
namespace {

const absl::Time kNow = absl::FromUnixSeconds(1'700'000'000);
constexpr Screen kPipe{};
constexpr Screen kTerminal{.terminal = true, .colour = false, .unicode = true, .width = 100};

void SetTime(google::protobuf::Timestamp& time, absl::Duration ago) {
  time.set_seconds(absl::ToUnixSeconds(kNow - ago));
}

v1::Job MakeJob() {
  v1::Job job;
  job.set_id("gpt2-tiny-x7f2");
  job.set_owner("ann");
  job.set_state(v1::JOB_STATE_RUNNING);
  job.mutable_spec()->set_name("gpt2-tiny");
  job.mutable_spec()->mutable_resources()->set_ranks(2);
  job.mutable_spec()->mutable_train()->set_steps(1000);
  job.mutable_spec()->mutable_train()->mutable_model()->mutable_gpt2()->set_size(v1::GPT2_SIZE_TINY);
  job.mutable_spec()->mutable_train()->mutable_strategy()->mutable_zero()->set_stage(3);
  SetTime(*job.mutable_submitted(), absl::Minutes(3));
  SetTime(*job.mutable_started(), absl::Minutes(2));
  job.set_held_seconds(120);
  return job;
}

v1::Job WaitingJob() {
  v1::Job job = MakeJob();
  job.set_state(v1::JOB_STATE_QUEUED);
  job.set_reason("2nd in the queue");
  return job;
}

v1::WatchItem Metrics(uint64_t step, double loss) {
  v1::WatchItem item;
  item.mutable_metrics()->set_step(step);
  item.mutable_metrics()->set_loss(loss);
  item.mutable_metrics()->set_step_seconds(0.1);
  item.mutable_metrics()->set_tokens_per_second(12345);
  return item;
}

v1::WatchItem Event(const std::string& message, v1::JobState state) {
  v1::WatchItem item;
  SetTime(*item.mutable_event()->mutable_time(), absl::ZeroDuration());
  item.mutable_event()->set_message(message);
  item.mutable_event()->set_job_state(state);
  return item;
}

TEST(Format, Numbers) {
  EXPECT_EQ(Count(0), "0");
  EXPECT_EQ(Count(950), "950");
  EXPECT_EQ(Count(999.6), "1.00k");
  EXPECT_EQ(Count(12'345), "12.3k");
  EXPECT_EQ(Count(124e6), "124M");
  EXPECT_EQ(Count(1.558e9), "1.56B");
  EXPECT_EQ(Significant(2.13449), "2.134");
  EXPECT_EQ(Significant(0.0003), "0.0003");
  EXPECT_EQ(Grouped(0), "0");
  EXPECT_EQ(Grouped(999), "999");
  EXPECT_EQ(Grouped(1'234'567), "1,234,567");
  EXPECT_EQ(Grouped(1, "step", "steps"), "1 step");
  EXPECT_EQ(Grouped(1'234, "step", "steps"), "1,234 steps");
}

TEST(Format, Times) {
  EXPECT_EQ(Age(absl::Seconds(-3)), "0s");
  EXPECT_EQ(Age(absl::Seconds(119)), "119s");
  EXPECT_EQ(Age(absl::Seconds(120)), "2m");
  EXPECT_EQ(Age(absl::Hours(5)), "5h");
  EXPECT_EQ(Age(absl::Hours(49)), "2d");
  EXPECT_EQ(Span(absl::Seconds(48)), "48s");
  EXPECT_EQ(Span(absl::Milliseconds(59'700)), "1m 00s");
  EXPECT_EQ(Span(absl::Seconds(80)), "1m 20s");
  EXPECT_EQ(Span(absl::Minutes(125)), "2h 05m");
  EXPECT_EQ(Span(absl::Hours(76)), "3d 4h");
}

TEST(Format, AJobEndsByItsStepsOrItsTimeLimit) {
  v1::Job job;
  job.set_state(v1::JOB_STATE_RUNNING);
  job.mutable_spec()->mutable_train()->set_steps(1000);
  v1::MetricPoint metrics;
  metrics.set_step(100);
  metrics.set_step_seconds(2);
  EXPECT_EQ(TimeLeft(job, metrics), "30m 00s");
  EXPECT_EQ(LimitLeft(job, absl::Hours(9)), absl::InfiniteDuration());
  job.mutable_spec()->set_time_limit("1h");
  EXPECT_EQ(TimeLeft(job, metrics), "30m 00s");
  job.set_held_seconds(50 * 60);
  EXPECT_EQ(TimeLeft(job, metrics), "10m 00s");
  job.set_held_seconds(61 * 60);
  EXPECT_EQ(TimeLeft(job, metrics), "0s");
}

TEST(Format, TextOfOthersCannotMoveTheCursor) {
  EXPECT_EQ(OneLine("a\x1b[2Jb\nc\td\r\x7f"), "a\\x1b[2Jb c d\\x0d\\x7f");
  EXPECT_EQ(OneLine("\xc2\x9b"
                    "31m ä"),
            "\\x9b31m ä");
  EXPECT_EQ(Lines("a\r\nb\tc\x07"), "a\nb\tc\\x07");
  EXPECT_EQ(OneLine("byte \x9b[2J, reversed \xe2\x80\xae"), "byte \\x9b[2J, reversed \\u202e");
  EXPECT_EQ(Cut("schön hier", 6, true), "schön…");
  EXPECT_EQ(Cut("schön hier", 6, false), "schön~");
  EXPECT_EQ(Cut("kurz", 6, true), "kurz");
}

TEST(Table, AlignsWithoutBorders) {
  Table table({{"JOB"}, {"STEP", true}, {"REASON"}});
  table.Add({"a", "1", "short"});
  table.Add({"längerer", "1000", ""});
  EXPECT_EQ(table.Render(kPipe),
            "JOB       STEP  REASON\n"
            "a            1  short\n"
            "längerer  1000  -\n");
}

TEST(Table, CutsFreeTextOnATerminalOnly) {
  Table table({{"JOB"}, {.title = "REASON", .narrow = Narrow::kCut}});
  table.Add({"a", "a reason that is much too long for this terminal"});
  EXPECT_EQ(table.Render({.terminal = true, .unicode = true, .width = 30}),
            "JOB  REASON\n"
            "a    a reason that is much to…\n");
  EXPECT_EQ(table.Render(kPipe), "JOB  REASON\na    a reason that is much too long for this terminal\n");
}

TEST(Table, LeavesOutTheMostOptionalColumnsFirst) {
  Table table({{"JOB"}, {"FROM", false, 2}, {"STATE", false, 1}, {"METHOD"}});
  table.Add({"a", "here", "live", "Get"});
  const auto at = [&](int width) { return table.Render({.terminal = true, .width = width}); };
  EXPECT_EQ(at(24), "JOB  FROM  STATE  METHOD\na    here  live   Get\n");
  EXPECT_EQ(at(23), "JOB  STATE  METHOD\na    live   Get\n");
  EXPECT_EQ(at(17), "JOB  METHOD\na    Get\n");
  EXPECT_EQ(at(5), at(17));
}

TEST(Table, LeavesOutOptionalColumnsAndKeepsNamesWhole) {
  Table table({{"JOB"}, {"STEP", true}, {"LOSS", true, 1}, {"AGE", true, 1}, {"REASON"}});
  table.Add({"a-name-of-21-columns-", "10/100", "3.25", "7s", "because"});
  const auto at = [&](int width) { return table.Render({.terminal = true, .width = width}); };
  EXPECT_EQ(at(52),
            "JOB                      STEP  LOSS  AGE  REASON\n"
            "a-name-of-21-columns-  10/100  3.25   7s  because\n");
  EXPECT_EQ(at(48),
            "JOB                      STEP  LOSS  REASON\n"
            "a-name-of-21-columns-  10/100  3.25  because\n");
  EXPECT_EQ(at(40),
            "JOB                      STEP  REASON\n"
            "a-name-of-21-columns-  10/100  because\n");
  EXPECT_EQ(at(30),
            "JOB                      STEP  REASON\n"
            "a-name-of-21-columns-  10/100  because\n")
      << "overflows";
}

TEST(Table, LeavesOutOptionalColumnsBeforeAReasonIsUnreadable) {
  Table table({{"JOB"}, {"LOSS", true, 1}, {"AGE", true, 1}, {.title = "REASON", .narrow = Narrow::kCut}});
  table.Add({"a-0001", "3.25", "7s", "1st in the queue: 4 slots needed, 2 free"});
  const auto at = [&](int width) { return table.Render({.terminal = true, .width = width}); };
  EXPECT_EQ(at(43),
            "JOB     LOSS  AGE  REASON\n"
            "a-0001  3.25   7s  1st in the queue: 4 slo~\n");
  EXPECT_EQ(at(42),
            "JOB     LOSS  REASON\n"
            "a-0001  3.25  1st in the queue: 4 slots n~\n");
  EXPECT_EQ(at(20),
            "JOB\n"
            "  REASON\n"
            "a-0001\n"
            "  1st in the queue:~\n");
}

TEST(Table, WrapsFreeTextInItsColumnOrBelowTheRow) {
  Table table({{"TIME"}, {"USER"}, {.title = "OUTCOME", .narrow = Narrow::kWrap}});
  table.Add({"12:00:00", "ann", "PERMISSION_DENIED: eve may not cancel"});
  table.Add({"12:00:01", "bob", "OK"});
  const auto at = [&](int width) { return table.Render({.terminal = true, .width = width}); };
  EXPECT_EQ(at(42),
            "TIME      USER  OUTCOME\n"
            "12:00:00  ann   PERMISSION_DENIED: eve may\n"
            "                not cancel\n"
            "12:00:01  bob   OK\n");
  EXPECT_EQ(at(30),
            "TIME      USER\n"
            "  OUTCOME\n"
            "12:00:00  ann\n"
            "  PERMISSION_DENIED: eve may\n"
            "  not cancel\n"
            "12:00:01  bob\n"
            "  OK\n");
  EXPECT_EQ(table.Render(kPipe),
            "TIME      USER  OUTCOME\n"
            "12:00:00  ann   PERMISSION_DENIED: eve may not cancel\n"
            "12:00:01  bob   OK\n");
}

TEST(Table, PrintsBlocksWhereRowsDoNotFit) {
  Table table({{"NODE"}, {"HOSTNAME"}, {"JOBS"}});
  table.Add({"node-a", "a.example.com", "some words"});
  table.Add({"node-b", "", "x"});
  const auto at = [&](int width) { return table.RenderOrBlocks({.terminal = true, .width = width}); };
  EXPECT_EQ(at(33), table.Render(kPipe));
  EXPECT_EQ(at(23),
            "NODE      node-a\n"
            "HOSTNAME  a.example.com\n"
            "JOBS      some words\n"
            "\n"
            "NODE      node-b\n"
            "JOBS      x\n");
  EXPECT_TRUE(absl::StrContains(at(16), "JOBS      some\n          words\n")) << at(16);
}

TEST(Wrapped, BreaksAtBlanksBelowTheValue) {
  EXPECT_EQ(Wrapped("Goodput:   40% of 2 s: training\n  2 of many words\n\nshort\n", 20),
            "Goodput:   40% of 2\n           s:\n           training\n  2 of many words\n\nshort\n");
  EXPECT_EQ(Wrapped("  event words that go on\n", 16), "  event words\n    that go on\n");
  EXPECT_EQ(Wrapped("\x1b[32mgreen\x1b[0m words\n", 11), "\x1b[32mgreen\x1b[0m words\n");
  EXPECT_EQ(Wrapped("\x1b[33mnote\x1b[0m: two words\n", 12), "\x1b[33mnote\x1b[0m: two\n      words\n");
  EXPECT_EQ(Wrapped("any text\n", 0), "any text\n");
}

TEST(Wrapped, BreaksLongWordsAfterASlash) {
  EXPECT_EQ(Wrapped("see /a/path/longer/than/that for it\n", 14), "see\n  /a/path/\n  longer/than/\n  that for it\n");
  EXPECT_EQ(Wrapped("Folder: /var/lib/muster/a\n", 20), "Folder: /var/lib/\n        muster/a\n");
  EXPECT_EQ(Wrapped("/abcdefghijklmnop\n", 12), "/abcdefghijk\n  lmnop\n") << "not after the first one";
  EXPECT_EQ(Wrapped("ääääääääääääää\n", 12), "ääääääääääää\n  ää\n");
  // No room for both the name and the value.
  EXPECT_EQ(Wrapped("Folder: /var/lib\n", 12), "Folder: /var/lib\n");
}

TEST(Wrapped, LeavesCommandsWhole) {
  EXPECT_EQ(Wrapped("next: muster watch a   muster logs -f a\n", 39), "next: muster watch a   muster logs -f a\n");
  EXPECT_EQ(Wrapped("next: muster watch a   muster logs -f a\n", 38), "next: muster watch a\n      muster logs -f a\n");
  EXPECT_EQ(Wrapped("a goes on.   watch: muster watch a   end: muster cancel a\n", 24),
            "a goes on.\n  watch: muster watch a\n  end: muster cancel a\n");
}

TEST(Table, ColoursDoNotCountAsWidth) {
  Table table({{"STATE"}, {"X"}});
  table.Add({Cell("up", Colour::kGreen), "1"});
  EXPECT_EQ(table.Render({.terminal = true, .colour = true, .width = 80}),
            "\x1b[2mSTATE\x1b[0m  \x1b[2mX\x1b[0m\n\x1b[32mup\x1b[0m     1\n");
}

TEST(JobTable, ShowsJobsOneALine) {
  v1::ListJobsReply reply;
  *reply.add_jobs()->mutable_job() = MakeJob();
  reply.mutable_jobs(0)->add_nodes("node-a");
  reply.mutable_jobs(0)->mutable_last_metrics()->set_step(450);
  reply.mutable_jobs(0)->mutable_last_metrics()->set_loss(2.13449);
  v1::Job& queued = *reply.add_jobs()->mutable_job();
  queued = MakeJob();
  queued.set_id("b-0001");
  queued.set_state(v1::JOB_STATE_QUEUED);
  queued.set_reason("1st in the queue: 1 slot needed, 0 free");
  EXPECT_EQ(JobTable(reply, false, kPipe, kNow).Render(kPipe),
            "JOB             STATE        STEP   LOSS  TOKENS/S    TIME  LEFT  AGE  REASON\n"
            "gpt2-tiny-x7f2  running  450/1000  2.134         -  2m 00s     -   3m  -\n"
            "b-0001          queued     0/1000      -         -  2m 00s     -   3m  1st in the queue: 1 slot needed, 0 "
            "free\n");
  reply.mutable_jobs(0)->mutable_job()->add_labels("stage=test");
  reply.mutable_jobs(0)->mutable_job()->add_labels("team=nlp");
  reply.mutable_jobs(0)->mutable_job()->set_note("looks good");
  EXPECT_EQ(
      JobTable(reply, true, kPipe, kNow).Render(kPipe),
      "JOB             STATE        STEP   LOSS  TOKENS/S    TIME  LEFT  AGE  ENDS  OWNER  MODEL      STRATEGY  NODES  "
      " RANKS  PRIORITY"
      "  GENERATION  RESTARTS  LABELS               NOTE        REASON\n"
      "gpt2-tiny-x7f2  running  450/1000  2.134         -  2m 00s     -   3m  -     ann    gpt2 tiny  zero 3    node-a "
      "     2         0"
      "           0         0  stage=test,team=nlp  looks good  -\n"
      "b-0001          queued     0/1000      -         -  2m 00s     -   3m  -     ann    gpt2 tiny  zero 3    -      "
      "     2         0"
      "           0         0  -                    -           1st in the queue: 1 slot needed, 0 free\n");
}

// Started an hour ago, it ran for 10 minutes, was paused, and has run for 90.4 s since.
TEST(JobTable, TimeIsWithoutPausesAndTheQueue) {
  v1::ListJobsReply reply;
  v1::Job& job = *reply.add_jobs()->mutable_job();
  job = MakeJob();
  SetTime(*job.mutable_submitted(), absl::Hours(2));
  SetTime(*job.mutable_started(), absl::Hours(1));
  job.set_held_seconds(690.4);
  job.mutable_time_breakdown()->set_paused(2909.6);
  *reply.add_jobs()->mutable_job() = job;
  reply.mutable_jobs(1)->mutable_job()->set_state(v1::JOB_STATE_COMPLETED);
  SetTime(*reply.mutable_jobs(1)->mutable_job()->mutable_ended(), absl::Minutes(1));
  EXPECT_EQ(JobTable(reply, false, kPipe, kNow).Render(kPipe),
            "JOB             STATE        STEP  LOSS  TOKENS/S     TIME  LEFT  AGE  REASON\n"
            "gpt2-tiny-x7f2  running    0/1000     -         -  11m 30s     -   2h  -\n"
            "gpt2-tiny-x7f2  completed  0/1000     -         -  11m 30s     -   2h  -\n");
}

TEST(JobTable, ShowsTheTimeLeftOnNarrowTerminalsToo) {
  v1::ListJobsReply reply;
  *reply.add_jobs()->mutable_job() = MakeJob();
  v1::MetricPoint& metrics = *reply.mutable_jobs(0)->mutable_last_metrics();
  metrics.set_step(450);
  metrics.set_loss(2.13449);
  metrics.set_step_seconds(2);  // 550 more
  v1::Job& queued = *reply.add_jobs()->mutable_job();
  queued = MakeJob();
  queued.set_id("b-0001");
  queued.set_state(v1::JOB_STATE_QUEUED);
  queued.set_reason("1st in the queue: 1 slot needed, 0 free");
  const auto at = [&](int width) {
    const Screen screen = {.terminal = true, .unicode = true, .width = width};
    return JobTable(reply, false, screen, kNow).RenderOrBlocks(screen);
  };
  EXPECT_EQ(at(80),
            "JOB             STATE        STEP   LOSS     LEFT  REASON\n"
            "gpt2-tiny-x7f2  running  450/1000  2.134  18m 20s  -\n"
            "b-0001          queued     0/1000      -        -  1st in the queue: 1 slot nee…\n");
  EXPECT_EQ(at(60),
            "JOB             STATE        STEP     LEFT\n"
            "  REASON\n"
            "gpt2-tiny-x7f2  running  450/1000  18m 20s\n"
            "b-0001          queued     0/1000        -\n"
            "  1st in the queue: 1 slot needed, 0 free\n");
  // The longest name that a job may have, and its four characters.
  const std::string longest = std::string(40, 'n') + "-x7f2";
  reply.mutable_jobs(0)->mutable_job()->set_id(longest);
  EXPECT_EQ(at(60), "JOB       " + longest +
                        "\n"
                        "STATE     running\n"
                        "STEP      450/1000\n"
                        "LOSS      2.134\n"
                        "TIME      2m 00s\n"
                        "LEFT      18m 20s\n"
                        "AGE       3m\n"
                        "\n"
                        "JOB       b-0001\n"
                        "STATE     queued\n"
                        "STEP      0/1000\n"
                        "TIME      2m 00s\n"
                        "AGE       3m\n"
                        "REASON    1st in the queue: 1 slot needed, 0 free\n");
  for (const int width : {60, 70, 80, 90, 120}) {
    const std::string text = at(width);
    EXPECT_TRUE(absl::StrContains(text, "18m 20s")) << text;
    for (const absl::string_view line : absl::StrSplit(text, '\n')) EXPECT_LE(Width(line), width) << line;
  }
}

TEST(Clock, IsLocalOnATerminalAndUtcElsewhere) {
  const absl::Time time = absl::FromUnixSeconds(1'000'000'000);
  const Screen terminal = {.terminal = true};
  EXPECT_EQ(DateAndTime(kPipe, time), "2001-09-09T01:46:40Z");
  EXPECT_EQ(TimeOfDay(kPipe, time), "01:46:40Z");
  const absl::CivilSecond local = absl::ToCivilSecond(time, absl::LocalTimeZone());
  EXPECT_EQ(DateAndTime(terminal, time), absl::StrFormat("%04d-%02d-%02d %02d:%02d:%02d", local.year(), local.month(),
                                                         local.day(), local.hour(), local.minute(), local.second()));
  EXPECT_EQ(TimeOfDay(terminal, time), DateAndTime(terminal, time).substr(11));
}

class TopTest : public testing::Test {
 protected:
  TopTest() {
    for (int i = 0; i < 20; ++i) {
      v1::JobSummary& summary = *jobs_.add_jobs();
      summary.mutable_job()->set_id(absl::StrFormat("job-%02d", i));
      summary.mutable_job()->set_state(v1::JOB_STATE_RUNNING);
      summary.mutable_job()->mutable_spec()->mutable_train()->set_steps(100);
      summary.mutable_last_metrics()->set_step(10);
      summary.mutable_last_metrics()->set_step_seconds(2);
      summary.mutable_last_metrics()->set_communication_seconds(0.5);
      summary.mutable_last_metrics()->set_tokens_per_second(i == 7 ? 900 : 100 + i);
    }
    nodes_.add_nodes()->set_id("node-a");
  }
  std::string Page(const Screen& screen = kPipe) { return TopPage(jobs_, nodes_, screen, kNow, view_); }

  v1::ListJobsReply jobs_;
  v1::ListNodesReply nodes_;
  TopView view_;
};

TEST_F(TopTest, SortsAndReverses) {
  EXPECT_LT(Page().find("job-00"), Page().find("job-07"));
  view_.sort = TopSort::kTokens;
  EXPECT_LT(Page().find("job-07"), Page().find("job-19"));
  EXPECT_LT(Page().find("job-19"), Page().find("job-00"));
  EXPECT_TRUE(PressTopKey("r", view_));
  EXPECT_LT(Page().find("job-00"), Page().find("job-07"));
  EXPECT_NE(Page().find("75%"), std::string::npos) << "1.5 of 2 seconds of a step compute\n" << Page();
  EXPECT_NE(Page().find("3m 00s"), std::string::npos) << "90 steps of 2 s";
}

TEST_F(TopTest, FitsTheTerminalAndScrolls) {
  for (const int height : {6, 10, 16, 24, 40}) {
    for (const int width : {60, 80, 120}) {
      view_ = TopView{.keys = true};
      const std::string page = Page({.terminal = true, .width = width, .height = height});
      EXPECT_LT(std::count(page.begin(), page.end(), '\n'), height) << page;
      EXPECT_NE(page.find("job-00"), std::string::npos) << page;
    }
  }
  const Screen screen = {.terminal = true, .width = 100, .height = 14};
  view_ = TopView{.keys = true};
  EXPECT_TRUE(PressTopKey("j", view_));
  EXPECT_EQ(Page(screen).find("job-00"), std::string::npos);
  for (int i = 0; i < 9; ++i) PressTopKey("\x1b[6~", view_);
  EXPECT_NE(Page(screen).find("job-19"), std::string::npos);
  EXPECT_NE(Page(screen).find("-20 of 20"), std::string::npos) << Page(screen);
  PressTopKey("g", view_);
  EXPECT_NE(Page(screen).find("job-00"), std::string::npos);
  EXPECT_FALSE(PressTopKey("x", view_));
}

TEST_F(TopTest, NeverScrollsItsTerminal) {
  for (v1::JobSummary& summary : *jobs_.mutable_jobs()) {
    summary.mutable_job()->set_id(absl::StrCat("a-job-whose-name-is-wider-than-its-ter-", summary.job().id()));
  }
  for (const auto& [width, height] : std::vector<std::pair<int, int>>{{50, 10}, {20, 5}, {20, 3}, {1, 1}, {60, 6}}) {
    view_ = TopView{.keys = true};
    const Screen screen = {.terminal = true, .colour = true, .unicode = true, .width = width, .height = height};
    const std::string page = Page(screen);
    if (height >= 5) {
      const std::vector<std::string> lines = absl::StrSplit(absl::StripSuffix(page, "\n"), '\n');
      EXPECT_LE(lines.size(), static_cast<size_t>(height)) << "no row is left out\n" << page;
    }
    const std::vector<std::string> rows = absl::StrSplit(OnScreen(page, screen), '\n');
    EXPECT_LE(rows.size(), static_cast<size_t>(height)) << page;
    for (const std::string& row : rows) {
      EXPECT_LE(Width(std::regex_replace(row, std::regex("\x1b\\[[0-9]*m"), "")), width) << row;
    }
  }
}

TEST(OnScreen, CutsLinesAndRows) {
  const Screen screen = {.terminal = true, .width = 4, .height = 2};
  EXPECT_EQ(OnScreen("abcd\nabcde\nf\n", screen), "abcd\nabc~");
  EXPECT_EQ(OnScreen("\x1b[1mabcd\x1b[0m\n\x1b[1mab\x1b[0mcde\n", screen),
            "\x1b[1mabcd\x1b[0m\n\x1b[1mab\x1b[0mc~\x1b[0m");
  EXPECT_EQ(OnScreen("\x1b[1mabcde\x1b[0m\n", screen), "\x1b[1mabc~\x1b[0m");
  EXPECT_EQ(OnScreen("a\nb\nc\n", {}), "a\nb\nc");
}

TEST_F(TopTest, ShowsAsManyNodesAsFitAndTurnsTheirPages) {
  nodes_.clear_nodes();
  for (int i = 1; i <= 9; ++i) nodes_.add_nodes()->set_id(absl::StrCat("node-", i));
  view_.keys = true;
  Screen screen = {.terminal = true, .width = 80, .height = 12};
  // Which nodes, which jobs and what the last line says of the nodes.
  const auto shown = [&] {
    const std::string page = Page(screen);
    EXPECT_LT(std::count(page.begin(), page.end(), '\n'), screen.height) << page;
    std::string nodes;
    for (const absl::string_view line : absl::StrSplit(page, '\n')) {
      if (absl::StartsWith(line, "node-")) absl::StrAppend(&nodes, line.substr(5, 1));
    }
    const std::string keys = page.substr(page.rfind('\n') + 1);
    return absl::StrCat(nodes, "; ", keys.substr(0, keys.find("   q quit")));
  };
  EXPECT_EQ(shown(), "12; jobs 1-3 of 20   nodes 1-2 of 9 (n: next)");
  for (const char* next :
       {"34; jobs 1-3 of 20   nodes 3-4 of 9 (n: next)", "56; jobs 1-3 of 20   nodes 5-6 of 9 (n: next)",
        "78; jobs 1-3 of 20   nodes 7-8 of 9 (n: next)", "9; jobs 1-4 of 20   nodes 9-9 of 9 (n: next)",
        "12; jobs 1-3 of 20   nodes 1-2 of 9 (n: next)"}) {
    EXPECT_TRUE(PressTopKey("n", view_));
    EXPECT_EQ(shown(), next);
  }
  screen.height = 9;
  EXPECT_EQ(shown(), "1; jobs 1-1 of 20   nodes 1-1 of 9 (n: next)");
  screen.height = 8;
  EXPECT_EQ(shown(), "; jobs 1-3 of 20   9 nodes do not fit");
  screen.height = 24;
  view_.first_node = 4;
  EXPECT_EQ(shown(), "123456789; jobs 1-8 of 20");
}

TEST_F(TopTest, LeavesOutPartsOfItsLinesOnANarrowTerminal) {
  view_.keys = true;
  const std::string page = Page({.terminal = true, .unicode = true, .width = 60, .height = 20});
  EXPECT_TRUE(absl::StartsWith(page, "jobs: 20 running, 0 waiting   slots: 0 of 0 busy\n")) << page;
  EXPECT_TRUE(absl::EndsWith(page, "of 20   q quit   s sort: submitted   r reverse")) << page;
}

TEST_F(TopTest, ShowsHowBusyNodesAndJobsAre) {
  EXPECT_EQ(Page().find("MFU"), std::string::npos) << "nothing has GPUs";
  EXPECT_EQ(Page().find("GPU"), std::string::npos);
  v1::Node& node = *nodes_.mutable_nodes(0);
  node.set_state(v1::NODE_STATE_LIVE);
  v1::NodeUse& use = *node.mutable_use();
  use.set_busy_cores(12.34), use.set_cores(64);
  use.set_used_memory_bytes(uint64_t{96} << 30), use.set_memory_bytes(uint64_t{512} << 30);
  for (uint32_t i = 0; i < 2; ++i) {
    v1::Slot& slot = *node.add_slots();
    slot.set_index(i);
    slot.set_device(v1::DEVICE_CUDA);
    slot.set_model("NVIDIA H100 80GB HBM3");
    slot.set_state(v1::SLOT_STATE_USED);
    slot.set_memory_bytes(uint64_t{80} << 30);
    slot.set_job("job-00");
    v1::DeviceUse& device = *use.add_devices();
    device.set_slot(i);
    device.set_busy(i == 0 ? 0.9 : 0.7);
    device.set_used_memory_bytes(uint64_t{30} << 30);
  }
  v1::JobSummary& job = *jobs_.mutable_jobs(0);
  job.mutable_job()->mutable_spec()->mutable_train()->mutable_precision()->set_compute(v1::DTYPE_BF16);
  job.mutable_last_metrics()->set_model_flops_per_second(791.2e12);  // of 2 x 989
  const std::string page = Page();
  const auto line_of = [&](const std::string& word) {
    const size_t at = page.find("\n" + word) + 1;
    return page.substr(at, page.find('\n', at) - at);
  };
  EXPECT_EQ(line_of("job-00"),
            "job-00  running  10/100     -       100         2s    791.2  40%   75%       -  3m 00s    -  -");
  EXPECT_EQ(line_of("node-a"), "node-a  live   cuda      2/2     12.3/64  96 GiB/512 GiB  80%  60 GiB/160 GiB  job-00");
}

TEST(NodeTable, CountsFreeSlotsAndJobs) {
  v1::ListNodesReply reply;
  v1::Node& node = *reply.add_nodes();
  node.set_id("node-a");
  node.set_state(v1::NODE_STATE_LIVE);
  node.set_draining(true);
  SetTime(*node.mutable_registered(), absl::Hours(3));
  for (int i = 0; i < 3; ++i) {
    v1::Slot& slot = *node.add_slots();
    slot.set_device(v1::DEVICE_CPU);
    slot.set_state(i == 0 ? v1::SLOT_STATE_FREE : v1::SLOT_STATE_USED);
    if (i > 0) slot.set_job("gpt2-tiny-x7f2");
  }
  EXPECT_EQ(NodeTable(reply, false, kNow).Render(kPipe),
            "NODE    STATE          SLOTS  FREE  DEVICE  AGE  JOBS\n"
            "node-a  live,draining      3     1  cpu      3h  gpt2-tiny-x7f2\n");
}

TEST(LinkTable, ShowsBitsAndMilliseconds) {
  v1::NodeLink good;
  good.set_from("a");
  good.set_node("b");
  good.set_bytes_per_second(12.02e6);
  good.set_latency_seconds(1.08e-3);
  SetTime(*good.mutable_measured(), absl::Minutes(3));
  v1::NodeLink slow = good;
  slow.set_from("b");
  slow.set_node("a");
  slow.set_bytes_per_second(1.2e6);
  slow.set_usual_bytes_per_second(12e6);
  EXPECT_EQ(LinkTable({good, slow}, kNow).Render(kPipe),
            "FROM  TO    BANDWIDTH      USUAL  LATENCY  MEASURED\n"
            "a     b   96.2 Mbit/s          -  1.08 ms    3m ago\n"
            "b     a    9.6 Mbit/s  96 Mbit/s  1.08 ms    3m ago\n");
  good.mutable_core()->set_socket_bytes_per_second(5e8);
  good.mutable_core()->set_int8_seconds(4e-9);
  EXPECT_EQ(LinkTable({good, slow}, kNow).Render(kPipe),
            "FROM  TO    BANDWIDTH      USUAL  LATENCY  CORE-SOCKETS  CORE-INT8  MEASURED\n"
            "a     b   96.2 Mbit/s          -  1.08 ms      4 Gbit/s       4 ms    3m ago\n"
            "b     a    9.6 Mbit/s  96 Mbit/s  1.08 ms             -          -    3m ago\n");
}

TEST(NodeTable, SaysWhichNodesAreNotReady) {
  v1::ListNodesReply reply;
  v1::Node& node = *reply.add_nodes();
  node.set_id("node-a");
  node.set_state(v1::NODE_STATE_LIVE);
  v1::PreflightCheck& check = *node.mutable_preflight()->add_checks();
  check.set_name("device 1");
  EXPECT_TRUE(absl::StrContains(NodeTable(reply, false, kNow).Render(kPipe), "live,not ready"));
  EXPECT_EQ(NodeNotes(reply), "node-a takes no new ranks: its worker is checking the machine\n");
  node.mutable_preflight()->mutable_time()->set_seconds(1);
  EXPECT_FALSE(absl::StrContains(NodeTable(reply, false, kNow).Render(kPipe), "not ready"));
  EXPECT_EQ(NodeNotes(reply), "");
  check.set_problem("no answer within 1m30s");
  EXPECT_EQ(NodeNotes(reply),
            "node-a takes no new ranks: device 1: no answer within 1m30s\n"
            "  it is checked every minute; to check it now: muster undrain node-a\n");
}

TEST(NodeTable, SaysWhichNodesAreFaulty) {
  v1::ListNodesReply reply;
  v1::Node& node = *reply.add_nodes();
  node.set_id("node-a");
  node.set_state(v1::NODE_STATE_LIVE);
  EXPECT_EQ(NodeNotes(reply), "");
  node.set_draining(true);
  node.set_drain_reason("3 faults in 10m: x-1, no such file");
  EXPECT_TRUE(absl::StrContains(NodeTable(reply, false, kNow).Render(kPipe), "live,draining,faulty"));
  EXPECT_EQ(NodeNotes(reply),
            "node-a was drained by the coordinator after 3 faults in 10m: x-1, no such file\n"
            "  once it is repaired: muster undrain node-a\n");
}

TEST(NodeTable, NamesWhatHoldsAStuckSlotAndWhatToDoWithLostNodes) {
  v1::ListNodesReply reply;
  v1::Node& node = *reply.add_nodes();
  node.set_id("node-a");
  node.set_state(v1::NODE_STATE_LIVE);
  v1::Slot& slot = *node.add_slots();
  slot.set_index(2);
  slot.set_state(v1::SLOT_STATE_STUCK);
  slot.set_stuck("rank 0 of generation 1 of j-1: process 4711 (state D)");
  v1::Node& lost = *reply.add_nodes();
  lost.set_id("node-b");
  lost.set_state(v1::NODE_STATE_LOST);
  EXPECT_TRUE(absl::StrContains(NodeTable(reply, false, kNow).Render(kPipe), "live,stuck"));
  EXPECT_EQ(NodeNotes(reply),
            "slot 2 of node-a is stuck: rank 0 of generation 1 of j-1: process 4711 (state D)\n"
            "  the process was killed but does not exit: see /proc/PID/stack on the node, or reboot it\n"
            "node-b is lost; if it is gone for good: muster nodes forget node-b\n");
}

TEST(NodeTable, WideNamesTheInstructionsOfTheCpu) {
  v1::ListNodesReply reply;
  for (const auto& [id, device, model] :
       {std::tuple("a", v1::DEVICE_CPU, "AMD EPYC 7B13"), std::tuple("b", v1::DEVICE_CUDA, "NVIDIA H200")}) {
    v1::Node& node = *reply.add_nodes();
    node.set_id(id);
    node.set_state(v1::NODE_STATE_LIVE);
    SetTime(*node.mutable_registered(), absl::Hours(3));
    node.mutable_cpu()->set_model(device == v1::DEVICE_CPU ? "AMD EPYC 7B13" : "Xeon 8481C");
    node.mutable_cpu()->set_instruction_set(device == v1::DEVICE_CPU ? "AVX2" : "AMX BF16");
    if (id == std::string("a")) {
      node.add_labels("rack=a"), node.add_labels("zone=1");
      node.mutable_use()->set_busy_cores(1.5), node.mutable_use()->set_cores(4);
      node.mutable_use()->set_used_memory_bytes(uint64_t{1} << 30),
          node.mutable_use()->set_memory_bytes(uint64_t{8} << 30);
    }
    // One that has begun, and one that is to come.
    node.mutable_reservation()->set_name(id == std::string("a") ? "maint" : "workshop");
    SetTime(*node.mutable_reservation()->mutable_start(), id == std::string("a") ? absl::Hours(1) : -absl::Hours(3));
    SetTime(*node.mutable_reservation()->mutable_end(), -absl::Hours(4));
    node.add_slots()->set_device(device);
    node.mutable_slots(0)->set_model(model);
    node.mutable_slots(0)->set_memory_bytes(uint64_t{1} << 30);
  }
  EXPECT_EQ(NodeTable(reply, true, kNow).Render(kPipe),
            "NODE  STATE  SLOTS  FREE  DEVICE  AGE  HOSTNAME  VERSION  MEMORY  MODEL          CPU                   "
            "BUSY CORES  USED MEMORY  LABELS         RESERVATION         JOBS\n"
            "a     live       1     0  cpu      3h  -         -        1 GiB   AMD EPYC 7B13  AVX2                  "
            "1.5/4       1 GiB/8 GiB  rack=a,zone=1  maint for 4h 00m    -\n"
            "b     live       1     0  cuda     3h  -         -        1 GiB   NVIDIA H200    Xeon 8481C, AMX BF16  "
            "-           -            -              workshop in 3h 00m  -\n");
}

TEST(MetricsTable, LeavesOutWhatWasNotMeasured) {
  v1::MetricPoint point;
  point.set_step(10);
  point.set_loss(5.5);
  point.set_learning_rate(3e-4);
  point.set_step_seconds(0.1234);
  point.set_peak_memory_bytes(1 << 20);
  EXPECT_EQ(MetricsTable({point}).Render(kPipe),
            "STEP  LOSS  GRAD-NORM      LR  TOKENS/S  STEP-TIME  MEMORY  VAL-LOSS\n"
            "  10   5.5          -  0.0003         -     0.123s   1 MiB         -\n");
}

TEST(MetricsTable, HasWhatTheTaskNames) {
  std::vector<v1::MetricPoint> points(2);
  for (uint64_t i = 0; i < 2; ++i) {
    points[i].set_step(i + 1);
    points[i].set_samples_per_second(950);
  }
  points[1].set_validation_loss(0.25);
  for (const char* name : {"top5", "top1"}) {
    v1::NamedMetric& metric = *points[1].add_validation();
    metric.set_name(name), metric.set_value(name[3] == '1' ? 0.875 : 1);
  }
  EXPECT_EQ(MetricsTable(points).Render(kPipe),
            "STEP  LOSS  GRAD-NORM  LR  SAMPLES/S  STEP-TIME  MEMORY  VAL-LOSS  VAL-TOP1  VAL-TOP5\n"
            "   1     -          -   -        950          -       -         -         -         -\n"
            "   2     -          -   -        950          -       -      0.25     0.875         1\n");
}

TEST(MetricsTable, ShowsLossScaleAndSkippedStepsWhereThereAreAny) {
  std::vector<v1::MetricPoint> points(2);
  for (uint64_t i = 0; i < 2; ++i) points[i].set_step(i + 1), points[i].set_loss_scale(i == 0 ? 65536 : 32768);
  points[1].set_loss(2);
  points[1].set_skipped_steps(1);
  EXPECT_EQ(MetricsTable(points).Render(kPipe),
            "STEP  LOSS  GRAD-NORM  LR  TOKENS/S  STEP-TIME  MEMORY  VAL-LOSS  LOSS-SCALE  SKIPPED\n"
            "   1     -          -   -         -          -       -         -       65536        0\n"
            "   2     2          -   -         -          -       -         -       32768        1\n");
}

TEST(Plot, DrawsAFallingLineInBraille) {
  Plot plot;
  plot.title = "loss";
  plot.width = 30;
  plot.height = 4;
  for (int i = 0; i <= 100; ++i) plot.line.emplace_back(i, 5.5 * std::exp(-i / 30.0));
  plot.line.emplace_back(101, std::nan(""));
  EXPECT_EQ(Draw(plot),
            "loss\n"
            "   5.5 ┤⠑⢄\n"
            "       │  ⠑⢄⡀\n"
            " 1.964 ┤    ⠈⠑⠢⢄⣀\n"
            "0.1962 ┤         ⠉⠉⠒⠒⠢⠤⠤⠤⢄⣀⣀⣀⣀\n"
            "        0             step 100\n");
}

TEST(Plot, FallsBackToAscii) {
  Plot plot;
  plot.title = "loss";
  plot.width = 30;
  plot.height = 4;
  plot.unicode = false;
  for (int i = 0; i <= 10; ++i) plot.line.emplace_back(i, 10 - i);
  plot.marks.emplace_back(5, 8);
  plot.marks_title = "validation loss";
  EXPECT_EQ(Draw(plot),
            "loss   o validation loss\n"
            "   10 +****\n"
            "      |    *******o\n"
            "3.333 +           *********\n"
            "    0 +                    ***\n"
            "       0               step 10\n");
}

TEST(Plot, FewOrStrangePoints) {
  EXPECT_EQ(Draw(Plot{.title = "loss"}), "");
  EXPECT_EQ(Draw(Plot{.title = "loss", .line = {{1, std::nan("")}, {2, INFINITY}}}), "");
  EXPECT_NE(Draw(Plot{.title = "loss", .line = {{1, 2.0}}, .width = 30, .height = 1}), "");
  EXPECT_EQ(Draw(Plot{.title = "loss", .line = {{1, 2.0}, {2, 1.0}}, .width = 29}), "") << "it would not fit";
  EXPECT_NE(Draw(Plot{.title = "loss", .line = {{1, 2.0}, {2, 2.0}}}), "");
  EXPECT_NE(Draw(Plot{.title = "loss", .line = {{1, -1e300}, {2, 1e300}}}), "");
}

TEST(DescribePlan, OpsOfAStepFitANarrowTerminal) {
  v1::PlanReply plan;
  *plan.mutable_resolved() = MakeJob().spec();
  plan.set_schedule_digest("abc");
  v1::PlannedOp& op = *plan.add_ops();
  op.set_op("reduce_scatter transformer.h.11 microbatch 3 of 4");
  op.set_stream("communication");
  op.set_begin_seconds(0.0123);
  op.set_end_seconds(0.0234);
  op.set_memory_bytes(uint64_t{1} << 30);
  const std::string text = DescribePlan(plan, {.schedule = true}, {.terminal = true, .width = 60});
  const std::string ops = text.substr(text.find("Schedule abc:"));
  EXPECT_TRUE(absl::StrContains(ops, "MEMORY  1 GiB\n")) << ops;
  for (const absl::string_view line : absl::StrSplit(ops, '\n')) EXPECT_LE(Width(std::string(line)), 60) << line;
}

TEST(JobView, LiveLineOfARunningJob) {
  JobView view(kTerminal);
  view.SetJob(MakeJob());
  EXPECT_EQ(view.LiveLine(kNow), "gpt2-tiny-x7f2  running  3m 00s");
  EXPECT_TRUE(view.Apply(Metrics(450, 2.13449), kNow).empty());
  EXPECT_EQ(view.LiveLine(kNow),
            "gpt2-tiny-x7f2  █████████████░░░░░░░░░░░░░░░░  45%  450/1000  loss 2.134  12.3k tokens/s  55s left");
  EXPECT_LE(Width(view.LiveLine(kNow)), 100);
}

TEST(JobView, LiveLineFitsANarrowTerminal) {
  for (int width = 10; width < 140; ++width) {
    for (const bool unicode : {false, true}) {
      JobView view({.terminal = true, .unicode = unicode, .width = width});
      view.SetJob(MakeJob());
      view.Apply(Metrics(450, 2.13449), kNow);
      EXPECT_LE(Width(view.LiveLine(kNow)), width) << view.LiveLine(kNow);
    }
  }
}

TEST(JobView, LiveLineKeepsTheTimeLeftOnANarrowTerminal) {
  JobView view({.terminal = true, .unicode = true, .width = 60});
  v1::Job job = MakeJob();
  job.set_id("gpt2-tiny-of-nov-x7f2");
  view.SetJob(job);
  v1::WatchItem item = Metrics(450, 2.134);
  item.mutable_metrics()->set_validation_loss(2.5);
  view.Apply(item, kNow);
  EXPECT_EQ(view.LiveLine(kNow), "gpt2-tiny-of-nov-x7f2   45%  450/1000  loss 2.134  55s left");
}

TEST(JobView, LiveLineOfAWaitingJobSaysWhy) {
  JobView view(kTerminal);
  view.SetJob(WaitingJob());
  EXPECT_EQ(view.LiveLine(kNow), "gpt2-tiny-x7f2  queued  2nd in the queue  3m 00s");
}

TEST(JobTable, TheTimeLeftFollowsFromTheMeanTimeOfSteps) {
  v1::MetricPoint metrics;
  metrics.set_step(450);  // of 1000
  metrics.set_step_seconds(7);
  EXPECT_EQ(TimeLeft(MakeJob(), metrics), "1h 04m");
  metrics.set_mean_step_seconds(2);
  EXPECT_EQ(TimeLeft(MakeJob(), metrics), "18m 20s");
}

// Steps of 1 s and of 3 s, of which 900 are left: half an hour.
TEST(JobView, TheTimeLeftIsSteadyWhereStepsAreNot) {
  JobView view({.terminal = true, .unicode = true, .width = 100});
  view.SetJob(MakeJob());
  for (uint64_t step = 1; step <= 100; ++step) {
    v1::WatchItem item = Metrics(step, 2.5);
    item.mutable_metrics()->set_step_seconds(step % 2 == 0 ? 1 : 3);
    view.Apply(item, kNow);
    if (step < 98) continue;
    const std::string line = view.LiveLine(kNow);
    EXPECT_TRUE(absl::StrContains(line, "29m ") || absl::StrContains(line, "30m ")) << line;
  }
}

TEST(JobView, ATimeLimitThatComesBeforeTheLastStepIsWhatIsLeft) {
  JobView view(kPipe);
  v1::WatchItem snapshot;
  *snapshot.mutable_snapshot() = MakeJob();
  snapshot.mutable_snapshot()->mutable_spec()->set_time_limit("10m");
  snapshot.mutable_snapshot()->set_held_seconds(9 * 60);
  view.Apply(snapshot, kNow);
  using Lines = std::vector<std::string>;
  EXPECT_EQ(view.Apply(Metrics(1, 5.5), kNow), Lines({"step 1/1000  loss 5.5  12.3k tokens/s  1m 00s left"}));
  EXPECT_EQ(view.Apply(Metrics(9, 5.5), kNow + absl::Seconds(20)),
            Lines({"step 9/1000  loss 5.5  12.3k tokens/s  40s left"}));
  // Without slots its time does not run.
  view.Apply(Event("paused by ann", v1::JOB_STATE_PAUSED), kNow + absl::Seconds(30));
  view.Apply(Event("starts", v1::JOB_STATE_STARTING), kNow + absl::Minutes(30));
  EXPECT_EQ(view.Apply(Metrics(10, 5.5), kNow + absl::Minutes(30) + absl::Seconds(10)),
            Lines({"step 10/1000  loss 5.5  12.3k tokens/s  20s left"}));
}

TEST(JobView, AReasonIsThatOfTheState) {
  JobView view(kTerminal);
  view.SetJob(WaitingJob());
  view.Apply(Event("submitted by ann", v1::JOB_STATE_QUEUED), kNow);
  EXPECT_EQ(view.LiveLine(kNow), "gpt2-tiny-x7f2  queued  2nd in the queue  3m 00s");
  view.Apply(Event("starts on node-a", v1::JOB_STATE_STARTING), kNow);
  EXPECT_EQ(view.LiveLine(kNow), "gpt2-tiny-x7f2  starting  3m 00s");
  view.Apply(Event("paused by bob", v1::JOB_STATE_PAUSED), kNow);
  EXPECT_EQ(view.LiveLine(kNow), "gpt2-tiny-x7f2  paused  paused by bob  3m 00s");
}

TEST(JobView, PlainLinesAreLimitedToOneASecond) {
  JobView view(kPipe);
  v1::WatchItem snapshot;
  *snapshot.mutable_snapshot() = MakeJob();
  EXPECT_TRUE(view.Apply(snapshot, kNow).empty());
  using Lines = std::vector<std::string>;
  EXPECT_EQ(view.Apply(Metrics(1, 5.5), kNow), Lines({"step 1/1000  loss 5.5  12.3k tokens/s  1m 40s left"}));
  EXPECT_EQ(view.Apply(Metrics(2, 5.4), kNow + absl::Milliseconds(100)), Lines());
  EXPECT_EQ(view.Tick(kNow + absl::Milliseconds(900)), Lines());
  // The held-back line is printed once its second is over.
  EXPECT_EQ(view.Tick(kNow + absl::Milliseconds(1000)), Lines({"step 2/1000  loss 5.4  12.3k tokens/s  1m 40s left"}));
  EXPECT_EQ(view.Tick(kNow + absl::Seconds(5)), Lines());
  // Validation lines and the last step are always printed.
  v1::WatchItem validation = Metrics(3, 5.3);
  validation.mutable_metrics()->set_validation_loss(5.35);
  EXPECT_EQ(view.Apply(validation, kNow + absl::Milliseconds(1100)),
            Lines({"step 3/1000  loss 5.3  validation loss 5.35  12.3k tokens/s  1m 40s left"}));
  EXPECT_EQ(view.Apply(Metrics(1000, 2), kNow + absl::Milliseconds(1200)),
            Lines({"step 1000/1000  loss 2  12.3k tokens/s"}));
}

TEST(Clock, OfLinesOfMustersOwnLogsToo) {
  const std::string line = "2001-09-09T01:46:40.250Z info  exec  rank assigned";
  const Screen terminal = {.terminal = true};
  EXPECT_EQ(WithOneClock(kPipe, line), line);
  EXPECT_EQ(WithOneClock(terminal, line),
            DateAndTime(terminal, absl::FromUnixSeconds(1'000'000'000)) + ".250 info  exec  rank assigned");
  for (const char* other : {"", "2001-09-09T01:46:40.250Z", "2001-09-09T01:46:40Z it begins",
                            "2001-09-99T01:46:40.250Z a", "step 2001-09-09T01:46:40.250Z "}) {
    EXPECT_EQ(WithOneClock(terminal, other), other);
  }
}

TEST(JobView, EventsGapsAndLogsAreLines) {
  JobView view(kPipe);
  view.SetJob(MakeJob());
  const auto event = view.Apply(Event("every rank runs", v1::JOB_STATE_RUNNING), kNow);
  ASSERT_EQ(event.size(), 1u);
  EXPECT_EQ(event[0].substr(8 + 1), "  every rank runs");
  v1::WatchItem gap;
  gap.mutable_gap()->set_what("metrics");
  gap.mutable_gap()->set_items(12);
  EXPECT_EQ(view.Apply(gap, kNow)[0], "(12 metrics are no longer kept)");
  v1::WatchItem log;
  log.mutable_log()->set_rank(1);
  log.mutable_log()->set_text("one\ntwo\n");
  EXPECT_EQ(view.Apply(log, kNow), (std::vector<std::string>{"rank 1: one", "rank 1: two"}));
}

TEST(JobView, ARestartedJobRepeatsStepsWithoutFoldingItsCurve) {
  JobView view(kTerminal);
  view.SetJob(MakeJob());
  for (int step = 1; step <= 20; ++step) view.Apply(Metrics(step, 6 - step * 0.1), kNow);
  const std::string before = view.Curve();
  for (int step = 11; step <= 20; ++step) view.Apply(Metrics(step, 6 - step * 0.1), kNow);
  EXPECT_EQ(view.Curve(), before);
}

TEST(JobView, SummaryOfACompletedJob) {
  JobView view(kPipe);
  v1::Job job = MakeJob();
  view.SetJob(job);
  EXPECT_EQ(view.Summary(kNow), "gpt2-tiny-x7f2 running\n");
  view.Apply(Metrics(1, 5.545), kNow);
  v1::WatchItem last = Metrics(1000, 1.742);
  last.mutable_metrics()->set_validation_loss(1.781);
  view.Apply(last, kNow);
  job.set_state(v1::JOB_STATE_COMPLETED);
  SetTime(*job.mutable_ended(), absl::Seconds(8));
  view.SetJob(job);
  const std::string summary = view.Summary(kNow);
  EXPECT_EQ(summary.substr(summary.find("\n\n") + 2),
            "gpt2-tiny-x7f2 completed: 1,000 steps in 1m 52s, loss 5.545 -> 1.742, validation loss 1.781\n");
  EXPECT_EQ(view.FailureText(), "");
}

// It did not take the steps before the checkpoint, so the time is not that of all.
TEST(JobView, SummaryOfAJobThatResumedFromAnother) {
  JobView view(kPipe);
  v1::Job job = MakeJob();
  job.mutable_spec()->mutable_train()->mutable_checkpoint()->set_resume_from("runs/a");
  job.set_progress_step(1000);
  job.set_state(v1::JOB_STATE_COMPLETED);
  SetTime(*job.mutable_ended(), absl::Seconds(8));
  view.SetJob(job);
  EXPECT_EQ(view.Summary(kNow),
            "gpt2-tiny-x7f2 completed: at step 1,000, 1m 52s after it resumed from another job's checkpoint\n");
}

TEST(JobView, FailureNamesTheRankItsLinesAndAHint) {
  JobView view(kPipe);
  v1::Job job = MakeJob();
  job.set_state(v1::JOB_STATE_FAILED);
  job.set_reason("3 restarts without progress");
  job.mutable_failure()->set_generation(4);
  job.mutable_failure()->set_rank(1);
  job.mutable_failure()->set_node("node-b");
  job.mutable_failure()->mutable_exit()->set_message("rank 1 was killed by signal 9 (SIGKILL)");
  job.mutable_failure()->mutable_exit()->add_last_lines("step 12");
  job.mutable_failure()->set_hint("out of memory? see muster plan");
  view.SetJob(job);
  EXPECT_EQ(view.FailureText(),
            "failed: 3 restarts without progress\n"
            "first failing rank: 1 on node-b (generation 4): rank 1 was killed by signal 9 (SIGKILL)\n"
            "last lines of its log:\n"
            "  step 12\n"
            "hint: out of memory? see muster plan\n");
}

TEST(DescribePlan, ShowsBytesPlacementAndNotes) {
  v1::PlanReply plan;
  *plan.mutable_resolved() = MakeJob().spec();
  plan.set_parameters(842'496);
  plan.set_tokens_per_step(8192);
  plan.set_microbatches(4);
  plan.set_flops_per_step(4.4e10);
  v1::RankPlan& rank = *plan.add_ranks();
  rank.set_parameter_bytes(3'369'984);
  rank.set_peak_bytes(uint64_t{1} << 30);
  rank.set_node("node-a");
  plan.add_ranks()->set_rank(1);
  plan.add_placement("shares are equal");
  plan.add_notes("no node has a free slot now: the job would wait");
  plan.set_schedule("Forward embedding\n");
  plan.set_schedule_digest("abc");
  EXPECT_EQ(DescribePlan(plan, {.schedule = true}, kPipe),
            "gpt2-tiny: gpt2 tiny, 842k parameters, zero 3 on 2 ranks\n"
            "8,192 tokens a step, 4 microbatches a rank, 44.0 GFLOP a step, 1,000 steps\n"
            "\n"
            "RANK  PARAMETERS  GRADIENTS  OPTIMIZER  GATHER  REDUCE  ACTIVATIONS   PEAK  SLOT  NODE\n"
            "   0    3.21 MiB        0 B        0 B     0 B     0 B          0 B  1 GiB     -  node-a\n"
            "   1         0 B        0 B        0 B     0 B     0 B          0 B    0 B     -  -\n"
            "\n"
            "shares are equal\n"
            "note: no node has a free slot now: the job would wait\n"
            "\n"
            "Schedule abc:\n"
            "  Forward embedding\n");
}

TEST(DescribePlan, ShowsThePipelinesStages) {
  v1::PlanReply plan;
  *plan.mutable_resolved() = MakeJob().spec();
  v1::Train& train = *plan.mutable_resolved()->mutable_train();
  train.mutable_parallel()->set_pipeline(2);
  train.mutable_pipeline()->set_schedule(v1::PIPELINE_SCHEDULE_INTERLEAVED);
  train.mutable_pipeline()->set_chunks(2);
  plan.mutable_simulated()->set_hardware("h100");
  plan.mutable_simulated()->set_step_seconds(0.02);
  for (uint32_t stage = 0; stage < 2; ++stage) {
    v1::StagePlan& of = *plan.add_stages();
    of.set_stage(stage), of.set_parameters(421'000), of.set_flops_share(0.5), of.set_peak_bytes(1 << 20);
    of.add_chunks("wte to h.0"), of.add_chunks("h.2");
    of.set_compute_seconds(0.015), of.set_bubble(0.25), of.set_exposed_seconds(1e-3), of.set_sent_bytes(2048);
    of.set_schedule_digest(absl::StrCat("digest", stage));
    v1::RankPlan& rank = *plan.add_ranks();
    rank.set_rank(stage), rank.set_stage(stage);
    v1::PlannedOp& op = *plan.add_ops();
    op.set_op(absl::StrCat("Forward u", stage)), op.set_stream("compute"), op.set_stage(stage);
  }
  const std::string text = DescribePlan(plan, {.schedule = true}, kPipe);
  for (const char* part :
       {"zero 3, 2 stages by interleaved of 2 chunks on 2 ranks\n",
        "STAGE  UNITS            PARAMETERS  FLOPS   PEAK  COMPUTE  BUBBLE  EXPOSED  SENDS\n"
        "    0  wte to h.0, h.2        421k  50.0%  1 MiB    15 ms   25.0%     1 ms  2 KiB\n",
        "a rank's step of 20 ms predicted on h100; bubble:", "RANK  STAGE  PARAMETERS", "\n   1      1         0 B",
        "Schedule of stage 0, digest0:\n", "Schedule of stage 1, digest1:\n"}) {
    EXPECT_TRUE(absl::StrContains(text, part)) << part << "\n" << text;
  }
  const std::string one = DescribePlan(plan, {.schedule = true, .stage = 1}, kPipe);
  EXPECT_TRUE(absl::StrContains(one, "Forward u1")) << one;
  EXPECT_FALSE(absl::StrContains(one, "Forward u0")) << one;
}

TEST(DescribePlan, ShowsWhichRanksShareSequences) {
  v1::PlanReply plan;
  *plan.mutable_resolved() = MakeJob().spec();
  v1::Parallel& parallel = *plan.mutable_resolved()->mutable_train()->mutable_parallel();
  parallel.set_context(2);
  plan.mutable_simulated()->set_hardware("h100");
  plan.mutable_simulated()->set_exchanged_seconds(0.002);
  for (uint32_t rank = 0; rank < 8; ++rank) {
    v1::RankPlan& r = *plan.add_ranks();
    r.set_rank(rank), r.set_context(rank % 2), r.set_peak_bytes(rank % 2 == 0 ? 1024 : 2048);
  }
  const auto has = [&](std::initializer_list<const char*> parts) {
    const std::string text = DescribePlan(plan, {.times = true}, kPipe);
    for (const char* part : parts) EXPECT_TRUE(absl::StrContains(text, part)) << part << "\n" << text;
  };
  has({"zero 3, context parallel over 2 on 8 ranks\n", "   RANK  CONTEXT  PARAMETERS", "\n0,2,4,6        0         0 B",
       "\n1,3,5,7        1         0 B", "(2 ms of it exchanges of context ranks)"});
  parallel.set_tensor(2);
  for (v1::RankPlan& r : *plan.mutable_ranks()) r.set_tensor(r.rank() % 2), r.set_context(r.rank() / 2 % 2);
  has({"zero 3, tensor parallel over 2, context parallel over 2 on 8 ranks\n", "   RANK  CONTEXT  TENSOR  PARAMETERS",
       "\n0,2,4,6      0-1       0         0 B", "\n1,3,5,7      0-1       1         0 B",
       "(2 ms of it exchanges of tensor and context ranks)"});
  parallel.set_context(1);
  for (v1::RankPlan& r : *plan.mutable_ranks()) r.clear_context();
  has({"zero 3, tensor parallel over 2 on 8 ranks\n", "   RANK  TENSOR  PARAMETERS",
       "(2 ms of it exchanges of tensor ranks)"});
  // What parallel: auto chose is not in the spec.
  parallel.Clear();
  for (v1::RankPlan& r : *plan.mutable_ranks()) r.clear_tensor(), r.set_context(r.rank() % 2);
  has({"   RANK  CONTEXT  PARAMETERS", "(2 ms of it exchanges of context ranks)"});
}

TEST(DescribePlan, RanksThatAreAlikeShareARow) {
  v1::PlanReply plan;
  *plan.mutable_resolved() = MakeJob().spec();
  for (uint32_t rank = 0; rank < 64; ++rank) {
    v1::RankPlan& r = *plan.add_ranks();
    r.set_rank(rank);
    r.set_peak_bytes(rank == 7 ? 2048 : 1024);
    r.set_node(absl::StrCat("node-", rank / 8));
  }
  std::string text = DescribePlan(plan, {}, kPipe);
  EXPECT_TRUE(absl::StrContains(text, "\n0-6,8-63  ")) << text;
  EXPECT_TRUE(absl::StrContains(text, "node-0, node-1 and 6 more\n")) << text;
  EXPECT_TRUE(absl::StrContains(text, "\n       7  ")) << text;
  for (v1::RankPlan& r : *plan.mutable_ranks()) r.set_peak_bytes(1024 + r.rank());
  text = DescribePlan(plan, {}, kPipe);
  EXPECT_TRUE(absl::StrContains(text, "for the other 62: -o json")) << text;
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 7) << text;
}

TEST(DescribePlan, ShowsTimesCandidatesAndOps) {
  v1::PlanReply plan;
  *plan.mutable_resolved() = MakeJob().spec();
  plan.set_tokens_per_step(1000);
  plan.set_strategy("ddp");
  plan.set_strategy_reason("ddp, 20 ms a step");
  plan.add_candidates()->set_strategy("ddp");
  plan.mutable_candidates(0)->set_step_seconds(0.02);
  plan.mutable_candidates(0)->set_unfit("rank 0");
  plan.mutable_simulated()->set_hardware("h100");
  plan.mutable_simulated()->set_step_seconds(0.02);
  plan.set_unfit("rank 0 needs more");
  v1::PlannedOp& op = *plan.add_ops();
  op.set_op("Forward head m0"), op.set_stream("compute"), op.set_end_seconds(2.5e-4), op.set_memory_bytes(2048);
  const std::string text = DescribePlan(plan, {.schedule = true, .times = true}, kPipe);
  for (const char* part : {"strategy auto: ddp, 20 ms a step\n", "ddp         0 B  20 ms  no\n",
                           "A step on h100, predicted: 20 ms, 50.0k tokens/s\n", "does not fit: rank 0 needs more\n",
                           "Forward head m0  compute   0 us  250 us   2 KiB\n"}) {
    EXPECT_TRUE(absl::StrContains(text, part)) << part << "\n" << text;
  }
}

TEST(DescribePlan, CountsExchangesOfReplicas) {
  v1::PlanReply plan;
  *plan.mutable_resolved() = MakeJob().spec();
  plan.set_tokens_per_step(1000);
  v1::Simulated& times = *plan.mutable_simulated();
  times.set_hardware("cpu"), times.set_step_seconds(0.02);
  times.set_exchange_seconds(0.25), times.set_mean_step_seconds(0.025);
  const std::string text = DescribePlan(plan, {.times = true}, kPipe);
  for (const char* part : {"A step on cpu, predicted: 20 ms, 40.0k tokens/s\n",
                           "\n  an exchange of replicas 250 ms; a step with them 25 ms on average\n"}) {
    EXPECT_TRUE(absl::StrContains(text, part)) << part << "\n" << text;
  }
}

TEST(DescribePlan, FitsNarrowTerminals) {
  v1::PlanReply plan;
  *plan.mutable_resolved() = MakeJob().spec();
  plan.set_tokens_per_step(8192), plan.set_flops_per_step(4.4e10);
  for (uint32_t i = 0; i < 2; ++i) {
    v1::RankPlan& rank = *plan.add_ranks();
    rank.set_rank(i), rank.set_parameter_bytes(475'000'000), rank.set_gradient_bytes(475'000'000);
    rank.set_peak_bytes(uint64_t{3} << 30), rank.set_slot_bytes(uint64_t{80} << 30), rank.set_fixed_bytes(500'000'000);
    rank.set_node("node-a");
  }
  plan.set_strategy("ddp"), plan.set_strategy_reason("ddp, 20 ms a step; others that fit: zero 1 20 ms, zero 2 20 ms");
  for (const char* name : {"ddp", "fsdp full_shard with activation_checkpointing"}) {
    v1::CandidatePlan& c = *plan.add_candidates();
    c.set_strategy(name), c.set_step_seconds(0.02), c.set_peak_bytes(uint64_t{3} << 30);
    if (plan.candidates_size() > 1) c.set_lost("8.78 s more, 23.3% of a step that was already slow");
  }
  plan.add_notes("a checkpoint is written from a copy of up to 1.39 GiB a rank in host memory");
  v1::Timeout& timeout = *plan.add_timeouts();
  timeout.set_seconds(300), timeout.set_name("an away worker is marked lost, if more than 3 in 10 nodes are away");
  timeout.set_rule("30 x detection");
  for (const int width : {60, 80, 120}) {
    const std::string text =
        DescribePlan(plan, {.timeouts = true}, {.terminal = true, .unicode = true, .width = width});
    for (const absl::string_view line : absl::StrSplit(text, '\n')) EXPECT_LE(Width(line), width) << line;
    for (const char* whole : {"PEAK", "3 GiB", "80 GiB", "node-a", "30 x detection"}) {
      EXPECT_TRUE(absl::StrContains(text, whole)) << whole << "\n" << text;
    }
    EXPECT_FALSE(absl::StrContains(text, "…")) << text;
  }
}

TEST(DescribePlan, WhereNothingFitsItChoosesTheLeastMemory) {
  v1::PlanReply plan;
  *plan.mutable_resolved() = MakeJob().spec();
  plan.set_strategy("fsdp full_shard"), plan.set_strategy_reason("nothing fits");
  for (const char* lost : {"", "does not fit: rank 0"}) {
    v1::CandidatePlan& c = *plan.add_candidates();
    c.set_strategy(*lost == '\0' ? "fsdp full_shard" : "ddp"), c.set_step_seconds(164'414), c.set_peak_bytes(1024);
    c.set_unfit("rank 0"), c.set_lost(lost);
  }
  const std::string text = DescribePlan(plan, {}, kPipe);
  EXPECT_TRUE(absl::StrContains(text, "1d 21h  no    chosen\n")) << text;
}

TEST(DescribePlan, SaysWhyMixesLost) {
  v1::PlanReply plan;
  *plan.mutable_resolved() = MakeJob().spec();
  plan.set_strategy("ddp, microbatch 8"), plan.set_strategy_reason("ddp, microbatch 8, 20 ms");
  const auto add = [&](const char* name, double seconds, const char* lost, bool least) {
    v1::CandidatePlan& c = *plan.add_candidates();
    c.set_strategy(name), c.set_step_seconds(seconds), c.set_peak_bytes(1024), c.set_lost(lost), c.set_least(least);
  };
  add("ddp, microbatch 8", 0.02, "", false);
  add("2 stages by 1f1b, single, microbatch 1", 0.03, "bubble: 8 ms more, 30% of its step", false);
  add("4 stages by gpipe, single, microbatch 1", 0.04, "takes at least 40 ms", true);
  add("8 stages by gpipe, single, microbatch 1", 0.05, "does not fit: activations", true);
  plan.mutable_candidates(3)->set_unfit("activations");
  const std::string text = DescribePlan(plan, {}, kPipe);
  for (const char* part :
       {"FITS  WHY NOT\n", "the rule: the fastest that fits; one that is simpler if it is less than 2% slower\n",
        "ddp, microbatch 8                          1 KiB    20 ms  yes   chosen\n",
        "yes   bubble: 8 ms more, 30% of its step\n", "> 1 KiB  > 40 ms  ?     takes at least 40 ms\n",
        "> 1 KiB  > 50 ms  no    does not fit: activations\n",
        "2% slower\n> a lower bound: this mix was not planned; ? it may fit\n"}) {
    EXPECT_TRUE(absl::StrContains(text, part)) << part << "\n" << text;
  }
  // Each mark that is in the table, and no other one.
  plan.mutable_candidates(2)->set_unfit("activations");
  EXPECT_TRUE(
      absl::StrContains(DescribePlan(plan, {}, kPipe), "2% slower\n> a lower bound: this mix was not planned\n"));
  plan.mutable_candidates()->DeleteSubrange(2, 2);
  add("128 stages by gpipe, single, microbatch 1", 0, "is too much work to plan", true);
  EXPECT_TRUE(absl::StrContains(DescribePlan(plan, {}, kPipe), "2% slower\n- unknown: too much work to plan\n"));
}

TEST(DescribeJob, ShowsAllPartsOfAJob) {
  v1::GetJobReply reply;
  *reply.mutable_job() = MakeJob();
  v1::Generation& generation = *reply.add_generations();
  generation.set_number(2);
  generation.set_state(v1::GENERATION_STATE_RUNNING);
  generation.set_device(v1::DEVICE_CPU);
  generation.mutable_resume_from()->set_step(100);
  generation.set_resumed_step(100);
  generation.add_ranks()->set_node("node-a");
  generation.mutable_ranks(0)->set_state(v1::RANK_STATE_RUNNING);
  generation.mutable_ranks(0)->add_slots(0);
  v1::PublishedCheckpoint& checkpoint = *reply.mutable_job()->add_checkpoints();
  checkpoint.set_step(100);
  checkpoint.set_directory("step-0000000100-g1");
  const std::string text = DescribeJob(reply, {}, kPipe, kNow);
  for (const char* part : {"Job:         gpt2-tiny-x7f2\n", "State:       running\n", "Strategy:    zero 3, 2 ranks\n",
                           "step 100\n", "step-0000000100-g1\n", "Spec:\n  name: gpt2-tiny\n", "node-a"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }

  v1::PublishedCheckpoint& of_script = *reply.mutable_job()->mutable_script_checkpoint();
  of_script.set_step(70);
  of_script.set_directory("runs/70\n.pt");
  of_script.mutable_published()->set_seconds(absl::ToUnixSeconds(kNow) - 180);
  EXPECT_NE(DescribeJob(reply, {}, kPipe, kNow).find("Newest checkpoint of its script: step 70, 3m old: runs/70 .pt\n"),
            std::string::npos)
      << DescribeJob(reply, {}, kPipe, kNow);

  generation.clear_resume_from();
  reply.mutable_job()->mutable_spec()->mutable_train()->mutable_checkpoint()->set_resume_from("/runs/other");
  EXPECT_NE(DescribeJob(reply, {}, kPipe, kNow).find("  step 100 of /runs/other\n"), std::string::npos);
  generation.set_resumed_step(0);
  EXPECT_NE(DescribeJob(reply, {}, kPipe, kNow).find("  /runs/other\n"), std::string::npos)
      << "no checkpoint resumed from yet";
}

// rank = ((stage R + replica) S + shard) T + tensor.
TEST(DescribeJob, RanksHaveTheirCoordinates) {
  v1::GetJobReply reply;
  *reply.mutable_job() = MakeJob();
  v1::Generation& generation = *reply.add_generations();
  generation.set_number(1);
  // `context`: so many neighbors along the axes of data share sequences.
  const auto place = [&](const std::vector<std::array<uint32_t, 4>>& coordinates, uint32_t context = 1) {
    generation.clear_ranks();
    for (const auto& [stage, replica, shard, tensor] : coordinates) {
      v1::RankPlacement& rank = *generation.add_ranks();
      rank.set_rank(static_cast<uint32_t>(generation.ranks_size()) - 1);
      rank.set_node("node-1"), rank.add_slots(3), rank.set_state(v1::RANK_STATE_RUNNING);
      v1::RankRole& role = *rank.mutable_role();
      role.set_stage(stage), role.set_replica(replica), role.set_shard_in_stage(shard), role.set_tensor(tensor);
      role.set_context((replica + shard) % context);  // of one replica, or of one shard
    }
  };
  const auto table = [&] {
    const std::string text = DescribeJob(reply, {}, Screen{.width = 80}, kNow);
    const size_t begin = text.find("Ranks of generation 1:\n") + 23;
    return text.substr(begin, text.find("\n\n", begin) - begin);
  };
  place({{0, 0, 0, 0}, {0, 1, 0, 0}, {1, 0, 0, 0}, {1, 1, 0, 0}});
  EXPECT_EQ(table(),
            "  RANK  STAGE  REPLICA  NODE    SLOTS  STATE    EXIT\n"
            "     0      0        0  node-1  3      running  -\n"
            "     1      0        1  node-1  3      running  -\n"
            "     2      1        0  node-1  3      running  -\n"
            "     3      1        1  node-1  3      running  -");
  place({{0, 0, 0, 0}, {0, 0, 0, 1}, {0, 0, 1, 0}, {0, 0, 1, 1}});
  EXPECT_EQ(table(),
            "  RANK  SHARD  TENSOR  NODE    SLOTS  STATE    EXIT\n"
            "     0      0       0  node-1  3      running  -\n"
            "     1      0       1  node-1  3      running  -\n"
            "     2      1       0  node-1  3      running  -\n"
            "     3      1       1  node-1  3      running  -");
  place({{0, 0, 0, 0}, {0, 0, 1, 0}, {0, 1, 0, 0}, {0, 1, 1, 0}});
  EXPECT_EQ(table(),
            "  RANK  REPLICA  SHARD  NODE    SLOTS  STATE    EXIT\n"
            "     0        0      0  node-1  3      running  -\n"
            "     1        0      1  node-1  3      running  -\n"
            "     2        1      0  node-1  3      running  -\n"
            "     3        1      1  node-1  3      running  -");
  place({{0, 0, 0, 0}, {0, 1, 0, 0}});
  EXPECT_EQ(table(),
            "  RANK  NODE    SLOTS  STATE    EXIT\n"
            "     0  node-1  3      running  -\n"
            "     1  node-1  3      running  -")
      << "of replicas alone the rank's number says it all";
  // Two groups of two ranks that share sequences; the same of pairs that compute each unit together.
  place({{0, 0, 0, 0}, {0, 0, 1, 0}, {0, 0, 2, 0}, {0, 0, 3, 0}}, /*context=*/2);
  EXPECT_EQ(table(),
            "  RANK  CONTEXT  NODE    SLOTS  STATE    EXIT\n"
            "     0        0  node-1  3      running  -\n"
            "     1        1  node-1  3      running  -\n"
            "     2        0  node-1  3      running  -\n"
            "     3        1  node-1  3      running  -");
  place(
      {{0, 0, 0, 0}, {0, 0, 0, 1}, {0, 1, 0, 0}, {0, 1, 0, 1}, {1, 0, 0, 0}, {1, 0, 0, 1}, {1, 1, 0, 0}, {1, 1, 0, 1}},
      /*context=*/2);
  EXPECT_EQ(table(),
            "  RANK  STAGE  REPLICA  CONTEXT  TENSOR  NODE    SLOTS  STATE    EXIT\n"
            "     0      0        0        0       0  node-1  3      running  -\n"
            "     1      0        0        0       1  node-1  3      running  -\n"
            "     2      0        1        1       0  node-1  3      running  -\n"
            "     3      0        1        1       1  node-1  3      running  -\n"
            "     4      1        0        0       0  node-1  3      running  -\n"
            "     5      1        0        0       1  node-1  3      running  -\n"
            "     6      1        1        1       0  node-1  3      running  -\n"
            "     7      1        1        1       1  node-1  3      running  -");
  // With all four and a cause that is long.
  std::vector<std::array<uint32_t, 4>> all;
  for (uint32_t rank = 0; rank < 16; ++rank) all.push_back({rank / 8, rank / 4 % 2, rank / 2 % 2, rank % 2});
  place(all);
  generation.mutable_ranks(15)->mutable_exit()->set_message("rank 15 was killed by signal 9 (out of memory?)");
  const std::string text = table();
  EXPECT_TRUE(absl::StartsWith(text, "  RANK  STAGE  REPLICA  SHARD  TENSOR  NODE ")) << text;
  EXPECT_TRUE(absl::StrContains(text, "\n    15      1        1      1       1  node-1 ")) << text;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) EXPECT_LE(line.size(), 80u) << line;
}

TEST(DescribeJob, SaysWhereTheTimeWentAndWhatTheLastFaultWas) {
  v1::GetJobReply reply;
  *reply.mutable_job() = MakeJob();
  v1::Job& job = *reply.mutable_job();
  EXPECT_EQ(DescribeJob(reply, {}, kPipe, kNow).find("Goodput"), std::string::npos) << "nothing is known";
  job.mutable_spec()->mutable_resources()->set_ranks(4);
  job.mutable_spec()->mutable_resources()->set_min_ranks(2);
  v1::TimeBreakdown& time_breakdown = *job.mutable_time_breakdown();
  time_breakdown.set_queued(65);
  time_breakdown.set_training(930);
  time_breakdown.set_starting(20);
  time_breakdown.set_detecting(30);
  time_breakdown.set_recovering(20);
  job.mutable_failure()->set_generation(1);
  job.mutable_failure()->set_rank(3);
  job.mutable_failure()->set_node("node-b");
  job.mutable_failure()->mutable_exit()->set_message("rank 3 hung");
  const std::string text = DescribeJob(reply, {}, kPipe, kNow);
  for (const char* part :
       {"Strategy:    zero 3, 2 to 4 ranks\n",
        "Goodput:     93% of 16m 40s since it first started: training 15m 30s, starting 20s, detecting "
        "30s, recovering 20s; excludes queued 1m 05s\n",
        "Last fault:  generation 1 on node-b: rank 3 hung\n"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
}

TEST(DescribePlan, ShowsTimeouts) {
  v1::PlanReply plan;
  v1::Timeout& timeout = *plan.add_timeouts();
  timeout.set_name("a rank that makes no progress has hung");
  timeout.set_seconds(90);
  timeout.set_rule("3 x detection");
  EXPECT_TRUE(absl::StrContains(DescribePlan(plan, {.timeouts = true}, kPipe),
                                "1m 30s  a rank that makes no progress has hung  3 x detection\n"))
      << DescribePlan(plan, {}, kPipe);
}

v1::MetricPoint Timed(uint64_t step, double seconds, double communication) {
  v1::MetricPoint point;
  point.set_step(step);
  point.set_step_seconds(seconds);
  point.set_tokens_per_second(1000 / seconds);
  point.set_peak_memory_bytes(step << 20);
  point.set_communication_seconds(communication);
  return point;
}

v1::CollectiveTime TimeOf(v1::Collective collective, v1::CollectiveMode mode, uint64_t bytes, double seconds) {
  v1::CollectiveTime time;
  time.set_collective(collective);
  time.set_mode(mode);
  time.set_bytes(bytes);
  time.set_count(bytes / 4);
  time.set_type("float");
  time.set_redop("sum");
  time.set_root(-1);
  time.set_ranks(4);
  time.set_iterations(20);
  time.set_seconds(seconds);
  time.set_algorithm_bytes_per_second(static_cast<double>(bytes) / seconds);
  time.set_bus_bytes_per_second(1.5 * static_cast<double>(bytes) / seconds);
  return time;
}

TEST(Collectives, HaveNcclTestsColumnsAndUnits) {
  const std::vector<v1::CollectiveTime> rows = {
      TimeOf(v1::COLLECTIVE_ALL_REDUCE, v1::COLLECTIVE_MODE_FLAT, 1'000'000, 1e-3),
      TimeOf(v1::COLLECTIVE_REDUCE_SCATTER, v1::COLLECTIVE_MODE_BUCKETED, 4'000'000, 2e-3)};
  EXPECT_EQ(
      CollectivesTable(rows).Render(kPipe),
      "COLLECTIVE      MODE      RANKS  SIZE(B)    COUNT   TYPE  REDOP  ROOT  TIME(US)  ALGBW(GB/S)  BUSBW(GB/S)\n"
      "all_reduce      flat          4  1000000   250000  float    sum    -1   1000.00       1.0000       1.5000\n"
      "reduce_scatter  bucketed      4  4000000  1000000  float    sum    -1   2000.00       2.0000       3.0000\n");
  EXPECT_DOUBLE_EQ(MeanBusBandwidth(rows), 2.25e9);
  EXPECT_EQ(CollectivesTree(rows)[1].dump(),
            "{\"collective\":\"reduce_scatter\",\"mode\":\"bucketed\",\"ranks\":4,\"size\":4000000,\"count\":1000000,"
            "\"type\":\"float\",\"redop\":\"sum\",\"root\":-1,\"time_us\":2000.0,\"algbw\":2.0,\"busbw\":3.0,"
            "\"iterations\":20}");
}

TEST(Collectives, ThePlotHasALineForEachCollectiveAndMode) {
  std::vector<v1::CollectiveTime> rows;
  for (const v1::CollectiveMode mode : {v1::COLLECTIVE_MODE_FLAT, v1::COLLECTIVE_MODE_BUCKETED}) {
    // From 1 GB/s to 10 GB/s of bus bandwidth, over two doublings twice of the size.
    rows.push_back(TimeOf(v1::COLLECTIVE_ALL_REDUCE, mode, 1 << 20, 1.5 * (1 << 20) / 1e9));
    rows.push_back(TimeOf(v1::COLLECTIVE_ALL_REDUCE, mode, 1 << 24, 1.5 * (1 << 24) / 1e10));
  }
  const std::string svg = CollectivesSvg(rows, "of <tiny>");
  EXPECT_TRUE(absl::StrContains(svg, "of &lt;tiny&gt;"));
  // The corners of the axes: 640 by 380 pixels from (70, 70).
  EXPECT_EQ(svg.find("points=\"70.0,450.0 710.0,70.0 \""), svg.find("points="));
  EXPECT_NE(svg.find("points=", svg.find("points=") + 1), std::string::npos);
  for (const char* text : {">1 MiB<", ">16 MiB<", ">1<", ">10<", ">all_reduce, flat<", ">all_reduce, bucketed<"}) {
    EXPECT_TRUE(absl::StrContains(svg, text)) << text << " in " << svg;
  }
  EXPECT_FALSE(absl::StrContains(CollectivesSvg({}, "none"), "nan"));
}

TEST(Scaling, SumsUpBehindTheWarmUp) {
  const std::vector<v1::MetricPoint> points = {Timed(1, 9, 9), Timed(2, 0.5, 0.1), Timed(3, 0.25, 0.1),
                                               Timed(4, 1, 0.5)};
  const std::optional<Scaling> row = Summarise(points, /*warm_up=*/1, /*ranks=*/2, /*sequences=*/8);
  ASSERT_TRUE(row.has_value());
  EXPECT_EQ(row->steps, 3u);
  EXPECT_DOUBLE_EQ(row->step_seconds, 0.5);
  EXPECT_DOUBLE_EQ(row->least_seconds, 0.25);
  EXPECT_DOUBLE_EQ(row->tokens_per_second, 2000);
  EXPECT_DOUBLE_EQ(row->samples_per_second, 16);
  EXPECT_EQ(row->peak_memory_bytes, 4u << 20);
  EXPECT_DOUBLE_EQ(*row->communication, 0.4);
  EXPECT_FALSE(Summarise(points, 4, 2, 8).has_value());
}

TEST(Scaling, ComparesStrategies) {
  const Scaling ddp{.strategy = "ddp", .ranks = 2, .step_seconds = 0.1, .least_seconds = 0.1, .samples_per_second = 80};
  Scaling fsdp = ddp;
  fsdp.strategy = "fsdp", fsdp.samples_per_second = 40, fsdp.step_seconds = 0.2;
  EXPECT_EQ(ScalingTable({ddp, fsdp}).Render(kPipe),
            "STRATEGY  RANKS  SAMPLES/S  TOKENS/S     STEP    LEAST  MEMORY  COMMUNICATION  SPEED-UP  EFFICIENCY\n"
            "ddp           2       80.0         -  100.0ms  100.0ms     0 B              -      1.00        100%\n"
            "fsdp          2       40.0         -  200.0ms  100.0ms     0 B              -      0.50         50%\n");
  EXPECT_EQ(ScalingTree({ddp, fsdp})[1]["strategy"], "fsdp");
}

TEST(Scaling, HasThePredictionBesideWhatWasMeasured) {
  Scaling row{.ranks = 2, .steps = 3, .step_seconds = 0.1, .least_seconds = 0.1, .samples_per_second = 80};
  row.predicted_seconds = 0.0905;
  EXPECT_EQ(ScalingTable({row}).Render(kPipe),
            "RANKS  SAMPLES/S  TOKENS/S     STEP    LEAST  MEMORY  COMMUNICATION  SPEED-UP  EFFICIENCY  PREDICTED\n"
            "    2       80.0         -  100.0ms  100.0ms     0 B              -      1.00        100%     90.5ms\n");
  EXPECT_EQ(ScalingTree({row})[0]["predicted_step_seconds"], 0.0905);
}

TEST(Scaling, IsPredictedFromAPlan) {
  v1::PlanReply plan;
  plan.set_samples_per_step(64);
  plan.set_tokens_per_step(65536);
  plan.mutable_simulated()->set_step_seconds(0.5);
  plan.mutable_simulated()->set_exposed_seconds(0.1);
  plan.add_ranks()->set_peak_bytes(1 << 20);
  plan.add_ranks()->set_peak_bytes(3 << 20);
  EXPECT_EQ(ScalingTable({Predicted(plan, 8)}).Render(kPipe),
            "RANKS  SAMPLES/S  TOKENS/S     STEP    LEAST  MEMORY  COMMUNICATION  SPEED-UP  EFFICIENCY\n"
            "    8      128.0      131k  500.0ms  500.0ms   3 MiB          20.0%      1.00        100%\n");
}

TEST(Scaling, ComparesWithItsFirstRow) {
  Scaling one{.ranks = 1, .sequences = 8, .steps = 3, .step_seconds = 0.1, .least_seconds = 0.1};
  one.samples_per_second = 100;
  Scaling four = one;
  four.ranks = 4;
  four.samples_per_second = 300;
  four.communication = 0.25;
  const std::string table = ScalingTable({one, four}).Render(Screen{});
  EXPECT_TRUE(absl::StrContains(table, "25.0%      3.00         75%")) << table;
  const nlohmann::ordered_json tree = ScalingTree({one, four});
  EXPECT_FALSE(tree[0].contains("communication_share"));
  EXPECT_DOUBLE_EQ(tree[1]["efficiency"].get<double>(), 0.75);
}

v1::RankTrace Traced() {
  v1::RankTrace rank;
  rank.set_rank(1);
  rank.set_node("node-a");
  for (const uint64_t number : {7, 8}) {
    v1::StepTrace& step = *rank.add_steps();
    step.set_step(number);
    step.set_nanoseconds(10'000'000);
    step.mutable_begin()->set_seconds(static_cast<int64_t>(number));
    const auto add = [&](const char* name, v1::Lane lane, uint64_t begin, uint64_t end) {
      v1::Span& span = *step.add_spans();
      span.set_name(static_cast<uint32_t>(step.names_size()));
      step.add_names(name);
      span.set_lane(lane);
      span.set_begin(begin * 1'000'000);
      span.set_nanoseconds((end - begin) * 1'000'000);
    };
    add("data", v1::LANE_HOST, 0, 1);
    add("Forward h.0 m0", v1::LANE_COMPUTE, 1, 3);
    add("Backward h.0 m0", v1::LANE_COMPUTE, 3, 7);
    add("Reduce h.0 on reduce group 0 after 1", v1::LANE_REDUCE, 5, 8);
    add("Wait", v1::LANE_COMPUTE, 7, 8);
    add("OptimizerStep after 3", v1::LANE_COMPUTE, 8, 9);
  }
  return rank;
}

TEST(Trace, RowsAddUpToTheStep) {
  const StepProfile profile = Profile(Traced(), TraceRows::kKind);
  EXPECT_DOUBLE_EQ(profile.milliseconds, 10);
  EXPECT_EQ(profile.first_step, 7u);
  EXPECT_EQ(profile.last_step, 8u);
  double sum = 0;
  std::string names;
  for (const StepProfile::Row& row : profile.rows) {
    sum += row.milliseconds;
    absl::StrAppend(&names, row.name, " ");
  }
  EXPECT_DOUBLE_EQ(sum, 10);
  EXPECT_EQ(names, "Backward Forward OptimizerStep Wait data (between) ");
  EXPECT_DOUBLE_EQ(profile.rows[0].spans, 1);
  EXPECT_DOUBLE_EQ(profile.collectives, 3);
  EXPECT_DOUBLE_EQ(profile.hidden, 2) << "waiting hides nothing";
}

TEST(Trace, RanksHaveTheirPlace) {
  v1::RankTrace rank = Traced();
  EXPECT_EQ(RankLabel(rank), "rank 1 on node-a");
  rank.set_name("rank 1 (stage 0, tensor 1)");
  EXPECT_EQ(RankLabel(rank), "rank 1 (stage 0, tensor 1) on node-a");
  const nlohmann::ordered_json trace = ChromeTrace({rank});
  int named = 0;
  for (const auto& event : trace["traceEvents"]) {
    if (event["name"] != "process_name") continue;
    EXPECT_EQ(event["args"]["name"], "rank 1 (stage 0, tensor 1) on node-a");
    ++named;
  }
  EXPECT_EQ(named, 1);
}

// A step of 20 ms on tensor ranks: two sums inside a forward, of which the first is under way while the unit computes,
// and one inside a backward. As a GPU reports them, without the spans of the collectives, the waits alone are seen.
TEST(Trace, WaitsInsideOpsAreCollectivesAndNotComputing) {
  for (const bool collectives : {true, false}) {
    v1::RankTrace rank;
    v1::StepTrace& step = *rank.add_steps();
    step.set_step(3), step.set_nanoseconds(20'000'000);
    const auto add = [&](const char* name, v1::Lane lane, uint64_t begin, uint64_t end) {
      v1::Span& span = *step.add_spans();
      span.set_name(static_cast<uint32_t>(step.names_size())), step.add_names(name);
      span.set_lane(lane), span.set_begin(begin * 1'000'000), span.set_nanoseconds((end - begin) * 1'000'000);
    };
    add("Wait", v1::LANE_EXCHANGE, 4, 6);
    if (collectives) add("AllReduce", v1::LANE_EXCHANGE, 2, 6);
    add("Wait", v1::LANE_EXCHANGE, 7, 10);
    if (collectives) add("AllReduce", v1::LANE_EXCHANGE, 7, 10);
    add("Forward h.0 m0 in tensor", v1::LANE_COMPUTE, 0, 10);
    add("Wait", v1::LANE_EXCHANGE, 16, 17);
    if (collectives) add("AllReduce", v1::LANE_EXCHANGE, 16, 17);
    add("Backward h.0 m0 in tensor", v1::LANE_COMPUTE, 10, 18);
    add("OptimizerStep", v1::LANE_COMPUTE, 18, 19);
    const StepProfile profile = Profile(rank, TraceRows::kKind);
    std::string rows;
    double sum = 0;
    for (const StepProfile::Row& row : profile.rows) {
      absl::StrAppend(&rows, row.name, " ", row.milliseconds, ", ");
      sum += row.milliseconds;
    }
    EXPECT_EQ(rows.substr(0, rows.rfind("OptimizerStep")), "Backward 7, Exchange 6, Forward 5, ") << rows;
    EXPECT_TRUE(absl::EndsWith(rows, "OptimizerStep 1, (between) 1, ")) << rows;
    EXPECT_DOUBLE_EQ(sum, 20);
    EXPECT_DOUBLE_EQ(profile.collectives, collectives ? 8 : 6);
    EXPECT_DOUBLE_EQ(profile.hidden, collectives ? 2 : 0);
    const StepProfile by_op = Profile(rank, TraceRows::kOp);
    EXPECT_EQ(by_op.rows[0].name, "Backward h.0 m0 in tensor");
    EXPECT_DOUBLE_EQ(by_op.rows[0].milliseconds, 7);
  }
}

TEST(Trace, TheHeadlineFitsTheTerminal) {
  v1::RankTrace rank = Traced();
  rank.set_name("rank 1 (stage 0, tensor 1)");
  const StepProfile profile = Profile(rank, TraceRows::kKind);
  EXPECT_EQ(ProfileHeadline(rank, profile, Screen{}),
            "rank 1 (stage 0, tensor 1) on node-a, steps 7 to 8: 10.00 ms a step, collectives 3.00 ms, 67% of them "
            "overlapped with compute\n");
  EXPECT_EQ(ProfileHeadline(rank, profile, Screen{.width = 60}),
            "rank 1 (stage 0, tensor 1) on node-a, steps 7 to 8: 10.00 ms\n"
            "  a step, collectives 3.00 ms, 67% of them overlapped with\n"
            "  compute\n");
}

// As describe -o json, which prints the message.
TEST(Trace, ThePlaceOfARankHasTheNamesOfItsRole) {
  v1::RankTrace rank = Traced();
  v1::RankRole& role = *rank.mutable_role();
  role.set_stage(1), role.set_replica(2), role.set_shard_in_stage(3), role.set_tensor(4), role.set_shard(77);
  role.set_context(5);
  const nlohmann::ordered_json tree = ProfileTree(rank, Profile(rank, TraceRows::kKind));
  EXPECT_EQ(tree["stage"], 1);
  EXPECT_EQ(tree["replica"], 2);
  EXPECT_EQ(tree["shard_in_stage"], 3);
  EXPECT_EQ(tree["context"], 5);
  EXPECT_EQ(tree["tensor"], 4);
  EXPECT_FALSE(tree.contains("shard")) << "which is the number of an owner in the partition table";
}

TEST(Trace, RowsByUnitAndByOp) {
  EXPECT_EQ(Profile(Traced(), TraceRows::kUnit).rows[0].name, "h.0");
  EXPECT_DOUBLE_EQ(Profile(Traced(), TraceRows::kUnit).rows[0].milliseconds, 6);
  EXPECT_EQ(Profile(Traced(), TraceRows::kOp).rows[0].name, "Backward h.0 m0");
  const std::string table = ProfileTable(Profile(Traced(), TraceRows::kOp)).Render(Screen{});
  EXPECT_TRUE(absl::StrContains(table, "OptimizerStep")) << table;
  EXPECT_FALSE(absl::StrContains(table, "after")) << table;
}

// Ops of the whole step name no unit: what comes after their kind is a group, a slot or what they wait for. A unit may
// be called like that, too.
TEST(Trace, OnlyUnitsHaveRowsByUnit) {
  v1::RankTrace rank;
  v1::StepTrace& step = *rank.add_steps();
  const auto add = [&](const char* name, v1::Lane lane = v1::LANE_COMPUTE) {
    v1::Span& span = *step.add_spans();
    span.set_name(static_cast<uint32_t>(step.names_size())), step.add_names(name);
    span.set_lane(lane), span.set_begin(static_cast<uint64_t>(step.spans_size()) * 1'000'000);
    span.set_nanoseconds(1'000'000);
  };
  for (const char* name :
       {"Forward h.0 m0", "Forward in m0 in tensor after 3", "ReduceScalars in world after 7", "GradientNorm in world",
        "OptimizerStep even after 9", "OptimizerStep h.0 after 9", "Snapshot", "the step's result"}) {
    add(name);
  }
  add("data", v1::LANE_HOST);
  const auto names = [&](TraceRows by) {
    std::set<std::string> all;
    for (const StepProfile::Row& row : Profile(rank, by).rows) all.insert(row.name);
    return all;
  };
  EXPECT_EQ(names(TraceRows::kUnit),
            (std::set<std::string>{"h.0", "in", "ReduceScalars", "GradientNorm", "OptimizerStep", "Snapshot",
                                   "the step's result", "data", "(between)"}));
  EXPECT_EQ(names(TraceRows::kKind), (std::set<std::string>{"Forward", "ReduceScalars", "GradientNorm", "OptimizerStep",
                                                            "Snapshot", "the step's result", "data", "(between)"}));
}

TEST(Trace, ViewersGetAProcessARankAndAThreadAStream) {
  const nlohmann::ordered_json trace = ChromeTrace({Traced()});
  int spans = 0;
  std::string threads;
  for (const auto& event : trace["traceEvents"]) {
    EXPECT_EQ(event["pid"], 1);
    if (event["ph"] == "X") ++spans;
    if (event["name"] == "thread_name") absl::StrAppend(&threads, event["args"]["name"].get<std::string>(), " ");
    if (event["name"] != "step 8") continue;
    EXPECT_DOUBLE_EQ(event["ts"].get<double>(), 1e6) << "a second after the first";
  }
  EXPECT_EQ(spans, 2 * 7);
  EXPECT_EQ(threads, "steps host compute reduce ");
}

// A stream begins with the job as it is now, and then repeats how it came to that.
TEST(JobView, TheLiveLineDoesNotGoBackToStatesBeforeTheSnapshot) {
  JobView view(kTerminal);
  v1::WatchItem snapshot;
  *snapshot.mutable_snapshot() = MakeJob();
  view.Apply(snapshot, kNow);
  for (const v1::JobState state : {v1::JOB_STATE_QUEUED, v1::JOB_STATE_STARTING, v1::JOB_STATE_RUNNING}) {
    v1::WatchItem event = Event("every rank runs", state);
    event.set_in_snapshot(true);
    EXPECT_EQ(view.Apply(event, kNow).size(), 1u) << "it is printed all the same";
    EXPECT_TRUE(absl::StartsWith(view.LiveLine(kNow), "gpt2-tiny-x7f2  running  ")) << view.LiveLine(kNow);
  }
  // What happens after it counts, and a job that waits again says why.
  view.Apply(Event("restart 1 of 3 after: rank 1 was killed by signal 9", v1::JOB_STATE_QUEUED), kNow);
  EXPECT_TRUE(absl::StartsWith(view.LiveLine(kNow),
                               "gpt2-tiny-x7f2  queued  restart 1 of 3 after: rank 1 was killed by signal 9"))
      << view.LiveLine(kNow);
}

// The details of a fault's cause are printed once: by the restart, or by the summary of the failure.
TEST(JobView, RepeatsNoCause) {
  JobView view(kPipe);
  const auto event = [&](const char* kind, const char* message) {
    v1::WatchItem item;
    item.mutable_event()->set_kind(kind);
    item.mutable_event()->set_message(message);
    const std::vector<std::string> lines = view.Apply(item, kNow);
    return lines.back().substr(lines.back().find("  ") + 2);
  };
  EXPECT_EQ(event("rank.exited", "rank 0 exited with code 1: the loss is nan (on node-a)"),
            "rank 0 exited with code 1 (on node-a)");
  EXPECT_EQ(event("job.stopping", "j-1 is stopping: rank 0 exited with code 1: the loss is nan (on node-a)"),
            "j-1 is stopping");
  EXPECT_EQ(event("job.queued", "j-1: restart 1 of 3 after: rank 0 exited with code 1: the loss is nan"),
            "j-1: restart 1 of 3 after: rank 0 exited with code 1: the loss is nan");
  EXPECT_EQ(event("rank.exited", "rank 1 was killed by signal 9 (on node-b)"),
            "rank 1 was killed by signal 9 (on node-b)");
  EXPECT_EQ(event("job.queued", "j-1: restart 2 of 3 after: rank 1 was killed by signal 9"), "j-1: restart 2 of 3");
  EXPECT_EQ(event("rank.exited", "rank 0 exited with code 1: the loss is nan (on node-a)"),
            "rank 0 exited with code 1 (on node-a)");
  EXPECT_EQ(event("job.running", "j-1 is running"), "j-1 is running");
  EXPECT_EQ(event("job.failed", "j-1 failed: rank 0 exited with code 1: the loss is nan"), "j-1 failed");
  v1::Job job = MakeJob();
  job.set_state(v1::JOB_STATE_FAILED);
  job.set_reason("rank 0 exited with code 1: the loss is nan");
  job.mutable_failure()->set_node("node-a");
  job.mutable_failure()->mutable_exit()->set_message(job.reason());
  job.mutable_failure()->mutable_exit()->add_last_lines("error: the loss is nan");
  job.mutable_failure()->add_collateral(1);
  view.SetJob(job);
  EXPECT_EQ(view.FailureText(),
            "failed: rank 0 exited with code 1: the loss is nan\n"
            "first failing rank: 0 on node-a (generation 0)\n1 other rank stopped as a result\n");
}

}  // namespace
}  // namespace muster::cli
