#include "coordinator/server/fatal.h"

#include <spdlog/spdlog.h>

#include <cstdlib>

namespace muster::server {

void EndProcess(const char* what, const absl::Status& status) {
  spdlog::critical(
      "{} failed: {}. The coordinator ends, so that it does not run ahead of its disk; what it accepted is "
      "kept, and the next start recovers it",
      what, status.ToString());
  spdlog::default_logger()->flush();
  std::abort();
}

}  // namespace muster::server
