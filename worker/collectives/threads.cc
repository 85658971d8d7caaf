#include "worker/collectives/threads.h"

#include <ATen/ops/add.h>
#include <ATen/ops/empty_like.h>

#include <deque>
#include <map>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "worker/collectives/failed_work.h"
#include "worker/collectives/rank_shares.h"

namespace muster::collectives {
namespace {

enum class Collective { kAllReduce, kBroadcast, kReduce, kBarrier, kSend, kRecv };
constexpr const char* kNames[] = {"all-reduce", "broadcast", "reduce", "barrier", "send", "recv"};

// One rank's input to a collective.
struct Offer {
  Collective kind = Collective::kBarrier;
  std::vector<RankShare> shares;
};

// For example "all-reduce 5 Float @0"; must be equal on every rank.
std::string Form(const Offer& offer) {
  std::string form = kNames[static_cast<size_t>(offer.kind)];
  for (const RankShare& share : offer.shares) {
    absl::StrAppend(&form, " ", share.values.numel(), " ", toString(share.values.scalar_type()), " @", share.root);
  }
  return form;
}

// The sum of the ranks' tensors, in rank order.
at::Tensor Sum(const std::vector<Offer>& offers, size_t share) {
  at::Tensor sum = offers[0].shares[share].values.clone();
  for (size_t rank = 1; rank < offers.size(); ++rank) sum.add_(offers[rank].shares[share].values);
  return sum;
}

void Carry(std::vector<Offer>& offers) {
  const std::vector<RankShare>& first = offers[0].shares;
  switch (offers[0].kind) {
    case Collective::kAllReduce: {
      const at::Tensor sum = Sum(offers, 0);
      for (Offer& offer : offers) offer.shares[0].values.copy_(sum);
      return;
    }
    case Collective::kBroadcast:
      for (size_t share = 0; share < first.size(); ++share) {
        const at::Tensor& from = offers[static_cast<size_t>(first[share].root)].shares[share].values;
        for (Offer& to : offers) {
          if (to.shares[share].values.data_ptr() != from.data_ptr()) to.shares[share].values.copy_(from);
        }
      }
      return;
    case Collective::kReduce:
      for (size_t share = 0; share < first.size(); ++share) {
        offers[static_cast<size_t>(first[share].root)].shares[share].values.copy_(Sum(offers, share));
      }
      return;
    case Collective::kSend:
      offers[1].shares[0].values.copy_(first[0].values);
      return;
    case Collective::kBarrier:
    case Collective::kRecv:
      return;
  }
}

// One collective, or one pair of send and recv, from the first rank's offer to the last's.
struct Meeting {
  std::vector<Offer> offers;
  std::vector<bool> come;
  size_t missing = 0;
  absl::Status status;
  absl::Time deadline;
  std::chrono::steady_clock::time_point done;
};

struct Shared {
  Shared(int n, absl::Duration t) : size(n), timeout(t), issued(static_cast<size_t>(n)) {}
  const int size;
  const absl::Duration timeout;
  absl::Mutex mutex;
  std::vector<uint64_t> issued ABSL_GUARDED_BY(mutex);  // by rank
  std::map<uint64_t, std::shared_ptr<Meeting>> meetings ABSL_GUARDED_BY(mutex);
  // Sends and receives without a partner yet, by sender and receiver.
  std::map<std::pair<int, int>, std::deque<std::pair<Collective, std::shared_ptr<Meeting>>>> pairs
      ABSL_GUARDED_BY(mutex);
  absl::Status failed ABSL_GUARDED_BY(mutex);
};

// Runs when all ranks have issued the collective.
void Meet(Meeting& meeting, Shared& shared) ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared.mutex) {
  for (size_t i = 1; i < meeting.offers.size() && meeting.status.ok(); ++i) {
    const bool pair = meeting.offers[0].kind == Collective::kSend;
    const std::string first = Form(meeting.offers[0]), other = Form(meeting.offers[i]);
    const bool fits = pair ? meeting.offers[0].shares[0].values.numel() == meeting.offers[i].shares[0].values.numel()
                           : first == other;
    if (!fits) meeting.status = absl::InternalError(absl::StrCat("ranks disagree: ", first, " and ", other));
  }
  if (meeting.status.ok()) Carry(meeting.offers);
  meeting.done = std::chrono::steady_clock::now();
  if (!meeting.status.ok()) shared.failed = meeting.status;
}

class ThreadWork final : public Work {
 public:
  ThreadWork(std::shared_ptr<Shared> shared, std::shared_ptr<Meeting> meeting, std::string what)
      : shared_(std::move(shared)), meeting_(std::move(meeting)), what_(std::move(what)) {}

  absl::Status Wait() override {
    absl::MutexLock lock(&shared_->mutex);
    const auto over = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mutex) {
      return meeting_->missing == 0 || !shared_->failed.ok();
    };
    if (shared_->mutex.AwaitWithDeadline(absl::Condition(&over), meeting_->deadline)) {
      return meeting_->missing == 0 ? meeting_->status : shared_->failed;
    }
    std::vector<size_t> missing;
    for (size_t i = 0; i < meeting_->come.size(); ++i) {
      if (!meeting_->come[i]) missing.push_back(i);
    }
    const std::string who =
        meeting_->come.size() == 2 && shared_->size != 2 ? "its peer" : absl::StrJoin(missing, ", ");
    shared_->failed = absl::UnavailableError(
        absl::StrCat(what_, ": rank ", who, " did not come within ", absl::FormatDuration(shared_->timeout)));
    return shared_->failed;
  }
  bool done() const override {
    const absl::MutexLock lock(&shared_->mutex);
    return meeting_->missing == 0 || !shared_->failed.ok() || absl::Now() > meeting_->deadline;
  }
  std::optional<std::chrono::steady_clock::time_point> done_at() const override {
    absl::MutexLock lock(&shared_->mutex);
    return meeting_->done;
  }

 private:
  const std::shared_ptr<Shared> shared_;
  const std::shared_ptr<Meeting> meeting_;
  const std::string what_;
};

class ThreadGroup final : public Group {
 public:
  ThreadGroup(std::shared_ptr<Shared> shared, int rank) : shared_(std::move(shared)), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return shared_->size; }

  std::unique_ptr<Work> AllReduce(at::Tensor values) override {
    return Issue({Collective::kAllReduce, {{std::move(values), 0}}});
  }
  std::unique_ptr<Work> AllGather(std::vector<at::Tensor> wholes) override {
    absl::StatusOr<std::vector<RankShare>> shares = EvenShares(wholes, size());
    if (!shares.ok()) return std::make_unique<FailedWork>(shares.status());
    return BroadcastShares(*std::move(shares));
  }
  std::unique_ptr<Work> ReduceScatter(std::vector<at::Tensor> wholes) override {
    absl::StatusOr<std::vector<RankShare>> shares = EvenShares(wholes, size());
    if (!shares.ok()) return std::make_unique<FailedWork>(shares.status());
    return ReduceShares(*std::move(shares));
  }
  std::unique_ptr<Work> Broadcast(at::Tensor values, int root) override {
    return Issue({Collective::kBroadcast, {{std::move(values), root}}});
  }
  std::unique_ptr<Work> BroadcastShares(std::vector<RankShare> shares) override {
    return Issue({Collective::kBroadcast, std::move(shares)});
  }
  std::unique_ptr<Work> ReduceShares(std::vector<RankShare> shares) override {
    return Issue({Collective::kReduce, std::move(shares)});
  }
  std::unique_ptr<Work> Send(at::Tensor values, int to) override {
    return Pair(Collective::kSend, rank_, to, std::move(values));
  }
  std::unique_ptr<Work> Recv(at::Tensor values, int from) override {
    return Pair(Collective::kRecv, from, rank_, std::move(values));
  }
  absl::Status Barrier() override { return Issue({Collective::kBarrier, {}})->Wait(); }
  absl::Status Health() override {
    const absl::MutexLock lock(&shared_->mutex);
    return shared_->failed;
  }

 private:
  std::unique_ptr<Work> Issue(Offer offer) {
    const std::string what = Form(offer);
    const absl::MutexLock lock(&shared_->mutex);
    if (!shared_->failed.ok()) return std::make_unique<FailedWork>(shared_->failed);
    const uint64_t number = shared_->issued[static_cast<size_t>(rank_)]++;
    std::shared_ptr<Meeting>& meeting = shared_->meetings[number];
    if (meeting == nullptr) meeting = NewMeeting(static_cast<size_t>(shared_->size));
    auto work = std::make_unique<ThreadWork>(shared_, meeting, what);
    Join(*meeting, static_cast<size_t>(rank_), std::move(offer));
    if (meeting->missing == 0) shared_->meetings.erase(number);
    return work;
  }

  std::unique_ptr<Work> Pair(Collective kind, int from, int to, at::Tensor values) {
    Offer offer{kind, {{std::move(values), 0}}};
    const std::string what = Form(offer);
    const absl::MutexLock lock(&shared_->mutex);
    if (!shared_->failed.ok()) return std::make_unique<FailedWork>(shared_->failed);
    auto& waiting = shared_->pairs[{from, to}];
    std::shared_ptr<Meeting> meeting;
    if (!waiting.empty() && waiting.front().first != kind) {
      meeting = waiting.front().second;
      waiting.pop_front();
    } else {
      meeting = NewMeeting(2);
      waiting.emplace_back(kind, meeting);
    }
    auto work = std::make_unique<ThreadWork>(shared_, meeting, what);
    Join(*meeting, kind == Collective::kSend ? 0 : 1, std::move(offer));
    return work;
  }

  std::shared_ptr<Meeting> NewMeeting(size_t ranks) const {
    auto meeting = std::make_shared<Meeting>();
    meeting->offers.resize(ranks);
    meeting->come.resize(ranks);
    meeting->missing = ranks;
    meeting->deadline = absl::Now() + shared_->timeout;
    return meeting;
  }

  void Join(Meeting& meeting, size_t place, Offer offer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mutex) {
    meeting.offers[place] = std::move(offer);
    meeting.come[place] = true;
    if (meeting.missing == 1) Meet(meeting, *shared_);
    if (--meeting.missing == 0) meeting.offers.clear();
  }

  const std::shared_ptr<Shared> shared_;
  const int rank_;
};

}  // namespace

std::vector<std::unique_ptr<Group>> MakeThreads(int size, absl::Duration timeout) {
  const auto shared = std::make_shared<Shared>(size, timeout);
  std::vector<std::unique_ptr<Group>> groups;
  for (int rank = 0; rank < size; ++rank) groups.push_back(std::make_unique<ThreadGroup>(shared, rank));
  return groups;
}

}  // namespace muster::collectives
