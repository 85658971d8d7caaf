#ifdef MUSTER_CUDA

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/engine/stream_queue.h"

namespace muster::engine {
namespace {

absl::Status Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return absl::OkStatus();
  (void)cudaGetLastError();  // or the next check of LibTorch reports it a second time
  return absl::InternalError(absl::StrCat(what, ": CUDA: ", cudaGetErrorString(error)));
}

template <typename F>
absl::Status FromThrown(const char* what, F&& body) {
  try {
    body();
    return absl::OkStatus();
  } catch (const c10::Error& error) {
    (void)cudaGetLastError();
    return absl::InternalError(absl::StrCat(what, ": ", error.what_without_backtrace()));
  }
}

class CudaGraph final : public Graph {
 public:
  explicit CudaGraph(std::unique_ptr<at::cuda::CUDAGraph> graph) : graph_(std::move(graph)) {}
  absl::Status Launch() override {
    return FromThrown("launching a graph", [&] { graph_->replay(); });
  }

 private:
  const std::unique_ptr<at::cuda::CUDAGraph> graph_;
};

class CudaDriver final : public StreamDriver {
 public:
  explicit CudaDriver(c10::DeviceIndex device)
      : device_(device), capture_stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device)) {
    streams_.push_back(c10::cuda::getCurrentCUDAStream(device));
    while (streams_.size() < kStreams) {
      streams_.push_back(c10::cuda::getStreamFromPool(/*isHighPriority=*/true, device));
    }
    streams_.push_back(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device));
  }

  absl::StatusOr<Event> MakeEvent() override {
    cudaEvent_t event = nullptr;
    absl::Status made = Check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event");
    if (!made.ok()) return made;
    return event;
  }
  void DestroyEvent(Event event) override { cudaEventDestroy(static_cast<cudaEvent_t>(event)); }
  absl::Status Record(Event event, Stream stream) override {
    return Check(cudaEventRecord(static_cast<cudaEvent_t>(event), StreamOf(stream).stream()), "recording an event");
  }
  absl::Status Wait(Stream stream, Event event) override {
    return Check(cudaStreamWaitEvent(StreamOf(stream).stream(), static_cast<cudaEvent_t>(event), 0),
                 "ordering two streams");
  }
  absl::StatusOr<bool> Query(Event event) override {
    const c10::cuda::CUDAGuard guard(device_);
    const cudaError_t asked = cudaEventQuery(static_cast<cudaEvent_t>(event));
    if (asked == cudaErrorNotReady) {
      (void)cudaGetLastError();  // it is an answer, and must not be taken for the error of a later call
      return false;
    }
    if (absl::Status status = Check(asked, "waiting for the device"); !status.ok()) return status;
    return true;
  }
  void With(Stream stream, absl::FunctionRef<void()> work) override {
    const c10::cuda::CUDAStreamGuard guard(StreamOf(stream));
    work();
  }

  // In the mode of one thread: others, as watchdogs and autograd's, may go on with what this one may not do. Not on
  // LibTorch's default stream, which cannot be captured.
  absl::Status BeginCapture() override {
    graph_ = std::make_unique<at::cuda::CUDAGraph>();
    pool_ = at::cuda::graph_pool_handle();
    absl::Status begun = FromThrown("beginning a capture", [&] {
      c10::cuda::device_synchronize();
      c10::cuda::CUDACachingAllocator::emptyCache();
      const c10::cuda::CUDAStreamGuard guard(capture_stream_);
      graph_->capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
    });
    capturing_ = begun.ok();
    if (!begun.ok()) Discard();
    return begun;
  }

  absl::StatusOr<std::unique_ptr<Graph>> EndCapture() override {
    const absl::Status ended = FromThrown("capturing a graph", [&] {
      const c10::cuda::CUDAStreamGuard guard(capture_stream_);
      graph_->capture_end();
    });
    capturing_ = false;
    if (ended.ok()) return std::make_unique<CudaGraph>(std::move(graph_));
    Discard();
    return ended;
  }

 private:
  const c10::cuda::CUDAStream& StreamOf(Stream stream) const {
    return capturing_ && stream == Stream::kCompute ? capture_stream_ : streams_[static_cast<size_t>(stream)];
  }

  // CUDAGraph throws before it ends the capture for the allocators, and they hold a pointer to it; so it
  // is never deleted. An engine captures no more after a failure.
  void Discard() {
    FromThrown("", [&] {
      c10::cuda::CUDACachingAllocator::endAllocateToPool(device_, pool_);
      c10::cuda::CUDACachingAllocator::releasePool(device_, pool_);
    }).IgnoreError();
    FromThrown("", [&] {
      at::getHostAllocator(at::kCUDA)->end_allocate_to_pool(pool_);
      at::getHostAllocator(at::kCUDA)->release_pool(pool_);
    }).IgnoreError();
    (void)graph_.release();
  }

  const c10::DeviceIndex device_;
  const c10::cuda::CUDAStream capture_stream_;
  std::vector<c10::cuda::CUDAStream> streams_;  // by Stream, and kCopyStream
  bool capturing_ = false;
  std::unique_ptr<at::cuda::CUDAGraph> graph_;  // while capturing_
  c10::MempoolId_t pool_{0, 0};                 // of the last capture
};

}  // namespace

absl::StatusOr<std::unique_ptr<Streams>> MakeCudaStreams(int device) {
  try {
    const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
    return MakeEventStreams(std::make_unique<CudaDriver>(static_cast<c10::DeviceIndex>(device)));
  } catch (const std::exception& error) {
    return absl::FailedPreconditionError(absl::StrCat("no CUDA streams: ", error.what()));
  }
}

}  // namespace muster::engine

#endif  // MUSTER_CUDA
