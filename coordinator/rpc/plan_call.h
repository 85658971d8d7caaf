// A unary call that needs the plan of a job: where the job would run is looked up in a turn of the loop, and its plan
// is made in the pool. When the client goes away, the plan is given up unless someone else waits for it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <grpcpp/support/server_callback.h>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/mutex.h"
#include "common/rpc/self_owned.h"
#include "coordinator/server/loop.h"
#include "coordinator/spec/plan.h"

namespace muster::rpc {

// By node: the CPUs that ranks on these nodes compute on; none where their device is another.
std::map<std::string, Cpu> CpusOf(const core::Core& core, Device device, const std::vector<NodeId>& nodes);

class PlanCall final : public grpc::ServerUnaryReactor, public SelfOwned<PlanCall> {
 public:
  struct Question {
    JobSpec resolved;
    spec::PlanAssumptions assumptions;
    bool whole = false;  // on all of its ranks, though it may run on fewer
    std::string user;    // who asks
    // Of a call that is to change something: what the audit log says where it is refused.
    std::optional<AuditEntry> audit = std::nullopt;
  };
  struct Found {
    core::Core::Placing placing;      // no nodes: it would wait
    std::map<std::string, Cpu> cpus;  // as CpusOf
    std::string folder_conflict;      // as Core::FolderConflict
    spec::PlanFor on;
    std::shared_ptr<const spec::MadePlan> plan;
  };
  // Answers the call by Finish of `call`, now or later. On a thread of the pool, rarely on the loop's.
  using Answer = std::function<void(const Found& found, PlanCall* call)>;

  // Returns the reactor for gRPC. `loop` outlives it. The call ends with InvalidArgument where the hardware is not
  // known, with the errors of PlanPool::Ask, and with Cancelled.
  static PlanCall* Start(Question question, server::Loop* loop, Answer answer);

  // Of Start.
  PlanCall(Question question, server::Loop* loop, Answer answer)
      : question_(std::move(question)), loop_(loop), answer_(std::move(answer)) {}

  void OnCancel() override;
  void OnDone() override { Release(); }

 private:
  void Look(server::Turn& turn);
  void Ask();
  void Planned(const server::PlanPool::Answer& plan);
  void Conclude();
  // Whether the call still wants its answer.
  bool Open() ABSL_LOCKS_EXCLUDED(mutex_);
  void End(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);

  const Question question_;
  server::Loop* const loop_;
  const Answer answer_;

  // One step at a time: of the loop or of the pool.
  Found found_;
  uint64_t slot_bytes_ = 0;  // of the looks after the first
  int looks_ = 0;

  Mutex mutex_;
  uint64_t ticket_ ABSL_GUARDED_BY(mutex_) = 0;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;  // or about to be answered
};

}  // namespace muster::rpc
