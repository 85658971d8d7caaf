// This node's identity and hardware.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/instruction_set.h"
#include "proto/job.pb.h"
#include "worker/agent/gpus.h"

namespace muster::agent {

// Id (kept in `state_dir`/node_id: the host's name and four random characters), hostname, a new random incarnation, the
// boot id and the version; no slots.
absl::StatusOr<Node> IdentifyNode(const std::string& state_dir);

struct Machine {
  uint32_t cores = 1;  // that this process may use
  uint64_t memory_bytes = 0;
  std::string cpu_model;
  UsableInstructions instructions;
};
// The machine's hardware, within the limits of CPU affinity and control groups.
Machine ReadMachine();

// True in the CUDA build, whose trainers can use GPUs.
bool IsCudaBuild();

// What a node reports of its CPU.
Cpu CpuOf(const Machine& machine);

// The capabilities that a process needs to run ranks as other users, and lacks: "CAP_SETUID". Empty: it has all, as
// root does outside of containers.
std::vector<std::string> MissingToSwitchUsers();

// One slot per GPU; without GPUs `cpu_slots` shares of the cores and the memory. A share has at least one core.
std::vector<Slot> MakeSlots(const Machine& machine, const std::vector<Gpu>& gpus, uint32_t cpu_slots);

}  // namespace muster::agent
