#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cli/commands/commands.h"
#include "cli/commands/submission.h"
#include "cli/follow_job.h"
#include "cli/job_file.h"
#include "cli/output/describe.h"
#include "cli/output/format.h"
#include "cli/output/scaling.h"
#include "cli/output_format.h"

namespace muster::cli {
namespace {

constexpr size_t kLongestName = 40;

struct BenchFlags {
  std::vector<std::string> files;
  std::vector<std::string> sets;
  std::vector<uint32_t> ranks = {1, 2, 4};
  std::vector<std::string> strategies = {""};  // "": the job's own
  uint64_t steps = 25;
  uint64_t warm_up = 5;
  bool weak = false;
  Format format = Format::kTable;
};

// What --strategies takes, as `muster plan` names them without spaces.
constexpr const char* kStrategyNames[] = {"ddp", "zero1", "zero2", "zero3", "fsdp", "shard_grad_op", "hybrid"};

v1::Strategy StrategyOf(const std::string& name) {
  v1::Strategy strategy;
  if (name == "ddp") {
    strategy.mutable_ddp();
  } else if (absl::StartsWith(name, "zero")) {
    strategy.mutable_zero()->set_stage(static_cast<uint32_t>(name.back() - '0'));
  } else {
    strategy.mutable_fsdp()->set_reshard(name == "hybrid"          ? v1::RESHARD_HYBRID
                                         : name == "shard_grad_op" ? v1::RESHARD_SHARD_GRAD_OP
                                                                   : v1::RESHARD_FULL_SHARD);
  }
  return strategy;
}

// The job as measured: no checkpoints, no validation, no restarts, a constant learning rate.
v1::JobSpec Measured(v1::JobSpec spec, const std::string& strategy, uint32_t ranks, const BenchFlags& flags) {
  const std::string tail = absl::StrCat("-bench-", ranks);
  spec.set_name(absl::StrCat(spec.name().substr(0, kLongestName - tail.size()), tail));
  spec.mutable_resources()->set_ranks(ranks);
  spec.set_max_restarts(0);
  v1::Train& train = *spec.mutable_train();
  train.set_steps(flags.steps + flags.warm_up);
  train.clear_checkpoint();
  train.clear_validation();
  train.mutable_data()->clear_validation();
  if (train.has_optimizer())
    train.mutable_optimizer()->clear_lr_schedule();  // a warm-up may be longer than the benchmark
  // One rank runs `single`, several run `ddp`, unless the job names a strategy that runs on any number.
  if (train.strategy().has_single()) train.clear_strategy();
  if (!strategy.empty()) *train.mutable_strategy() = StrategyOf(strategy);
  if (flags.weak && train.has_batch() && train.batch().has_sequences()) {
    train.mutable_batch()->set_sequences(train.batch().sequences() * ranks);
  }
  return spec;
}

struct Outcome {
  ExitCode code = kOk;
  std::optional<Scaling> row;
};

// Submits the job, waits for its end, and summarizes. Ctrl-C cancels the measured job.
absl::StatusOr<Outcome> Measure(const Invocation& invocation, Client& client, const Reading& reading,
                                const std::string& strategy, uint32_t ranks, const BenchFlags& flags) {
  v1::SubmitRequest request;
  request.set_request_id(NewRequestId());
  *request.mutable_spec() = Measured(reading.spec, strategy, ranks, flags);
  const absl::StatusOr<v1::SubmitReply> submitted = client.Submit(request);
  if (!submitted.ok()) return WithPlaces(submitted.status(), reading.sources);
  const std::string& id = submitted->job().id();
  const uint32_t sequences = submitted->plan().resolved().train().batch().sequences();
  invocation.Remember(id, client);
  Say(absl::StrCat(id, ": ", strategy, strategy.empty() ? "" : " on ", ranks, ranks == 1 ? " rank" : " ranks", ", ",
                   sequences, " samples a step"));
  std::vector<v1::MetricPoint> points;
  v1::WatchRequest watch;
  watch.set_job(id);
  watch.set_metrics(true);
  watch.set_events(true);
  watch.set_follow(true);
  const auto take = [&](const v1::WatchItem& item) {
    if (item.has_metrics()) points.push_back(item.metrics());
    if (item.has_snapshot() && item.snapshot().state() == v1::JOB_STATE_QUEUED) {
      Say(absl::StrCat(id, " waits: ", item.snapshot().reason()));
    }
    return true;
  };
  const absl::StatusOr<ExitCode> followed = FollowItems(
      client, watch, client.connection().timeout, take, [] {}, absl::StrCat("interrupted; cancelling ", id));
  if (!followed.ok() || *followed != kOk) {
    if (const auto cancelled = client.Cancel(id); !cancelled.ok()) Say(std::string(cancelled.status().message()));
    return followed.ok() ? absl::StatusOr<Outcome>(Outcome{*followed, {}}) : followed.status();
  }
  const absl::StatusOr<v1::GetJobReply> job = client.GetJob(id);
  if (!job.ok()) return job.status();
  if (job->job().state() != v1::JOB_STATE_COMPLETED) {
    return absl::AbortedError(absl::StrCat(id, " did not complete; muster describe ", id, " says why"));
  }
  std::optional<Scaling> row = Summarise(points, flags.warm_up, ranks, sequences);
  if (!row.has_value()) return absl::DataLossError(absl::StrCat(id, " sent no metrics"));
  row->strategy = strategy;
  return Outcome{kOk, row};
}

absl::StatusOr<ExitCode> Run(const Invocation& invocation, const BenchFlags& flags) {
  const absl::StatusOr<Reading> reading = LoadJobFiles(flags.files, flags.sets, {});
  if (!reading.ok()) return reading.status();
  const absl::StatusOr<std::unique_ptr<Client>> client = invocation.Connect();
  if (!client.ok()) return client.status();
  std::vector<Scaling> rows;
  for (const std::string& strategy : flags.strategies) {
    for (const uint32_t ranks : flags.ranks) {
      const absl::StatusOr<Outcome> outcome = Measure(invocation, **client, *reading, strategy, ranks, flags);
      if (!outcome.ok()) return outcome.status();
      if (!outcome->row.has_value()) return outcome->code;
      rows.push_back(*outcome->row);
    }
  }
  if (flags.format == Format::kTable) {
    Print(ScalingTable(rows).Render(invocation.Out()));
  } else {
    PrintTree(ScalingTree(rows), flags.format);
  }
  return kOk;
}

}  // namespace

void RegisterBench(CLI::App& app, Invocation& invocation) {
  const auto flags = std::make_shared<BenchFlags>();
  CLI::App* command =
      AddCommand(app, "bench", kGroupRun, "Compare a job on several numbers of ranks, or by several strategies",
                 "muster bench job.yaml --ranks 1,2 --steps 10\n"
                 "muster bench job.yaml --ranks 2 --strategies ddp,fsdp --steps 10");
  command->add_option("FILE", flags->files, "job files, - for standard input; later files override earlier ones")
      ->required();
  command->add_option("--set", flags->sets, "PATH=VALUE: override a field; may be repeated")
      ->type_name("PATH=VALUE")
      ->allow_extra_args(false);
  command->add_option("--ranks", flags->ranks, "numbers of ranks, one job after the other")
      ->delimiter(',')
      ->check(CLI::Range(1, 4096))
      ->type_name("N,...")
      ->default_str("1,2,4");
  command->add_option("--strategies", flags->strategies, "strategies with their defaults, one after the other")
      ->delimiter(',')
      ->check(CLI::IsMember(std::vector<std::string>(std::begin(kStrategyNames), std::end(kStrategyNames))))
      ->type_name("NAME,...")
      ->default_str("the job's own");
  command->add_option("--steps", flags->steps, "steps to measure")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  command->add_option("--warm_up", flags->warm_up, "steps to run before measuring")->capture_default_str();
  command->add_flag("--weak", flags->weak, "weak scaling: batch.sequences is the batch of each rank");
  AddFormat(command, flags->format, {"table", "json", "yaml"});
  OnRun(command, invocation, [&invocation, flags] { return Run(invocation, *flags); });
}

}  // namespace muster::cli
