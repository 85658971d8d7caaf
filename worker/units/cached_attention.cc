#include "worker/units/cached_attention.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

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
                       at::Tensor& kept, const KeyWindow& seen) {
  const int64_t sequences = q.size(0), tokens = q.size(1), end = position + tokens;
  TORCH_CHECK(position == 0 || (kept.defined() && kept.size(3) >= position),
              "attention after tokens that were not kept");
  kept = WithRoom(kept, k, position, end);
  kept[0].narrow(2, position, tokens).copy_(k.transpose(1, 2));
  kept[1].narrow(2, position, tokens).copy_(v.transpose(1, 2));
  const at::Tensor all = kept.narrow(3, 0, end);
  const at::Tensor out = AttendCausally(q.transpose(1, 2), all[0], all[1], {}, seen);
  return out.transpose(1, 2).reshape({sequences, tokens, -1});
}

}  // namespace muster::units
