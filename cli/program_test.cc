// The real program as a process against a fake coordinator over a real socket: the behavior that scripts rely on.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <regex>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "checkpoint/checkpoint.h"
#include "cli/testing/muster_fixture_test.h"
#include "common/rpc/rpc.h"
#include "testing/wait.h"
#include "testing/without_file_override.h"

namespace muster::cli {
namespace {

using nlohmann::json;

constexpr char kSpec[] =
    "apiVersion: muster/v1\nkind: Job\nname: a\nmodel: {family: gpt2, size: tiny}\n"
    "data: {tokens: train.bin}\noptimizer:\n  lr: -1\nsteps: 10\n";

TEST_F(MusterTest, WithoutACoordinatorSaysWhatToDo) {
  const Ended ps = Run({"ps"});
  EXPECT_EQ(ps.code, 3);
  EXPECT_EQ(ps.out, "");
  EXPECT_EQ(ps.err, absl::StrCat("muster: cannot reach the coordinator at unix:", folder_.path(),
                                 "/coordinator.sock: is it running? start one with: muster local up\n"));
  // A socket without a listener, and a TCP address.
  Serve();
  coordinator_.reset();
  EXPECT_EQ(Run({"ps"}).code, 3);
  const Ended tcp = Run({"ps", "--address", "127.0.0.1:1", "--timeout", "5s"});
  EXPECT_EQ(tcp.code, 3);
  EXPECT_TRUE(absl::StrContains(tcp.err, "127.0.0.1:1")) << tcp.err;
  EXPECT_EQ(Run({"watch", "a"}).code, 3);
  EXPECT_EQ(Run({"events", "-f"}).code, 3);
}

TEST_F(MusterTest, RefusesARuntimeFolderThatIsOpenToOthers) {
  Serve();
  chmod(folder_.path().c_str(), 0755);
  const Ended ps = Run({"ps"});
  EXPECT_EQ(ps.code, 4);
  EXPECT_TRUE(absl::StrContains(ps.err, "another user could listen there")) << ps.err;
}

TEST_F(MusterTest, UsageErrorsAreTwoAndSuggest) {
  const Ended command = Run({"sumbit", "x"});
  EXPECT_EQ(command.code, 2);
  EXPECT_EQ(command.err, "muster: unknown command sumbit, did you mean submit?\nsee: muster --help\n");
  const Ended option = Run({"ps", "--al"});
  EXPECT_EQ(option.code, 2);
  EXPECT_EQ(option.err, "muster: unknown option --al, did you mean --all?\nsee: muster ps --help\n");
  for (const std::vector<std::string>& wrong : std::vector<std::vector<std::string>>{{},
                                                                                     {"watch"},
                                                                                     {"ps", "-o", "xml"},
                                                                                     {"events", "-o", "yaml"},
                                                                                     {"logs", "a", "--tail", "x"},
                                                                                     {"logs", "a", "--since", "x"},
                                                                                     {"ps", "--timeout", "x"},
                                                                                     {"local"},
                                                                                     {"local", "up", "--nodes", "0"},
                                                                                     {"ps", "--address", "nowhere"},
                                                                                     {"submit", "-d"},
                                                                                     {"submit", "missing.yaml"},
                                                                                     {"train", "--model", "gpt3"}}) {
    EXPECT_EQ(Run(wrong).code, 2) << (wrong.empty() ? "" : wrong.back());
  }
  EXPECT_EQ(Run({"--help"}).code, 0);
  EXPECT_EQ(Run({"local", "up", "--help"}).code, 0);
}

// The longest line of what a program printed, in characters of ASCII.
size_t LongestLine(const std::string& printed) {
  size_t longest = 0;
  for (const absl::string_view line : absl::StrSplit(printed, absl::ByAnyChar("\r\n"))) {
    longest = std::max(longest, line.size());
  }
  return longest;
}

TEST_F(MusterTest, PsWatchFitsTheTerminalAfterItWasResized) {
  environment_["TERM"] = "dumb";  // without colors and codes, so that bytes are columns
  environment_["LANG"] = "C";
  Serve();
  v1::Job job = PutJob("gpt2-tiny-x7f2", v1::JOB_STATE_QUEUED);
  job.set_reason("2nd in the queue: needs 16 slots, 0 of 16 free (in use: gpt2-medium-a1b2, gpt2-medium-c3d4)");
  store_.PutJob(job);
  Program watch(Command({"ps", "--watch"}), environment_, "", /*terminal=*/true, /*columns=*/100);
  ASSERT_TRUE(watch.WaitForOut("2nd in the queue"));
  EXPECT_GT(LongestLine(watch.out()), 70u);
  EXPECT_LE(LongestLine(watch.out()), 100u);
  watch.Resize(70, 40);
  const size_t before = watch.out().size();
  job.set_reason(absl::StrCat("1st", job.reason().substr(3)));
  store_.PutJob(job);
  ASSERT_TRUE(watch.WaitForOut("1st in the queue"));
  watch.Signal(SIGINT);
  const Ended ended = watch.Wait();
  EXPECT_EQ(ended.code, 130);
  EXPECT_LE(LongestLine(ended.out.substr(before)), 70u) << ended.out;
}

// The last page that a program drew in place, in lines.
std::vector<std::string> LastDrawn(const Program& program) {
  const std::string drawn = std::regex_replace(program.out(), std::regex("\x1b\\[[0-9]*m|\r"), "");
  const size_t begin = drawn.rfind("\x1b[H\x1b[J");
  if (begin == std::string::npos) return {};
  return absl::StrSplit(drawn.substr(begin + 6), '\n');
}

TEST_F(MusterTest, WhatIsDrawnInPlaceNeverScrolls) {
  environment_["LANG"] = "C";  // bytes are columns
  Serve();
  for (int i = 0; i < 14; ++i) {
    PutJob(absl::StrFormat("%02d-a-job-whose-name-is-wider-than-it-is", i), v1::JOB_STATE_RUNNING);
  }
  AddNode("node-a");
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{{"top"}, {"ps", "-w"}}) {
    Program live(Command(command), environment_, "", /*terminal=*/true, /*columns=*/100);
    ASSERT_TRUE(live.WaitForOut("13-a-job")) << "all fit 40 rows";
    EXPECT_FALSE(absl::StrContains(live.out(), "fit")) << live.out();
    for (const auto& [columns, rows] : std::vector<std::pair<size_t, size_t>>{{70, 10}, {50, 10}, {20, 5}, {100, 15}}) {
      const size_t before = live.out().size();
      live.Resize(static_cast<int>(columns), static_cast<int>(rows));
      std::vector<std::string> lines;
      const auto fits = [&, columns = columns, rows = rows] {
        live.Read(absl::Milliseconds(20));
        if (!absl::StrContains(live.out().substr(before), "00-a-job")) return false;
        lines = LastDrawn(live);
        return lines.size() <= rows &&
               std::all_of(lines.begin(), lines.end(), [&](const std::string& line) { return line.size() <= columns; });
      };
      EXPECT_TRUE(Eventually(fits, absl::Seconds(10))) << command.front() << " on " << columns << "x" << rows << ":\n"
                                                       << absl::StrJoin(lines, "\n");
      if (command.front() == "ps" && columns == 70) {
        EXPECT_TRUE(absl::StartsWith(lines.front(), "JOB ")) << lines.front();
        EXPECT_EQ(lines.back(), "6 more jobs do not fit");
      }
    }
    live.Signal(SIGINT);
    EXPECT_EQ(live.Wait().code, 130);
  }
}

TEST_F(MusterTest, APageThatIsDrawnInPlaceSaysThatTheCoordinatorIsAway) {
  Serve();
  PutJob("a-0001", v1::JOB_STATE_RUNNING);
  Program live(Command({"ps", "-w"}), environment_, "", /*terminal=*/true, /*columns=*/100);
  ASSERT_TRUE(live.WaitForOut("a-0001"));
  coordinator_.reset();
  ASSERT_TRUE(live.WaitForOut("away"));
  ASSERT_TRUE(Eventually([&] {
    live.Read(absl::Milliseconds(20));
    const std::vector<std::string> lines = LastDrawn(live);
    return lines.size() == 3 && lines[0] == "the coordinator is away; trying again ..." &&
           absl::StartsWith(lines[2], "a-0001");
  })) << live.out();
}

TEST_F(MusterTest, WideAnswersFitATerminalOf60Columns) {
  environment_["TERM"] = "dumb";  // without colors and codes, so that bytes are columns
  environment_["LANG"] = "C";
  Serve();
  v1::Job job = PutJob("gpt2-tiny-with-a-long-name-of-its-run-x7f2", v1::JOB_STATE_COMPLETED);
  job.set_slot_seconds(7200);
  store_.PutJob(job);
  const auto at_60_columns = [&](const std::vector<std::string>& arguments) {
    const Ended ended = Program(Command(arguments), environment_, "", /*terminal=*/true, /*columns=*/60).Wait();
    EXPECT_EQ(ended.code, 0) << ended.out;
    EXPECT_LE(LongestLine(ended.out), 60u) << ended.out;
    return ended.out;
  };
  EXPECT_TRUE(absl::StrContains(at_60_columns({"usage", "--by", "job"}), "SLOT HOURS  2.00"));
  EXPECT_TRUE(absl::StrContains(at_60_columns({"version"}), "coordinator "));
  // `script` gives it a terminal for its standard input, too.
  const std::string question = RunToEnd({"/bin/sh", "-c",
                                         absl::StrCat("printf 'n\\n' | script -qec 'stty cols 60; ",
                                                      ProgramPath("cli/muster"), " delete ", job.id(), "' /dev/null")},
                                        environment_)
                                   .out;
  EXPECT_TRUE(absl::StrContains(question, "[y/N]")) << question;
  // A user's answer ends the line.
  EXPECT_LE(LongestLine(question.substr(0, question.find("[y/N]") + 5)), 60u) << question;
  EXPECT_EQ(Program(Command({"metrics", job.id(), "--plot"}), environment_, "", /*terminal=*/true, /*columns=*/29)
                .Wait()
                .out.substr(0, 8),
            "no plot:");
}

TEST_F(MusterTest, EachStatusHasItsExitCode) {
  Serve();
  const std::pair<absl::Status, int> kCases[] = {
      {absl::PermissionDeniedError("no"), 4},     {absl::UnauthenticatedError("no token"), 4},
      {absl::NotFoundError("no job"), 2},         {absl::FailedPreconditionError("fits several: a, b"), 2},
      {absl::InternalError("disk"), 1},           {absl::ResourceExhaustedError("disk full"), 1},
      {absl::UnimplementedError("not there"), 1},
  };
  for (const auto& [status, code] : kCases) {
    store_.Fail("Get", status);
    const Ended ended = Run({"describe", "a"});
    EXPECT_EQ(ended.code, code) << status;
    EXPECT_EQ(ended.err, absl::StrCat("muster: ", std::string(status.message()), "\n"));
    EXPECT_EQ(ended.out, "");
  }
}

TEST_F(MusterTest, TimeOutIsFive) {
  store_.delay = absl::Seconds(3);
  Serve();
  const Ended ended = Run({"ps", "--timeout", "200ms"});
  EXPECT_EQ(ended.code, 5);
  EXPECT_TRUE(absl::EndsWith(ended.err, "did not answer within 200ms\n")) << ended.err;
  const Ended change = Run({"cancel", "a-0001", "--timeout", "200ms"});
  EXPECT_EQ(change.code, 5);
  EXPECT_EQ(change.err,
            "muster: no answer from the coordinator within 200ms; the request may still take effect: see muster ps\n");
}

TEST_F(MusterTest, TheCoordinatorsOwnTimeOutKeepsItsMessage) {
  Serve();
  store_.Fail("Cancel", absl::DeadlineExceededError("no checkpoint was published in 3s; the request stays in effect"));
  const Ended ended = Run({"cancel", "a-0001"});
  EXPECT_EQ(ended.code, 5);
  EXPECT_EQ(ended.err, "muster: no checkpoint was published in 3s; the request stays in effect\n");
}

TEST_F(MusterTest, PsInEveryFormat) {
  Serve();
  const Ended none = Run({"ps"});
  EXPECT_EQ(none.code, 0);
  EXPECT_EQ(none.out, "");
  EXPECT_EQ(json::parse(Run({"ps", "-o", "json"}).out), json::array());
  PutJob("a-0001", v1::JOB_STATE_RUNNING);
  PutJob("b-0002", v1::JOB_STATE_QUEUED);
  EXPECT_EQ(Run({"ps"}).out,
            "JOB     STATE     STEP  LOSS  TOKENS/S  TIME  LEFT  AGE  REASON\n"
            "a-0001  running  0/100     -         -     -     -    -  -\n"
            "b-0002  queued   0/100     -         -     -     -    -  -\n");
  EXPECT_TRUE(absl::StrContains(Run({"ps", "-o", "wide"}).out, "STRATEGY"));
  EXPECT_EQ(Run({"ps", "-o", "name"}).out, "a-0001\nb-0002\n");
  const json jobs = json::parse(Run({"ps", "-o", "json"}).out);
  ASSERT_EQ(jobs.size(), 2u);
  EXPECT_EQ(jobs[0]["job"]["id"], "a-0001");
  EXPECT_EQ(jobs[1]["job"]["state"], "queued");
  EXPECT_EQ(jobs[1]["job"]["spec"]["steps"], 100);
  EXPECT_TRUE(absl::StartsWith(Run({"ps", "-o", "yaml"}).out, "- job:\n    id: a-0001\n"));
}

TEST_F(MusterTest, AClosedPipeIsQuiet) {
  Serve();
  for (int i = 0; i < 2000; ++i) PutJob(absl::StrCat("job-with-a-long-name-", i), v1::JOB_STATE_QUEUED);
  const Ended ended =
      RunToEnd({"/bin/sh", "-c", absl::StrCat(ProgramPath("cli/muster"), " ps | head -n 1")}, environment_);
  EXPECT_EQ(ended.err, "");
  EXPECT_EQ(std::count(ended.out.begin(), ended.out.end(), '\n'), 1);
  for (const std::string arguments : {"ps", "--version", "ps --help"}) {
    const std::string line = absl::StrCat(ProgramPath("cli/muster"), " ", arguments, " > /dev/full");
    const Ended full = RunToEnd({"/bin/sh", "-c", line}, environment_);
    EXPECT_EQ(full.code, 1) << arguments;
    EXPECT_EQ(full.err, "muster: cannot write to standard output: is the disk full?\n") << arguments;
  }
}

TEST_F(MusterTest, AClosedStandardOutputIsSaid) {
  Serve();
  PutJob("a-0001", v1::JOB_STATE_QUEUED);
  for (const std::string arguments : {"ps", "ps -o json", "--version", "ps --help"}) {
    const std::string line = absl::StrCat(ProgramPath("cli/muster"), " ", arguments, " >&-");
    const Ended closed = RunToEnd({"/bin/sh", "-c", line}, environment_);
    EXPECT_EQ(closed.code, 1) << arguments;
    EXPECT_EQ(closed.err, "muster: cannot write to standard output: it is closed\n") << arguments;
  }
  const Ended silent = RunToEnd({"/bin/sh", "-c", absl::StrCat(ProgramPath("cli/muster"), " ps 2>&-")}, environment_);
  EXPECT_EQ(silent.code, 0) << "it printed all there is";
  EXPECT_TRUE(absl::StrContains(silent.out, "a-0001")) << silent.out;
}

TEST_F(MusterTest, SubmitPrintsTheIdAndRemembersIt) {
  Serve();
  const std::string file = folder_.Write("jobs/job.yaml", kSpec);
  const Ended ended = Run({"submit", file, "--set", "optimizer.lr=3e-4", "--name", "other"});
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(ended.out, "new-0001\n");
  EXPECT_TRUE(absl::StrContains(ended.err, "muster watch new-0001")) << ended.err;
  EXPECT_EQ(store_.submitted.name(), "other");
  EXPECT_EQ(store_.submitted.train().optimizer().lr(), 3e-4);
  EXPECT_EQ(store_.submitted.train().data().tokens(), folder_.path() + "/jobs/train.bin");
  EXPECT_EQ(Run({"describe", "@last"}).code, 0);
  EXPECT_TRUE(Called("Get new-0001"));
  EXPECT_EQ(json::parse(Run({"submit", "-o", "json", file, "--set", "optimizer.lr=1"}).out)["job"]["id"], "new-0001");
  // Another coordinator has no @last from here.
  const Ended elsewhere =
      Run({"describe", "@last", "--address", absl::StrCat("unix://", folder_.path(), "/coordinator.sock")});
  EXPECT_EQ(elsewhere.code, 2);
  EXPECT_TRUE(absl::StrContains(elsewhere.err, "another coordinator")) << elsewhere.err;
}

TEST_F(MusterTest, AtLastWithoutASubmissionIsAnError) {
  Serve();
  const Ended ended = Run({"watch", "@last"});
  EXPECT_EQ(ended.code, 2);
  EXPECT_EQ(ended.err, "muster: @last: no job was submitted from here yet\n");
}

TEST_F(MusterTest, SpecErrorsOfBothSidesHaveTheirPlaces) {
  Serve();
  const std::string bad = folder_.Write("bad.yaml", "apiVersion: muster/v1\nkind: Job\nstepps: 1\nseed: x\n");
  const Ended own = Run({"submit", bad});
  EXPECT_EQ(own.code, 2);
  EXPECT_EQ(own.err, absl::StrCat(bad, ":3:1: stepps: unknown field, did you mean steps?\n", bad,
                                  ":4:7: seed: expected an integer, got the string \"x\"\n"));
  EXPECT_FALSE(Called("Submit"));
  const std::string file = folder_.Write("job.yaml", kSpec);
  v1::SpecErrors errors;
  const std::pair<const char*, const char*> kErrors[] = {{"optimizer.lr", "must be greater than 0, got -1"},
                                                         {"batch.sequences", "is odd"}};
  for (const auto& [path, message] : kErrors) {
    errors.add_errors()->set_path(path);
    errors.mutable_errors(errors.errors_size() - 1)->set_message(message);
  }
  absl::Status refused = absl::InvalidArgumentError("the spec is wrong");
  refused.SetPayload(rpc::kErrorDetails, absl::Cord(errors.SerializeAsString()));
  for (const char* method : {"Submit", "Plan"}) store_.Fail(method, refused);
  const std::string expected = absl::StrCat(file, ":1:1: batch.sequences: is odd\n", file,
                                            ":7:7: optimizer.lr: must be greater than 0, got -1\n");
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"submit", file}, {"submit", "--dry-run", file}, {"plan", file}}) {
    const Ended ended = Run(command);
    EXPECT_EQ(ended.code, 2);
    EXPECT_EQ(ended.err, expected);
  }
  const Ended validate = Run({"validate", file});
  EXPECT_EQ(validate.code, 2);
  EXPECT_EQ(validate.err, expected);
  EXPECT_EQ(Run({"validate", "--offline", file}).code, 0);
  EXPECT_EQ(Run({"validate", "--offline", "-"}, kSpec).code, 0);
}

TEST_F(MusterTest, TrainMakesASpecFromFlags) {
  const Ended print =
      Run({"train", "--model", "gpt2:tiny", "--data", "/d/t.bin", "--strategy", "zero3", "--ranks", "2", "--lr", "3e-4",
           "--steps", "100", "--weight-decay", "0.1", "--set", "checkpoint.keep=3", "--print"});
  EXPECT_EQ(print.code, 0) << print.err;
  EXPECT_EQ(
      print.out,
      absl::StrCat("apiVersion: muster/v1\nkind: Job\nname: gpt2-tiny\nresources:\n  ranks: 2\n"
                   "model:\n  family: gpt2\n  size: tiny\ndata:\n  tokens: /d/t.bin\n"
                   "strategy:\n  kind: zero\n  stage: 3\noptimizer:\n  kind: adamw\n  lr: 0.0003\n  weight_decay: 0.1\n"
                   "checkpoint:\n  path: \"",
                   std::filesystem::current_path().string(), "/runs/{job}\"\n  keep: 3\nsteps: 100\n"));
  Serve();
  EXPECT_EQ(Run({"submit", "-", "-d"}, print.out).code, 0);
  EXPECT_EQ(store_.submitted.train().strategy().zero().stage(), 3u);
  const Ended bad = Run({"train", "--model", "gpt2:tinny", "--data", "x", "--lr", "fast", "--steps", "1e3"});
  EXPECT_EQ(bad.code, 2);
  EXPECT_EQ(bad.err,
            "muster: --model: expected tiny, small, medium, large or xl, got the string \"tinny\", "
            "did you mean tiny?\n"
            "muster: --steps: expected an integer, got the number 1e3, did you mean 1000?\n"
            "muster: --lr: expected a number, got the string \"fast\"\n");
  v1::SpecErrors errors;
  for (const char* field : {"data.tokens", "steps"}) {
    errors.add_errors()->set_path(field);
    errors.mutable_errors(errors.errors_size() - 1)->set_message("missing");
  }
  absl::Status refused = absl::InvalidArgumentError("the spec is wrong");
  refused.SetPayload(rpc::kErrorDetails, absl::Cord(errors.SerializeAsString()));
  store_.Fail("Submit", refused);
  EXPECT_EQ(Run({"train", "--model", "gpt2:tiny", "-d"}).err, "muster: --data: missing\nmuster: --steps: missing\n");
}

// What runs, the id, and what to type next.
TEST_F(MusterTest, ADetachedSubmissionPrintsThreeLines) {
  Serve();
  const Ended ended =
      Run({"submit", "-d", folder_.Write("job.yaml", kSpec), "--set", "checkpoint.path=/checkpoints/{job}"});
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(ended.out, "new-0001\n");
  EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 2) << ended.err;
  EXPECT_TRUE(
      absl::EndsWith(ended.err, "\nnext: muster watch new-0001   muster logs -f new-0001   muster cancel new-0001\n"))
      << ended.err;
}

TEST_F(MusterTest, ASubmissionIsRetriedWithTheSameRequestId) {
  // Simulates a coordinator that died between its commit and its reply.
  store_.Fail("Submit", absl::UnavailableError("shutting down"), true);
  Serve();
  const Ended ended = Run({"submit", "-d", folder_.Write("job.yaml", kSpec)});
  EXPECT_EQ(ended.code, 0) << ended.err;
  ASSERT_EQ(store_.request_ids.size(), 2u);
  EXPECT_EQ(store_.request_ids[0], store_.request_ids[1]);
  EXPECT_EQ(store_.request_ids[0].size(), 32u);
}

TEST_F(MusterTest, TheJobsStateIsTheExitCodeOfWatch) {
  Serve();
  const std::pair<v1::JobState, int> kCases[] = {
      {v1::JOB_STATE_COMPLETED, 0}, {v1::JOB_STATE_FAILED, 1}, {v1::JOB_STATE_CANCELLED, 6}};
  for (const auto& [state, code] : kCases) {
    const std::string id = absl::StrCat("job-", code);
    v1::Job job = PutJob(id, v1::JOB_STATE_RUNNING);
    job.mutable_failure()->set_rank(3);
    job.mutable_failure()->mutable_exit()->add_last_lines("boom");
    job.mutable_failure()->set_hint("look there");
    store_.PutJob(job);
    for (int step = 1; step <= 3; ++step) store_.AppendMetrics(id, step, 5.0 - step);
    store_.AppendEvent(id, "over", state);
    const Ended ended = Run({"watch", id});
    EXPECT_EQ(ended.code, code) << ended.err;
    EXPECT_TRUE(absl::StrContains(ended.out, "step 3/100  loss 2  validation loss 2.5")) << ended.out;
    EXPECT_TRUE(absl::StrContains(ended.out, "loss 4 → 2")) << ended.out;
    EXPECT_EQ(absl::StrContains(ended.err, "first failing rank: 3"), code == 1) << ended.err;
    EXPECT_EQ(absl::StrContains(ended.err, "boom"), code == 1);
    EXPECT_EQ(absl::StrContains(ended.err, "hint: look there"), code == 1);
  }
}

TEST_F(MusterTest, SubmitFollowsWhenAsked) {
  Serve();
  Program program(Command({"submit", "-f", folder_.Write("job.yaml", kSpec)}), environment_);
  ASSERT_TRUE(program.WaitForOut("new-0001\n"));
  store_.AppendMetrics("new-0001", 1, 5);
  store_.AppendEvent("new-0001", "over", v1::JOB_STATE_COMPLETED);
  const Ended ended = program.Wait();
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_TRUE(absl::StrContains(ended.out, "step 1/10")) << ended.out;
}

TEST_F(MusterTest, CtrlCDetachesAndNeverCancels) {
  Serve();
  PutJob("a-0001", v1::JOB_STATE_RUNNING);
  store_.AppendMetrics("a-0001", 1, 5);
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"watch", "a-0001"}, {"metrics", "-f", "a-0001"}}) {
    Program program(Command(command), environment_);
    ASSERT_TRUE(program.WaitForOut("5"));
    program.Signal(SIGINT);
    const Ended ended = program.Wait();
    EXPECT_EQ(ended.code, 130);
    EXPECT_TRUE(absl::StrContains(ended.err, "detached; a-0001 continues")) << ended.err;
  }
  EXPECT_FALSE(Called("Cancel a-0001"));
}

TEST_F(MusterTest, WatchGoesOnBehindTheLastItemAfterARestart) {
  Serve();
  PutJob("a-0001", v1::JOB_STATE_RUNNING);
  for (int step = 1; step <= 3; ++step) store_.AppendMetrics("a-0001", step, 5);
  Program program(Command({"watch", "a-0001"}), environment_);
  ASSERT_TRUE(program.WaitForOut("step 3/100"));
  coordinator_.reset();
  ASSERT_TRUE(program.WaitForErr("lost the coordinator"));
  for (int step = 4; step <= 6; ++step) store_.AppendMetrics("a-0001", step, 4);
  Serve();
  ASSERT_TRUE(program.WaitForOut("step 6/100"));
  store_.AppendEvent("a-0001", "over", v1::JOB_STATE_COMPLETED);
  const Ended ended = program.Wait();
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_TRUE(absl::StrContains(ended.err, "connected again")) << ended.err;
  for (int step = 1; step <= 6; ++step) {
    const std::vector<std::string> parts = absl::StrSplit(ended.out, absl::StrCat("step ", step, "/100"));
    EXPECT_EQ(parts.size(), 2u) << "step " << step << " once in:\n" << ended.out;
  }
  EXPECT_TRUE(Called("Watch a-0001 from 3"));
}

TEST_F(MusterTest, WatchAsJsonIsALineForEachItem) {
  Serve();
  PutJob("a-0001", v1::JOB_STATE_RUNNING);
  store_.AppendMetrics("a-0001", 1, 5);
  store_.AppendEvent("a-0001", "over", v1::JOB_STATE_FAILED);
  const Ended ended = Run({"watch", "a-0001", "-o", "json"});
  EXPECT_EQ(ended.code, 1);
  std::vector<std::string> lines = absl::StrSplit(ended.out, '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 3u) << ended.out;
  EXPECT_EQ(json::parse(lines[0])["snapshot"]["id"], "a-0001");
  EXPECT_EQ(json::parse(lines[1])["metrics"]["loss"], 5);
  EXPECT_EQ(json::parse(lines[2])["event"]["job_state"], "failed");
}

TEST_F(MusterTest, WatchEndsAtItsTimeOut) {
  Serve();
  PutJob("a-0001", v1::JOB_STATE_RUNNING);
  // On a busy machine the first call alone, which asks for the job, may take longer; then a longer time-out is tried.
  const auto expect = [&](const std::vector<std::string>& command, const std::string& state) {
    std::string said;
    for (const std::string timeout : {"300ms", "3s", "20s"}) {
      std::vector<std::string> limited = command;
      limited.insert(limited.end(), {"--timeout", timeout});
      const Ended ended = Run(limited);
      EXPECT_EQ(ended.code, 5) << ended.err;
      if (absl::EndsWith(ended.err,
                         absl::StrCat("muster: timed out after ", timeout, "; the job is still ", state, "\n")))
        return;
      said += ended.err;
    }
    ADD_FAILURE() << said;
  };
  expect({"watch", "a-0001"}, "running");
  PutJob("b-0001", v1::JOB_STATE_QUEUED);
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
           {"watch", "b-0001"}, {"logs", "-f", "b-0001"}, {"metrics", "-f", "b-0001"}}) {
    expect(command, "queued");
  }
}

TEST_F(MusterTest, ATerminalHasALiveLineAndFollowsBySubmitting) {
  Serve();
  Program program(Command({"submit", folder_.Write("job.yaml", kSpec)}), environment_, "", true);
  ASSERT_TRUE(program.WaitForOut("new-0001"));
  ASSERT_TRUE(program.WaitForOut("queued"));
  store_.AppendEvent("new-0001", "every rank runs", v1::JOB_STATE_RUNNING);
  store_.AppendMetrics("new-0001", 5, 3);
  ASSERT_TRUE(program.WaitForOut(" 50%  5/10  loss 3"));
  store_.AppendEvent("new-0001", "over", v1::JOB_STATE_COMPLETED);
  const Ended ended = program.Wait();
  EXPECT_EQ(ended.code, 0);
  EXPECT_TRUE(absl::StrContains(ended.out, "█████")) << ended.out;
  EXPECT_TRUE(absl::StrContains(ended.out, "\r\x1b[J")) << ended.out;
}

TEST_F(MusterTest, ADumbTerminalAndNoColorAreObeyed) {
  Serve();
  PutJob("a-0001", v1::JOB_STATE_RUNNING);
  const auto output = [&](const char* name, const char* value, const std::vector<std::string>& flags) {
    Program::Environment environment = environment_;
    environment[name] = value;
    std::vector<std::string> command = Command({"ps"});
    command.insert(command.end(), flags.begin(), flags.end());
    return Program(command, environment, "", true).Wait().out;
  };
  EXPECT_TRUE(absl::StrContains(output("X", "1", {}), "\x1b["));
  EXPECT_FALSE(absl::StrContains(output("NO_COLOR", "1", {}), "\x1b["));
  EXPECT_FALSE(absl::StrContains(output("TERM", "dumb", {}), "\x1b["));
  EXPECT_FALSE(absl::StrContains(output("X", "1", {"--no-color"}), "\x1b["));
}

TEST_F(MusterTest, LogsPutsPiecesOfLinesTogether) {
  Serve();
  v1::Job job = PutJob("a-0001", v1::JOB_STATE_RUNNING);
  store_.AppendLog("a-0001", 0, "one\ntw");
  store_.AppendLog("a-0001", 0, "o\nthree");
  EXPECT_EQ(Run({"logs", "a-0001"}).out, "one\ntwo\nthree\n");
  job.mutable_spec()->mutable_resources()->set_ranks(2);
  store_.PutJob(job);
  store_.AppendLog("a-0001", 1, "other\n");
  EXPECT_EQ(Run({"logs", "a-0001"}).out, "rank 0: one\nrank 0: two\nrank 1: other\nrank 0: three\n");
  EXPECT_EQ(Run({"logs", "a-0001", "--rank", "1"}).out, "other\n");
  Program program(Command({"logs", "-f", "a-0001"}), environment_);
  ASSERT_TRUE(program.WaitForOut("other\n"));
  store_.AppendLog("a-0001", 1, "late\n");
  ASSERT_TRUE(program.WaitForOut("rank 1: late\n"));
  store_.AppendEvent("a-0001", "over", v1::JOB_STATE_COMPLETED);
  // Events are not requested: that the job has ended is not in the stream, which just ends.
  const Ended ended = program.Wait();
  EXPECT_EQ(ended.code, 0);
  EXPECT_EQ(ended.err, "");
}

// ESC ] 0 sets a terminal's title, CSI its colors; U+009B is CSI, too; U+202E reverses what follows.
TEST_F(MusterTest, LogsCannotSteerATerminal) {
  Serve();
  PutJob("a-0001", v1::JOB_STATE_RUNNING);
  const std::string text = "\x1b]0;owned\x07red \x1b[31m \xc2\x9b 2J \xe2\x80\xae caf\xc3\xa9\ttab\n";
  store_.AppendLog("a-0001", 0, text);
  const std::string escaped = "\\x1b]0;owned\\x07red \\x1b[31m \\x9b 2J \\u202e caf\xc3\xa9\ttab\n";
  EXPECT_EQ(Run({"logs", "a-0001"}).out, escaped);
  EXPECT_EQ(Run({"logs", "a-0001", "--raw"}).out, text);
  const auto refused = Program(Command({"logs", "a-0001", "--raw"}), environment_, "", true).Wait();
  EXPECT_EQ(refused.code, 2);
  EXPECT_FALSE(absl::StrContains(refused.out, "\x1b]0;"));
}

TEST_F(MusterTest, MetricsAsTableJsonAndCurve) {
  Serve();
  PutJob("a-0001", v1::JOB_STATE_RUNNING);
  EXPECT_EQ(Run({"metrics", "a-0001"}).code, 0);
  for (int step = 1; step <= 20; ++step) store_.AppendMetrics("a-0001", step, 5.0 / step);
  EXPECT_TRUE(absl::StartsWith(Run({"metrics", "a-0001"}).out, "STEP    LOSS"));
  const json points = json::parse(Run({"metrics", "a-0001", "-o", "json"}).out);
  ASSERT_EQ(points.size(), 20u);
  EXPECT_EQ(points[4]["step"], 5);
  EXPECT_EQ(points[4]["loss"], 1.0);
  EXPECT_TRUE(absl::StrContains(Run({"metrics", "a-0001", "--plot"}).out, "┤"));
}

TEST_F(MusterTest, MetricsOfValidationsAsCurves) {
  Serve();
  PutJob("a-0001", v1::JOB_STATE_RUNNING);
  EXPECT_TRUE(absl::StrContains(Run({"metrics", "a-0001", "--plot", "--metric", "top1"}).err, "has reported top1\n"));
  for (int step = 0; step <= 20; ++step) {
    v1::WatchItem item;
    item.set_job("a-0001");
    item.mutable_metrics()->set_step(step);
    item.mutable_metrics()->set_loss(2);
    if (step % 10 == 0) {
      v1::NamedMetric& top1 = *item.mutable_metrics()->add_validation();
      top1.set_name("top1"), top1.set_value(0.5 + 0.02 * step);
    }
    store_.Append(item);
  }
  const Ended curve = Run({"metrics", "a-0001", "--plot", "--metric", "top1"});
  EXPECT_EQ(curve.code, 0) << curve.err;
  EXPECT_TRUE(absl::StartsWith(curve.out, "validation top1\n")) << curve.out;
  EXPECT_TRUE(absl::StrContains(curve.out, "0.9 ┤")) << curve.out;
  EXPECT_TRUE(absl::StrContains(curve.out, "0.5 ┤")) << curve.out;
  const Ended other = Run({"metrics", "a-0001", "--plot", "--metric", "top2"});
  EXPECT_NE(other.code, 0);
  EXPECT_TRUE(absl::StrContains(other.err, "no validation of this job has reported top2; known: top1")) << other.err;
  EXPECT_EQ(Run({"metrics", "a-0001", "--metric", "top1"}).code, 2);
}

TEST_F(MusterTest, EventsOfAllJobs) {
  Serve();
  PutJob("a-0001", v1::JOB_STATE_RUNNING);
  store_.AppendEvent("a-0001", "every rank runs", v1::JOB_STATE_RUNNING);
  const Ended ended = Run({"events"});
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(ended.out, "1970-01-01T00:00:00Z  job.running             a-0001  every rank runs\n");
  EXPECT_EQ(json::parse(Run({"events", "-o", "json", "a-0001"}).out)["message"], "every rank runs");
}

TEST_F(MusterTest, EventsOfSeveralJobsAreAligned) {
  Serve();
  for (const char* id : {"a-0001", "a-longer-name-0002"}) PutJob(id, v1::JOB_STATE_RUNNING);
  for (const char* id : {"a-0001", "a-longer-name-0002", "a-0001"}) {
    store_.AppendEvent(id, "every rank runs", v1::JOB_STATE_RUNNING);
  }
  const std::string head = "1970-01-01T00:00:00Z  job.running             ";
  const std::string last = head + "a-0001              every rank runs\n";
  EXPECT_EQ(Run({"events"}).out, last + head + "a-longer-name-0002  every rank runs\n" + last);
  EXPECT_EQ(Run({"events", "--tail", "1", "--type", "job"}).out, head + "a-0001  every rank runs\n");
  // While it follows, it knows those that have come.
  Program follows(Command({"events", "-f"}), environment_);
  EXPECT_TRUE(follows.WaitForOut(last));
  follows.Signal(SIGINT);
  EXPECT_EQ(follows.Wait().out,
            head + "a-0001  every rank runs\n" + head + "a-longer-name-0002  every rank runs\n" + last);
}

TEST_F(MusterTest, ALongSubjectOfAnEventMovesItsOwnLineOnly) {
  Serve();
  const std::string longest = std::string(40, 'n') + "-x7f2";
  for (const std::string& id : {std::string("a-0001"), longest}) {
    PutJob(id, v1::JOB_STATE_RUNNING);
    store_.AppendEvent(id, "every rank runs", v1::JOB_STATE_RUNNING);
  }
  const std::string head = "1970-01-01T00:00:00Z  job.running             ";
  EXPECT_EQ(Run({"events"}).out,
            head + "a-0001                    every rank runs\n" + head + longest + "  every rank runs\n");
}

TEST_F(MusterTest, SteeringCommandsReachTheCoordinator) {
  v1::Node node;
  node.set_id("node-a");
  node.set_state(v1::NODE_STATE_LIVE);
  store_.nodes = {node};
  Serve();
  PutJob("a-0001", v1::JOB_STATE_RUNNING);
  EXPECT_EQ(Run({"pause", "a-0001"}).err, "a-0001: running\n");
  EXPECT_EQ(Run({"resume", "a-0001", "-o", "name"}).out, "a-0001\n");
  EXPECT_EQ(Run({"cancel", "-y", "a-0001"}).code, 0);
  PutJob("a-0001", v1::JOB_STATE_CANCELLED);
  EXPECT_EQ(Run({"delete", "-y", "a-0001"}).err, "a-0001 deleted\n");
  EXPECT_EQ(Run({"drain", "node-a"}).err, "node-a: live, draining\n");
  EXPECT_EQ(Run({"undrain", "node-a"}).err, "node-a: live\n");
  EXPECT_EQ(Run({"drain", "node-b"}).code, 2);
  EXPECT_EQ(Run({"nodes", "forget", "node-a"}).err, "node-a: forgotten\n");
  EXPECT_EQ(Run({"nodes", "-o", "name"}).out, "node-a\n");
  EXPECT_EQ(Run({"backup", "/b/muster.db"}).out, "/b/muster.db\n");
  for (const char* call :
       {"Pause a-0001", "Resume a-0001", "Cancel a-0001", "Delete a-0001", "Forget node-a", "Backup /b/muster.db"}) {
    EXPECT_TRUE(Called(call)) << call;
  }
}

TEST_F(MusterTest, ReservationsAreListedAndChanged) {
  Serve();
  EXPECT_TRUE(absl::StrContains(Run({"reservations"}).err, "no reservations"));
  v1::Reservation& maint = *store_.reservations.add_reservations();
  maint.set_name("maint");
  maint.set_state(v1::RESERVATION_STATE_INACTIVE);
  for (const char* node : {"a", "b"}) maint.add_nodes(node);
  maint.mutable_start()->set_seconds(1'000'000'000);
  maint.mutable_end()->set_seconds(1'000'003'600);
  maint.add_overlapping_jobs("train-x4k2");
  EXPECT_EQ(Run({"reservations"}).out,
            "RESERVATION  STATE     START                 END                   NODES  FOR          OVERLAPS    NOTE\n"
            "maint        inactive  2001-09-09T01:46:40Z  2001-09-09T02:46:40Z  a,b    maintenance  train-x4k2  -\n");
  EXPECT_EQ(json::parse(Run({"reservations", "-o", "json"}).out)[0]["nodes"][1], "b");
  // What no flag names stays; with another start it lasts as long.
  const Ended set = Run({"reservations", "set", "maint", "--start", "2001-09-09T02:46:40Z", "--user", "ann"});
  EXPECT_EQ(set.err,
            "reservation maint: set, from 2001-09-09T02:46:40Z to 2001-09-09T03:46:40Z\n"
            "a job runs there now and may not end before; nothing stops it: train-x4k2\n");
  EXPECT_TRUE(
      Called("SetReservation name: \"maint\" nodes: \"a\" nodes: \"b\" start { seconds: 1000003600 } "
             "end { seconds: 1000007200 } users: \"ann\" state: RESERVATION_STATE_INACTIVE "
             "overlapping_jobs: \"train-x4k2\""));
  EXPECT_EQ(Run({"reservations", "set", "lab", "--nodes", "c,d", "--start", "2001-09-09T01:46:40Z", "--for", "2h",
                 "--project", "nlp", "--note", "workshop"})
                .code,
            0);
  EXPECT_TRUE(
      Called("SetReservation name: \"lab\" nodes: \"c\" nodes: \"d\" start { seconds: 1000000000 } "
             "end { seconds: 1000007200 } projects: \"nlp\" note: \"workshop\""));
  EXPECT_EQ(Run({"reservations", "set", "lab", "--nodes", "c"}).code, 2) << "for how long?";
  EXPECT_EQ(Run({"reservations", "set", "lab", "--for", "1h"}).code, 2) << "which nodes?";
  EXPECT_EQ(Run({"reservations", "set", "lab", "--nodes", "c", "--for", "1h", "--end", "2h"}).code, 2);
  EXPECT_EQ(Run({"reservations", "delete", "maint"}).err, "reservation maint: deleted\n");
  EXPECT_TRUE(Called("DeleteReservation maint"));
  const Ended missing = Run({"reservations", "delete", "nosuch"});
  EXPECT_EQ(missing.code, 2);
  EXPECT_EQ(missing.err, "muster: no reservation \"nosuch\"; see: muster reservations\n");
  EXPECT_FALSE(Called("DeleteReservation nosuch"));
}

TEST_F(MusterTest, QuotasAreListedAndChanged) {
  Serve();
  EXPECT_TRUE(absl::StrContains(Run({"quota"}).err, "no projects"));
  v1::Project& vision = *store_.projects.add_projects();
  vision.set_name("vision");
  vision.set_cohort("lab");
  vision.add_users("ann");
  v1::DeviceQuota& quota = *vision.add_quotas();
  quota.set_device(v1::DEVICE_CUDA);
  quota.set_nominal(8);
  quota.set_held(3);
  vision.add_usage()->set_slot_seconds(7200);
  EXPECT_EQ(Run({"quota"}).out,
            "PROJECT  COHORT  WEIGHT  DEVICE  NOMINAL  BORROW  HELD  USED HOURS  USERS\n"
            "vision   lab          1  cuda          8     all     3           2  ann\n");
  EXPECT_EQ(json::parse(Run({"quota", "-o", "json"}).out)[0]["quotas"][0]["nominal"], 8);
  // What no flag names stays.
  const Ended set = Run({"quota", "set", "vision", "--borrow", "cuda=4", "--user", "bob", "--weight", "2"});
  EXPECT_EQ(set.err, "project vision: set\n");
  EXPECT_TRUE(
      Called("SetProject name: \"vision\" weight: 2 cohort: \"lab\" users: \"ann\" users: \"bob\" quotas { "
             "device: DEVICE_CUDA nominal: 8 borrowing_limit: 4 held: 3 } usage { slot_seconds: 7200 }"));
  EXPECT_EQ(Run({"quota", "set", "new", "--nominal", "cpu=2", "--cohort", "none"}).code, 0);
  EXPECT_TRUE(Called("SetProject name: \"new\" quotas { device: DEVICE_CPU nominal: 2 }"));
  EXPECT_EQ(Run({"quota", "set", "vision", "--nominal", "gpu=4"}).code, 2);
  EXPECT_EQ(Run({"quota", "delete", "vision"}).err, "project vision: deleted\n");
  EXPECT_TRUE(Called("DeleteProject vision"));
  const Ended missing = Run({"quota", "delete", "nosuch"});
  EXPECT_EQ(missing.code, 2);
  EXPECT_EQ(missing.err, "muster: no project \"nosuch\"; see: muster quota\n");
  EXPECT_FALSE(Called("DeleteProject nosuch"));
}

TEST_F(MusterTest, TemplatesAreListedShownAndChanged) {
  Serve();
  EXPECT_EQ(Run({"templates"}).err, "no templates; make one with: muster templates set NAME FILE\n");
  v1::Template& base = *store_.templates.add_templates();
  base.set_name("base");
  base.set_owner("ann");
  base.mutable_changed()->set_seconds(absl::ToUnixSeconds(absl::Now() - absl::Hours(3)));
  EXPECT_EQ(Run({"templates"}).out, "TEMPLATE  OWNER  CHANGED\nbase      ann     3h ago\n");
  EXPECT_EQ(Run({"templates", "-o", "name"}).out, "base\n");
  const json listed = json::parse(Run({"templates", "-o", "json"}).out);
  EXPECT_EQ(listed[0]["owner"], "ann");
  EXPECT_FALSE(listed[0].contains("text"));
  base.set_text("# ours\nsteps: 5\n");
  EXPECT_EQ(Run({"templates", "show", "base"}).out, "# ours\nsteps: 5\n");
  const Ended none = Run({"templates", "show", "other"});
  EXPECT_EQ(none.code, 2);
  EXPECT_EQ(none.err, "muster: there is no template other\n");
  const Ended set = Run({"templates", "set", "new", folder_.Write("new.yaml", "model: {size: tiny}\n")});
  EXPECT_EQ(set.err, "template new: set\n");
  EXPECT_TRUE(Called("SetTemplate new model: {size: tiny}\n"));
  EXPECT_EQ(Run({"templates", "set", "new", "-"}, "seed: 2\n").code, 0);
  EXPECT_TRUE(Called("SetTemplate new seed: 2\n"));
  // It is checked before it is sent.
  const Ended wrong = Run({"templates", "set", "new", folder_.Write("wrong.yaml", "stepz: 1\nseed: x\n")});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_EQ(wrong.err,
            absl::StrCat(folder_.path(), "/wrong.yaml:1:1: stepz: unknown field, did you mean steps?\n", folder_.path(),
                         "/wrong.yaml:2:7: seed: expected an integer, got the string \"x\"\n"));
  EXPECT_EQ(Run({"templates", "delete", "base"}).err, "template base: deleted\n");
  EXPECT_TRUE(Called("DeleteTemplate base"));
  const Ended missing = Run({"templates", "delete", "nosuch"});
  EXPECT_EQ(missing.code, 2);
  EXPECT_EQ(missing.err, "muster: no template \"nosuch\"; see: muster templates\n");
  EXPECT_FALSE(Called("DeleteTemplate nosuch"));
}

TEST_F(MusterTest, AJobIsMergedOverItsTemplate) {
  Serve();
  v1::Template& base = *store_.templates.add_templates();
  base.set_name("base");
  base.set_text(
      "model: {family: gpt2, size: tiny}\noptimizer: {kind: sgd, lr: 1, momentum: 0.5}\nsteps: 10\n"
      "data: {tokens: train.bin}\nlabels: {team: nlp}\n");
  v1::Template& broken = *store_.templates.add_templates();
  broken.set_name("broken");
  broken.set_text("optimizer: {lrr: 1}\n");
  v1::Template& programs = *store_.templates.add_templates();
  programs.set_name("programs");
  programs.set_text(
      "command: [other]\nworkdir: /shared\nenv: [{name: A, value: a}, {name: B, value: b}]\npriority: 7\n");
  const std::string head = "apiVersion: muster/v1\nkind: Job\nname: a\n";
  const std::string job = folder_.Write("job.yaml", head + "optimizer: {kind: adamw}\nseed: 2\n");
  const std::string itself = folder_.Write("itself.yaml", head + "template: base\nsteps: 20\n");

  EXPECT_EQ(Run({"submit", "-d", job, "--template", "base", "--set", "steps=30"}).code, 0);
  const v1::JobSpec& sent = store_.submitted;
  EXPECT_EQ(sent.template_(), "base");
  EXPECT_EQ(sent.name(), "a");
  EXPECT_EQ(sent.train().model().gpt2().size(), v1::GPT2_SIZE_TINY);
  EXPECT_TRUE(sent.train().optimizer().has_adamw());
  EXPECT_EQ(sent.train().optimizer().lr(), 1);
  EXPECT_EQ(sent.train().steps(), 30u);
  EXPECT_EQ(sent.train().seed(), 2u);
  EXPECT_EQ(sent.labels(0), "team=nlp");
  EXPECT_EQ(sent.train().data().tokens(), folder_.path() + "/train.bin") << "as if it stood in the job's file";
  // The file says which, too; a flag says another.
  EXPECT_EQ(Run({"submit", "-d", itself}).code, 0);
  EXPECT_EQ(sent.train().steps(), 20u);
  EXPECT_EQ(sent.train().optimizer().sgd().momentum(), 0.5);
  EXPECT_EQ(Run({"validate", itself}).code, 0);
  EXPECT_EQ(Run({"plan", itself}).code, 0);
  const Ended resolved = Run({"validate", "--resolved", itself});
  EXPECT_TRUE(absl::StrContains(resolved.out, "momentum: 0.5\n")) << resolved.out;
  EXPECT_FALSE(absl::StrContains(resolved.out, "template")) << "it is whole without: " << resolved.out;
  EXPECT_TRUE(absl::StrContains(Run({"describe", "new-0001"}).out, "Template"));

  // Errors name the template and its line, or the file and its.
  const Ended wrong = Run({"submit", "-d", itself, "--template", "broken", "--set", "seed=x"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_EQ(wrong.err,
            "template broken:1:13: optimizer.lrr: unknown field, did you mean optimizer.lr?\n"
            "muster: --set seed: expected an integer, got the string \"x\"\n");
  EXPECT_EQ(Run({"submit", "-d", folder_.Write("none.yaml", head + "template: other\n")}).err,
            absl::StrCat(folder_.path(), "/none.yaml:4:11: template: there is no template other\n"));
  const Ended flag = Run({"submit", "-d", job, "--template", "other"});
  EXPECT_EQ(flag.code, 2);
  EXPECT_EQ(flag.err, "muster: --template: there is no template other\n");
  const Ended offline = Run({"validate", "--offline", itself});
  EXPECT_EQ(offline.code, 2);
  EXPECT_EQ(offline.err, "muster: template base: the coordinator has it, which --offline does not ask\n");

  // An array asks for it once.
  const auto asked = [&] {
    const auto calls = store_.Calls();
    return std::count(calls.begin(), calls.end(), "GetTemplate base");
  };
  const auto before = asked();
  EXPECT_EQ(Run({"submit", job, "--template", "base", "--array", "seed=1,2,3"}).code, 0);
  EXPECT_EQ(asked(), before + 1);

  // Without a file.
  EXPECT_EQ(Run({"train", "-d", "--model", "llama:tiny", "--template", "base", "--optimizer", "muon"}).code, 0);
  EXPECT_EQ(sent.train().model().llama().size(), v1::LLAMA_SIZE_TINY);
  EXPECT_TRUE(sent.train().optimizer().has_muon());
  EXPECT_FALSE(sent.train().optimizer().muon().has_momentum()) << "it was sgd's";
  EXPECT_EQ(sent.train().steps(), 10u);
  EXPECT_EQ(Run({"run", "-d", "--template", "programs", "--env", "A=c", "--", "/bin/echo", "x"}).code, 0);
  EXPECT_EQ(sent.priority(), 7);
  ASSERT_EQ(sent.exec().command_size(), 2);
  EXPECT_EQ(sent.exec().command(0), "/bin/echo");
  EXPECT_EQ(sent.exec().workdir(), "/shared");
  ASSERT_EQ(sent.env_size(), 2);
  EXPECT_EQ(sent.env(0).value(), "c");
  EXPECT_EQ(sent.env(1).value(), "b");
  EXPECT_EQ(Run({"run", "-d", "--template", "base", "--", "/bin/echo"}).code, 0) << "its training is dropped";
  EXPECT_EQ(sent.labels(0), "team=nlp");
}

// The first of them becomes @last, and its name begins like that of the job that all wait for.
TEST_F(MusterTest, AllJobsOfAnArrayComeAfterTheSameJob) {
  std::vector<v1::JobSpec> sent;
  store_.submit = [&](const v1::SubmitRequest& request) {
    v1::Job job;
    job.set_id(sent.empty() ? "first-0001" : absl::StrCat("first-", sent.size(), "-0001"));
    *job.mutable_spec() = request.spec();
    sent.push_back(request.spec());
    return job;
  };
  Serve();
  const std::string file = folder_.Write("job.yaml", kSpec);
  ASSERT_EQ(Run({"submit", "-d", file}).code, 0);
  for (const char* after : {"@last", "first-0"}) {
    sent.resize(1);
    const Ended ended = Run({"submit", file, "--array", "seed=1,2,3", "--after", after});
    EXPECT_EQ(ended.code, 0) << ended.err;
    ASSERT_EQ(sent.size(), 4u) << after;
    for (size_t i = 1; i < sent.size(); ++i) {
      ASSERT_EQ(sent[i].after_size(), 1) << after;
      EXPECT_EQ(sent[i].after(0), "first-0001") << after << " of job " << i;
    }
    const auto calls = store_.Calls();
    EXPECT_EQ(std::count(calls.begin(), calls.end(), absl::StrCat("Get ", after)), after[0] == '@' ? 0 : 1)
        << "a prefix may have become ambiguous by the second job";
  }
}

// Each user's jobs are a sweep of their own, whatever others call theirs.
TEST_F(MusterTest, ASweepCountsItsUsersJobsOnly) {
  std::string caller;
  // As the coordinator: request ids are each user's own, and are looked up before the spec is checked further.
  store_.submit = [&](const v1::SubmitRequest& request) -> absl::StatusOr<v1::Job> {
    for (const v1::Job& job : store_.Jobs()) {
      if (job.owner() != caller || job.request_id() != request.request_id()) continue;
      if (job.spec().SerializeAsString() == request.spec().SerializeAsString()) return job;
      return absl::AlreadyExistsError(
          absl::StrCat("request id ", job.request_id(), " belongs to ", job.id(), ", which is another job"));
    }
    if (request.spec().after_size() > 0) return absl::NotFoundError("after: there is no job");
    v1::Job job;
    job.set_id(absl::StrCat(request.spec().name(), "-", caller));
    job.set_owner(caller);
    job.set_request_id(request.request_id());
    *job.mutable_spec() = request.spec();
    *job.mutable_labels() = request.spec().labels();
    job.set_state(v1::JOB_STATE_QUEUED);
    return job;
  };
  Serve();
  const std::string file = folder_.Write("job.yaml", kSpec);
  const auto sweep = [&](const std::string& user, const std::string& values) {
    caller = user;
    return Run({"sweep", "lr", file, "--array", "seed=" + values, "-d"});
  };
  EXPECT_EQ(sweep("bob", "1,2").code, 0);
  EXPECT_EQ(store_.Jobs().size(), 2u);
  const Ended same = sweep("ann", "1,2");
  EXPECT_EQ(same.code, 0) << same.err;
  EXPECT_TRUE(absl::StrContains(same.out, "lr-2-ann")) << same.out;
  EXPECT_EQ(store_.Jobs().size(), 4u) << "the same sweep of another user";
  const Ended other = sweep("eve", "3,4");
  EXPECT_EQ(other.code, 0) << other.err;
  EXPECT_EQ(store_.Jobs().size(), 6u) << "another sweep of that name";
  for (const char* user : {"ann", "eve"}) {
    const Ended again = sweep(user, user[0] == 'a' ? "1,2" : "3,4");
    EXPECT_EQ(again.code, 0) << again.err;
    EXPECT_EQ(again.err, "") << "it submitted no trial again";
    EXPECT_TRUE(absl::StrContains(again.out, absl::StrCat("lr-1-", user))) << again.out;
  }
  const Ended mixed = sweep("ann", "3,4");
  EXPECT_EQ(mixed.code, 2);
  EXPECT_TRUE(absl::StrContains(mixed.err, "there is a sweep lr with other trials (lr-1-ann of ann)")) << mixed.err;
  EXPECT_EQ(store_.Jobs().size(), 6u) << "it is refused before anything is submitted";
}

TEST_F(MusterTest, UsageAddsUpTheSlotHours) {
  Serve();
  const auto put = [&](const std::string& id, const std::string& owner, double held, double slots, double training) {
    v1::Job job = PutJob(id, v1::JOB_STATE_COMPLETED);
    job.set_owner(owner);
    job.set_project(owner == "ann" ? "vision" : "");
    job.set_held_seconds(held);
    job.set_slot_seconds(held * slots);
    job.mutable_time_breakdown()->set_training(training);
    job.mutable_ended()->set_seconds(absl::ToUnixSeconds(absl::Now() - absl::Hours(id == "c-0003" ? 30 : 1)));
    store_.PutJob(job);
  };
  put("a-0001", "ann", 3600, 4, 1800);  // 4 slot hours, half of them
  put("b-0002", "bob", 3600, 2, 3600);
  put("c-0003", "ann", 3600, 1, 0);
  put("d-0004", "eve", 0, 0, 0);  // it never started
  EXPECT_EQ(Run({"usage"}).out,
            "USER  JOBS  SLOT HOURS  EFFECTIVE  WASTED  WASTED %\n"
            "ann      2        5.00       2.00    3.00      60.0\n"
            "bob      1        2.00       2.00    0.00       0.0\n");
  const json recent = json::parse(Run({"usage", "--since", "1d", "--by", "project", "-o", "json"}).out);
  ASSERT_EQ(recent.size(), 2u);
  EXPECT_EQ(recent[0]["project"], "vision");
  EXPECT_DOUBLE_EQ(recent[0]["slot_hours"], 4);
  EXPECT_DOUBLE_EQ(recent[0]["wasted_slot_hours"], 2);
  EXPECT_EQ(recent[1]["project"], "default");
  EXPECT_EQ(json::parse(Run({"usage", "--by", "job", "-o", "json"}).out).size(), 3u);
  EXPECT_EQ(Run({"usage", "--since", "soon"}).code, 2);
}

TEST_F(MusterTest, VersionOfBothSides) {
  const Ended alone = Run({"version"});
  EXPECT_EQ(alone.code, 3);
  EXPECT_TRUE(absl::StartsWith(alone.out, "muster 0.")) << alone.out;
  EXPECT_EQ(Run({"version", "--client"}).code, 0);
  const Ended flag = Run({"--version"});
  EXPECT_EQ(flag.code, 0);
  EXPECT_EQ(flag.out, alone.out.substr(0, alone.out.find(" (")) + "\n");
  Serve();
  const json both = json::parse(Run({"version", "-o", "json"}).out);
  EXPECT_EQ(both["client"]["version"], both["server"]["version"]);
}

// As the trainer of `job` writes it; returns its folder.
std::string WriteStep(const std::string& path, const std::string& job, uint64_t step) {
  v1::Manifest manifest;
  manifest.set_job(job);
  manifest.set_step(step);
  manifest.set_generation(1);
  manifest.mutable_table()->set_shards(1);
  std::vector<float> values(64, static_cast<float>(step));
  const std::vector<checkpoint::TensorRun> parts = {{"w", {64}, 0, absl::MakeSpan(values)}};
  const auto written = checkpoint::Write(path, manifest, parts);
  EXPECT_TRUE(written.ok()) << written.status();
  return absl::StrCat(path, "/", checkpoint::StepName{step, 1}.Directory());
}

// A job with that checkpoint.path which has published these steps.
v1::Job Published(v1::Job job, const std::string& path, const std::vector<uint64_t>& steps) {
  job.mutable_spec()->mutable_train()->mutable_checkpoint()->set_path(path);
  for (const uint64_t step : steps) {
    v1::PublishedCheckpoint& published = *job.add_checkpoints();
    published.set_step(step);
    published.set_generation(1);
    published.set_directory(checkpoint::StepName{step, 1}.Directory());
  }
  return job;
}

TEST_F(MusterTest, SampleRunsTheTrainerOnAFolderOrAJobsNewestCheckpoint) {
  Serve();
  folder_.Write("bin/muster-trainer", "#!/bin/sh\necho \"$@\"\n", true);
  environment_["MUSTER_BIN_DIR"] = folder_.path() + "/bin";
  EXPECT_EQ(Run({"sample", folder_.path(), "--prompt", "In the", "--top-k", "3"}).out,
            absl::StrCat("sample --checkpoint ", folder_.path(), " --prompt In the --top-k 3\n"));
  const v1::Job job = PutJob("a-0001", v1::JOB_STATE_COMPLETED);
  EXPECT_EQ(Run({"sample", "a-0001", "--prompt", "x"}).code, 2);
  const std::string path = folder_.path() + "/runs/a";
  store_.PutJob(Published(job, path, {10, 20}));
  const Ended away = Run({"sample", "a-0001", "--prompt", "x"});
  EXPECT_EQ(away.code, 2);
  EXPECT_TRUE(absl::StrContains(away.err, "this machine cannot reach")) << away.err;
  WriteStep(path, "a-0001", 10);
  const std::string newest = WriteStep(path, "a-0001", 20);
  WriteStep(path, "a-0001", 30);  // not published
  EXPECT_EQ(Run({"sample", "a-0001", "--prompt", "x"}).out,
            absl::StrCat("sample --checkpoint ", newest, " --prompt x\n"));
  EXPECT_EQ(Run({"eval", "a-0001", "val.bin", "-o", "json"}).out,
            absl::StrCat("eval --checkpoint ", newest, " --data val.bin --json\n"));
  const std::string exported = absl::StrCat("export --checkpoint ", newest, " --out out");
  EXPECT_EQ(Run({"export", "a-0001", "out", "--max-shard-size", "1.5GiB"}).out,
            exported + " --max-shard-size 1610612736\n");
  EXPECT_EQ(Run({"checkpoint", "export", "a-0001", "out"}).out, exported + "\n");
  EXPECT_EQ(Run({"checkpoint", "import", "hf", "start"}).out, "import --from hf --out start\n");
  environment_["MUSTER_BIN_DIR"] = "/nowhere";
  EXPECT_EQ(Run({"sample", "a-0001", "--prompt", "x"}).code, 2);
}

TEST_F(MusterTest, ATrainerThatDoesNotLoadIsNamedWithWhatIsMissing) {
  std::ifstream file("/bin/true", std::ios::binary);
  const std::string program = {std::istreambuf_iterator<char>(file), {}};
  folder_.Write("bin/muster-trainer", absl::StrReplaceAll(program, {{"libc.so.6", "libZ.so.6"}}), true);
  environment_["MUSTER_BIN_DIR"] = folder_.path() + "/bin";
  const Ended ended = Run({"sample", folder_.path(), "--prompt", "x"});
  EXPECT_EQ(ended.code, 2);
  EXPECT_EQ(ended.err, absl::StrCat("muster: ", folder_.path(),
                                    "/bin/muster-trainer does not load: there is no libZ.so.6; install what is "
                                    "missing, or set LD_LIBRARY_PATH to its folder; to check all programs: muster "
                                    "doctor\n"));
}

// As two jobs of an older Muster left a folder that they shared: `export two` took the weights of one.
TEST_F(MusterTest, CommandsOnAJobReadOnlyWhatItPublished) {
  Serve();
  folder_.Write("bin/muster-trainer", "#!/bin/sh\necho \"$@\"\n", true);
  environment_["MUSTER_BIN_DIR"] = folder_.path() + "/bin";
  const std::string shared = folder_.path() + "/shared", aside = folder_.path() + "/aside";
  const std::string of_two = WriteStep(shared, "two-0002", 50);
  WriteStep(aside, "one-0001", 60);
  WriteStep(aside, "one-0001", 70);
  const std::string taken = shared + "/step-0000000060-g1", other = shared + "/step-0000000070-g1";
  std::filesystem::rename(aside + "/step-0000000060-g1", taken);
  std::filesystem::rename(aside + "/step-0000000070-g1", other);
  const v1::Job two = PutJob("two-0002", v1::JOB_STATE_COMPLETED);
  const std::vector<std::vector<std::string>> kReaders = {
      {"export", "two-0002", "out"},
      {"checkpoint", "export", "two-0002", "out"},
      {"eval", "two-0002", "val.bin"},
      {"sample", "two-0002", "--prompt", "x"},
  };
  // Its newest is there: it is read, though a newer one of another job lies beside it.
  store_.PutJob(Published(two, shared, {50}));
  for (const auto& command : kReaders) {
    const Ended ended = Run(command);
    EXPECT_EQ(ended.code, 0) << ended.err;
    EXPECT_TRUE(absl::StrContains(ended.out, absl::StrCat(" --checkpoint ", of_two, " "))) << ended.out;
  }
  const json ls = json::parse(Run({"checkpoint", "ls", "two-0002", "-o", "json"}).out);
  ASSERT_EQ(ls.size(), 1u) << ls;
  EXPECT_EQ(ls[0]["step"], 50);
  EXPECT_EQ(Run({"checkpoint", "verify", "two-0002"}).code, 0);
  EXPECT_EQ(json::parse(Run({"checkpoint", "ls", shared, "-o", "json"}).out).size(), 3u) << "a folder is read as it is";
  // The other job's stands where it published its own; its own was removed; its own was damaged: none is used instead.
  const std::vector<std::pair<std::string, std::function<void()>>> kRows = {
      {"was written by job one-0001, not by two-0002",
       [&] {
         store_.PutJob(Published(two, shared, {50, 60}));
       }},
      {"step-0000000055-g1: no such checkpoint folder",
       [&] {
         store_.PutJob(Published(two, shared, {50, 55}));
       }},
      {"manifest.json",
       [&] {
         store_.PutJob(Published(two, shared, {50}));
         std::ofstream(of_two + "/manifest.json", std::ios::app) << " ";
       }},
  };
  for (const auto& [says, spoil] : kRows) {
    spoil();
    for (const auto& command : kReaders) {
      const Ended ended = Run(command);
      EXPECT_NE(ended.code, 0) << says;
      EXPECT_EQ(ended.out, "") << "nothing is read";
      EXPECT_TRUE(absl::StrContains(ended.err, says)) << ended.err;
      EXPECT_TRUE(absl::StrContains(ended.err, "the newest checkpoint that two-0002 published")) << ended.err;
    }
    EXPECT_EQ(Run({"checkpoint", "verify", "two-0002"}).code, 1);
  }
}

TEST_F(MusterTest, CheckpointFilesAreFoundWhereTheyAre) {
  const Ended none = Run({"checkpoint", "ls", folder_.path()});
  EXPECT_EQ(none.code, 0);
  EXPECT_TRUE(absl::StrContains(none.err, "no checkpoints below")) << none.err;
  EXPECT_EQ(Run({"checkpoint", "verify", folder_.path()}).code, 2);
  folder_.Write("step-0000000007-g2/manifest.json", "{}");
  const Ended damaged = Run({"checkpoint", "ls", folder_.path(), "-o", "json"});
  EXPECT_EQ(damaged.code, 0);
  for (const char* text : {"\"step\": 7", "\"generation\": 2", "\"whole\": false", "manifest.sha256"}) {
    EXPECT_TRUE(absl::StrContains(damaged.out, text)) << text << " is not in " << damaged.out;
  }
  EXPECT_EQ(Run({"checkpoint", "verify", folder_.path()}).code, 1);
  EXPECT_EQ(Run({"checkpoint", "ls", "no/where"}).code, 2);
  EXPECT_EQ(Run({"checkpoint"}).code, 2);
}

TEST_F(MusterTest, ACheckpointThatMayNotBeReadIsNotCalledDamaged) {
  const std::string manifest = folder_.Write("its/step-0000000007-g2/manifest.json", "{}"),
                    its = folder_.path() + "/its";
  WithoutFileOverride([&] {
    for (const std::string& closed : {manifest, its}) {
      std::filesystem::permissions(closed, std::filesystem::perms::none);
      const Ended list = Run({"checkpoint", "ls", its});
      const Ended verify = Run({"checkpoint", "verify", its});
      EXPECT_TRUE(absl::StrContains(list.out + list.err, "Permission denied, this process runs as user ")) << list.err;
      EXPECT_TRUE(absl::StrContains(verify.err, closed + ": Permission denied, this process runs as user "));
      EXPECT_NE(verify.code, 0);
      for (const Ended& said : {list, verify}) {
        EXPECT_FALSE(absl::StrContains(said.out + said.err, "damaged")) << said.out << said.err;
        EXPECT_FALSE(absl::StrContains(said.out + said.err, "no checkpoints")) << said.out << said.err;
      }
      std::filesystem::permissions(closed, std::filesystem::perms::owner_all);
    }
  });
}

TEST_F(MusterTest, DataMakesAndInspectsTokenFiles) {
  const std::string text = folder_.Write("text.txt", "hello hello hello");
  const std::string out = folder_.path() + "/train.bin";
  EXPECT_EQ(Run({"data", "prepare", text, out}).err, absl::StrCat(out, ": 17 tokens\n"));
  EXPECT_EQ(Run({"data", "prepare", text, out}).code, 2);  // exists
  const json found = json::parse(Run({"data", "inspect", out, "-o", "json"}).out);
  EXPECT_EQ(found["tokens"], 17);
  EXPECT_EQ(found["beginning"], "hello hello hello");
}

TEST_F(MusterTest, DataMakesAndInspectsImageFiles) {
  const std::string images =
      folder_.Write("images", std::string("\0\0\x08\x03\0\0\0\x02\0\0\0\x01\0\0\0\x01\xff\x33", 18));
  const std::string labels = folder_.Write("labels", std::string("\0\0\x08\x01\0\0\0\x02\x02\x00", 10));
  const std::string out = folder_.path() + "/train.bin";
  const std::vector<std::string> prepare = {
      "data", "prepare-images", "--idx_images", images, "--idx_labels", labels, out, "--size", "1"};
  EXPECT_EQ(Run(prepare).err, absl::StrCat(out, ": 2 images of 3 x 1 x 1 in 3 classes\n"));
  EXPECT_EQ(Run(prepare).code, 2);  // exists
  const std::string described = Run({"data", "inspect", out}).out;
  EXPECT_EQ(described,
            absl::StrCat(out, ": muster, 2 images\n2 images of 3 x 1 x 1 in 8 B; 3 classes: 0: 1, 1: 0, 2: 1\n",
                         "mean: [0.6000, 0.6000, 0.6000]\nstandard_deviation: [0.4000, 0.4000, 0.4000]\n"));
  const json found = json::parse(Run({"data", "inspect", out, "-o", "json"}).out);
  EXPECT_EQ(found["class_counts"], json({1, 0, 1}));
  EXPECT_EQ(Run({"data", "prepare-images", out}).code, 2);
  EXPECT_EQ(Run({"data", "prepare-images", "--idx_images", images, out}).code, 2);
  EXPECT_EQ(Run({"data", "prepare-images", folder_.path() + "/absent", out + "2"}).code, 2);
}

}  // namespace
}  // namespace muster::cli
