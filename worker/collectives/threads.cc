#include "worker/collectives/threads.h"

#include <ATen/ops/add.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/mutex.h"
#include "worker/collectives/failed_work.h"
#include "worker/collectives/rank_shares.h"
#include "worker/collectives/steady.h"

namespace muster::collectives {
namespace {

enum class Collective { kAllReduce, kBroadcast, kReduce, kBarrier, kSend, kRecv };
constexpr size_t kSender = 0;  // its place in a pair
constexpr const char* kNames[] = {"all-reduce", "broadcast", "reduce", "barrier", "send", "recv"};

// One rank's input to a collective.
struct Offer {
  Collective kind = Collective::kBarrier;
  std::vector<RankShare> shares;
  // Of Delivery::kAtWaits, by share: its values at the issue, and what it must hold until the collective is over.
  std::vector<at::Tensor> copies, expected;

  const at::Tensor& source(size_t share) const { return copies.empty() ? shares[share].values : copies[share]; }
};

// For example "all-reduce 5 Float @0"; must be equal on every rank.
std::string Form(const Offer& offer) {
  std::string form = kNames[static_cast<size_t>(offer.kind)];
  for (const RankShare& share : offer.shares) {
    absl::StrAppend(&form, " ", share.values.numel(), " ", toString(share.values.scalar_type()), " @", share.root);
  }
  return form;
}

// The bits of a signaling NaN, of which copies keep every bit and arithmetic none: it sets the quiet bit.
uint64_t PoisonOf(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return 0x7ff5a5a5a5a5a5a5;
    case at::kFloat:
      return 0x7fa5a5a5;
    case at::kBFloat16:
      return 0x7fa5;
    case at::kHalf:
      return 0x7da5;
    default:
      return 0xa5a5a5a5a5a5a5a5;
  }
}

void Poison(const at::Tensor& values) {
  const uint64_t poison = PoisonOf(values.scalar_type());
  const size_t item = values.element_size();
  char* const bytes = static_cast<char*>(values.data_ptr());
  for (size_t i = 0; i < values.nbytes(); i += item) std::memcpy(bytes + i, &poison, item);  // little-endian
}

bool SameBits(const at::Tensor& a, const at::Tensor& b) {
  return a.nbytes() == 0 || std::memcmp(a.data_ptr(), b.data_ptr(), a.nbytes()) == 0;
}

// Copies the rank's tensors aside and poisons those that the collective overwrites.
void Seize(Offer& offer, int rank) {
  for (const RankShare& share : offer.shares) {
    offer.copies.push_back(share.values.clone());
    const bool only_read =
        offer.kind == Collective::kSend || (offer.kind == Collective::kBroadcast && share.root == rank);
    if (!only_read) Poison(share.values);
    offer.expected.push_back(share.values.clone());
  }
}

// The sum of the ranks' tensors, in rank order.
at::Tensor Sum(const std::vector<Offer>& offers, size_t share) {
  at::Tensor sum = offers[0].source(share).clone();
  for (size_t rank = 1; rank < offers.size(); ++rank) sum.add_(offers[rank].source(share));
  return sum;
}

void Carry(const std::vector<Offer>& offers) {
  const std::vector<RankShare>& first = offers[0].shares;
  switch (offers[0].kind) {
    case Collective::kAllReduce: {
      const at::Tensor sum = Sum(offers, 0);
      for (const Offer& offer : offers) offer.shares[0].values.copy_(sum);
      return;
    }
    case Collective::kBroadcast:
      for (size_t share = 0; share < first.size(); ++share) {
        const size_t root = static_cast<size_t>(first[share].root);
        for (size_t rank = 0; rank < offers.size(); ++rank) {
          if (rank != root) offers[rank].shares[share].values.copy_(offers[root].source(share));
        }
      }
      return;
    case Collective::kReduce:
      for (size_t share = 0; share < first.size(); ++share) {
        offers[static_cast<size_t>(first[share].root)].shares[share].values.copy_(Sum(offers, share));
      }
      return;
    case Collective::kSend:
      offers[1].shares[0].values.copy_(offers[0].source(0));
      return;
    case Collective::kBarrier:
    case Collective::kRecv:
      return;
  }
}

// One collective, or one pair of send and recv, from the first rank's offer until it is over.
struct Meeting {
  explicit Meeting(std::vector<int> r, SteadyPoint d)
      : ranks(std::move(r)),
        offers(ranks.size()),
        come(ranks.size()),
        waited(ranks.size()),
        over(ranks.size()),
        deadline(d) {}
  bool pair() const { return offers[0].kind == Collective::kSend; }

  const std::vector<int> ranks;  // a pair's: sender, receiver; the other members
                                 // are by place in this one
  std::vector<Offer> offers;
  std::vector<bool> come, waited, over;
  const SteadyPoint deadline;
  absl::Status status;  // once over
  SteadyPoint done;     // once over
};

struct Shared {
  Shared(int n, absl::Duration t, Delivery d) : size(n), timeout(t), delivery(d), issued(static_cast<size_t>(n)) {}
  const int size;
  const absl::Duration timeout;
  const Delivery delivery;
  Mutex mutex;
  std::condition_variable_any changed;
  std::vector<uint64_t> issued ABSL_GUARDED_BY(mutex);  // by rank
  std::map<uint64_t, std::shared_ptr<Meeting>> meetings ABSL_GUARDED_BY(mutex);
  // Sends and receives without a partner yet, by sender and receiver.
  std::map<std::pair<int, int>, std::deque<std::pair<Collective, std::shared_ptr<Meeting>>>> pairs
      ABSL_GUARDED_BY(mutex);
  absl::Status failed ABSL_GUARDED_BY(mutex);

  void Fail(absl::Status why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    failed = std::move(why);
    changed.notify_all();
  }

  // Whether the meeting may complete now. A message moves once both ranks have issued it: a sender's wait may be in
  // another group, and depend on the receiver.
  bool Ready(const Meeting& meeting) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    const auto all = [](const std::vector<bool>& ranks) { return std::ranges::find(ranks, false) == ranks.end(); };
    return all(meeting.come) && (delivery == Delivery::kAtIssue || meeting.pair() || all(meeting.waited));
  }

  // Of a message at waits only the part of the rank at `place`: its tensor is checked, and if it receives, written.
  void Complete(Meeting& meeting, size_t place) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    const bool apart = delivery == Delivery::kAtWaits && meeting.pair();
    meeting.status = Agreement(meeting);
    for (size_t p = 0; p < meeting.ranks.size(); ++p) {
      if (apart && p != place) continue;
      if (meeting.status.ok()) meeting.status = Intact(meeting, p);
      meeting.over[p] = true;
    }
    if (meeting.status.ok() && !(apart && place == kSender)) Carry(meeting.offers);
    meeting.done = std::chrono::steady_clock::now();
    if (!meeting.status.ok()) failed = meeting.status;
    if (std::ranges::find(meeting.over, false) == meeting.over.end()) std::ranges::fill(meeting.offers, Offer());
    changed.notify_all();
  }

  static absl::Status Agreement(const Meeting& meeting) {
    const std::vector<Offer>& offers = meeting.offers;
    for (size_t i = 1; i < offers.size(); ++i) {
      const std::string first = Form(offers[0]), other = Form(offers[i]);
      const auto fits = [&] {
        if (!meeting.pair()) return first == other;
        const at::Tensor &sent = offers[0].shares[0].values, &received = offers[1].shares[0].values;
        return sent.numel() == received.numel() && sent.scalar_type() == received.scalar_type();
      };
      if (!fits()) return absl::InternalError(absl::StrCat("ranks disagree: ", first, " and ", other));
    }
    return absl::OkStatus();
  }

  static absl::Status Intact(const Meeting& meeting, size_t place) {
    const Offer& offer = meeting.offers[place];
    for (size_t share = 0; share < offer.expected.size(); ++share) {
      if (SameBits(offer.shares[share].values, offer.expected[share])) continue;
      return absl::InternalError(absl::StrCat("written while in flight: rank ", meeting.ranks[place],
                                              " changed tensor ", share, " of ", Form(offer),
                                              " before its wait; wait first, or use another buffer"));
    }
    return absl::OkStatus();
  }
};

class ThreadWork final : public Work {
 public:
  ThreadWork(std::shared_ptr<Shared> shared, std::shared_ptr<Meeting> meeting, size_t place, std::string what)
      : shared_(std::move(shared)), meeting_(std::move(meeting)), place_(place), what_(std::move(what)) {}

  ~ThreadWork() override {
    const MutexLock lock(shared_->mutex);
    if (shared_->delivery == Delivery::kAtIssue || meeting_->over[place_] || !shared_->failed.ok()) return;
    shared_->Fail(absl::CancelledError(
        absl::StrCat("rank ", meeting_->ranks[place_], " dropped ", what_, " before it had waited for it")));
  }

  absl::Status Wait() override {
    const MutexLock lock(shared_->mutex);
    meeting_->waited[place_] = true;
    if (shared_->delivery == Delivery::kAtWaits) shared_->changed.notify_all();
    return Await();
  }
  bool done() const override {
    const MutexLock lock(shared_->mutex);
    return meeting_->over[place_] || !shared_->failed.ok() || Left(meeting_->deadline) <= absl::ZeroDuration();
  }
  std::optional<std::chrono::steady_clock::time_point> done_at() const override {
    const MutexLock lock(shared_->mutex);
    return meeting_->done;
  }

 private:
  absl::Status Await() ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mutex) {
    while (true) {
      if (meeting_->over[place_]) return meeting_->status;
      if (!shared_->failed.ok()) return shared_->failed;
      if (shared_->Ready(*meeting_)) {
        shared_->Complete(*meeting_, place_);
      } else if (Left(meeting_->deadline) <= absl::ZeroDuration()) {
        shared_->Fail(Missing());
      } else {
        shared_->changed.wait_until(shared_->mutex, meeting_->deadline);
      }
    }
  }

  // Names the ranks that have not issued it; if all have, those that have not waited for it.
  absl::Status Missing() const {
    const bool all_came = std::ranges::find(meeting_->come, false) == meeting_->come.end();
    const std::vector<bool>& done = all_came ? meeting_->waited : meeting_->come;
    std::vector<int> missing;
    for (size_t i = 0; i < done.size(); ++i) {
      if (!done[i]) missing.push_back(meeting_->ranks[i]);
    }
    return absl::UnavailableError(absl::StrCat(what_, ": rank ", absl::StrJoin(missing, ", "), " did not ",
                                               all_came ? "wait for it" : "come", " within ",
                                               absl::FormatDuration(shared_->timeout)));
  }

  const std::shared_ptr<Shared> shared_;
  const std::shared_ptr<Meeting> meeting_;
  const size_t place_;
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
    const MutexLock lock(shared_->mutex);
    return shared_->failed;
  }

 private:
  std::unique_ptr<Work> Issue(Offer offer) {
    std::unique_ptr<ThreadWork> work;  // outlives the lock, which its end takes: copying may throw
    const MutexLock lock(shared_->mutex);
    if (!shared_->failed.ok()) return std::make_unique<FailedWork>(shared_->failed);
    const uint64_t number = shared_->issued[static_cast<size_t>(rank_)]++;
    std::shared_ptr<Meeting>& entry = shared_->meetings[number];
    if (entry == nullptr) {
      std::vector<int> ranks;
      for (int rank = 0; rank < shared_->size; ++rank) ranks.push_back(rank);
      entry = std::make_shared<Meeting>(std::move(ranks), After(shared_->timeout));
    }
    const std::shared_ptr<Meeting> meeting = entry;
    const size_t place = static_cast<size_t>(rank_);
    work = std::make_unique<ThreadWork>(shared_, meeting, place, Form(offer));
    Join(*meeting, place, std::move(offer));
    if (std::ranges::find(meeting->come, false) == meeting->come.end()) shared_->meetings.erase(number);
    return work;
  }

  std::unique_ptr<Work> Pair(Collective kind, int from, int to, at::Tensor values) {
    Offer offer{kind, {{std::move(values), 0}}};
    std::unique_ptr<ThreadWork> work;  // as in Issue
    const MutexLock lock(shared_->mutex);
    if (!shared_->failed.ok()) return std::make_unique<FailedWork>(shared_->failed);
    auto& unmatched = shared_->pairs[{from, to}];
    std::shared_ptr<Meeting> meeting;
    if (!unmatched.empty() && unmatched.front().first != kind) {
      meeting = unmatched.front().second;
      unmatched.pop_front();
    } else {
      meeting = std::make_shared<Meeting>(std::vector<int>{from, to}, After(shared_->timeout));
      unmatched.emplace_back(kind, meeting);
    }
    const size_t place = kind == Collective::kSend ? kSender : 1;
    work = std::make_unique<ThreadWork>(shared_, meeting, place, Form(offer));
    Join(*meeting, place, std::move(offer));
    return work;
  }

  void Join(Meeting& meeting, size_t place, Offer offer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mutex) {
    if (shared_->delivery == Delivery::kAtWaits) Seize(offer, rank_);
    meeting.offers[place] = std::move(offer);
    meeting.come[place] = true;
    if (shared_->delivery == Delivery::kAtIssue && shared_->Ready(meeting)) shared_->Complete(meeting, place);
  }

  const std::shared_ptr<Shared> shared_;
  const int rank_;
};

}  // namespace

std::vector<std::unique_ptr<Group>> MakeThreads(int size, absl::Duration timeout, Delivery delivery) {
  const auto shared = std::make_shared<Shared>(size, timeout, delivery);
  std::vector<std::unique_ptr<Group>> groups;
  for (int rank = 0; rank < size; ++rank) groups.push_back(std::make_unique<ThreadGroup>(shared, rank));
  return groups;
}

}  // namespace muster::collectives
