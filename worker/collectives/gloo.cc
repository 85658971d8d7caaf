#include "worker/collectives/gloo.h"

#include <sched.h>

#include <ATen/ops/add.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/Logging.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <exception>
#include <functional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "worker/collectives/direct.h"
#include "worker/collectives/failed_work.h"
#include "worker/collectives/group_status.h"
#include "worker/collectives/neighbours.h"
#include "worker/collectives/peers.h"
#include "worker/collectives/rank_shares.h"
#include "worker/collectives/steady.h"

namespace muster::collectives {
namespace {

constexpr int kMostRanks = 64;
constexpr int kTag = 1;  // Gloo keeps pairs' messages in order, so one is enough
constexpr int kSharesTag = 2;
constexpr int kSumsTag = 3;
// So small a sum of so few ranks is exchanged between all pairs: one message and its announcement instead of the ring's
// 2 (ranks - 1) messages, each of which waits for the one before. Over a link with 20 ms of latency, 4 ranks on two
// nodes, that is 44 ms instead of 83 (one element) to 300 (a thousand).
constexpr int kFewRanks = 8;
constexpr size_t kFewBytes = 1024;
// Reductions that may hold receive buffers at a time.
constexpr size_t kReductionsUnderWay = 4;

// While it lives, threads that this one makes do not take a core from a thread when they wake up; they wait for its
// turn to end. Gloo's reader of sockets tries again and again while another thread holds a connection's lock
// (gloo/transport/tcp/pair.cc: handleEvents), and what wakes it is often what that thread sends, so with the default
// policy it took that thread's core and kept trying until the thread had it back. Four ranks on two cores spent a tenth
// of their time in that.
class PatientThreads {
 public:
  PatientThreads() : set_(sched_getscheduler(0) == SCHED_OTHER && Set(SCHED_BATCH)) {}
  ~PatientThreads() {
    if (set_) Set(SCHED_OTHER);
  }
  PatientThreads(const PatientThreads&) = delete;
  PatientThreads& operator=(const PatientThreads&) = delete;

 private:
  static bool Set(int policy) {
    const sched_param priority{};
    return sched_setscheduler(0, policy, &priority) == 0;
  }
  const bool set_;
};

// Gloo's store over ours. It needs only set, get and wait.
class Store final : public c10d::Store {
 public:
  Store(KeyValue& values, std::string prefix, SteadyPoint deadline)
      : values_(values), prefix_(std::move(prefix)), deadline_(deadline) {}

  c10::intrusive_ptr<c10d::Store> clone() override { return c10::make_intrusive<Store>(values_, prefix_, deadline_); }
  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    Throw(values_.Set(prefix_ + key, std::string(value.begin(), value.end())));
  }
  std::vector<uint8_t> get(const std::string& key) override {
    const absl::StatusOr<std::string> value = values_.Wait(prefix_ + key, Left(deadline_));
    Throw(value.status());
    return {value->begin(), value->end()};
  }
  bool check(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) {
      if (!values_.Wait(prefix_ + key, absl::ZeroDuration()).ok()) return false;
    }
    return true;
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) get(key);
  }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override { wait(keys); }
  int64_t add(const std::string&, int64_t) override { return Unsupported("add"); }
  bool deleteKey(const std::string&) override { return false; }
  int64_t getNumKeys() override { return Unsupported("getNumKeys"); }

 private:
  static void Throw(const absl::Status& status) {
    if (!status.ok()) throw std::runtime_error(std::string(status.message()));
  }
  static int64_t Unsupported(const char* what) {
    throw std::runtime_error(absl::StrCat("the rendezvous does not support ", what));
  }

  KeyValue& values_;
  const std::string prefix_;
  const SteadyPoint deadline_;
};

// The first line of a LibTorch exception, without its backtrace.
std::string Brief(const std::exception& error) {
  const std::string what = error.what();
  return what.substr(0, what.find('\n'));
}

class GlooWork final : public Work {
 public:
  using Pending = std::vector<c10::intrusive_ptr<c10d::Work>>;

  // `futures`: sends and receives have none.
  GlooWork(std::shared_ptr<GroupStatus> status, std::string what, Pending pending, std::vector<at::Tensor> alive,
           bool futures, std::function<void()> then)
      : status_(std::move(status)),
        what_(std::move(what)),
        pending_(std::move(pending)),
        alive_(std::move(alive)),
        then_(std::move(then)),
        deadline_(After(status_->timeout())) {
    progress_->left = pending_.size();
    if (!futures) return;
    for (const auto& one : pending_) Follow(*one);
  }

  absl::Status Wait() override {
    try {
      for (const auto& one : pending_) {
        const absl::Duration left = std::max(absl::Milliseconds(1), Left(deadline_));
        one->wait(std::chrono::milliseconds(absl::ToInt64Milliseconds(left) + 1));
      }
      pending_.clear();
      if (then_) std::exchange(then_, nullptr)();
      waited_ = true;
      return absl::OkStatus();
    } catch (const std::exception& error) {
      waited_ = true;
      return status_->Fail(absl::UnavailableError(
          absl::StrCat(what_, " failed: ", status_->peers().Diagnose(), "; Gloo reports: ", Brief(error))));
    }
  }

  bool done() const override { return waited_ || progress_->left == 0 || Left(deadline_) <= absl::ZeroDuration(); }

  std::optional<std::chrono::steady_clock::time_point> done_at() const override {
    const int64_t since = progress_->latest_nanoseconds;
    if (since == 0) return std::nullopt;
    return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(since));
  }

 private:
  struct Progress {
    std::atomic<int64_t> latest_nanoseconds = 0;  // of the steady clock
    std::atomic<size_t> left = 0;                 // not known to be done; sends and receives never are
    void Count() {
      const std::chrono::nanoseconds now = std::chrono::steady_clock::now().time_since_epoch();
      for (int64_t seen = latest_nanoseconds;
           seen < now.count() && !latest_nanoseconds.compare_exchange_weak(seen, now.count());) {
      }
      --left;
    }
  };

  // Runs on Gloo's thread as soon as the collective is done, whenever Wait is called.
  void Follow(c10d::Work& one) const {
    one.getFuture()->addCallback([progress = progress_](c10::ivalue::Future&) { progress->Count(); });
  }

  const std::shared_ptr<Progress> progress_ = std::make_shared<Progress>();
  const std::shared_ptr<GroupStatus> status_;
  const std::string what_;
  Pending pending_;
  const std::vector<at::Tensor> alive_;
  std::function<void()> then_;
  const SteadyPoint deadline_;
  std::atomic<bool> waited_ = false;
};

// A share that its root reduces.
struct Reduction {
  at::Tensor own;
  std::vector<at::Tensor> others;  // by rank; the root's is not defined

  // Adds in rank order, so that the sum depends neither on the order of arrival nor on the root.
  void Sum(int root) {
    for (int r = 1; r <= root; ++r) {
      at::Tensor& to = r == root ? own : others[static_cast<size_t>(r)];
      to.add_(others[static_cast<size_t>(r - 1)]);
    }
    for (size_t r = static_cast<size_t>(root) + 1; r < others.size(); ++r) own.add_(others[r]);
    others.clear();
  }
};

// May be waited for twice: by the caller and by the group.
class SharedWork final : public Work {
 public:
  class Once {
   public:
    explicit Once(std::unique_ptr<Work> work) : work_(std::move(work)) {}
    absl::Status Wait() {
      absl::MutexLock lock(&mutex_);
      if (work_ != nullptr) status_ = std::exchange(work_, nullptr)->Wait();
      done_ = true;
      return status_;
    }
    bool done() const { return done_; }

   private:
    absl::Mutex mutex_;
    std::unique_ptr<Work> work_ ABSL_GUARDED_BY(mutex_);
    absl::Status status_ ABSL_GUARDED_BY(mutex_);
    std::atomic<bool> done_ = false;  // a waiter holds the mutex while it waits
  };

  explicit SharedWork(std::shared_ptr<Once> once) : once_(std::move(once)) {}
  absl::Status Wait() override { return once_->Wait(); }
  bool done() const override { return once_->done(); }

 private:
  const std::shared_ptr<Once> once_;
};

class GlooGroup final : public Group {
 public:
  GlooGroup(c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo, std::shared_ptr<GroupStatus> status)
      : gloo_(std::move(gloo)), status_(std::move(status)) {}
  int rank() const override { return gloo_->getRank(); }
  int size() const override { return gloo_->getSize(); }

  std::unique_ptr<Work> AllReduce(at::Tensor values) override {
    if (size() <= kFewRanks && values.nbytes() <= kFewBytes) return SumStraight(values);
    return Issue("all-reduce", {values}, [&](GlooWork::Pending& pending) {
      std::vector<at::Tensor> tensors{values};
      if (values.numel() > 0) pending.push_back(gloo_->allreduce(tensors));
    });
  }
  std::unique_ptr<Work> AllGather(std::vector<at::Tensor> wholes) override {
    const absl::StatusOr<std::vector<RankShare>> shares = EvenShares(wholes, size());
    if (!shares.ok()) return std::make_unique<FailedWork>(shares.status());
    return BroadcastNamed("all-gather", *shares);
  }
  std::unique_ptr<Work> ReduceScatter(std::vector<at::Tensor> wholes) override {
    const absl::StatusOr<std::vector<RankShare>> shares = EvenShares(wholes, size());
    if (!shares.ok()) return std::make_unique<FailedWork>(shares.status());
    return ReduceNamed("reduce-scatter", *shares);
  }
  std::unique_ptr<Work> Broadcast(at::Tensor values, int root) override {
    return BroadcastNamed("broadcast", {{std::move(values), root}});
  }
  std::unique_ptr<Work> BroadcastShares(std::vector<RankShare> shares) override {
    return BroadcastNamed("broadcast", shares);
  }
  std::unique_ptr<Work> ReduceShares(std::vector<RankShare> shares) override { return ReduceNamed("reduce", shares); }
  std::unique_ptr<Work> Send(at::Tensor values, int to) override {
    return Issue(
        "send", {values},
        [&](GlooWork::Pending& pending) {
          std::vector<at::Tensor> tensors{values};
          if (values.numel() > 0) pending.push_back(gloo_->send(tensors, to, kTag));
        },
        false);
  }
  std::unique_ptr<Work> Recv(at::Tensor values, int from) override {
    return Issue(
        "receive", {values},
        [&](GlooWork::Pending& pending) {
          std::vector<at::Tensor> tensors{values};
          if (values.numel() > 0) pending.push_back(gloo_->recv(tensors, from, kTag));
        },
        false);
  }
  absl::Status Barrier() override {
    return Issue("barrier", {}, [&](GlooWork::Pending& pending) { pending.push_back(gloo_->barrier()); })->Wait();
  }
  absl::Status Health() override { return status_->failure(); }

 private:
  std::unique_ptr<Work> BroadcastNamed(const char* name, const std::vector<RankShare>& shares) {
    const bool straight = Straight(shares, size());
    return Issue(
        name, Tensors(shares),
        [&](GlooWork::Pending& pending) {
          for (const RankShare& share : shares) {
            if (share.values.numel() == 0) continue;
            std::vector<at::Tensor> tensors{share.values};
            c10d::BroadcastOptions options;
            options.rootRank = share.root;
            if (!straight) {
              pending.push_back(gloo_->broadcast(tensors, options));
            } else if (share.root != rank()) {
              pending.push_back(gloo_->recv(tensors, share.root, kSharesTag));
            } else {
              for (int other = 0; other < size(); ++other) {
                if (other != rank()) pending.push_back(gloo_->send(tensors, other, kSharesTag));
              }
            }
          }
        },
        !straight);
  }

  std::unique_ptr<Work> ReduceNamed(const char* name, const std::vector<RankShare>& shares) {
    if (Straight(shares, size())) return ReduceStraight(name, shares);
    return Issue(name, Tensors(shares), [&](GlooWork::Pending& pending) {
      for (const RankShare& share : shares) {
        std::vector<at::Tensor> tensors{share.values};
        c10d::ReduceOptions options;
        options.rootRank = share.root;
        if (share.values.numel() > 0) pending.push_back(gloo_->reduce(tensors, options));
      }
    });
  }

  // Every rank sends all to each other one, and adds them in the order of the ring, so that the bits are the same.
  std::unique_ptr<Work> SumStraight(const at::Tensor& values) {
    auto others = std::make_shared<std::vector<at::Tensor>>(static_cast<size_t>(size()));
    return Issue(
        "all-reduce", {values},
        [&](GlooWork::Pending& pending) {
          if (values.numel() == 0) return;
          for (int other = 0; other < size(); ++other) {
            if (other == rank()) continue;
            std::vector<at::Tensor> tensors{(*others)[static_cast<size_t>(other)] = at::empty_like(values)};
            pending.push_back(gloo_->recv(tensors, other, kSumsTag));
          }
          std::vector<at::Tensor> tensors{values};
          for (int other = 0; other < size(); ++other) {
            if (other != rank()) pending.push_back(gloo_->send(tensors, other, kSumsTag));
          }
        },
        false,
        [others, values, rank = rank(), size = size()] {
          if (values.numel() == 0 || size == 1) return;
          (*others)[static_cast<size_t>(rank)] = values.clone();
          int64_t begin = 0;
          for (const RankShare& share : RingShares(values, size)) {
            const auto of = [&](int r) {
              return (*others)[static_cast<size_t>(r)].view({-1}).narrow(0, begin, share.values.numel());
            };
            const std::vector<int> order = RingOrder(share.root, size);
            share.values.copy_(of(order[0]));
            for (size_t i = 1; i < order.size(); ++i) share.values.add_(of(order[i]));
            begin += share.values.numel();
          }
        });
  }

  // Every rank sends each share to its root, which adds what it has received in Wait. The receive buffers take memory
  // until then, so older reductions are finished before newer ones begin.
  std::unique_ptr<Work> ReduceStraight(const char* name, const std::vector<RankShare>& shares) {
    while (reductions_.size() >= kReductionsUnderWay) {
      (void)reductions_.front()->Wait();  // its own caller gets the failure
      reductions_.pop_front();
    }
    auto sums = std::make_shared<std::vector<Reduction>>();
    std::unique_ptr<Work> work = Issue(
        name, Tensors(shares),
        [&](GlooWork::Pending& pending) {
          for (const RankShare& share : shares) {
            if (share.values.numel() == 0) continue;
            std::vector<at::Tensor> tensors{share.values};
            if (share.root != rank()) {
              pending.push_back(gloo_->send(tensors, share.root, kSharesTag));
              continue;
            }
            Reduction& sum = sums->emplace_back();
            sum.own = share.values;
            sum.others.resize(static_cast<size_t>(size()));
            for (int other = 0; other < size(); ++other) {
              if (other == rank()) continue;
              tensors[0] = sum.others[static_cast<size_t>(other)] = at::empty_like(share.values);
              pending.push_back(gloo_->recv(tensors, other, kSharesTag));
            }
          }
        },
        false,
        [sums, root = rank()] {
          for (Reduction& sum : *sums) sum.Sum(root);
        });
    reductions_.push_back(std::make_shared<SharedWork::Once>(std::move(work)));
    return std::make_unique<SharedWork>(reductions_.back());
  }

  static std::vector<at::Tensor> Tensors(const std::vector<RankShare>& shares) {
    std::vector<at::Tensor> tensors;
    for (const RankShare& share : shares) tensors.push_back(share.values);
    return tensors;
  }

  std::unique_ptr<Work> Issue(const char* name, std::vector<at::Tensor> alive,
                              const std::function<void(GlooWork::Pending&)>& begin, bool futures = true,
                              std::function<void()> then = nullptr) {
    if (absl::Status failure = status_->failure(); !failure.ok()) return std::make_unique<FailedWork>(failure);
    const std::string what = absl::StrCat(name, " ", status_->peers().Issue());
    GlooWork::Pending pending;
    try {
      begin(pending);
    } catch (const std::exception& error) {
      return std::make_unique<FailedWork>(status_->Fail(absl::UnavailableError(
          absl::StrCat(what, " failed: ", status_->peers().Diagnose(), "; Gloo reports: ", Brief(error)))));
    }
    return std::make_unique<GlooWork>(status_, what, std::move(pending), std::move(alive), futures, std::move(then));
  }

  const c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo_;
  const std::shared_ptr<GroupStatus> status_;
  std::deque<std::shared_ptr<SharedWork::Once>> reductions_;  // those that may be in progress, oldest first
};

// Returns the group itself, or a DirectGroup on top of it.
absl::StatusOr<std::unique_ptr<Group>> Nearer(std::unique_ptr<Group> gloo, const GlooOptions& options,
                                              std::shared_ptr<GroupStatus> status, SteadyPoint deadline,
                                              KeyValue& rendezvous) {
  const auto meet = [&](const std::string& name) {
    return Neighbours::Meet(
        {.rank = options.rank, .size = options.size, .name = name, .willing = options.direct, .deadline = deadline},
        rendezvous);
  };
  auto neighbours = meet(options.name);
  if (neighbours.ok()) {
    if (options.size != 2) return MakeDirect(std::move(gloo), *std::move(neighbours), nullptr, std::move(status));
    auto pair = meet(absl::StrCat(options.name, "/messages"));
    if (!pair.ok()) return pair.status();
    return MakeDirect(std::move(gloo), *std::move(neighbours), *std::move(pair), std::move(status));
  }
  if (absl::IsPermissionDenied(neighbours.status())) {
    LOG(WARNING) << "the ranks of the group " << options.name
                 << " are on one machine but communicate through sockets, which costs CPU time: "
                 << neighbours.status().message();
  } else if (!absl::IsFailedPrecondition(neighbours.status())) {
    return neighbours.status();
  }
  return gloo;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Group>> MakeGloo(const GlooOptions& options, KeyValue& rendezvous) {
  if (options.size > kMostRanks) {
    return absl::InvalidArgumentError(
        absl::StrCat("Gloo connects every rank with every other: at most ", kMostRanks, " ranks, not ", options.size));
  }
  auto peers = Peers::Join(options.rank, options.size, options.name, options.host, rendezvous);
  if (!peers.ok()) return peers.status();
  const auto status = std::make_shared<GroupStatus>(*std::move(peers), options.timeout);
  const SteadyPoint deadline = After(options.join_timeout);
  std::unique_ptr<Group> made;
  try {
    const auto timeout = [](absl::Duration d) { return std::chrono::milliseconds(absl::ToInt64Milliseconds(d)); };
    auto gloo = c10d::ProcessGroupGloo::Options::create(timeout(std::max(options.timeout, options.join_timeout)));
    {
      const PatientThreads patient;
      gloo->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(options.host));
    }
    auto group = c10::make_intrusive<c10d::ProcessGroupGloo>(
        c10::make_intrusive<Store>(rendezvous, absl::StrCat("gloo/", options.name, "/"), deadline), options.rank,
        options.size, gloo);
    group->setTimeout(timeout(options.timeout));
    made = std::make_unique<GlooGroup>(std::move(group), status);
  } catch (const std::exception& error) {
    return absl::UnavailableError(absl::StrCat("rank ", options.rank, " cannot join the group ", options.name, " of ",
                                               options.size, ": ", status->peers().Diagnose(),
                                               "; Gloo reports: ", Brief(error)));
  }
  if (options.size == 1) return made;
  return Nearer(std::move(made), options, status, deadline, rendezvous);
}

}  // namespace muster::collectives
