// What users type by mistake, and the answer: text and exit code.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "absl/strings/cord.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "cli/testing/muster_fixture_test.h"
#include "common/rpc/rpc.h"
#include "gmock/gmock.h"
#include "testing/small_disk.h"
#include "testing/wait.h"

namespace muster::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kGoodJob[] =
    "apiVersion: muster/v1\nkind: Job\nname: a\nmodel: {family: gpt2, size: tiny}\n"
    "data: {tokens: train.bin}\nsteps: 10\n";

class MistakesTest : public MusterTest {
 protected:
  // Exit code 2, and the first line of stderr.
  void Says(const std::vector<std::string>& arguments, const std::string& line) {
    const Ended ended = Run(arguments);
    EXPECT_EQ(ended.code, 2) << ended.err;
    EXPECT_EQ(ended.err.substr(0, ended.err.find('\n')), line);
    EXPECT_EQ(ended.out, "");
  }
  // One node, on this machine, whose host name it returns.
  std::string ServeWithANodeHere() {
    char host[256] = "";
    gethostname(host, sizeof(host) - 1);
    AddNode("node-a");
    store_.nodes[0].set_hostname(host);
    Serve();
    return host;
  }
  // By validate and by submit, and no job is submitted.
  void IsRefused(const std::string& file, const std::string& expected) {
    for (const char* command : {"validate", "submit"}) {
      const Ended ended = Run({command, file});
      EXPECT_EQ(ended.code, 2);
      EXPECT_EQ(ended.err, expected) << command;
    }
    EXPECT_FALSE(Called("Submit"));
  }
};

TEST_F(MistakesTest, UnknownOptionsAndCommands) {
  Says({"-x"}, "muster: unknown option -x");
  Says({"--tiemout", "1s", "ps"}, "muster: unknown option --tiemout, did you mean --timeout?");
  Says({"ps", "-x"}, "muster: unknown option -x");
  Says({"--timeout", "1s", "sumbit"}, "muster: unknown command sumbit, did you mean submit?");
  Says({"local"}, "muster: a command is missing");
  Says({"help", "data", "prepar"}, "muster: unknown command prepar, did you mean prepare?");
  Says({"import", "--help"}, "muster: unknown command import, did you mean checkpoint import?");
  Says({"sumbit", "-h"}, "muster: unknown command sumbit, did you mean submit?");
  Says({"data", "prepar", "--help"}, "muster: unknown command prepar, did you mean prepare?");
  Says({"data", "prepar"}, "muster: unknown command prepar, did you mean prepare?");
  for (const auto& [elsewhere, here] : std::map<std::string, std::string>{{"stop", "cancel"},
                                                                          {"scancel", "cancel"},
                                                                          {"sbatch", "submit"},
                                                                          {"apply", "submit"},
                                                                          {"list", "ps"},
                                                                          {"get", "ps"},
                                                                          {"queue", "ps"},
                                                                          {"squeue", "ps"},
                                                                          {"status", "local status"},
                                                                          {"start", "local up"},
                                                                          {"rm", "delete"}}) {
    Says({elsewhere, "a-0001"}, absl::StrCat("muster: unknown command ", elsewhere, ", did you mean ", here, "?"));
  }
  EXPECT_EQ(Run({"help", "data", "nosuch"}).err, "muster: unknown command nosuch\nsee: muster data --help\n");
}

TEST_F(MistakesTest, AStageThatTheJobDoesNotHave) {
  Serve();
  const std::string file = folder_.Write("job.yaml", kGoodJob);
  Says({"plan", file, "--stage", "3"}, "muster: --stage 3: this job has no stages (parallel.pipeline)");
  store_.plan.add_stages();
  store_.plan.add_stages()->set_stage(1);
  Says({"plan", file, "--stage", "3"}, "muster: --stage 3: this job has stages 0 to 1");
  EXPECT_EQ(Run({"plan", file, "--stage", "1"}).code, 0);
}

TEST_F(MistakesTest, HelpIsACommandToo) {
  const Ended flag = Run({"data", "prepare", "--help"}), command = Run({"help", "data", "prepare"});
  EXPECT_EQ(command.code, 0);
  EXPECT_EQ(command.out, flag.out);
  EXPECT_EQ(Run({"help"}).out, Run({"--help"}).out);
}

TEST_F(MistakesTest, NumbersThatCannotBeMeant) {
  Says({"sample", "x", "--prompt", "a", "--tokens", "-5"},
       "muster: --tokens: must be a number from 1 to 1048576, got -5");
  Says({"sample", "x", "--prompt", "a", "--top-k", "0"},
       "muster: --top-k: must be a number from 1 to 1073741824, got 0");
  Says({"eval", "x", "y", "--sequences", "-1"}, "muster: --sequences: must be a number of at least 1, got -1");
  Says({"sample", "x", "--prompt", "a", "--tokens", "many"},
       "muster: --tokens: must be a number from 1 to 1048576, got many");
  Says({"ps", "--timeout", "0s"}, "muster: --timeout: invalid duration 0s: must be greater than 0");
  for (const char* size : {"5furlongs", "0", "-5", "-1GB", "1e30GB", ""}) {
    Says({"export", "x", "y", "--max-shard-size", size},
         absl::StrCat("muster: --max-shard-size: must be a size above 0, such as 80GB or 74.5GiB, got ", size));
    Says({"plan", "x", "--memory", size},
         absl::StrCat("muster: --memory: must be a size above 0, such as 80GB or 74.5GiB, got ", size));
  }
  Says({"plan", "x", "--memory", "80"}, "muster: --memory: 80 has no unit, which means bytes: write 80GB or 80GiB");
  Says({"logs", "x", "--rank", "-1"}, "muster: --rank: must be a whole number of at least 0, got -1");
  Says({"events", "--tail", "99999999999"}, "muster: --tail: 99999999999 is too large");
  Says({"metrics", "x", "--tail", "few"}, "muster: --tail: must be a number, got few");
}

TEST_F(MistakesTest, WhatIsMissingOrUnknown) {
  Says({"data", "prepare", "book.txt"}, "muster: OUT is required: name the token file to write last");
  Says({"data", "prepare"}, "muster: FILES is required");
  Says({"compare", "x"}, "muster: JOB: at least 2 are needed, got 1");
  Says({"sample", "x", "--tokens"}, "muster: --tokens needs a value");
  Says({"describe", "-x"}, "muster: unknown option -x");
  Says({"cancel", "--all"}, "muster: unknown option --all");
}

TEST_F(MistakesTest, TextThatIsNotUtf8) {
  Serve();
  PutJob("a-0001", v1::JOB_STATE_RUNNING);
  const std::string bad = "\xff", file = folder_.Write("job.yaml", kGoodJob);
  const size_t before = store_.Calls().size();
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"describe", bad}, "JOB is not UTF-8: \\xff"},
      {{"cancel", "a-0001", bad}, "JOB is not UTF-8: \\xff"},
      {{"trace", bad}, "JOB is not UTF-8: \\xff"},
      {{"metrics", bad}, "JOB is not UTF-8: \\xff"},
      {{"watch", bad}, "JOB is not UTF-8: \\xff"},
      {{"run", "--", "echo", bad}, "PROGRAM is not UTF-8: \\xff"},
      {{"run", "--node-selector", "a=" + bad, "--", "echo"}, "--node-selector is not UTF-8: a=\\xff"},
      {{"label", "a-0001", "a=" + bad}, "CHANGE is not UTF-8: a=\\xff"},
      {{"note", "a-0001", "b" + bad + "c"}, "TEXT is not UTF-8: b\\xffc"},
      {{"checkpoint", "ls", bad}, "FROM is not UTF-8: \\xff"},
      {{"submit", file, "--after", bad}, "--after is not UTF-8: \\xff"},
      {{"submit", file, "--set", "name=" + bad}, "--set is not UTF-8: name=\\xff"},
      {{"templates", "show", bad}, "TEMPLATE is not UTF-8: \\xff"},
      {{"quota", "delete", bad}, "NAME is not UTF-8: \\xff"},
      {{"reservations", "delete", bad}, "NAME is not UTF-8: \\xff"},
      {{"audit", "--user", bad}, "--user is not UTF-8: \\xff"},
      {{"drain", bad}, "NODE is not UTF-8: \\xff"},
      {{"--address", bad, "ps"}, "--address is not UTF-8: \\xff"},
      {{"backup", "/" + bad}, "FILE is not UTF-8: /\\xff"},
      {{"validate", bad}, "cannot open \\xff: No such file or directory"},
  };
  for (const auto& [command, says] : cases) Says(command, absl::StrCat("muster: ", says));
  environment_["LATIN"] = bad;
  Says({"run", "--env", "LATIN", "--", "echo"}, "muster: --env LATIN: its value is not UTF-8: \\xff");
  EXPECT_EQ(store_.Calls().size(), before) << "nothing was sent";
}

TEST_F(MistakesTest, AFolderWhoseNameIsNotUtf8) {
  ServeWithANodeHere();
  const std::string file = folder_.Write("\xff/job.yaml", kGoodJob);
  folder_.Write("\xff/train.bin", std::string(1000, '\0'));
  const std::string in = folder_.path() + "/\\xff",
                    why = absl::StrCat("the name of the folder ", in,
                                       " is not UTF-8: rename it, or write an absolute path\n");
  IsRefused(file, absl::StrCat(in, "/job.yaml:1:1: checkpoint.path: ", why, in, "/job.yaml:5:16: data.tokens: ", why));
  const std::string tokens = folder_.Write("train.bin", std::string(1000, '\0'));
  EXPECT_EQ(Run({"submit", "-d", file, "--set", "data.tokens=" + tokens, "--set",
                 absl::StrCat("checkpoint.path=", folder_.path(), "/runs")})
                .code,
            0)
      << "nothing of the folder is sent";
}

TEST_F(MistakesTest, ATypeOfEventsThatThereIsNot) {
  Says(
      {"events", "--type", "nonsense"},
      "muster: --type: \"nonsense\" is not one of checkpoint, generation, job, link, node, project, rank, reservation, "
      "slot, store, sync");
  Says({"events", "--type", "rank,jbo"},
       "muster: --type: \"jbo\" is not one of checkpoint, generation, job, link, node, project, rank, reservation, "
       "slot, "
       "store, sync, did you mean job?");
  Says(
      {"events", "-f", "--type", "rank.exit"},
      "muster: --type: \"rank.exit\" is not one of rank, rank.exited, rank.hung, rank.idle, did you mean rank.exited?");
}

TEST_F(MistakesTest, AVariableIsNamedWhereItIsWrong) {
  const std::vector<std::tuple<std::string, std::string, std::string>> cases = {
      {"MUSTER_TIMEOUT", "abc", "invalid duration \"abc\": use 30s, 5m, 1h30m or 7d"},
      {"MUSTER_ADDRESS", "nowhere", "invalid coordinator address nowhere: use unix:/path or host:port"},
      {"MUSTER_COORDINATOR", "nowhere", "invalid coordinator address nowhere: use unix:/path or host:port"},
      {"MUSTER_TOKEN_FILE", "/nofile", "cannot open /nofile: No such file or directory"},
      {"MUSTER_CA", "/nofile", "cannot open /nofile: No such file or directory"},
  };
  const std::map<std::string, std::string> before = environment_;
  for (const auto& [variable, value, says] : cases) {
    environment_ = before;
    if (variable == "MUSTER_COORDINATOR") environment_.erase("MUSTER_ADDRESS");
    environment_[variable] = value;
    const Ended ended = Run({"ps"});
    EXPECT_EQ(ended.code, 2) << variable;
    EXPECT_EQ(ended.err, absl::StrCat("muster: ", variable, ": ", says, "\n"));
  }
}

TEST_F(MistakesTest, ARelativeRuntimeFolder) {
  environment_["MUSTER_RUNTIME_DIR"] = "r";
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"ps"}, {"local", "up"}, {"local", "down"}, {"local", "status"}}) {
    Says(command,
         "muster: MUSTER_RUNTIME_DIR: r is a relative path, which would be another folder for each working directory: "
         "set MUSTER_RUNTIME_DIR to an absolute path, one that begins with /");
  }
  EXPECT_FALSE(std::filesystem::exists(folder_.path() + "/state/muster/local")) << "nothing was started";
}

// Not the root folder, and not what the working folder happens to hold.
TEST_F(MistakesTest, NoFolderForState) {
  Serve();
  const std::string file = folder_.Write("job.yaml", kGoodJob);
  for (const char* variable : {"HOME", "XDG_STATE_HOME"}) environment_.erase(variable);
  const std::string says = "neither HOME nor XDG_STATE_HOME is set: set one to an absolute path";
  for (const char* command : {"up", "down", "status"}) Says({"local", command}, "muster: " + says);
  Says({"coordinator", "init"}, "muster: " + says);
  Says({"describe", "@last"}, "muster: @last: " + says);
  const Ended submitted = Run({"submit", "-d", file});
  EXPECT_EQ(submitted.code, 0);
  EXPECT_THAT(submitted.err, HasSubstr(absl::StrCat("note: @last will not name this job: ", says, "\n")));
  EXPECT_EQ(Run({"ps"}).code, 0);
  EXPECT_EQ(Run({"--help"}).code, 0);
  EXPECT_THAT(Run({"doctor"}).out, HasSubstr(says));
  for (const char* variable : {"HOME", "XDG_STATE_HOME"}) {
    environment_["HOME"] = folder_.path();
    environment_[variable] = "r";
    Says({"describe", "@last", "--timeout", "1s"},
         absl::StrCat("muster: ", variable[0] == 'X' ? "@last: " : "", variable,
                      ": r is a relative path, which would be another folder for each working directory: set ",
                      variable, " to an absolute path, one that begins with /"));
  }
}

TEST_F(MistakesTest, ATokenThatIsNone) {
  Serve();
  environment_["MUSTER_TOKEN"] = "garbage";
  for (const char* method : {"List", "Watch"}) {
    store_.Fail(method,
                absl::UnauthenticatedError("the coordinator does not know this token: ask an admin for a new one"));
  }
  PutJob("a-0001", v1::JOB_STATE_RUNNING);
  for (const std::vector<std::string>& command : {std::vector<std::string>{"ps"}, {"watch", "a-0001"}}) {
    const Ended unknown = Run(command);
    EXPECT_EQ(unknown.code, 4);
    EXPECT_EQ(unknown.err,
              "muster: MUSTER_TOKEN: the coordinator does not know this token: ask an admin for a new one\n");
  }
  // Before anything is sent.
  environment_["MUSTER_ADDRESS"] = "10.255.255.1:7070";
  Says({"ps"},
       "muster: 10.255.255.1:7070 is another machine: connections to it need TLS, and no authority to trust is "
       "configured; "
       "MUSTER_TOKEN holds no token that names it: give a token of `muster coordinator token create` (--token-file, "
       "MUSTER_TOKEN_FILE), or the coordinator's ca.crt (--ca, MUSTER_CA)");
  environment_["MUSTER_TOKEN"] = "muster1.abc";
  Says({"ps"},
       "muster: MUSTER_TOKEN: this is not a token of `muster coordinator token create` (muster1.AUTHORITY.ID.SECRET), "
       "perhaps because it was cut off: copy it again, or ask an admin for a new one");
  environment_["MUSTER_TOKEN"] = "two words";
  Says({"ps"},
       "muster: MUSTER_TOKEN: this is not a token: byte 4 of 9 is 0x20, which a request cannot carry; copy the token "
       "again: "
       "it is one word of printable ASCII characters");
}

TEST_F(MistakesTest, ATooLongSocketPath) {
  const std::string path = "/" + std::string(141, 's');
  Says({"--address", "unix:" + path, "ps"},
       absl::StrCat("muster: the socket path ", path,
                    " has 142 bytes, more than 107: set MUSTER_RUNTIME_DIR or the coordinator's address to a shorter "
                    "one"));
}

TEST_F(MistakesTest, AnEmptyName) {
  Serve();
  for (const char* command : {"describe", "watch", "logs", "metrics", "pause", "events"}) {
    Says({command, ""}, "muster: JOB is empty: give its id, a unique prefix of it, or @last");
  }
}

// As an unset variable of a script gives it.
TEST_F(MistakesTest, EmptyArguments) {
  Serve();
  PutJob("a-0001", v1::JOB_STATE_COMPLETED);
  const std::string file = folder_.Write("job.yaml", kGoodJob), text = folder_.Write("book.txt", "words");
  using Words = std::vector<std::string>;
  for (const char* command : {"backup", "submit", "init", "validate", "plan"}) {
    Says({command, ""}, "muster: FILE is empty");
  }
  Says({"run", ""}, "muster: PROGRAM is empty");
  Says({"data", "prepare", "", "q"}, "muster: FILES is empty");
  Says({"data", "prepare", text, ""}, "muster: FILES is empty");
  Says({"export", "a-0001", ""}, "muster: OUT is empty");
  Says({"export", "", folder_.path() + "/out"}, "muster: FROM is empty");
  Says({"checkpoint", "import", "first-hf", ""}, "muster: OUT is empty");
  for (const Words& words : {Words{"submit", "--name", "", file}, {"submit", "--name=", file}}) {
    Says(words, "muster: --name is empty");
  }
  Says({"train", "--model", ""}, "muster: --model is empty");
  Says({"ps", "-l", ""}, "muster: --selector is empty");
  Says({"--address", "", "ps"}, "muster: --address is empty");
  EXPECT_FALSE(Called("Submit"));
  EXPECT_EQ(Run({"backup", ""}).err, "muster: FILE is empty\nsee: muster backup --help\n");
  // The program's own.
  EXPECT_THAT(Run({"run", "--print", "/bin/echo", ""}).out, HasSubstr("command:\n  - /bin/echo\n  - \"\"\n"));
  EXPECT_EQ(Run({"note", "a-0001", ""}).code, 0) << "removes the note";
}

TEST_F(MistakesTest, ARankThatTheJobDoesNotHave) {
  Serve();
  v1::Job job = PutJob("a-0001", v1::JOB_STATE_RUNNING);
  job.mutable_spec()->mutable_resources()->set_ranks(2);
  store_.PutJob(job);
  Says({"logs", "a-0001", "--rank", "7"}, "muster: --rank 7: a-0001 has ranks 0 to 1");
}

TEST_F(MistakesTest, WordsOfOtherSystems) {
  const std::string file = folder_.Write("job.yaml", kGoodJob);
  const auto set = [&](const std::string& assignment, const std::string& says) {
    const Ended ended = Run({"validate", "--offline", file, "--set", assignment});
    EXPECT_EQ(ended.code, 2);
    EXPECT_EQ(ended.err, absl::StrCat("muster: --set ", assignment.substr(0, assignment.find('=')), ": ", says, "\n"));
  };
  set("data.path=x", "unknown field, did you mean data.tokens?");
  set("resources.gpus=2", "unknown field, did you mean resources.ranks?");
  set("optimizer.lr_schedule.kind=cos",
      "expected constant, linear, cosine or step, got the string \"cos\", did you mean cosine?");
  set("model.kind=gpt2", "unknown field, did you mean model.family?");
  set("precision.compute=bfloat16", "expected fp32, bf16 or fp16, got the string \"bfloat16\", did you mean bf16?");
  set("precision.reduce=float16", "expected fp32, bf16 or fp16, got the string \"float16\", did you mean fp16?");
  set("resources.device=tpu", "expected auto, cpu or cuda, got the string \"tpu\"");
  set("resources.device=gpu", "expected auto, cpu or cuda, got the string \"gpu\", did you mean cuda?");
  set("strategy=fsdpp",
      "expected single, ddp, zero, fsdp, auto or a map, got the string \"fsdpp\", did you mean fsdp?");
  set("checkpoint.every=5", "unknown field, did you mean checkpoint.every_steps?");
  set("precision.params=x", "expected fp32 or bf16, got the string \"x\"");  // fp16 is refused there
}

// As torchrun has it: what comes after the program is the program's.
TEST_F(MistakesTest, AProgramToRunNeedsNoDashes) {
  const auto command = [&](const std::vector<std::string>& arguments) {
    const Ended ended = Run(arguments);
    EXPECT_EQ(ended.code, 0) << ended.err;
    return ended.out;
  };
  const auto expected = AllOf(HasSubstr("command:\n  - /bin/echo\n  - \"--stop_grace\"\n  - \"3\"\n  - \"-d\"\n"
                                        "  - \"--\"\n  - \"--ranks\"\nworkdir:"),
                              Not(HasSubstr("stop_grace_seconds")));
  EXPECT_THAT(command({"run", "--print", "--ranks", "2", "/bin/echo", "--stop_grace", "3", "-d", "--", "--ranks"}),
              expected);
  EXPECT_THAT(command({"--timeout", "5s", "run", "--max_restarts=1", "--print", "--", "/bin/echo", "--stop_grace", "3",
                       "-d", "--", "--ranks"}),
              expected);
  Says({"run", "--rankz", "2", "/bin/echo"}, "muster: unknown option --rankz, did you mean --ranks?");
  Says({"run", "--print"}, "muster: PROGRAM is required");
  Says({"-=x"}, "muster: unknown option -=x");
}

TEST_F(MistakesTest, BenchSkipsRanksThatTheNodesHaveNoSlotsFor) {
  AddNode("node-a");
  store_.nodes[0].add_slots()->set_state(v1::SLOT_STATE_USED);
  store_.nodes[0].add_slots()->set_state(v1::SLOT_STATE_STUCK);
  AddNode("node-b");
  store_.nodes[1].set_draining(true);
  store_.nodes[1].add_slots();
  Serve();
  const std::string file = folder_.Write("job.yaml", kGoodJob);
  EXPECT_THAT(Run({"bench", file, "--timeout", "1s"}).err,
              AllOf(HasSubstr("skipped 2 ranks: the nodes have 1 slot; for more: muster local down, then muster local "
                              "up --slots 2\n"),
                    HasSubstr("skipped 4 ranks: the nodes have 1 slot;"), Not(HasSubstr("skipped 1 rank")),
                    HasSubstr("new-0001: 1 rank,")));
  const std::string none = "muster: nothing to measure: the nodes have 1 slot, and --ranks asks for at least 3";
  Says({"bench", file, "--ranks", "3"}, none + "; for more: muster local down, then muster local up --slots 3");
  Says({"bench", file, "--ranks", "3", "--communication"},
       none + "; for more: muster local down, then muster local up --slots 3");
  // How to start another service is known of the local one only.
  Says({"bench", file, "--ranks", "3", "--address", absl::StrCat("unix:", folder_.path(), "/coordinator.sock")}, none);
  EXPECT_THAT(Run({"bench", file, "--hardware", "cpu"}).err, Not(HasSubstr("the nodes have"))) << "nothing runs";
}

// The job's warm-up is longer than what is measured.
TEST_F(MistakesTest, BenchTakesAJobWithAWarmUp) {
  AddNode("node-a");
  store_.nodes[0].add_slots();
  store_.nodes[0].add_slots();
  Serve();
  const std::string file =
      folder_.Write("job.yaml", absl::StrCat(kGoodJob, "optimizer: {lr: 1e-3, lr_schedule: {warmup_steps: 50}}\n"));
  const std::vector<std::vector<std::string>> measures = {{"--steps", "10"}, {"--communication"}};
  for (const std::vector<std::string>& measure : measures) {
    std::vector<std::string> words = {"bench", file, "--ranks", "2", "--timeout", "1s"};
    words.insert(words.end(), measure.begin(), measure.end());
    store_.submitted.Clear();
    Run(words);
    EXPECT_EQ(store_.submitted.train().optimizer().lr(), 1e-3) << measure[0];
    EXPECT_FALSE(store_.submitted.train().optimizer().has_lr_schedule()) << measure[0];
  }
}

TEST_F(MistakesTest, BenchSaysThatItsTimeOutCancelsTheJob) {
  AddNode("node-a");
  store_.nodes[0].add_slots();
  Serve();
  const std::string file = folder_.Write("job.yaml", kGoodJob);
  const Ended ended = Run({"bench", file, "--ranks", "1", "--timeout", "1s"});
  EXPECT_EQ(ended.code, 5);
  EXPECT_TRUE(absl::StrContains(ended.err, "muster: timed out after 1s; cancelling new-0001\n")) << ended.err;
  EXPECT_TRUE(Called("Cancel new-0001"));
  PutJob("a-0001", v1::JOB_STATE_RUNNING);
  EXPECT_TRUE(absl::StrContains(Run({"watch", "a-0001", "--timeout", "1s"}).err,
                                "muster: timed out after 1s; the job is still running\n"));
}

TEST_F(MistakesTest, WhyAJobDoesNotFitIsPrintedOnce) {
  store_.plan.set_unfit("rank 0 needs 2 TiB");
  const std::string file = folder_.Write("job.yaml", kGoodJob);
  Serve();
  EXPECT_THAT(Run({"submit", "-d", file}).err, HasSubstr("does not fit: rank 0 needs 2 TiB"));
  store_.plan.set_unfit("rank 0 needs 2 TiB; it would fit with fsdp");
  store_.plan.add_notes("the job is queued: can never start on these nodes: needs 2 TiB; it would fit with fsdp");
  for (const char* flag : {"-d", "--dry-run"}) {
    const Ended ended = Run({"submit", flag, file});
    EXPECT_THAT(ended.err + ended.out,
                AllOf(HasSubstr("never start on these nodes: needs 2 TiB; it would fit with fsdp"),
                      Not(HasSubstr("does not fit"))));
  }
}

TEST_F(MistakesTest, AServiceWithoutANode) {
  store_.plan.add_notes("the job is queued: 1st in the queue: no node has joined yet");
  Serve();
  const std::string note = "\nnote: the job is queued: 1st in the queue: no node has joined yet\n";
  EXPECT_THAT(Run({"submit", "-d", folder_.Write("job.yaml", kGoodJob)}).err, HasSubstr(note));
  store_.plan.mutable_resolved()->mutable_exec()->add_command("true");
  EXPECT_THAT(Run({"run", "-d", "--", "true"}).err, HasSubstr("true on 0 ranks" + note));
}

TEST_F(MistakesTest, ValidateNotesWhatNoNodesChange) {
  store_.plan.add_notes("1 of 2 ranks is idle in every step: batch.sequences is 1 for 2 ranks");
  store_.plan.add_notes("a checkpoint is written from a copy");
  const std::string file = folder_.Write("job.yaml", kGoodJob);
  Serve();
  EXPECT_EQ(Run({"validate", file}).err,
            absl::StrCat(file, ": valid\n", file,
                         ": note: 1 of 2 ranks is idle in every step: batch.sequences is 1 for 2 ranks\n"));
}

TEST_F(MistakesTest, DetachWinsOverFollow) {
  Serve();
  const Ended ended = Run({"submit", "-d", "-f", folder_.Write("job.yaml", kGoodJob)});
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(ended.out, "new-0001\n");
  EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 2) << "with the id, three lines\n" << ended.err;
}

TEST_F(MistakesTest, CancelDoesNotAskAndDeleteDoes) {
  Serve();
  PutJob("a-0001", v1::JOB_STATE_RUNNING);
  PutJob("b-0001", v1::JOB_STATE_COMPLETED);
  const auto typed = [&](const std::string& command, const std::string& answer) {
    // `script` gives it a terminal for its standard input.
    return RunToEnd({"/bin/sh", "-c",
                     absl::StrCat("printf '", answer, "\\n' | script -qec '", ProgramPath("cli/muster"), " ", command,
                                  "' /dev/null")},
                    environment_);
  };
  EXPECT_EQ(typed("cancel a-0001", "n").code, 0);
  EXPECT_TRUE(Called("Cancel a-0001"));
  const Ended no = typed("delete b-0001", "n");
  EXPECT_EQ(no.code, 1) << no.out;
  EXPECT_TRUE(absl::StrContains(no.out, "delete b-0001 (completed) with its events, metrics and logs? [y/N]"))
      << no.out;
  EXPECT_TRUE(absl::StrContains(no.out, "not deleted")) << no.out;
  EXPECT_FALSE(Called("Delete b-0001"));
  EXPECT_EQ(typed("delete b-0001", "y").code, 0);
  EXPECT_TRUE(Called("Delete b-0001"));
  EXPECT_EQ(typed("delete -y b-0001", "").code, 0);
  for (const std::string answer : {"Y", "yes", "Yes", "YES", "yEs "}) {
    const std::string job = absl::StrCat("job-", absl::BytesToHexString(answer));
    PutJob(job, v1::JOB_STATE_COMPLETED);
    EXPECT_EQ(typed("delete " + job, answer).code, 0) << answer;
    EXPECT_TRUE(Called("Delete " + job)) << answer;
  }
  EXPECT_EQ(typed("delete b-0001", "yesterday").code, 1);
}

TEST_F(MistakesTest, ASweepOfNothingOrOfEqualTrials) {
  Serve();
  const std::string file = folder_.Write("job.yaml", kGoodJob);
  const std::string nothing =
      "muster: nothing to try: give the values with --array PATH=VALUE,VALUE, or --random PATH=LOW..HIGH and --trials "
      "N";
  Says({"sweep", "s", file}, nothing);
  Says({"sweep", "s", file, "--trials", "3"}, nothing);
  const std::string twice = "muster: --array: seed=1 is given twice, which would be two equal jobs";
  Says({"sweep", "s", file, "--array", "seed=1,1"}, twice);
  Says({"sweep", "s", file, "--array", "seed=1,2,1", "--trials", "2"}, twice);
  Says({"submit", file, "--array", "seed=1,1"}, twice);
  Says({"sweep", "s", file, "--array", "seed=1,2", "--array", "seed=3"},
       "muster: --array: seed is given twice: give all its values at once");
  EXPECT_FALSE(Called("Submit"));
}

TEST_F(MistakesTest, AQuestionCanBeInterrupted) {
  Serve();
  PutJob("a-0001", v1::JOB_STATE_COMPLETED);
  PutJob("b-0001", v1::JOB_STATE_COMPLETED);
  const std::string shown = folder_.path() + "/shown";
  const auto at_the_question = [&](const std::string& key) {
    unlink(shown.c_str());
    return RunToEnd({"/bin/sh", "-c",
                     absl::StrCat("(until grep -qs y/N ", shown, "; do sleep 0.02; done; printf '", key,
                                  "') | script -qefc '", ProgramPath("cli/muster"), " delete a-0001 b-0001' ", shown)},
                    environment_);
  };
  const Ended interrupted = at_the_question("\\003");
  EXPECT_EQ(interrupted.code, 130) << interrupted.out;
  EXPECT_THAT(interrupted.out, ::testing::ContainsRegex("\\[y/N\\] (\\^C)?\r\nmuster: interrupted: not deleted\r\n"));
  EXPECT_FALSE(absl::StrContains(interrupted.out, "b-0001")) << "the next question";
  EXPECT_THAT(at_the_question("\\004\\004").out, HasSubstr("[y/N] \r\nmuster: a-0001: not deleted\r\n"));
  EXPECT_FALSE(Called("Delete a-0001"));
}

// Without -y and a terminal a question is an error of its own, so these messages show that nothing was asked before.
TEST_F(MistakesTest, DeleteResolvesTheNameBeforeItAsks) {
  Serve();
  PutJob("b-0001", v1::JOB_STATE_COMPLETED);
  PutJob("b-0002", v1::JOB_STATE_FAILED);
  PutJob("b-0003", v1::JOB_STATE_RUNNING);
  store_.Fail("Get", absl::FailedPreconditionError("b matches 3 jobs: b-0001, b-0002, b-0003: name one of them"));
  Says({"delete", "b"}, "muster: b matches 2 ended jobs: b-0001, b-0002: name one of them");
  PutJob("b-0001", v1::JOB_STATE_RUNNING);
  Says({"delete", "b"}, "muster: nothing is changed: standard input is not a terminal to ask on; add -y");
  EXPECT_EQ(Run({"delete", "-y", "b"}).err, "b-0002 deleted\n") << "the one that can be deleted";
  EXPECT_TRUE(Called("Delete b-0002"));
  PutJob("b-0002", v1::JOB_STATE_RUNNING);
  Says({"delete", "b"}, "muster: b matches 3 jobs: b-0001, b-0002, b-0003: name one of them");
  EXPECT_FALSE(Called("Delete b"));
  v1::Job large = store_.Job("b-0003");
  large.set_id("b-large-0004");
  large.set_state(v1::JOB_STATE_COMPLETED);
  large.mutable_spec()->set_name("b-large");
  store_.PutJob(large);
  for (const char* id : {"b-0001", "b-0002", "b-0003"}) {
    v1::Job job = store_.Job(id);
    job.mutable_spec()->set_name("b");
    store_.PutJob(job);
  }
  Says({"delete", "-y", "b"}, "muster: b matches 3 jobs: b-0001, b-0002, b-0003: name one of them");
  EXPECT_FALSE(Called("Delete b-large-0004")) << "which has another name";
}

TEST_F(MistakesTest, DeleteChecksAllJobsBeforeItDeletesOne) {
  Serve();
  PutJob("a-0001", v1::JOB_STATE_COMPLETED);
  PutJob("b-0002", v1::JOB_STATE_RUNNING);
  PutJob("c-0003", v1::JOB_STATE_PAUSED);
  constexpr char kNothing[] = "nothing was done: fix the errors above, or leave those jobs out\n";
  const Ended running = Run({"delete", "-y", "a-0001", "b-0002", "c-0003"});
  EXPECT_EQ(running.code, 2);
  EXPECT_EQ(running.err, absl::StrCat("muster: b-0002 has not ended: cancel it first (muster cancel b-0002)\n"
                                      "muster: c-0003 has not ended: cancel it first (muster cancel c-0003)\n",
                                      kNothing));
  const Ended unknown = Run({"delete", "-y", "a-0001", "nosuch"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_EQ(unknown.err, absl::StrCat("muster: nosuch: no job nosuch\n", kNothing));
  EXPECT_FALSE(Called("Delete a-0001"));
  Says({"delete", "-y", "b-0002"}, "muster: b-0002 has not ended: cancel it first (muster cancel b-0002)");
  PutJob("b-0002", v1::JOB_STATE_CANCELLED);
  EXPECT_EQ(Run({"delete", "-y", "a-0001", "b-0002"}).err, "a-0001 deleted\nb-0002 deleted\n");
}

TEST_F(MistakesTest, DeleteTakesTheNameOfARun) {
  Serve();
  for (const char* id : {"dlc-abcd-1", "dlc-abcd-2"}) {
    v1::Job job = PutJob(id, v1::JOB_STATE_COMPLETED);
    job.mutable_spec()->mutable_train()->mutable_sync()->set_run("dlc-abcd");
    store_.PutJob(job);
  }
  store_.Fail("Get", absl::FailedPreconditionError("dlc matches 2 jobs: dlc-abcd-1, dlc-abcd-2"));
  Says({"delete", "dlc"}, "muster: nothing is changed: standard input is not a terminal to ask on; add -y");
  EXPECT_EQ(Run({"delete", "-y", "dlc"}).err, "dlc-abcd deleted, all its replicas\n");
  EXPECT_TRUE(Called("Delete dlc-abcd"));
  v1::Job running = PutJob("dlc-abcd-3", v1::JOB_STATE_RUNNING);
  running.mutable_spec()->mutable_train()->mutable_sync()->set_run("dlc-abcd");
  store_.PutJob(running);
  EXPECT_EQ(Run({"delete", "-y", "dlc"}).err, "dlc-abcd deleted, its 2 ended replicas\n");
}

TEST_F(MistakesTest, AnErrorThatBeginsWithTheJobNamesItOnce) {
  Serve();
  store_.Fail("Cancel", absl::FailedPreconditionError("a-0001 completed already"));
  const Ended ended = Run({"cancel", "a-0001", "b-0001"});
  EXPECT_EQ(ended.code, 2);
  EXPECT_EQ(ended.err, "muster: a-0001 completed already\nmuster: b-0001: a-0001 completed already\n");
}

TEST_F(MistakesTest, WithoutATerminalNothingIsDeletedUnasked) {
  Serve();
  PutJob("b-0001", v1::JOB_STATE_COMPLETED);
  const Ended ended = Run({"delete", "b-0001"}, "y\n");
  EXPECT_EQ(ended.code, 2);
  EXPECT_EQ(ended.err, "muster: nothing is changed: standard input is not a terminal to ask on; add -y\n");
  EXPECT_FALSE(Called("Delete b-0001"));
}

TEST_F(MistakesTest, AllErrorsOfAFileAtOnce) {
  Serve();
  const std::string file =
      folder_.Write("job.yaml",
                    "apiVersion: muster/v1\nkind: Job\nname: a\nmodel: {family: gpt2, size: tinny}\n"
                    "data: {tokens: train.bin}\noptimizer: {lr: -1, lrr: 2}\nstepps: 10\n");
  v1::SpecErrors errors;
  const std::pair<const char*, const char*> kErrors[] = {
      {"optimizer.lr", "must be greater than 0, got -1"},
      {"steps", "missing: how many optimizer steps to train"},  // it is there, misspelled
      {"model.size", "missing"},                                // likewise
      {"model.heads", "missing; give a size or"},               // the size has it
  };
  for (const auto& [path, message] : kErrors) {
    errors.add_errors()->set_path(path);
    errors.mutable_errors(errors.errors_size() - 1)->set_message(message);
  }
  absl::Status refused = absl::InvalidArgumentError("the spec is wrong");
  refused.SetPayload(rpc::kErrorDetails, absl::Cord(errors.SerializeAsString()));
  const std::string expected = absl::StrCat(
      file,
      ":4:29: model.size: expected tiny, small, medium, large or xl, got the string \"tinny\", did you mean tiny?\n",
      file, ":6:17: optimizer.lr: must be greater than 0, got -1\n",              //
      file, ":6:21: optimizer.lrr: unknown field, did you mean optimizer.lr?\n",  //
      file, ":7:1: stepps: unknown field, did you mean steps?\n");
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"validate", file}, {"submit", "-d", file}, {"plan", file}}) {
    store_.Fail("Plan", refused);
    const Ended ended = Run(command);
    EXPECT_EQ(ended.code, 2);
    EXPECT_EQ(ended.err, expected) << command.front();
  }
  EXPECT_FALSE(Called("Submit"));
}

TEST_F(MistakesTest, WithoutACoordinatorValuesAreNotChecked) {
  const std::string file = folder_.Write("job.yaml", absl::StrCat(kGoodJob, "stepz: 1\n"));
  const std::string error = absl::StrCat(file, ":7:1: stepz: unknown field, did you mean steps?\n");
  const Ended ended = Run({"validate", file});
  EXPECT_EQ(ended.code, 2);
  EXPECT_THAT(ended.err, AllOf(HasSubstr("note: values were not checked: cannot reach the coordinator"),
                               ::testing::EndsWith(error)));
  EXPECT_EQ(Run({"validate", "--offline", file}).err, error);
}

TEST_F(MistakesTest, FilesThatAreNotThere) {
  const std::string host = ServeWithANodeHere();
  const std::string file = folder_.Write("job.yaml", absl::StrCat(kGoodJob, "checkpoint: {path: /proc/x}\n"));
  const std::string tokens = folder_.path() + "/train.bin";
  IsRefused(file,
            absl::StrCat(file, ":5:16: data.tokens: no such file: ", tokens, "\n",  //
                         file, ":7:20: checkpoint.path: cannot create folders in /proc, which the kernel provides\n"));
  EXPECT_EQ(Run({"plan", file}).code, 0) << "the data may come later";
  // Workers on another machine have other files.
  store_.nodes[0].set_hostname("elsewhere");
  EXPECT_EQ(Run({"submit", "-d", file}).code, 0);
  store_.nodes[0].set_hostname(host);
  folder_.Write("train.bin", std::string(1000, '\0'));
  EXPECT_EQ(Run({"submit", "-d", file, "--set", absl::StrCat("checkpoint.path=", folder_.path(), "/runs/{job}")}).code,
            0);
}

TEST_F(MistakesTest, ASelectorWithSeveralEqualsSigns) {
  Serve();
  for (const char* text : {"x===", "x==a"}) {
    Says({"ps", "-l", text},
         absl::StrCat("muster: --selector: expected KEY=VALUE or KEY!=VALUE, as team=nlp, got \"", text, "\""));
  }
  EXPECT_EQ(Run({"ps", "-l", "x=a==,y!=b"}).code, 0);
}

TEST_F(MistakesTest, ResumeOfAJobThatWasCancelled) {
  Serve();
  v1::Job job = PutJob("a-0001", v1::JOB_STATE_CANCELLED);
  store_.Fail("Resume", absl::FailedPreconditionError("a-0001 was cancelled already"));
  Says({"resume", "a-0001"}, "muster: a-0001 was cancelled already; only paused jobs are resumed: submit it again");
  job.mutable_spec()->mutable_train()->mutable_checkpoint()->set_path("/c/{job}");
  store_.PutJob(job);
  Says({"resume", "a-0001"},
       "muster: a-0001 was cancelled already; only paused jobs are resumed: submit it again with --set "
       "checkpoint.resume_from=/c/a-0001");
}

TEST_F(MistakesTest, CheckpointNowNamesTheWholeId) {
  Serve();
  PutJob("lima-0001", v1::JOB_STATE_RUNNING);
  EXPECT_EQ(Run({"checkpoint", "now", "lim"}).err,
            "lima-0001: published the checkpoint of step 3 (step-0000000003-g1)\n");
}

TEST_F(MistakesTest, AJobFileThatIsNotText) {
  const std::string file = folder_.Write("train.bin", std::string("W\0e\0", 4));
  const Ended ended = Run({"submit", file});
  EXPECT_EQ(ended.code, 2);
  EXPECT_THAT(ended.err, HasSubstr(file + ":1:2: is not text: a byte is 0; a job file is YAML\n"));
}

TEST_F(MistakesTest, AFileOfResultsInNoFolder) {
  Serve();
  PutJob("a-0001", v1::JOB_STATE_RUNNING);
  const std::string file = folder_.Write("job.yaml", kGoodJob), out = folder_.path() + "/nofolder/x";
  const std::string says =
      absl::StrCat("muster: cannot create ", out, ": there is no folder ", folder_.path(), "/nofolder");
  Says({"plan", file, "--timeline", out}, says);
  Says({"trace", "a-0001", "--save", out}, says);
  Says({"bench", file, "--communication", "--ranks", "2", "--plot", out}, says);
  EXPECT_FALSE(Called("Submit")) << "found before anything is measured";
}

// Its files are created in a folder that exists.
TEST_F(MistakesTest, AFolderToOffloadTo) {
  ServeWithANodeHere();
  folder_.Write("train.bin", std::string(1000, '\0'));
  const auto with = [&](const std::string& to) {
    return folder_.Write("job.yaml", absl::StrCat(kGoodJob, "offload: {optimizer: true, to: ", to, "}\n"));
  };
  const std::string file = with("fast");
  IsRefused(file, absl::StrCat(file, ":7:32: offload.to: no such folder: ", folder_.path(), "/fast\n"));
  folder_.Write("fast", "");
  IsRefused(file, absl::StrCat(file, ":7:32: offload.to: is not a folder: ", folder_.path(), "/fast\n"));
  with("/proc");
  IsRefused(file, absl::StrCat(file, ":7:32: offload.to: cannot create files in /proc, which the kernel provides\n"));
  with(folder_.path());
  EXPECT_EQ(Run({"submit", "-d", file}).code, 0);
}

TEST_F(MistakesTest, AStrategyThatTrainDoesNotHave) {
  const std::vector<std::string> train = {"train", "--model", "gpt2:tiny", "--data",
                                          "t.bin", "--steps", "3",         "--print"};
  const auto says = [&](const std::string& strategy, const std::string& message) {
    std::vector<std::string> words = train;
    words.insert(words.end(), {"--strategy", strategy});
    Says(words, "muster: --strategy: expected single, ddp, zero1, zero2, zero3, fsdp or auto, got " + message);
  };
  says("zero4", "\"zero4\"");
  says("fsdpp", "\"fsdpp\", did you mean fsdp?");
}

TEST_F(MistakesTest, AFullAndAReadOnlyDisk) {
  ServeWithANodeHere();
  folder_.Write("train.bin", std::string(1000, '\0'));
  const SmallDisk disk(folder_.path() + "/disk", 1);
  ASSERT_TRUE(disk.ok());
  const std::string file = disk.path() + "/new.yaml";
  disk.Fill();
  const Ended full = Run({"init", file});
  EXPECT_EQ(full.code, 1);
  EXPECT_EQ(full.err, absl::StrCat("muster: cannot write ", file,
                                   ": no space left on the device: remove files, or name a folder on another disk "
                                   "(see df)\n"));
  disk.Free();
  ASSERT_TRUE(disk.MakeReadOnly());
  constexpr char kReadOnly[] =
      ": the file system is read-only: name a folder on another one, or remount it for writing (see mount)\n";
  const Ended refused = Run({"init", file});
  EXPECT_EQ(refused.code, 4);
  EXPECT_EQ(refused.err, absl::StrCat("muster: cannot create ", file, kReadOnly));
  const std::string job = folder_.Write("job.yaml", absl::StrCat(kGoodJob, "checkpoint: {path: disk}\n"));
  IsRefused(job, absl::StrCat(job, ":7:20: checkpoint.path: cannot write to ", disk.path(), kReadOnly));
  EXPECT_THAT(Run({"doctor", "--folder", disk.path()}).out,
              HasSubstr("mounted read-only\n                         -> mount it for writing, or name another folder"));
}

// The trainer would create it on the way, and leave it empty.
TEST_F(MistakesTest, AFolderForCheckpointsByWayOfAFolderThatIsNotThere) {
  ServeWithANodeHere();
  folder_.Write("train.bin", std::string(1000, '\0'));
  std::filesystem::create_directories(folder_.path() + "/there/below");
  std::filesystem::create_symlink("there/below", folder_.path() + "/link");
  const std::string name = std::filesystem::path(std::string(folder_.path())).filename();
  for (const auto& [path, submitted] : std::vector<std::pair<std::string, std::string>>{
           {absl::StrCat("relative/../../", name, "/x"), absl::StrCat("/../", name, "/x")},
           {"a/b/../../x/{job}", "/x/{job}"},
           {"there/../x", "/there/../x"},
           {"link/../{job}", "/link/../{job}"}}) {
    const std::string file = folder_.Write("job.yaml", absl::StrCat(kGoodJob, "checkpoint: {path: \"", path, "\"}\n"));
    const Ended ended = Run({"submit", "-d", file});
    EXPECT_EQ(ended.code, 0) << ended.err;
    EXPECT_EQ(store_.submitted.train().checkpoint().path(), folder_.path() + submitted);
  }
}

TEST_F(MistakesTest, AFolderForCheckpointsThatIsABrokenLink) {
  ServeWithANodeHere();
  folder_.Write("train.bin", std::string(1000, '\0'));
  const std::string link = folder_.path() + "/link";
  std::filesystem::create_symlink("nowhere", link);
  const std::string file = folder_.Write("job.yaml", absl::StrCat(kGoodJob, "checkpoint: {path: link/a/b}\n"));
  IsRefused(file, absl::StrCat(file, ":7:20: checkpoint.path: ", link,
                               " is a broken symbolic link (to nowhere): create what it names, or remove it\n"));
  std::filesystem::create_directory(folder_.path() + "/nowhere");
  EXPECT_EQ(Run({"validate", file}).code, 0);
}

// Creating what the link names would lead to a second refusal.
TEST_F(MistakesTest, AFolderForCheckpointsThatIsALinkIntoAnotherJobsCheckpoint) {
  ServeWithANodeHere();
  folder_.Write("train.bin", std::string(1000, '\0'));
  const std::string target =
      absl::StrCat(std::filesystem::canonical(std::string(folder_.path())).native(), "/runs/a/step-0000000020-g1/mine");
  std::filesystem::create_symlink(target, folder_.path() + "/link");
  const std::string file = folder_.Write("job.yaml", absl::StrCat(kGoodJob, "checkpoint: {path: link}\n"));
  const std::string says = absl::StrCat(
      file, ":7:20: checkpoint.path: ", folder_.path(), "/link (through a symbolic link: ", target,
      ") is in step-0000000020-g1, and only a checkpoint has such a name: name a folder outside of checkpoints\n");
  IsRefused(file, says);
  std::filesystem::create_directories(target);
  IsRefused(file, says);
}

// As the trainer would, after minutes in the queue.
TEST_F(MistakesTest, TokensThatDoNotFitTheModel) {
  ServeWithANodeHere();
  const std::string file =
      folder_.Write("job.yaml", absl::StrReplaceAll(kGoodJob, {{"train.bin", "train.bin, validation: val.bin"}}));
  const std::string tokens = folder_.Write("train.bin", std::string(2, '\0'));
  std::string outside(1000, '\0');
  outside[21] = 1;  // token 10 is 256
  const std::string validation = folder_.Write("val.bin", outside);
  IsRefused(file, absl::StrCat(file, ":5:16: data.tokens: ", tokens,
                               " holds 1 token, but one sample needs 129 (context + 1): use a longer text or a smaller "
                               "model.context\n",
                               file, ":5:39: data.validation: ", validation,
                               ": token 256 at position 10 is not below the vocabulary of 256: the file was made with "
                               "another tokenizer, or model.vocabulary is too small\n"));
  // Without the model they are tokens.
  EXPECT_EQ(Run({"plan", file}).code, 0);
  EXPECT_EQ(Run({"validate", "--offline", file}).code, 0);
}

TEST_F(MistakesTest, DataOfSeveralTokenizers) {
  ServeWithANodeHere();
  const std::string file =
      folder_.Write("job.yaml", absl::StrReplaceAll(kGoodJob, {{"train.bin", "train.bin, validation: val.bin"}}));
  const std::string tokens = folder_.Write("train.bin", std::string(1000, '\0'));
  const std::string validation = folder_.Write("val.bin", std::string(1000, '\0'));
  EXPECT_EQ(Run({"validate", file}).code, 0) << "no record";
  const auto made_with = [&](const std::string& name, const std::string& path, const std::string& sha256) {
    folder_.Write(name + ".tokenizer.json", absl::StrCat(R"({"path": ")", path, R"(", "sha256": ")", sha256,
                                                         R"(", "token_file_bytes": "1000"})"));
  };
  made_with("train.bin", "/a", "0123456789");
  EXPECT_EQ(Run({"validate", file}).code, 0) << "of one";
  made_with("val.bin", "/copy/of/a", "0123456789");
  EXPECT_EQ(Run({"validate", file}).code, 0);
  made_with("val.bin", "/b", "abcdefabcd");
  IsRefused(file,
            absl::StrCat(file, ":5:39: data.validation: ", validation,
                         " was made with the tokenizer /b (sha256 abcdefab), but ", tokens,
                         " with the tokenizer /a (sha256 01234567): the same ids mean different text; prepare it with "
                         "the other one, or, if their ids are the same, remove ",
                         validation, ".tokenizer.json\n"));
}

TEST_F(MistakesTest, FoldersWithNothingToStartFrom) {
  ServeWithANodeHere();
  folder_.Write("train.bin", std::string(1000, '\0'));
  const std::string empty = folder_.path() + "/empty";
  std::filesystem::create_directory(empty);
  const std::string resumes = folder_.Write("a.yaml", absl::StrCat(kGoodJob, "checkpoint: {resume_from: empty}\n"));
  IsRefused(resumes,
            absl::StrCat(resumes, ":7:27: checkpoint.resume_from: ", empty, " is not a checkpoint and holds none\n"));
  const std::string from =
      folder_.Write("b.yaml", absl::StrReplaceAll(kGoodJob, {{"size: tiny", "size: tiny, from: empty"}}));
  IsRefused(
      from,
      absl::StrCat(
          from, ":4:41: model.from: ", empty,
          " has no config.json: expected a Hugging Face model, a folder with config.json and model.safetensors\n"));
  // A job that it waits for writes there.
  PutJob("first-0001", v1::JOB_STATE_RUNNING);
  const Ended waits = Run({"submit", "-d", resumes, "--after", "first-0001"});
  EXPECT_EQ(waits.code, 0) << waits.err;
}

TEST_F(MistakesTest, TokensThatAreNone) {
  ServeWithANodeHere();
  const std::string file = folder_.Write("job.yaml", kGoodJob);
  const std::string tokens = folder_.Write("train.bin", std::string(100, 'a'));
  IsRefused(file, absl::StrCat(file, ":5:16: data.tokens: ", tokens,
                               " is plain text (muster data prepare makes tokens of it); expected token ids: nanoGPT's "
                               "headerless uint16, llm.c's with its header, or Megatron's .idx and .bin\n"));
}

TEST_F(MistakesTest, ImagesThatAreNone) {
  ServeWithANodeHere();
  const std::string file = folder_.Write(
      "job.yaml", absl::StrReplaceAll(kGoodJob, {{"gpt2, size: tiny", "resnet, depth: 8"},
                                                 {"tokens: train.bin", "images: train.bin, validation: val.txt"}}));
  const std::string images = folder_.Write("train.bin", std::string(1000, '\0'));
  const std::string validation = folder_.Write("val.txt", "not an image\n");
  const auto is_no_image = [](const std::string& path, const std::string& bytes) {
    return absl::StrCat(path, " has ", bytes, " bytes, which is neither CIFAR-10 (3073 bytes a record: 0 records and ",
                        bytes, " bytes) nor CIFAR-100 (3074: 0 records and ", bytes,
                        " bytes): it was cut, or it lacks its ", path, ".json, which describes other images\n");
  };
  IsRefused(file, absl::StrCat(file, ":5:16: data.images: ", is_no_image(images, "1000"),  //
                               file, ":5:39: data.validation: ", is_no_image(validation, "13")));
}

TEST_F(MistakesTest, ImagesThatDoNotFitTheModel) {
  ServeWithANodeHere();
  const std::string file = folder_.Write(
      "job.yaml", absl::StrReplaceAll(kGoodJob, {{"gpt2, size: tiny", "resnet, depth: 8"},
                                                 {"tokens: train.bin", "images: train.bin, validation: val.bin"}}));
  const std::string images = folder_.Write("train.bin", std::string(3073, '\x0a'));
  folder_.Write("val.bin.json", R"({"format": "muster-images", "version": 1, "images": 1, "channels": 1, "height": 2,
      "width": 3, "label_bytes": 1, "classes": 10, "class_names": []})");
  const std::string validation = folder_.Write("val.bin", std::string(7, '\0'));
  IsRefused(file, absl::StrCat(file, ":5:16: data.images: ", images,
                               ": label 10 of record 0 is not below the number of classes, 10: the file is of another "
                               "data set, or the model has too few classes\n",
                               file, ":5:39: data.validation: ", validation,
                               " has images of 1 x 2 x 3 (channels, height, width), the model reads 3 x 32 x 32\n"));
  EXPECT_EQ(Run({"validate", file, "--set", "model.classes=11", "--set", "data.validation=" + images}).code, 0);
}

TEST_F(MistakesTest, TensorsThatTheModelCannotRead) {
  ServeWithANodeHere();
  const std::string file = folder_.Write("job.yaml", R"(apiVersion: muster/v1
kind: Job
name: a
model:
  family: custom
  library: libmine.so
  task: {name: tensors, tensors: [{name: user, type: float, shape: [2], input: true}], targets_per_sample: 1}
  units: [{name: all, kind: custom.modules, tensors: [{name: all.weight, shape: [8], init: {kind: zeros}}]}]
data: {tensors: train.safetensors, validation: val.safetensors}
steps: 10
)");
  folder_.Write("libmine.so", "");
  const auto tensors = [](const std::string& header, uint64_t bytes) {
    const std::string length(1, static_cast<char>(header.size()));
    return length + std::string(7, '\0') + header + std::string(bytes, '\0');
  };
  const std::string fit = tensors(R"({"user":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}})", 8);
  const std::string wide = tensors(R"({"user":{"dtype":"F32","shape":[1,3],"data_offsets":[0,12]}})", 12);
  const std::string train = folder_.Write("train.safetensors", wide);
  const std::string validation = folder_.Write("val.safetensors", "none");
  IsRefused(file, absl::StrCat(file, ":9:17: data.tensors: ", train,
                               ": the tensor \"user\" has the shape [1, 3], the model reads [samples, 2]\n", file,
                               ":9:48: data.validation: ", validation, ": too short for a safetensors file\n"));
  folder_.Write("train.safetensors", fit);
  folder_.Write("val.safetensors", fit);
  EXPECT_EQ(Run({"validate", file}).code, 0);
}

TEST_F(MistakesTest, InterruptedPreparationLeavesNoFile) {
  const std::string out = folder_.path() + "/train.bin";
  const auto files = [&] {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
      if (absl::StrContains(entry.path().filename().string(), "train.bin")) names.push_back(entry.path());
    }
    return names;
  };
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    Program program(
        {"/bin/sh", "-c",
         absl::StrCat("(echo text; exec sleep 60) | exec ", ProgramPath("cli/muster"), " data prepare - ", out)},
        environment_);
    ASSERT_TRUE(Eventually([&] { return files().size() == 1; })) << "it has begun";
    // The pipeline's second process is the program: its parent is the shell.
    const Ended found = RunToEnd({"/bin/sh", "-c", absl::StrCat("pgrep -P ", program.pid(), " muster")}, {});
    ASSERT_EQ(found.code, 0);
    ASSERT_EQ(kill(std::stoi(found.out), signal), 0);
    EXPECT_TRUE(Eventually([&] { return files().empty(); })) << "signal " << signal;
  }
}

TEST_F(MistakesTest, AFileThatExistsHasARemedy) {
  const std::string text = folder_.Write("text.txt", "hello"), out = folder_.Write("train.bin", "old");
  Says({"data", "prepare", text, out},
       absl::StrCat("muster: ", out, " exists already; name another file, or use --force"));
}

TEST_F(MistakesTest, TheDoctorLooksForTheFolderItself) {
  const Ended ended = Run({"doctor", "--folder", "/nonexistent"});
  EXPECT_EQ(ended.code, 1);
  EXPECT_TRUE(absl::StrContains(ended.out, "/nonexistent: No such file or directory\n")) << ended.out;
  EXPECT_TRUE(absl::StrContains(ended.out, "-> mkdir -p /nonexistent")) << ended.out;
  const Ended kernel = Run({"doctor", "--folder", "/proc/x"});
  EXPECT_EQ(kernel.code, 1);
  EXPECT_TRUE(absl::StrContains(kernel.out, "/proc/x: the kernel provides /proc, where no files can be created\n"))
      << kernel.out;
  EXPECT_FALSE(absl::StrContains(kernel.out, "mkdir")) << kernel.out;
  Says({"doctor", "--folder", ""}, "muster: --folder is empty");
  const std::string link = folder_.path() + "/link";
  std::filesystem::create_symlink("nowhere", link);
  const Ended broken = Run({"doctor", "--folder", link});
  EXPECT_EQ(broken.code, 1);
  EXPECT_TRUE(absl::StrContains(broken.out, link + " is a broken symbolic link (to nowhere): create what it names"))
      << broken.out;
  EXPECT_FALSE(absl::StrContains(broken.out, "mkdir")) << "it would fail: " << broken.out;
}

}  // namespace
}  // namespace muster::cli
