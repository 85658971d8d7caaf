#include "worker/exec/environment.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"

namespace muster::exec {
namespace {

Assignment OfRank(uint32_t rank, const std::vector<Launcher>& launchers) {
  Assignment assignment;
  assignment.mutable_key()->set_job("train-x7f2");
  assignment.mutable_key()->set_generation(3);
  assignment.mutable_key()->set_rank(rank);
  assignment.set_world(6);
  assignment.set_nodes(3);
  assignment.set_node_index(1);
  assignment.set_cores(4);
  assignment.set_host("node-b");
  assignment.mutable_spec()->set_name("train");
  assignment.mutable_spec()->set_max_restarts(5);
  for (const Launcher launcher : launchers) assignment.mutable_spec()->mutable_exec()->add_launchers(launcher);
  return assignment;
}

const Place kPlace = {.local_rank = 1,
                      .local_world = 2,
                      .master_address = "node-a",
                      .master_port = 29511,
                      .report_file = "/r/report",
                      .stop_file = "/r/stop",
                      .error_file = "/r/error"};

std::map<std::string, std::string> Environment(const Assignment& assignment,
                                               const std::vector<std::string>& inherited = {}) {
  std::map<std::string, std::string> variables;
  for (const std::string& entry : ProgramEnvironment(inherited, assignment, kPlace)) {
    EXPECT_TRUE(variables.insert(absl::StrSplit(entry, absl::MaxSplits('=', 1))).second) << entry << " twice";
  }
  return variables;
}

TEST(ProgramEnvironment, OfTorchrunOnTheSecondOfThreeNodes) {
  const auto variables = Environment(OfRank(3, {LAUNCHER_TORCHRUN}));
  const std::map<std::string, std::string> expected = {{"RANK", "3"},
                                                       {"ROLE_RANK", "3"},
                                                       {"WORLD_SIZE", "6"},
                                                       {"ROLE_WORLD_SIZE", "6"},
                                                       {"LOCAL_RANK", "1"},
                                                       {"LOCAL_WORLD_SIZE", "2"},
                                                       {"GROUP_RANK", "1"},
                                                       {"GROUP_WORLD_SIZE", "3"},
                                                       {"ROLE_NAME", "default"},
                                                       {"MASTER_ADDR", "node-a"},
                                                       {"MASTER_PORT", "29511"},
                                                       {"TORCHELASTIC_RESTART_COUNT", "2"},
                                                       {"TORCHELASTIC_MAX_RESTARTS", "5"},
                                                       {"TORCHELASTIC_RUN_ID", "train-x7f2"},
                                                       {"TORCHELASTIC_USE_AGENT_STORE", "False"},
                                                       {"TORCHELASTIC_ERROR_FILE", "/r/error"},
                                                       {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
                                                       {"PYTHONUNBUFFERED", "1"},
                                                       {"MUSTER_JOB_ID", "train-x7f2"},
                                                       {"MUSTER_GENERATION", "3"},
                                                       {"MUSTER_REPORT_FILE", "/r/report"},
                                                       {"MUSTER_STOP_FILE", "/r/stop"}};
  EXPECT_EQ(variables, expected);
}

// Of PyTorch's and Lightning's readers: torch/distributed has none, lightning/fabric/plugins/environments/slurm.py
// reads SLURM_NTASKS, SLURM_PROCID, SLURM_LOCALID, SLURM_NODEID and a numeric SLURM_JOB_ID.
TEST(ProgramEnvironment, OfSlurmAndOpenMpi) {
  const auto variables = Environment(OfRank(3, {LAUNCHER_SLURM, LAUNCHER_OPENMPI}));
  EXPECT_FALSE(variables.contains("RANK"));
  EXPECT_EQ(variables.at("SLURM_PROCID"), "3");
  EXPECT_EQ(variables.at("SLURM_LOCALID"), "1");
  EXPECT_EQ(variables.at("SLURM_NODEID"), "1");
  EXPECT_EQ(variables.at("SLURM_NTASKS"), "6");
  EXPECT_EQ(variables.at("SLURM_NNODES"), "3");
  EXPECT_EQ(variables.at("SLURM_CPUS_PER_TASK"), "4");
  EXPECT_EQ(variables.at("SLURM_JOB_ID").find_first_not_of("0123456789"), std::string::npos);
  EXPECT_EQ(variables.at("OMPI_COMM_WORLD_RANK"), "3");
  EXPECT_EQ(variables.at("OMPI_COMM_WORLD_SIZE"), "6");
  EXPECT_EQ(variables.at("OMPI_COMM_WORLD_LOCAL_RANK"), "1");
  EXPECT_EQ(variables.at("OMPI_COMM_WORLD_LOCAL_SIZE"), "2");
  EXPECT_EQ(variables.at("MASTER_PORT"), "29511");
}

TEST(ProgramEnvironment, TheJobsVariablesWinOverTheNodes) {
  Assignment assignment = OfRank(0, {LAUNCHER_TORCHRUN});
  assignment.mutable_spec()->add_env()->set_name("PATH");
  assignment.mutable_spec()->mutable_env(0)->set_value("/opt/bin=x");
  assignment.mutable_spec()->add_env()->set_name("PYTHONUNBUFFERED");
  const auto variables = Environment(
      assignment, {"PATH=/bin", "OMP_NUM_THREADS=4", "OMP_WAIT_POLICY=passive", "RANK=9", "LOCAL_RANK=9", "broken"});
  EXPECT_EQ(variables.at("PATH"), "/opt/bin=x");
  EXPECT_EQ(variables.at("PYTHONUNBUFFERED"), "");
  EXPECT_EQ(variables.at("OMP_NUM_THREADS"), "4");
  EXPECT_EQ(variables.at("RANK"), "0");
  EXPECT_FALSE(variables.contains("OMP_WAIT_POLICY")) << "tuned for Muster's own trainer";
}

}  // namespace
}  // namespace muster::exec
