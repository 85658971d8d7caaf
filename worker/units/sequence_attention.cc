#include "worker/units/sequence_attention.h"

#include <ATen/SDPBackend.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "models/inventory.h"
#include "worker/units/autograd.h"
#include "worker/units/cpu_attention.h"

namespace muster::units {
namespace {

// Whether LibTorch computes these by flash attention, which attention_choice.h may have disabled.
bool TakesFlash(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  if (!q.is_cuda() || q.size(3) % 8 != 0) return false;
  const int64_t choice = at::_fused_sdp_choice(q, k, v, std::nullopt, 0.0, /*is_causal=*/false, std::nullopt,
                                               /*enable_gqa=*/q.size(1) != k.size(1));
  return choice == static_cast<int64_t>(at::SDPBackend::flash_attention);
}

// Of queries [samples, heads, queries, head] to the keys up to the last one's. `dropout`: of these weights.
at::Tensor AttendOfBlock(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const DropoutPlace& dropout,
                         const KeyWindow& seen) {
  const bool windowed = seen.window > 0 && seen.window < k.size(2);
  if (dropout.on() || windowed || q.size(2) == k.size(2)) return AttendCausally(q, k, v, dropout, seen);
  // Of fewer queries than keys it counts the last as that of the last key, where scaled_dot_product_attention counts
  // from the first and so needs a mask (torch/nn/attention/bias.py, CausalVariant.LOWER_RIGHT). It takes none.
  if (TakesFlash(q, k, v)) {
    return std::get<0>(at::_scaled_dot_product_flash_attention(q, k, v, 0.0, /*is_causal=*/true));
  }
  // Of the kernels on GPUs that take a mask only plain GEMMs group heads, and those take memory of queries times keys
  // for each head.
  const int64_t group = q.size(1) / k.size(1);
  const auto repeated = [&](const at::Tensor& t) { return group == 1 ? t : t.repeat_interleave(group, 1); };
  return AttendCausally(q, repeated(k), repeated(v), {}, seen);
}

// Some of a run's queries of q, and the keys that they may see of k and v [2, samples, tokens, heads, head], by head.
struct QueriesAndKeys {
  int64_t first, queries, keys;
  at::Tensor Of(const at::Tensor& q) const { return q.narrow(1, first, queries).transpose(1, 2); }
  at::Tensor K(const at::Tensor& all) const { return all[0].narrow(1, 0, keys).transpose(1, 2); }
  at::Tensor V(const at::Tensor& all) const { return all[1].narrow(1, 0, keys).transpose(1, 2); }
  // Of dropout of the weights of all tokens, that of these.
  DropoutPlace Of(DropoutPlace dropout, const at::Tensor& all) const {
    const int64_t tokens = all.size(2);
    dropout.rows = {.begin = keys - queries, .size = queries, .apart = tokens, .width = tokens};
    return dropout;
  }
};

// As many queries at a time as their mask allows. A window has blocks of its own, but not by products.
std::vector<QueriesAndKeys> BlocksOf(const OwnTokens& own, const DropoutPlace& dropout, const KeyWindow& seen) {
  std::vector<QueriesAndKeys> all;
  int64_t first = 0;
  for (const models::TokenRun& run : own.runs()) {
    const auto begin = static_cast<int64_t>(run.begin), size = static_cast<int64_t>(run.size);
    const bool by_window = seen.window > 0 && !dropout.on();
    const int64_t most = by_window ? size : static_cast<int64_t>(models::kMaskedQueries);
    for (int64_t done = 0; done < size; done += most) {
      const int64_t queries = std::min(most, size - done);
      all.push_back({first + done, queries, begin + done + queries});
    }
    first += size;
  }
  return all;
}

at::Tensor ForwardByOperator(const OwnTokens& own, const at::Tensor& q, const at::Tensor& all,
                             const DropoutPlace& dropout, const KeyWindow& seen) {
  const c10::AutoGradMode off(false);
  std::vector<at::Tensor> parts;
  for (const QueriesAndKeys& block : BlocksOf(own, dropout, seen)) {
    parts.push_back(
        AttendOfBlock(block.Of(q), block.K(all), block.V(all), block.Of(dropout, all), seen).transpose(1, 2));
  }
  return at::cat(parts, 1).reshape({q.size(0) * q.size(1), q.size(2) * q.size(3)});
}

// d_q and d_all, the gradient of `all`, from the forward of one block after another.
void BackwardByOperator(const OwnTokens& own, const at::Tensor& q, const at::Tensor& all, const at::Tensor& d_out,
                        const at::Tensor& d_q, const at::Tensor& d_all, const DropoutPlace& dropout,
                        const KeyWindow& seen) {
  const std::vector<QueriesAndKeys> blocks = BlocksOf(own, dropout, seen);
  const at::Tensor d_by_token = d_out.view(q.sizes());
  for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) {
    std::vector<at::Tensor> gradients;
    {
      const auto leaf = [](const at::Tensor& t) { return t.detach().requires_grad_(true); };
      const at::Tensor queries = leaf(block->Of(q)), k = leaf(block->K(all)), v = leaf(block->V(all));
      const c10::AutoGradMode on(true);
      gradients = Gradients(AttendOfBlock(queries, k, v, block->Of(dropout, all), seen), block->Of(d_by_token),
                            {queries, k, v});
    }
    const c10::AutoGradMode off(false);
    block->Of(d_q).copy_(gradients[0]);
    if (block == blocks.rbegin()) {  // the one that sees the most keys
      block->K(d_all).copy_(gradients[1]), block->V(d_all).copy_(gradients[2]);
      d_all.narrow(2, block->keys, d_all.size(2) - block->keys).zero_();
    } else {
      block->K(d_all).add_(gradients[1]), block->V(d_all).add_(gradients[2]);
    }
  }
}

}  // namespace

SequenceAttention AttendToSequence(const OwnTokens& own, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                   const DropoutPlace& dropout, const KeyWindow& seen, RowCode rows) {
  const at::Tensor all = own.Gather(own.StartGather(k, v));
  if (rows == RowCode::kDevice) return {ForwardByOperator(own, q, all, dropout, seen), {}};
  const SequenceAttention attended{
      at::empty({q.size(0) * q.size(1), q.size(2) * q.size(3)}, q.options()),
      at::empty({q.size(0) * q.size(1) * q.size(2)}, q.options().dtype(WideType(q.scalar_type())))};
  Attend(q, all[0], all[1], attended.out, attended.log_sums, dropout, seen.window, own.runs());
  return attended;
}

void AttendToSequenceBackward(const OwnTokens& own, at::Tensor started, const at::Tensor& q,
                              const SequenceAttention& attended, const at::Tensor& d_out, const at::Tensor& d_q,
                              const at::Tensor& d_k, const at::Tensor& d_v, const DropoutPlace& dropout,
                              const KeyWindow& seen, RowCode rows) {
  at::Tensor d_all;
  {
    const at::Tensor all = own.Gather(std::move(started));
    d_all = at::empty_like(all);
    if (rows == RowCode::kDevice) {
      BackwardByOperator(own, q, all, d_out, d_q, d_all, dropout, seen);
    } else {
      AttendBackward(q, all[0], all[1], attended.out, attended.log_sums, d_out, d_q, d_all[0], d_all[1], dropout,
                     seen.window, own.runs());
    }
  }
  own.ScatterSums(std::move(d_all), d_k, d_v);
}

at::Tensor AttendToSequenceByOperator(const OwnTokens& own, const at::Tensor& q, const at::Tensor& k,
                                      const at::Tensor& v, const DropoutPlace& dropout, const KeyWindow& seen) {
  const at::Tensor own_q = q.detach(), own_k = k.detach(), own_v = v.detach();
  const at::Tensor out = [&] {
    const c10::AutoGradMode off(false);
    return AttendToSequence(own, own_q, own_k, own_v, dropout, seen, RowCode::kDevice).out;
  }();
  return WithBackward(out, {q, k, v}, [=](const at::Tensor& d_out) -> std::vector<at::Tensor> {
    const c10::AutoGradMode off(false);
    const at::Tensor d_q = at::empty_like(own_q), d_k = at::empty_like(own_k), d_v = at::empty_like(own_v);
    AttendToSequenceBackward(own, own.StartGather(own_k, own_v), own_q, {}, d_out.contiguous(), d_q, d_k, d_v, dropout,
                             seen, RowCode::kDevice);
    return {d_q, d_k, d_v};
  });
}

}  // namespace muster::units
