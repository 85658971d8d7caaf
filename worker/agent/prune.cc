#include "worker/agent/prune.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/file/durable_file.h"
#include "common/file/read_file.h"
#include "common/log/log.h"
#include "worker/rundir/rundir.h"

namespace muster::agent {
namespace {

constexpr uint64_t kBlockBytes = 512;  // of st_blocks

// On the disk, at any depth. Links are not followed, and what vanishes meanwhile, or may not be read, counts nothing.
uint64_t BytesIn(const std::string& folder) {
  uint64_t bytes = 0;
  std::vector<std::string> folders = {folder};
  while (!folders.empty()) {
    std::error_code error;
    std::filesystem::directory_iterator it(folders.back(), error);
    folders.pop_back();
    for (; !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
      struct stat info {};
      if (lstat(it->path().c_str(), &info) != 0) continue;
      bytes += static_cast<uint64_t>(info.st_blocks) * kBlockBytes;
      if (S_ISDIR(info.st_mode)) folders.push_back(it->path());
    }
  }
  return bytes;
}

// BytesIn, counted once: a program may leave a hundred thousand files, and this runs at the end of every rank.
uint64_t BytesOfDone(const std::string& folder) {
  const std::string file = folder + "/size";
  uint64_t bytes = 0;
  const absl::StatusOr<std::string> kept = ReadWhole(file);
  if (kept.ok() && absl::SimpleAtoi(*kept, &bytes)) return bytes;
  bytes = BytesIn(folder);
  WriteDurably(file, absl::StrCat(bytes)).IgnoreError();  // it is counted again
  return bytes;
}

}  // namespace

std::vector<std::string> ChoosePruned(std::vector<DoneFolder> folders, const PruneLimits& limits) {
  std::sort(folders.begin(), folders.end(), [](const DoneFolder& a, const DoneFolder& b) {
    return a.done != b.done ? a.done < b.done : a.path < b.path;
  });
  uint64_t bytes = 0;
  for (const DoneFolder& folder : folders) bytes += folder.bytes;
  std::vector<std::string> pruned;
  for (const DoneFolder& folder : folders) {
    if (folders.size() - pruned.size() <= limits.folders && bytes <= limits.bytes) break;
    pruned.push_back(folder.path);
    bytes -= folder.bytes;
  }
  return pruned;
}

std::vector<std::string> ChooseDone(const std::string& run, const PruneLimits& limits) {
  std::vector<DoneFolder> done;
  for (const rundir::RankDir& dir : rundir::RankDir::List(run)) {
    struct stat info {};
    if (stat((dir.path() + "/done").c_str(), &info) != 0) continue;
    done.push_back({dir.path(), BytesOfDone(dir.path()), absl::TimeFromTimespec(info.st_mtim)});
  }
  return ChoosePruned(std::move(done), limits);
}

Pruner::Pruner(std::string run, EventLoop* loop, std::function<bool(const RankId&)> in_use)
    : run_(std::move(run)), loop_(loop), in_use_(std::move(in_use)) {}

std::function<void()> Pruner::Then(std::function<void()> next) {
  return [next = std::move(next), alive = std::weak_ptr<bool>(alive_), loop = loop_->weak_from_this()] {
    const std::shared_ptr<EventLoop> there = loop.lock();
    if (there == nullptr) return;
    there->Post([next, alive] {
      if (!alive.expired()) next();
    });
  };
}

void Pruner::Prune(const PruneLimits& limits, std::function<void()> pruned) {
  if (!wanted_.has_value()) wanted_.emplace(Wanted{limits, {}});
  wanted_->limits.folders = std::min(wanted_->limits.folders, limits.folders);
  wanted_->limits.bytes = std::min(wanted_->limits.bytes, limits.bytes);
  if (pruned != nullptr) wanted_->pruned.push_back(std::move(pruned));
  if (!running_.has_value()) Count();
}

void Pruner::Count() {
  running_ = std::exchange(wanted_, std::nullopt);
  counting_ = PendingCall<std::vector<std::string>>::Start(
      [run = run_, limits = running_->limits] { return ChooseDone(run, limits); },
      Then([this] { Remove(*counting_->answer()); }));
}

void Pruner::Remove(const std::vector<std::string>& paths) {
  counting_ = nullptr;
  for (const std::string& path : paths) {
    const absl::StatusOr<rundir::RankDir> dir = rundir::RankDir::FromPath(path);
    if (dir.ok() && in_use_(dir->rank())) continue;
    const absl::Status status = dir.ok() ? dir->MoveAway() : dir.status();
    if (!status.ok()) LogWarn("cannot remove the folder of an ended rank", {{"path", path}, {"error", status}});
  }
  removing_ = PendingCall<absl::Status>::Start([run = run_] { return rundir::RankDir::RemoveGone(run); },
                                               Then([this] { Removed(*removing_->answer()); }));
}

void Pruner::Removed(const absl::Status& status) {
  removing_ = nullptr;
  if (!status.ok()) LogWarn("cannot remove the folder of an ended rank", {{"error", status}});
  const Wanted done = *std::exchange(running_, std::nullopt);
  if (wanted_.has_value()) Count();
  for (const std::function<void()>& pruned : done.pruned) pruned();
}

}  // namespace muster::agent
