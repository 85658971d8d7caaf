#include "worker/engine/step_tasks.h"

#include <utility>

#include "models/inventory.h"

namespace muster::engine {
namespace {

using StepContext = StepTasks::Context;

collectives::Group& GroupOf(const StepContext& c, const Op& op) { return *c.config->groups[op.group]; }

Works One(std::unique_ptr<collectives::Work> work) {
  Works works;
  works.push_back(std::move(work));
  return works;
}

template <typename F>
Task Computes(F work) {
  Task task;
  task.begin = [work = std::move(work)]() -> Works {
    work();
    return {};
  };
  return task;
}
template <typename F>
Task Communicates(F begin, std::function<void()> end = nullptr) {
  Task task;
  task.begin = std::move(begin);
  task.end = std::move(end);
  return task;
}

std::unique_ptr<collectives::Work> Gathered(const StepContext& c, const Op& op) {
  std::vector<at::Tensor> buffers = c.storage->BeginGather(op);
  collectives::Group& group = GroupOf(c, op);
  return op.even ? group.AllGather(c.storage->Wholes(op, std::move(buffers)))
                 : group.BroadcastShares(c.storage->ParameterShares(op, buffers));
}
std::unique_ptr<collectives::Work> Reduced(const StepContext& c, const Op& op) {
  std::vector<at::Tensor> buffers = c.storage->BeginReduce(op);
  collectives::Group& group = GroupOf(c, op);
  return op.even ? group.ReduceScatter(c.storage->Wholes(op, std::move(buffers)))
                 : group.ReduceShares(c.storage->GradientShares(op, buffers));
}

// Between nodes, of the part that this rank has of its node's sum.
bool SumsParts(const StepContext& c, const Op& op) { return AxesOf(c.config->schedule, op.group) == kReplicasBetween; }

void EndSum(const StepContext& c, const Op& op) {
  if (c.sums != nullptr) c.sums->End(op);
  if (!SumsParts(c, op)) c.storage->EndSum(op);
}

Works AllReduced(const StepContext& c, const Op& op) {
  if (!SumsParts(c, op)) c.storage->BeginSum(op);
  if (c.sums != nullptr) return c.sums->Begin(op, c.step);
  const Mesh& mesh = c.config->mesh;
  const uint32_t replica = CoordinateOf(mesh, c.config->rank).replica;
  const auto place = static_cast<int>(NodePlaceOf(replica, mesh.replicas_inside).place);
  Works works;
  for (const Storage::Summed& range : c.storage->SummedIn(op, place)) {
    works.push_back(GroupOf(c, op).AllReduce(range.values));
  }
  return works;
}

// Over an edge, whose sender is rank 0 of its group.
Works Sent(const StepContext& c, const Op& op, const std::vector<at::Tensor>& tensors) {
  Works works;
  for (const at::Tensor& tensor : tensors) works.push_back(GroupOf(c, op).Send(tensor, /*to=*/1));
  return works;
}
Works Received(const StepContext& c, const Op& op, const std::vector<at::Tensor>& tensors) {
  Works works;
  for (const at::Tensor& tensor : tensors) works.push_back(GroupOf(c, op).Recv(tensor, /*from=*/0));
  return works;
}

// Over the ranks of the op's group: the root of the sum of squares.
Task MeasureNorm(const StepContext& c, const Op& op) {
  at::Tensor& norm = c.tensors->norm;
  const auto own = [&c] { return c.storage->OwnedNorm().to(c.device, at::kDouble).view({1}); };
  Task task = op.group < 0 ? Computes([=, &norm] { norm = own(); })
                           : Communicates(
                                 [=, &c, &op, &norm] {
                                   norm = own().square();
                                   return One(GroupOf(c, op).AllReduce(norm));
                                 },
                                 [&norm] { norm = norm.sqrt(); });
  task.on_host = c.storage->offloads();
  return task;
}

Task Update(const StepContext& c, const Op& op) {
  Task task = Computes([&] { c.update(op); });
  task.on_host = c.storage->offloads();
  task.changes_state = true;
  return task;
}

}  // namespace

StepTasks::Handler StepTasks::HandlerOf(OpKind kind) {
  switch (kind) {
    case OpKind::kForward:
      return [](const StepContext& c, const Op& op) { return Computes([&] { c.microbatches->Forward(op); }); };
    case OpKind::kRecompute:
      return [](const StepContext& c, const Op& op) { return Computes([&] { c.microbatches->Recompute(op); }); };
    case OpKind::kBackward:
      return [](const StepContext& c, const Op& op) { return Computes([&] { c.microbatches->Backward(op); }); };
    case OpKind::kBackwardInputs:
      return [](const StepContext& c, const Op& op) { return Computes([&] { c.microbatches->BackwardInputs(op); }); };
    case OpKind::kBackwardWeights:
      return [](const StepContext& c, const Op& op) { return Computes([&] { c.microbatches->BackwardWeights(op); }); };
    case OpKind::kOffloadInput:
      return [](const StepContext& c, const Op& op) { return Computes([&] { c.microbatches->OffloadInput(op); }); };
    case OpKind::kReleaseInput:
      return [](const StepContext& c, const Op& op) { return Computes([&] { c.microbatches->ReleaseInput(op); }); };
    case OpKind::kFetchInput:
      return [](const StepContext& c, const Op& op) { return Computes([&] { c.microbatches->FetchInput(op); }); };
    case OpKind::kSendTied:
      return [](const StepContext& c, const Op& op) {
        return Communicates([&] { return Sent(c, op, c.storage->TiedParameters(op)); });
      };
    case OpKind::kReceiveTied:
      return [](const StepContext& c, const Op& op) {
        return Communicates([&] { return Received(c, op, c.storage->TiedParameters(op)); });
      };
    case OpKind::kSendTiedGradient:
      return [](const StepContext& c, const Op& op) {
        return Communicates([&] { return Sent(c, op, c.storage->TiedGradients(op)); });
      };
    case OpKind::kReceiveTiedGradient:
      return [](const StepContext& c, const Op& op) {
        return Communicates([&] { return Received(c, op, c.storage->TiedGradients(op)); },
                            [&] { c.storage->AddTied(op); });
      };
    case OpKind::kSendActivation:
    case OpKind::kSendGradient:
      return [](const StepContext& c, const Op& op) { return Communicates([&] { return c.microbatches->Send(op); }); };
    case OpKind::kReceiveActivation:
    case OpKind::kReceiveGradient:
      return
          [](const StepContext& c, const Op& op) { return Communicates([&] { return c.microbatches->Receive(op); }); };
    case OpKind::kOpenGradients:
      return [](const StepContext& c, const Op& op) { return Computes([&] { c.storage->OpenGradients(op); }); };
    case OpKind::kRelease:
      return [](const StepContext& c, const Op& op) { return Computes([&] { c.storage->Release(op); }); };
    case OpKind::kGather:
    case OpKind::kGatherBetween:
      return [](const StepContext& c, const Op& op) { return Communicates([&] { return One(Gathered(c, op)); }); };
    case OpKind::kReduce:
      return [](const StepContext& c, const Op& op) {
        return Communicates([&] { return One(Reduced(c, op)); }, [&] { c.storage->EndReduce(op); });
      };
    case OpKind::kReduceInside:
      return [](const StepContext& c, const Op& op) { return Communicates([&] { return One(Reduced(c, op)); }); };
    case OpKind::kScatterGradients:
      return [](const StepContext& c, const Op& op) {
        return Communicates([&] {
          c.storage->BeginSum(op);
          return One(GroupOf(c, op).ReduceShares(c.storage->SummedParts(op)));
        });
      };
    case OpKind::kAllReduce:
      return [](const StepContext& c, const Op& op) {
        if (c.config->schedule.two_exchanges) return Communicates([&] { return AllReduced(c, op); });
        return Communicates([&] { return AllReduced(c, op); }, [&] { EndSum(c, op); });
      };
    case OpKind::kFinishSum:
      return [](const StepContext& c, const Op& op) {
        return Communicates([&] { return c.sums->Continue(op); }, [&] { EndSum(c, op); });
      };
    case OpKind::kGatherGradients:
      return [](const StepContext& c, const Op& op) {
        return Communicates([&] { return One(GroupOf(c, op).BroadcastShares(c.storage->SummedParts(op))); },
                            [&] { c.storage->EndSum(op); });
      };
    case OpKind::kReduceScalars:
      return [](const StepContext& c, const Op& op) {
        return Communicates([&] { return One(GroupOf(c, op).AllReduce(c.tensors->scalars)); });
      };
    case OpKind::kGradientNorm:
      return [](const StepContext& c, const Op& op) { return MeasureNorm(c, op); };
    case OpKind::kOptimizerStep:
      return Update;
    case OpKind::kFetch:
      return [](const StepContext& c, const Op& op) { return Computes([&] { c.storage->Fetch(op); }); };
    case OpKind::kOffload:
      return [](const StepContext& c, const Op& op) { return Computes([&] { c.storage->Offload(op); }); };
    default:
      return nullptr;
  }
}

Task StepTasks::TaskOf(const Op& op) {
  Task task = HandlerOf(op.kind)(context_, op);
  if (context_.config->check_accesses) task.accesses = [this, &op] { return AccessesOf(op); };
  return task;
}

// The passes of the last unit add to the loss among the scalars, which are summed, then read by the update.
std::vector<Access> StepTasks::AccessesOf(const Op& op) const {
  std::vector<Access> accesses = context_.storage->Accesses(op);
  const std::vector<Access> inputs = context_.microbatches->Accesses(op);
  accesses.insert(accesses.end(), inputs.begin(), inputs.end());
  if (context_.tensors == nullptr) return accesses;
  const at::Tensor& scalars = context_.tensors->scalars;
  const Inventory& inventory = context_.config->inventory;
  const bool last = op.unit >= 0 && models::ModelUnit(inventory, op.unit) + 1 == models::ModelUnits(inventory);
  if ((Traits(op.kind).pass != Pass::kNone && last) || op.kind == OpKind::kReduceScalars) {
    accesses.push_back(Writes(scalars));
  }
  if (op.kind == OpKind::kOptimizerStep) accesses.push_back(Reads(scalars));
  return accesses;
}

}  // namespace muster::engine
