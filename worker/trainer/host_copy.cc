#include "worker/trainer/host_copy.h"

#include <ATen/Parallel.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <limits>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "common/failpoint.h"

namespace muster::trainer {
namespace {

constexpr uint64_t kChunkBytes = 1 << 20;  // of a parallel copy task
constexpr uint64_t kAlignBytes = 64;       // of a run's copy
constexpr uint64_t kPage = 4096;

uint64_t FirstNumber(const char* path, uint64_t otherwise) {
  std::ifstream in(path);
  uint64_t number = 0;
  return in >> number ? number : otherwise;
}

struct Chunk {
  std::byte* to;
  const std::byte* from;
  uint64_t bytes;
};

uint64_t Taken(const checkpoint::TensorRun& run) {
  const uint64_t bytes = run.values.size() * sizeof(float) + run.bf16.size() * sizeof(uint16_t);
  return (bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes;
}

// Bytes that this process may still use, by the kernel and its control group.
uint64_t AvailableHostMemory() {
  uint64_t available = std::numeric_limits<uint64_t>::max();
  std::ifstream info("/proc/meminfo");
  std::string word;
  while (info >> word) {
    uint64_t kilobytes = 0;
    if (word == "MemAvailable:" && info >> kilobytes) available = kilobytes << 10;
  }
  const uint64_t none = std::numeric_limits<uint64_t>::max();
  const uint64_t most = FirstNumber("/sys/fs/cgroup/memory.max", none);  // "max": no number
  const uint64_t used = FirstNumber("/sys/fs/cgroup/memory.current", 0);
  if (most != none) available = std::min(available, most - std::min(most, used));
  return available;
}

}  // namespace

HostCopy::HostCopy(absl::Span<const checkpoint::TensorRun> runs) {
  for (const checkpoint::TensorRun& run : runs) bytes_ += Taken(run);
  if (bytes_ == 0) return;
  // Leave a tenth of the available memory for the rest of training.
  const uint64_t available = AvailableHostMemory();
  if (bytes_ > available - available / 10) {
    why_ = absl::StrCat("a host copy needs ", FormatBytes(bytes_), ", but only ", FormatBytes(available),
                        " are available");
    return;
  }
  void* const memory = failpoint::Hit("trainer.host_copy.allocate") != 0
                           ? MAP_FAILED
                           : mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    why_ = absl::StrCat("the host refused to allocate a copy of ", FormatBytes(bytes_));
    return;
  }
  madvise(memory, bytes_, MADV_HUGEPAGE);
  memory_ = static_cast<std::byte*>(memory);
  touch_ = std::thread([bytes = static_cast<volatile char*>(memory), size = bytes_] {
    for (uint64_t at = 0; at < size; at += kPage) bytes[at] = 0;
  });
}

HostCopy::~HostCopy() {
  if (touch_.joinable()) touch_.join();
  if (memory_ != nullptr) munmap(memory_, bytes_);
}

std::vector<checkpoint::TensorRun> HostCopy::Take(std::vector<checkpoint::TensorRun> runs) {
  if (touch_.joinable()) touch_.join();
  std::vector<Chunk> chunks;
  std::byte* to = memory_;
  const auto take = [&](auto& values) {
    using T = typename std::remove_reference_t<decltype(values)>::value_type;
    const uint64_t bytes = values.size() * sizeof(T);
    const auto* const from = reinterpret_cast<const std::byte*>(values.data());
    for (uint64_t at = 0; at < bytes; at += kChunkBytes) {
      chunks.push_back({to + at, from + at, std::min<uint64_t>(kChunkBytes, bytes - at)});
    }
    values = absl::MakeSpan(reinterpret_cast<T*>(to), values.size());
  };
  for (checkpoint::TensorRun& run : runs) {
    const uint64_t taken = Taken(run);
    if (run.bf16.empty()) {
      take(run.values);
    } else {
      take(run.bf16);
    }
    to += taken;
  }
  at::parallel_for(0, static_cast<int64_t>(chunks.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) std::memcpy(chunks[i].to, chunks[i].from, chunks[i].bytes);
  });
  return runs;
}

}  // namespace muster::trainer
