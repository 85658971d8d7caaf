#include "worker/agent/cgroup_limits.h"

#include <gtest/gtest.h>

#include "testing/temporary_folder.h"

namespace muster::agent {
namespace {

CgroupLimits Read(const TemporaryFolder& folder) {
  return ReadCgroupLimits(folder.path() + "/cgroup", folder.path() + "/self");
}

TEST(CgroupLimits, Version2TakesTheNarrowestLevel) {
  const TemporaryFolder folder;
  folder.Write("self", "0::/a/b\n");
  folder.Write("cgroup/a/cpu.max", "150000 100000\n");
  folder.Write("cgroup/a/b/cpu.max", "max 100000\n");
  folder.Write("cgroup/a/memory.max", "4000000\n");
  folder.Write("cgroup/a/b/memory.max", "3000000\n");
  EXPECT_EQ(Read(folder).cores, 1.5);
  EXPECT_EQ(Read(folder).memory_bytes, 3'000'000u);
}

TEST(CgroupLimits, Version1AndMixed) {
  const TemporaryFolder folder;
  folder.Write("self", "5:cpu,cpuacct:/docker/x\n4:memory:/docker/x\n1:name=systemd:/\n0::/\n");
  folder.Write("cgroup/cpu/docker/x/cpu.cfs_quota_us", "50000\n");
  folder.Write("cgroup/cpu/docker/x/cpu.cfs_period_us", "100000\n");
  folder.Write("cgroup/memory/memory.limit_in_bytes", "2000000\n");  // the container sees its own as the root
  EXPECT_EQ(Read(folder).cores, 0.5);
  EXPECT_EQ(Read(folder).memory_bytes, 2'000'000u);
}

TEST(CgroupLimits, NoLimitAndNonsenseAreNoLimit) {
  const TemporaryFolder folder;
  EXPECT_FALSE(Read(folder).cores.has_value()) << "nothing there";
  folder.Write("self", "5:cpu:/\n4:memory:/\n0::/\nnonsense\n");
  folder.Write("cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  folder.Write("cgroup/cpu/cpu.cfs_period_us", "100000\n");
  folder.Write("cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  folder.Write("cgroup/cpu.max", "max\n");
  folder.Write("cgroup/memory.max", "max\n");
  EXPECT_FALSE(Read(folder).cores.has_value());
  EXPECT_FALSE(Read(folder).memory_bytes.has_value());
}

}  // namespace
}  // namespace muster::agent
