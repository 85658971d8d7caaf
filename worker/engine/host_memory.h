// Memory of the host for what a job offloads, beside the allocator that has everything else, so that both tiers are
// counted apart also where the device is a CPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace muster::engine {

class HostMemory {
 public:
  // `folder`: not empty: the memory is files there without a name, which end with their tensors. `page_locked`: known
  // to the GPU's driver, so that copies need not wait; not that of files.
  HostMemory(std::string folder, bool page_locked) : folder_(std::move(folder)), page_locked_(page_locked) {}

  // Zeros that begin at a page. The disk's space is reserved. Throws Failed, ResourceExhausted: neither memory nor disk
  // has room; InvalidArgument: no file can be made in the folder.
  at::Tensor Zeros(int64_t elements, at::ScalarType dtype);

  // Of a file: what `soon` has begins to come into memory, as fast as the disk reads; a page that is only touched waits
  // for the disk alone. Elsewhere nothing.
  void Expect(const at::Tensor& soon) const;

  // Of a file: what `used` has is written back and leaves memory, so that a pass over all of it needs no more memory
  // than a part. Elsewhere nothing.
  void Evict(const at::Tensor& used) const;

  uint64_t bytes() const { return bytes_; }  // of all tensors so far
  bool is_file() const { return !folder_.empty(); }

 private:
  const std::string folder_;
  const bool page_locked_;
  uint64_t bytes_ = 0;
};

}  // namespace muster::engine
