#include "checkpoint/folder_owner.h"

#include <errno.h>
#include <google/protobuf/util/json_util.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checkpoint/adopt.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/file.h"
#include "common/checkpoint_names.h"
#include "common/file/beneath.h"
#include "common/file/durable_file.h"
#include "common/file_error.h"
#include "common/version.h"

namespace muster::checkpoint {
namespace {

constexpr uint64_t kMaxOwnerBytes = 64 << 10;

std::string AdoptHint(const std::string& path) {
  return absl::StrCat("to let the next job that uses the folder go on from its checkpoints: muster checkpoint adopt ",
                      path);
}

// Another name of `path`, below which a folder would be in the other job's folder. Empty: no symbolic link is in it.
std::string Linked(const std::string& path) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  if (error) return "";
  std::string place = PlaceOf(absolute.native()), direct = absolute.lexically_normal().native();
  while (direct.size() > 1 && direct.back() == '/') direct.pop_back();
  return place == direct ? "" : place;
}

// The path, with the folder that it leads to.
std::string Named(const std::string& path) {
  const std::string place = Linked(path);
  return place.empty() ? path : absl::StrCat(path, " (through a symbolic link: ", place, ")");
}

std::string OwnFolderHint(const std::string& path) {
  const std::string place = Linked(path);
  if (place.empty()) {
    return absl::StrCat(
        "give this job a folder of its own ({name} or {job} in checkpoint.path makes one; checkpoint.resume_from "
        "continues from another job's checkpoint), or, if the other job is over, move or remove its folder; ",
        AdoptHint(path));
  }
  return absl::StrCat("name a folder outside of ", place,
                      " ({name} or {job} in checkpoint.path makes one per job; checkpoint.resume_from continues from "
                      "another job's checkpoint), or, if the other job is over, move or remove ",
                      place, "; ", AdoptHint(path));
}

// Enough to tell two stores apart.
std::string Short(const std::string& store_id) {
  constexpr size_t kShown = 8;
  return store_id.substr(0, kShown);
}

std::string OfStore(const std::string& store_id) {
  return store_id.empty() ? "" : absl::StrCat(" of store ", Short(store_id));
}

absl::Status Claiming(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("claiming checkpoint.path ", path, ": ", status.message()));
}

FolderOwner OwnerFor(const Holder& holder) {
  FolderOwner owner;
  owner.set_format(1);
  owner.set_job(holder.job);
  owner.set_store_id(holder.store_id);
  owner.set_written_by(absl::StrCat("muster ", kVersion));
  return owner;
}

absl::Status WriteOwner(const std::string& path, const Holder& holder) {
  const absl::Status status = WriteOwnerFile(absl::StrCat(path, "/", kOwnerFile), OwnerFor(holder),
                                             {.existing = FileOptions::kRefuse, .points = "checkpoint.owner"});
  // Another job was faster, and may have removed our temporary already: the caller reads who owns the folder.
  if (status.ok() || absl::IsAlreadyExists(status) || absl::IsNotFound(status)) return absl::OkStatus();
  return Claiming(path, status);
}

// An owner file of an older build, or of an adopted folder, names no store: from now on it is the holder's.
absl::Status AddStore(const std::string& path, const Holder& holder) {
  const absl::StatusOr<FolderOwner> owner = OwnerOf(path);
  if (!owner.ok()) return owner.status();
  if (!owner->store_id().empty() || holder.store_id.empty()) return absl::OkStatus();
  const absl::Status status =
      WriteOwnerFile(absl::StrCat(path, "/", kOwnerFile), OwnerFor(holder), {.points = "checkpoint.owner_store"});
  return status.ok() ? status : Claiming(path, status);
}

// For a folder without an owner: an older Muster wrote its checkpoints, or they were copied there.
absl::Status CheckWriters(const std::string& path, const std::string& job) {
  if (IsAdopted(path)) return absl::OkStatus();
  for (const StepName& step : List(path)) {
    const std::optional<std::string> writer = WriterOf(absl::StrCat(path, "/", step.Directory()));
    if (!writer.has_value() || *writer == job) continue;
    const std::string whose = writer->empty() ? "imported checkpoints" : absl::StrCat("checkpoints of job ", *writer);
    return absl::FailedPreconditionError(absl::StrCat("checkpoint.path ", Named(path), " holds ", whose, " (",
                                                      step.Directory(), "): ", OwnFolderHint(path)));
  }
  return absl::OkStatus();
}

// Before any folder is made. In the place of a checkpoint that another job has not written yet, its own would fail.
absl::Status CheckPlace(const std::string& path) {
  std::error_code error;
  if (std::filesystem::exists(absl::StrCat(path, "/", kManifestFile), error)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "checkpoint.path ", Named(path), " is itself a checkpoint: name a folder for this job's checkpoints"));
  }
  if (const std::string why = WhyReserved(path); !why.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("checkpoint.path ", path, " ", why));
  }
  // Before a link to nothing is reported as broken: creating what it names would not help.
  const std::string why = WhyReserved(PlaceOf(path));
  return why.empty() ? absl::OkStatus()
                     : absl::FailedPreconditionError(absl::StrCat("checkpoint.path ", Named(path), " ", why));
}

}  // namespace

bool Owns(const FolderOwner& owner, const Holder& holder) {
  if (owner.job() != holder.job) return false;
  return owner.store_id().empty() || holder.store_id.empty() || owner.store_id() == holder.store_id;
}

absl::Status BelongsToAnother(const std::string& path, const FolderOwner& owner, const Holder& holder) {
  const std::string file = absl::StrCat("(", path, "/", kOwnerFile, ")");
  if (owner.job() == holder.job) {
    return absl::FailedPreconditionError(
        absl::StrCat("checkpoint.path ", Named(path), " belongs to job ", owner.job(), OfStore(owner.store_id()), " ",
                     file, ", and this coordinator has store ", Short(holder.store_id),
                     ": two coordinators must not share a folder. If the other one no longer runs the job, "
                     "because the folder was moved or restored by hand, ",
                     AdoptHint(path)));
  }
  const bool other_store = !owner.store_id().empty() && !holder.store_id.empty() && owner.store_id() != holder.store_id;
  return absl::FailedPreconditionError(absl::StrCat(
      "checkpoint.path ", Named(path), " belongs to job ", owner.job(), other_store ? OfStore(owner.store_id()) : "",
      " ", file, ", not to ", holder.job.empty() ? "an import" : holder.job,
      other_store ? OfStore(holder.store_id) : "", ": ", OwnFolderHint(path)));
}

absl::Status WriteOwnerFile(const std::string& file, const FolderOwner& owner, const FileOptions& options) {
  google::protobuf::util::JsonPrintOptions print;
  print.add_whitespace = true;
  print.preserve_proto_field_names = true;
  std::string json;
  if (!google::protobuf::util::MessageToJsonString(owner, &json, print).ok()) {
    return absl::InternalError("the owner of a checkpoint folder cannot be written as JSON");
  }
  return WriteDurably(file, json, options);
}

std::optional<std::string> WriterOf(const std::string& folder) {
  const absl::StatusOr<std::string> json =
      ReadText(absl::StrCat(folder, "/", kManifestFile), std::numeric_limits<uint64_t>::max());
  if (!json.ok()) return std::nullopt;
  Manifest manifest;
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  if (!google::protobuf::util::JsonStringToMessage(*json, &manifest, options).ok()) return std::nullopt;
  return manifest.job();
}

absl::StatusOr<std::optional<FolderOwner>> ReadOwnerFile(const std::string& path, const char* name) {
  const std::string file = absl::StrCat(path, "/", name);
  const absl::StatusOr<std::string> json = ReadText(file, kMaxOwnerBytes);
  if (absl::IsNotFound(json.status())) return std::nullopt;
  FolderOwner owner;
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  if (!json.ok()) {
    return absl::Status(json.status().code(), absl::StrCat("cannot tell which job checkpoint.path ", path,
                                                           " belongs to: ", json.status().message()));
  }
  if (google::protobuf::util::JsonStringToMessage(*json, &owner, options).ok() && !owner.job().empty()) return owner;
  return absl::FailedPreconditionError(absl::StrCat("cannot tell which job checkpoint.path ", path, " belongs to: ",
                                                    file, " names no job; if no job uses the folder, remove the file"));
}

absl::StatusOr<FolderOwner> OwnerOf(const std::string& path) {
  absl::StatusOr<std::optional<FolderOwner>> owner = ReadOwnerFile(path, kOwnerFile);
  if (!owner.ok()) return owner.status();
  return (*std::move(owner)).value_or(FolderOwner());
}

absl::Status CheckFolder(const std::string& path, const Holder& holder) {
  if (absl::Status place = CheckPlace(path); !place.ok()) return place;
  if (absl::Status made = MakeConfinedFolders(path); !made.ok()) {
    return absl::Status(made.code(), absl::StrCat("checkpoint.path ", made.message()));
  }
  // EEXIST: a process with the same id, perhaps on another machine, is trying it too.
  const std::string probe = absl::StrCat(path, "/.probe-", getpid());
  if (mkdir(probe.c_str(), 0777) != 0 && errno != EEXIST) {
    return FileError(errno, absl::StrCat("writing to checkpoint.path ", path));
  }
  rmdir(probe.c_str());
  const absl::StatusOr<FolderOwner> owner = OwnerOf(path);
  if (!owner.ok()) return owner.status();
  if (owner->job().empty()) return CheckWriters(path, holder.job);
  return Owns(*owner, holder) ? absl::OkStatus() : BelongsToAnother(path, *owner, holder);
}

absl::Status Claim(const std::string& path, const Holder& holder) {
  absl::Status status = CheckFolder(path, holder);
  if (status.ok()) status = Hold(path, holder);
  if (status.ok()) status = AddStore(path, holder);
  // Also if the owner file was there: the process that wrote it may have died before its own sync.
  return status.ok() ? SyncFolder(path, "checkpoint.owner.sync_folder") : status;
}

absl::Status Hold(const std::string& path, const Holder& holder) {
  if (absl::Status status = CheckConfined(path); !status.ok()) return status;
  absl::StatusOr<FolderOwner> owner = OwnerOf(path);
  if (owner.ok() && owner->job().empty()) {
    absl::Status status = CheckWriters(path, holder.job);
    if (!status.ok() || holder.job.empty()) return status;
    if (status = WriteOwner(path, holder); !status.ok()) return status;
    owner = OwnerOf(path);
    if (owner.ok() && owner->job().empty()) {
      return absl::UnavailableError(absl::StrCat(path, " was removed while it was claimed for job ", holder.job));
    }
  }
  if (!owner.ok()) return owner.status();
  return Owns(*owner, holder) ? absl::OkStatus() : BelongsToAnother(path, *owner, holder);
}

}  // namespace muster::checkpoint
