#include "worker/collectives/nccl.h"

#include <c10/core/ScalarType.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "worker/collectives/device_group.h"
#include "worker/collectives/device_transport.h"
#include "worker/collectives/peers.h"
#include "worker/collectives/steady.h"

namespace muster::collectives {
namespace {

static_assert(NCCL_VERSION_CODE >= NCCL_VERSION(2, 26, 0), "NCCL_LAUNCH_ORDER_IMPLICIT came with 2.26");

// A rank has several communicators on one device: of the world, of its shards, of its replicas. If two ranks' kernels
// are scheduled in different orders, each may occupy the SMs that the other rank's peer waits for: a deadlock (NCCL
// user guide, "Using multiple NCCL communicators concurrently"). With this variable NCCL orders the kernels of all
// communicators on a device by the order of their launches, which is the order of issue: one thread issues for all
// groups of a rank, and an issue returns only once its kernel is launched. NCCL reads the variable at its first launch.
void OrderLaunches() {
  static const bool once = [] { return setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", /*overwrite=*/0) == 0; }();
  (void)once;
}

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

absl::Status FromCuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return absl::OkStatus();
  (void)cudaGetLastError();  // or the next check of LibTorch reports it a second time
  return absl::UnavailableError(absl::StrCat(what, ": CUDA: ", cudaGetErrorString(error)));
}

// Calls `body` with `device` as the current one. c10's guard may throw; it is used because, unlike cudaSetDevice, it
// does not create a context on the device that was current before.
template <typename Result, typename Body>
Result OnDevice(c10::DeviceIndex device, const Body& body) {
  try {
    const c10::cuda::CUDAGuard guard(device);
    return body();
  } catch (const std::exception& error) {
    return absl::UnavailableError(error.what());
  }
}

class CudaEvent final : public DeviceEvent {
 public:
  explicit CudaEvent(c10::DeviceIndex device) : device_(device) {}
  ~CudaEvent() override {
    OnDevice<absl::Status>(device_, [&] {
      return event_ == nullptr ? absl::OkStatus() : FromCuda(cudaEventDestroy(event_), "cudaEventDestroy");
    }).IgnoreError();
  }

  absl::Status Record(cudaStream_t stream) {
    if (event_ == nullptr) {
      const cudaError_t made = cudaEventCreateWithFlags(&event_, cudaEventDisableTiming);
      if (made != cudaSuccess) return FromCuda(made, "cudaEventCreate");
    }
    return FromCuda(cudaEventRecord(event_, stream), "cudaEventRecord");
  }
  absl::Status BlockStream(cudaStream_t stream) const {
    return FromCuda(cudaStreamWaitEvent(stream, event_, 0), "cudaStreamWaitEvent");
  }

  absl::StatusOr<bool> Reached() const override {
    return OnDevice<absl::StatusOr<bool>>(device_, [&]() -> absl::StatusOr<bool> {
      const cudaError_t state = cudaEventQuery(event_);
      if (state == cudaSuccess) return true;
      absl::Status status = FromCuda(state, "cudaEventQuery");
      if (state == cudaErrorNotReady) return false;
      return status;
    });
  }
  absl::Status Block() const override {
    return OnDevice<absl::Status>(device_, [&] { return BlockStream(c10::cuda::getCurrentCUDAStream(device_)); });
  }

 private:
  const c10::DeviceIndex device_;
  cudaEvent_t event_ = nullptr;
};

class NcclTransport final : public DeviceTransport {
 public:
  NcclTransport(c10::DeviceIndex device, int rank, int size, ncclComm_t communicator)
      : rank_(static_cast<size_t>(rank)),
        size_(static_cast<size_t>(size)),
        device_(device),
        stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/true, device_)),
        before_(device_),
        communicator_(communicator) {}

  absl::Status Check(const DeviceCollective& collective) const override {
    for (const RankShare& part : collective.parts) {
      if (const auto type = TypeOf(part.values); !type.ok()) return type.status();
    }
    return absl::OkStatus();
  }

  // One launch for all parts. A group call on a non-blocking communicator launches on a thread of NCCL's.
  //
  // If it fails in NCCL, the communicator is lost, also where a capture alone was at fault: NCCL keeps the result of a
  // failed launch as the asynchronous error of a non-blocking communicator, and every later call returns that (2.28:
  // groupCleanup and groupLaunch in group.cc, ncclCommEnsureReady in init.cc). So a capture that something else has
  // invalidated must not get there: recording an event on its stream fails first (cudaErrorStreamCaptureInvalidated).
  absl::StatusOr<bool> Begin(const DeviceCollective& collective) override {
    return OnDevice<absl::StatusOr<bool>>(device_, [&]() -> absl::StatusOr<bool> {
      absl::Status status = before_.Record(c10::cuda::getCurrentCUDAStream(device_));
      if (status.ok()) status = before_.BlockStream(stream_);
      if (!status.ok()) return status;
      ncclResult_t result = ncclGroupStart();
      for (size_t i = 0; i < collective.parts.size(); ++i) {
        const bool messages = collective.kind == DeviceCollective::Kind::kAllToAll;
        const DeviceCollective::Kind message =
            i % 2 == 0 ? DeviceCollective::Kind::kSend : DeviceCollective::Kind::kRecv;
        const ncclResult_t one = BeginPart(messages ? message : collective.kind, collective.parts[i]);
        if (one != ncclSuccess && one != ncclInProgress) result = one;
      }
      const ncclResult_t ended = ncclGroupEnd();
      return Result(result == ncclSuccess ? ended : result);
    });
  }

  absl::StatusOr<bool> Ready() override { return StateOf(communicator_); }

  absl::StatusOr<std::unique_ptr<DeviceEvent>> Record() override {
    using Recorded = absl::StatusOr<std::unique_ptr<DeviceEvent>>;
    return OnDevice<Recorded>(device_, [&]() -> Recorded {
      auto event = std::make_unique<CudaEvent>(device_);
      if (absl::Status status = event->Record(stream_); !status.ok()) return status;
      return event;
    });
  }

  absl::StatusOr<Part> Split(int color, int key) override {
    static_assert(kNoColor == NCCL_SPLIT_NOCOLOR);
    using Made = absl::StatusOr<Part>;
    return OnDevice<Made>(device_, [&]() -> Made {
      absl::StatusOr<bool> ready = true;
      if (!splitting_) {
        ready =
            Result(ncclCommSplit(communicator_, color, key, &part_, /*config=*/nullptr));  // this one's: non-blocking
        splitting_ = true;
      }
      // This communicator is ready first; before that the other one may not exist.
      if (ready.ok()) ready = Ready();
      if (ready.ok() && *ready && color == kNoColor) {
        splitting_ = false;
        return Part(nullptr);
      }
      if (ready.ok() && *ready) ready = StateOf(part_);
      int rank = 0, size = 0;
      if (ready.ok() && *ready) ready = Result(ncclCommUserRank(part_, &rank));
      if (ready.ok() && *ready) ready = Result(ncclCommCount(part_, &size));
      if (!ready.ok()) return ready.status();
      if (!*ready) return std::nullopt;
      splitting_ = false;
      return Part(std::make_unique<NcclTransport>(device_, rank, size, std::exchange(part_, nullptr)));
    });
  }

  absl::StatusOr<bool> Finalize() override { return Result(ncclCommFinalize(communicator_)); }
  absl::Status Destroy() override { return Result(ncclCommDestroy(communicator_)).status(); }
  void Abort() override {
    if (part_ != nullptr) ncclCommAbort(std::exchange(part_, nullptr));
    ncclCommAbort(communicator_);
  }

 private:
  // False: in progress.
  static absl::StatusOr<bool> Result(ncclResult_t result) {
    if (result == ncclSuccess) return true;
    if (result == ncclInProgress) return false;
    // Its argument is unused (nccl.h), so this is right after the communicator's end, too.
    return absl::UnavailableError(
        absl::StrCat("NCCL: ", ncclGetErrorString(result), " (", ncclGetLastError(nullptr), ")"));
  }

  static absl::StatusOr<bool> StateOf(ncclComm_t communicator) {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(communicator, &state);
    return Result(asked == ncclSuccess ? state : asked);
  }

  ncclResult_t BeginPart(DeviceCollective::Kind kind, const RankShare& part) {
    using Kind = DeviceCollective::Kind;
    std::byte* const values = static_cast<std::byte*>(part.values.data_ptr());
    const size_t count = static_cast<size_t>(part.values.numel()), each = count / size_;
    // This rank's range: NCCL works in place if it is source or destination at its place in the whole.
    std::byte* const own = values + rank_ * each * static_cast<size_t>(part.values.element_size());
    const absl::StatusOr<ncclDataType_t> type = TypeOf(part.values);
    if (!type.ok()) return ncclInvalidArgument;
    switch (kind) {
      case Kind::kAllReduce:
        return ncclAllReduce(values, values, count, *type, ncclSum, communicator_, stream_);
      case Kind::kAllGather:
        return ncclAllGather(own, values, each, *type, communicator_, stream_);
      case Kind::kReduceScatter:
        return ncclReduceScatter(values, own, each, *type, ncclSum, communicator_, stream_);
      case Kind::kBroadcast:
        return ncclBroadcast(values, values, count, *type, part.root, communicator_, stream_);
      case Kind::kReduce:
        return ncclReduce(values, values, count, *type, ncclSum, part.root, communicator_, stream_);
      case Kind::kSend:
        return ncclSend(values, count, *type, part.root, communicator_, stream_);
      case Kind::kRecv:
        return ncclRecv(values, count, *type, part.root, communicator_, stream_);
      case Kind::kAllToAll:
        break;  // of messages
    }
    return ncclInvalidArgument;
  }

  const size_t rank_, size_;
  const c10::DeviceIndex device_;
  const c10::cuda::CUDAStream stream_;
  CudaEvent before_;  // the current stream's work before the last Begin
  const ncclComm_t communicator_;
  bool splitting_ = false;
  ncclComm_t part_ = nullptr;  // while splitting_; null until NCCL has made it
};

// Whether the communicator was made by `deadline`.
ncclResult_t Join(const NcclOptions& options, const ncclUniqueId& id, SteadyPoint deadline, ncclComm_t* communicator) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;  // non-blocking, so that our deadline covers a rank that never joins
  ncclResult_t state = ncclCommInitRankConfig(communicator, options.size, id, options.rank, &config);
  while (state == ncclInProgress && Left(deadline) > absl::ZeroDuration()) {
    absl::SleepFor(absl::Milliseconds(1));
    if (const ncclResult_t asked = ncclCommGetAsyncError(*communicator, &state); asked != ncclSuccess) state = asked;
  }
  return state;
}

absl::Status CannotJoin(const NcclOptions& options, const Peers& peers, absl::string_view why) {
  return absl::UnavailableError(absl::StrCat("rank ", options.rank, " cannot join the group ", options.name, " of ",
                                             options.size, ": ", why, " (", peers.Diagnose(), ")"));
}

DeviceGroupOptions GroupOptions(const NcclOptions& options, const std::shared_ptr<Peers>& peers) {
  return {.rank = options.rank,
          .size = options.size,
          .device = c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(options.device)),
          .timeout = options.timeout,
          .count = [peers] { return peers->Issue(); },
          .diagnose = [peers] { return peers->Diagnose(); }};
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceGroup>> MakeNccl(const NcclOptions& options, KeyValue& rendezvous) {
  const SteadyPoint deadline = After(options.join_timeout);
  OrderLaunches();
  auto joined = Peers::Join(options.rank, options.size, options.name, options.host, rendezvous);
  if (!joined.ok()) return joined.status();
  const std::shared_ptr<Peers> peers = *std::move(joined);
  const auto fail = [&](absl::string_view why) { return CannotJoin(options, *peers, why); };
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
  ncclComm_t communicator = nullptr;
  try {
    DeviceGroupOptions group = GroupOptions(options, peers);
    const c10::cuda::CUDAGuard guard(group.device);
    const ncclResult_t state = Join(options, id, deadline, &communicator);
    if (state == ncclSuccess) {
      auto transport = std::make_unique<NcclTransport>(group.device.index(), options.rank, options.size, communicator);
      return MakeDeviceGroup(std::move(group), std::move(transport));
    }
    if (communicator != nullptr) ncclCommAbort(communicator);
    return fail(state == ncclInProgress ? "not all ranks came in time" : ncclGetErrorString(state));
  } catch (const std::exception& error) {
    if (communicator != nullptr) ncclCommAbort(communicator);
    return fail(error.what());
  }
}

absl::StatusOr<std::unique_ptr<DeviceGroup>> SplitNccl(DeviceGroup& world, int color, const NcclOptions& options,
                                                       KeyValue& rendezvous) {
  if (color == kNoColor) return world.Split(color, {});
  auto joined = Peers::Join(options.rank, options.size, options.name, options.host, rendezvous);
  if (!joined.ok()) return joined.status();
  const std::shared_ptr<Peers> peers = *std::move(joined);
  try {
    auto part = world.Split(color, GroupOptions(options, peers));
    if (!part.ok()) return CannotJoin(options, *peers, part.status().message());
    return part;
  } catch (const std::exception& error) {
    return CannotJoin(options, *peers, error.what());
  }
}

}  // namespace muster::collectives
