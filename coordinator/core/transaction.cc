#include "coordinator/core/transaction.h"

#include "absl/strings/str_cat.h"
#include "common/proto_time.h"

namespace muster::core {

void Transaction::AddEvent(const JobEntry* job, uint64_t generation, const std::string& node, const std::string& kind,
                           const std::string& message) {
  StateEvent& event = events.emplace_back();
  *event.mutable_time() = ToProto(now.wall);
  if (job != nullptr) {
    event.set_job(job->record().id());
    event.set_job_state(job->record().state());
  }
  event.set_generation(generation);
  event.set_node(node);
  event.set_kind(kind);
  event.set_message(message);
  reason = reason.empty() ? message : absl::StrCat(reason, "; ", message);
}

void Transaction::ChangeDesired(const GenerationMachine& generation) {
  for (const RankPlacement& rank : generation.record().ranks()) ChangeDesired(NodeId(rank.node()));
}

}  // namespace muster::core
