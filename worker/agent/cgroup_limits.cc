#include "worker/agent/cgroup_limits.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace muster::agent {
namespace {

// Version 1 writes "no limit" as the largest multiple of a page.
constexpr uint64_t kUnlimited = uint64_t{1} << 60;

std::string FirstLine(const std::string& path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

void NarrowCores(absl::string_view quota, absl::string_view period, CgroupLimits& limits) {
  int64_t allowed = 0, every = 0;
  if (!absl::SimpleAtoi(quota, &allowed) || !absl::SimpleAtoi(period, &every) || allowed <= 0 || every <= 0) return;
  const double cores = static_cast<double>(allowed) / static_cast<double>(every);
  limits.cores = std::min(limits.cores.value_or(cores), cores);
}

void NarrowMemory(const std::string& text, CgroupLimits& limits) {
  uint64_t bytes = 0;
  if (!absl::SimpleAtoi(text, &bytes) || bytes == 0 || bytes >= kUnlimited) return;
  limits.memory_bytes = std::min(limits.memory_bytes.value_or(bytes), bytes);
}

void ReadVersion2(const std::string& folder, CgroupLimits& limits) {
  const std::vector<std::string> cpu = absl::StrSplit(FirstLine(folder + "/cpu.max"), ' ');
  if (cpu.size() == 2) NarrowCores(cpu[0], cpu[1], limits);
  NarrowMemory(FirstLine(folder + "/memory.max"), limits);
}

void ReadVersion1(const std::string& folder, CgroupLimits& limits) {
  NarrowCores(FirstLine(folder + "/cpu.cfs_quota_us"), FirstLine(folder + "/cpu.cfs_period_us"), limits);
  NarrowMemory(FirstLine(folder + "/memory.limit_in_bytes"), limits);
}

// From `path` up to the mount itself: in a container `path` may be the host's and not be there, the mount always is.
void ForEachLevel(const std::string& mount, std::string path, const std::function<void(const std::string&)>& read) {
  while (true) {
    read(absl::StrCat(mount, path));
    if (path.empty()) return;
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
}

}  // namespace

CgroupLimits ReadCgroupLimits(const std::string& mount, const std::string& self) {
  CgroupLimits limits;
  std::ifstream file(self);
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));  // number:controllers:path
    if (parts.size() != 3) continue;
    const std::string path = parts[2] == "/" ? "" : parts[2];
    if (parts[1].empty()) {
      for (const char* where : {"", "/unified"}) {
        ForEachLevel(mount + where, path, [&](const std::string& folder) { ReadVersion2(folder, limits); });
      }
      continue;
    }
    for (const absl::string_view controller : absl::StrSplit(parts[1], ',')) {
      if (controller != "cpu" && controller != "memory") continue;
      ForEachLevel(absl::StrCat(mount, "/", controller), path,
                   [&](const std::string& folder) { ReadVersion1(folder, limits); });
    }
  }
  return limits;
}

}  // namespace muster::agent
