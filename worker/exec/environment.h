// The environment of a program of the user's: the variables by which launchers describe a rank to it. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/worker.pb.h"

namespace muster::exec {

struct Place {
  uint32_t local_rank = 0;     // among the generation's ranks on this node
  uint32_t local_world = 1;    // how many these are
  std::string master_address;  // of rank 0's node
  uint16_t master_port = 0;    // free there
  std::string report_file, stop_file, error_file;
};

// `inherited`: this process's, "NAME=value", as the worker made it. Of it stay PATH, HOME, the devices, threads and
// networks; what tunes Muster's own trainer is left out. The job's `env` wins over all that is not about the rank.
//
// What torchrun sets: torch/distributed/elastic/agent/server/local_elastic_agent.py, _start_workers. Values that
// differ, on purpose:
//   TORCHELASTIC_USE_AGENT_STORE  False: rank 0's own process serves the store of init_process_group("env://"), as
//                                 with torchrun's static rendezvous. With True every rank is a client of a store in the
//                                 launcher, whose protocol depends on the version of PyTorch.
//   OMP_NUM_THREADS               the cores of the rank's slots; torchrun sets 1 if there are several ranks on the node
//   TORCHELASTIC_RESTART_COUNT    earlier generations of the job, whatever ended them
std::vector<std::string> ProgramEnvironment(const std::vector<std::string>& inherited, const Assignment& assignment,
                                            const Place& place);

}  // namespace muster::exec
