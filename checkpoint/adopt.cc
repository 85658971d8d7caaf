#include "checkpoint/adopt.h"

#include <errno.h>
#include <unistd.h>

#include <filesystem>
#include <optional>

#include "absl/strings/str_cat.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/folder_owner.h"
#include "common/checkpoint_names.h"
#include "common/failpoint.h"
#include "common/file/durable_file.h"
#include "common/file_error.h"
#include "common/version.h"

namespace muster::checkpoint {

bool IsAdopted(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(absl::StrCat(path, "/", kPreviousOwnerFile), error);
}

absl::StatusOr<Adoptable> LookForAdoption(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) {
    return absl::NotFoundError(
        absl::StrCat("there is no folder ", path, " on this machine: run this where the folder of checkpoints is"));
  }
  const std::vector<StepName> steps = List(path);
  if (steps.empty()) {
    return absl::NotFoundError(
        absl::StrCat(path, " holds no checkpoints, so there is nothing to adopt: name a job's checkpoint.path"));
  }
  absl::StatusOr<std::optional<FolderOwner>> owner = ReadOwnerFile(path, kOwnerFile);
  if (!owner.ok()) return owner.status();
  Adoptable found{.claimed = owner->has_value()};
  if (!found.claimed) owner = ReadOwnerFile(path, kPreviousOwnerFile);
  if (!owner.ok()) return owner.status();
  if (!owner->has_value()) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " belongs to no job (it has no ", kOwnerFile,
                     "), so there is nothing to adopt: a job goes on from such checkpoints by checkpoint.resume_from"));
  }
  found.owner = **std::move(owner);
  found.newest = steps.front().Directory();
  const absl::StatusOr<Checkpoint> newest =
      Checkpoint::Open(absl::StrCat(path, "/", found.newest), Verification::kEveryByte);
  if (!newest.ok()) {
    return absl::DataLossError(absl::StrCat("the newest checkpoint of ", path,
                                            " is damaged: ", newest.status().message(), "; move ", found.newest,
                                            " out of the folder first, and the job goes on from the one before it"));
  }
  found.writer = newest->manifest().job();
  return found;
}

absl::Status Adopt(const std::string& path, const Adoptable& found, const std::string& job) {
  const absl::StatusOr<std::optional<FolderOwner>> now = ReadOwnerFile(path, kOwnerFile);
  if (!now.ok()) return now.status();
  if (now->has_value() != found.claimed ||
      (found.claimed && (*now)->SerializeAsString() != found.owner.SerializeAsString())) {
    return absl::AbortedError(absl::StrCat(path, " got another owner at this moment: look at it again"));
  }
  const auto explain = [&](const absl::Status& status) {
    return absl::Status(status.code(), absl::StrCat("adopting ", path, ": ", status.message()));
  };
  // First, so that the folder is never another job's without being adopted.
  absl::Status status =
      WriteOwnerFile(absl::StrCat(path, "/", kPreviousOwnerFile), found.owner, {.points = "checkpoint.adopt_previous"});
  if (!status.ok()) return explain(status);
  const std::string file = absl::StrCat(path, "/", kOwnerFile);
  if (!job.empty()) {
    FolderOwner owner;
    owner.set_format(1);
    owner.set_job(job);  // its next start adds its store
    owner.set_written_by(absl::StrCat("muster ", kVersion));
    status = WriteOwnerFile(file, owner, {.points = "checkpoint.adopt_owner"});
    return status.ok() ? status : explain(status);
  }
  int error = failpoint::Hit("checkpoint.adopt_remove");
  if (error == 0 && unlink(file.c_str()) != 0 && errno != ENOENT) error = errno;
  if (error != 0) return explain(FileError(error, absl::StrCat("removing ", file)));
  return SyncFolder(path, "checkpoint.adopt_remove.sync");
}

}  // namespace muster::checkpoint
