#include <google/protobuf/stubs/logging.h>

#include <csignal>
#include <cstdlib>
#include <string>
#include <vector>

#include "cli/app.h"

int main(int argc, char** argv) {
  // gRPC's own log lines add nothing to our messages; GRPC_VERBOSITY=DEBUG brings them back.
  setenv("GRPC_VERBOSITY", "NONE", 0);
  // Nor do protobuf's.
  google::protobuf::SetLogHandler(nullptr);
  // `muster ps | head` ends quietly, even if the parent ignores SIGPIPE.
  std::signal(SIGPIPE, SIG_DFL);
  return muster::cli::RunProgram(std::vector<std::string>(argv + 1, argv + argc));
}
