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

// Which rows of a sample those of a tensor are, where it does not have all of them: `size` from row `begin` on, then as
// many from begin + apart on, and so on.
//
//   {.begin = 2, .size = 3, .apart = 10}            // 2 3 4, 12 13 14, 22 ...
//   {.begin = p, .size = n, .apart = t, .width = t} // attention of n queries from token p on, of all heads, to a part
//                                                   // of the keys of t tokens
struct DropoutRows {
  int64_t begin = 0;
  int64_t size = 0;  // 0: all rows
  int64_t apart = 0;
  int64_t width = 0;  // elements of a row of the sample, of which the tensor's are the first; 0: the tensor's own

  // With what zeros stand for, of a tensor with `rows` rows of a sample, of `elements` each.
  DropoutRows Of(int64_t rows, int64_t elements) const {
    return {.begin = size == 0 ? 0 : begin,
            .size = size == 0 ? rows : size,
            .apart = apart,
            .width = width == 0 ? elements : width};
  }
  // Of the sample's elements, the first of the tensor's row `row`. REQUIRES: size and width are not 0.
  int64_t FirstElement(int64_t row) const { return (begin + row / size * apart + row % size) * width; }
};

// A place in the model at one step.
struct DropoutPlace {
  double rate = 0;  // 0: nothing is dropped
  uint64_t seed = 0;
  uint32_t step = 0, place = 0;
  int64_t first_sample = 0;   // of the step's samples over all ranks: that of the tensor's first row
  int64_t first_element = 0;  // of a sample: what rows are counted from, in a share of the heads
  DropoutRows rows = {};
  // Undefined, or int64 [1] on the device of what is dropped: read there in place of `step`, so that the same work can
  // be replayed in another step.
  at::Tensor step_on_device = {};

  bool on() const { return rate > 0; }
  uint32_t least() const;                                             // word that is kept
  float scale() const { return static_cast<float>(1 / (1 - rate)); }  // of what is kept
};

// out[i] = 0, or 1 / (1 - rate): the factors of elements [first, first + n) of the place's sample `sample`, counted
// from first_sample and first_element, whatever `rows` the place has.
void DropoutFactors(const DropoutPlace& place, int64_t sample, int64_t first, int64_t n, float* out);

// Multiplies rows [first_row, first_row + rows) of the place by their factors, in place: `t` [rows, width], contiguous
// or whole rows apart, of any floating dtype; `tokens` of them belong to a sample. On a CPU or a GPU.
void DropRows(const DropoutPlace& place, int64_t tokens, int64_t first_row, const at::Tensor& t);

// The factors of `samples` samples, of `rows` rows of `width` elements each, fp32 [samples x rows, width] on `device`.
at::Tensor DropoutFactors(const DropoutPlace& place, int64_t samples, int64_t rows, int64_t width, at::Device device);

// y [samples, tokens, width] times the place's factors, differentiable and of y's dtype; y itself where nothing is
// dropped.
at::Tensor Dropped(const DropoutPlace& place, const at::Tensor& y);

}  // namespace muster::units
