#include "worker/agent/node_use.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <fstream>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace muster::agent {
namespace {

constexpr absl::Duration kFirst = absl::Seconds(1), kInterval = absl::Seconds(10);

// proc(5), /proc/stat: user nice system idle iowait irq softirq steal, in ticks. The CPUs that this process may use.
std::optional<double> BusySeconds(const std::string& path) {
  cpu_set_t set;
  const bool all = sched_getaffinity(0, sizeof set, &set) != 0;
  double ticks = 0;
  bool any = false;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    absl::string_view rest = line;
    if (!absl::ConsumePrefix(&rest, "cpu")) continue;
    const std::vector<absl::string_view> words = absl::StrSplit(rest, ' ', absl::SkipEmpty());
    int cpu = 0;
    if (rest.empty() || rest[0] == ' ' || words.size() < 9 || !absl::SimpleAtoi(words[0], &cpu)) continue;
    if (!all && (cpu < 0 || cpu >= CPU_SETSIZE || !CPU_ISSET(cpu, &set))) continue;
    any = true;
    for (const size_t column : {1, 2, 3, 6, 7, 8}) {
      double value = 0;
      if (absl::SimpleAtod(words[column], &value)) ticks += value;
    }
  }
  if (!any) return std::nullopt;
  return ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

// proc(5), /proc/meminfo: MemTotal less MemAvailable.
std::optional<uint64_t> UsedMemory(const std::string& path) {
  std::optional<uint64_t> total, available;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    uint64_t kibibytes = 0;
    if (words.size() < 2 || !absl::SimpleAtoi(words[1], &kibibytes)) continue;
    if (words[0] == "MemTotal:") total = kibibytes << 10;
    if (words[0] == "MemAvailable:") available = kibibytes << 10;
  }
  if (!total.has_value() || !available.has_value()) return std::nullopt;
  return *total - std::min(*total, *available);
}

}  // namespace

NodeUseMeter::NodeUseMeter(const Machine& machine, const std::vector<Slot>& slots, NodeUseSources sources)
    : machine_(machine), sources_(std::move(sources)) {
  for (const Slot& slot : slots) {
    if (!slot.device_uuid().empty()) slot_of_[slot.device_uuid()] = slot.index();
  }
}

std::optional<double> NodeUseMeter::UsedCoreSeconds(const CgroupLimits& limits) const {
  if (limits.used_core_seconds.has_value()) return limits.used_core_seconds;
  return BusySeconds(sources_.proc + "/stat");
}

NodeUse NodeUseMeter::Measure(SteadyTime now) {
  NodeUse use;
  use.set_cores(machine_.cores);
  use.set_memory_bytes(machine_.memory_bytes);
  const CgroupLimits limits = ReadCgroupLimits(sources_.cgroups, sources_.proc + "/self/cgroup");
  const std::optional<double> used = UsedCoreSeconds(limits);
  if (used.has_value() && used_.has_value() && now > at_) {
    const double busy = (*used - *used_) / absl::ToDoubleSeconds(now - at_);
    use.set_busy_cores(std::clamp(busy, 0.0, static_cast<double>(machine_.cores)));
  }
  used_ = used;
  at_ = now;
  const std::optional<uint64_t> memory =
      limits.used_memory_bytes.has_value() ? limits.used_memory_bytes : UsedMemory(sources_.proc + "/meminfo");
  use.set_used_memory_bytes(std::min(memory.value_or(0), machine_.memory_bytes));
  if (slot_of_.empty()) return use;
  if (!gpus_.has_value()) gpus_.emplace(sources_.nvml);
  for (const GpuUse& gpu : gpus_->Use()) {
    const auto slot = slot_of_.find(gpu.uuid);
    if (slot == slot_of_.end()) continue;
    DeviceUse& device = *use.add_devices();
    device.set_slot(slot->second);
    device.set_busy(gpu.busy);
    device.set_used_memory_bytes(gpu.used_memory_bytes);
  }
  return use;
}

NodeUseWatch::NodeUseWatch(const Machine& machine, const std::vector<Slot>& slots) {
  std::thread([state = state_, machine, slots] {
    NodeUseMeter meter(machine, slots);
    (void)meter.Measure(RealClock().Read().steady);
    absl::Duration pause = kFirst;
    while (true) {
      {
        const MutexLock lock(state->mutex);
        const auto until = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(pause);
        while (!state->ending && state->ends.wait_until(state->mutex, until) != std::cv_status::timeout) {
        }
        if (state->ending) return;
      }
      NodeUse use = meter.Measure(RealClock().Read().steady);
      const MutexLock lock(state->mutex);
      state->newest = std::move(use);
      pause = kInterval;
    }
  }).detach();
}

NodeUseWatch::~NodeUseWatch() {
  const MutexLock lock(state_->mutex);
  state_->ending = true;
  state_->ends.notify_one();
}

std::optional<NodeUse> NodeUseWatch::Take() {
  const MutexLock lock(state_->mutex);
  return std::exchange(state_->newest, std::nullopt);
}

}  // namespace muster::agent
