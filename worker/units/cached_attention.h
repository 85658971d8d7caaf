// Attention with a KV cache, for text generation token by token.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "worker/units/operator_attention.h"

namespace muster::units {

// The tokens of q [sequences, tokens, heads, head], k and v [sequences, tokens, key-value heads, head] begin at
// `position`; `kept` holds keys and values of the `position` tokens before them, and receives theirs: [2, sequences,
// key-value heads, room, head], undefined at first, and replaced by a larger one when the room is full. Key-value heads
// divide heads, and serve as many neighboring heads each. Returns [sequences, tokens, heads x head].
at::Tensor AttendAfter(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t position,
                       at::Tensor& kept, const KeyWindow& seen = {});

}  // namespace muster::units
