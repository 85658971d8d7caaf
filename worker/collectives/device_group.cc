#include "worker/collectives/device_group.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/mutex.h"
#include "worker/collectives/failed_work.h"
#include "worker/collectives/rank_shares.h"
#include "worker/collectives/steady.h"

namespace muster::collectives {
namespace {

using DeviceKind = DeviceCollective::Kind;

// Sleeps between polls: first short, because most of what is polled for takes microseconds.
class Backoff {
 public:
  void Sleep() {
    absl::SleepFor(next_);
    next_ = std::min(2 * next_, absl::Milliseconds(2));
  }

 private:
  absl::Duration next_ = absl::Microseconds(10);
};

// For the reader of the log: the job restarts, and its next capture may fail again.
constexpr char kBrokenByCapture[] =
    "; it was to be part of a CUDA graph, and its communicator cannot be used after the failure. cuda_graphs: false "
    "trains without graphs";

// A collective from its issue until the device has finished it.
struct DevicePending {
  std::string what;
  SteadyPoint deadline;
  DeviceCollective collective;         // keeps the tensors alive until a stream waits for it
  std::unique_ptr<DeviceEvent> ended;  // null: being enqueued, or nothing to do
  bool captured = false;               // part of a graph: `ended` can be waited for and not be queried
};

// The communicator with its watchdog. The group and its Works share it.
//
// Invariant: the transport is called under `mutex_` and while `failure_` is OK. So once a thread has set `failure_`,
// the transport is its own, and it aborts without the mutex.
class Communicator {
 public:
  Communicator(DeviceGroupOptions options, std::unique_ptr<DeviceTransport> transport)
      : options_(std::move(options)), transport_(std::move(transport)), watchdog_([this] { Watch(); }) {}

  const DeviceGroupOptions& options() const { return options_; }

  absl::StatusOr<std::shared_ptr<DevicePending>> Issue(const char* name, DeviceCollective collective) {
    std::erase_if(collective.parts, [](const RankShare& part) { return part.values.numel() == 0; });
    if (absl::Status status = transport_->Check(collective); !status.ok()) return status;
    if (absl::Status status = Failure(); !status.ok()) return status;
    auto pending = std::make_shared<DevicePending>();
    pending->what = absl::StrCat(name, " ", options_.count());
    pending->deadline = After(options_.timeout);
    pending->collective = std::move(collective);
    if (pending->collective.parts.empty()) return pending;
    absl::Status enqueued = EnqueueAll(pending);
    if (!enqueued.ok()) return enqueued;
    return pending;
  }

  // As a collective that ends with all that the current stream holds.
  absl::Status Launched() {
    auto pending = std::make_shared<DevicePending>();
    pending->what = absl::StrCat("graph ", options_.count());
    pending->deadline = After(options_.timeout);
    return EnqueueAll(pending);
  }

  absl::Status BeginCapture() {
    for (Backoff backoff; true; backoff.Sleep()) {
      if (absl::Status status = Health(); !status.ok()) return status;
      const MutexLock lock(mutex_);
      if (!pending_.empty()) continue;
      capturing_ = has_graphs_ = true;
      return absl::OkStatus();
    }
  }
  void EndCapture() {
    std::deque<std::shared_ptr<DevicePending>> over;  // their tensors are freed without the mutex
    const MutexLock lock(mutex_);
    over.swap(captured_);
    capturing_ = false;
  }

  absl::Status Wait(DevicePending& pending) {
    absl::Status status = Failure();
    if (!status.ok() || pending.ended == nullptr) return status;
    status = pending.ended->Block();
    if (status.ok()) return Release(pending);
    const std::string why = absl::StrCat("waiting for ", pending.what, ": ", status.message());
    return pending.captured ? absl::UnavailableError(why) : Fail(why);
  }

  bool Done(const DevicePending& pending) const {
    {
      const MutexLock lock(mutex_);
      if (!failure_.ok()) return true;
    }
    if (pending.ended == nullptr) return true;
    if (pending.captured) return false;
    const absl::StatusOr<bool> reached = pending.ended->Reached();
    return !reached.ok() || *reached;  // the watchdog and Health find the error, too
  }

  absl::Status Health() {
    Look();
    return Failure();
  }

  // Returns when the device has finished `pending`.
  absl::Status Finish(const DevicePending& pending) {
    for (Backoff backoff; !Done(pending); backoff.Sleep()) Look();
    return Health();
  }

  // Null: no part of this rank's.
  absl::StatusOr<std::unique_ptr<DeviceTransport>> Split(int color, int key) {
    const SteadyPoint deadline = After(options_.timeout);
    for (Backoff backoff; true; backoff.Sleep()) {
      if (absl::Status status = Health(); !status.ok()) return status;
      auto part = TrySplit(color, key);
      if (!part.ok()) return Fail(absl::StrCat("a split of the group: ", part.status().message()));
      if (part->has_value()) return **std::move(part);
      if (Left(deadline) <= absl::ZeroDuration()) return Fail(absl::StrCat("a split of the group: ", Late()));
    }
  }

  // The group's end. No call may be in progress.
  void Close() {
    {
      const MutexLock lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    watchdog_.join();
    const bool drained = Drain();
    {
      const MutexLock lock(mutex_);
      if (!failure_.ok()) return;
      failure_ = absl::CancelledError("the group has ended");
      named_ = true;
    }
    if (!drained || !Finalized()) transport_->Abort();
    const MutexLock lock(mutex_);
    pending_.clear();
  }

 private:
  absl::Status EnqueueAll(const std::shared_ptr<DevicePending>& pending) {
    for (Backoff backoff; true; backoff.Sleep()) {
      const absl::StatusOr<bool> enqueued = Enqueue(pending);
      if (enqueued.ok() && *enqueued) return absl::OkStatus();
      if (enqueued.ok()) continue;
      const std::string why = absl::StrCat(pending->what, ": ", enqueued.status().message());
      // What cannot be captured was not run, either, so the group goes on if the communicator can.
      const bool late = absl::IsDeadlineExceeded(enqueued.status());
      if (!pending->captured || late) return Fail(why);
      return Usable() ? absl::UnavailableError(why) : Fail(absl::StrCat(why, kBrokenByCapture));
    }
  }

  // What is freed now is used again on the stream that waits, so only when the device has finished `pending`. The
  // watchdog and, in a graph, EndCapture come much later, and until then a step would need the memory of all exchanges.
  absl::Status Release(DevicePending& pending) {
    std::vector<RankShare> parts;  // freed without the mutex
    const MutexLock lock(mutex_);
    if (failure_.ok()) parts.swap(pending.collective.parts);
    return FailureLocked();
  }

  bool Usable() {
    const MutexLock lock(mutex_);
    return failure_.ok() && transport_->Ready().ok();
  }

  // False: not yet. Its first call begins. DeadlineExceeded: that is still in progress.
  absl::StatusOr<bool> Enqueue(const std::shared_ptr<DevicePending>& pending) {
    const MutexLock lock(mutex_);
    if (!failure_.ok()) return failure_;
    absl::StatusOr<bool> ready = false;
    std::deque<std::shared_ptr<DevicePending>>& issued = capturing_ ? captured_ : pending_;
    if (issued.empty() || issued.back() != pending) {
      pending->captured = capturing_;
      issued.push_back(pending);
      ready = transport_->Begin(pending->collective);
    } else {
      ready = transport_->Ready();
    }
    if (!ready.ok()) return ready;
    if (!*ready) {
      if (Left(pending->deadline) <= absl::ZeroDuration()) return absl::DeadlineExceededError(Late());
      return false;
    }
    absl::StatusOr<std::unique_ptr<DeviceEvent>> ended = transport_->Record();
    if (!ended.ok()) return ended.status();
    pending->ended = *std::move(ended);
    return true;
  }

  // None: not yet.
  absl::StatusOr<DeviceTransport::Part> TrySplit(int color, int key) {
    const MutexLock lock(mutex_);
    if (!failure_.ok()) return failure_;
    if (!pending_.empty()) return std::nullopt;
    return transport_->Split(color, key);
  }

  std::string Late() const { return absl::StrCat("it was not done within ", absl::FormatDuration(options_.timeout)); }

  // Fails the group if there is a reason to. Forgets what the device has finished.
  void Look(bool by_watchdog = false) {
    std::deque<std::shared_ptr<DevicePending>> finished;  // their tensors are freed without the mutex
    std::string why;
    {
      const MutexLock lock(mutex_);
      if (!failure_.ok()) return;
      why = Check(finished);
    }
    finished.clear();
    if (!why.empty()) Fail(why, by_watchdog).IgnoreError();
  }

  // Why the group must fail; empty: no reason.
  std::string Check(std::deque<std::shared_ptr<DevicePending>>& finished) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    while (!pending_.empty() && pending_.front()->ended != nullptr) {
      const absl::StatusOr<bool> reached = pending_.front()->ended->Reached();
      if (!reached.ok()) return absl::StrCat(pending_.front()->what, ": ", reached.status().message());
      if (!*reached) break;
      finished.push_back(std::move(pending_.front()));
      pending_.pop_front();
    }
    if (const absl::StatusOr<bool> ready = transport_->Ready(); !ready.ok()) {
      return std::string(ready.status().message());
    }
    if (!pending_.empty() && Left(pending_.front()->deadline) <= absl::ZeroDuration()) {
      return absl::StrCat(pending_.front()->what, ": ", Late());
    }
    return "";
  }

  // Returns the group's failure, which is an earlier one if there is one.
  absl::Status Fail(const std::string& why, bool by_watchdog = false) {
    {
      const MutexLock lock(mutex_);
      if (!failure_.ok()) return by_watchdog ? failure_ : FailureLocked();  // it may be the watchdog's to abort
      failure_ = absl::UnavailableError(why);
      if (has_graphs_ && !by_watchdog) {
        why_ = why;
        changed_.notify_all();
        return FailureLocked();
      }
    }
    return Abort(why);
  }

  // By the thread that has set `failure_`, or by the watchdog in its place.
  absl::Status Abort(const std::string& why) {
    transport_->Abort();
    std::deque<std::shared_ptr<DevicePending>> aborted;
    {
      const MutexLock lock(mutex_);
      aborted.swap(pending_);
    }
    aborted.clear();
    const std::string named = absl::StrCat(why, " (", options_.diagnose(), ")");
    const MutexLock lock(mutex_);
    failure_ = absl::UnavailableError(named);
    named_ = true;
    changed_.notify_all();
    return failure_;
  }

  absl::Status Failure() {
    const MutexLock lock(mutex_);
    return FailureLocked();
  }

  // Waiting releases the mutex.
  absl::Status FailureLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (failure_.ok()) return failure_;
    changed_.wait_until(mutex_, After(options_.name_patience),
                        [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return named_; });
    return failure_;
  }

  void Watch() {
    while (true) {
      {
        const MutexLock lock(mutex_);
        changed_.wait_until(mutex_, After(options_.watch),
                            [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ending_ || !why_.empty(); });
        if (!why_.empty()) break;
        if (ending_ || !failure_.ok()) return;
      }
      Look(/*by_watchdog=*/true);
    }
    std::string why;
    {
      const MutexLock lock(mutex_);
      why = why_;
    }
    Abort(why).IgnoreError();
  }

  // Whether the device has finished everything.
  bool Drain() {
    const SteadyPoint end = After(options_.drain);
    for (Backoff backoff; true; backoff.Sleep()) {
      Look(/*by_watchdog=*/true);  // which has ended
      const MutexLock lock(mutex_);
      if (!failure_.ok()) return false;
      if (pending_.empty()) return true;
      if (Left(end) <= absl::ZeroDuration()) return false;
    }
  }

  // Whether the communicator has ended cleanly. No other thread uses the transport any more.
  bool Finalized() {
    const SteadyPoint end = After(options_.drain);
    absl::StatusOr<bool> ready = transport_->Finalize();
    for (Backoff backoff; ready.ok() && !*ready; ready = transport_->Ready()) {
      if (Left(end) <= absl::ZeroDuration()) return false;
      backoff.Sleep();
    }
    if (!ready.ok()) return false;
    transport_->Destroy().IgnoreError();  // what remains is freed with the process
    return true;
  }

  const DeviceGroupOptions options_;
  const std::unique_ptr<DeviceTransport> transport_;

  mutable Mutex mutex_;
  std::condition_variable_any changed_;                                          // of named_ and ending_
  std::deque<std::shared_ptr<DevicePending>> pending_ ABSL_GUARDED_BY(mutex_);   // in the order of their issue
  std::deque<std::shared_ptr<DevicePending>> captured_ ABSL_GUARDED_BY(mutex_);  // likewise, since BeginCapture
  bool capturing_ ABSL_GUARDED_BY(mutex_) = false;
  bool has_graphs_ ABSL_GUARDED_BY(mutex_) = false;  // there may be graphs with its collectives
  std::string why_ ABSL_GUARDED_BY(mutex_);          // why the watchdog is to abort; empty: it is not
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  bool named_ ABSL_GUARDED_BY(mutex_) = false;  // failure_ is final
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread watchdog_;  // last: it uses the other members
};

class DeviceWork final : public Work {
 public:
  DeviceWork(std::shared_ptr<Communicator> communicator, std::shared_ptr<DevicePending> pending)
      : communicator_(std::move(communicator)), pending_(std::move(pending)) {}
  absl::Status Wait() override { return communicator_->Wait(*pending_); }
  bool done() const override { return communicator_->Done(*pending_); }

 private:
  const std::shared_ptr<Communicator> communicator_;
  const std::shared_ptr<DevicePending> pending_;
};

class DeviceGroupImpl final : public DeviceGroup {
 public:
  DeviceGroupImpl(DeviceGroupOptions options, std::unique_ptr<DeviceTransport> transport)
      : token_(at::zeros({1}, at::TensorOptions().dtype(at::kInt).device(options.device))),
        communicator_(std::make_shared<Communicator>(std::move(options), std::move(transport))) {}
  ~DeviceGroupImpl() override { communicator_->Close(); }

  int rank() const override { return communicator_->options().rank; }
  int size() const override { return communicator_->options().size; }
  c10::Device device() const override { return communicator_->options().device; }

  std::unique_ptr<Work> AllReduce(at::Tensor values) override {
    return Issue("all-reduce", DeviceKind::kAllReduce, {{std::move(values), 0}});
  }
  std::unique_ptr<Work> AllGather(std::vector<at::Tensor> wholes) override {
    return IssueEven("all-gather", DeviceKind::kAllGather, std::move(wholes));
  }
  std::unique_ptr<Work> ReduceScatter(std::vector<at::Tensor> wholes) override {
    return IssueEven("reduce-scatter", DeviceKind::kReduceScatter, std::move(wholes));
  }
  std::unique_ptr<Work> Broadcast(at::Tensor values, int root) override {
    return BroadcastShares({{std::move(values), root}});
  }
  std::unique_ptr<Work> BroadcastShares(std::vector<RankShare> shares) override {
    return Issue("broadcast", DeviceKind::kBroadcast, std::move(shares));
  }
  std::unique_ptr<Work> ReduceShares(std::vector<RankShare> shares) override {
    return Issue("reduce", DeviceKind::kReduce, std::move(shares));
  }
  std::unique_ptr<Work> Send(at::Tensor values, int to) override {
    return Issue("send", DeviceKind::kSend, {{std::move(values), to}});
  }
  std::unique_ptr<Work> Recv(at::Tensor values, int from) override {
    return Issue("receive", DeviceKind::kRecv, {{std::move(values), from}});
  }
  absl::Status Barrier() override {
    const auto issued = communicator_->Issue("barrier", {DeviceKind::kAllReduce, {{token_, 0}}});
    return issued.ok() ? communicator_->Finish(**issued) : issued.status();
  }
  absl::Status Health() override { return communicator_->Health(); }
  absl::Status BeginCapture() override { return communicator_->BeginCapture(); }
  void EndCapture() override { communicator_->EndCapture(); }
  absl::Status Launched() override { return communicator_->Launched(); }

  absl::StatusOr<std::unique_ptr<DeviceGroup>> Split(int color, DeviceGroupOptions part) override {
    absl::StatusOr<std::unique_ptr<DeviceTransport>> transport = communicator_->Split(color, part.rank);
    if (!transport.ok()) return transport.status();
    if (*transport == nullptr) return nullptr;
    return MakeDeviceGroup(std::move(part), *std::move(transport));
  }

 private:
  // Its messages are one collective: each of them alone would hold up the stream until its peer has come.
  std::unique_ptr<Work> IssueAllToAll(const at::Tensor& send, const at::Tensor& receive) override {
    std::vector<RankShare> parts;
    const int64_t each = send.numel() / size();
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank()) continue;
      parts.push_back({send.narrow(0, peer * each, each), peer});
      parts.push_back({receive.narrow(0, peer * each, each), peer});
    }
    receive.narrow(0, rank() * each, each).copy_(send.narrow(0, rank() * each, each));
    return Issue("all-to-all", DeviceKind::kAllToAll, std::move(parts));
  }

  std::unique_ptr<Work> Issue(const char* name, DeviceKind kind, std::vector<RankShare> parts) {
    auto issued = communicator_->Issue(name, {kind, std::move(parts)});
    if (!issued.ok()) return std::make_unique<FailedWork>(issued.status());
    return std::make_unique<DeviceWork>(communicator_, *std::move(issued));
  }

  std::unique_ptr<Work> IssueEven(const char* name, DeviceKind kind, std::vector<at::Tensor> wholes) {
    if (absl::Status even = CheckEven(wholes, size()); !even.ok()) return std::make_unique<FailedWork>(even);
    std::vector<RankShare> parts;
    for (at::Tensor& whole : wholes) parts.push_back({std::move(whole), 0});
    return Issue(name, kind, std::move(parts));
  }

  const at::Tensor token_;  // of barriers: zero, like every sum of it
  const std::shared_ptr<Communicator> communicator_;
};

}  // namespace

std::unique_ptr<DeviceGroup> MakeDeviceGroup(DeviceGroupOptions options, std::unique_ptr<DeviceTransport> transport) {
  return std::make_unique<DeviceGroupImpl>(std::move(options), std::move(transport));
}

}  // namespace muster::collectives
