// What users type by mistake, against a real service: text and exit code. cli/mistakes_test.cc has those that need a
// coordinator in a certain state.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "testing/temporary_folder.h"
#include "tests/docs/typed.h"

namespace muster::docs {
namespace {

struct Mistake {
  std::string typed;
  int exit_code;
  std::string says;   // a part of what is printed
  std::string never;  // a part that may not be; empty: any
};

constexpr char kJob[] = R"(apiVersion: muster/v1
kind: Job
name: done
model: {family: gpt2, size: tiny}
data: {tokens: train.bin}
batch: {sequences: 8}
steps: 5
)";

// A port that something listens on, in $port, and a command after it.
std::string WithATakenPort(const std::string& command) {
  return absl::StrCat(
      "rm -f port; python3 -c 'import socket,time; s=socket.socket(); s.bind((\"127.0.0.1\",0)); s.listen(); "
      "print(s.getsockname()[1],flush=True); time.sleep(600)' > port & holder=$!\n"
      "until [ -s port ]; do read -rt 0.1 <> <(:) || true; done; port=$(cat port)\n"
      "code=0; ",
      command, " || code=$?\nkill $holder; exit $code");
}

const std::vector<Mistake>& Mistakes() {
  static const auto& mistakes = *new std::vector<Mistake>{
      // Commands, flags and their values.
      {"muster -x", 2, "muster: unknown option -x\nsee: muster --help\n", ""},
      {"muster sumbit job.yaml", 2, "muster: unknown command sumbit, did you mean submit?", ""},
      {"muster import --help", 2,
       "muster: unknown command import, did you mean checkpoint import?\nsee: muster --help\n", ""},
      {"muster help import", 2, "muster: unknown command import, did you mean checkpoint import?", ""},
      {"muster help sumbit", 2, "muster: unknown command sumbit, did you mean submit?", ""},
      {"muster watch", 2, "muster: JOB is required\nsee: muster watch --help\n", ""},
      {"muster undrain", 2, "muster: NODE is required", ""},
      {"muster ps --timeout 0s", 2, "muster: --timeout: invalid duration 0s: must be greater than 0", ""},
      {"MUSTER_TIMEOUT=abc muster ps", 2, "muster: MUSTER_TIMEOUT: invalid duration \"abc\": use 30s", ""},
      {"muster sample done --prompt a --tokens -5", 2, "muster: --tokens: must be a number from 1 to 1048576, got -5",
       ""},
      {"muster eval done train.bin --sequences 0", 2, "muster: --sequences: must be a number of at least 1, got 0", ""},
      {"muster completion tcsh", 2, "there is no completion for \"tcsh\": bash, zsh or fish", ""},
      {"muster logs done --since yesterday", 2, "write how long ago (10m, 2h, 7d) or a time", ""},
      {"muster plan job.yaml --hardware h200x", 2,
       "muster: --hardware: \"h200x\" is unknown; known: h100, h200, a100, cpu, cpu-bf16, rtx4090\n", ""},
      {"muster bench job.yaml --hardware h200x", 2, "muster: --hardware: \"h200x\" is unknown; known: h100, ", ""},
      {"muster-step --help", 0, "usage: muster-step RANKDIR\n", ""},
      {"muster-coordinator --state-dir c --listen unix:$HOME/z/c.sock --detection 0s", 2,
       "muster-coordinator: --detection: invalid duration \"0s\": use 500ms, 30s or 10m, greater than 0\n", "105"},
      {"muster-worker --coordinator 127.0.0.1:1 --state-dir w --run-dir r --join-token nofile", 1, "nofile", ""},
      {"muster-worker --coordinator unix:/none --state-dir w --run-dir r --join-token nofile", 1, "nofile", ""},
      {"muster-worker --coordinator nonsense --state-dir w --run-dir r", 1,
       "muster-worker: --coordinator: invalid coordinator address nonsense: use unix:/path or host:port", "--host"},
      {WithATakenPort(
           "muster-coordinator --state-dir c --listen unix:$HOME/z/c.sock --metrics-address 127.0.0.1:$port"),
       1, "already in use", ""},
      // The coordinator knows nothing of the node.
      {WithATakenPort("muster-worker --coordinator unix:$HOME/r/coordinator.sock --state-dir w --run-dir r2 "
                      "--metrics-address 127.0.0.1:$port"),
       1, "already in use", ""},
      {"test $(muster nodes | wc -l) = 2", 0, "", ""},
      {"muster local up --nodes 3", 2, "the service is running with 1 node, not 3: to change that, muster local down",
       ""},
      {"muster local up --slots 1", 2, "node-0 is running with 2 slots, not 1: to change that, muster local down", ""},
      {"muster coordinator init --state-dir init --host 127.0.0.1", 0,
       "on each machine that runs ranks, with join.token (valid for an hour, for any number of machines):\n", "GPUs"},
      {"muster --address nowhere ps", 2, "invalid coordinator address nowhere: use unix:/path or host:port", ""},
      {"muster --address http://127.0.0.1:7070 ps", 2, "leave out http://: write host:port", "IPv6"},
      {"muster squeue", 2, "muster: unknown command squeue, did you mean ps?", ""},
      {"muster train --model gpt2:tiny --data train.bin --steps 3 --strategy zero4", 2,
       "--strategy: expected single, ddp, zero1, zero2, zero3, fsdp or auto, got \"zero4\"\n", "must be 1, 2 or 3"},
      {"muster train --model resnet:18 --images x --steps 3", 2,
       "muster: --model: resnet has no sizes: use --model resnet with --set model.depth=...\n", "belongs to"},
      {"muster train --model :tiny --data train.bin --steps 3", 2,
       "muster: --model: is empty: write gpt2, llama, resnet or custom\n", "--name"},
      {"muster validate job.yaml --set offload.optimizer=true --set offload.to=/nofolder", 2,
       "offload.to: no such folder: /nofolder", ""},
      {"muster --address 127.0.0.1:1 ps", 3, "cannot reach the coordinator at 127.0.0.1:1: is it running", ""},
      // Names.
      {"muster describe ''", 2, "muster: JOB is empty: give its id, a unique prefix of it, or @last", ""},
      {"unset out; muster backup \"${out:-}\"", 2, "muster: FILE is empty", ""},
      {"muster describe nojob", 2, "muster: no job nojob; see: muster ps -a", ""},
      {"muster describe $'\\xff'", 2, "muster: JOB is not UTF-8: \\xff\nsee: muster describe --help\n", "libprotobuf"},
      {"mkdir -p $'d\\xff'; cd $'d\\xff'; muster run -- true", 2, "d\\xff is not UTF-8: rename it", "libprotobuf"},
      {"cd $'d\\xff'; muster backup b.db", 2, "d\\xff/b.db", "libprotobuf"},
      {"muster cancel b", 2, "muster: no job b; see: muster ps -a", ""},
      {"muster drain nonode", 2, "muster: no node \"nonode\"; see: muster nodes", ""},
      {"muster logs done --rank 7", 2, "--rank 7: done-", ""},
      // Job files.
      {"muster submit nofile.yaml", 2, "muster: cannot open nofile.yaml: No such file or directory", ""},
      {"muster submit -d -f job.yaml --set stepz=3", 2, "muster: --set stepz: unknown field, did you mean steps?", ""},
      {"muster submit -d job.yaml --array lr=1,2", 2, "muster: --array lr: unknown field, did you mean optimizer.lr?",
       "--set"},
      {"muster sweep s job.yaml --random lr=1..2 --trials 2", 2,
       "muster: --random lr: unknown field, did you mean optimizer.lr?", "--set"},
      {"printf 'name: a\\nafter: [b\\n' > broken.yaml; muster validate broken.yaml", 2,
       "broken.yaml:2:8: this [ is not closed\n", "bad syntax"},
      {"muster validate job.yaml --set 'steps=[1,2'", 2, "muster: --set steps: this [ is not closed\n", "expected"},
      {"muster validate job.yaml --set parallel.kind=x", 2, "muster: --set parallel.kind: unknown field\n", "mean"},
      {"muster validate job.yaml --set checkpoint.path=runs/{nam}", 2, "did you mean {name}?", ""},
      {"muster validate job.yaml --set data.path=x", 2, "did you mean data.tokens?", ""},
      {"muster validate job.yaml --set resources.gpus=2", 2, "did you mean resources.ranks?", ""},
      {"muster validate job.yaml --set optimizer.lr_schedule.kind=cos", 2, "did you mean cosine?", ""},
      {"muster validate job.yaml --set optimizer.kind=adam --set optimizer.beta2=1.5 --set model.family=gtp2 "
       "--set model.heads=3",
       2,
       "did you mean adamw?\nmuster: --set model.heads: 3 does not divide width 128\n"
       "muster: --set optimizer.beta2: must be at least 0 and less than 1, got 1.5\n",
       ""},
      {"muster validate job.yaml --set model.size=tinny --set model.heads=3", 2,
       "did you mean tiny?\nmuster: --set model.heads: 3 does not divide width 128\n", ""},
      {"muster validate job.yaml --set resources.device=tpu", 2, "expected auto, cpu or cuda, got", ""},
      {"muster validate job.yaml --set steps=18446744073709551615", 2,
       "steps: must be 1 to 1000000000000, got 18446744073709551615", ""},
      {"muster validate job.yaml --set steps=0", 2, "steps: must be 1 to 1000000000000, got 0", ""},
      {"muster validate job.yaml --set steps=-1", 2, "steps: must be 1 to 1000000000000, got -1", ""},
      {"muster validate job.yaml --set checkpoint.path=/proc/x", 2, "cannot create folders in /proc", ""},
      {"muster validate job.yaml --set checkpoint.path=runs/x/step-0000000020-g1/in", 2,
       "/runs/x/step-0000000020-g1/in is in step-0000000020-g1, and only a checkpoint has such a name", "valid\n"},
      {"muster submit -d job.yaml --set checkpoint.path=runs/x/step-0000000020-g1/in", 2,
       "/runs/x/step-0000000020-g1/in is in step-0000000020-g1, and only a checkpoint has such a name", ""},
      {"muster validate job.yaml --set data.tokens=nofile.bin", 2, "no such file: ", ""},
      {"muster validate job.yaml --set name=UPPER", 2, "invalid job name \"UPPER\": use a-z, 0-9 and -", ""},
      {"muster submit -d job.yaml --set name=wide --set strategy=ddp --set resources.ranks=100", 0,
       "92 of 100 ranks are idle in every step", ""},
      {"muster validate job.yaml --set strategy=ddp --set resources.ranks=9", 0,
       "job.yaml: note: 1 of 9 ranks is idle in every step", ""},
      {"muster describe wide", 0, "can never start on these nodes: needs 100 slots", ""},
      {"muster submit -d job.yaml --set name=gpu --set resources.device=cuda", 0,
       "can never start on these nodes: needs 1 slot on cuda; no node has a GPU (the nodes have ", ""},
      {"muster cancel wide gpu", 0, "cancelled", "was cancelled"},
      // Of the two jobs `done`, the one that can be cancelled.
      {"muster submit -d job.yaml --set steps=1000000 && muster cancel done", 0, "", "matches"},
      {"muster plan job.yaml --memory 80GB", 0, "74.5 GiB", "80 GiB"},
      // A cause that does not pass: no restart, and printed once, as the reason.
      {"ln -s \"$(ls runs | grep -m1 ^done-)\" runs/alias; "
       "muster submit -f job.yaml --set checkpoint.path=runs/alias > printed 2>&1 || "
       "{ code=$?; echo causes: $(grep -c 'belongs to job' printed); cat printed; exit $code; }",
       1, "causes: 1\n", "generation 2"},
      {"printf xy > one.bin; muster submit job.yaml --set data.tokens=one.bin", 2,
       "holds 1 token, but one sample needs 129", ""},
      {"printf x > cut.bin; muster submit job.yaml --set data.tokens=cut.bin", 2, "has 1 byte, an odd number", ""},
      // Files.
      {"muster data prepare book.txt train.bin", 2, "train.bin exists already; name another file, or use --force", ""},
      {"muster submit train.bin", 2, "train.bin:1:2: is not text", "control character"},
      {"muster data prepare book.txt", 2, "muster: OUT is required", ""},
      {"muster data prepare train.bin q.bin", 2, "muster: train.bin is a token file, not text\n", "tokens"},
      {"muster export nowhere out", 2, "muster: no job nowhere", ""},
      {"muster eval nowhere train.bin", 2, "muster: no job nowhere", ""},
      {"muster checkpoint import nowhere out", 2,
       "muster: nowhere is not a folder: expected a Hugging Face model, a folder with config.json and "
       "model.safetensors",
       "No such file"},
      {"muster checkpoint import runs out", 2, "muster: runs has no config.json: expected a Hugging Face model", ""},
      {"muster checkpoint verify nowhere", 2, "muster: no job nowhere", ""},
      {"muster doctor --folder /nonexistent", 1, "-> mkdir -p /nonexistent", ""},
      {"muster doctor --folder /proc/x", 1, "/proc/x: the kernel provides /proc", "mkdir"},
      {"muster backup nofolder/x.db", 2, "/nofolder; name a file in a folder that exists on the coordinator's machine",
       "INTERNAL"},
      // The entry of that backup.
      {"muster audit --method Backup --tail 1", 0, "NOT_FOUND: cannot create ", "INTERNAL"},
      {"muster data prepare book.txt nofolder/x.bin", 2, "cannot create nofolder/x.bin: there is no folder nofolder",
       ".new"},
      {"muster data prepare book.txt /proc/x", 2, "cannot create /proc/x: nothing can be created in /proc", ".new"},
      {"muster init nofolder/job.yaml", 2, "cannot create nofolder/job.yaml: there is no folder nofolder", ""},
  };
  return mistakes;
}

TEST(Mistakes, AreAnsweredWithWhatToDo) {
  const TemporaryFolder folder;
  for (const char* name : {"/home", "/bin"}) std::filesystem::create_directories(folder.path() + name);
  CopyPrograms(folder.path() + "/bin");
  Machine machine(folder.path() + "/home", folder.path() + "/bin");
  machine.Save("job.yaml", kJob);
  const Machine::Typed ready = machine.Type(
      "cp /usr/share/common-licenses/GPL-3 book.txt\nmuster data prepare book.txt train.bin\n"
      "muster local up --slots 2\nmuster submit -f job.yaml\n");
  ASSERT_EQ(ready.exit_code, 0) << ready.output;
  for (const Mistake& mistake : Mistakes()) {
    const Machine::Typed typed = machine.Type(mistake.typed + "\n");
    EXPECT_EQ(typed.exit_code, mistake.exit_code) << mistake.typed << "\n" << typed.output;
    EXPECT_TRUE(absl::StrContains(typed.output, mistake.says)) << mistake.typed << "\n" << typed.output;
    if (mistake.never.empty()) continue;
    EXPECT_FALSE(absl::StrContains(typed.output, mistake.never)) << mistake.typed << "\n" << typed.output;
  }
}

// A daemon that died differs from one that was stopped.
TEST(Mistakes, AServiceThatDied) {
  const TemporaryFolder folder;
  for (const char* name : {"/home", "/bin"}) std::filesystem::create_directories(folder.path() + name);
  CopyPrograms(folder.path() + "/bin");
  Machine machine(folder.path() + "/home", folder.path() + "/bin");
  ASSERT_EQ(machine.Type("muster local up\nmuster local status\n").exit_code, 0);
  const Machine::Typed dead = machine.Type(
      "pid=$(cut -d' ' -f1 ~/s/muster/local/worker-0.pid)\n"
      "kill -9 $pid; for i in $(seq 1000); do [ -d /proc/$pid ] || break; sleep 0.05; done\n"
      "muster local status\n");
  EXPECT_EQ(dead.exit_code, 1) << dead.output;
  EXPECT_TRUE(absl::StrContains(dead.output, "worker-0 is dead: see the log, then start again with: muster local up"))
      << dead.output;
  EXPECT_EQ(machine.Type("muster local up && muster local down\n").exit_code, 0);
  EXPECT_TRUE(absl::StrContains(machine.Type("muster local down\n").output, "nothing is running"));
}

}  // namespace
}  // namespace muster::docs
