// muster-step RANKDIR: the shim of one rank (step.h). Started by muster-worker.
#include <cstdio>
#include <cstring>
#include <string>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "worker/rundir/rundir.h"
#include "worker/shim/shim.h"

int main(int argc, char** argv) {
  const bool help = argc == 2 && (std::strcmp(argv[1], "--help") == 0 || std::strcmp(argv[1], "-h") == 0);
  if (argc != 2 || help) {
    std::fprintf(help ? stdout : stderr,
                 "usage: muster-step RANKDIR\nThe parent process of one rank; muster-worker starts it.\n");
    return help ? 0 : 2;
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
