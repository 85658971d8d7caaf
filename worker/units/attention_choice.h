// Which of LibTorch's implementations of attention is the fastest for a model's shape on this device: found by trying
// them, because no rule says it for every GPU, length and dtype.
//
//   const AttentionChoice choice = ChooseAttention({.sequences = 8, .heads = 12, .tokens = 1024, .width = 64, ...});
//   log(choice.Describe());   // "attention by flash: flash 1.21 ms, memory-efficient 1.93 ms, ..."
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace muster::units {

struct AttentionShape {
  int64_t sequences = 1, heads = 1, tokens = 1, width = 1;  // width of one head
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
};

struct AttentionTrial {
  std::string name;
  double milliseconds = 0;  // forward and backward, the best of some
  std::string refused;      // why it is out of the question; empty: it is not
};

struct AttentionChoice {
  std::string name;  // of the fastest; empty: each was refused, and LibTorch's own choice stays
  std::vector<AttentionTrial> trials;
  std::string Describe() const;
};

// Tries flash, memory-efficient and cuDNN (on a GPU) and plain GEMMs, and makes the fastest the one that the process
// uses from now on, plain GEMMs where it cannot. Refused is what fails, and what gives other bits for equal inputs.
// Takes some steps' time and twice their memory. Not while others compute.
AttentionChoice ChooseAttention(const AttentionShape& shape);

}  // namespace muster::units
