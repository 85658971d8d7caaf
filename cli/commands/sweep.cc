#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "cli/check_job.h"
#include "cli/commands/commands.h"
#include "cli/commands/job_array.h"
#include "cli/commands/sweep_plan.h"
#include "cli/follow_job.h"
#include "cli/interrupt.h"
#include "cli/job_file.h"
#include "cli/output/format.h"
#include "cli/output/table.h"
#include "cli/output_format.h"
#include "common/name.h"
#include "common/sha256.h"

namespace muster::cli {
namespace {

constexpr absl::Duration kLookEvery = absl::Seconds(2);
constexpr size_t kRequestIdBytes = 64;  // as v1::SubmitRequest says
constexpr char kSweepLabel[] = "sweep", kTrialLabel[] = "sweep-trial";

struct SweepFlags {
  std::string name;
  std::vector<std::string> files, arrays, ranges;
  SetFlags set;
  uint32_t trials = 0, parallel = 0;
  uint64_t seed = 1;
  std::string metric = "loss";
  Halving halving;
  bool detach = false;
  Format format = Format::kTable;
};

// A trial and its job.
struct Entered {
  Trial trial;
  Reading reading;
  std::string request_id;
  std::string job = {};  // empty: not submitted yet, or deleted
  v1::JobState state = v1::JOB_STATE_UNSPECIFIED;
  // What was read of `read_job`, up to `cursor`.
  TrialProgress progress = {};
  std::string read_job = {}, cursor = {};
};

struct SweepJobs {
  std::vector<Entered> trials;
  std::string owner;  // who runs the sweep; empty: LearnOwner finds out
};

absl::StatusOr<std::vector<Trial>> TrialsOf(const SweepFlags& flags) {
  if (flags.trials > 0) return RandomTrials(flags.arrays, flags.ranges, flags.trials, flags.seed);
  if (!flags.ranges.empty()) return absl::InvalidArgumentError("--random needs --trials: how many points to draw");
  return Combinations(flags.arrays);
}

absl::Status CheckSweep(const SweepFlags& flags) {
  if (!IsName(flags.name) || flags.name.size() > 34) {
    return absl::InvalidArgumentError("the name of a sweep has 1 to 34 characters of a-z, 0-9 and -");
  }
  if (std::find(flags.files.begin(), flags.files.end(), "-") != flags.files.end()) {
    return absl::InvalidArgumentError("the job file is read once for each trial, so it cannot be standard input");
  }
  if (flags.arrays.empty() && flags.ranges.empty()) {
    return absl::InvalidArgumentError(
        "nothing to try: give the values with --array PATH=VALUE,VALUE, or --random PATH=LOW..HIGH and --trials N");
  }
  const std::vector<uint64_t>& rungs = flags.halving.rungs;
  if (std::adjacent_find(rungs.begin(), rungs.end(), std::greater_equal<>()) != rungs.end()) {
    return absl::InvalidArgumentError("--rungs: expected ascending steps");
  }
  if (!rungs.empty() && flags.parallel > 0) {
    return absl::InvalidArgumentError("--parallel: with --rungs all trials are compared, so they all have to run");
  }
  return absl::OkStatus();
}

// "optimizer.lr=3e-4", as --set takes them.
std::vector<std::string> TextsOf(const Trial& trial) {
  std::vector<std::string> texts;
  for (const Assignment& value : trial) texts.push_back(absl::StrCat(value.path, "=", value.value));
  return texts;
}

std::string RequestPrefix(const SweepFlags& flags) { return absl::StrCat("sweep-", flags.name, "-"); }

// Every trial's spec, with the labels by which the sweep finds its jobs again.
absl::StatusOr<SweepJobs> Enter(const SweepFlags& flags, const TemplateText& templates) {
  const absl::StatusOr<std::vector<Trial>> trials = TrialsOf(flags);
  if (!trials.ok()) return trials.status();
  SweepJobs sweep;
  std::vector<Entered>& all = sweep.trials;
  for (const Trial& trial : *trials) {
    SetFlags set = flags.set;
    set.varied = trial;
    const std::string number = absl::StrCat(all.size() + 1);
    absl::StatusOr<Reading> reading =
        LoadJobFiles(flags.files, set, {{"NAME", "name", absl::StrCat(flags.name, "-", number)}}, templates);
    if (!reading.ok()) return reading.status();
    if (reading->spec.train().has_sync()) {
      return absl::InvalidArgumentError(
          "sync: a trial of a sweep is one job, and this spec has several replicas: remove sync");
    }
    reading->spec.add_labels(absl::StrCat(kSweepLabel, "=", flags.name));
    reading->spec.add_labels(absl::StrCat(kTrialLabel, "=", number));
    // The same in each run of the sweep: a job that was accepted while the reply was lost is found again.
    const std::string id =
        absl::StrCat(RequestPrefix(flags), number, "-", Sha256Hex(reading->spec.SerializeAsString()).substr(0, 16));
    all.push_back({.trial = trial, .reading = *std::move(reading), .request_id = id});
  }
  return sweep;
}

// The jobs that sweeps of this name have submitted, of all users. Anyone may give a job the label: those with another
// request id than a sweep's are not among them.
absl::StatusOr<std::vector<v1::Job>> JobsOfSweeps(Client& client, const SweepFlags& flags) {
  const absl::StatusOr<v1::ListJobsReply> reply =
      client.ListJobs(/*all=*/true, {absl::StrCat(kSweepLabel, "=", flags.name)});
  if (!reply.ok()) return reply.status();
  std::vector<v1::Job> jobs;
  for (const v1::JobSummary& summary : reply->jobs()) {
    const std::string& id = summary.job().request_id();
    if (absl::StartsWith(id, RequestPrefix(flags)) && id.size() <= kRequestIdBytes) jobs.push_back(summary.job());
  }
  return jobs;
}

// Null: the job is of a sweep with other trials.
Entered* TrialOf(const v1::Job& job, std::vector<Entered>& trials) {
  size_t number = 0;
  for (const std::string& label : job.labels()) {
    if (label.rfind(absl::StrCat(kTrialLabel, "="), 0) != 0) continue;
    if (!absl::SimpleAtoi(label.substr(sizeof(kTrialLabel)), &number)) number = 0;
  }
  if (number == 0 || number > trials.size() || trials[number - 1].request_id != job.request_id()) return nullptr;
  return &trials[number - 1];
}

// The jobs of the sweep that are there now, also of an earlier run of it. FailedPrecondition: some have other trials.
// REQUIRES: the owner is known.
absl::Status FindJobs(Client& client, const SweepFlags& flags, SweepJobs& sweep) {
  const absl::StatusOr<std::vector<v1::Job>> jobs = JobsOfSweeps(client, flags);
  if (!jobs.ok()) return jobs.status();
  for (Entered& trial : sweep.trials) {
    if (Ended(trial.state)) continue;  // also if it is deleted now
    trial.job.clear();
    trial.state = v1::JOB_STATE_UNSPECIFIED;
  }
  for (const v1::Job& job : *jobs) {
    if (job.owner() != sweep.owner) continue;
    Entered* trial = TrialOf(job, sweep.trials);
    if (trial == nullptr) {
      return absl::FailedPreconditionError(
          absl::StrCat("there is a sweep ", flags.name, " with other trials (", job.id(), " of ", job.owner(),
                       "): give this one another name, or the flags and files of that one"));
    }
    trial->job = job.id();
    trial->state = job.state();
  }
  return absl::OkStatus();
}

void NoteValue(const v1::MetricPoint& point, const std::string& metric, TrialProgress& progress) {
  const auto note = [&](double value) { progress.values[point.step()] = value; };
  if (metric == "loss" && point.has_loss()) note(point.loss());
  if (metric == "validation_loss" && point.has_validation_loss()) note(point.validation_loss());
  for (const v1::NamedMetric& named : point.validation()) {
    if ("validation." + named.name() == metric) note(named.value());
  }
  for (const v1::NamedMetric& named : point.reported()) {
    if (named.name() == metric) note(named.value());
  }
}

// What is new since the last look.
absl::Status ReadProgress(Client& client, const std::string& metric, Entered& trial) {
  if (trial.read_job != trial.job) {
    trial.progress = {};
    trial.cursor.clear();
    trial.read_job = trial.job;
  }
  if (trial.progress.ended) return absl::OkStatus();  // and was read since
  v1::WatchRequest request;
  request.set_job(trial.job);
  request.set_metrics(true);
  request.set_cursor(trial.cursor);
  const absl::Status read = ReadItems(client, request, [&](const v1::WatchItem& item) {
    if (!item.cursor().empty()) trial.cursor = item.cursor();
    if (item.has_metrics()) NoteValue(item.metrics(), metric, trial.progress);
  });
  if (!read.ok() && !absl::IsNotFound(read)) return read;  // not found: it was deleted since
  trial.progress.ended = Ended(trial.state);
  trial.progress.failed = trial.state == v1::JOB_STATE_FAILED;
  return absl::OkStatus();
}

absl::Status SubmitTrial(Client& client, SweepJobs& sweep, size_t index) {
  Entered& trial = sweep.trials[index];
  v1::SubmitRequest request;
  request.set_request_id(trial.request_id);
  *request.mutable_spec() = trial.reading.spec;
  const absl::StatusOr<v1::SubmitReply> reply = client.Submit(request);
  if (!reply.ok()) return WithPlaces(reply.status(), trial.reading.sources);
  trial.job = reply->job().id();
  trial.state = reply->job().state();
  sweep.owner = reply->job().owner();
  Say(absl::StrCat("trial ", index + 1, ": ", trial.job, ": ", absl::StrJoin(TextsOf(trial.trial), " ")));
  return absl::OkStatus();
}

// Whether the caller owns the job, of a sweep. No call says who the caller is, but each user has request ids of their
// own. This submits another spec with the job's, after a job that cannot exist. To whoever has a job of that request id
// the coordinator refuses the id, and names the job, which may be another one of the same trial; to others, the spec.
absl::StatusOr<bool> IsCallers(Client& client, const v1::Job& job, const Reading& other) {
  v1::SubmitRequest request;
  request.set_request_id(job.request_id());
  *request.mutable_spec() = other.spec;
  request.mutable_spec()->clear_after();
  request.mutable_spec()->add_after("no-such-job");  // ids end with four characters, and perhaps digits
  const absl::Status refused = client.Submit(request).status();
  if (absl::IsAlreadyExists(refused)) return absl::StrContains(refused.message(), absl::StrCat(" ", job.id(), ","));
  if (absl::IsNotFound(refused)) return false;
  if (refused.ok()) return absl::InternalError("the coordinator accepted a job after one that does not exist");
  return WithPlaces(refused, other.sources);
}

// Submits the first trial if the caller has no jobs of a sweep of this name.
absl::Status LearnOwner(Client& client, const SweepFlags& flags, SweepJobs& sweep) {
  absl::StatusOr<std::vector<v1::Job>> jobs = JobsOfSweeps(client, flags);
  if (!jobs.ok()) return jobs.status();
  // First those with the same trials: their owner is probably the caller.
  std::stable_partition(jobs->begin(), jobs->end(),
                        [&](const v1::Job& job) { return TrialOf(job, sweep.trials) != nullptr; });
  std::set<std::string> asked;
  for (const v1::Job& job : *jobs) {
    if (!asked.insert(job.owner()).second) continue;
    const absl::StatusOr<bool> own = IsCallers(client, job, sweep.trials.front().reading);
    if (!own.ok()) return own.status();
    if (!*own) continue;
    sweep.owner = job.owner();
    return absl::OkStatus();
  }
  return SubmitTrial(client, sweep, 0);
}

// One look: stops who has lost, and submits as many as there is room for. True: the sweep is over.
absl::StatusOr<bool> Step(Client& client, const SweepFlags& flags, SweepJobs& sweep) {
  std::vector<Entered>& trials = sweep.trials;
  if (sweep.owner.empty()) {
    if (absl::Status status = LearnOwner(client, flags, sweep); !status.ok()) return status;
  }
  if (absl::Status status = FindJobs(client, flags, sweep); !status.ok()) return status;
  std::vector<TrialProgress> progress;
  for (Entered& trial : trials) {
    if (trial.job.empty()) {
      progress.emplace_back();
      continue;
    }
    if (!flags.halving.rungs.empty()) {
      if (absl::Status status = ReadProgress(client, flags.metric, trial); !status.ok()) return status;
    }
    progress.push_back(trial.progress);
  }
  for (const auto& [loser, rung] : LosersOf(flags.halving, progress)) {
    Entered& trial = trials[loser];
    if (Ended(trial.state) || trial.state == v1::JOB_STATE_STOPPING) continue;
    const absl::Status cancelled = client.Cancel(trial.job).status();
    if (!cancelled.ok() && !absl::IsFailedPrecondition(cancelled)) return cancelled;  // it has ended meanwhile
    Say(absl::StrCat("trial ", loser + 1, ": ", trial.job, ": stopped at step ", rung));
  }
  size_t live = 0, over = 0;
  for (const Entered& trial : trials) {
    over += Ended(trial.state) ? 1 : 0;
    live += !trial.job.empty() && !Ended(trial.state) ? 1 : 0;
  }
  for (size_t i = 0; i < trials.size(); ++i) {
    if (!trials[i].job.empty() || (flags.parallel > 0 && live >= flags.parallel)) continue;
    if (absl::Status status = SubmitTrial(client, sweep, i); !status.ok()) return status;
    ++live;
  }
  return over == trials.size();
}

uint64_t StepOf(const Entered& trial) {
  return trial.progress.values.empty() ? 0 : trial.progress.values.rbegin()->first;
}

// Best first: who got further, then the better value.
absl::Status ShowSweep(Client& client, const SweepFlags& flags, std::vector<Entered>& trials, const Screen& screen) {
  struct Row {
    size_t number;
    double last;
    bool known;
    uint64_t rung;  // that it lost; the highest: none
  };
  std::vector<TrialProgress> progress;
  for (Entered& trial : trials) {
    if (!trial.job.empty()) {
      if (absl::Status status = ReadProgress(client, flags.metric, trial); !status.ok()) return status;
    }
    progress.push_back(trial.progress);
  }
  const std::map<size_t, uint64_t> losers = LosersOf(flags.halving, progress);
  std::vector<Row> rows;
  for (size_t i = 0; i < trials.size(); ++i) {
    if (trials[i].job.empty()) continue;
    const auto& values = progress[i].values;
    const auto lost = losers.find(i);
    const double last = values.empty() ? NAN : values.rbegin()->second;
    rows.push_back(
        {i, last, !std::isnan(last), lost == losers.end() ? std::numeric_limits<uint64_t>::max() : lost->second});
  }
  std::stable_sort(rows.begin(), rows.end(), [&](const Row& a, const Row& b) {
    if (a.rung != b.rung) return a.rung > b.rung;
    if (a.known != b.known) return a.known;
    return a.known && (flags.halving.maximize ? a.last > b.last : a.last < b.last);
  });
  if (flags.format != Format::kTable) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const Row& row : rows) {
      const Entered& trial = trials[row.number];
      list.push_back({{"trial", row.number + 1},
                      {"job", trial.job},
                      {"state", StateName(trial.state)},
                      {"step", StepOf(trial)},
                      {"value", row.known ? nlohmann::ordered_json(row.last) : nlohmann::ordered_json()},
                      {"set", TextsOf(trial.trial)}});
    }
    PrintTree(list, flags.format);
    return absl::OkStatus();
  }
  Table table({{"TRIAL", true},
               {"JOB"},
               {"STATE"},
               {"STEP", true},
               {flags.metric, true},
               {.title = "SET", .narrow = Narrow::kWrap}});
  for (const Row& row : rows) {
    const Entered& trial = trials[row.number];
    table.Add({absl::StrCat(row.number + 1), trial.job, StateName(trial.state),
               trial.progress.values.empty() ? "" : absl::StrCat(StepOf(trial)), row.known ? Significant(row.last) : "",
               absl::StrJoin(TextsOf(trial.trial), " ")});
  }
  Print(table.Render(screen));
  return absl::OkStatus();
}

absl::StatusOr<ExitCode> Sweep(const Invocation& invocation, const SweepFlags& flags) {
  if (absl::Status status = CheckSweep(flags); !status.ok()) return status;
  absl::StatusOr<SweepJobs> sweep = Enter(flags, TemplatesOf(invocation));
  if (!sweep.ok()) return sweep.status();
  const absl::StatusOr<std::unique_ptr<Client>> client = invocation.Connect();
  for (const Entered& trial : sweep->trials) {
    if (absl::Status status = CheckJob(trial.reading, client); !status.ok()) return status;
  }
  if (!client.ok()) return client.status();
  const InterruptScope scope;
  const auto interrupted = [] {
    const absl::Time until = absl::Now() + kLookEvery;
    while (!Interrupted() && absl::Now() < until) absl::SleepFor(absl::Milliseconds(50));
    return Interrupted();
  };
  while (true) {
    const absl::StatusOr<bool> over = Step(**client, flags, *sweep);
    if (!over.ok()) return over.status();
    if (*over || flags.detach) break;
    if (interrupted()) {
      Say(absl::StrCat("detached: its jobs continue; the same command goes on with the sweep, and `muster ps -a -l ",
                       kSweepLabel, "=", flags.name, "` lists them"));
      return kInterrupted;
    }
  }
  if (absl::Status status = ShowSweep(**client, flags, sweep->trials, invocation.Out()); !status.ok()) return status;
  return kOk;
}

}  // namespace

void RegisterSweep(CLI::App& app, Invocation& invocation) {
  const auto flags = std::make_shared<SweepFlags>();
  CLI::App* command =
      AddCommand(app, "sweep", kGroupRun, "Try values: a grid, random points, stopping the worst early",
                 "muster sweep lr job.yaml --array optimizer.lr=1e-4,3e-4,1e-3\n"
                 "muster sweep wide job.yaml --random optimizer.lr=log:1e-5..1e-2 --trials 16 --rungs 100,200,400");
  command->add_option("NAME", flags->name, "name of the sweep: with the same one it goes on")->required();
  command->add_option("FILE", flags->files, "job files; later files override earlier ones")->required();
  AddSetFlags(command, flags->set);
  command
      ->add_option("--array", flags->arrays,
                   "PATH=VALUE,VALUE,...: a trial for each combination; with --trials one of the values")
      ->type_name("PATH=VALUES")
      ->allow_extra_args(false);
  command
      ->add_option("--random", flags->ranges, "PATH=LOW..HIGH or PATH=log:LOW..HIGH: a random number; needs --trials")
      ->type_name("PATH=RANGE")
      ->allow_extra_args(false);
  command->add_option("--trials", flags->trials, "random trials instead of all combinations")
      ->check(CLI::Range(1, 1000))
      ->type_name("N");
  command->add_option("--seed", flags->seed, "of the random trials")->capture_default_str()->type_name("N");
  command
      ->add_option("--metric", flags->metric,
                   "what trials are compared by: loss, validation_loss, validation.NAME, or what a script reports")
      ->capture_default_str()
      ->type_name("NAME");
  command->add_flag("--maximize", flags->halving.maximize, "higher is better");
  command
      ->add_option("--rungs", flags->halving.rungs,
                   "steps at which the worst trials are cancelled, once all have come so far")
      ->delimiter(',')
      ->type_name("STEP,...");
  command->add_option("--keep", flags->halving.keep, "share of the trials that goes on after a rung")
      ->check(CLI::Range(0.01, 0.99))
      ->capture_default_str()
      ->type_name("SHARE");
  command->add_option("--parallel", flags->parallel, "at most so many trials at a time; not with --rungs")
      ->type_name("N");
  command->add_flag("-d,--detach", flags->detach, "submit and look once; the same command again looks again");
  AddFormat(command, flags->format, {"table", "json", "yaml"});
  OnRun(command, invocation, [&invocation, flags] { return Sweep(invocation, *flags); });
}

}  // namespace muster::cli
