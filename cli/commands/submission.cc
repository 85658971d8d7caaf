#include "cli/commands/submission.h"

#include <nlohmann/json.hpp>
#include <random>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/check_job.h"
#include "cli/follow_job.h"
#include "cli/job_file.h"
#include "cli/output/describe.h"
#include "cli/output/format.h"
#include "common/message/tree.h"

namespace muster::cli {
namespace {

// A note with the queue's reason holds why the job does not fit, or the end of that, what would; it is printed once.
v1::PlanReply WithoutRepetition(v1::PlanReply plan) {
  const size_t last = plan.unfit().rfind("; ");
  const std::string would = last == std::string::npos ? plan.unfit() : plan.unfit().substr(last + 2);
  for (const std::string& note : plan.notes()) {
    if (absl::StrContains(note, "can never start") && absl::StrContains(note, would)) plan.clear_unfit();
  }
  return plan;
}

absl::StatusOr<ExitCode> DryRun(const Invocation& invocation, Client& client, const Reading& reading, Format format) {
  v1::PlanRequest request;
  *request.mutable_spec() = reading.spec;
  const absl::StatusOr<v1::PlanReply> plan = client.Plan(request);
  if (!plan.ok()) return WithPlaces(plan.status(), reading.sources);
  if (format == Format::kTable) {
    Print(DescribePlan(WithoutRepetition(*plan), {}, invocation.Out()));
    Say("dry run: nothing was submitted");
  } else {
    PrintMessage(*plan, format);
  }
  return kOk;
}

// Ids of the jobs that the user named.
absl::StatusOr<std::vector<std::string>> IdsOf(const Invocation& invocation, Client& client,
                                               const std::vector<std::string>& names) {
  std::vector<std::string> ids;
  for (const std::string& name : names) {
    const absl::StatusOr<std::string> named = invocation.JobNamed(name, client);
    if (!named.ok()) return named.status();
    const absl::StatusOr<v1::GetJobReply> job = client.GetJob(*named);  // it may be a prefix
    if (!job.ok()) return job.status();
    ids.push_back(job->job().id());
  }
  return ids;
}

absl::StatusOr<ExitCode> SubmitOne(const Invocation& invocation, Client& client, const Reading& reading,
                                   const std::vector<std::string>& after, const SubmitOptions& options) {
  v1::SubmitRequest request;
  request.set_request_id(NewRequestId());
  *request.mutable_spec() = reading.spec;
  for (const std::string& id : after) request.mutable_spec()->add_after(id);
  const absl::StatusOr<v1::SubmitReply> reply = client.Submit(request);
  if (!reply.ok()) return WithPlaces(reply.status(), reading.sources);
  const std::string& id = reply->job().id();
  invocation.Remember(id, client);
  const bool interactive = options.format == Format::kTable;
  const bool follow = !options.detach && (options.follow || (interactive && invocation.Out().terminal));
  if (interactive) Say(PlanSummary(WithoutRepetition(reply->plan()), invocation.Err()));
  const std::string& checkpoints = reply->job().spec().train().checkpoint().path();
  if (interactive && follow && !checkpoints.empty()) Say(absl::StrCat("checkpoints: ", checkpoints));
  if (interactive || options.format == Format::kName) {
    Print(id + "\n");
  } else if (follow) {
    PrintLine(MessageTree(*reply));
  } else {
    PrintMessage(*reply, options.format);
  }
  if (interactive && !follow) {
    const v1::Sync& sync = reply->job().spec().train().sync();
    const std::string& run = sync.run().empty() ? id : sync.run();
    if (!sync.run().empty()) {
      Say(absl::StrCat("replicas: ", run, "-0 to ", run, "-", sync.replicas() - 1, ", a job each"));
    }
    Say(absl::StrCat("next: muster watch ", id, "   muster logs -f ", id, "   muster cancel ", run));
  }
  if (!follow) return kOk;
  FollowOptions following;
  following.format = options.format;
  following.logs = reading.spec.has_exec();  // what a program prints is all that is known of it
  following.timeout = client.connection().timeout;
  return FollowJob(client, id, following, invocation.Out());
}

}  // namespace

void AddSubmitFlags(CLI::App* command, SubmitOptions& options) {
  command->add_flag("-f,--follow", options.follow, "follow the job (the default on a terminal)");
  command->add_flag("-d,--detach", options.detach, "return once the job is accepted; overrides -f");
  command->add_option("--after", options.after, "start only when this job has completed; may be repeated")
      ->type_name("JOB")
      ->allow_extra_args(false);
  command->add_flag("--dry-run", options.dry_run, "check and plan the job without submitting it");
  AddFormat(command, options.format, {"table", "json", "yaml", "name"});
}

std::string NewRequestId() {
  std::random_device random;  // /dev/urandom
  std::string id;
  for (int i = 0; i < 4; ++i) absl::StrAppendFormat(&id, "%08x", random());
  return id;
}

absl::StatusOr<ExitCode> SubmitSpecs(const Invocation& invocation, const std::vector<Reading>& readings,
                                     const SubmitOptions& options) {
  const absl::StatusOr<std::unique_ptr<Client>> client = invocation.Connect();
  for (const Reading& reading : readings) {
    if (absl::Status status = CheckJob(reading, client, !options.after.empty()); !status.ok()) return status;
  }
  if (!client.ok()) return client.status();
  std::vector<std::string> after;
  if (!options.dry_run) {
    // Once: @last and a prefix may mean another job as soon as the first one is submitted.
    absl::StatusOr<std::vector<std::string>> ids = IdsOf(invocation, **client, options.after);
    if (!ids.ok()) return ids.status();
    after = *std::move(ids);
  }
  for (const Reading& reading : readings) {
    const absl::StatusOr<ExitCode> ended = options.dry_run ? DryRun(invocation, **client, reading, options.format)
                                                           : SubmitOne(invocation, **client, reading, after, options);
    if (!ended.ok() || *ended != kOk) return ended;
  }
  return kOk;
}

}  // namespace muster::cli
