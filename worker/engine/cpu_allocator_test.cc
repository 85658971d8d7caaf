#include "worker/engine/cpu_allocator.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

namespace muster::engine {
namespace {

uint64_t Rounded(uint64_t bytes) { return (bytes + 63) / 64 * 64; }

TEST(CpuAllocator, CountsLiveTensorsAndTheirPeak) {
  InstallCpuAllocator();
  const CpuMemory before = CpuMemoryUse();
  {
    const at::Tensor a = at::empty({1000}, at::kFloat), b = at::empty({3}, at::kFloat);
    EXPECT_EQ(CpuMemoryUse().bytes - before.bytes, Rounded(4000) + 64);
  }
  EXPECT_EQ(CpuMemoryUse().bytes, before.bytes);
  EXPECT_GE(CpuMemoryUse().peak_bytes, before.bytes + Rounded(4000) + 64);
  ResetCpuMemoryPeak();
  EXPECT_EQ(CpuMemoryUse().peak_bytes, before.bytes);
}

TEST(CpuAllocator, EverySizeIsAlignedWholeAndApart) {
  InstallCpuAllocator();
  c10::Allocator& allocator = *c10::GetCPUAllocator();
  std::mt19937 random(11);
  struct Held {
    c10::DataPtr data;
    size_t bytes;
    unsigned char fill;
  };
  std::vector<Held> held;
  for (int i = 0; i < 3000; ++i) {
    if (!held.empty() && random() % 2 == 0) {
      const size_t at = random() % held.size();
      const auto* bytes = static_cast<const unsigned char*>(held[at].data.get());
      // What was written is still there: no two live blocks overlap, none is smaller than asked for.
      ASSERT_EQ(bytes[0], held[at].fill);
      ASSERT_EQ(bytes[held[at].bytes - 1], held[at].fill);
      ASSERT_EQ(bytes[held[at].bytes / 2], held[at].fill);
      std::swap(held[at], held.back());
      held.pop_back();
      continue;
    }
    const size_t bytes = 1 + random() % (size_t{1} << (1 + random() % 20));
    Held h{allocator.allocate(bytes), bytes, static_cast<unsigned char>(random())};
    ASSERT_EQ(reinterpret_cast<uintptr_t>(h.data.get()) % 64, 0u) << bytes;
    std::memset(h.data.get(), h.fill, bytes);
    held.push_back(std::move(h));
  }
}

#if !defined(__SANITIZE_ADDRESS__)  // there every block goes back at once, and too much ends the process
TEST(CpuAllocator, WhatWasFreedServesTheSameSizeAgain) {
  InstallCpuAllocator();
  for (const int64_t n : {1, 16, 17, 1000, 70'001, 3'000'000}) {
    void* first = nullptr;
    {
      const at::Tensor t = at::empty({n}, at::kFloat);
      first = t.mutable_data_ptr();
    }
    const uint64_t asked = CpuMemoryUse().system_allocations;
    const at::Tensor t = at::empty({n}, at::kFloat);
    EXPECT_EQ(t.mutable_data_ptr(), first) << n;
    EXPECT_EQ(CpuMemoryUse().system_allocations, asked) << n;
  }
}

TEST(CpuAllocator, TooMuchIsAnErrorThatSaysSo) {
  InstallCpuAllocator();
  try {
    const c10::DataPtr data = c10::GetCPUAllocator()->allocate(size_t{1} << 60);
    FAIL() << "a machine with an exbibyte";
  } catch (const c10::Error& e) {
    EXPECT_NE(std::string(e.what()).find("can't allocate memory"), std::string::npos);
  }
}
#endif

TEST(CpuAllocator, NothingIsNotAnAllocation) {
  InstallCpuAllocator();
  const CpuMemory before = CpuMemoryUse();
  const at::Tensor t = at::empty({0}, at::kFloat);
  EXPECT_EQ(CpuMemoryUse().bytes, before.bytes);
}

TEST(CpuAllocator, ThreadsMayFreeWhatOthersAllocated) {
  InstallCpuAllocator();
  const uint64_t before = CpuMemoryUse().bytes;
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < 200; ++i) tensors.push_back(at::empty({i * 100 + 1}, at::kFloat));
  std::vector<std::thread> threads;
  for (int k = 0; k < 4; ++k) {
    threads.emplace_back([k, &tensors] {
      for (size_t i = static_cast<size_t>(k); i < tensors.size(); i += 4) {
        tensors[i] = at::empty({static_cast<int64_t>(i) + 1}, at::kFloat);
        tensors[i].reset();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(CpuMemoryUse().bytes, before);
}

}  // namespace
}  // namespace muster::engine
