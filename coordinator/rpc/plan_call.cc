#include "coordinator/rpc/plan_call.h"

#include <utility>

#include "common/rpc/rpc.h"

namespace muster::rpc {

namespace {
constexpr int kMostLooks = 8;  // as many sizes of slots as the queue tries in a pass
}

using server::PlanPool;
using server::Turn;

std::map<std::string, Cpu> CpusOf(const core::Core& core, Device device, const std::vector<NodeId>& nodes) {
  std::map<std::string, Cpu> cpus;
  if (device != DEVICE_CPU) return cpus;
  for (const NodeId& id : nodes) {
    if (cpus.contains(id.value())) continue;
    if (std::optional<Cpu> cpu = core.CpuOf(id); cpu.has_value()) cpus[id.value()] = *std::move(cpu);
  }
  return cpus;
}

PlanCall* PlanCall::Start(Question question, server::Loop* loop, Answer answer) {
  const std::shared_ptr<PlanCall> call = Make(std::move(question), loop, std::move(answer));
  loop->Post([call](Turn& turn) { call->Look(turn); });
  return call.get();
}

void PlanCall::Look(Turn& turn) {
  if (!Open()) return;
  core::Core::Placing placing = turn.core().WouldPlace(question_.resolved, slot_bytes_, question_.whole);
  // The slots of the look before show what does not fit.
  if (slot_bytes_ > 0 && placing.slots.ranks.empty()) return Conclude();
  absl::StatusOr<spec::PlanFor> on = spec::SlotsToPlanFor(question_.resolved, placing.slots, question_.assumptions);
  if (!on.ok()) return End(on.status());
  found_.on = *std::move(on);
  found_.cpus = CpusOf(turn.core(), placing.slots.device, placing.nodes);
  found_.placing = std::move(placing);
  found_.folder_conflict = turn.core().FolderConflict(question_.resolved);
  turn.AfterCommit([self = shared_from_this()] { self->Ask(); });
}

void PlanCall::Ask() {
  const uint64_t ticket =
      loop_->plans().Ask({question_.resolved, found_.on}, PlanPool::User(question_.user),
                         [self = shared_from_this()](const PlanPool::Answer& plan) { self->Planned(plan); });
  bool gone = false;
  {
    const MutexLock lock(mutex_);
    ticket_ = ticket;
    gone = ended_;
  }
  if (gone) loop_->plans().Cancel(ticket);
}

void PlanCall::Planned(const PlanPool::Answer& plan) {
  if (!plan.ok()) return End(plan.status());
  found_.plan = *plan;
  if (const std::optional<core::Unfit>& unfit = (*plan)->planned->unfit; unfit.has_value()) {
    found_.placing.nodes.clear();
    found_.placing.reason = unfit->why;
    const bool on_nodes = !found_.placing.slots.ranks.empty() && question_.assumptions.memory_bytes == 0;
    // The queue tries larger slots, too, a job whose mesh is chosen one size after another.
    if (on_nodes && unfit->slot_bytes > slot_bytes_ && ++looks_ < kMostLooks) {
      slot_bytes_ = unfit->slot_bytes;
      return loop_->Post([self = shared_from_this()](Turn& turn) { self->Look(turn); });
    }
  }
  Conclude();
}

void PlanCall::Conclude() {
  {
    const MutexLock lock(mutex_);
    if (std::exchange(ended_, true)) return;
  }
  answer_(found_, this);
}

bool PlanCall::Open() {
  const MutexLock lock(mutex_);
  return !ended_;
}

void PlanCall::End(const absl::Status& status) {
  {
    const MutexLock lock(mutex_);
    if (std::exchange(ended_, true)) return;
  }
  // Of a caller who has gone, and while the coordinator shuts down, nothing was decided.
  if (question_.audit.has_value() && !absl::IsCancelled(status) && !absl::IsUnavailable(status)) {
    loop_->Post([entry = *question_.audit, status](Turn& turn) { turn.Audit(entry, status, /*changed=*/false); });
  }
  Finish(ToGrpc(status));
}

void PlanCall::OnCancel() {
  uint64_t ticket = 0;
  {
    const MutexLock lock(mutex_);
    ticket = ticket_;
  }
  loop_->plans().Cancel(ticket);
  End(absl::CancelledError("the client has gone"));
}

}  // namespace muster::rpc
