// muster-trainer: one rank of a job (run), and what a checkpoint says (sample, eval). Parses flags and wires objects.
#include <signal.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <CLI/CLI.hpp>

#include <atomic>
#include <cstdio>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/version.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/engine/engine.h"
#include "worker/trainer/link.h"
#include "worker/trainer/loop.h"
#include "worker/trainer/sample.h"
#include "worker/trainer/weights.h"

namespace {

using muster::trainer::SampleOptions;

std::atomic<bool> terminated = false;
static_assert(std::atomic<bool>::is_always_lock_free, "set by a signal handler");

void CatchSignals() {
  struct sigaction action = {};
  action.sa_handler = [](int) { terminated = true; };
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
  // A gone reader and a full disk are errors of the calls that meet them.
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);
}

struct RunOptions {
  muster::trainer::Link::Options link;
  std::string rank_dir;
};

absl::Status Run(const RunOptions& options) {
  CatchSignals();
  muster::trainer::Link link(options.link);
  const auto interrupted = [] { return terminated.load(); };
  absl::StatusOr<muster::Assignment> assignment = link.WaitForAssignment(interrupted);
  if (absl::IsCancelled(assignment.status())) {
    spdlog::info("{}", std::string(assignment.status().message()));
    return absl::OkStatus();
  }
  if (!assignment.ok()) return assignment.status();
  spdlog::info("muster-trainer {}: job {}, generation {}, rank {} of {}", muster::kVersion, options.link.key.job(),
               options.link.key.generation(), options.link.key.rank(), assignment->world());
  return muster::trainer::TrainRank(*assignment, options.rank_dir, link, interrupted).status();
}

struct Model {
  muster::checkpoint::Checkpoint checkpoint;
  std::unique_ptr<muster::engine::Engine> engine;
};

absl::StatusOr<Model> Open(const std::string& path, int threads) {
  absl::StatusOr<muster::checkpoint::Checkpoint> checkpoint = muster::trainer::OpenNewest(path);
  if (!checkpoint.ok()) return checkpoint.status();
  auto engine =
      muster::trainer::LoadForInference(*checkpoint, threads > 0 ? threads : muster::trainer::AvailableCores());
  if (!engine.ok()) return engine.status();
  return Model{*std::move(checkpoint), *std::move(engine)};
}

absl::Status Sample(const std::string& checkpoint, int threads, const SampleOptions& options) {
  absl::StatusOr<Model> model = Open(checkpoint, threads);
  if (!model.ok()) return model.status();
  const muster::Inventory& inventory = model->checkpoint.manifest().inventory();
  const auto put = [](char c) { return std::fputc(c, stdout) != EOF && std::fflush(stdout) == 0; };
  const auto begin = [&, begun = false](char c) mutable {
    // The prompt once the model is known to answer it.
    if (!begun) std::fwrite(options.prompt.data(), 1, options.prompt.size(), stdout);
    begun = true;
    return put(c);
  };
  absl::Status status =
      muster::trainer::Sample(*model->engine, inventory.vocabulary(), inventory.context(), options, begin);
  if (status.ok()) put('\n');
  return status;
}

absl::Status Evaluate(const std::string& checkpoint, int threads, const std::string& tokens, uint64_t sequences) {
  absl::StatusOr<Model> model = Open(checkpoint, threads);
  if (!model.ok()) return model.status();
  absl::StatusOr<double> loss =
      muster::trainer::MeanLoss(*model->engine, model->checkpoint.manifest().inventory(), tokens, sequences);
  if (!loss.ok()) return loss.status();
  std::printf("%.9g\n", *loss);
  return absl::OkStatus();
}

void StartLog() {
  spdlog::set_default_logger(std::make_shared<spdlog::logger>("", std::make_shared<spdlog::sinks::stderr_sink_mt>()));
  spdlog::set_pattern("%Y-%m-%dT%H:%M:%S.%e %L %v");
}

}  // namespace

int main(int argc, char** argv) {
  StartLog();
  CLI::App app("Trains one rank of a job of Muster; samples from and evaluates its checkpoints.", "muster-trainer");
  app.set_version_flag("--version", muster::kVersion);
  app.require_subcommand(1);

  RunOptions run;
  std::string job;
  uint64_t generation = 0;
  uint32_t rank = 0;
  CLI::App* run_command = app.add_subcommand("run", "one rank of a job; started by muster-step");
  run_command->add_option("--socket", run.link.socket, "the worker daemon's socket for trainers")->required();
  run_command->add_option("--rank_dir", run.rank_dir, "the rank's folder")->required();
  run_command->add_option("--job", job, "job id")->required();
  run_command->add_option("--generation", generation, "attempt at the job")->required();
  run_command->add_option("--rank", rank, "rank in the generation")->required();

  std::string checkpoint;
  int threads = 0;
  const auto add_model = [&](CLI::App* command) {
    command->add_option("--checkpoint", checkpoint, "a step's folder, or checkpoint.path (its newest whole step)")
        ->required();
    command->add_option("--threads", threads, "CPU threads; 0: all cores");
  };
  SampleOptions sample;
  CLI::App* sample_command = app.add_subcommand("sample", "write text from a byte-level model");
  add_model(sample_command);
  sample_command->add_option("--prompt", sample.prompt, "text to go on from");
  sample_command->add_option("--tokens", sample.tokens, "tokens to write")->capture_default_str();
  sample_command->add_option("--temperature", sample.temperature, "0: always the likeliest token")
      ->capture_default_str();
  sample_command->add_option("--top_k", sample.top_k, "only among the k likeliest; 0: all")->capture_default_str();
  sample_command->add_option("--seed", sample.seed, "of the random choice")->capture_default_str();

  std::string tokens;
  uint64_t sequences = 0;
  CLI::App* eval_command = app.add_subcommand("eval", "mean loss in nats per token on a token file");
  add_model(eval_command);
  eval_command->add_option("--data", tokens, "token file")->required();
  eval_command->add_option("--sequences", sequences, "first windows of the file; 0: all");

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  absl::Status status;
  if (run_command->parsed()) {
    run.link.key.set_job(job);
    run.link.key.set_generation(generation);
    run.link.key.set_rank(rank);
    status = Run(run);
  } else if (sample_command->parsed()) {
    status = Sample(checkpoint, threads, sample);
  } else {
    status = Evaluate(checkpoint, threads, tokens, sequences);
  }
  if (status.ok()) return 0;
  spdlog::error("failed: {}", std::string(status.message()));
  return 1;
}
