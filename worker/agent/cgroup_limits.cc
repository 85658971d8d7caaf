#include "worker/agent/cgroup_limits.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

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

// The number of "name number" in a file of such lines.
std::optional<uint64_t> Entry(const std::string& path, absl::string_view name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    absl::string_view rest = line;
    uint64_t number = 0;
    if (absl::ConsumePrefix(&rest, name) && absl::ConsumePrefix(&rest, " ") && absl::SimpleAtoi(rest, &number)) {
      return number;
    }
  }
  return std::nullopt;
}

std::optional<uint64_t> NumberIn(const std::string& path) {
  uint64_t number = 0;
  return absl::SimpleAtoi(FirstLine(path), &number) ? std::optional(number) : std::nullopt;
}

// Whether the limit is now this one.
bool NarrowCores(absl::string_view quota, absl::string_view period, CgroupLimits& limits) {
  int64_t allowed = 0, every = 0;
  if (!absl::SimpleAtoi(quota, &allowed) || !absl::SimpleAtoi(period, &every) || allowed <= 0 || every <= 0)
    return false;
  const double cores = static_cast<double>(allowed) / static_cast<double>(every);
  if (cores > limits.cores.value_or(cores)) return false;
  limits.cores = cores;
  return true;
}

bool NarrowMemory(const std::string& text, CgroupLimits& limits) {
  uint64_t bytes = 0;
  if (!absl::SimpleAtoi(text, &bytes) || bytes == 0 || bytes >= kUnlimited) return false;
  if (bytes > limits.memory_bytes.value_or(bytes)) return false;
  limits.memory_bytes = bytes;
  return true;
}

// As the kubelet's working set: without file pages that have not been used for a while.
std::optional<uint64_t> UsedMemory(const std::string& usage, const std::string& statistics,
                                   absl::string_view inactive) {
  const std::optional<uint64_t> used = NumberIn(usage);
  if (!used.has_value()) return std::nullopt;
  return *used - std::min(*used, Entry(statistics, inactive).value_or(0));
}

void ReadVersion2(const std::string& folder, CgroupLimits& limits) {
  const std::vector<std::string> cpu = absl::StrSplit(FirstLine(folder + "/cpu.max"), ' ');
  if (cpu.size() == 2 && NarrowCores(cpu[0], cpu[1], limits)) {
    const std::optional<uint64_t> microseconds = Entry(folder + "/cpu.stat", "usage_usec");
    limits.used_core_seconds.reset();
    if (microseconds.has_value()) limits.used_core_seconds = static_cast<double>(*microseconds) / 1e6;
  }
  if (NarrowMemory(FirstLine(folder + "/memory.max"), limits)) {
    limits.used_memory_bytes = UsedMemory(folder + "/memory.current", folder + "/memory.stat", "inactive_file");
  }
}

void ReadVersion1(const std::string& folder, CgroupLimits& limits) {
  if (NarrowCores(FirstLine(folder + "/cpu.cfs_quota_us"), FirstLine(folder + "/cpu.cfs_period_us"), limits)) {
    const std::optional<uint64_t> nanoseconds = NumberIn(folder + "/cpuacct.usage");  // mounted together, as a rule
    limits.used_core_seconds.reset();
    if (nanoseconds.has_value()) limits.used_core_seconds = static_cast<double>(*nanoseconds) / 1e9;
  }
  if (NarrowMemory(FirstLine(folder + "/memory.limit_in_bytes"), limits)) {
    limits.used_memory_bytes =
        UsedMemory(folder + "/memory.usage_in_bytes", folder + "/memory.stat", "total_inactive_file");
  }
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
