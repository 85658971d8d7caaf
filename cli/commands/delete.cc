#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/commands/commands.h"
#include "cli/commands/verb.h"
#include "cli/output/format.h"

namespace muster::cli {
namespace {

constexpr size_t kMostNamed = 5;  // jobs in a message

struct Target {
  std::string name;      // for the coordinator
  v1::Job job;           // empty: replicas of a run
  std::string replicas;  // which of a run, in words
};

// What `name`, which begins the ids of several jobs, means to the coordinator's Delete: of these the one that has
// ended, or all replicas of one run. FailedPrecondition, with `several`'s message or the ended jobs: neither.
absl::StatusOr<Target> OfSeveral(Client& client, const std::string& name, const absl::Status& several) {
  const absl::StatusOr<v1::ListJobsReply> list = client.ListJobs(/*all=*/true);
  if (!list.ok()) return list.status();
  const auto has_name = [&](const v1::JobSummary& summary) { return summary.job().spec().name() == name; };
  const bool named = std::any_of(list->jobs().begin(), list->jobs().end(), has_name);
  std::vector<v1::Job> all, ended;
  for (const v1::JobSummary& summary : list->jobs()) {
    if (named ? !has_name(summary) : !absl::StartsWith(summary.job().id(), name)) continue;
    all.push_back(summary.job());
    if (Ended(summary.job().state())) ended.push_back(summary.job());
  }
  if (ended.size() == 1) return Target{ended.front().id(), ended.front()};
  const std::vector<v1::Job>& meant = ended.empty() ? all : ended;
  if (meant.empty()) return several;
  const std::string& run = meant.front().spec().train().sync().run();
  const bool one_run = absl::StartsWith(run, name) && std::all_of(meant.begin(), meant.end(), [&](const v1::Job& job) {
                         return job.spec().train().sync().run() == run;
                       });
  if (one_run && ended.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("no replica of ", run, " has ended: cancel it first (muster cancel ", run, ")"));
  }
  if (one_run) {
    const bool whole = ended.size() == all.size();
    return Target{run, {}, whole ? "all its replicas" : absl::StrCat("its ", ended.size(), " ended replicas")};
  }
  if (ended.empty()) return several;
  std::vector<std::string> ids;
  for (size_t i = 0; i < std::min(ended.size(), kMostNamed); ++i) ids.push_back(ended[i].id());
  return absl::FailedPreconditionError(absl::StrCat(name, " matches ", ended.size(),
                                                    " ended jobs: ", absl::StrJoin(ids, ", "),
                                                    ended.size() > kMostNamed ? ", ..." : "", ": name one of them"));
}

absl::StatusOr<Target> TargetOf(Client& client, const std::string& name) {
  // The coordinator accepts deleting an unknown job, for retries; here a mistyped name must be an error.
  const absl::StatusOr<v1::GetJobReply> got = client.GetJob(name);
  if (got.ok()) return Target{got->job().id(), got->job()};
  return absl::IsFailedPrecondition(got.status()) ? OfSeveral(client, name, got.status()) : got.status();
}

// As the coordinator would refuse it, but before another job is deleted.
absl::Status CheckEnded(Client& client, const std::string& name) {
  const absl::StatusOr<Target> target = TargetOf(client, name);
  if (!target.ok()) return target.status();
  const std::string& id = target->job.id();
  if (id.empty() || Ended(target->job.state())) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(id, " has not ended: cancel it first (muster cancel ", id, ")"));
}

absl::Status Delete(Client& client, const std::string& name, bool ask, Format format) {
  const absl::StatusOr<Target> target = TargetOf(client, name);
  if (!target.ok()) return target.status();
  const bool run = target->job.id().empty();
  if (ask) {
    // It shows which job a prefix or @last resolves to.
    const std::string what = run ? absl::StrCat(OneLine(target->name), " (", target->replicas, ")")
                                 : absl::StrCat(OneLine(target->job.id()), " (", StateName(target->job.state()), ")");
    const absl::Status yes =
        Confirm(absl::StrCat("delete ", what, " with its events, metrics and logs?"), "not deleted");
    if (!yes.ok()) return yes;
  }
  const absl::StatusOr<v1::DeleteReply> reply = client.Delete(target->name);
  if (!reply.ok()) return reply.status();
  if (run) {
    Say(absl::StrCat(OneLine(target->name), " deleted, ", target->replicas));
  } else if (format == Format::kTable) {
    Say(absl::StrCat(OneLine(target->job.id()), " deleted"));
  } else {
    PrintJob(target->job, format);
  }
  return absl::OkStatus();
}

}  // namespace

void RegisterDelete(CLI::App& app, Invocation& invocation) {
  const auto yes = std::make_shared<bool>(false);
  const Verb verb = {"delete", "Delete ended jobs with their events, metrics and logs; checkpoints stay",
                     "muster delete -y gpt2-tiny-x7f2"};
  CLI::App* command = AddJobVerb(
      app, invocation, verb,
      [yes](Client& client, const std::string& name, Format format) { return Delete(client, name, !*yes, format); },
      CheckEnded);
  command->add_flag("-y,--yes", *yes, "do not ask for confirmation; needed where standard input is not a terminal");
}

}  // namespace muster::cli
