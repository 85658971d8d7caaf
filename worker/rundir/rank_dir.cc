#include <fcntl.h>
#include <google/protobuf/util/json_util.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/failpoint.h"
#include "common/file/durable_file.h"
#include "common/file/private_folder.h"
#include "common/file/read_file.h"
#include "common/file_error.h"
#include "worker/rundir/rundir.h"

namespace muster::rundir {
namespace {

using nlohmann::json;

constexpr char kGone[] = ".gone-";

absl::StatusOr<json> ReadJson(const std::string& path) {
  absl::StatusOr<std::string> content = ReadWhole(path);
  if (!content.ok()) return content.status();
  json value = json::parse(*content, nullptr, /*allow_exceptions=*/false);
  if (!value.is_object()) return absl::DataLossError(absl::StrCat(path, " is not a JSON object; check the disk"));
  return value;
}

absl::Status WriteJson(const std::string& path, const json& value) {
  return WriteDurably(path, value.dump(2, ' ', false, json::error_handler_t::replace) + "\n");
}

// Reads fields and notes the first that is missing or of the wrong type.
class Fields {
 public:
  explicit Fields(const json& value) : value_(value) {}

  template <typename T>
  T Get(const char* name) {
    try {
      return value_.at(name).get<T>();
    } catch (const json::exception&) {
      if (bad_.empty()) bad_ = name;
      return T{};
    }
  }
  absl::Duration GetDuration(const char* name) {
    absl::Duration duration;
    if (!absl::ParseDuration(Get<std::string>(name), &duration) && bad_.empty()) bad_ = name;
    return duration;
  }
  absl::Status Check(const std::string& path) const {
    if (bad_.empty()) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat(path, ": field ", bad_, " is missing or wrong; check the disk"));
  }

 private:
  const json& value_;
  std::string bad_;
};

json ToJson(const ProcessId& process) {
  return {{"pid", process.pid}, {"start_ticks", process.start_ticks}, {"boot_id", process.boot_id}};
}

absl::StatusOr<ProcessId> ProcessFrom(const json& value, const std::string& path) {
  Fields fields(value);
  ProcessId process{fields.Get<pid_t>("pid"), fields.Get<uint64_t>("start_ticks"), fields.Get<std::string>("boot_id")};
  if (absl::Status status = fields.Check(path); !status.ok()) return status;
  return process;
}

json ToJson(const User& user) {
  return {{"uid", user.uid}, {"gid", user.gid}, {"groups", user.groups}, {"umask", user.umask}};
}

User UserFrom(Fields& fields) {
  return {fields.Get<uid_t>("uid"), fields.Get<gid_t>("gid"), fields.Get<std::vector<gid_t>>("groups"),
          fields.Get<mode_t>("umask")};
}

// A folder of this process that others may pass through and neither list nor change.
absl::Status LetPass(const std::string& folder) {
  if (chmod(folder.c_str(), 0711) == 0) return absl::OkStatus();
  return FileError(errno, absl::StrCat("cannot let other users pass through ", folder));
}

absl::Status MakeFolderOf(const User& user, const std::string& path) {
  if (absl::Status status = MakeFolder(path); !status.ok()) return status;
  if (lchown(path.c_str(), user.uid, user.gid) == 0) return absl::OkStatus();
  return FileError(errno, absl::StrCat("cannot give the folder ", path, " to user ", user.uid));
}

bool IsPlainName(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

std::vector<std::string> Subfolders(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (it->is_directory(ignored)) names.push_back(it->path().filename().string());
  }
  return names;
}

// Of a rank's folder, which is gone. They hold other ranks, or go too.
void RemoveEmptyFoldersAbove(const std::string& rank) {
  const std::string generation = std::filesystem::path(rank).parent_path();
  if (rmdir(generation.c_str()) == 0) rmdir(std::filesystem::path(generation).parent_path().c_str());
}

}  // namespace

RankDir::RankDir(std::string run, RankId rank)
    : run_(std::move(run)), rank_(std::move(rank)), path_(absl::StrCat(run_, "/", rank_.ToString())) {}

absl::StatusOr<RankDir> RankDir::FromPath(const std::string& path) {
  std::filesystem::path rest = std::filesystem::path(path).lexically_normal();
  if (!rest.has_filename()) rest = rest.parent_path();  // it ended with a slash
  RankId rank;
  const std::string name = rest.filename();
  const std::string generation = rest.parent_path().filename();
  rest = rest.parent_path().parent_path();
  rank.job = JobId(rest.filename());
  if (!rest.is_absolute() || !absl::SimpleAtoi(name, &rank.rank) || !absl::SimpleAtoi(generation, &rank.generation) ||
      !IsPlainName(rank.job.value())) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", path, "\" is not a rank folder: expected /<run>/<job>/<generation>/<rank>"));
  }
  return RankDir(rest.parent_path(), std::move(rank));
}

std::string RankDir::TrainerPath(const Start& start) const {
  return start.user.has_value() ? path_ + "/trainer" : path_;
}

std::string RankDir::TrainerPath() const {
  const absl::StatusOr<Start> start = ReadStart();
  return start.ok() ? TrainerPath(*start) : path_;
}

absl::Status RankDir::Create(const Start& start) const {
  if (!IsPlainName(rank_.job.value())) {
    return absl::InvalidArgumentError(absl::StrCat("\"", rank_.job.value(), "\" cannot be a job's id"));
  }
  const std::string job = absl::StrCat(run_, "/", rank_.job.value());
  for (const std::string& directory : {job, absl::StrCat(job, "/", rank_.generation), path_}) {
    absl::Status status = MakeFolder(directory);
    if (status.ok() && start.user.has_value()) status = LetPass(directory);
    if (!status.ok()) return status;
  }
  const std::string file = path_ + "/start.json";
  if (access(file.c_str(), F_OK) == 0) return absl::AlreadyExistsError(absl::StrCat(file, " is there already"));
  json value = {{"argv", start.argv},
                {"environment", start.environment},
                {"working_directory", start.working_directory},
                {"orphan_grace", absl::FormatDuration(start.orphan_grace)},
                {"kill_grace", absl::FormatDuration(start.kill_grace)}};
  if (start.slots.has_value()) value["slots"] = *start.slots;
  if (start.user.has_value()) {
    if (absl::Status status = MakeFolderOf(*start.user, TrainerPath(start)); !status.ok()) return status;
    value["user"] = ToJson(*start.user);
  }
  return WriteJson(file, value);
}

absl::StatusOr<Start> RankDir::ReadStart() const {
  const std::string file = path_ + "/start.json";
  absl::StatusOr<json> value = ReadJson(file);
  if (!value.ok()) return value.status();
  Fields fields(*value);
  Start start{fields.Get<std::vector<std::string>>("argv"), fields.Get<std::vector<std::string>>("environment"),
              fields.Get<std::string>("working_directory"), fields.GetDuration("orphan_grace"),
              fields.GetDuration("kill_grace")};
  if (value->contains("slots")) start.slots = fields.Get<std::vector<uint32_t>>("slots");
  if (absl::Status status = fields.Check(file); !status.ok()) return status;
  if (!value->contains("user")) return start;
  Fields user(value->at("user"));
  start.user = UserFrom(user);
  if (absl::Status status = user.Check(file + ", user"); !status.ok()) return status;
  return start;
}

absl::Status RankDir::WriteProcesses(const Processes& processes) const {
  return WriteJson(path_ + "/processes.json",
                   {{"shim", ToJson(processes.shim)}, {"trainer", ToJson(processes.trainer)}});
}

absl::StatusOr<Processes> RankDir::ReadProcesses() const {
  const std::string file = path_ + "/processes.json";
  absl::StatusOr<json> value = ReadJson(file);
  if (!value.ok()) return value.status();
  absl::StatusOr<ProcessId> shim = ProcessFrom(value->value("shim", json::object()), file);
  if (!shim.ok()) return shim.status();
  absl::StatusOr<ProcessId> trainer = ProcessFrom(value->value("trainer", json::object()), file);
  if (!trainer.ok()) return trainer.status();
  return Processes{*shim, *trainer};
}

std::string RankDir::ReservePath() const { return path_ + "/reserve"; }

absl::Status RankDir::WriteExit(const RankExit& exit) const {
  std::string text;
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.preserve_proto_field_names = true;
  if (const auto status = google::protobuf::util::MessageToJsonString(exit, &text, options); !status.ok()) {
    return absl::InternalError(absl::StrCat("cannot print an exit record: ", status.ToString()));
  }
  return WriteDurably(path_ + "/exit.json", text);
}

absl::StatusOr<RankExit> RankDir::ReadExit() const {
  const std::string file = path_ + "/exit.json";
  absl::StatusOr<std::string> text = ReadWhole(file);
  if (!text.ok()) return text.status();
  RankExit exit;
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  if (const auto status = google::protobuf::util::JsonStringToMessage(*text, &exit, options); !status.ok()) {
    return absl::DataLossError(absl::StrCat(file, ": ", status.ToString(), "; check the disk"));
  }
  return exit;
}

// "base64(name) base64(value)" between two newlines, so that a torn line of a killed daemon damages no other.
absl::Status RankDir::KeepKey(const std::string& name, const std::string& value) const {
  const std::string file = path_ + "/keys";
  const std::string line = absl::StrCat("\n", absl::Base64Escape(name), " ", absl::Base64Escape(value), "\n");
  const int fd = open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0) return FileError(errno, absl::StrCat("cannot open ", file));
  const ssize_t written = write(fd, line.data(), line.size());
  const int error = written < 0 ? errno : ENOSPC;
  close(fd);
  if (written == static_cast<ssize_t>(line.size())) return absl::OkStatus();
  return FileError(error, absl::StrCat("cannot append to ", file));
}

std::map<std::string, std::string> RankDir::Keys() const {
  std::map<std::string, std::string> keys;
  const absl::StatusOr<std::string> text = ReadWhole(path_ + "/keys");
  if (!text.ok()) return keys;
  const std::vector<std::string> lines = absl::StrSplit(*text, '\n');
  // The text after the last newline is incomplete.
  for (size_t i = 0; i + 1 < lines.size(); ++i) {
    const std::vector<std::string> parts = absl::StrSplit(lines[i], ' ');
    std::string name, value;
    if (parts.size() == 2 && absl::Base64Unescape(parts[0], &name) && absl::Base64Unescape(parts[1], &value)) {
      keys[name] = value;
    }
  }
  return keys;
}

absl::Status RankDir::MarkDone() const { return WriteDurably(path_ + "/done", ""); }

bool RankDir::IsDone() const { return access((path_ + "/done").c_str(), F_OK) == 0; }

absl::Status RankDir::Remove() const {
  std::error_code error;
  std::filesystem::remove_all(path_, error);
  if (error) return absl::ErrnoToStatus(error.value(), absl::StrCat("cannot remove ", path_));
  RemoveEmptyFoldersAbove(path_);
  return absl::OkStatus();
}

absl::Status RankDir::MoveAway() const {
  // Names that are taken are left from earlier, and few.
  for (uint64_t number = 1;; ++number) {
    const std::string gone = absl::StrCat(run_, "/", kGone, number);
    if (rename(path_.c_str(), gone.c_str()) == 0) break;
    if (errno != EEXIST && errno != ENOTEMPTY)
      return FileError(errno, absl::StrCat("cannot rename ", path_, " to ", gone));
  }
  RemoveEmptyFoldersAbove(path_);
  return absl::OkStatus();
}

absl::Status RankDir::RemoveGone(const std::string& run) {
  absl::Status status;
  for (const std::string& name : Subfolders(run)) {
    if (!absl::StartsWith(name, kGone)) continue;
    const std::string path = absl::StrCat(run, "/", name);
    std::error_code error(failpoint::Hit("rundir.gone.remove"), std::generic_category());
    if (!error) std::filesystem::remove_all(path, error);
    if (error) status.Update(absl::ErrnoToStatus(error.value(), absl::StrCat("cannot remove ", path)));
  }
  return status;
}

std::vector<RankDir> RankDir::List(const std::string& run) {
  std::vector<RankId> found;
  for (const std::string& job : Subfolders(run)) {
    if (absl::StartsWith(job, kGone)) continue;
    for (const std::string& generation : Subfolders(absl::StrCat(run, "/", job))) {
      for (const std::string& rank : Subfolders(absl::StrCat(run, "/", job, "/", generation))) {
        RankId id{JobId(job)};
        if (absl::SimpleAtoi(generation, &id.generation) && absl::SimpleAtoi(rank, &id.rank)) found.push_back(id);
      }
    }
  }
  std::sort(found.begin(), found.end());
  std::vector<RankDir> result;
  for (RankId& id : found) result.emplace_back(run, std::move(id));
  return result;
}

}  // namespace muster::rundir
