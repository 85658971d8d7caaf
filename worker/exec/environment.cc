#include "worker/exec/environment.h"

#include <algorithm>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/crc32c.h"

namespace muster::exec {
namespace {

// Set by the worker for its own trainer, or below.
constexpr const char* kNotInherited[] = {
    "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "MKL_CBWR",        "CUBLAS_WORKSPACE_CONFIG", "RANK",
    "WORLD_SIZE",      "LOCAL_RANK",     "LOCAL_WORLD_SIZE"};

using Variables = std::map<std::string, std::string>;

bool Has(const Exec& exec, Launcher launcher) {
  return std::find(exec.launchers().begin(), exec.launchers().end(), launcher) != exec.launchers().end();
}

void AddTorchrun(const Assignment& assignment, const Place& place, Variables& variables) {
  const std::string rank = absl::StrCat(assignment.key().rank()), world = absl::StrCat(assignment.world());
  variables["RANK"] = variables["ROLE_RANK"] = rank;
  variables["WORLD_SIZE"] = variables["ROLE_WORLD_SIZE"] = world;
  variables["ROLE_NAME"] = "default";
  variables["LOCAL_RANK"] = absl::StrCat(place.local_rank);
  variables["LOCAL_WORLD_SIZE"] = absl::StrCat(place.local_world);
  variables["GROUP_RANK"] = absl::StrCat(assignment.node_index());
  variables["GROUP_WORLD_SIZE"] = absl::StrCat(std::max(1u, assignment.nodes()));
  variables["TORCHELASTIC_RESTART_COUNT"] = absl::StrCat(assignment.key().generation() - 1);
  variables["TORCHELASTIC_MAX_RESTARTS"] = absl::StrCat(assignment.spec().max_restarts());
  variables["TORCHELASTIC_RUN_ID"] = assignment.key().job();
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  variables["TORCHELASTIC_ERROR_FILE"] = place.error_file;
  variables.emplace("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
}

void AddSlurm(const Assignment& assignment, const Place& place, Variables& variables) {
  const std::string world = absl::StrCat(assignment.world()), nodes = absl::StrCat(std::max(1u, assignment.nodes()));
  // Programs take it for a number.
  variables["SLURM_JOB_ID"] = variables["SLURM_JOBID"] = absl::StrCat(Crc32c(assignment.key().job()));
  variables["SLURM_JOB_NAME"] = assignment.spec().name();
  variables["SLURM_STEP_ID"] = "0";
  variables["SLURM_PROCID"] = absl::StrCat(assignment.key().rank());
  variables["SLURM_LOCALID"] = absl::StrCat(place.local_rank);
  variables["SLURM_NODEID"] = absl::StrCat(assignment.node_index());
  variables["SLURM_NTASKS"] = variables["SLURM_NPROCS"] = world;
  variables["SLURM_NNODES"] = variables["SLURM_JOB_NUM_NODES"] = nodes;
  variables["SLURM_NTASKS_PER_NODE"] = absl::StrCat(place.local_world);
  variables["SLURM_CPUS_PER_TASK"] = absl::StrCat(std::max(1u, assignment.cores()));
  variables["SLURM_RESTART_COUNT"] = absl::StrCat(assignment.key().generation() - 1);
  variables["SLURM_LAUNCH_NODE_IPADDR"] = place.master_address;
  variables["SLURMD_NODENAME"] = assignment.host();
}

void AddOpenMpi(const Assignment& assignment, const Place& place, Variables& variables) {
  variables["OMPI_COMM_WORLD_RANK"] = absl::StrCat(assignment.key().rank());
  variables["OMPI_COMM_WORLD_SIZE"] = variables["OMPI_UNIVERSE_SIZE"] = absl::StrCat(assignment.world());
  variables["OMPI_COMM_WORLD_LOCAL_RANK"] = variables["OMPI_COMM_WORLD_NODE_RANK"] = absl::StrCat(place.local_rank);
  variables["OMPI_COMM_WORLD_LOCAL_SIZE"] = absl::StrCat(place.local_world);
}

}  // namespace

std::vector<std::string> ProgramEnvironment(const std::vector<std::string>& inherited, const Assignment& assignment,
                                            const Place& place) {
  Variables variables;
  for (const std::string& entry : inherited) {
    const size_t equals = entry.find('=');
    if (equals != std::string::npos) variables[entry.substr(0, equals)] = entry.substr(equals + 1);
  }
  for (const char* name : kNotInherited) variables.erase(name);
  // Output reaches the logs line by line, not when a buffer is full.
  variables["PYTHONUNBUFFERED"] = "1";
  for (const EnvVar& variable : assignment.spec().env()) variables[variable.name()] = variable.value();
  const Exec& exec = assignment.spec().exec();
  if (Has(exec, LAUNCHER_TORCHRUN)) AddTorchrun(assignment, place, variables);
  if (Has(exec, LAUNCHER_SLURM)) AddSlurm(assignment, place, variables);
  if (Has(exec, LAUNCHER_OPENMPI)) AddOpenMpi(assignment, place, variables);
  variables["MASTER_ADDR"] = place.master_address;
  variables["MASTER_PORT"] = absl::StrCat(place.master_port);
  variables["MUSTER_JOB_ID"] = assignment.key().job();
  variables["MUSTER_GENERATION"] = absl::StrCat(assignment.key().generation());
  variables["MUSTER_REPORT_FILE"] = place.report_file;
  variables["MUSTER_STOP_FILE"] = place.stop_file;
  std::vector<std::string> entries;
  for (const auto& [name, value] : variables) entries.push_back(absl::StrCat(name, "=", value));
  return entries;
}

}  // namespace muster::exec
