// The checks of `muster doctor` on this machine, and how to fix what they find. Checks change nothing.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/client.h"
#include "cli/output/screen.h"
#include "common/instruction_set.h"

namespace muster::cli {

enum class Severity {
  kOk,
  kNote,     // works, but worth knowing
  kProblem,  // jobs will not run, or not as they should
};

struct Finding {
  std::string check;  // "disk"
  Severity severity = Severity::kOk;
  std::string text;    // "12.3 GiB free at /var/lib/muster"
  std::string remedy;  // one line; empty when nothing is to be done
};

// ---- machine.cc ----
Finding CheckSystem();  // kernel, architecture, C library
Finding CheckCores();
Finding CheckCpu();  // model and vector instructions
Finding CheckMemory();
std::vector<Finding> CheckLimits();  // open files, processes
Finding CheckClock(const Screen& screen);
Finding CheckRankUsers();  // whether a worker that this user starts can run ranks as the users who submit jobs
// Pure: what cpuid and the environment say.
Finding JudgeCpu(const std::string& model, const UsableInstructions& instructions);
// Pure: for a worker of `user`, who lacks these capabilities.
Finding JudgeRankUsers(unsigned user, const std::vector<std::string>& missing);
// Pure: what was read of /proc/meminfo and of the container's limit (0: none).
Finding JudgeMemory(uint64_t total_bytes, uint64_t available_bytes, uint64_t limit_bytes);

// ---- disks.cc ----
// A folder that Muster writes into, or the nearest one above it that exists. `what`: "the state folder".
Finding CheckDisk(const std::string& folder, const std::string& what);
// Of a folder that must exist.
Finding CheckFolder(const std::string& folder);
// Sockets live there: it must be ours, closed to others, and its path short.
Finding CheckRuntime(const std::string& folder);

// ---- programs.cc ----
// muster-coordinator, -worker, -exec, -step and -trainer in `folder`: there, of this version, and loadable (the trainer
// brings LibTorch along).
std::vector<Finding> CheckPrograms(const std::string& folder);

// ---- gpus.cc ----
// Devices, driver and NVML, and whether this build uses them.
std::vector<Finding> CheckGpus();

// ---- service.cc ----
// The coordinator's answer, its version, its nodes; and the folders on this machine that its live jobs write
// checkpoints to. `client`: or why there is none.
// `log`: of a coordinator that runs on this machine.
std::vector<Finding> CheckService(const absl::StatusOr<Client*>& client, const std::string& log);

}  // namespace muster::cli
