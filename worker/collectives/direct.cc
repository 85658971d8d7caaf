#include "worker/collectives/direct.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/collectives/failed_work.h"
#include "worker/collectives/messages.h"
#include "worker/collectives/rank_shares.h"
#include "worker/collectives/transfers.h"

namespace muster::collectives {
namespace {

// By Transfers or by Messages.
template <typename Carrier, typename Item>
class DirectWork final : public Work {
 public:
  // `item`: none if there was nothing to carry.
  DirectWork(std::shared_ptr<GroupStatus> status, std::shared_ptr<Carrier> carrier, std::shared_ptr<Item> item,
             std::string what)
      : status_(std::move(status)), carrier_(std::move(carrier)), item_(std::move(item)), what_(std::move(what)) {}
  ~DirectWork() override {
    if (item_ != nullptr && !waited_) carrier_->Abandon(*item_);
  }

  absl::Status Wait() override {
    waited_ = true;
    if (item_ == nullptr) return absl::OkStatus();
    const absl::Status status = carrier_->Wait(*item_);
    if (status.ok()) return status;
    return status_->Fail(
        absl::UnavailableError(absl::StrCat(what_, " failed: ", status_->peers().Diagnose(), "; ", status.message())));
  }
  bool done() const override { return item_ == nullptr || carrier_->Done(*item_); }

  std::optional<std::chrono::steady_clock::time_point> done_at() const override {
    if (item_ == nullptr) return std::nullopt;
    return Carrier::DoneAt(*item_);
  }

 private:
  const std::shared_ptr<GroupStatus> status_;
  const std::shared_ptr<Carrier> carrier_;
  const std::shared_ptr<Item> item_;
  const std::string what_;
  bool waited_ = false;
};

class DirectGroup final : public Group {
 public:
  DirectGroup(std::unique_ptr<Group> gloo, std::unique_ptr<Neighbours> neighbours, std::unique_ptr<Neighbours> pair,
              std::shared_ptr<GroupStatus> status)
      : gloo_(std::move(gloo)),
        status_(std::move(status)),
        transfers_(std::make_shared<Transfers>(std::move(neighbours), status_->timeout())),
        messages_(pair == nullptr ? nullptr : std::make_shared<Messages>(std::move(pair), status_->timeout())) {}
  // Fails Works that outlive the group.
  ~DirectGroup() override {
    const absl::Status ended = absl::CancelledError("the group has ended");
    transfers_->Stop(ended);
    if (messages_ != nullptr) messages_->Stop(ended);
  }

  int rank() const override { return gloo_->rank(); }
  int size() const override { return gloo_->size(); }

  std::unique_ptr<Work> AllReduce(at::Tensor values) override {
    return Issue("all-reduce", Transfers::Kind::kAllReduce, RingShares(values, size()));
  }
  std::unique_ptr<Work> AllGather(std::vector<at::Tensor> wholes) override {
    return Issue("all-gather", Transfers::Kind::kBroadcast, EvenShares(wholes, size()));
  }
  std::unique_ptr<Work> ReduceScatter(std::vector<at::Tensor> wholes) override {
    return Issue("reduce-scatter", Transfers::Kind::kReduce, EvenShares(wholes, size()));
  }
  std::unique_ptr<Work> Broadcast(at::Tensor values, int root) override {
    return BroadcastShares({{std::move(values), root}});
  }
  std::unique_ptr<Work> BroadcastShares(std::vector<RankShare> shares) override {
    return Issue("broadcast", Transfers::Kind::kBroadcast, std::move(shares));
  }
  std::unique_ptr<Work> ReduceShares(std::vector<RankShare> shares) override {
    // If one root owns nearly everything, it alone would add; Gloo spreads that over the ranks.
    if (!Straight(shares, size())) return gloo_->ReduceShares(std::move(shares));
    return Issue("reduce", Transfers::Kind::kReduce, std::move(shares));
  }
  std::unique_ptr<Work> Send(at::Tensor values, int to) override {
    if (messages_ == nullptr) return gloo_->Send(std::move(values), to);
    return IssueMessage("send", &Messages::Send, std::move(values));
  }
  std::unique_ptr<Work> Recv(at::Tensor values, int from) override {
    if (messages_ == nullptr) return gloo_->Recv(std::move(values), from);
    return IssueMessage("receive", &Messages::Recv, std::move(values));
  }
  absl::Status Barrier() override { return gloo_->Barrier(); }
  absl::Status Health() override {
    absl::Status failure = status_->failure();
    if (failure.ok()) failure = transfers_->Failure();
    return failure.ok() && messages_ != nullptr ? messages_->Failure() : failure;
  }

 private:
  std::unique_ptr<Work> Issue(const char* name, Transfers::Kind kind, absl::StatusOr<std::vector<RankShare>> shares) {
    if (!shares.ok()) return std::make_unique<FailedWork>(shares.status());
    if (absl::Status failure = status_->failure(); !failure.ok()) return std::make_unique<FailedWork>(failure);
    std::string what = absl::StrCat(name, " ", status_->peers().Issue());
    const bool any =
        std::any_of(shares->begin(), shares->end(), [](const RankShare& share) { return share.values.numel() > 0; });
    std::shared_ptr<Transfer> transfer = any ? transfers_->Begin(kind, *std::move(shares)) : nullptr;
    return std::make_unique<DirectWork<Transfers, Transfer>>(status_, transfers_, std::move(transfer), std::move(what));
  }

  std::unique_ptr<Work> IssueMessage(const char* name, std::shared_ptr<Message> (Messages::*begin)(at::Tensor),
                                     at::Tensor values) {
    if (absl::Status failure = status_->failure(); !failure.ok()) return std::make_unique<FailedWork>(failure);
    std::string what = absl::StrCat(name, " ", status_->peers().Issue());
    std::shared_ptr<Message> message = values.numel() > 0 ? (*messages_.*begin)(std::move(values)) : nullptr;
    return std::make_unique<DirectWork<Messages, Message>>(status_, messages_, std::move(message), std::move(what));
  }

  const std::unique_ptr<Group> gloo_;
  const std::shared_ptr<GroupStatus> status_;
  const std::shared_ptr<Transfers> transfers_;
  const std::shared_ptr<Messages> messages_;  // of two ranks
};

}  // namespace

std::unique_ptr<Group> MakeDirect(std::unique_ptr<Group> gloo, std::unique_ptr<Neighbours> neighbours,
                                  std::unique_ptr<Neighbours> pair, std::shared_ptr<GroupStatus> status) {
  return std::make_unique<DirectGroup>(std::move(gloo), std::move(neighbours), std::move(pair), std::move(status));
}

}  // namespace muster::collectives
