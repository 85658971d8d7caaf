#include "worker/agent/prune.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "common/log/log.h"
#include "worker/rundir/rundir.h"

namespace muster::agent {
namespace {

uint64_t BytesIn(const std::string& folder) {
  uint64_t bytes = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    const uintmax_t size = it->file_size(ignored);
    if (!ignored) bytes += size;
  }
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

void PruneDone(const std::string& run, const PruneLimits& limits) {
  std::vector<DoneFolder> done;
  for (const rundir::RankDir& dir : rundir::RankDir::List(run)) {
    struct stat info {};
    if (stat((dir.path() + "/done").c_str(), &info) != 0) continue;
    done.push_back({dir.path(), BytesIn(dir.path()), absl::TimeFromTimespec(info.st_mtim)});
  }
  for (const std::string& path : ChoosePruned(std::move(done), limits)) {
    const absl::StatusOr<rundir::RankDir> dir = rundir::RankDir::FromPath(path);
    const absl::Status status = dir.ok() ? dir->Remove() : dir.status();
    if (!status.ok()) LogWarn("cannot remove the folder of an ended rank", {{"path", path}, {"error", status}});
  }
}

}  // namespace muster::agent
