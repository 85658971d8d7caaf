// muster-coordinator: parses flags and starts the server.
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/flags/daemon_flags.h"
#include "common/flags/values.h"
#include "common/log/log.h"
#include "common/timeouts.h"
#include "common/version.h"
#include "coordinator/daemon/server.h"

int main(int argc, char** argv) {
  // Large blocks, as a plan's, go back to the system when they are freed. Without this the bound grows with the blocks.
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
  CLI::App app("The coordinator of Muster: accepts jobs, places them on workers, and streams what happens.",
               "muster-coordinator");
  app.set_version_flag("--version", muster::kVersion);
  muster::server::ServerOptions options;
  std::string log_level = "info", preemption = "never";
  std::string tensorboard;
  app.add_option("--state-dir", options.state_dir, "folder of the store; one coordinator at a time")
      ->type_name("FOLDER")
      ->required();
  app.add_flag("--allow-network-filesystem", options.allow_network_filesystem,
               "the folder may be on NFS or the like, although accepted jobs may be lost there");
  app.add_option("--listen", options.listen,
                 "unix:/path, 127.0.0.1:PORT, or HOST:PORT after `muster coordinator init`; may be repeated")
      ->type_name("ADDRESS")
      ->required();
  app.add_option("--token-file", options.token_file,
                 "lines `token name role`; needed for TCP where `muster coordinator init` was not run")
      ->type_name("FILE");
  app.add_flag("--private-jobs", options.private_jobs,
               "specs, logs and metrics of a job are for its owner and admins; others see only that it is there");
  app.add_option("--min-free-bytes", options.min_free_bytes,
                 "refuse new jobs when the store's disk has less free space")
      ->capture_default_str();
  app.add_option("--max-connections", options.connections.connections,
                 "refuse connections beyond; half as many of one address, a quarter without an admitted call")
      ->default_str("by the limit of open files");
  app.add_option("--max-ranks", options.max_ranks, "refuse jobs with more ranks")
      ->check(muster::Between(1, 4096))
      ->capture_default_str();
  app.add_option("--tensorboard", tensorboard,
                 "folder for TensorBoard's files (default: STATE_DIR/tensorboard; off: none)")
      ->type_name("FOLDER|off");
  app.add_option("--metrics-address", options.metrics_address,
                 "address that serves /metrics for Prometheus: 127.0.0.1:9464 (default: off)")
      ->type_name("ADDRESS");
  app.add_flag("--allow-remote-metrics", options.allow_remote_metrics,
               "--metrics-address may be reached from other machines, in plain HTTP without a password");
  app.add_option(
         "--web-address", options.web_address,
         "address of the web page: 127.0.0.1:7080, with port 0 a free one that stays the same, or HOST:PORT after "
         "`muster coordinator init` (default: off)")
      ->type_name("ADDRESS");
  muster::AddDuration(app, "--node-certificate-life", options.node_certificate_life,
                      "lifetime of worker certificates; workers renew them when a third is left");
  muster::AddDuration(app, "--orphan-grace", options.workers.orphan_grace,
                      "how long ranks keep running without their worker daemon");
  muster::AddDuration(app, "--detection", options.workers.detection,
                      "how long a fault may go undetected; other time-outs are derived from it (see muster plan)");
  absl::Duration start_deadline;
  const CLI::Option* const start =
      muster::AddDuration(app, "--start-deadline", start_deadline,
                          "limit for every rank of a generation to start, and for the first step")
          ->default_str("6 x detection, at least 5m");
  muster::AddDuration(app, "--grow-after", options.core.grow_after,
                      "how long a job on fewer ranks than it requests runs before it may grow");
  muster::AddDuration(
      app, "--measure-links-every", options.core.links_valid_for,
      "how long measured figures of the links between nodes stay valid; slow ones are measured each time");
  muster::AddDuration(app, "--backoff-base", options.core.backoff_base,
                      "delay before the first restart of a failed job; doubles with each restart");
  muster::AddDuration(app, "--backoff-max", options.core.backoff_max, "longest delay before a restart");
  app.add_option("--node-fault-limit", options.core.node_fault_limit,
                 "drain a node on which so many jobs had faults, or contact was lost, within --node-fault-window")
      ->check(muster::Between(1, 1000))
      ->capture_default_str();
  muster::AddDuration(app, "--node-fault-window", options.core.node_fault_window, "how long a fault of a node counts");
  app.add_option(
         "--most-drained-share", options.core.most_drained_share,
         "share of the nodes, at least one of several, that are drained for faults at the same time; 0: one at most")
      ->check(muster::Between(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--max-queued-jobs", options.core.max_queued_jobs, "refuse new jobs while so many wait")
      ->capture_default_str();
  app.add_option("--max-queued-jobs-of-user", options.core.max_queued_jobs_of_user, "of one user; 0: no limit")
      ->capture_default_str();
  app.add_option("--max-running-ranks-of-user", options.core.max_running_ranks_of_user,
                 "ranks that the jobs of one user may run at a time; further jobs wait; 0: no limit")
      ->capture_default_str();
  muster::AddDuration(app, "--fair-share-half-life", options.core.fair_share_half_life,
                      "half of what projects and users have used counts after this time; inf: all of it, for ever");
  app.add_option("--preemption", preemption,
                 "never, or lower_priority: waiting jobs may stop running ones of lower priority; projects reclaim "
                 "their quota in any case")
      ->check(muster::OneOf({"lower_priority", "never"}))
      ->capture_default_str();
  muster::AddDuration(app, "--preemption-min-run", options.core.preemption_min_run,
                      "no job is preempted before it has run for so long");
  app.add_option("--max-submits-of-user", options.core.max_submits_of_user,
                 "jobs that one user may submit within a minute; 0: no limit")
      ->capture_default_str();
  app.add_option("--lowest-priority", options.core.lowest_priority, "refuse jobs with a lower priority")
      ->default_str("none");
  app.add_option("--highest-priority", options.core.highest_priority, "refuse jobs with a higher priority")
      ->default_str("none");
  app.add_option("--max-ended-jobs", options.core.max_ended_jobs,
                 "keep so many ended jobs with their history; beyond, those that ended first are deleted")
      ->capture_default_str();
  app.add_option("--notify", options.notify_file,
                 "file that says which state events are posted to a webhook or given to a command (docs/notices.md)")
      ->type_name("FILE");
  app.add_option("--tracking", options.tracking_file,
                 "file that says which jobs are copied to which tracking server, as MLflow (docs/tracking.md)")
      ->type_name("FILE");
  app.add_option("--max-audit-entries", options.audit_kept,
                 "keep so many entries of the audit log; beyond, the oldest go")
      ->check(CLI::Range(1000, 100'000'000))
      ->capture_default_str();
  muster::AddDuration(app, "--keep-ended-for", options.core.keep_ended_for,
                      "delete jobs that ended so long ago; inf: never");
  muster::AddDuration(app, "--forget-lost-after", options.core.forget_lost_after,
                      "take a node that has been lost for so long from the list; inf: never (muster nodes forget)");
  app.add_option("--log-level", log_level, "debug, info, warn, error")
      ->check(muster::OneOf({"debug", "info", "warn", "error"}))
      ->capture_default_str();
  if (const int code = muster::ParseFlags(app, argc, argv); code >= 0) return code;
  options.core.preempt_lower_priority = preemption == "lower_priority";
  muster::StartLog("coordinator", muster::LogLevelOf(log_level));
  options.core.grow_settle = std::min(options.core.grow_settle, options.core.grow_after / 10);
  options.core.timeouts = muster::Derive(options.workers.detection);
  if (start->count() > 0) {
    options.core.timeouts.start = start_deadline;
    options.core.timeouts.collective = std::max(options.core.timeouts.collective, 2 * start_deadline);
  }
  if (absl::Status s = muster::Validate(options.core.timeouts, options.workers.orphan_grace); !s.ok()) {
    std::fprintf(stderr, "muster-coordinator: time-outs: %s; derived from --detection, except for --orphan-grace\n",
                 std::string(s.message()).c_str());
    return 1;
  }

  // Writes beyond RLIMIT_FSIZE and to closed sockets are errors to handle and must not end the process. main waits for
  // the two signals that end it, so every thread blocks them.
  signal(SIGXFSZ, SIG_IGN);
  signal(SIGPIPE, SIG_IGN);
  sigset_t ending;
  sigemptyset(&ending);
  sigaddset(&ending, SIGTERM);
  sigaddset(&ending, SIGINT);
  pthread_sigmask(SIG_BLOCK, &ending, nullptr);

  options.state_dir = std::filesystem::absolute(options.state_dir).string();
  if (tensorboard.empty()) tensorboard = options.state_dir + "/tensorboard";
  if (tensorboard != "off") options.tensorboard_dir = std::filesystem::absolute(tensorboard).string();
  const muster::RealClock clock;
  absl::StatusOr<std::unique_ptr<muster::server::Server>> server = muster::server::Server::Start(options, &clock);
  if (!server.ok()) {
    std::fprintf(stderr, "muster-coordinator: %s\n", std::string(server.status().message()).c_str());
    return 1;
  }
  for (const std::string& address : (*server)->addresses()) std::printf("listening on %s\n", address.c_str());
  if (!options.metrics_address.empty()) {
    std::printf("metrics at http://%s/metrics\n", (*server)->metrics_address().c_str());
  }
  if (!options.web_address.empty()) std::printf("web page at %s\n", (*server)->web_url().c_str());
  std::fflush(stdout);

  int signal_number = 0;
  sigwait(&ending, &signal_number);
  muster::LogInfo("shutting down", {{"signal", signal_number == SIGTERM ? "SIGTERM" : "SIGINT"}});
  (*server)->Shutdown();
  muster::LogInfo("stopped");
  return 0;
}
