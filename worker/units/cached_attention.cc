#include "worker/units/cached_attention.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <c10/util/Exception.h>

#include <optional>

namespace muster::units {
namespace {

constexpr int64_t kRoom = 256;  // tokens that `kept` grows by: copying it for every token would cost a tenth of a token

at::Tensor WithRoom(const at::Tensor& kept, const at::Tensor& k, int64_t used, int64_t tokens) {
  if (kept.defined() && kept.size(3) >= tokens) return kept;
  const int64_t room = (tokens + kRoom - 1) / kRoom * kRoom;
  const at::Tensor grown = at::empty({2, k.size(0), k.size(2), room, k.size(3)}, k.options());
  if (used > 0) grown.narrow(3, 0, used).copy_(kept.narrow(3, 0, used));
  return grown;
}

}  // namespace

at::Tensor AttendAfter(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t position,
                       at::Tensor& kept) {
  const int64_t sequences = q.size(0), tokens = q.size(1), end = position + tokens;
  TORCH_CHECK(position == 0 || (kept.defined() && kept.size(3) >= position),
              "attention after tokens that were not kept");
  kept = WithRoom(kept, k, position, end);
  kept[0].narrow(2, position, tokens).copy_(k.transpose(1, 2));
  kept[1].narrow(2, position, tokens).copy_(v.transpose(1, 2));
  const at::Tensor all = kept.narrow(3, 0, end);
  // Token i sees `position` + i + 1 keys. The operator's own causal mask counts from the first key, so it fits only
  // there; the last token alone sees all.
  std::optional<at::Tensor> mask;
  if (position > 0 && tokens > 1) {
    const at::Tensor key = at::arange(end, q.options().dtype(at::kLong));
    mask = key.unsqueeze(0).le(key.narrow(0, position, tokens).unsqueeze(1));
  }
  const at::Tensor out = at::scaled_dot_product_attention(q.transpose(1, 2), all[0], all[1], mask, 0.0,
                                                          /*is_causal=*/position == 0 && tokens > 1, std::nullopt,
                                                          /*enable_gqa=*/q.size(2) != k.size(2));
  return out.transpose(1, 2).reshape({sequences, tokens, -1});
}

}  // namespace muster::units
