// muster-worker: parses flags and wires objects.
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/file/lock.h"
#include "common/file/private_folder.h"
#include "common/file/trusted_file.h"
#include "common/flags/daemon_flags.h"
#include "common/flags/values.h"
#include "common/log/log.h"
#include "common/metrics/endpoint.h"
#include "common/node/node_selector.h"
#include "common/rank_variables.h"
#include "common/rpc/rpc.h"
#include "common/version.h"
#include "worker/agent/agent.h"
#include "worker/agent/container_command.h"
#include "worker/agent/credentials.h"
#include "worker/agent/event_loop.h"
#include "worker/agent/job_paths.h"
#include "worker/agent/local_address.h"
#include "worker/agent/node.h"
#include "worker/agent/rank_users.h"
#include "worker/agent/renewal.h"
#include "worker/agent/token.h"
#include "worker/agent/worker_page.h"

namespace {

using muster::agent::AgentOptions;

constexpr int kVersionsDoNotFit = 3;
constexpr auto kPagePatience = std::chrono::seconds(2);

struct Flags {
  AgentOptions agent;
  std::string host;
  std::vector<std::string> env;
  std::vector<std::string> labels;
  std::string token_file;
  std::string join_token_file;
  absl::StatusOr<std::string> join_token = "";
  std::string metrics_address;
  bool allow_remote_metrics = false;
  std::string bin_dir;
  std::string run_as_owner = "off";
  std::string exec_jobs = "off";
  std::string container_command = "auto";
  std::string log_level = "info";
  uint32_t slots = 1;
};

void AddFlags(CLI::App& app, Flags& flags) {
  app.set_version_flag("--version", muster::kVersion);
  app.add_option("--coordinator", flags.agent.coordinator, "unix:/path or HOST:PORT")->type_name("ADDRESS")->required();
  app.add_option("--state-dir", flags.agent.state_dir, "folder of this node's identity and state; one daemon at a time")
      ->type_name("FOLDER")
      ->required();
  app.add_option("--run-dir", flags.agent.run_dir, "folder of the ranks and of the trainers' socket")
      ->type_name("FOLDER")
      ->required();
  app.add_option("--label", flags.labels, "for node_selector of jobs: --label rack=a --label zone=eu")
      ->type_name("KEY=VALUE");
  app.add_option("--slots", flags.slots, "shares of the cores, where there are no GPUs for this build")
      ->check(muster::Between(1, 1024))
      ->capture_default_str();
  app.add_option(
         "--host", flags.host,
         "name or address where ranks of other nodes reach this node's; default: its address towards the coordinator")
      ->type_name("HOST");
  app.add_option("--env", flags.env,
                 "variable of every rank on this node, unless the job sets it: " + muster::AllowedRankVariables() +
                     "; may be repeated")
      ->type_name("NAME=VALUE")
      ->allow_extra_args(false);
  app.add_option("--data-roots", flags.agent.data_roots,
                 "folders below which the data of jobs must lie; default: anywhere")
      ->delimiter(',')
      ->type_name("FOLDER,...");
  app.add_option("--checkpoint-roots", flags.agent.checkpoint_roots,
                 "folders below which jobs may write checkpoints, and resume from them; default: anywhere")
      ->delimiter(',')
      ->type_name("FOLDER,...");
  app.add_option("--plugin-roots", flags.agent.plugin_roots,
                 "folders of libraries that jobs may run as this user (docs/security.md); default: none")
      ->delimiter(',')
      ->type_name("FOLDER,...");
  app.add_option("--run-as-owner", flags.run_as_owner,
                 "run each rank as the user of its job's owner: system (the user of that name), or a FILE with lines "
                 "`owner user` or `owner uid:gid,gid`; needs root or its capabilities (docs/security.md)")
      ->type_name("off|system|FILE")
      ->capture_default_str();
  app.add_option("--exec-jobs", flags.exec_jobs,
                 "on: run the programs of exec jobs, so whoever may submit runs any code here, as this user or as "
                 "--run-as-owner says, and without regard to the roots (docs/security.md)")
      ->check(muster::OneOf({"on", "off"}))
      ->type_name("on|off")
      ->capture_default_str();
  app.add_option("--container-command", flags.container_command,
                 "how the images of exec jobs are run: auto (by podman, if it is installed), off, or a command "
                 "(docs/exec.md)")
      ->type_name("auto|off|COMMAND")
      ->capture_default_str();
  app.add_option("--token-file", flags.token_file, "a token, or lines `token name role` with one of role worker")
      ->type_name("FILE");
  app.add_option("--join-token", flags.join_token_file,
                 "file with a token of `muster coordinator token create --role worker`; needed once, beyond this "
                 "machine (or MUSTER_JOIN_TOKEN)")
      ->type_name("FILE");
  app.add_option("--metrics-address", flags.metrics_address,
                 "serve /metrics for Prometheus there: 127.0.0.1:9465 (default: nowhere)")
      ->type_name("ADDRESS");
  app.add_flag("--allow-remote-metrics", flags.allow_remote_metrics,
               "--metrics-address may be reached from other machines, in plain HTTP without a password");
  app.add_option("--bin-dir", flags.bin_dir,
                 "folder of muster-step, muster-trainer and muster-exec; default: this program's")
      ->type_name("FOLDER");
  app.add_option("--trainer", flags.agent.trainer, "trainer to use instead of BIN_DIR/muster-trainer")
      ->type_name("FILE");
  app.add_flag("--handover", flags.agent.handover, "on SIGTERM leave the ranks running for the next daemon");
  muster::AddDuration(app, "--drain-deadline", flags.agent.drain_deadline,
                      "on SIGTERM: how long the ranks may take to stop");
  muster::AddDuration(app, "--kill-grace", flags.agent.kill_grace, "time from SIGTERM to SIGKILL of a trainer");
  app.add_option_function<std::string>(
         "--outage-grace",
         [&flags](const std::string& text) {
           absl::Duration grace;
           if (!absl::ParseDuration(text, &grace) || grace <= absl::ZeroDuration()) {
             throw CLI::ValidationError("--outage-grace", "invalid duration \"" + text + "\": use 30m, 48h or inf");
           }
           flags.agent.outage_grace = grace;
         },
         "how long ranks run on while this daemon lives and the coordinator cannot be reached; inf: for ever")
      ->type_name("TIME")
      ->default_str("the coordinator's --orphan-grace");
  app.add_option_function<std::string>(
         "--preflight",
         [&flags](const std::string& kind) {
           using muster::agent::PreflightKind;
           flags.agent.preflight = kind == "full"      ? PreflightKind::kFull
                                   : kind == "folders" ? PreflightKind::kFolders
                                                       : PreflightKind::kOff;
         },
         "what is checked before this node takes ranks, and after faults: full (folders, devices and collectives), "
         "folders, off")
      ->check(muster::OneOf({"full", "folders", "off"}))
      ->type_name("KIND")
      ->default_str("full");
  app.add_option("--log-level", flags.log_level, "debug, info, warn, error")
      ->check(muster::OneOf({"debug", "info", "warn", "error"}))
      ->capture_default_str();
}

absl::Status ReadVariables(const std::vector<std::string>& texts, std::map<std::string, std::string>& variables) {
  for (const std::string& text : texts) {
    absl::StatusOr<std::pair<std::string, std::string>> variable = muster::ParseNodeVariable(text);
    if (!variable.ok()) {
      return absl::InvalidArgumentError("--env " + text + ": " + std::string(variable.status().message()));
    }
    if (!variables.insert(*std::move(variable)).second) {
      return absl::InvalidArgumentError("--env " + text + ": the variable occurs twice; leave one out");
    }
  }
  return absl::OkStatus();
}

// Where NCCL should be, or "": it chooses itself, which is right on a node with one network. Never loopback: to this
// node its own name may mean 127.0.0.1, by which no other node reaches it.
std::string InterfaceForNccl(const std::string& host) {
  const absl::StatusOr<muster::agent::Interface> interface = muster::agent::InterfaceOf(host);
  if (interface.ok()) return interface->loopback ? "" : interface->name;
  if (muster::agent::IsCudaBuild()) {
    muster::LogWarn("NCCL chooses its network interface itself unless --env sets NCCL_SOCKET_IFNAME",
                    {{"error", interface.status()}});
  }
  return "";
}

// Whom ranks run as, if this process may run them as others at all.
absl::Status ReadUsers(const std::string& setting, AgentOptions& agent) {
  absl::StatusOr<muster::agent::RankUsers> users = muster::agent::RankUsers::Make(setting, agent.coordinator);
  if (!users.ok()) {
    return absl::Status(users.status().code(), "--run-as-owner: " + std::string(users.status().message()));
  }
  agent.users = *std::move(users);
  if (!agent.users.switches()) return absl::OkStatus();
  if (const std::vector<std::string> missing = muster::agent::MissingToSwitchUsers(); !missing.empty()) {
    return absl::PermissionDeniedError(
        "--run-as-owner: this process (user " + std::to_string(geteuid()) +
        ") may not run ranks as other users, it lacks " + absl::StrJoin(missing, ", ") +
        "; start it as root, or leave the flag out: then all ranks run as its own user (docs/security.md)");
  }
  if (agent.state_dir != agent.run_dir) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "--run-as-owner: other users pass through --run-dir, so --state-dir, with this node's key, must be another "
      "folder");
}

absl::Status FillIn(Flags& flags) {
  AgentOptions& agent = flags.agent;
  std::error_code error;
  if (flags.bin_dir.empty()) flags.bin_dir = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  agent.state_dir = std::filesystem::absolute(agent.state_dir).lexically_normal();
  agent.run_dir = std::filesystem::absolute(agent.run_dir).lexically_normal();
  for (std::string* folder : {&agent.state_dir, &agent.run_dir}) {
    if (folder->size() > 1 && folder->back() == '/') folder->pop_back();
  }
  agent.step_binary = std::filesystem::absolute(flags.bin_dir + "/muster-step");
  if (agent.trainer.empty()) agent.trainer = flags.bin_dir + "/muster-trainer";
  agent.trainer = std::filesystem::absolute(agent.trainer);
  if (access(agent.step_binary.c_str(), X_OK) != 0) {
    return absl::NotFoundError("no program " + agent.step_binary + "; name its folder by --bin-dir");
  }
  if (access(agent.trainer.c_str(), X_OK) != 0) {
    return absl::NotFoundError("no program " + agent.trainer + "; name it by --trainer, or its folder by --bin-dir");
  }
  if (flags.exec_jobs == "on") {
    agent.exec = std::filesystem::absolute(flags.bin_dir + "/muster-exec");
    if (access(agent.exec.c_str(), X_OK) != 0) {
      return absl::NotFoundError("no program " + agent.exec +
                                 ", which --exec-jobs needs; name its folder by --bin-dir");
    }
    std::vector<std::string> roots = agent.data_roots;
    roots.insert(roots.end(), agent.checkpoint_roots.begin(), agent.checkpoint_roots.end());
    const char* path = getenv("PATH");
    absl::StatusOr<std::vector<std::string>> command =
        muster::agent::ContainerCommand(flags.container_command, path == nullptr ? "" : path, roots);
    if (!command.ok()) return command.status();
    agent.container_command = *std::move(command);
  }
  if (const absl::Status form = muster::rpc::CheckAddress(agent.coordinator); !form.ok()) {
    return absl::InvalidArgumentError("--coordinator: " + std::string(form.message()));
  }
  const absl::StatusOr<std::string> host =
      flags.host.empty() ? muster::agent::LocalAddressTowards(agent.coordinator) : flags.host;
  if (!host.ok()) return host.status();
  agent.host = *host;
  agent.interface = InterfaceForNccl(agent.host);
  for (const auto& [flag, roots] : {std::pair("--plugin-roots: ", &agent.plugin_roots),
                                    {"--data-roots: ", &agent.data_roots},
                                    {"--checkpoint-roots: ", &agent.checkpoint_roots}}) {
    const absl::Status status = muster::CheckRoots(*roots);
    if (status.ok()) continue;
    return absl::InvalidArgumentError(flag + std::string(status.message()));
  }
  if (absl::Status status = muster::agent::CheckRules({.data_roots = agent.data_roots,
                                                       .checkpoint_roots = agent.checkpoint_roots,
                                                       .own = {agent.state_dir, agent.run_dir}});
      !status.ok()) {
    return status;
  }
  if (absl::Status status = ReadVariables(flags.env, agent.variables); !status.ok()) return status;
  if (absl::Status status = ReadUsers(flags.run_as_owner, agent); !status.ok()) return status;
  flags.join_token = muster::agent::ReadJoinToken(flags.join_token_file);
  unsetenv("MUSTER_JOIN_TOKEN");  // the ranks inherit the environment
  if (flags.token_file.empty()) return absl::OkStatus();
  const absl::StatusOr<std::string> token = muster::agent::ReadToken(flags.token_file);
  if (token.ok()) agent.token = *token;
  return token.status();
}

// Creates the daemon's folders and locks them: no other daemon has them while the locks live.
absl::StatusOr<std::vector<muster::FileLock>> TakeFolders(const muster::agent::AgentOptions& options) {
  std::vector<muster::FileLock> locks;
  for (const std::string& folder : std::set<std::string>{options.state_dir, options.run_dir}) {
    const bool passable = folder == options.run_dir && options.users.switches();
    absl::Status status = passable ? muster::agent::MakePassableRunFolder(folder) : muster::MakePrivateFolder(folder);
    if (!status.ok()) return status;
    absl::StatusOr<muster::FileLock> lock = muster::FileLock::Take(
        folder + "/lock", "muster-worker", folder, "stop it first, or give this one a folder of its own");
    if (!lock.ok()) return lock.status();
    locks.push_back(*std::move(lock));
  }
  return locks;
}

absl::StatusOr<muster::Node> PrepareNode(const Flags& flags) {
  absl::StatusOr<muster::Node> node = muster::agent::IdentifyNode(flags.agent.state_dir);
  if (!node.ok()) return node.status();
  std::vector<muster::agent::Gpu> gpus;
  if (muster::agent::IsCudaBuild()) gpus = muster::agent::Gpus().List();
  const muster::agent::Machine machine = muster::agent::ReadMachine();
  *node->mutable_cpu() = muster::agent::CpuOf(machine);
  for (const std::string& label : std::set<std::string>(flags.labels.begin(), flags.labels.end())) {
    node->add_labels(label);
  }
  if (const absl::Status status = muster::CheckNodeLabels(node->labels()); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--label: ", std::string(status.message())));
  }
  for (muster::Slot& slot : muster::agent::MakeSlots(machine, gpus, flags.slots)) {
    *node->add_slots() = std::move(slot);
  }
  return node;
}

// False: a signal came first.
bool Pause(absl::Duration duration, int signals) {
  pollfd ending = {signals, POLLIN, 0};
  return poll(&ending, 1, static_cast<int>(absl::ToInt64Milliseconds(duration))) == 0;
}

// SIGTERM and SIGINT as a descriptor; every thread blocks them.
int SignalDescriptor() {
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);  // a write beyond RLIMIT_FSIZE is an error to handle
  sigset_t ending;
  sigemptyset(&ending);
  sigaddset(&ending, SIGTERM);
  sigaddset(&ending, SIGINT);
  sigprocmask(SIG_BLOCK, &ending, nullptr);
  return signalfd(-1, &ending, SFD_CLOEXEC | SFD_NONBLOCK);
}

void RaiseFileLimit() {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
}

// Serves the loop's state to Prometheus, once there is an agent. Null: not requested.
absl::StatusOr<std::unique_ptr<muster::MetricsEndpoint>> ServeMetrics(
    const Flags& flags, const muster::Node& node, const std::atomic<const muster::agent::Agent*>& serving,
    muster::agent::EventLoop& loop) {
  if (flags.metrics_address.empty()) return nullptr;
  using Reach = muster::MetricsEndpoint::Reach;
  const Reach reach = flags.allow_remote_metrics ? Reach::kNetwork : Reach::kThisMachine;
  return muster::MetricsEndpoint::Start(flags.metrics_address, reach, [&]() -> absl::StatusOr<std::string> {
    const muster::agent::Agent* const agent = serving;
    if (agent == nullptr) return absl::UnavailableError("the daemon is starting");
    const auto taken = std::make_shared<std::promise<muster::agent::WorkerView>>();
    std::future<muster::agent::WorkerView> view = taken->get_future();
    loop.Post([taken, agent] { taken->set_value(agent->View()); });
    if (view.wait_for(kPagePatience) != std::future_status::ready) {
      return absl::UnavailableError("the daemon is busy or ending");
    }
    return WorkerPage(view.get(), node);
  });
}

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "muster-worker: %s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("The worker daemon of Muster: runs the ranks of one machine.", "muster-worker");
  Flags flags;
  flags.agent.preflight = muster::agent::PreflightKind::kFull;
  AddFlags(app, flags);
  if (const int code = muster::ParseFlags(app, argc, argv); code >= 0) return code;
  muster::StartLog("worker", muster::LogLevelOf(flags.log_level));
  const int signals = SignalDescriptor();
  RaiseFileLimit();
  if (absl::Status status = FillIn(flags); !status.ok()) return Fail(status);
  const auto locks = TakeFolders(flags.agent);
  if (!locks.ok()) return Fail(locks.status());
  absl::StatusOr<muster::Node> node = PrepareNode(flags);
  if (!node.ok()) return Fail(node.status());
  muster::SetLogContext({{"node", node->id()}});
  static const muster::RealClock clock;  // as long as any thread
  const auto loop = std::make_shared<muster::agent::EventLoop>(&clock);
  // Before the coordinator knows of the node, since a taken port ends the daemon.
  std::atomic<const muster::agent::Agent*> serving = nullptr;
  auto metrics = ServeMetrics(flags, *node, serving, *loop);
  if (!metrics.ok()) return Fail(metrics.status());
  if (*metrics != nullptr) {
    std::printf("metrics at http://%s/metrics\n", (*metrics)->address().c_str());
    std::fflush(stdout);
  }

  const auto credentials =
      muster::agent::ObtainCredentials({flags.agent.coordinator, flags.join_token, flags.agent.state_dir, node->id()},
                                       [signals](absl::Duration duration) { return Pause(duration, signals); });
  if (!credentials.ok() && !absl::IsNotFound(credentials.status())) return Fail(credentials.status());
  if (credentials.ok()) {
    flags.agent.security = credentials->security;
    flags.agent.token.clear();  // the certificate says who we are
  }
  if (absl::Status status = muster::agent::CheckConnection(flags.agent.coordinator, flags.agent.security);
      !status.ok()) {
    return Fail(status);
  }

  muster::agent::Agent agent(flags.agent, *node, loop.get());
  serving = &agent;
  const absl::Cleanup before_the_agent = [&metrics] { metrics->reset(); };
  if (absl::Status status = agent.Start(); !status.ok()) return Fail(status);
  std::optional<muster::agent::Renewal> renewal;
  if (credentials.ok()) {
    renewal.emplace(muster::agent::Renewal::Options{flags.agent.coordinator, flags.agent.state_dir, node->id()},
                    *credentials, loop.get(),
                    [&agent](const muster::rpc::Security& security) { agent.UseSecurity(security); });
  }
  loop->Watch(signals, [&] {
    signalfd_siginfo info{};
    if (read(signals, &info, sizeof info) != sizeof info) return;
    muster::LogInfo("shutting down", {{"signal", info.ssi_signo == SIGTERM ? "SIGTERM" : "SIGINT"}});
    agent.Finish();
  });
  loop->Run();
  muster::LogInfo("stopped");
  return agent.result().ok() ? 0 : kVersionsDoNotFit;
}
