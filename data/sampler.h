// Maps sample k of a job to tokens: a pure function of (seed, k), independent of the world size. So the number of
// consumed samples is all that a resumed or resized job needs to continue.
//
//   Order order({.tokens = file.tokens(), .context = 128, .order = DATA_ORDER_SHUFFLED, .seed = 1});
//   std::vector<uint32_t> batch;
//   ReadSamples(file, order, /*first=*/consumed, /*count=*/64, batch);
//
// A sample is context + 1 consecutive tokens: position t predicts position t + 1. Neighbouring windows share one token,
// the last target of one being the first input of the next, so each token is a target once.
//
// sequential: sample k is tokens [k T, k T + T], T the context. At the end of the file it starts again: with
//   W = (tokens - 1) / T whole windows, sample k is window k mod W; the rest after the last window is never read.
// shuffled: epoch e (samples [e W, e W + W)) takes each of W windows exactly once, in an order keyed by (seed, e). The
//   windows of an epoch start at an offset in [0, T) keyed by (seed, e), so that cuts fall elsewhere in each epoch. To
//   have room for every offset, W is one less than in `sequential`, but at least 1.
//
// Thread-safe: values.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "data/token_file.h"
#include "proto/spec.pb.h"

namespace muster::data {

// A bijection of [0, size) keyed by `key`: a Feistel network over the next power of four, walked until it falls back
// into the range (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002). No memory, any element at once.
// REQUIRES: index < size.
uint64_t Permute(uint64_t key, uint64_t size, uint64_t index);

class Order {
 public:
  struct Options {
    uint64_t tokens = 0;   // at least context + 1
    uint64_t context = 0;  // at least 1
    DataOrder order = DATA_ORDER_SHUFFLED;
    uint64_t seed = 0;
  };
  explicit Order(const Options& options);

  uint64_t samples_per_epoch() const { return windows_; }
  uint64_t context() const { return options_.context; }
  // Position of the first token of sample `sample`.
  uint64_t Begin(uint64_t sample) const;

 private:
  Options options_;
  uint64_t windows_;
};

// `out` becomes samples [first, first + count), row-major [count, context + 1]. Errors as TokenFile::Read.
absl::Status ReadSamples(const TokenFile& file, const Order& order, uint64_t first, uint64_t count,
                         std::vector<uint32_t>& out);

}  // namespace muster::data
