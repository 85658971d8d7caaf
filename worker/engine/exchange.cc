#include "worker/engine/exchange.h"

#include <ATen/ops/square.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace muster::engine {

void Exchange::Issue(const Op& op, int32_t index, std::unique_ptr<collectives::Work> work, std::function<void()> then) {
  PendingCollectives::Then done;
  if (then || recorder_->on()) {
    done = [this, &op, then = std::move(then),
            begin = std::chrono::steady_clock::now()](const collectives::Work& ended) {
      if (recorder_->on()) {
        recorder_->Add({Print(op, config_->inventory), op.stream, begin,
                        ended.done_at().value_or(std::chrono::steady_clock::now())});
      }
      if (then) then();
    };
  }
  pending_.Add(index, op.stream, std::move(work), std::move(done));
}

void Exchange::Gather(const Schedule& schedule, int32_t index, Storage& storage) {
  const Op& op = schedule.ops[index];
  Issue(op, index, GroupOf(op).BroadcastShares(storage.BeginGather(op)), nullptr);
}

void Exchange::Reduce(const Schedule& schedule, int32_t index, Storage& storage) {
  const Op& op = schedule.ops[index];
  Issue(op, index, GroupOf(op).ReduceShares(storage.BeginReduce(op)), [&storage, &op] { storage.EndReduce(op); });
}

void Exchange::AllReduce(const Schedule& schedule, int32_t index, Storage& storage) {
  const Op& op = schedule.ops[index];
  const std::vector<at::Tensor> owned = storage.BeginAllReduce(op);
  for (size_t i = 0; i < owned.size(); ++i) {
    std::function<void()> then;
    if (i + 1 == owned.size()) then = [&storage, &op] { storage.EndAllReduce(op); };
    Issue(op, index, GroupOf(op).AllReduce(owned[i]), std::move(then));
  }
}

void Exchange::ReduceScalars(const Schedule& schedule, int32_t index, const at::Tensor& scalars) {
  const Op& op = schedule.ops[index];
  Issue(op, index, GroupOf(op).AllReduce(scalars), nullptr);
}

absl::Status Exchange::WaitFor(const Schedule& schedule, int32_t index, OpListener* progress) {
  const Op& op = schedule.ops[index];
  if (pending_.empty() || op.waits.empty()) return absl::OkStatus();
  const auto begin = std::chrono::steady_clock::now();
  for (const int32_t earlier : op.waits) {
    const Stream stream = schedule.ops[earlier].stream;
    // Waits one by one, so that the hang detector knows which op does not end.
    for (auto first = pending_.First(stream); first.has_value() && *first <= earlier; first = pending_.First(stream)) {
      const Op& awaited = schedule.ops[*first];
      if (progress != nullptr) progress->WaitFor(*first, awaited.kind);
      absl::Status status = pending_.Wait(*first, stream);
      if (status.ok()) continue;
      return absl::Status(status.code(),
                          absl::StrCat("waiting for ", Print(awaited, config_->inventory), ": ", status.message()));
    }
  }
  if (progress != nullptr) progress->EndWait(index, op.kind);
  const auto end = std::chrono::steady_clock::now();
  waited_ += end - begin;
  recorder_->Add({"Wait", Stream::kCompute, begin, end});
  return absl::OkStatus();
}

absl::StatusOr<at::Tensor> Exchange::GlobalNorm(const Op& op, const at::Tensor& norm) {
  if (op.group < 0) return norm;
  at::Tensor sum = norm.to(at::kDouble).view({1}).square();
  const auto begin = std::chrono::steady_clock::now();
  absl::Status status = GroupOf(op).AllReduce(sum)->Wait();
  waited_ += std::chrono::steady_clock::now() - begin;
  if (!status.ok()) return status;
  return sum.sqrt();
}

}  // namespace muster::engine
