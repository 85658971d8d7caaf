#include "worker/collectives/nccl.h"

#include <c10/core/ScalarType.h>
#include <c10/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <nccl.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "worker/collectives/failed_work.h"
#include "worker/collectives/peers.h"
#include "worker/collectives/rank_shares.h"
#include "worker/collectives/steady.h"

namespace muster::collectives {
namespace {

constexpr absl::Duration kLook = absl::Milliseconds(50);
constexpr absl::Duration kPoll = absl::Microseconds(50);

absl::StatusOr<ncclDataType_t> TypeOf(const at::Tensor& values) {
  switch (values.scalar_type()) {
    case at::kFloat:
      return ncclFloat32;
    case at::kBFloat16:
      return ncclBfloat16;
    case at::kHalf:
      return ncclFloat16;
    case at::kDouble:
      return ncclFloat64;
    case at::kLong:
      return ncclInt64;
    case at::kInt:
      return ncclInt32;
    default:
      return absl::InvalidArgumentError(absl::StrCat("NCCL does not support ", toString(values.scalar_type())));
  }
}

size_t Count(const at::Tensor& values) { return static_cast<size_t>(values.numel()); }

// One collective on the device.
struct Pending {
  std::string what;
  SteadyPoint deadline;
  c10::cuda::CUDAEvent done{cudaEventDisableTiming};
  std::vector<at::Tensor> alive;
};

class NcclGroup final : public Group {
 public:
  using Begin = std::function<ncclResult_t(ncclComm_t, cudaStream_t)>;

  NcclGroup(const NcclOptions& options, std::unique_ptr<Peers> peers, ncclComm_t communicator)
      : options_(options),
        peers_(std::move(peers)),
        stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/true, static_cast<c10::DeviceIndex>(options.device))),
        communicator_(communicator),
        watchdog_([this] { Watch(); }) {}

  ~NcclGroup() override {
    ending_.Notify();
    watchdog_.join();
    const absl::MutexLock lock(&mutex_);
    if (communicator_ == nullptr) return;
    // Destroy cleanly only when nothing is in progress; otherwise it would wait for a lost peer.
    if (pending_.empty()) {
      ncclCommFinalize(communicator_);
      AwaitReady(After(absl::Seconds(5))).IgnoreError();
      ncclCommDestroy(communicator_);
    } else {
      ncclCommAbort(communicator_);
    }
  }

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }

  std::unique_ptr<Work> AllReduce(at::Tensor values) override {
    return Typed("all-reduce", {values}, [=](ncclDataType_t type, ncclComm_t communicator, cudaStream_t stream) {
      return ncclAllReduce(values.data_ptr(), values.data_ptr(), Count(values), type, ncclSum, communicator, stream);
    });
  }
  // In place: this rank's range is the source of an all-gather and the destination of a reduce-scatter.
  std::unique_ptr<Work> AllGather(std::vector<at::Tensor> wholes) override {
    return Even("all-gather", wholes,
                [](const RankShare& own, void* whole, ncclDataType_t type, ncclComm_t c, cudaStream_t stream) {
                  return ncclAllGather(own.values.data_ptr(), whole, Count(own.values), type, c, stream);
                });
  }
  std::unique_ptr<Work> ReduceScatter(std::vector<at::Tensor> wholes) override {
    return Even("reduce-scatter", wholes,
                [](const RankShare& own, void* whole, ncclDataType_t type, ncclComm_t c, cudaStream_t stream) {
                  return ncclReduceScatter(whole, own.values.data_ptr(), Count(own.values), type, ncclSum, c, stream);
                });
  }
  std::unique_ptr<Work> Broadcast(at::Tensor values, int root) override {
    return BroadcastShares({{std::move(values), root}});
  }
  std::unique_ptr<Work> BroadcastShares(std::vector<RankShare> shares) override {
    return Grouped("broadcast", shares,
                   [](const RankShare& share, ncclDataType_t type, ncclComm_t c, cudaStream_t stream) {
                     void* const values = share.values.data_ptr();
                     return ncclBroadcast(values, values, Count(share.values), type, share.root, c, stream);
                   });
  }
  std::unique_ptr<Work> ReduceShares(std::vector<RankShare> shares) override {
    return Grouped("reduce", shares,
                   [](const RankShare& share, ncclDataType_t type, ncclComm_t c, cudaStream_t stream) {
                     void* const values = share.values.data_ptr();
                     return ncclReduce(values, values, Count(share.values), type, ncclSum, share.root, c, stream);
                   });
  }
  std::unique_ptr<Work> Send(at::Tensor values, int to) override {
    return Typed("send", {values}, [=](ncclDataType_t type, ncclComm_t communicator, cudaStream_t stream) {
      return ncclSend(values.data_ptr(), Count(values), type, to, communicator, stream);
    });
  }
  std::unique_ptr<Work> Recv(at::Tensor values, int from) override {
    return Typed("receive", {values}, [=](ncclDataType_t type, ncclComm_t communicator, cudaStream_t stream) {
      return ncclRecv(values.data_ptr(), Count(values), type, from, communicator, stream);
    });
  }

  absl::Status Barrier() override {
    const c10::cuda::CUDAGuard device(static_cast<c10::DeviceIndex>(options_.device));
    void* one = nullptr;
    if (cudaMalloc(&one, sizeof(int32_t)) != cudaSuccess) return absl::ResourceExhaustedError("no GPU memory");
    const absl::StatusOr<std::shared_ptr<Pending>> issued =
        Issue("barrier", {}, [one](ncclComm_t communicator, cudaStream_t stream) {
          return ncclAllReduce(one, one, 1, ncclInt32, ncclSum, communicator, stream);
        });
    absl::Status status = issued.status();
    while (status.ok() && !(*issued)->done.query()) {
      absl::SleepFor(kPoll);
      const absl::MutexLock lock(&mutex_);
      status = failed_;
    }
    cudaFree(one);
    return status;
  }

  // Asks NCCL itself: the watchdog may not have looked yet.
  absl::Status Health() override {
    const absl::MutexLock lock(&mutex_);
    Look();
    return failed_;
  }

  // The watchdog's error, for this or an earlier collective.
  absl::Status failed() {
    const absl::MutexLock lock(&mutex_);
    return failed_;
  }

 private:
  class NcclWork final : public Work {
   public:
    NcclWork(NcclGroup& group, std::shared_ptr<Pending> pending) : group_(group), pending_(std::move(pending)) {}
    bool done() const override { return !group_.failed().ok() || pending_->done.query(); }
    absl::Status Wait() override {
      if (absl::Status status = group_.failed(); !status.ok()) return status;
      pending_->done.block(c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(group_.options_.device)));
      return absl::OkStatus();
    }

   private:
    NcclGroup& group_;
    const std::shared_ptr<Pending> pending_;
  };

  std::unique_ptr<Work> AsWork(absl::StatusOr<std::shared_ptr<Pending>> issued) {
    if (!issued.ok()) return std::make_unique<FailedWork>(issued.status());
    return std::make_unique<NcclWork>(*this, *std::move(issued));
  }

  std::unique_ptr<Work> Typed(const char* name, std::vector<at::Tensor> tensors,
                              const std::function<ncclResult_t(ncclDataType_t, ncclComm_t, cudaStream_t)>& begin) {
    const absl::StatusOr<ncclDataType_t> type = TypeOf(tensors[0]);
    if (!type.ok()) return std::make_unique<FailedWork>(type.status());
    return AsWork(
        Issue(name, std::move(tensors), [&](ncclComm_t c, cudaStream_t stream) { return begin(*type, c, stream); }));
  }

  std::unique_ptr<Work> Even(
      const char* name, const std::vector<at::Tensor>& wholes,
      const std::function<ncclResult_t(const RankShare&, void*, ncclDataType_t, ncclComm_t, cudaStream_t)>& begin) {
    const absl::StatusOr<std::vector<RankShare>> shares = EvenShares(wholes, size());
    if (!shares.ok()) return std::make_unique<FailedWork>(shares.status());
    std::vector<RankShare> own;
    for (const RankShare& share : *shares) {
      if (share.root == rank()) own.push_back(share);
    }
    return Grouped(name, own, [&](const RankShare& share, ncclDataType_t type, ncclComm_t c, cudaStream_t stream) {
      std::byte* const at = static_cast<std::byte*>(share.values.data_ptr());
      return begin(share, at - static_cast<size_t>(rank()) * share.values.nbytes(), type, c, stream);
    });
  }

  // One launch for all shares. Empty shares are left out by every rank alike.
  std::unique_ptr<Work> Grouped(
      const char* name, const std::vector<RankShare>& shares,
      const std::function<ncclResult_t(const RankShare&, ncclDataType_t, ncclComm_t, cudaStream_t)>& begin) {
    std::vector<at::Tensor> tensors;
    for (const RankShare& share : shares) tensors.push_back(share.values);
    for (const RankShare& share : shares) {
      const absl::StatusOr<ncclDataType_t> type = TypeOf(share.values);
      if (!type.ok()) return std::make_unique<FailedWork>(type.status());
    }
    return AsWork(Issue(name, std::move(tensors), [&](ncclComm_t communicator, cudaStream_t stream) {
      ncclResult_t result = ncclGroupStart();
      for (const RankShare& share : shares) {
        if (share.values.numel() == 0) continue;
        const ncclResult_t one = begin(share, *TypeOf(share.values), communicator, stream);
        if (one != ncclSuccess && one != ncclInProgress) result = one;
      }
      const ncclResult_t ended = ncclGroupEnd();
      return result == ncclSuccess ? ended : result;
    }));
  }

  absl::StatusOr<std::shared_ptr<Pending>> Issue(const char* name, std::vector<at::Tensor> alive, const Begin& begin) {
    const c10::DeviceIndex device = static_cast<c10::DeviceIndex>(options_.device);
    const absl::MutexLock lock(&mutex_);
    if (!failed_.ok()) return failed_;
    auto pending = std::make_shared<Pending>();
    pending->what = absl::StrCat(name, " ", peers_->Issue());
    pending->deadline = After(options_.timeout);
    pending->alive = std::move(alive);
    try {
      const c10::cuda::CUDAGuard guard(device);
      c10::cuda::CUDAEvent ready(cudaEventDisableTiming);
      ready.record(c10::cuda::getCurrentCUDAStream(device));
      ready.block(stream_);
      const ncclResult_t result = begin(communicator_, stream_.stream());
      absl::Status begun = result == ncclInProgress ? AwaitReady(pending->deadline) : Check(result);
      if (!begun.ok()) return Fail(absl::StrCat(pending->what, ": ", begun.message()));
      pending->done.record(stream_);
    } catch (const std::exception& error) {
      return Fail(absl::StrCat(pending->what, ": ", error.what()));
    }
    pending_.push_back(pending);
    return pending;
  }

  absl::Status Check(ncclResult_t result) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (result == ncclSuccess) return absl::OkStatus();
    return absl::UnavailableError(
        absl::StrCat("NCCL: ", ncclGetErrorString(result), " (", ncclGetLastError(communicator_), ")"));
  }

  // A non-blocking communicator is still busy with the last call.
  absl::Status AwaitReady(SteadyPoint deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    while (true) {
      ncclResult_t state = ncclSuccess;
      const ncclResult_t asked = ncclCommGetAsyncError(communicator_, &state);
      if (asked != ncclSuccess) return Check(asked);
      if (state != ncclInProgress) return Check(state);
      if (Left(deadline) < absl::ZeroDuration()) return absl::UnavailableError("the deadline passed");
      absl::SleepFor(kPoll);
    }
  }

  // Kernels of an aborted communicator end, so streams that wait for them continue.
  absl::Status Fail(const std::string& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    failed_ = absl::UnavailableError(absl::StrCat(why, " (", peers_->Diagnose(), ")"));
    ncclCommAbort(communicator_);
    communicator_ = nullptr;
    pending_.clear();
    return failed_;
  }

  void Watch() {
    while (!ending_.WaitForNotificationWithTimeout(kLook)) {
      const absl::MutexLock lock(&mutex_);
      Look();
      if (!failed_.ok()) return;
    }
  }

  void Look() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!failed_.ok()) return;
    while (!pending_.empty() && pending_.front()->done.query()) pending_.pop_front();
    ncclResult_t state = ncclSuccess;
    if (ncclCommGetAsyncError(communicator_, &state) == ncclSuccess && state != ncclSuccess &&
        state != ncclInProgress) {
      Fail(absl::StrCat("NCCL: ", ncclGetErrorString(state))).IgnoreError();
    } else if (!pending_.empty() && Left(pending_.front()->deadline) < absl::ZeroDuration()) {
      Fail(absl::StrCat(pending_.front()->what, " was not done within ", absl::FormatDuration(options_.timeout)))
          .IgnoreError();
    }
  }

  const NcclOptions options_;
  const std::unique_ptr<Peers> peers_;
  const c10::cuda::CUDAStream stream_;
  absl::Mutex mutex_;
  ncclComm_t communicator_ ABSL_GUARDED_BY(mutex_);  // null: aborted
  std::deque<std::shared_ptr<Pending>> pending_ ABSL_GUARDED_BY(mutex_);
  absl::Status failed_ ABSL_GUARDED_BY(mutex_);
  absl::Notification ending_;
  std::thread watchdog_;  // last: it uses the other members
};

}  // namespace

absl::StatusOr<std::unique_ptr<Group>> MakeNccl(const NcclOptions& options, KeyValue& rendezvous) {
  const SteadyPoint deadline = After(options.join_timeout);
  auto peers = Peers::Join(options.rank, options.size, options.name, options.host, rendezvous);
  if (!peers.ok()) return peers.status();
  const auto fail = [&](const std::string& why) {
    return absl::UnavailableError(absl::StrCat("rank ", options.rank, " cannot join the group ", options.name, " of ",
                                               options.size, ": ", why, " (", (*peers)->Diagnose(), ")"));
  };
  const std::string key = absl::StrCat("nccl/", options.name);
  ncclUniqueId id;
  if (options.rank == 0) {
    if (const ncclResult_t made = ncclGetUniqueId(&id); made != ncclSuccess) return fail(ncclGetErrorString(made));
    absl::Status set = rendezvous.Set(key, std::string(id.internal, sizeof id.internal));
    if (!set.ok()) return set;
  } else {
    const absl::StatusOr<std::string> value = rendezvous.Wait(key, options.join_timeout);
    if (!value.ok()) return fail(std::string(value.status().message()));
    if (value->size() != sizeof id.internal) return fail("the NCCL id in the rendezvous has a wrong size");
    std::memcpy(id.internal, value->data(), sizeof id.internal);
  }
  const c10::cuda::CUDAGuard device(static_cast<c10::DeviceIndex>(options.device));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;  // non-blocking, so that our deadline covers a rank that never joins
  ncclComm_t communicator = nullptr;
  ncclResult_t state = ncclCommInitRankConfig(&communicator, options.size, id, options.rank, &config);
  while (state == ncclInProgress && Left(deadline) > absl::ZeroDuration()) {
    absl::SleepFor(absl::Milliseconds(1));
    if (const ncclResult_t asked = ncclCommGetAsyncError(communicator, &state); asked != ncclSuccess) state = asked;
  }
  if (state != ncclSuccess) {
    if (communicator != nullptr) ncclCommAbort(communicator);
    return fail(state == ncclInProgress ? "not all ranks came in time" : ncclGetErrorString(state));
  }
  return std::make_unique<NcclGroup>(options, *std::move(peers), communicator);
}

}  // namespace muster::collectives
