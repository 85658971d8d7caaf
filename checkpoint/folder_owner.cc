#include "checkpoint/folder_owner.h"

#include <errno.h>
#include <google/protobuf/util/json_util.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/file.h"
#include "common/file/durable_file.h"
#include "common/file_error.h"
#include "common/version.h"

namespace muster::checkpoint {
namespace {

constexpr uint64_t kMaxOwnerBytes = 64 << 10;

std::string OwnFolderHint() {
  return "give this job a folder of its own ({name} or {job} in checkpoint.path makes one; checkpoint.resume_from "
         "continues from another job's checkpoint), or, if the other job is over, move or remove its folder";
}

absl::Status WriteOwner(const std::string& path, const std::string& job) {
  FolderOwner owner;
  owner.set_format(1);
  owner.set_job(job);
  owner.set_written_by(absl::StrCat("muster ", kVersion));
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.preserve_proto_field_names = true;
  std::string json;
  if (!google::protobuf::util::MessageToJsonString(owner, &json, options).ok()) {
    return absl::InternalError("the owner of a checkpoint folder cannot be written as JSON");
  }
  // The file is complete and synced before it gets its name, so an owner file can always be read.
  const absl::Status status = WriteDurably(absl::StrCat(path, "/", kOwnerFile), json,
                                           {.existing = FileOptions::kRefuse, .points = "checkpoint.owner"});
  // Another job was faster, and may have removed our temporary already: the caller reads who owns the folder.
  if (absl::IsAlreadyExists(status) || absl::IsNotFound(status)) return absl::OkStatus();
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("claiming checkpoint.path ", path, ": ", status.message()));
}

// For a folder without an owner: an older Muster wrote its checkpoints, or they were copied there.
absl::Status CheckWriters(const std::string& path, const std::string& job) {
  for (const StepName& step : List(path)) {
    const std::optional<std::string> writer = WriterOf(absl::StrCat(path, "/", step.Directory()));
    if (!writer.has_value() || *writer == job) continue;
    const std::string whose = writer->empty() ? "imported checkpoints" : absl::StrCat("checkpoints of job ", *writer);
    return absl::FailedPreconditionError(
        absl::StrCat("checkpoint.path ", path, " holds ", whose, " (", step.Directory(), "): ", OwnFolderHint()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status BelongsToAnother(const std::string& path, const std::string& owner, const std::string& job) {
  return absl::FailedPreconditionError(absl::StrCat("checkpoint.path ", path, " belongs to job ", owner, " (", path,
                                                    "/", kOwnerFile, "), not to ", job.empty() ? "an import" : job,
                                                    ": ", OwnFolderHint()));
}

std::optional<std::string> WriterOf(const std::string& folder) {
  std::ifstream in(absl::StrCat(folder, "/", kManifestFile), std::ios::binary);
  const std::string json{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  Manifest manifest;
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  if (!google::protobuf::util::JsonStringToMessage(json, &manifest, options).ok()) return std::nullopt;
  return manifest.job();
}

absl::StatusOr<std::string> OwnerOf(const std::string& path) {
  const std::string file = absl::StrCat(path, "/", kOwnerFile);
  const absl::StatusOr<std::string> json = ReadText(file, kMaxOwnerBytes);
  if (absl::IsNotFound(json.status())) return std::string();
  FolderOwner owner;
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  if (!json.ok()) {
    return absl::Status(json.status().code(), absl::StrCat("cannot tell which job checkpoint.path ", path,
                                                           " belongs to: ", json.status().message()));
  }
  if (google::protobuf::util::JsonStringToMessage(*json, &owner, options).ok() && !owner.job().empty()) {
    return owner.job();
  }
  return absl::FailedPreconditionError(absl::StrCat("cannot tell which job checkpoint.path ", path, " belongs to: ",
                                                    file, " names no job; if no job uses the folder, remove the file"));
}

absl::Status CheckFolder(const std::string& path, const std::string& job) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) return FileError(error.value(), absl::StrCat("creating checkpoint.path ", path));
  // EEXIST: a process with the same id, perhaps on another machine, is trying it too.
  const std::string probe = absl::StrCat(path, "/.probe-", getpid());
  if (mkdir(probe.c_str(), 0777) != 0 && errno != EEXIST) {
    return FileError(errno, absl::StrCat("writing to checkpoint.path ", path));
  }
  rmdir(probe.c_str());
  if (std::filesystem::exists(absl::StrCat(path, "/", kManifestFile), error)) {
    return absl::FailedPreconditionError(
        absl::StrCat("checkpoint.path ", path, " is itself a checkpoint: name a folder for this job's checkpoints"));
  }
  const absl::StatusOr<std::string> owner = OwnerOf(path);
  if (!owner.ok()) return owner.status();
  if (owner->empty()) return CheckWriters(path, job);
  return *owner == job ? absl::OkStatus() : BelongsToAnother(path, *owner, job);
}

absl::Status Claim(const std::string& path, const std::string& job) {
  absl::Status status = CheckFolder(path, job);
  if (status.ok()) status = Hold(path, job);
  // Also if the owner file was there: the process that wrote it may have died before its own sync.
  return status.ok() ? SyncFolder(path, "checkpoint.owner.sync_folder") : status;
}

absl::Status Hold(const std::string& path, const std::string& job) {
  absl::StatusOr<std::string> owner = OwnerOf(path);
  if (owner.ok() && owner->empty()) {
    absl::Status status = CheckWriters(path, job);
    if (!status.ok() || job.empty()) return status;
    if (status = WriteOwner(path, job); !status.ok()) return status;
    owner = OwnerOf(path);
    if (owner.ok() && owner->empty()) {
      return absl::UnavailableError(absl::StrCat(path, " was removed while it was claimed for job ", job));
    }
  }
  if (!owner.ok()) return owner.status();
  return *owner == job ? absl::OkStatus() : BelongsToAnother(path, *owner, job);
}

}  // namespace muster::checkpoint
