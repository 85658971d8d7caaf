// muster checkpoint adopt: gives a folder of checkpoints to another job.
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "checkpoint/adopt.h"
#include "cli/commands/commands.h"
#include "cli/output/format.h"
#include "cli/spec/paths.h"

namespace muster::cli {
namespace {

struct CheckpointAdoptFlags {
  std::string folder;
  std::string job;  // empty: the next one
  bool yes = false;
};

std::string OfStoreText(const v1::FolderOwner& owner) {
  constexpr size_t kShown = 8;
  return owner.store_id().empty() ? "" : absl::StrCat(" of store ", OneLine(owner.store_id().substr(0, kShown)));
}

// FailedPrecondition: the coordinator that this machine knows still runs the folder's owner.
absl::Status CheckOwnerIsOver(Client& client, const v1::FolderOwner& owner) {
  const absl::StatusOr<v1::GetJobReply> reply = client.GetJob(owner.job());
  if (!reply.ok() || reply->job().id() != owner.job()) return absl::OkStatus();
  const v1::JobState state = reply->job().state();
  if (state != JOB_STATE_STARTING && state != JOB_STATE_RUNNING && state != JOB_STATE_STOPPING) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(owner.job(), ", which owns the folder, is ", StateName(state), ": pause it first, or cancel it"));
}

// The job that --job names, and a note if it would not use the folder.
absl::StatusOr<std::string> FindNewOwner(const Invocation& invocation, Client& client, const std::string& name,
                                         const std::string& folder, std::string& note) {
  const absl::StatusOr<std::string> job = invocation.JobNamed(name, client);
  if (!job.ok()) return job.status();
  const absl::StatusOr<v1::GetJobReply> reply = client.GetJob(*job);
  if (!reply.ok()) return reply.status();
  const v1::Job& found = reply->job();
  const v1::JobState state = found.state();
  if (state == JOB_STATE_COMPLETED || state == JOB_STATE_FAILED || state == JOB_STATE_CANCELLED) {
    return absl::FailedPreconditionError(
        absl::StrCat(found.id(), " has ended (", StateName(state),
                     ") and starts no more: leave out --job, and submit it again after the adoption"));
  }
  const std::string& path = found.spec().train().checkpoint().path();
  std::error_code error;
  if (!std::filesystem::equivalent(path, folder, error)) {
    note = absl::StrCat("note: on this machine that is not the checkpoint.path of ", found.id(), ", ",
                        path.empty() ? "which has none" : OneLine(path), "\n");
  }
  return found.id();
}

absl::StatusOr<ExitCode> AdoptFolder(const Invocation& invocation, const CheckpointAdoptFlags& flags) {
  std::error_code error;
  const std::string folder = AbsolutePath(flags.folder, std::filesystem::current_path(error).string());
  const absl::StatusOr<checkpoint::Adoptable> found = checkpoint::LookForAdoption(folder);
  if (!found.ok()) return found.status();
  const absl::StatusOr<std::unique_ptr<Client>> client = invocation.Connect();
  std::string job, note;
  if (client.ok()) {
    if (absl::Status status = CheckOwnerIsOver(**client, found->owner); found->claimed && !status.ok()) return status;
  }
  if (!flags.job.empty()) {
    if (!client.ok()) return client.status();
    absl::StatusOr<std::string> named = FindNewOwner(invocation, **client, flags.job, folder, note);
    if (!named.ok()) return named.status();
    job = *std::move(named);
  }
  const std::string to = job.empty() ? "the next job that uses the folder" : absl::StrCat("job ", OneLine(job));
  Say(absl::StrCat(
      folder, "\n  owner: ", found->claimed ? "" : "none, because it waits for the next job; before: ", "job ",
      OneLine(found->owner.job()), OfStoreText(found->owner), " -> ", to, "\n  newest checkpoint: ", found->newest,
      ", written by job ", OneLine(found->writer), "; the new owner resumes from it\n", note,
      "After the adoption, ranks of the old owner that still run cannot write checkpoints there."));
  if (!flags.yes) {
    if (absl::Status yes = Confirm("adopt it?", "not adopted"); !yes.ok()) return yes;
  }
  if (absl::Status status = checkpoint::Adopt(folder, *found, job); !status.ok()) return status;
  Say(job.empty() ? "released: the next job that uses the folder becomes its owner" : absl::StrCat("adopted by ", to));
  return kOk;
}

}  // namespace

void RegisterCheckpointAdopt(CLI::App& app, Invocation& invocation) {
  const auto flags = std::make_shared<CheckpointAdoptFlags>();
  CLI::App* command =
      AddCommand(app, "adopt", "Commands", "Give a moved or restored folder of checkpoints to another job",
                 "muster checkpoint adopt /restored/gpt2 -y");
  command->add_option("FOLDER", flags->folder, "a checkpoint.path, on this machine")->required();
  command->add_option("--job", flags->job, "job that gets it; default: the next one that uses the folder")
      ->type_name("JOB");
  command->add_flag("-y,--yes", flags->yes, "do not ask");
  OnRun(command, invocation, [&invocation, flags] { return AdoptFolder(invocation, *flags); });
}

}  // namespace muster::cli
