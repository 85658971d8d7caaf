// Finds the fastest of LibTorch's implementations of attention for a model's shape on this device by timing them,
// because no rule covers every GPU, length and dtype.
//
//   const AttentionChoice choice = ChooseAttention({.sequences = 8, .heads = 12, .tokens = 1024, .width = 64, ...});
//   log(choice.Describe());   // "attention by flash: flash 1.21 ms, memory-efficient 1.93 ms, ..."
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace muster::units {

struct AttentionShape {
  int64_t sequences = 1, heads = 1, tokens = 1, width = 1;  // width of one head
  int64_t key_value_heads = 0;                              // divides heads; 0: as many
  int64_t window = 0;                                       // keys that a query sees; 0: all before it
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  bool deterministic = true;  // refuse an implementation whose gradient differs from run to run
};

struct AttentionTrial {
  std::string name;
  double milliseconds = 0;  // forward and backward, best of several runs
  std::string refused;      // why it cannot be used; empty: usable
};

struct AttentionChoice {
  std::string name;  // the fastest; empty: all were refused, and LibTorch's default stays
  std::vector<AttentionTrial> trials;
  std::string Describe() const;
};

// Times flash, memory-efficient and cuDNN attention (on a GPU) and plain GEMMs in what blocks call, AttendCausally
// (operator_attention.h), with as many heads of keys and values as they have, and enables the fastest for the
// process, with plain GEMMs as the fallback for shapes that it does not support. An implementation is refused if it
// fails or is less deterministic than `shape` demands. In LibTorch's deterministic mode without warn_only the backward
// of flash and memory-efficient attention is deterministic and cuDNN's attention is refused; with warn_only all three
// may sum in another order each time (aten/src/ATen/native/transformers/cuda, attention_backward.cu and sdp_utils.cpp).
// Takes the time of a few steps and twice their memory. No other thread may compute meanwhile.
AttentionChoice ChooseAttention(const AttentionShape& shape);

// The names that a choice may have, always in the same order.
const std::vector<std::string>& AttentionNames();
// Enables one of them for the process, as ChooseAttention does. InvalidArgument: no such name.
absl::Status UseAttention(const std::string& name);

}  // namespace muster::units
