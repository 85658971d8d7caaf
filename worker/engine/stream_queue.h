// The queue for devices with streams: every op is issued at once, and the device orders them. Calls to the
// device go through a small interface, so everything else here also runs in tests on CPUs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/engine/queue.h"
#include "worker/engine/stream_driver.h"

namespace muster::engine {

// The streams of one device. Errors are the device's, as Status. Not thread-safe.
class Streams {
 public:
  // A point in a stream. Later marks are greater.
  using Mark = uint64_t;

  virtual ~Streams() = default;
  // Whatever is issued from now on, on any stream, runs after everything issued before, except copies.
  virtual absl::Status Begin() = 0;
  // Issues what `work` does to `stream`, after `after`, and returns the mark that follows it. `work` runs before Run
  // returns.
  virtual absl::StatusOr<Mark> Run(Stream stream, absl::Span<const Mark> after, absl::FunctionRef<void()> work) = 0;
  // Whether the device has reached the mark. Does not wait.
  virtual absl::StatusOr<bool> Reached(Mark mark) = 0;
  // `mark` and all marks before it are not used any more.
  virtual void Forget(Mark mark) = 0;
  // Issues what `first` does to kCompute and what `rest` does to kCopyStream, both after all that kCompute holds. Begin
  // does not wait for `rest`; AfterCopy makes kCompute wait for it. Both run before Copy returns.
  virtual absl::Status Copy(absl::FunctionRef<void()> first, absl::FunctionRef<void()> rest) = 0;
  virtual absl::Status AfterCopy() = 0;
  // Whether the device has ended the last Copy. On any thread, while no Copy is being issued.
  virtual absl::StatusOr<bool> Copied() = 0;
  // Whether a wait for a collective holds up the host, and not only a stream.
  virtual bool hold_up_host() const { return false; }

  // As StreamDriver's, with all streams taking part. Marks of a capture order what it captures and are not used after
  // it. Only if captures().
  virtual bool captures() const { return false; }
  virtual absl::Status BeginCapture() { return absl::UnimplementedError("these streams have no graphs"); }
  virtual absl::StatusOr<std::unique_ptr<Graph>> EndCapture() {
    return absl::UnimplementedError("these streams have no graphs");
  }
};

std::unique_ptr<Streams> MakeEventStreams(std::unique_ptr<StreamDriver> driver);

// Finish waits for the device by asking for the earliest op that is not done, so that the progress page names the op at
// which a device stands.
std::unique_ptr<Queue> MakeStreamQueue(const QueueOptions& options, std::unique_ptr<Streams> streams);

// On the host, in order: for tests of what devices do.
std::unique_ptr<Streams> MakeInlineStreams();

#ifdef MUSTER_CUDA
// The current stream for kCompute, streams of high priority for the others. FailedPrecondition: no device.
absl::StatusOr<std::unique_ptr<Streams>> MakeCudaStreams(int device);
#endif

}  // namespace muster::engine
