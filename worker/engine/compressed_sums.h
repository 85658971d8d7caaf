// The sums over replicas of a schedule whose job compresses them (Communication.compression): a compressed sum, with
// what it keeps, for each range of gradients that a kAllReduce sums.
//
//   Works first = sums.Begin(op, step);      // kAllReduce, then, where Schedule::two_exchanges:
//   Works second = sums.Continue(op);        // kFinishSum
//   sums.End(op);
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "worker/compression/compressed_sum.h"
#include "worker/engine/engine.h"
#include "worker/engine/queue.h"
#include "worker/engine/state.h"
#include "worker/engine/storage.h"

namespace muster::engine {

class CompressedSums {
 public:
  // `config` and `storage` outlive it.
  CompressedSums(const Config& config, const Storage& storage, at::Device device);

  Works Begin(const Op& op, uint64_t step);
  Works Continue(const Op& op);
  void End(const Op& op);
  void AddTo(State& state) const;

 private:
  struct Sum {
    int64_t own = 0;  // index of its first among the trained elements that the rank owns
    std::vector<strategies::GradientPart> parts;
    std::unique_ptr<compression::CompressedSum> sum;
  };
  std::vector<Sum>& Of(const Op& op) { return sums_.at(op.unit); }
  std::vector<strategies::GradientPart> PartsOf(int64_t own, int64_t elements) const;

  const Config& config_;
  const Storage& storage_;
  int place_ = 0;                             // of this rank among the replicas of its node
  std::map<int32_t, std::vector<Sum>> sums_;  // by the ops' first unit
};

}  // namespace muster::engine
