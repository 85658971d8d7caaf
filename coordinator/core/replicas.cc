#include "coordinator/core/replicas.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace muster::core {

uint32_t ReplicasOf(const JobSpec& spec) { return spec.train().has_sync() ? spec.train().sync().replicas() : 1; }

JobId JobOfReplica(const std::string& run, uint32_t replica) { return JobId(absl::StrCat(run, "-", replica)); }

JobSpec SpecOfReplica(const JobSpec& of, const std::string& run, uint32_t replica) {
  JobSpec spec = of;
  Sync& sync = *spec.mutable_train()->mutable_sync();
  sync.set_run(run);
  sync.set_replica(replica);
  if (const std::string& path = spec.train().checkpoint().path(); !path.empty() && !absl::StrContains(path, "{job}")) {
    spec.mutable_train()->mutable_checkpoint()->set_path(absl::StrCat(path, "/replica-", replica));
  }
  return spec;
}

}  // namespace muster::core
