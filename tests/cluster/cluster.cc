#include "tests/cluster/cluster.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "cli/output/format.h"
#include "testing/temporary_folder.h"
#include "testing/wait.h"

extern char** environ;

namespace muster::cluster {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// The programs, side by side, as a user has them: links to the runfiles.
const std::string& BinDir() {
  static const TemporaryFolder folder;
  static const std::string dir = [] {
    const std::string& to = folder.path();
    for (const char* file : {"cli/muster", "coordinator/muster-coordinator", "worker/agent/muster-worker",
                             "worker/shim/muster-step", "worker/exec/muster-exec"}) {
      fs::create_symlink(fs::canonical(file), to + "/" + fs::path(file).filename().string());
    }
    // Not in tests of jobs that do not train (BUILD); a worker does not start without one.
    const char* trainer = "worker/trainer/muster-trainer";
    fs::create_symlink(fs::exists(trainer) ? fs::canonical(trainer) : fs::path("/bin/false"), to + "/muster-trainer");
    return to;
  }();
  return dir;
}

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream all;
  all << in.rdbuf();
  return all.str();
}

// Starts a process with its output in files; descriptors 0..2 only.
pid_t SpawnProcess(const std::vector<std::string>& argv, const std::vector<std::string>& environment,
                   const std::string& out, const std::string& err) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, out.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  posix_spawn_file_actions_addopen(&actions, 2, err.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  std::vector<char*> args, env;
  for (const std::string& a : argv) args.push_back(const_cast<char*>(a.c_str()));
  for (const std::string& e : environment) env.push_back(const_cast<char*>(e.c_str()));
  args.push_back(nullptr);
  env.push_back(nullptr);
  pid_t pid = -1;
  const int error = posix_spawn(&pid, argv[0].c_str(), &actions, nullptr, args.data(), env.data());
  posix_spawn_file_actions_destroy(&actions);
  EXPECT_EQ(error, 0) << argv[0];
  return error == 0 ? pid : -1;
}

// Until it is destroyed, what this thread starts has at most `count` of its cores; which ones, `first` says.
class FewCores {
 public:
  FewCores(int first, int count) {
    sched_getaffinity(0, sizeof before_, &before_);
    std::vector<int> all;
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(core, &before_)) all.push_back(core);
    }
    if (static_cast<size_t>(count) >= all.size()) return;
    cpu_set_t few;
    CPU_ZERO(&few);
    for (int i = 0; i < count; ++i) CPU_SET(all[static_cast<size_t>(first + i) % all.size()], &few);
    sched_setaffinity(0, sizeof few, &few);
  }
  ~FewCores() { sched_setaffinity(0, sizeof before_, &before_); }
  FewCores(const FewCores&) = delete;

 private:
  cpu_set_t before_;
};

int ExitCode(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

}  // namespace

uint64_t Number(const json& value) {
  if (value.is_number()) return value.get<uint64_t>();
  uint64_t number = 0;
  return value.is_string() && absl::SimpleAtoi(value.get<std::string>(), &number) ? number : 0;
}

Cluster::Cluster() {
  std::array<char, 32> name{"/tmp/muster-test-XXXXXX"};
  folder_ = mkdtemp(name.data());
  // Real English text, one byte for each token: this machine's copy of the license.
  std::string text = ReadFile("/usr/share/common-licenses/GPL-3");
  if (text.empty()) ADD_FAILURE() << "no /usr/share/common-licenses/GPL-3 (Debian's base-files)";
  std::ofstream tokens(folder_ + "/train.bin", std::ios::binary);
  for (const unsigned char c : text) tokens.put(static_cast<char>(c)).put(0);
}

Cluster::~Cluster() {
  for (auto& [index, worker] : workers_) {
    if (worker.pid > 0) kill(worker.pid, SIGKILL), WaitFor(worker, absl::Seconds(10));
  }
  // Shims outlive their worker by design: kill those of this folder.
  for (const pid_t trainer : Trainers()) kill(trainer, SIGKILL);
  if (coordinator_.pid > 0) kill(coordinator_.pid, SIGKILL), WaitFor(coordinator_, absl::Seconds(10));
  Eventually([&] { return Trainers().empty(); }, absl::Seconds(10));
  std::error_code ignored;
  if (!testing::Test::HasFailure()) fs::remove_all(folder_, ignored);
}

Cluster::Daemon Cluster::Spawn(const std::vector<std::string>& command, const std::string& name) {
  Daemon daemon;
  std::vector<std::string> argv = prefix ? prefix(name) : std::vector<std::string>();
  argv.insert(argv.end(), command.begin(), command.end());
  daemon.log = absl::StrCat(folder_, "/", name, ".log");
  std::vector<std::string> all = environment;  // before the inherited ones: the first value of a name counts
  for (char** e = environ; *e != nullptr; ++e) all.emplace_back(*e);
  daemon.pid = SpawnProcess(argv, all, absl::StrCat(folder_, "/", name, ".out"), daemon.log);
  return daemon;
}

int Cluster::WaitFor(Daemon& daemon, absl::Duration deadline) {
  int status = 0;
  const bool ended = Eventually([&] { return waitpid(daemon.pid, &status, WNOHANG) == daemon.pid; }, deadline);
  EXPECT_TRUE(ended) << "process " << daemon.pid << " did not exit\n" << LogTail(daemon.log);
  daemon.pid = -1;
  return ExitCode(status);
}

std::string Cluster::LogTail(const std::string& path) const {
  std::vector<std::string> lines = absl::StrSplit(ReadFile(path), '\n');
  if (lines.size() > 40) lines.erase(lines.begin(), lines.end() - 40);
  return absl::StrCat("--- ", path, "\n", absl::StrJoin(lines, "\n"));
}

void Cluster::StartCoordinator() {
  const std::string state = coordinator_state.empty() ? folder_ + "/c" : coordinator_state;
  std::vector<std::string> argv = {BinDir() + "/muster-coordinator", "--state-dir", state, "--listen", address()};
  // Tests end ranks and nodes by the dozen: no node is drained for that, unless they ask for it.
  const bool limited = std::any_of(coordinator_flags.begin(), coordinator_flags.end(), [](const std::string& flag) {
    return absl::StartsWith(flag, "--node-fault-limit");
  });
  if (!limited) argv.emplace_back("--node-fault-limit=1000");
  argv.insert(argv.end(), coordinator_flags.begin(), coordinator_flags.end());
  const std::string out = folder_ + "/coordinator.out";
  const size_t before = ReadFile(out).size();
  coordinator_ = Spawn(argv, "coordinator");
  // Reads the coordinator's own output: a client that connects too early backs off for longer than a start takes.
  const bool serves = Eventually([&] { return ReadFile(out).find("listening on", before) != std::string::npos; },
                                 absl::Seconds(20), absl::Milliseconds(5));
  EXPECT_TRUE(serves) << "the coordinator does not serve\n" << LogTail(coordinator_.log);
}

void Cluster::StartWorker(int index, int slots) {
  const std::string name = absl::StrCat("w", index);
  std::vector<std::string> argv = {BinDir() + "/muster-worker",
                                   "--coordinator",
                                   worker_coordinator.empty() ? address() : worker_coordinator,
                                   "--state-dir",
                                   absl::StrCat(folder_, "/", name, "-state"),
                                   "--run-dir",
                                   RunDir(index),
                                   "--slots",
                                   absl::StrCat(slots),
                                   "--bin-dir",
                                   BinDir()};
  argv.insert(argv.end(), worker_flags.begin(), worker_flags.end());
  // To check the devices loads LibTorch once more, which costs as much as a short job.
  if (std::find(argv.begin(), argv.end(), "--preflight") == argv.end())
    argv.insert(argv.end(), {"--preflight", "folders"});
  // One core for each slot, so one thread for each rank: on a busy machine the threads of a small model wait for each
  // other for ten times as long as they compute. Other clusters use other cores.
  const FewCores cores(getpid() + index * slots, slots);
  workers_[index] = Spawn(argv, name);
}

void Cluster::KillCoordinator() {
  kill(coordinator_.pid, SIGKILL);
  WaitFor(coordinator_, absl::Seconds(10));
}

void Cluster::KillWorker(int index) {
  kill(workers_[index].pid, SIGKILL);
  WaitFor(workers_[index], absl::Seconds(10));
}

int Cluster::StopCoordinator() {
  kill(coordinator_.pid, SIGTERM);
  return WaitFor(coordinator_, absl::Seconds(20));
}

int Cluster::StopWorker(int index) {
  kill(workers_[index].pid, SIGTERM);
  return WaitFor(workers_[index], absl::Seconds(60));
}

Ran Cluster::Muster(const std::vector<std::string>& arguments, absl::Duration deadline) {
  std::vector<std::string> argv = {BinDir() + "/muster"};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return Run(argv, deadline);
}

Ran Cluster::Shell(const std::string& line, const std::string& folder, absl::Duration deadline) {
  return Run({"/bin/bash", "-c", absl::StrCat("cd ", folder, " && ", line)}, deadline);
}

Ran Cluster::Run(const std::vector<std::string>& argv, absl::Duration deadline) {
  static int count = 0;
  const std::string base = absl::StrCat(folder_, "/cli-", count++);
  std::vector<std::string> all = {"PATH=" + BinDir() + ":/usr/bin:/bin",
                                  "MUSTER_RUNTIME_DIR=" + folder_ + "/run",
                                  "HOME=" + folder_,
                                  "XDG_STATE_HOME=" + folder_ + "/state",
                                  "NO_COLOR=1",
                                  "MUSTER_BIN_DIR=" + BinDir(),
                                  "MUSTER_ADDRESS=" + address(),
                                  "XDG_CONFIG_HOME=" + folder_ + "/config"};
  all.insert(all.end(), environment.begin(), environment.end());
  Daemon process;
  {
    const FewCores one(getpid() + count, 1);  // for eval and sample, as for ranks: see StartWorker
    process.pid = SpawnProcess(argv, all, base + ".out", base + ".err");
  }
  process.log = base + ".err";
  Ran ran;
  int status = 0;
  if (!Eventually([&] { return waitpid(process.pid, &status, WNOHANG) == process.pid; }, deadline)) {
    ADD_FAILURE() << absl::StrJoin(argv, " ") << " did not exit";
    kill(process.pid, SIGKILL);
    waitpid(process.pid, &status, 0);
  }
  ran.exit_code = ExitCode(status);
  ran.out = ReadFile(base + ".out");
  ran.err = ReadFile(base + ".err");
  fs::remove(base + ".out");
  fs::remove(base + ".err");
  return ran;
}

json Cluster::MusterJson(std::vector<std::string> arguments) {
  arguments.insert(arguments.end(), {"-o", "json"});
  const Ran ran = Muster(arguments);
  json parsed = json::parse(ran.out, nullptr, /*allow_exceptions=*/false);
  EXPECT_FALSE(parsed.is_discarded()) << absl::StrJoin(arguments, " ") << " printed no JSON: " << ran.out << ran.err;
  return parsed.is_discarded() ? json::object() : parsed;
}

std::string Cluster::WriteJob(const JobOptions& options) {
  const std::string path = absl::StrCat(folder_, "/", options.name, ".yaml");
  std::ofstream(path) << absl::StrCat(
      "apiVersion: muster/v1\nkind: Job\nname: ", options.name,
      "\nmodel: {family: gpt2, layers: 2, heads: 2, width: 32, vocabulary: 256, context: 16}\n"
      "data: {tokens: train.bin}\nbatch: {sequences: ",
      options.sequences, ", microbatch: 2}\nsteps: ", options.steps, "\npriority: ", options.priority,
      "\ncheckpoint: {path: \"", options.checkpoints.empty() ? CheckpointPath(options.name) : options.checkpoints,
      "\", every_steps: ", options.checkpoint_every, ", keep: 2}\n", options.extra);
  return path;
}

std::string Cluster::Submit(const JobOptions& options) {
  const Ran ran = Muster({"submit", "-d", "-o", "name", WriteJob(options)});
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  return std::string(absl::StripAsciiWhitespace(ran.out));
}

json Cluster::Job(const std::string& id) {
  json all = MusterJson({"describe", id});
  return all.contains("job") ? all["job"] : all;
}

v1::GetJobReply Cluster::GetJob(const std::string& id) {
  if (client_ == nullptr) client_ = std::make_unique<cli::Client>(cli::Connection{.address = address()});
  const absl::StatusOr<v1::GetJobReply> reply = client_->GetJob(id);
  if (!reply.ok()) client_ = nullptr;  // a channel that could not connect waits for a second before it tries again
  return reply.value_or(v1::GetJobReply());
}

uint64_t Cluster::Generation(const std::string& id) { return GetJob(id).job().generation(); }

std::string Cluster::State(const std::string& id) {
  const v1::GetJobReply reply = GetJob(id);
  return reply.has_job() ? cli::StateName(reply.job().state()) : "";
}

bool Cluster::WaitForState(const std::string& id, const std::string& state, absl::Duration deadline) {
  std::string last;
  const bool reached = Eventually(
      [&] {
        last = State(id);
        return last == state;
      },
      deadline);
  EXPECT_TRUE(reached) << id << " is " << last << ", not " << state << "\n"
                       << Muster({"events", id}).out << LogTail(coordinator_.log);
  if (!reached) {
    for (auto& [index, worker] : workers_) ADD_FAILURE() << LogTail(worker.log);
  }
  return reached;
}

std::vector<json> Cluster::Events(const std::string& id) {
  std::vector<std::string> arguments = {"events", "-o", "json"};
  if (!id.empty()) arguments.push_back(id);
  std::vector<json> events;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(Muster(arguments).out, '\n'))) {
    json event = json::parse(line, nullptr, false);
    if (event.is_object()) events.push_back(std::move(event));
  }
  return events;
}

uint64_t Cluster::LostOrHung(const std::string& id, absl::Time since) {
  uint64_t count = 0;
  for (const json& event : Events()) {
    const std::string kind = event.value("kind", "");
    if (kind != "node.lost" && (kind != "rank.hung" || event.value("job", "") != id)) continue;
    absl::Time time;
    std::string error;
    if (absl::ParseTime(absl::RFC3339_full, event.value("time", ""), &time, &error) && time >= since) ++count;
  }
  return count;
}

void Cluster::Cancel(const std::string& id) {
  const Ran ran = Muster({"cancel", "-y", id});
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_TRUE(WaitForState(id, "cancelled"));
}

std::vector<uint64_t> Cluster::Steps(const std::string& id) {
  std::vector<uint64_t> steps;
  for (const json& line : json::parse(Muster({"metrics", id, "-o", "json"}).out, nullptr, false)) {
    steps.push_back(Number((line.contains("metrics") ? line["metrics"] : line)["step"]));
  }
  return steps;
}

std::vector<double> Cluster::Losses(const std::string& id) {
  const json all = json::parse(Muster({"metrics", id, "-o", "json"}).out, nullptr, false);
  std::map<uint64_t, double> by_step;
  for (const json& line : all) {
    const json& point = line.contains("metrics") ? line["metrics"] : line;
    by_step[Number(point["step"])] = point["loss"];
  }
  std::vector<double> losses;
  for (const auto& [step, loss] : by_step) losses.push_back(loss);
  return losses;
}

bool Cluster::WaitForStep(const std::string& id, uint64_t step, absl::Duration deadline) {
  uint64_t seen = 0;
  const bool reached = Eventually(
      [&] {
        const v1::GetJobReply reply = GetJob(id);
        if (reply.has_last_metrics()) seen = reply.last_metrics().step();
        return seen >= step;
      },
      deadline);
  EXPECT_TRUE(reached) << id << " is at step " << seen << "\n" << LogTail(coordinator_.log);
  return reached;
}

pid_t Cluster::WorkerPid(int index) const {
  const auto found = workers_.find(index);
  return found == workers_.end() ? -1 : found->second.pid;
}

std::string Cluster::RunDir(int index) const { return absl::StrCat(folder_, "/w", index); }

std::vector<std::string> Cluster::RunDirs() const {
  std::vector<std::string> dirs;
  for (const auto& [index, worker] : workers_) dirs.push_back(RunDir(index));
  return dirs;
}

std::vector<pid_t> Cluster::Trainers() const {
  std::vector<pid_t> pids;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    int pid = 0;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &pid)) continue;
    const std::string command = ReadFile(entry.path() / "cmdline");
    const std::vector<std::string> argv = absl::StrSplit(command, '\0');
    if (argv.empty()) continue;
    if (!absl::EndsWith(argv[0], "/muster-trainer") && !absl::EndsWith(argv[0], "/muster-exec")) continue;
    if (absl::StrContains(command, folder_ + "/")) pids.push_back(pid);
  }
  std::sort(pids.begin(), pids.end());
  return pids;
}

std::pair<uint64_t, std::string> Cluster::FinalWeights(const std::string& name) const {
  std::vector<std::string> steps;
  for (const auto& entry : fs::directory_iterator(CheckpointPath(name))) {
    const std::string file = entry.path().filename().string();
    if (absl::StartsWith(file, "step-")) steps.push_back(file);
  }
  EXPECT_FALSE(steps.empty()) << "no checkpoint in " << CheckpointPath(name);
  if (steps.empty()) return {0, ""};
  std::sort(steps.begin(), steps.end());
  const json manifest = json::parse(ReadFile(CheckpointPath(name) + "/" + steps.back() + "/manifest.json"));
  uint64_t step = 0;
  EXPECT_TRUE(absl::SimpleAtoi(manifest["step"].get<std::string>(), &step));
  std::string sums;
  for (const json& shard : manifest["shards"]) absl::StrAppend(&sums, shard["sha256"].get<std::string>(), " ");
  return {step, sums};
}

}  // namespace muster::cluster
