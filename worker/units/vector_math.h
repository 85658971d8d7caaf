// Shared by loops that the compiler vectorizes.
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

// One copy of a function per generation of vector units, chosen at start. Not under a sanitizer: its run time does not
// exist yet when the choice is made.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__x86_64__)
#define MUSTER_VECTOR
#else
#define MUSTER_VECTOR __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#endif
// For callees of such a function: always inlined into it.
#define MUSTER_INLINE [[gnu::always_inline]] inline

namespace muster::units {

// A number as it is computed with, from how it is stored; and back, to the nearest, of two equally near the even one.
MUSTER_INLINE float Wide(float x) { return x; }
MUSTER_INLINE double Wide(double x) { return x; }
MUSTER_INLINE float Wide(c10::BFloat16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.x) << 16); }
// An IEEE 754 half, in arithmetic that vectorizes on every CPU. A normal one has its exponent moved by 112; of a small
// one the bits, below those of 0.5, are its value in units of 2^-24.
MUSTER_INLINE float Wide(c10::Half x) {
  const uint32_t sign = static_cast<uint32_t>(x.x & 0x8000u) << 16, bits = x.x & 0x7fffu;
  // 2^-112 in place of a moved exponent, so that infinities and NaN keep theirs.
  const float normal = std::bit_cast<float>((bits << 13) + 0x70000000u) * 0x1p-112f;
  const float small = std::bit_cast<float>(bits | 0x3f000000u) - 0.5f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(bits < 0x0400u ? small : normal));
}
MUSTER_INLINE void Put(float x, float& to) { to = x; }
MUSTER_INLINE void Put(double x, double& to) { to = x; }
MUSTER_INLINE void Put(float x, c10::BFloat16& to) {
  const uint32_t bits = std::bit_cast<uint32_t>(x), nearest = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  to.x = static_cast<uint16_t>(x != x ? 0x7fc0u : nearest);
}
// Adding a power of two whose last bit is worth as much as the half's rounds as the half must be rounded.
MUSTER_INLINE void Put(float x, c10::Half& to) {
  const uint32_t given = std::bit_cast<uint32_t>(x), bits = given & 0x7fffffffu;
  const float magnitude = std::bit_cast<float>(bits);
  // From 2^-14 on a half has 10 bits after its first one, below it the last is worth 2^-24.
  const uint32_t exponent = std::max(bits & 0x7f800000u, 0x38800000u);
  const uint32_t unit = exponent + (13u << 23);
  const uint32_t rounded = std::bit_cast<uint32_t>(magnitude + std::bit_cast<float>(unit)) - unit;  // in last bits
  const uint32_t nearest = rounded + ((exponent - 0x38800000u) >> 13);
  const uint32_t finite = bits >= 0x477ff000u ? 0x7c00u : nearest;  // 65,520 and more round to infinity
  to.x = static_cast<uint16_t>((given >> 16 & 0x8000u) | (x != x ? 0x7e00u : finite));
}

// Ordered as |x| is, NaN last.
MUSTER_INLINE uint32_t Magnitude(float x) { return std::bit_cast<uint32_t>(x) & 0x7fffffffu; }

MUSTER_INLINE double Exp(double x) { return std::exp(x); }

// Cephes' expf: x = n ln 2 + r, a polynomial in r; 1e-7 relative. Zero below -87, where denormal numbers begin, with
// which GEMMs are slow.
MUSTER_INLINE float Exp(float given) {
  constexpr float kRound = 12582912.0f;  // 1.5 x 2^23: adding it leaves the nearest integer in the low bits
  const float x = std::min(std::max(given, -87.0f), 88.0f);
  const float shifted = x * 1.44269504f + kRound, n = shifted - kRound;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const uint32_t power = (std::bit_cast<uint32_t>(shifted) + 127u) << 23;  // the constant's own low bits are zero
  return given < -87.0f ? 0.0f : p * std::bit_cast<float>(power);
}

}  // namespace muster::units
