#include "worker/units/sequence_ranks.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

namespace muster::units {
namespace {

// A run of a sequence's tokens, and which of a rank's own tokens these are.
struct PlacedRun {
  models::TokenRun run;
  int64_t rank, own;
};

// In the order of the sequence.
std::vector<PlacedRun> RunsOfAll(int64_t tokens, int64_t ranks) {
  std::vector<PlacedRun> all;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    int64_t own = 0;
    for (const models::TokenRun& run :
         models::RunsOf(static_cast<uint64_t>(tokens), static_cast<uint32_t>(ranks), static_cast<uint32_t>(rank))) {
      all.push_back({run, rank, own});
      own += static_cast<int64_t>(run.size);
    }
  }
  std::sort(all.begin(), all.end(), [](const PlacedRun& a, const PlacedRun& b) { return a.run.begin < b.run.begin; });
  return all;
}

at::Tensor Part(const at::Tensor& rows, int64_t dim, const models::TokenRun& run) {
  return rows.narrow(dim, static_cast<int64_t>(run.begin), static_cast<int64_t>(run.size));
}

}  // namespace

OwnTokens::OwnTokens(const Context& context, int64_t tokens) : ranks_(context.sequence) {
  if (ranks_ == nullptr) {
    runs_ = {{static_cast<uint64_t>(context.position), static_cast<uint64_t>(tokens)}};
    return;
  }
  TORCH_CHECK(context.mode != Mode::kGenerate, "ranks do not share the sequences of prompts");
  TORCH_CHECK(ranks_->size() == 1 || tokens % 2 == 0, "of a sequence that ranks share each has two runs, not ", tokens,
              " tokens");
  runs_ = models::RunsOf(static_cast<uint64_t>(tokens * ranks_->size()), static_cast<uint32_t>(ranks_->size()),
                         static_cast<uint32_t>(ranks_->rank()));
}

at::Tensor OwnTokens::Rows(const at::Tensor& table) const {
  if (runs_.size() == 1) return Part(table, 0, runs_[0]);
  std::vector<at::Tensor> rows;
  for (const models::TokenRun& run : runs_) rows.push_back(Part(table, 0, run));
  return at::cat(rows, 0);
}

void OwnTokens::AddToRows(const at::Tensor& own, const at::Tensor& table) const {
  int64_t first = 0;
  for (const models::TokenRun& run : runs_) {
    const auto rows = static_cast<int64_t>(run.size);
    Part(table, 0, run).add_(own.narrow(0, first, rows));
    first += rows;
  }
}

at::Tensor OwnTokens::StartGather(const at::Tensor& k, const at::Tensor& v) const {
  const at::Tensor part = at::empty({2, k.size(0), k.size(1), k.size(2), k.size(3)}, k.options());
  part[0].copy_(k), part[1].copy_(v);
  at::Tensor all = at::empty({ranks_->size() * 2, k.size(0), k.size(1), k.size(2), k.size(3)}, k.options());
  ranks_->StartGather(part, all);
  return all;
}

at::Tensor OwnTokens::Gather(at::Tensor started) const {
  ranks_->Finish();
  const int64_t ranks = ranks_->size(), samples = started.size(1), own = started.size(2), heads = started.size(3),
                head = started.size(4);
  const at::Tensor parts = std::exchange(started, {}).view({ranks, 2 * samples, own, heads * head});
  std::vector<at::Tensor> ordered;
  for (const PlacedRun& placed : RunsOfAll(ranks * own, ranks)) {
    ordered.push_back(parts[placed.rank].narrow(1, placed.own, static_cast<int64_t>(placed.run.size)));
  }
  return at::cat(ordered, 1).view({2, samples, ranks * own, heads, head});
}

void OwnTokens::ScatterSums(at::Tensor all, const at::Tensor& d_k, const at::Tensor& d_v) const {
  const int64_t ranks = ranks_->size(), samples = d_k.size(0), own = d_k.size(1), width = d_k.size(2) * d_k.size(3);
  const at::Tensor parts = at::empty({ranks, 2 * samples, own, width}, all.options());
  {
    const at::Tensor rows = std::exchange(all, {}).view({2 * samples, ranks * own, width});
    for (const PlacedRun& placed : RunsOfAll(ranks * own, ranks)) {
      parts[placed.rank].narrow(1, placed.own, static_cast<int64_t>(placed.run.size)).copy_(Part(rows, 1, placed.run));
    }
  }
  ranks_->StartSumScattered(parts.view({ranks * 2 * samples, own, width}));
  ranks_->Finish();
  const at::Tensor sums = parts[ranks_->rank()].view({2, samples, own, d_k.size(2), d_k.size(3)});
  at::Tensor(d_k).copy_(sums[0]), at::Tensor(d_v).copy_(sums[1]);
}

}  // namespace muster::units
