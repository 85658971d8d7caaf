#include "coordinator/rpc/table_call.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/rpc/rpc.h"
#include "common/rpc/self_owned.h"

namespace muster::rpc {
namespace {

using server::Turn;
using Bytes = std::shared_ptr<const std::string>;

constexpr size_t kChunkBytes = 256 * 1024;

// `node`: from the caller's certificate; empty: any.
absl::StatusOr<Bytes> Find(Turn& turn, const FetchTableRequest& request, const std::string& node) {
  const RankId rank{JobId(request.key().job()), request.key().generation(), request.key().rank()};
  const core::Core& core = turn.core();
  if (absl::Status status = core.CheckCurrent(rank); !status.ok()) return status;
  if (!node.empty() && core.StatusOf(rank, NodeId(node)) != core::Core::RankStatus::kCurrent) {
    return absl::PermissionDeniedError(
        absl::StrCat("rank ", rank.rank, " of job ", rank.job.value(), " was not placed on node ", node));
  }
  if (core.IsPlanPending(rank.job)) {
    return absl::UnavailableError(absl::StrCat("the table of job ", rank.job.value(),
                                               " is being made again after a restart; try again in a moment"));
  }
  const core::Planned* plan = core.PlanOf(rank.job);
  if (plan == nullptr || plan->table_sha256 != request.table_sha256()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "generation ", rank.generation, " of job ", rank.job.value(), " has no table ", request.table_sha256(),
        plan == nullptr ? ": the coordinator was restarted as a build that lays the job out differently"
                        : absl::StrCat(": its table is ", plan->table_sha256)));
  }
  return turn.tables().BytesOf({rank.job, rank.generation}, plan->table);
}

// Sends one chunk at a time: the next when gRPC has taken the previous one.
class TableCall final : public grpc::ServerWriteReactor<TableChunk>, public SelfOwned<TableCall> {
 public:
  void Begin(const absl::StatusOr<Principal>& caller, const FetchTableRequest& request, server::Loop* loop) {
    if (!caller.ok()) {
      Finish(ToGrpc(caller.status()));
      return;
    }
    loop->Post([self = shared_from_this(), request, node = caller->node](Turn& turn) {
      turn.AfterCommit([self, found = Find(turn, request, node)] {
        if (!found.ok()) return self->Finish(ToGrpc(found.status()));
        self->bytes_ = *found;
        self->Next();
      });
    });
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the worker disconnected"));
    Next();
  }
  void OnDone() override { Release(); }

 private:
  void Next() {
    if (at_ == bytes_->size()) return Finish(grpc::Status::OK);
    const size_t size = std::min(kChunkBytes, bytes_->size() - at_);
    chunk_.set_data(bytes_->data() + at_, size);
    at_ += size;
    StartWrite(&chunk_);
  }

  Bytes bytes_;
  size_t at_ = 0;
  TableChunk chunk_;
};

}  // namespace

grpc::ServerWriteReactor<TableChunk>* StartTableCall(const absl::StatusOr<Principal>& caller,
                                                     const FetchTableRequest& request, server::Loop* loop) {
  const std::shared_ptr<TableCall> call = TableCall::Make();
  call->Begin(caller, request, loop);
  return call.get();
}

}  // namespace muster::rpc
