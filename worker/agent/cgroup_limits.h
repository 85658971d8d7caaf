// The limits that this process's control groups set: a container's --cpus and --memory, a Slurm step's allocation, a
// systemd unit's CPUQuota and MemoryMax.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace muster::agent {

struct CgroupLimits {
  std::optional<double> cores;  // quota over period
  std::optional<uint64_t> memory_bytes;
  // What the groups with these limits have used: CPU time since they were made, and memory now, without file pages that
  // the kernel can drop. Absent: there is no such limit, or it cannot be read.
  std::optional<double> used_core_seconds;
  std::optional<uint64_t> used_memory_bytes;
};

// Reads both hierarchies at every visible level and takes the tightest limit. A missing file is no limit.
// `mount`: where cgroupfs is mounted; `self`: this process's /proc/self/cgroup. See cgroups(7), and
// Documentation/admin-guide/cgroup-v2.rst of the kernel for cpu.max and memory.max.
CgroupLimits ReadCgroupLimits(const std::string& mount = "/sys/fs/cgroup",
                              const std::string& self = "/proc/self/cgroup");

}  // namespace muster::agent
