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

TEST(CgroupLimits, WhatTheGroupWithTheLimitHasUsed) {
  const TemporaryFolder folder;
  folder.Write("self", "0::/a/b\n");
  folder.Write("cgroup/a/cpu.max", "100000 100000\n");
  folder.Write("cgroup/a/cpu.stat", "usage_usec 2500000\nuser_usec 1\n");
  folder.Write("cgroup/a/b/cpu.max", "200000 100000\n");
  folder.Write("cgroup/a/b/cpu.stat", "usage_usec 7\n");
  folder.Write("cgroup/a/b/memory.max", "3000000\n");
  folder.Write("cgroup/a/b/memory.current", "2000000\n");
  folder.Write("cgroup/a/b/memory.stat", "anon 5\ninactive_file 500000\n");
  EXPECT_EQ(Read(folder).used_core_seconds, 2.5) << "the narrower quota is a's";
  EXPECT_EQ(Read(folder).used_memory_bytes, 1'500'000u);
  const TemporaryFolder first;
  first.Write("self", "5:cpu,cpuacct:/\n4:memory:/\n");
  first.Write("cgroup/cpu/cpu.cfs_quota_us", "50000\n");
  first.Write("cgroup/cpu/cpu.cfs_period_us", "100000\n");
  first.Write("cgroup/cpu/cpuacct.usage", "1500000000\n");
  first.Write("cgroup/memory/memory.limit_in_bytes", "2000000\n");
  first.Write("cgroup/memory/memory.usage_in_bytes", "900000\n");
  first.Write("cgroup/memory/memory.stat", "total_inactive_file 1000000\n");
  EXPECT_EQ(Read(first).used_core_seconds, 1.5);
  EXPECT_EQ(Read(first).used_memory_bytes, 0u);
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
