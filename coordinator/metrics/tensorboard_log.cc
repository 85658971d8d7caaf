#include "coordinator/metrics/tensorboard_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/file/durable_file.h"
#include "common/file_error.h"
#include "coordinator/metrics/event_file.h"

namespace muster::metrics {
namespace {

constexpr size_t kMaxProgressBytes = 16 << 20;
constexpr char kPrefix[] = "events.out.tfevents.";
constexpr char kSuffix[] = ".muster";

class File {
 public:
  File(const std::string& path, int flags) : fd_(open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW, 0644)) {}
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }

 private:
  const int fd_;
};

absl::Status WriteAt(int fd, uint64_t offset, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t count = pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return FileError(count < 0 ? errno : ENOSPC, absl::StrCat("cannot write ", path));
    bytes.remove_prefix(count);
    offset += count;
  }
  return absl::OkStatus();
}

bool HasEnded(JobState state) {
  return state == JOB_STATE_COMPLETED || state == JOB_STATE_FAILED || state == JOB_STATE_CANCELLED;
}

// Ids derive from validated names; nevertheless a path outside of the folder is refused.
bool IsFolderName(const std::string& job) {
  return !job.empty() && job[0] != '.' && job.find('/') == std::string::npos;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TensorBoardLog>> TensorBoardLog::Open(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return FileError(error.value(), absl::StrCat("cannot make the TensorBoard folder ", folder));
  std::unique_ptr<TensorBoardLog> log(new TensorBoardLog(folder));
  if (absl::Status status = log->Load(); !status.ok()) return status;
  return log;
}

absl::Status TensorBoardLog::Load() {
  const std::string path = folder_ + "/progress";
  const File file(path, O_RDONLY);
  if (file.fd() < 0) {
    return errno == ENOENT ? absl::OkStatus() : FileError(errno, absl::StrCat("cannot read ", path));
  }
  struct stat info {};
  if (fstat(file.fd(), &info) != 0) return FileError(errno, absl::StrCat("cannot read ", path));
  const bool whole =
      static_cast<size_t>(info.st_size) <= kMaxProgressBytes && progress_.ParseFromFileDescriptor(file.fd());
  const auto shorter = [this](const TensorBoardProgress::Run& run) {
    struct stat found {};
    return run.bytes() > 0 && stat(PathOf(run).c_str(), &found) == 0 &&
           static_cast<uint64_t>(found.st_size) < run.bytes();
  };
  if (!whole || std::any_of(progress_.runs().begin(), progress_.runs().end(), shorter)) Restart();
  return absl::OkStatus();
}

void TensorBoardLog::Restart() {
  progress_.Clear();
  unsaved_ = true;
}

std::string TensorBoardLog::PathOf(const TensorBoardProgress::Run& run) const {
  // TensorBoard reads the files of a run in name order.
  return absl::StrFormat("%s/%s%010d%s", FolderOf(folder_, run.job()), kPrefix, run.generation(), kSuffix);
}

absl::Status TensorBoardLog::Append(const TensorBoardProgress::Run& run, const std::string& records) {
  const std::string folder = FolderOf(folder_, run.job());
  if (mkdir(folder.c_str(), 0755) != 0 && errno != EEXIST) {
    return FileError(errno, absl::StrCat("cannot make ", folder));
  }
  const std::string path = PathOf(run);
  const File file(path, O_WRONLY | O_CREAT);
  // Data after this point was written before a crash, or by an attempt that failed.
  if (file.fd() < 0 || ftruncate(file.fd(), static_cast<off_t>(run.bytes())) != 0) {
    return FileError(errno, absl::StrCat("cannot write ", path));
  }
  unsynced_.insert(path);
  return WriteAt(file.fd(), run.bytes(), records, path);
}

absl::Status TensorBoardLog::Write(const std::vector<WatchItem>& items) {
  if (items.empty()) return absl::OkStatus();
  struct Pending {
    TensorBoardProgress::Run run;
    std::string records;
    bool ended = false;
  };
  std::map<std::string, Pending> jobs;
  for (const TensorBoardProgress::Run& run : progress_.runs()) jobs[run.job()].run = run;
  const auto of = [&jobs](const WatchItem& item) -> Pending& {
    Pending& pending = jobs[item.job()];
    pending.run.set_job(item.job());
    return pending;
  };
  const auto flush = [this](Pending& pending) {
    if (pending.records.empty()) return absl::OkStatus();
    const absl::Status status = Append(pending.run, pending.records);
    pending.run.set_bytes(pending.run.bytes() + pending.records.size());
    pending.records.clear();
    return status;
  };
  for (const WatchItem& item : items) {
    if (!IsFolderName(item.job())) continue;
    if (item.has_event()) {
      Pending& pending = of(item);
      pending.ended = HasEnded(item.event().job_state());
      if (item.event().generation() <= pending.run.generation()) continue;
      if (absl::Status status = flush(pending); !status.ok()) return status;
      pending.run.set_generation(item.event().generation());
      pending.run.set_bytes(0);
    } else if (item.has_metrics() && (IsWritten(item.metrics().step()) || item.metrics().has_validation_loss())) {
      Pending& pending = of(item);
      const std::string record = PointRecord(item.metrics());
      if (record.empty()) continue;
      if (pending.run.bytes() == 0 && pending.records.empty()) pending.records = FileStart(item.metrics());
      pending.records += record;
    }
  }
  TensorBoardProgress next;
  next.set_cursor(items.back().cursor());
  for (auto& [job, pending] : jobs) {
    if (absl::Status status = flush(pending); !status.ok()) return status;
    if (!pending.ended) *next.add_runs() = std::move(pending.run);
  }
  progress_ = std::move(next);
  unsaved_ = true;
  return absl::OkStatus();
}

absl::Status TensorBoardLog::Save() {
  for (const std::string& path : unsynced_) {
    absl::Status status = SyncFile(path);
    if (!status.ok() && !absl::IsNotFound(status)) return status;  // not found: its job was deleted
  }
  unsynced_.clear();
  absl::Status status = WriteDurably(folder_ + "/progress", progress_.SerializeAsString(), {});
  if (status.ok()) unsaved_ = false;
  return status;
}

void TensorBoardLog::Remove(const JobId& job) {
  if (!IsFolderName(job.value())) return;
  std::error_code error;
  const std::string folder = FolderOf(folder_, job.value());
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (absl::StartsWith(name, kPrefix) && absl::EndsWith(name, kSuffix)) unlink(entry.path().c_str());
  }
  rmdir(folder.c_str());
  auto& runs = *progress_.mutable_runs();
  runs.erase(std::remove_if(runs.begin(), runs.end(), [&](const auto& run) { return run.job() == job.value(); }),
             runs.end());
}

}  // namespace muster::metrics
