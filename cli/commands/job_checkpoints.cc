#include "cli/commands/job_checkpoints.h"

#include <cerrno>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "checkpoint/checkpoint.h"
#include "common/file_error.h"

namespace muster::cli {

absl::StatusOr<JobCheckpoints> FindJobCheckpoints(const Invocation& invocation, const std::string& name) {
  const absl::StatusOr<std::unique_ptr<Client>> client = invocation.Connect();
  if (!client.ok()) return client.status();
  const absl::StatusOr<std::string> job = invocation.JobNamed(name, **client);
  if (!job.ok()) return job.status();
  const absl::StatusOr<v1::GetJobReply> reply = (*client)->GetJob(*job);
  if (!reply.ok()) return reply.status();
  const v1::Job& found = reply->job();
  JobCheckpoints checkpoints{.job = found.id(), .path = found.spec().train().checkpoint().path(), .published = {}};
  if (checkpoints.path.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(found.id(), " writes no checkpoints: its spec has no checkpoint.path"));
  }
  checkpoints.published.assign(found.checkpoints().begin(), found.checkpoints().end());
  std::error_code error;
  if (!checkpoints.published.empty() && !std::filesystem::is_directory(checkpoints.path, error)) {
    if (error == std::errc::permission_denied) return FileError(EACCES, checkpoints.path);
    return absl::NotFoundError(absl::StrCat("this machine cannot reach ", checkpoints.path, ", the checkpoint.path of ",
                                            found.id(), ": run the command where it is mounted"));
  }
  return checkpoints;
}

absl::StatusOr<std::string> NewestPublished(const JobCheckpoints& checkpoints) {
  if (checkpoints.published.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(checkpoints.job, " has no checkpoint yet"));
  }
  const std::string& name = checkpoints.published.back().directory();
  const std::string folder = absl::StrCat(checkpoints.path, "/", name);
  absl::Status status = checkpoint::Checkpoint::Open(folder, checkpoint::Verification::kAsRead).status();
  if (status.ok()) status = CheckWriter(folder, checkpoints.job);
  if (status.ok()) return folder;
  return absl::Status(
      status.code(),
      absl::StrCat("the newest checkpoint that ", checkpoints.job, " published, ", name,
                   ", cannot be used: ", status.message(), "; muster checkpoint verify ", checkpoints.job,
                   " shows which of the others are intact; to read one of them, name its folder"));
}

absl::Status CheckWriter(const std::string& folder, const std::string& job) {
  const std::optional<std::string> writer = checkpoint::WriterOf(folder);
  if (!writer.has_value()) {
    return absl::DataLossError(absl::StrCat(folder, "/", checkpoint::kManifestFile, " cannot be read"));
  }
  if (*writer == job) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(folder, " was written by job ", writer->empty() ? "(none: imported)" : *writer, ", not by ", job));
}

}  // namespace muster::cli
