#include "worker/agent/node.h"

#include <linux/capability.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/file/durable_file.h"
#include "common/file/read_file.h"
#include "common/random_text.h"
#include "common/version.h"
#include "worker/agent/cgroup_limits.h"
#include "worker/rundir/rundir.h"

namespace muster::agent {
namespace {

std::string Hostname() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name[0] == '\0' ? "localhost" : name;
}

// The part of a hostname that is valid in a node id.
std::string Plain(absl::string_view hostname) {
  std::string plain;
  for (const char c : hostname.substr(0, hostname.find('.'))) {
    plain.push_back(absl::ascii_isalnum(static_cast<unsigned char>(c)) ? absl::ascii_tolower(c) : '-');
  }
  return plain.substr(0, 59);  // with its suffix at most 64 bytes: a certificate's name has no more
}

}  // namespace

absl::StatusOr<Node> IdentifyNode(const std::string& state_dir) {
  Node node;
  const std::string path = state_dir + "/node_id";
  absl::StatusOr<std::string> id = ReadWhole(path);
  if (absl::IsNotFound(id.status())) {
    const absl::StatusOr<std::string> suffix = RandomText(4);
    if (!suffix.ok()) return suffix.status();
    id = absl::StrCat(Plain(Hostname()), "-", *suffix);
    if (absl::Status status = WriteDurably(path, *id + "\n"); !status.ok()) return status;
  }
  if (!id.ok()) return id.status();
  node.set_id(std::string(absl::StripAsciiWhitespace(*id)));
  if (node.id().empty() || node.id().size() > 128) {
    return absl::DataLossError(absl::StrCat(path, " holds no node id; remove it to get a new one"));
  }
  const absl::StatusOr<std::string> incarnation = RandomText(16, "0123456789abcdef");
  if (!incarnation.ok()) return incarnation.status();
  const absl::StatusOr<std::string> boot_id = rundir::ReadBootId();
  if (!boot_id.ok()) return boot_id.status();
  node.set_hostname(Hostname());
  node.set_incarnation(*incarnation);
  node.set_boot_id(*boot_id);
  node.set_version(kVersion);
  return node;
}

Machine ReadMachine() {
  Machine machine;
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    machine.cores = static_cast<uint32_t>(CPU_COUNT(&set));
  } else {
    machine.cores = static_cast<uint32_t>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
  }
  machine.memory_bytes = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGE_SIZE));
  const CgroupLimits limits = ReadCgroupLimits();
  if (limits.cores.has_value()) {
    machine.cores = std::clamp(static_cast<uint32_t>(std::ceil(*limits.cores)), 1u, machine.cores);
  }
  if (limits.memory_bytes.has_value()) machine.memory_bytes = std::min(machine.memory_bytes, *limits.memory_bytes);
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (!absl::StartsWith(line, "model name")) continue;
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(": ", 1));
    if (parts.size() == 2) machine.cpu_model = parts[1].substr(0, 100);
    break;
  }
  machine.instructions = FindInstructions();
  return machine;
}

std::vector<std::string> MissingToSwitchUsers() {
  // Beside the switch itself: to give a rank's folder away, to read and remove what the rank wrote there, to end it.
  constexpr std::pair<int, const char*> kNeeded[] = {{CAP_SETUID, "CAP_SETUID"},
                                                     {CAP_SETGID, "CAP_SETGID"},
                                                     {CAP_KILL, "CAP_KILL"},
                                                     {CAP_CHOWN, "CAP_CHOWN"},
                                                     {CAP_DAC_OVERRIDE, "CAP_DAC_OVERRIDE"},
                                                     {CAP_FOWNER, "CAP_FOWNER"}};
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct sets[_LINUX_CAPABILITY_U32S_3] = {};
  const bool read = syscall(SYS_capget, &header, sets) == 0;
  std::vector<std::string> missing;
  for (const auto& [number, name] : kNeeded) {
    if (!read || (sets[0].effective & (1u << number)) == 0) missing.emplace_back(name);
  }
  return missing;
}

bool IsCudaBuild() {
#ifdef MUSTER_CUDA
  return true;
#else
  return false;
#endif
}

Cpu CpuOf(const Machine& machine) {
  Cpu cpu;
  cpu.set_model(machine.cpu_model);
  cpu.set_instruction_set(std::string(NameOf(machine.instructions.usable)));
  cpu.set_limited_by(machine.instructions.limited_by);
  return cpu;
}

std::vector<Slot> MakeSlots(const Machine& machine, const std::vector<Gpu>& gpus, uint32_t cpu_slots) {
  const uint32_t count = gpus.empty() ? std::max(1u, cpu_slots) : static_cast<uint32_t>(gpus.size());
  std::vector<Slot> slots(count);
  for (uint32_t i = 0; i < count; ++i) {
    Slot& slot = slots[i];
    slot.set_index(i);
    slot.set_cores(std::max(1u, machine.cores / count));
    if (gpus.empty()) {
      slot.set_device(DEVICE_CPU);
      slot.set_memory_bytes(machine.memory_bytes / count);
      slot.set_model(machine.cpu_model);
    } else {
      slot.set_device(DEVICE_CUDA);
      slot.set_device_uuid(gpus[i].uuid);
      slot.set_memory_bytes(gpus[i].memory_bytes);
      slot.set_model(gpus[i].model);
    }
  }
  return slots;
}

}  // namespace muster::agent
