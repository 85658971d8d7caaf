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

void EndUnreachable(const absl::Status& status) {
  LogError(
      "clients and workers cannot connect; ending, so that the next start listens anew. The store is intact, and the "
      "next start recovers every accepted job",
      {{"error", status}});
  std::abort();
}

}  // namespace muster::server
