// A copy of what a rank owns, in memory of the host that is used again for the next one: so that training goes on while
// it is written.
//
//   HostCopy copy(parts);                                       // in the background: the memory, touched
//   if (copy.fits()) parts = copy.Take(std::move(parts));       // now training may change what was copied
//
// Not thread-safe. What Take returns is valid until the next Take.
#pragma once

#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "absl/types/span.h"
#include "checkpoint/checkpoint.h"

namespace muster::trainer {

class HostCopy {
 public:
  // Of parts of that size.
  explicit HostCopy(absl::Span<const checkpoint::TensorRun> parts);
  ~HostCopy();
  HostCopy(const HostCopy&) = delete;

  // False: the host has not that much memory left, as `why` says.
  bool fits() const { return why_.empty(); }
  const std::string& why() const { return why_; }
  uint64_t bytes() const { return bytes_; }

  // The same parts, with values that are copies; by all threads of the tensor library. REQUIRES: fits(), and parts of
  // the size given.
  std::vector<checkpoint::TensorRun> Take(std::vector<checkpoint::TensorRun> parts);

 private:
  uint64_t bytes_ = 0;
  std::string why_;
  float* memory_ = nullptr;
  std::thread touch_;  // so that the first copy, too, meets no page fault
};

// Bytes that this process may still use, by the kernel and its control group.
uint64_t AvailableHostMemory();

}  // namespace muster::trainer
