// Completion of an unfinished command line, by the function itself and by real shells.
#include "cli/completion.h"

#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cli/app.h"
#include "cli/testing/muster_fixture_test.h"
#include "testing/wait.h"

namespace muster::cli {
namespace {

std::string CompleteWords(const std::vector<std::string>& words) {
  Invocation invocation;
  const auto app = BuildApp(invocation);
  const Completion completion = Complete(*app, words, [](Named what) -> std::vector<Candidate> {
    if (what == Named::kNodes) return {{"node-a", "live"}};
    if (what == Named::kTemplates) return {{"base", "ann"}};
    if (what == Named::kLiveJobs) return {{"tiny-aaaa", "running"}, {"wide-cccc", "queued"}};
    return {{"tiny-aaaa", "running"}, {"tiny-bbbb", "failed"}, {"wide-cccc", "queued"}};
  });
  std::string text = absl::StrJoin(completion.candidates, " ",
                                   [](std::string* out, const Candidate& c) { absl::StrAppend(out, c.text); });
  return absl::StrCat(text, completion.files ? " FILES" : "");
}

TEST(Complete, CommandsOptionsAndNames) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"pl"}, "plan"},
      {{"und"}, "undrain"},
      {{"local", "u"}, "up"},
      {{"watch", "t"}, "tiny-aaaa tiny-bbbb"},
      {{"pause", "t"}, "tiny-aaaa"},
      {{"cancel", "tiny-aaaa", ""}, "@last tiny-aaaa wide-cccc"},
      {{"pause", "tiny-aaaa", "w"}, "wide-cccc"},
      {{"watch", "@"}, "@last"},
      {{"watch", "tiny-aaaa", ""}, ""},
      {{"drain", ""}, "node-a"},
      {{"ps", "-o", "j"}, "json"},
      {{"ps", "--output", "=", "y"}, "yaml"},
      {{"ps", "-o", "json", "--wa"}, "--watch"},
      {{"ps", "--wat"}, "--watch"},
      {{"ps", "--he"}, "--help"},
      {{"describe", "--addr"}, "--address"},
      {{"--address", "unix:/x", "describe", "wi"}, "wide-cccc"},
      {{"--address", "pl"}, " FILES"},
      {{"submit", ""}, " FILES"},
      {{"train", "--data", "x"}, " FILES"},
      {{"completion", "z"}, "zsh"},
      {{"nonsense", "x"}, ""},
      {{"ps", "--state", "qu"}, "queued"},
      {{"ps", "--state", "queued,fa"}, "queued,failed"},
      {{"events", "--type", "job.fa"}, "job.failed"},
      {{"events", "--type", "rank,store"}, "rank,store rank,store.restored"},
      {{"help", "pl"}, "plan"},
      {{"help", "data", "prepare-i"}, "prepare-images"},
      {{"help", "ps", ""}, ""},
      {{"help", "nonsense", ""}, ""},
      // Neither names nor paths.
      {{"ps", "--timeout", ""}, ""},
      {{"ps", "--user", ""}, ""},
      {{"run", "--ranks", ""}, ""},
      {{"eval", "x", ""}, " FILES"},
      {{"run", "--workdir", ""}, " FILES"},
      {{"sample", "--prompt", ""}, ""},
      {{"train", "--model", "gpt2:t"}, "gpt2:tiny"},
      {{"train", "--model", "resn"}, "resnet"},
      {{"train", "--strategy", "z"}, "zero1 zero2 zero3"},
      {{"train", "--strategy", "a"}, "auto"},
      {{"train", "--size", "s"}, "small"},
      {{"train", "--device", "c"}, "cpu cuda"},
      {{"bench", "--strategies", "ddp,z"}, "ddp,zero1 ddp,zero2 ddp,zero3"},
      {{"bench", "--collectives", "all_r"}, "all_reduce"},
      {{"plan", "--hardware", "h"}, "h100 h200"},
      {{"bench", "--hardware", "c"}, "cpu cpu-bf16"},
      {{"plan", "--memory", ""}, ""},
      {{"submit", "--array", "precision.compute=b"}, "precision.compute=bf16"},
      {{"submit", "--array", "precision.compute=fp32,b"}, "precision.compute=fp32,bf16"},
      {{"submit", "--array", "precision.compute", "=", "fp32,b"}, "fp32,bf16"},
      {{"sweep", "--random", "optimizer.lr_schedule.w"}, "optimizer.lr_schedule.warmup_steps="},
      {{"top", "--sort", "to"}, "tokens"},
      {{"submit", "--set", "optimizer.lr_schedule.w"}, "optimizer.lr_schedule.warmup_steps="},
      {{"submit", "--set", "strategy.k"}, "strategy.kind="},
      {{"submit", "--set", "precision.compute=b"}, "precision.compute=bf16"},
      {{"submit", "--set", "precision.compute", "=", "b"}, "bf16"},
      {{"submit", "--set", "optimizer.lr", "=", ""}, ""},
      {{"submit", "--set", "pipeline.cut="}, "pipeline.cut=auto"},
      {{"plan", "a.yaml", "--sch"}, "--schedule"},
      {{"submit", "--template", "b"}, "base"},
      {{"templates", "s"}, "set show"},
      {{"templates", "show", ""}, "base"},
      {{"templates", "set", "base", ""}, " FILES"},
  };
  for (const auto& [words, expected] : cases) EXPECT_EQ(CompleteWords(words), expected) << absl::StrJoin(words, " ");
  EXPECT_TRUE(absl::StrContains(CompleteWords({""}), "submit"));
  EXPECT_TRUE(absl::StrContains(CompleteWords({}), "submit"));
}

class ShellTest : public MusterTest {
 protected:
  ShellTest() {
    PutJob("tiny-aaaa", v1::JOB_STATE_RUNNING);
    PutJob("tiny-bbbb", v1::JOB_STATE_FAILED);
    Serve();
    folder_.Write("muster", absl::StrCat("#!/bin/sh\nexec ", ProgramPath("cli/muster"), " \"$@\"\n"), true);
    folder_.Write("tiny file.yaml", "");
    environment_["PATH"] = absl::StrCat(folder_.path(), ":/usr/bin:/bin");
  }
  bool Has(const std::string& shell) const { return access(absl::StrCat("/usr/bin/", shell).c_str(), X_OK) == 0; }
  Ended Shell(const std::string& shell, const std::string& script) const {
    return RunToEnd({"/usr/bin/" + shell, folder_.Write("script", script)}, environment_);
  }
  // Waits for names of jobs in what it prints: a completion asks the coordinator for at most a second, and on a busy
  // machine that is not enough.
  Ended ShellWithNames(const std::string& shell, const std::string& script) const {
    Ended ran;
    Eventually([&] {
      ran = Shell(shell, script);
      return absl::StrContains(ran.out, "tiny-bbbb");
    });
    return ran;
  }
};

TEST_F(ShellTest, Bash) {
  // As bash does when TAB is pressed after the words.
  const Ended ran = ShellWithNames("bash", absl::StrCat("cd ", folder_.path(), R"(
source <(muster completion bash) || exit 1
complete -p muster || exit 2
try() { COMP_WORDS=(muster "$@"); COMP_CWORD=$#; _muster; (IFS='|'; echo "<${COMPREPLY[*]}>"); }
try pau
try pause t
try submit 'tiny f'
try ps -o js
try watch nosuch
try train --model gpt2 : t
try train --model llama : 7
try --address unix : /nowhere --strategy
)"));
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(ran.out.substr(ran.out.find('<')),
            "<pause>\n<tiny-aaaa|tiny-bbbb>\n<tiny file.yaml>\n<json>\n<>\n<tiny>\n<70b>\n<>\n");
}

TEST_F(ShellTest, BashIsNotHeldUpByACoordinatorThatIsAway) {
  coordinator_.reset();
  const Ended ran = Run({"__complete", "pause", ""});
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(ran.out, "@last\tthe newest job from here\n");
  EXPECT_EQ(ran.err, "");
}

// zsh and fish are tested where they are installed; their scripts only call what the tests above check.
TEST_F(ShellTest, Zsh) {
  ASSERT_TRUE(Has("zsh")) << "tools/setup.sh test installs it";
  // The completion system needs a terminal; stubs replace its two entry points.
  const Ended ran = ShellWithNames("zsh", absl::StrCat("cd ", folder_.path(), R"(
compdef() { echo "compdef $*" }
_describe() { print -l -- "${(@P)3}" }
_files() { echo FILES }
muster completion zsh > script.zsh && source ./script.zsh || exit 1
try() { local -a words=(muster "$@"); local CURRENT=$#words; _muster }
try pau
try pause t
try submit ''
try watch nosuch
)"));
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(ran.out,
            "compdef _muster muster\n"
            "pause:Checkpoint and stop a job, and keep it out of the queue until resume\n"
            "tiny-aaaa:running\ntiny-bbbb:failed\nFILES\n")
      << ran.err;
}

TEST_F(ShellTest, Fish) {
  ASSERT_TRUE(Has("fish")) << "tools/setup.sh test installs it";
  const Ended ran = ShellWithNames("fish", absl::StrCat("cd ", folder_.path(), R"(
muster completion fish | source; or exit 1
complete -C 'muster pau'
complete -C 'muster pause t'
complete -C 'muster submit tiny'
)"));
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(ran.out,
            "pause\tCheckpoint and stop a job, and keep it out of the queue until resume\n"
            "tiny-aaaa\trunning\ntiny-bbbb\tfailed\n"
            "tiny file.yaml\n")
      << ran.err;
}

}  // namespace
}  // namespace muster::cli
