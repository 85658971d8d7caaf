// Options that select what is listed: of ps, logs and events.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cli/testing/muster_fixture_test.h"

namespace muster::cli {
namespace {

using SelectionTest = MusterTest;

TEST_F(SelectionTest, JobsOfAUserAndInAState) {
  Serve();
  const auto put = [&](const std::string& id, v1::JobState state, const std::string& owner) {
    v1::Job job = PutJob(id, state);
    job.set_owner(owner);
    store_.PutJob(job);
  };
  put("a-0001", v1::JOB_STATE_RUNNING, "ann");
  put("b-0001", v1::JOB_STATE_FAILED, "ann");
  put("c-0001", v1::JOB_STATE_QUEUED, "bob");
  EXPECT_EQ(Run({"ps", "-a", "--user", "ann", "-o", "name"}).out, "a-0001\nb-0001\n");
  EXPECT_EQ(Run({"ps", "--state", "failed,queued", "-o", "name"}).out, "b-0001\nc-0001\n");
  EXPECT_EQ(Run({"ps", "--state", "failed", "--user", "bob"}).err, "no such jobs\n");
  const Ended wrong = Run({"ps", "--state", "broken"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_TRUE(absl::StrContains(wrong.err, "--state: \"broken\" is not one of queued, starting, ")) << wrong.err;
}

TEST_F(SelectionTest, PsCutsLongReasonsUnlessWide) {
  Serve();
  v1::Job job = PutJob("a-0001", v1::JOB_STATE_QUEUED);
  job.set_reason(std::string(200, 'x'));
  store_.PutJob(job);
  const std::string whole(200, 'x'), cut = std::string(71, 'x') + "~\n";
  EXPECT_TRUE(absl::StrContains(Run({"ps"}).out, cut)) << Run({"ps"}).out;
  EXPECT_FALSE(absl::StrContains(Run({"ps"}).out, whole));
  EXPECT_TRUE(absl::StrContains(Run({"ps", "-o", "wide"}).out, whole));
}

TEST_F(SelectionTest, LogLinesThatMatch) {
  Serve();
  PutJob("a-0001", v1::JOB_STATE_RUNNING);
  EXPECT_EQ(Run({"logs", "a-0001"}).err, "a-0001 (running): no output yet\n");
  store_.AppendLog("a-0001", 0, "fine\nan err");
  store_.AppendLog("a-0001", 0, "or here\nnan\nfine again\n");
  EXPECT_EQ(Run({"logs", "a-0001"}).err, "");
  EXPECT_EQ(Run({"logs", "a-0001", "--grep", "error|^nan$"}).out, "an error here\nnan\n");
  const Ended none = Run({"logs", "a-0001", "--grep", "nothing"});
  EXPECT_EQ(none.code, 0);
  EXPECT_EQ(none.err, "no lines match\n");
  const Ended wrong = Run({"logs", "a-0001", "--grep", "("});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_TRUE(absl::StartsWith(wrong.err, "muster: --grep (: ")) << wrong.err;
}

TEST_F(SelectionTest, AJobThatPrintedNothing) {
  Serve();
  PutJob("a-0001", v1::JOB_STATE_QUEUED);
  EXPECT_EQ(Run({"logs", "a-0001", "--tail", "3"}).err, "a-0001 (queued): no output yet\n");
  PutJob("a-0001", v1::JOB_STATE_CANCELLED);
  const Ended ended = Run({"logs", "a-0001"});
  EXPECT_EQ(ended.code, 0);
  EXPECT_EQ(ended.err, "a-0001 (cancelled): it printed nothing\n");
  EXPECT_EQ(Run({"logs", "a-0001", "--rank", "0"}).err, "a-0001, rank 0 (cancelled): it printed nothing\n");
  EXPECT_EQ(Run({"logs", "a-0001", "--grep", "x"}).err, "no lines match\n");
  v1::WatchItem gap;
  gap.set_job("a-0001");
  gap.mutable_gap()->set_what("logs");
  store_.Append(gap);
  EXPECT_EQ(Run({"logs", "a-0001"}).err, "(older lines were dropped)\n") << "it did";
}

TEST_F(SelectionTest, TheNewestLogLinesThatMatch) {
  Serve();
  PutJob("a-0001", v1::JOB_STATE_RUNNING);
  for (int step = 1; step <= 30; ++step) {
    store_.AppendLog("a-0001", 0, absl::StrCat("step ", step, "\nwriting a check"));
    store_.AppendLog("a-0001", 0, "point\nand more\nnothing of it\n");
  }
  EXPECT_EQ(Run({"logs", "a-0001", "--tail", "1"}).out, "point\nand more\nnothing of it\n")
      << "the fake sends whole chunks";
  const std::vector<std::string> newest = {"logs", "a-0001", "--grep", "^step", "--tail", "3"};
  EXPECT_EQ(Run(newest).out, "step 28\nstep 29\nstep 30\n");
  EXPECT_EQ(Run({"logs", "a-0001", "--grep", "a checkpoint$", "--tail", "1"}).out, "writing a checkpoint\n");
  EXPECT_EQ(Run({"logs", "a-0001", "--grep", "^step 1$", "--tail", "3"}).out, "step 1\n") << "the oldest line";
  const auto with = [&](const std::string& option) {
    std::vector<std::string> arguments = newest;
    arguments.push_back(option);
    return arguments;
  };
  std::vector<std::string> texts;
  for (const absl::string_view line : absl::StrSplit(Run(with("-ojson")).out, '\n', absl::SkipEmpty())) {
    texts.push_back(nlohmann::json::parse(line)["log"]["text"]);
  }
  EXPECT_EQ(texts, (std::vector<std::string>{"step 28\n", "step 29\n", "step 30\n"}));
  // Followed, all that come later, too.
  Program follow(Command(with("-f")), environment_);
  ASSERT_TRUE(follow.WaitForOut("step 30\n"));
  store_.AppendLog("a-0001", 0, "no step\nstep 31\nstep 32\nstep 33\nstep 34\n");
  store_.AppendEvent("a-0001", "over", v1::JOB_STATE_COMPLETED);
  EXPECT_EQ(follow.Wait().out, "step 28\nstep 29\nstep 30\nstep 31\nstep 32\nstep 33\nstep 34\n");
}

TEST_F(SelectionTest, EventsOfAType) {
  Serve();
  PutJob("a-0001", v1::JOB_STATE_RUNNING);
  for (int i = 1; i <= 3; ++i) store_.AppendEvent("a-0001", absl::StrCat("event ", i), v1::JOB_STATE_RUNNING);
  // The fake coordinator's events are of the type job.running.
  EXPECT_EQ(Run({"events", "--type", "rank"}).out, "");
  EXPECT_EQ(Run({"events", "--type", "rank"}).err, "no events of these types\n");
  EXPECT_EQ(Run({"events", "--type", "job.failed"}).err, "no events of these types\n") << "whole words";
  for (const char* type : {"job", "job.running", "rank,job"}) {
    const std::string out = Run({"events", "--type", type, "--tail", "2"}).out;
    EXPECT_FALSE(absl::StrContains(out, "event 1")) << out;
    EXPECT_TRUE(absl::StrContains(out, "event 2") && absl::StrContains(out, "event 3")) << out;
  }
}

TEST_F(SelectionTest, TheNewestEventsOfATypeAndAllThatFollow) {
  Serve();
  PutJob("a-0001", v1::JOB_STATE_RUNNING);
  const auto other = [&](const std::string& message) {
    v1::WatchItem item;
    item.set_job("a-0001");
    item.mutable_event()->set_kind("link.slow");
    item.mutable_event()->set_message(message);
    store_.Append(std::move(item));
  };
  const auto line = [](int i) {
    return absl::StrCat("1970-01-01T00:00:00Z  job.running             a-0001  ", i, "\n");
  };
  for (int i = 1; i <= 3; ++i) store_.AppendEvent("a-0001", absl::StrCat(i), v1::JOB_STATE_RUNNING);
  other("newer");
  Program follow(Command({"events", "a-0001", "-f", "--type", "job", "--tail", "2"}), environment_);
  ASSERT_TRUE(follow.WaitForOut(line(3)));
  other("newest");
  store_.AppendEvent("a-0001", "4", v1::JOB_STATE_COMPLETED);
  EXPECT_EQ(follow.Wait().out, line(2) + line(3) + line(4));
}

// As `kubectl logs --tail 0` and `docker logs --tail 0`: nothing that is there already, without a word.
TEST_F(SelectionTest, TheNewestNoneOfAnything) {
  Serve();
  PutJob("a-0001", v1::JOB_STATE_RUNNING);
  store_.AppendEvent("a-0001", "event", v1::JOB_STATE_RUNNING);
  store_.AppendMetrics("a-0001", 1, 0.5);
  store_.AppendLog("a-0001", 0, "line\n");
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
           {"logs", "a"}, {"metrics", "a"}, {"events"}, {"events", "a"}, {"events", "--type", "job"}, {"audit"}}) {
    std::vector<std::string> arguments = command;
    arguments.insert(arguments.end(), {"--tail", "0"});
    const auto ran = Run(arguments);
    EXPECT_EQ(ran.code, 0) << ran.err;
    EXPECT_EQ(ran.out + ran.err, "") << absl::StrJoin(command, " ");
  }
}

TEST_F(SelectionTest, PlanListsTimeoutsWhenAsked) {
  Serve();
  v1::Timeout& timeout = *store_.plan.add_timeouts();
  timeout.set_name("a rank without progress counts as hung");
  timeout.set_seconds(30);
  const std::string file = folder_.Write("job.yaml",
                                         "apiVersion: muster/v1\nkind: Job\nname: a\n"
                                         "model: {family: gpt2, size: tiny}\ndata: {tokens: train.bin}\nsteps: 10\n");
  EXPECT_FALSE(absl::StrContains(Run({"plan", file}).out, "counts as hung"));
  EXPECT_TRUE(absl::StrContains(Run({"plan", file, "--timeouts"}).out, "30s  a rank without progress counts as hung"));
}

}  // namespace
}  // namespace muster::cli
