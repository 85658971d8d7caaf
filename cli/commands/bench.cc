#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cli/check_job.h"
#include "cli/commands/commands.h"
#include "cli/commands/submission.h"
#include "cli/follow_job.h"
#include "cli/job_file.h"
#include "cli/output/collectives.h"
#include "cli/output/describe.h"
#include "cli/output/format.h"
#include "cli/output/scaling.h"
#include "cli/output_format.h"
#include "common/bytes.h"
#include "common/flags/values.h"

namespace muster::cli {
namespace {

constexpr size_t kLongestName = 40;

struct BenchFlags {
  std::vector<std::string> files;
  SetFlags set;
  std::vector<uint32_t> ranks;                 // empty: 1, 2 and 4; with --communication the job's
  std::vector<std::string> strategies = {""};  // "": the job's own
  uint64_t steps = 25;
  uint64_t warm_up = 5;
  bool weak = false;
  std::string hardware;  // predict for it; empty: run
  Format format = Format::kTable;
  // --communication
  bool communication = false;
  std::vector<std::string> collectives, modes;
  uint64_t min_bytes = 1 << 10, max_bytes = 16 << 20, step_factor = 4, bucket_bytes = 0;
  std::string plot;
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

// No checkpoints, no validation, no restarts, and a constant learning rate: a warm-up may be longer than the benchmark.
v1::JobSpec Bare(v1::JobSpec spec, uint32_t ranks) {
  const std::string tail = absl::StrCat("-bench-", ranks);
  spec.set_name(absl::StrCat(spec.name().substr(0, kLongestName - tail.size()), tail));
  spec.mutable_resources()->set_ranks(ranks);
  spec.mutable_resources()->clear_min_ranks();
  spec.set_max_restarts(0);
  v1::Train& train = *spec.mutable_train();
  train.clear_checkpoint();
  train.clear_validation();
  train.mutable_data()->clear_validation();
  if (train.has_optimizer()) train.mutable_optimizer()->clear_lr_schedule();
  return spec;
}

// The job as measured.
v1::JobSpec Measured(const v1::JobSpec& job, const std::string& strategy, uint32_t ranks, const BenchFlags& flags) {
  v1::JobSpec spec = Bare(job, ranks);
  v1::Train& train = *spec.mutable_train();
  train.set_steps(flags.steps + flags.warm_up);
  // One rank runs `single`, several run `ddp`, unless the job names a strategy that runs on any number.
  if (train.strategy().has_single()) train.clear_strategy();
  if (!strategy.empty()) *train.mutable_strategy() = StrategyOf(strategy);
  if (flags.weak && train.has_batch() && train.batch().has_sequences()) {
    train.mutable_batch()->set_sequences(train.batch().sequences() * ranks);
  }
  return spec;
}

// What a job that ran to its end reported, or why it did not: the code to exit with.
struct Reported {
  ExitCode code = kOk;
  std::string id;
  uint32_t sequences = 0;  // a step
  double predicted_seconds = 0;
  std::vector<v1::MetricPoint> points;
};

// "  step 12/30  40%  9s left"
std::string BenchProgress(const v1::MetricPoint& point, uint64_t total) {
  std::string text = absl::StrCat("  step ", point.step());
  if (total < point.step() || total == 0) return text;
  absl::StrAppend(&text, "/", total, "  ", 100 * point.step() / total, "%");
  if (!point.has_step_seconds()) return text;
  return absl::StrCat(text, "  ", Span(absl::Seconds(static_cast<double>(total - point.step()) * point.step_seconds())),
                      " left");
}

// Submits the job and waits for its end. Ctrl-C cancels it.
absl::StatusOr<Reported> RunMeasured(const Invocation& invocation, Client& client, const Reading& reading,
                                     const v1::JobSpec& spec, const std::string& what) {
  v1::SubmitRequest request;
  request.set_request_id(NewRequestId());
  *request.mutable_spec() = spec;
  const absl::StatusOr<v1::SubmitReply> submitted = client.Submit(request);
  if (!submitted.ok()) return WithPlaces(submitted.status(), reading.sources);
  Reported reported{.id = submitted->job().id(),
                    .sequences = submitted->plan().resolved().train().batch().sequences(),
                    .predicted_seconds = submitted->plan().simulated().step_seconds()};
  const std::string& id = reported.id;
  invocation.Remember(id, client);
  const uint32_t ranks = spec.resources().ranks();
  Say(absl::StrCat(id, ": ", what, ranks, ranks == 1 ? " rank" : " ranks", ", ",
                   spec.train().has_bench() ? absl::StrCat(submitted->job().spec().train().steps(), " measurements")
                                            : absl::StrCat(reported.sequences, " samples a step")));
  v1::WatchRequest watch;
  watch.set_job(id);
  watch.set_metrics(true);
  watch.set_events(true);
  watch.set_follow(true);
  const Screen err = invocation.Err();
  const uint64_t total = submitted->job().spec().train().steps();
  bool drawn = false;
  const auto clear = [&] {
    if (std::exchange(drawn, false)) std::fputs("\r\x1b[K", stderr);
  };
  const auto idle = [&] {
    if (!err.terminal || reported.points.empty()) return;
    std::fprintf(stderr, "\r\x1b[K%s", BenchProgress(reported.points.back(), total).c_str());
    drawn = true;
  };
  const auto take = [&](const v1::WatchItem& item) {
    if (item.has_metrics()) reported.points.push_back(item.metrics());
    if (item.has_snapshot()) clear();
    if (item.has_snapshot() && item.snapshot().state() == v1::JOB_STATE_QUEUED) {
      Say(absl::StrCat(id, " is queued: ", OneLine(item.snapshot().reason())));
    }
    return true;
  };
  const auto say = [&](const std::string& line) {
    clear();
    Say(line);
  };
  const absl::StatusOr<ExitCode> followed = FollowItems(client, watch,
                                                        {.take = take,
                                                         .idle = idle,
                                                         .say = say,
                                                         .timeout = client.connection().timeout,
                                                         .detached = absl::StrCat("interrupted; cancelling ", id),
                                                         .after_timeout = absl::StrCat("cancelling ", id)});
  clear();
  if (!followed.ok() || *followed != kOk) {
    if (const auto cancelled = client.Cancel(id); !cancelled.ok()) Say(std::string(cancelled.status().message()));
    if (!followed.ok()) return followed.status();
    reported.code = *followed;
    return reported;
  }
  const absl::StatusOr<v1::GetJobReply> job = client.GetJob(id);
  if (!job.ok()) return job.status();
  if (job->job().state() != v1::JOB_STATE_COMPLETED) {
    return absl::AbortedError(absl::StrCat(id, " did not complete; see: muster describe ", id));
  }
  return reported;
}

absl::StatusOr<v1::CollectiveBench> Measurements(const BenchFlags& flags) {
  if (flags.min_bytes > flags.max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("--min-bytes ", FormatBytes(flags.min_bytes),
                                                   " is above --max-bytes ", FormatBytes(flags.max_bytes)));
  }
  v1::CollectiveBench bench;
  const auto selected = [](const std::vector<std::string>& names, const std::string& name) {
    return names.empty() || std::find(names.begin(), names.end(), name) != names.end();
  };
  for (int i = 1; i < v1::Collective_ARRAYSIZE; ++i) {
    const auto collective = static_cast<v1::Collective>(i);
    if (selected(flags.collectives, CollectiveName(collective))) bench.add_collectives(collective);
  }
  for (int i = 1; i < v1::CollectiveMode_ARRAYSIZE; ++i) {
    const auto mode = static_cast<v1::CollectiveMode>(i);
    if (selected(flags.modes, CollectiveModeName(mode))) bench.add_modes(mode);
  }
  for (uint64_t bytes = flags.min_bytes; bytes <= flags.max_bytes; bytes *= flags.step_factor) bench.add_bytes(bytes);
  if (flags.bucket_bytes > 0) bench.set_bucket_bytes(flags.bucket_bytes);
  return bench;
}

bool AsksForLevels(const v1::CollectiveBench& bench) {
  return std::count(bench.modes().begin(), bench.modes().end(), v1::COLLECTIVE_MODE_HIERARCHICAL) > 0;
}

// What the job left out: sizes, after a call that took too long, and modes that its ranks do not have.
void SayLeftOut(const v1::CollectiveBench& bench, const std::vector<v1::CollectiveTime>& rows) {
  for (const int collective : bench.collectives()) {
    for (const int mode : bench.modes()) {
      int measured = 0;
      double seconds = 0;
      for (const v1::CollectiveTime& row : rows) {
        if (row.collective() == collective && row.mode() == mode) ++measured, seconds = row.seconds();
      }
      if (measured == 0 || measured == bench.bytes_size()) continue;
      Say(absl::StrFormat("%s, %s: sizes from %s on were skipped: the one before took %.1f s",
                          CollectiveName(static_cast<v1::Collective>(collective)),
                          CollectiveModeName(static_cast<v1::CollectiveMode>(mode)), FormatBytes(bench.bytes(measured)),
                          seconds));
    }
  }
  const auto is_hierarchical = [](const v1::CollectiveTime& row) {
    return row.mode() == v1::COLLECTIVE_MODE_HIERARCHICAL;
  };
  if (AsksForLevels(bench) && std::none_of(rows.begin(), rows.end(), is_hierarchical)) {
    Say("hierarchical was skipped: it needs several nodes with the same number of ranks, at least two, "
        "and ddp or one shard a rank");
  }
}

// Of the numbers of ranks those that the live nodes have slots for: a job with more would wait in the queue. Says which
// are skipped. FailedPrecondition: none is left.
absl::StatusOr<std::vector<uint32_t>> WithSlots(Client& client, const std::vector<uint32_t>& ranks) {
  const absl::StatusOr<v1::ListNodesReply> nodes = client.ListNodes();
  if (!nodes.ok()) return nodes.status();
  uint32_t slots = 0;
  for (const v1::Node& node : nodes->nodes()) {
    if (node.state() != v1::NODE_STATE_LIVE || node.draining() || node.leaving()) continue;
    slots += static_cast<uint32_t>(std::count_if(node.slots().begin(), node.slots().end(), [](const v1::Slot& slot) {
      return slot.state() != v1::SLOT_STATE_STUCK;
    }));
  }
  const std::string have = absl::StrCat("the nodes have ", slots, slots == 1 ? " slot" : " slots");
  const auto remedy = [&](uint32_t wanted) {
    return client.connection().default_address
               ? absl::StrCat("; for more: muster local down, then muster local up --slots ", wanted)
               : "";
  };
  std::vector<uint32_t> fit;
  for (const uint32_t number : ranks) {
    if (number <= slots) {
      fit.push_back(number);
    } else if (ranks.size() > 1) {
      Say(absl::StrCat("skipped ", number, number == 1 ? " rank: " : " ranks: ", have, remedy(number)));
    }
  }
  if (!fit.empty()) return fit;
  const uint32_t least = *std::min_element(ranks.begin(), ranks.end());
  return absl::FailedPreconditionError(
      absl::StrCat("nothing to measure: ", have, ", and --ranks asks for at least ", least, remedy(least)));
}

absl::StatusOr<ExitCode> BenchCommunication(const Invocation& invocation, Client& client, const Reading& reading,
                                            const std::vector<uint32_t>& ranks, const BenchFlags& flags) {
  const absl::StatusOr<v1::CollectiveBench> bench = Measurements(flags);
  if (!bench.ok()) return bench.status();
  if (*std::min_element(ranks.begin(), ranks.end()) < 2) {
    return absl::InvalidArgumentError(
        "one rank has no collectives to measure: give --ranks 2 or more, or resources.ranks in the job file");
  }
  if (absl::Status output = flags.plot.empty() ? absl::OkStatus() : CheckOutput(flags.plot); !output.ok()) {
    return output;
  }
  const absl::StatusOr<std::vector<uint32_t>> fit = WithSlots(client, ranks);
  if (!fit.ok()) return fit.status();
  std::vector<v1::CollectiveTime> rows;
  for (const uint32_t number : *fit) {
    v1::JobSpec spec = Bare(reading.spec, number);
    *spec.mutable_train()->mutable_bench() = *bench;
    if (AsksForLevels(*bench)) {
      spec.mutable_train()->mutable_communication()->set_hierarchy(v1::HIERARCHY_ALWAYS);
    }
    spec.mutable_train()->clear_steps();
    if (spec.train().strategy().has_single()) spec.mutable_train()->clear_strategy();
    const absl::StatusOr<Reported> reported = RunMeasured(invocation, client, reading, spec, "collectives on ");
    if (!reported.ok()) return reported.status();
    if (reported->code != kOk) return reported->code;
    std::vector<v1::CollectiveTime> measured;
    for (const v1::MetricPoint& point : reported->points) {
      if (point.has_collective()) measured.push_back(point.collective());
    }
    SayLeftOut(*bench, measured);
    if (measured.empty()) {
      return absl::FailedPreconditionError(absl::StrCat(reported->id, " measured nothing: choose other --modes"));
    }
    rows.insert(rows.end(), measured.begin(), measured.end());
  }
  if (!flags.plot.empty()) {
    const std::string title = absl::StrCat("collectives of ", reading.spec.name());
    if (absl::Status s = WriteOutput(flags.plot, CollectivesSvg(rows, title)); !s.ok()) return s;
  }
  if (flags.format != Format::kTable) {
    PrintTree(CollectivesTree(rows), flags.format);
    return kOk;
  }
  Print(CollectivesTable(rows).Render(invocation.Out()));
  Print(absl::StrFormat("# Avg bus bandwidth    : %.4f GB/s\n", MeanBusBandwidth(rows) / 1e9));
  return kOk;
}

// On `hardware`, or if that is empty on the nodes. Nothing runs.
absl::StatusOr<v1::PlanReply> PlanOf(Client& client, const Reading& reading, const v1::JobSpec& spec,
                                     const std::string& hardware) {
  v1::PlanRequest request;
  *request.mutable_spec() = spec;
  request.set_hardware(hardware);
  absl::StatusOr<v1::PlanReply> plan = client.Plan(request);
  if (!plan.ok()) return WithPlaces(plan.status(), reading.sources);
  return plan;
}

absl::StatusOr<ExitCode> Run(const Invocation& invocation, const BenchFlags& flags) {
  const absl::StatusOr<Reading> reading = LoadJobFiles(flags.files, flags.set, {}, TemplatesOf(invocation));
  if (!reading.ok()) return reading.status();
  const absl::StatusOr<std::unique_ptr<Client>> client = invocation.Connect();
  if (!reading->problems.empty()) return CheckJob(*reading, client);
  if (!client.ok()) return client.status();
  if (flags.communication) {
    const std::vector<uint32_t> ranks =
        flags.ranks.empty() ? std::vector{std::max(1u, reading->spec.resources().ranks())} : flags.ranks;
    return BenchCommunication(invocation, **client, *reading, ranks, flags);
  }
  absl::StatusOr<std::vector<uint32_t>> numbers = flags.ranks.empty() ? std::vector<uint32_t>{1, 2, 4} : flags.ranks;
  if (flags.hardware.empty()) numbers = WithSlots(**client, *numbers);
  if (!numbers.ok()) return numbers.status();
  struct Job {
    std::string strategy;
    uint32_t ranks;
    v1::JobSpec spec;
  };
  std::vector<Job> jobs;
  for (const std::string& strategy : flags.strategies) {
    for (const uint32_t ranks : *numbers)
      jobs.push_back({strategy, ranks, Measured(reading->spec, strategy, ranks, flags)});
  }
  std::vector<Scaling> rows;
  // What is wrong with the last one is said before the first one runs.
  for (const Job& job : jobs) {
    const absl::StatusOr<v1::PlanReply> plan = PlanOf(**client, *reading, job.spec, flags.hardware);
    if (!plan.ok()) return plan.status();
    if (!flags.hardware.empty()) rows.push_back(Predicted(*plan, job.ranks)), rows.back().strategy = job.strategy;
  }
  for (const Job& job : jobs) {
    if (!flags.hardware.empty()) break;
    const absl::StatusOr<Reported> reported = RunMeasured(
        invocation, **client, *reading, job.spec, absl::StrCat(job.strategy, job.strategy.empty() ? "" : " on "));
    if (!reported.ok()) return reported.status();
    if (reported->code != kOk) return reported->code;
    std::optional<Scaling> row = Summarise(reported->points, flags.warm_up, job.ranks, reported->sequences);
    if (!row.has_value()) return absl::DataLossError(absl::StrCat(reported->id, " sent no metrics"));
    row->strategy = job.strategy;
    row->predicted_seconds = reported->predicted_seconds;
    rows.push_back(*row);
  }
  if (flags.format == Format::kTable) {
    Print(ScalingTable(rows).Render(invocation.Out()));
  } else {
    PrintTree(ScalingTree(rows), flags.format);
  }
  return kOk;
}

std::vector<std::string> CollectiveNames() {
  std::vector<std::string> names;
  for (int i = 1; i < v1::Collective_ARRAYSIZE; ++i) names.push_back(CollectiveName(static_cast<v1::Collective>(i)));
  return names;
}

std::vector<std::string> CollectiveModeNames() {
  std::vector<std::string> names;
  for (int i = 1; i < v1::CollectiveMode_ARRAYSIZE; ++i) {
    names.push_back(CollectiveModeName(static_cast<v1::CollectiveMode>(i)));
  }
  return names;
}

// `others`: flags for training.
void AddCommunication(CLI::App* command, BenchFlags& flags, const std::vector<CLI::Option*>& others) {
  CLI::Option* communication =
      command->add_flag("--communication", flags.communication,
                        "measure collectives between the job's ranks, as nccl-tests does, in place of training");
  for (CLI::Option* other : others) communication->excludes(other);
  const auto size = [&](const char* name, uint64_t& value, const char* what) {
    return command->add_option(name, value, what)
        ->transform(CLI::AsSizeValue(false))
        ->check(Between(uint64_t{1}, uint64_t{16} << 30))
        ->type_name("SIZE")
        ->needs(communication);
  };
  command->add_option("--collectives", flags.collectives, "which collectives to measure")
      ->delimiter(',')
      ->check(OneOf(CollectiveNames()))
      ->type_name("NAME,...")
      ->default_str("all")
      ->needs(communication);
  command
      ->add_option(
          "--modes", flags.modes,
          "flat: one call; bucketed: a call for each bucket, all in flight together, as in training; hierarchical: "
          "inside each node, then between nodes; compressed: as the job's communication.compression, or int8")
      ->delimiter(',')
      ->check(OneOf(CollectiveModeNames()))
      ->type_name("NAME,...")
      ->default_str("all")
      ->needs(communication);
  size("--min-bytes", flags.min_bytes, "the smallest size")->default_str("1KiB");
  size("--max-bytes", flags.max_bytes, "the largest size; skipped once a call takes over 10 s")->default_str("16MiB");
  command->add_option("--step-factor", flags.step_factor, "from one size to the next")
      ->check(Between(2, 1024))
      ->capture_default_str()
      ->needs(communication);
  size("--bucket-bytes", flags.bucket_bytes, "the size of a bucket")->default_str("the job's");
  command->add_option("--plot", flags.plot, "also write a picture of bus bandwidth over size (SVG)")
      ->type_name("FILE")
      ->needs(communication);
}

}  // namespace

void RegisterBench(CLI::App& app, Invocation& invocation) {
  const auto flags = std::make_shared<BenchFlags>();
  CLI::App* command =
      AddCommand(app, "bench", kGroupRun, "Measure a job on several numbers of ranks, or its collectives",
                 "muster bench job.yaml --ranks 1,2 --steps 10\n"
                 "muster bench job.yaml --ranks 2 --strategies ddp,fsdp --steps 10\n"
                 "muster bench job.yaml --ranks 1,8,64,256 --strategies fsdp --weak --hardware h100\n"
                 "muster bench job.yaml --communication --ranks 2 --collectives all_reduce --max-bytes 64KiB");
  command->add_option("FILE", flags->files, "job files, - for standard input; later files override earlier ones")
      ->required();
  AddSetFlags(command, flags->set);
  command->add_option("--ranks", flags->ranks, "numbers of ranks, one job after the other")
      ->delimiter(',')
      ->check(Between(1, 4096))
      ->type_name("N,...")
      ->default_str("1,2,4; with --communication the job's");
  CLI::Option* strategies =
      command->add_option("--strategies", flags->strategies, "strategies with their defaults, one after the other")
          ->delimiter(',')
          ->check(OneOf(std::vector<std::string>(std::begin(kStrategyNames), std::end(kStrategyNames))))
          ->type_name("NAME,...")
          ->default_str("the job's own");
  CLI::Option* steps = command->add_option("--steps", flags->steps, "steps to measure")
                           ->check(Between(1, 1000000))
                           ->capture_default_str();
  CLI::Option* warm_up =
      command->add_option("--warm-up", flags->warm_up, "steps to run before measuring")->capture_default_str();
  CLI::Option* weak =
      command->add_flag("--weak", flags->weak, "weak scaling: batch.sequences is the batch of each rank");
  CLI::Option* hardware = AddHardware(command, flags->hardware, "predict for this hardware without running")
                              ->excludes(steps)
                              ->excludes(warm_up);
  AddCommunication(command, *flags, {strategies, steps, warm_up, weak, hardware});
  AddFormat(command, flags->format, {"table", "json", "yaml"});
  OnRun(command, invocation, [&invocation, flags] { return Run(invocation, *flags); });
}

}  // namespace muster::cli
