// Builds a trainer's arguments, environment and limits. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/job.pb.h"
#include "proto/worker.pb.h"
#include "worker/agent/rank_users.h"
#include "worker/rundir/rundir.h"

namespace muster::agent {

struct StartContext {
  std::string trainer;                         // path of muster-trainer
  std::string exec;                            // path of muster-exec, which takes its place for an exec job
  std::vector<std::string> container_command;  // how it runs images; empty: not
  std::string socket;                          // where it attaches
  std::vector<Slot> slots;
  // Of an exec job: the slots of all its ranks on this node, in the order of the ranks. Scripts choose their GPU by
  // LOCAL_RANK, as under torchrun, so each rank sees the GPUs of all of them. Empty: only its own.
  std::vector<uint32_t> local_slots;
  absl::Duration orphan_grace = absl::Minutes(30);
  absl::Duration kill_grace = absl::Seconds(10);
  std::vector<std::string> inherited;                     // this process's environment, "NAME=value"
  std::map<std::string, std::string> variables;           // --env, by name
  std::vector<std::string> plugin_roots;                  // folders of libraries that a job may load
  std::vector<std::string> data_roots, checkpoint_roots;  // folders below which its other files lie; none: anywhere
  std::string interface;               // network interface on which other nodes reach this one; empty: unknown
  std::string mkl_code_path = "AVX2";  // MklCodePath of this CPU
};

// Threads that the rank may use: the cores of its slots, at least 1.
uint32_t CoresOf(const Assignment& assignment, const std::vector<Slot>& slots);

// The rank's variables for CUDA, MKL and network libraries, by name. The job's `env` wins over the node's `variables`,
// and these over what follows from the assignment and the node:
//   MKL_CBWR                 the code path of MKL's GEMMs
// and on CUDA only
//   NCCL_SOCKET_IFNAME       the node's interface, since NCCL would choose its own on a node with several networks
//   CUBLAS_WORKSPACE_CONFIG  for a deterministic job: with its default workspaces cuBLAS may choose another kernel when
//                            several streams compute ("Results reproducibility" in the cuBLAS documentation)
std::map<std::string, std::string> LibraryVariables(const Assignment& assignment, const StartContext& context);

// An exec job's own variables are not here: muster-exec gives them to the user's program alone.
//
// `local`: this node's ranks of the same generation, ascending; they make LOCAL_RANK and LOCAL_WORLD_SIZE. `user`: whom
// the trainer runs as; its HOME, USER and LOGNAME take the place of the daemon's, whose TMPDIR it does not get. None:
// as the daemon.
rundir::Start MakeStart(const Assignment& assignment, const std::vector<uint32_t>& local, const rundir::RankDir& dir,
                        const StartContext& context, const std::optional<RankUser>& user = std::nullopt);

}  // namespace muster::agent
