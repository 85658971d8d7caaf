#ifdef MUSTER_CUDA

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <deque>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/engine/stream_queue.h"

namespace muster::engine {
namespace {

absl::Status Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(what, ": CUDA: ", cudaGetErrorString(error)));
}

// Events are used again: a step makes as many marks as the one before.
class CudaStreams final : public Streams {
 public:
  explicit CudaStreams(c10::DeviceIndex device) : device_(device) {
    streams_.push_back(c10::cuda::getCurrentCUDAStream(device));
    while (streams_.size() < kStreams) {
      streams_.push_back(c10::cuda::getStreamFromPool(/*isHighPriority=*/true, device));
    }
  }
  ~CudaStreams() override {
    for (const cudaEvent_t event : events_) cudaEventDestroy(event);
    for (const cudaEvent_t event : free_) cudaEventDestroy(event);
  }

  // Each stream waits for the ends of all: two marks a stream would do, but this is once a step.
  absl::Status Begin() override {
    std::array<Mark, kStreams> ends{};
    for (size_t s = 0; s < kStreams; ++s) {
      const absl::StatusOr<Mark> mark = Record(s);
      if (!mark.ok()) return mark.status();
      ends[s] = *mark;
    }
    for (size_t s = 0; s < kStreams; ++s) {
      if (absl::Status status = Wait(s, ends); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Mark> Run(Stream stream, absl::Span<const Mark> after, absl::FunctionRef<void()> work) override {
    const size_t s = static_cast<size_t>(stream);
    if (absl::Status status = Wait(s, after); !status.ok()) return status;
    {
      const c10::cuda::CUDAStreamGuard guard(streams_[s]);
      work();
    }
    return Record(s);
  }

  absl::StatusOr<bool> Reached(Mark mark) override {
    const cudaError_t asked = cudaEventQuery(EventOf(mark));
    if (asked == cudaErrorNotReady) {
      cudaGetLastError();  // it is an answer, and must not be taken for the error of a later call
      return false;
    }
    if (absl::Status status = Check(asked, "waiting for the device"); !status.ok()) return status;
    return true;
  }

  void Forget(Mark mark) override {
    for (; first_ <= mark && !events_.empty(); ++first_) {
      free_.push_back(events_.front());
      events_.pop_front();
    }
  }

 private:
  cudaEvent_t EventOf(Mark mark) const { return events_[mark - first_]; }

  absl::StatusOr<Mark> Record(size_t stream) {
    if (free_.empty()) {
      cudaEvent_t event = nullptr;
      if (absl::Status s = Check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event"); !s.ok())
        return s;
      free_.push_back(event);
    }
    const cudaError_t recorded = cudaEventRecord(free_.back(), streams_[stream].stream());
    if (absl::Status s = Check(recorded, "recording an event"); !s.ok()) return s;
    events_.push_back(free_.back());
    free_.pop_back();
    return first_ + events_.size() - 1;
  }

  absl::Status Wait(size_t stream, absl::Span<const Mark> marks) {
    for (const Mark mark : marks) {
      const cudaError_t waits = cudaStreamWaitEvent(streams_[stream].stream(), EventOf(mark), 0);
      if (absl::Status s = Check(waits, "ordering two streams"); !s.ok()) return s;
    }
    return absl::OkStatus();
  }

  const c10::DeviceIndex device_;
  std::vector<c10::cuda::CUDAStream> streams_;  // by Stream
  std::deque<cudaEvent_t> events_;              // by mark, from first_ on
  Mark first_ = 0;
  std::vector<cudaEvent_t> free_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Streams>> MakeCudaStreams(int device) {
  try {
    const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
    return std::make_unique<CudaStreams>(static_cast<c10::DeviceIndex>(device));
  } catch (const std::exception& error) {
    return absl::FailedPreconditionError(absl::StrCat("no CUDA streams: ", error.what()));
  }
}

}  // namespace muster::engine

#endif  // MUSTER_CUDA
