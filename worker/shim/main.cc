// muster-step RANKDIR: the shim of one rank (step.h). Started by muster-worker.
#include <cstdio>
#include <string>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "worker/rundir/rundir.h"
#include "worker/shim/shim.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: muster-step RANKDIR\nThe shim of one rank; muster-worker starts it.\n");
    return 2;
  }
  const absl::StatusOr<muster::rundir::RankDir> dir = muster::rundir::RankDir::FromPath(argv[1]);
  if (!dir.ok()) {
    std::fprintf(stderr, "muster-step: %s\n", std::string(dir.status().message()).c_str());
    return 2;
  }
  const absl::Status status = muster::step::RunRank(*dir, muster::RealClock());
  if (status.ok()) return 0;
  std::fprintf(stderr, "muster-step: %s\n", std::string(status.message()).c_str());
  return 1;
}
