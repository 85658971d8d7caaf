// Every example of a help page, run against a real service: it must work as printed.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "tests/cluster/cluster.h"

namespace muster::cluster {
namespace {

namespace fs = std::filesystem;

// Examples that run until Ctrl-C.
bool IsEndless(const std::string& line) {
  return absl::StrContains(line, "ps --watch") || absl::StrContains(line, "events -f");
}

// Commands that change a job: each of their examples gets its own job.
const std::set<std::string>& Steering() {
  static const auto& names =
      *new std::set<std::string>{"cancel", "delete", "pause", "resume", "trace", "checkpoint now"};
  return names;
}

// A GPT-2 vocabulary of the single bytes: printable ones map to themselves, the others to U+0100 and on.
std::string ByteVocabulary() {
  nlohmann::ordered_json vocabulary;
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool prints = (byte > 32 && byte < 127) || (byte > 160 && byte != 173);
    const int point = prints ? byte : next++;
    std::string symbol(1, static_cast<char>(point));
    if (point >= 0x80) symbol = {static_cast<char>(0xC0 | point >> 6), static_cast<char>(0x80 | (point & 0x3F))};
    vocabulary[symbol] = byte;
  }
  vocabulary["<|endoftext|>"] = 256;
  return vocabulary.dump();
}

class ExamplesTest : public ::testing::Test {
 protected:
  ExamplesTest() {
    EXPECT_EQ(cluster_.Muster({"coordinator", "init", "--state-dir", cluster_.folder() + "/c"}).exit_code, 0);
    cluster_.coordinator_flags = {"--web-address", "127.0.0.1:0"};  // for `muster ui`
    cluster_.StartCoordinator();
    EXPECT_EQ(cluster_.Muster({"coordinator", "token", "create", "--role", "worker"}).exit_code, 0);
    const std::string tokens = cluster_.Muster({"coordinator", "token", "ls", "-o", "name"}).out;
    token_ = tokens.substr(0, tokens.find('\n'));
    cluster_.worker_flags = {"--exec-jobs", "on"};
    cluster_.StartWorker(0, 2);
    job_ = cluster_.Submit({.name = "gpt2-tiny", .steps = 20});
    EXPECT_TRUE(cluster_.WaitForState(job_, "completed"));
    last_ = cluster_.folder() + "/state/muster/last";
    fs::copy_file(last_, last_ + ".kept");
    node_ = std::string(absl::StripSuffix(cluster_.Muster({"nodes", "-o", "name"}).out, "\n"));
  }

  std::vector<std::string> Words(const std::vector<std::string>& unfinished) {
    std::vector<std::string> arguments = {"__complete"};
    arguments.insert(arguments.end(), unfinished.begin(), unfinished.end());
    std::vector<std::string> words;
    for (const std::string& line :
         std::vector<std::string>(absl::StrSplit(cluster_.Muster(arguments).out, '\n', absl::SkipEmpty()))) {
      if (line[0] != ':') words.push_back(line.substr(0, line.find('\t')));
    }
    return words;
  }

  // The lines below "Example:" of a help page.
  std::vector<std::string> ExamplesOf(const std::vector<std::string>& command) {
    std::vector<std::string> arguments = command;
    arguments.push_back("--help");
    const std::string page = cluster_.Muster(arguments).out;
    std::vector<std::string> examples;
    const size_t at = page.find("\nExample:\n");
    if (at == std::string::npos) return examples;
    for (const std::string& line : std::vector<std::string>(absl::StrSplit(page.substr(at + 10), '\n'))) {
      if (!absl::StartsWith(line, "  ")) break;
      examples.push_back(line.substr(2));
    }
    return examples;
  }

  // A folder with the files that examples name.
  std::string MakeFolder() {
    const std::string folder = absl::StrCat(cluster_.folder(), "/x", count_++);
    for (const char* name : {"", "/jobs", "/runs", "/shards"}) fs::create_directories(folder + name);
    const std::string spec = cluster_.WriteJob({.name = "gpt2-tiny", .steps = 20, .checkpoints = "out/{job}"});
    fs::copy_file(spec, folder + "/job.yaml");
    fs::copy_file(spec, folder + "/jobs/job.yaml");
    fs::copy_file(spec, folder + "/base.yaml");
    std::ofstream(folder + "/train.py") << "print('hello')\n";
    std::ofstream(folder + "/larger.yaml") << "priority: 1\nsteps: 30\n";
    for (const char* name : {"train.bin", "val.bin", "shards/train_0.bin", "jobs/train.bin"}) {
      fs::copy_file(cluster_.folder() + "/train.bin", absl::StrCat(folder, "/", name));
    }
    for (const char* name : {"text.txt", "a.txt", "b.txt"}) {
      fs::copy_file("/usr/share/common-licenses/GPL-3", absl::StrCat(folder, "/", name));
    }
    fs::create_directories(folder + "/gpt2");
    std::ofstream(folder + "/gpt2/vocab.json") << ByteVocabulary();
    std::ofstream(folder + "/gpt2/merges.txt") << "#version: 0.2\n";
    // Red, 1 x 1.
    const std::string png = absl::HexStringToBytes(
        "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c4944415408d763f8cfc000000301010018dd"
        "8db0"
        "0000000049454e44ae426082");
    for (const char* kind : {"cat", "dog"}) {
      fs::create_directories(absl::StrCat(folder, "/pets/", kind));
      for (int i = 0; i < 9; ++i) {
        std::ofstream(absl::StrCat(folder, "/pets/", kind, "/", i, ".png"), std::ios::binary) << png;
      }
    }
    for (const auto& [theirs, ours] : {std::pair("images-idx3", "images"), std::pair("labels-idx1", "labels")}) {
      fs::copy_file(absl::StrCat("/usr/share/datasets/fashion-mnist/t10k-", theirs, "-ubyte.gz"),
                    absl::StrCat(folder, "/train-", ours, ".gz"));
    }
    fs::copy_file("examples/custom_model/libresidual.so", folder + "/libmine.so");
    fs::create_directory_symlink(cluster_.CheckpointPath("gpt2-tiny"), folder + "/runs/" + job_);
    return folder;
  }

  // A job in the state that the command needs.
  std::string JobFor(const std::string& command) {
    // Each with its own checkpoint folder.
    const std::string job = cluster_.Submit({.name = absl::StrCat("steered-", count_++), .steps = 100000});
    if (command == "trace" || command == "checkpoint now") {
      EXPECT_TRUE(cluster_.WaitForStep(job, 1));
    }
    if (command == "resume") {
      EXPECT_EQ(cluster_.Muster({"pause", job}).exit_code, 0);
    }
    if (command == "delete") {
      EXPECT_EQ(cluster_.Muster({"cancel", "-y", job}).exit_code, 0);
      EXPECT_TRUE(cluster_.WaitForState(job, "cancelled"));
    }
    return job;
  }

  void Try(const std::string& command, const std::string& example) {
    SCOPED_TRACE(example);
    fs::copy_file(last_ + ".kept", last_, fs::copy_options::overwrite_existing);
    const bool steers = Steering().contains(command);
    const std::string job = steers ? JobFor(command) : job_;
    const std::string folder = MakeFolder();
    std::string line = absl::StrReplaceAll(example, {{"gpt2-tiny-x7f2", job},
                                                     {"node-a", node_},
                                                     {"k3j9x2m4", token_},
                                                     {"/var/lib/muster/coordinator", folder},
                                                     {"/var/lib/muster/worker", folder},
                                                     {"/data/checkpoints", folder},
                                                     {"/restored", folder + "/restored"}});
    if (absl::StrContains(line, "data prepare")) {  // makes the files that other examples read
      for (const char* name : {"/train.bin", "/val.bin"}) fs::remove(folder + name);
    }
    if (absl::StrContains(line, "checkpoint import")) {
      EXPECT_EQ(cluster_.Shell(absl::StrCat("muster export runs/", job_, " gpt2-hf"), folder).exit_code, 0);
    }
    if (absl::StrContains(line, "--template base")) {
      EXPECT_EQ(cluster_.Shell("echo 'labels: {team: nlp}' | muster templates set base -", folder).exit_code, 0);
    }
    if (absl::StrContains(line, "checkpoint adopt")) {
      fs::create_directories(folder + "/restored");
      fs::copy(cluster_.CheckpointPath("gpt2-tiny"), folder + "/restored/gpt2", fs::copy_options::recursive);
    }
    if (absl::StartsWith(command, "worker")) {  // as its daemon notes it
      std::ofstream(folder + "/foreign_store") << "gpu-head:7070: this worker has ranks of another store\n";
    }
    if (IsEndless(line)) line = absl::StrCat("timeout --preserve-status -s INT 2 ", line);
    if (absl::EndsWith(line, "fish | source")) line = absl::StrCat("fish -c '", line, "'");
    const Ran ran = cluster_.Shell(line, folder);
    // This cluster's node came over the Unix socket: it has no certificate to revoke, and the command says so.
    const bool unjoined = absl::StartsWith(line, "muster coordinator revoke ");
    // Nor does its worker serve metrics.
    const bool unserved = absl::StartsWith(line, "muster worker health");
    EXPECT_EQ(ran.exit_code, IsEndless(line) ? 130 : unjoined ? 2 : unserved ? 3 : 0) << ran.err << ran.out;
    // Remove what the example left reserved or running, since it blocks the next one.
    if (absl::StartsWith(line, "muster reservations set")) {
      for (const std::string& name : std::vector<std::string>(
               absl::StrSplit(cluster_.Muster({"reservations", "-o", "name"}).out, '\n', absl::SkipEmpty()))) {
        EXPECT_EQ(cluster_.Muster({"reservations", "delete", name}).exit_code, 0);
      }
    }
    if (steers || command == "train" || command == "submit" || command == "run") {
      for (const std::string& name : std::vector<std::string>(
               absl::StrSplit(cluster_.Muster({"ps", "-o", "name"}).out, '\n', absl::SkipEmpty()))) {
        const Ran cancelled = cluster_.Muster({"cancel", "-y", name});
        // A short one may have completed after it was listed.
        EXPECT_TRUE(cancelled.exit_code == 0 || cluster_.State(name) == "completed") << cancelled.err;
      }
    }
  }

  Cluster cluster_;
  std::string job_, last_, node_, token_;
  int count_ = 0;
};

TEST_F(ExamplesTest, AllOfThemWork) {
  int tried = 0;
  for (const std::string& name : Words({""})) {
    std::vector<std::vector<std::string>> commands = {{name}};
    if (ExamplesOf({name}).empty()) ADD_FAILURE() << "muster " << name << " has no example";
    // A group's own example is that of one of its commands.
    if (const bool group =
            name == "local" || name == "data" || name == "coordinator" || name == "checkpoint" || name == "model";
        group) {
      commands.clear();
      for (const std::string& inner : Words({name, ""})) {
        if (inner != "token") {
          commands.push_back({name, inner});
          continue;
        }
        for (const std::string& innermost : Words({name, inner, ""})) commands.push_back({name, inner, innermost});
      }
    }
    for (const std::vector<std::string>& command : commands) {
      for (const std::string& example : ExamplesOf(command)) {
        const bool now = name == "checkpoint" && command.back() == "now";
        Try(now ? "checkpoint now" : name, example);
        ++tried;
      }
    }
  }
  EXPECT_GT(tried, 40);
  cluster_.Muster({"local", "down", "--force"});
}

// The example files too, with their data in place.
TEST_F(ExamplesTest, ExampleFilesAreAccepted) {
  const std::string folder = MakeFolder();
  fs::create_directories(folder + "/cifar-10-batches-bin");
  for (const char* name : {"data_batch_1.bin", "test_batch.bin"}) {
    std::ofstream(absl::StrCat(folder, "/cifar-10-batches-bin/", name)) << std::string(1 + 3 * 32 * 32, '\0');
  }
  // Its train.bin is one of images.
  fs::create_directory(folder + "/fashion");
  for (const char* name : {"train.bin", "test.bin"}) {
    const std::string path = absl::StrCat(folder, "/fashion/", name);
    std::ofstream(path) << std::string(1 + 3 * 32 * 32, '\0');
    std::ofstream(path + ".json") << R"({"format": "muster-images", "version": 1, "images": 1, "channels": 3,
        "height": 32, "width": 32, "label_bytes": 1, "classes": 10, "class_names": []})";
  }
  for (const char* name : {"gpt2_tiny.yaml", "gpt2_tiny_ddp.yaml", "gpt2_tiny_fsdp.yaml", "llama_tiny.yaml",
                           "llama_tiny_lora.yaml", "llama_tiny_pipeline.yaml", "llama_tiny_context.yaml",
                           "resnet18_cifar10_ddp.yaml", "resnet18_cifar10_fsdp.yaml"}) {
    fs::copy_file(absl::StrCat("examples/", name), absl::StrCat(folder, "/", name));
    if (name == std::string("llama_tiny_lora.yaml")) {  // a job of the file before makes what it starts from
      const Ran made = cluster_.Shell(
          "muster submit -f llama_tiny.yaml --set steps=1 --set optimizer.lr_schedule.warmup_steps=0 "
          "--set strategy=single --set resources.ranks=1 && muster export @last llama-tiny-hf",
          folder);
      EXPECT_EQ(made.exit_code, 0) << made.err << made.out;
    }
    const Ran valid = cluster_.Shell(absl::StrCat("muster validate ", name), folder);
    EXPECT_EQ(valid.exit_code, 0) << valid.err;
  }
  fs::copy_file("examples/resnet20_fashion_mnist.yaml", folder + "/fashion/job.yaml");
  const Ran fashion = cluster_.Shell("muster validate fashion/job.yaml", folder);
  EXPECT_EQ(fashion.exit_code, 0) << fashion.err;
  fs::copy_file("examples/custom_model/job.yaml", folder + "/custom.yaml");
  const Ran custom =
      cluster_.Shell("muster model inspect libmine.so > residual.json && muster validate custom.yaml", folder);
  EXPECT_EQ(custom.exit_code, 0) << custom.err;
  EXPECT_EQ(cluster_.Shell("muster init new.yaml && muster validate new.yaml", folder).exit_code, 0);
  const Ran ran =
      cluster_.Shell("muster submit -f new.yaml --set steps=3 --set optimizer.lr_schedule.warmup_steps=0", folder);
  EXPECT_EQ(ran.exit_code, 0) << ran.err << ran.out;
}

}  // namespace
}  // namespace muster::cluster
