#include "coordinator/server/fatal.h"

#include <cstdlib>

#include "common/log/log.h"

namespace muster::server {

void EndProcess(const char* what, const absl::Status& status) {
  LogError(
      "the store failed; ending, so that no decision runs ahead of the disk. The next start recovers every "
      "accepted job",
      {{"action", what}, {"error", status}});
  std::abort();
}

}  // namespace muster::server
