#include "worker/engine/cpu_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>

#include "common/mutex.h"

namespace muster::engine {
namespace {

constexpr size_t kAlignment = 64;

// Eight size classes between powers of two: a block is at most an eighth larger than requested.
constexpr int kSteps = 8;
constexpr int kClasses = 65 * kSteps;

// Sizes are multiples of kAlignment, at least one.
int ClassOf(size_t bytes) {
  const int log = std::bit_width(bytes - 1);  // bytes <= 1 << log
  const size_t half = size_t{1} << (log - 1), step = std::max(kAlignment, half / kSteps);
  return log * kSteps + static_cast<int>((bytes - half + step - 1) / step) - 1;
}

size_t ClassBytes(size_t bytes) {
  const size_t step = std::max(kAlignment, (size_t{1} << (std::bit_width(bytes - 1) - 1)) / kSteps);
  return (bytes + step - 1) / step * step;
}

// Stored before each block, so that free needs no lookup.
struct alignas(kAlignment) Header {
  Header* next;      // in the list of free blocks
  size_t requested;  // rounded up to kAlignment
  size_t bytes;      // of the block, header not counted
  int list;
};
static_assert(sizeof(Header) == kAlignment);

class CpuAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t n) override {
    void* data = n == 0 ? nullptr : Take(n);
    return {data, data, &Delete, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Delete; }
  void copy_data(void* to, const void* from, size_t count) const override { default_copy_data(to, from, count); }

  CpuMemory use() {
    const MutexLock lock(mutex_);
    return use_;
  }

  void ResetPeak() {
    const MutexLock lock(mutex_);
    use_.peak_bytes = use_.bytes;
  }

  // Never destroyed: tensors in static storage are freed after everything else.
  static CpuAllocator& Instance() {
    static CpuAllocator* const instance = new CpuAllocator;
    return *instance;
  }

 private:
  void* Take(size_t n) {
    const size_t requested = (n + kAlignment - 1) / kAlignment * kAlignment;
    const int list = ClassOf(requested);
    const MutexLock lock(mutex_);
    Header* block = free_[list];
    if (block != nullptr) {
      free_[list] = block->next;
    } else {
      block = FromSystem(ClassBytes(requested), list);
    }
    block->requested = requested;
    use_.bytes += requested;
    use_.peak_bytes = std::max(use_.peak_bytes, use_.bytes);
    return block + 1;
  }

  Header* FromSystem(size_t bytes, int list) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto get = [&] { return static_cast<Header*>(std::aligned_alloc(kAlignment, bytes + sizeof(Header))); };
    Header* block = get();
    if (block == nullptr) {
      GiveBackFree();
      block = get();
    }
    TORCH_CHECK(block != nullptr, "can't allocate memory: ", bytes, " bytes beside ", use_.bytes, " in use");
    block->bytes = bytes;
    block->list = list;
    use_.system_bytes += bytes;
    ++use_.system_allocations;
    return block;
  }

  void GiveBackFree() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (Header*& head : free_) {
      while (head != nullptr) {
        Header* const block = head;
        head = block->next;
        use_.system_bytes -= block->bytes;
        std::free(block);
      }
    }
  }

  static void Delete(void* data) {
    if (data == nullptr) return;
    Header* const block = static_cast<Header*>(data) - 1;
    CpuAllocator& self = Instance();
    const MutexLock lock(self.mutex_);
    self.use_.bytes -= block->requested;
#if defined(__SANITIZE_ADDRESS__)  // a kept block would hide a use after free
    self.use_.system_bytes -= block->bytes;
    std::free(block);
#else
    block->next = self.free_[block->list];
    self.free_[block->list] = block;
#endif
  }

  Mutex mutex_;
  std::array<Header*, kClasses> free_ ABSL_GUARDED_BY(mutex_){};  // by size class
  CpuMemory use_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

void InstallCpuAllocator() {
  static const bool installed = [] {
    c10::SetCPUAllocator(&CpuAllocator::Instance(), /*priority=*/1);
    return true;
  }();
  (void)installed;
}

CpuMemory CpuMemoryUse() { return CpuAllocator::Instance().use(); }

void ResetCpuMemoryPeak() { CpuAllocator::Instance().ResetPeak(); }

}  // namespace muster::engine
