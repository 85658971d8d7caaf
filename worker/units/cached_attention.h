// Attention with a KV cache, for text generation token by token.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace muster::units {

// The tokens of `qkv` [sequences, tokens, 3, heads, width / heads] begin at `position`; `kept` holds keys and values of
// the `position` tokens before them, and receives theirs: [2, sequences, heads, room, width / heads], undefined at
// first, and replaced by a larger one when the room is full. Returns [sequences, tokens, width].
at::Tensor AttendAfter(const at::Tensor& qkv, int64_t position, at::Tensor& kept);

}  // namespace muster::units
