#include "worker/engine/narrow_weights.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

namespace muster::engine {
namespace {

// On a CPU a block stays in the cache; on a GPU launches must not dominate.
int64_t BlockOf(const Run& run) {
  if (!run.shape.empty()) return run.length;
  return std::min(run.length, run.parameter.is_cuda() ? int64_t{1} << 22 : int64_t{1} << 16);
}

// Hands out zeros for the blocks of one run, so that the k-th tensors of all blocks are one: state that is contiguous
// by run, as without blocks.
class RunState {
 public:
  RunState(const MakeZeros* zeros, int64_t length) : zeros_(zeros), length_(length) {}
  void Begin(int64_t block_begin) { begin_ = block_begin, next_ = 0; }
  at::Tensor Zeros(int64_t elements, int64_t block) {
    if (elements == 0 || block == length_) return (*zeros_)(elements);
    if (next_ == whole_.size()) whole_.push_back((*zeros_)(length_));
    return whole_[next_++].narrow(0, begin_, elements);
  }

 private:
  const MakeZeros* zeros_;
  int64_t length_, begin_ = 0;
  size_t next_ = 0;
  std::vector<at::Tensor> whole_;
};

// A buffer whose memory exists only during an update, as FSDP1's flat parameters: views keep its storage, which is
// resized.
class TransientBuffer {
 public:
  explicit TransientBuffer(const at::Tensor& all)
      : all_(all), bytes_(all.storage().nbytes()), storage_(all.storage().unsafeGetStorageImpl()) {}
  at::Tensor First(int64_t elements) const { return all_.as_strided({elements}, {1}, 0); }
  void Acquire() { Resize(bytes_); }
  void Release() { Resize(0); }

 private:
  void Resize(size_t bytes) {
    storage_->set_data_ptr_noswap(storage_->allocator()->allocate(bytes));
    storage_->set_nbytes(bytes);
  }

  const at::Tensor all_;  // which owns the storage
  const size_t bytes_;
  c10::StorageImpl* const storage_;
};

class NarrowWeightsOptimizer final : public FlatOptimizer {
 public:
  NarrowWeightsOptimizer(const Optimizer& options, const std::vector<Run>& runs, const MakeZeros& zeros,
                         const units::Gemms& gemms, bool by_programs)
      : wide_(at::empty({LongestBlock(runs)}, runs.front().gradient.options())) {
    for (const Run& run : runs) {
      RunState state(&zeros, run.length);
      for (int64_t begin = 0; begin < run.length; begin += BlockOf(run)) {
        const int64_t length = std::min(BlockOf(run), run.length - begin);
        state.Begin(begin);
        const Run wide{wide_.First(length), run.gradient.narrow(0, begin, length), 0, length, run.decay, run.shape};
        blocks_.push_back({run.begin + begin, run.parameter.narrow(0, begin, length), wide.parameter,
                           MakeOptimizer(
                               options, {wide}, length, [&](int64_t elements) { return state.Zeros(elements, length); },
                               gemms, by_programs)});
      }
    }
    wide_.Release();
  }

  void Step(uint64_t step, double learning_rate, double factor) override {
    ForEachBlock([&](FlatOptimizer& optimizer) { optimizer.Step(step, learning_rate, factor); });
  }
  void StepUnless(const UpdateDecision& decision, uint64_t step, double learning_rate) override {
    ForEachBlock([&](FlatOptimizer& optimizer) { optimizer.StepUnless(decision, step, learning_rate); });
  }

  std::vector<StatePart> State() override {
    std::vector<StatePart> parts;
    std::map<std::string, size_t> last;  // of each kind
    for (const Block& block : blocks_) {
      for (StatePart& part : block.optimizer->State()) {
        part.begin += block.begin;
        const auto [found, is_first] = last.try_emplace(part.kind, parts.size());
        if (!is_first && Follows(parts[found->second], part)) {
          Join(parts[found->second], part);
          continue;
        }
        found->second = parts.size();
        parts.push_back(std::move(part));
      }
    }
    return parts;
  }

 private:
  struct Block {
    int64_t begin;
    at::Tensor stored, wide;                   // bf16 and fp32 [length]
    std::unique_ptr<FlatOptimizer> optimizer;  // of `wide`
  };

  static int64_t LongestBlock(const std::vector<Run>& runs) {
    int64_t longest = 0;
    for (const Run& run : runs) longest = std::max(longest, BlockOf(run));
    return longest;
  }

  template <typename Update>
  void ForEachBlock(const Update& update) {
    wide_.Acquire();
    for (const Block& block : blocks_) {
      at::Tensor stored = block.stored, wide = block.wide;
      wide.copy_(stored);
      update(*block.optimizer);
      stored.copy_(wide);
    }
    wide_.Release();
  }

  static bool Follows(const StatePart& before, const StatePart& part) {
    return part.shape.empty() && before.shape.empty() && before.begin + before.length == part.begin &&
           before.values.is_alias_of(part.values) &&
           before.values.storage_offset() + before.length == part.values.storage_offset();
  }
  static void Join(StatePart& before, const StatePart& part) {
    before.length += part.length;
    before.values = before.values.as_strided({before.length}, {1}, before.values.storage_offset());
  }

  TransientBuffer wide_;
  std::vector<Block> blocks_;  // in the order of their elements
};

}  // namespace

std::unique_ptr<FlatOptimizer> MakeNarrowWeightsOptimizer(const Optimizer& options, const std::vector<Run>& runs,
                                                          const MakeZeros& zeros, const units::Gemms& gemms,
                                                          bool by_programs) {
  return std::make_unique<NarrowWeightsOptimizer>(options, runs, zeros, gemms, by_programs);
}

}  // namespace muster::engine
