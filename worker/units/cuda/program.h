// What the programs of GPUs are made of (row_programs.h, llama_programs.h, adamw_program.h): arithmetic that is written
// once for GPUs and for tests on CPUs.
//
// A program is a struct of pointers and sizes whose operator() is the work of one block of threads of its grid. It only
// uses a block's phases, so the same source runs by the threads of a GPU (launch.cu, simt_block.h) and by a loop on a
// CPU (host_block.h), with sums in the same order. A block offers, each for i in [0, n):
//   Each(n, f)                      calls f(i)
//   Reduce(n, zero, step, join)     folds step(state, i) in every thread, joins the states in a fixed order, and
//                                   returns the result to all threads
// Index i belongs to the same thread in every phase, so a phase may read what an earlier one wrote at the same index.
// State that several threads need goes through Reduce, which is also a barrier.
//
// Their numbers: N is the dtype of GEMMs and parameters, T the wide one that all arithmetic is in: float for float,
// Bf16 and Fp16, and double for double, on CPUs only, to prove formulas.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#ifdef __CUDACC__
#define MUSTER_PROGRAM __device__
#define MUSTER_ALIAS
#else
#define MUSTER_PROGRAM
#define MUSTER_ALIAS [[gnu::may_alias]]  // LibTorch has written the numbers as its own type
#endif

namespace muster::units::programs {

inline constexpr int kWarp = 32;
inline constexpr int kRowThreads = 128, kWideThreads = 256;  // of most programs: with sums over a row, and without

struct Grid {
  int64_t x = 0, y = 1;  // blocks; y at most 65,535
};
struct Place {
  int64_t x = 0, y = 0;
};

// A bfloat16 as it is stored.
struct MUSTER_ALIAS Bf16 {
  uint16_t bits;
};

// An IEEE 754 half as it is stored.
struct MUSTER_ALIAS Fp16 {
  uint16_t bits;
};

MUSTER_PROGRAM inline float FromBits(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}
MUSTER_PROGRAM inline uint32_t BitsOf(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits;
}

// A number as it is computed with; and back, to the nearest, of two equally near the even one.
MUSTER_PROGRAM inline float Wide(float x) { return x; }
MUSTER_PROGRAM inline double Wide(double x) { return x; }
MUSTER_PROGRAM inline float Wide(Bf16 x) { return FromBits(static_cast<uint32_t>(x.bits) << 16); }
// A normal half has its exponent moved by 112; a small one is a whole number of 2^-24.
MUSTER_PROGRAM inline float Wide(Fp16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16, bits = x.bits & 0x7fffu;
  const float normal = FromBits((bits << 13) + 0x70000000u) * 0x1p-112f, small = FromBits(bits | 0x3f000000u) - 0.5f;
  return FromBits(sign | BitsOf(bits < 0x0400u ? small : normal));
}
MUSTER_PROGRAM inline void Put(float x, float& to) { to = x; }
MUSTER_PROGRAM inline void Put(double x, double& to) { to = x; }
MUSTER_PROGRAM inline void Put(float x, Bf16& to) {
  const uint32_t bits = BitsOf(x), nearest = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  to.bits = static_cast<uint16_t>(x != x ? 0x7fc0u : nearest);
}
// Adding a power of two whose last bit is worth as much as the half's rounds as the half must be rounded.
MUSTER_PROGRAM inline void Put(float x, Fp16& to) {
  const uint32_t given = BitsOf(x), bits = given & 0x7fffffffu, exponent = bits & 0x7f800000u;
  const uint32_t least = exponent > 0x38800000u ? exponent : 0x38800000u, unit = least + (13u << 23);
  const uint32_t rounded = BitsOf(FromBits(bits) + FromBits(unit)) - unit;  // in last bits
  // 65,520 and more round to infinity.
  const uint32_t nearest = bits >= 0x477ff000u ? 0x7c00u : rounded + ((least - 0x38800000u) >> 13);
  to.bits = static_cast<uint16_t>((given >> 16 & 0x8000u) | (x != x ? 0x7e00u : nearest));
}

template <typename T, int kCount>
struct Sums {
  T at[kCount];
};

// The sums over i of what term(i, sums) adds.
template <typename T, int kCount, typename Block, typename F>
MUSTER_PROGRAM Sums<T, kCount> SumOf(const Block& block, int n, const F& term) {
  return block.Reduce(
      n, Sums<T, kCount>{},
      [&](Sums<T, kCount> sums, int i) {
        term(i, sums.at);
        return sums;
      },
      [](Sums<T, kCount> a, const Sums<T, kCount>& b) {
        for (int k = 0; k < kCount; ++k) a.at[k] += b.at[k];
        return a;
      });
}

// ---- Several numbers at once ----

// Neighbors that one instruction loads or stores.
template <typename X, int kCount>
struct MUSTER_ALIAS alignas(kCount * sizeof(X)) Pack {
  X at[kCount];
};
template <int kCount, typename X>
MUSTER_PROGRAM Pack<X, kCount> Load(const X* from) {
  return *reinterpret_cast<const Pack<X, kCount>*>(from);
}
template <typename X, int kCount>
MUSTER_PROGRAM void Store(const Pack<X, kCount>& pack, X* to) {
  *reinterpret_cast<Pack<X, kCount>*>(to) = pack;
}

inline constexpr int kPack = 4;

template <typename X>
MUSTER_PROGRAM bool BeginsAPack(const X* numbers) {
  return reinterpret_cast<uintptr_t>(numbers) % (kPack * sizeof(X)) == 0;
}

// body(count, i) for numbers [i, i + count) until all of [0, n) are done, where count is an integral constant: kPack
// where all `pointers` begin a pack, else and at the end 1. For numbers that no other phase touches, since there
// another thread has i. Without sums, so that results do not depend on where tensors lie.
template <typename Block, typename Body, typename... X>
MUSTER_PROGRAM void EachPack(const Block& block, int n, const Body& body, const X*... pointers) {
  const int packs = (BeginsAPack(pointers) && ...) ? n / kPack : 0;
  block.Each(packs, [&](int i) { body(std::integral_constant<int, kPack>{}, i * kPack); });
  block.Each(n - packs * kPack, [&](int i) { body(std::integral_constant<int, 1>{}, packs * kPack + i); });
}

}  // namespace muster::units::programs
