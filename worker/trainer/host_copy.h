// A host-memory copy of a rank's owned state, so that training continues while a thread writes the checkpoint. The
// buffer is reused for each checkpoint.
//
//   HostCopy copy(runs);                                 // allocates and faults in the pages in the background
//   if (copy.fits()) runs = copy.Take(std::move(runs));  // training may now change the originals
//
// Not thread-safe. What Take returns is valid until the next Take.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "absl/types/span.h"
#include "checkpoint/checkpoint.h"

namespace muster::trainer {

class HostCopy {
 public:
  // Allocates for runs of this total size.
  explicit HostCopy(absl::Span<const checkpoint::TensorRun> runs);
  ~HostCopy();
  HostCopy(const HostCopy&) = delete;

  // False: the host lacks the memory; `why` says how much.
  bool fits() const { return why_.empty(); }
  const std::string& why() const { return why_; }
  uint64_t bytes() const { return bytes_; }

  // Returns the same runs with copied values; copies with all of LibTorch's threads. REQUIRES: fits(), and runs of
  // the constructor's size.
  std::vector<checkpoint::TensorRun> Take(std::vector<checkpoint::TensorRun> runs);

 private:
  uint64_t bytes_ = 0;
  std::string why_;
  std::byte* memory_ = nullptr;
  std::thread touch_;  // so that the first copy, too, meets no page fault
};

}  // namespace muster::trainer
