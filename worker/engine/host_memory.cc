#include "worker/engine/host_memory.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "worker/engine/failed.h"

#ifdef MUSTER_CUDA
#include <cuda_runtime_api.h>
#endif

namespace muster::engine {
namespace {

size_t PageBytes() {
  static const size_t bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

// A file without a name. -1 and errno.
int OpenUnnamed(const std::string& folder) {
  const int file = open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR)) return file;
  std::string path = absl::StrCat(folder, "/.offload-XXXXXX");
  const int named = mkostemp(path.data(), O_CLOEXEC);
  if (named >= 0) unlink(path.c_str());
  return named;
}

// Its space is reserved: a write to a mapping of a full disk would end the process.
void* MapFile(const std::string& folder, size_t bytes) {
  const int file = OpenUnnamed(folder);
  if (file < 0) {
    throw Failed{
        absl::InvalidArgumentError(absl::StrCat("offload.to: no file can be made in ", folder, ": ", strerror(errno)))};
  }
  const absl::Cleanup close_it = [file] { close(file); };
  if (const int error = posix_fallocate(file, 0, static_cast<off_t>(bytes)); error != 0) {
    throw Failed{absl::ResourceExhaustedError(
        absl::StrCat("offload.to: no room for ", FormatBytes(bytes), " in ", folder, ": ", strerror(error)))};
  }
  return mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
}

void PageLock(void* data, size_t bytes) {
#ifdef MUSTER_CUDA
  // What the driver refuses stays as it is: copies are slower, and right. The error would show up in LibTorch's next
  // check.
  if (cudaHostRegister(data, bytes, cudaHostRegisterDefault) != cudaSuccess) (void)cudaGetLastError();
#endif
}
void PageUnlock(void* data) {
#ifdef MUSTER_CUDA
  if (cudaHostUnregister(data) != cudaSuccess) (void)cudaGetLastError();
#endif
}

}  // namespace

at::Tensor HostMemory::Zeros(int64_t elements, at::ScalarType dtype) {
  const at::TensorOptions options(dtype);
  const size_t used = static_cast<size_t>(elements) * at::elementSize(dtype);
  if (used == 0) return at::zeros({0}, options);
  const size_t bytes = (used + PageBytes() - 1) / PageBytes() * PageBytes();
  void* const data = is_file() ? MapFile(folder_, bytes)
                               : mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    throw Failed{absl::ResourceExhaustedError(
        absl::StrCat("offload: no ", FormatBytes(bytes), " of host memory: ", strerror(errno)))};
  }
  const bool locks = page_locked_ && !is_file();
  if (locks) PageLock(data, bytes);
  bytes_ += used;
  return at::from_blob(
      data, {elements},
      [bytes, locks](void* blob) {
        if (locks) PageUnlock(blob);
        munmap(blob, bytes);
      },
      options);
}

void HostMemory::Expect(const at::Tensor& soon) const {
  if (!is_file() || soon.numel() == 0) return;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(soon.const_data_ptr()), first = begin / PageBytes() * PageBytes();
  (void)madvise(reinterpret_cast<void*>(first), begin + soon.nbytes() - first, MADV_WILLNEED);
}

void HostMemory::Evict(const at::Tensor& used) const {
  if (!is_file() || used.numel() == 0) return;
  const uintptr_t page = PageBytes(), begin = reinterpret_cast<uintptr_t>(used.const_data_ptr());
  const uintptr_t first = (begin + page - 1) / page * page, end = (begin + used.nbytes()) / page * page;
  if (first >= end) return;
  void* const pages = reinterpret_cast<void*>(first);
  // Advice: where it is not followed, the kernel reclaims the pages when it needs them.
  (void)msync(pages, end - first, MS_ASYNC);
  (void)madvise(pages, end - first, MADV_DONTNEED);
}

}  // namespace muster::engine
