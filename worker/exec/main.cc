// muster-exec: runs one rank of an exec job, a program of the user's. Parses flags and wires objects.
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <cstdio>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/flags/daemon_flags.h"
#include "common/ids.h"
#include "common/log/log.h"
#include "common/version.h"
#include "worker/exec/program.h"
#include "worker/exec/runner.h"
#include "worker/rundir/termination.h"

namespace {

// Ends this process as its program ended, so that muster-step records the same signal.
int EndAs(const muster::exec::Outcome& outcome) {
  if (outcome.signal == 0) return outcome.code;
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  signal(outcome.signal, SIG_DFL);
  raise(outcome.signal);
  return 128 + outcome.signal;
}

}  // namespace

int main(int argc, char** argv) {
  muster::StartLog("exec", muster::LogLevel::kInfo);
  CLI::App app("Runs one rank of an exec job of Muster, a program of the user's.", "muster-exec");
  app.set_version_flag("--version", muster::kVersion);
  app.require_subcommand(1);
  muster::exec::RunOptions options;
  std::string job;
  uint64_t generation = 0;
  uint32_t rank = 0;
  CLI::App* run = app.add_subcommand("run", "one rank of a job; started by muster-step");
  run->add_option("--socket", options.link.socket, "the worker daemon's socket for trainers")->required();
  run->add_option("--rank-dir", options.rank_dir, "the rank's folder")->required();
  run->add_option("--container-word", options.container_command, "a word of the command that runs images")
      ->allow_extra_args(false);
  run->add_option("--job", job, "job id")->required();
  run->add_option("--generation", generation, "attempt at the job")->required();
  run->add_option("--rank", rank, "rank in the generation")->required();
  if (const int code = muster::ParseFlags(app, argc, argv); code >= 0) return code;
  muster::SetLogContext({muster::RankId{muster::JobId(job), generation, rank}});
  absl::StatusOr<muster::exec::Program> program = muster::exec::Program::Fork();
  if (!program.ok()) {
    muster::LogError("rank failed", {{"error", program.status().message()}});
    return 1;
  }
  muster::rundir::CatchSignals();
  for (char** entry = environ; *entry != nullptr; ++entry) options.inherited.emplace_back(*entry);
  options.link.key.set_job(job);
  options.link.key.set_generation(generation);
  options.link.key.set_rank(rank);
  const absl::StatusOr<muster::exec::Outcome> outcome =
      muster::exec::RunRank(options, *std::move(program), muster::rundir::Terminated);
  if (!outcome.ok()) muster::LogError("rank failed", {{"error", outcome.status().message()}});
  const int code = outcome.ok() ? EndAs(*outcome) : 1;
  // Not exit(), which waits for the dynamic linker: a thread may be left in a driver that does not answer.
  std::fflush(nullptr);
  _exit(code);
}
