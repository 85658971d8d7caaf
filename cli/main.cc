#include <fcntl.h>
#include <google/protobuf/stubs/logging.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <string>
#include <vector>

#include "cli/app.h"

namespace {

// No file or socket that is opened later gets the number of a standard stream that is closed, as after `muster ps >&-`:
// what is printed would go there. What stands for it now still refuses to be read or written, with EBADF.
void FillClosedStreams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) < 0) open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

}  // namespace

int main(int argc, char** argv) {
  FillClosedStreams();
  // gRPC's own log lines add nothing to our messages; GRPC_VERBOSITY=DEBUG brings them back.
  setenv("GRPC_VERBOSITY", "NONE", 0);
  // Nor do protobuf's.
  google::protobuf::SetLogHandler(nullptr);
  // `muster ps | head` ends quietly, even if the parent ignores SIGPIPE.
  std::signal(SIGPIPE, SIG_DFL);
  return muster::cli::RunProgram(std::vector<std::string>(argv + 1, argv + argc));
}
