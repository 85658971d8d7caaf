#include "worker/agent/node_use.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "testing/temporary_folder.h"
#include "testing/wait.h"

namespace muster::agent {
namespace {

constexpr char kFakeNvml[] = "worker/agent/libfake-nvml.so";

class NodeUseTest : public ::testing::Test {
 protected:
  NodeUseSources Sources() const {
    return {.proc = folder_.path() + "/proc", .cgroups = folder_.path() + "/cgroup", .nvml = kFakeNvml};
  }
  // 100 ticks are a second. All CPUs of the machine are written, those that this process may not use as very busy.
  void WriteStat(int ticks) {
    cpu_set_t set;
    ASSERT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
    std::string text = "cpu  1 2 3 4 5 6 7 8 0 0\n";
    bool written = false;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      const bool usable = CPU_ISSET(cpu, &set);
      if (!usable && cpu > 300) break;
      // user nice system idle iowait irq softirq steal
      const int user = !usable ? ticks * 1000 : written ? 0 : ticks;
      absl::StrAppend(&text, "cpu", cpu, " ", user, " 0 0 5000 700 0 0 0 0 0\n");
      written |= usable;
    }
    folder_.Write("proc/stat", text + "intr 12\n");
  }

  const TemporaryFolder folder_;
  SteadyTime now_ = RealClock().Read().steady;
};

TEST_F(NodeUseTest, OfTheWholeMachine) {
  folder_.Write("proc/meminfo", "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    400 kB\n");
  WriteStat(1000);
  NodeUseMeter meter({.cores = 2, .memory_bytes = 1000 << 10}, {}, Sources());
  const NodeUse first = meter.Measure(now_);
  EXPECT_EQ(first.busy_cores(), 0) << "nothing to compare with";
  EXPECT_EQ(first.cores(), 2u);
  EXPECT_EQ(first.used_memory_bytes(), 600u << 10);
  EXPECT_EQ(first.memory_bytes(), 1000u << 10);
  EXPECT_EQ(first.devices_size(), 0) << "no slot has a GPU";
  WriteStat(1150);
  EXPECT_DOUBLE_EQ(meter.Measure(now_ + absl::Seconds(1)).busy_cores(), 1.5);
  WriteStat(1150 + 1000);
  EXPECT_DOUBLE_EQ(meter.Measure(now_ + absl::Seconds(2)).busy_cores(), 2) << "no more than there are";
}

TEST_F(NodeUseTest, WithinAControlGroup) {
  folder_.Write("proc/self/cgroup", "0::/\n");
  folder_.Write("proc/meminfo", "MemTotal: 9000 kB\nMemAvailable: 1 kB\n");
  folder_.Write("cgroup/cpu.max", "200000 100000\n");
  folder_.Write("cgroup/memory.max", "1024000\n");
  folder_.Write("cgroup/memory.current", "512000\n");
  folder_.Write("cgroup/cpu.stat", "usage_usec 1000000\n");
  NodeUseMeter meter({.cores = 2, .memory_bytes = 1024000}, {}, Sources());
  EXPECT_EQ(meter.Measure(now_).used_memory_bytes(), 512000u);
  folder_.Write("cgroup/cpu.stat", "usage_usec 1500000\n");
  EXPECT_DOUBLE_EQ(meter.Measure(now_ + absl::Seconds(2)).busy_cores(), 0.25);
}

TEST_F(NodeUseTest, OfGpusThatAnswer) {
  const std::vector<Gpu> gpus = Gpus(kFakeNvml).List();
  ASSERT_EQ(gpus.size(), 2u);
  EXPECT_EQ(gpus[1].uuid, "GPU-c");
  EXPECT_EQ(gpus[1].model, "NVIDIA H100 80GB HBM3");
  EXPECT_EQ(gpus[1].memory_bytes, uint64_t{80} << 30);
  const std::vector<Slot> slots = MakeSlots({.cores = 8}, {{"GPU-b", "", 1}, {"GPU-a", "", 1}, {"GPU-z", "", 1}}, 1);
  NodeUseMeter meter({.cores = 8}, slots, Sources());
  const NodeUse use = meter.Measure(now_);
  ASSERT_EQ(use.devices_size(), 1) << "GPU-b does not answer, GPU-c is no slot's";
  EXPECT_EQ(use.devices(0).slot(), 1u);
  EXPECT_DOUBLE_EQ(use.devices(0).busy(), 0.87);
  EXPECT_EQ(use.devices(0).used_memory_bytes(), uint64_t{20} << 30);
  EXPECT_TRUE(Gpus("no-such-library.so").List().empty());
}

TEST_F(NodeUseTest, OfThisMachine) {
  NodeUseWatch watch(ReadMachine(), {});
  std::optional<NodeUse> use;
  ASSERT_TRUE(Eventually([&] { return (use = watch.Take()).has_value(); }));
  EXPECT_GT(use->used_memory_bytes(), 1u << 20);
  EXPECT_LE(use->used_memory_bytes(), use->memory_bytes());
  EXPECT_GE(use->busy_cores(), 0);
  EXPECT_LE(use->busy_cores(), use->cores());
  EXPECT_FALSE(watch.Take().has_value()) << "each once";
}

}  // namespace
}  // namespace muster::agent
