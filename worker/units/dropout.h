// Dropout (Srivastava et al. 2014): in training a share of values becomes zero, and the rest is divided by what is left
// of 1, as torch.nn.Dropout. Which values is a function of (seed, step, sample, place, element), never of a generator's
// state: equal under recomputation and resume, for every strategy, microbatch and number of ranks. Bits are Philox's
// (common/philox.h): value `element` of a sample takes word element % 4 of
//   Philox(seed ^ kDropoutKey, {low word of element / 4, sample + 2^20 * its high word, step, place})
// and is kept if the word is at least rate * 2^32.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace muster::units {

inline constexpr uint64_t kDropoutKey = 0x64726f706f757421;

// A place in the model at one step.
struct DropoutPlace {
  double rate = 0;  // 0: nothing is dropped
  uint64_t seed = 0;
  uint32_t step = 0, place = 0;
  int64_t first_sample = 0;   // of the step's samples over all ranks: that of the tensor's first row
  int64_t first_element = 0;  // of a sample: number of the tensor's first one, of a share of the heads
  // Undefined, or int64 [1] on the device of what is dropped: read there in place of `step`, so that the same work can
  // be replayed in another step.
  at::Tensor step_on_device = {};

  bool on() const { return rate > 0; }
  uint32_t least() const;                                             // word that is kept
  float scale() const { return static_cast<float>(1 / (1 - rate)); }  // of what is kept
};

// out[i] = 0, or 1 / (1 - rate): the factors of elements [first, first + n) of the place's sample `sample`, counted
// from first_sample.
void DropoutFactors(const DropoutPlace& place, int64_t sample, int64_t first, int64_t n, float* out);

// Multiplies rows [first_row, first_row + rows) of the place by their factors, in place: `t` [rows, width], contiguous
// or whole rows apart, of any floating dtype; a sample has `tokens` rows. On a CPU or a GPU.
void DropRows(const DropoutPlace& place, int64_t tokens, int64_t first_row, const at::Tensor& t);

// The factors of `samples` samples of `elements` each, fp32 [samples, elements] on `device`.
at::Tensor DropoutFactors(const DropoutPlace& place, int64_t samples, int64_t elements, at::Device device);

// y [samples, tokens, width] times the place's factors, differentiable and of y's dtype; y itself where nothing is
// dropped.
at::Tensor Dropped(const DropoutPlace& place, const at::Tensor& y);

}  // namespace muster::units
