// Maps sample k of a job to a record of its data: a pure function of (seed, k), independent of the world size. So the
// number of consumed samples is all that a resumed or resized job needs to continue.
//
//   SampleOrder order({.samples = file.images(), .order = DATA_ORDER_SHUFFLED, .seed = 1});
//   order.Index(consumed);
//
// sequential: sample k is record k mod n, of n records.
// shuffled: epoch e (samples [e n, e n + n)) takes each record exactly once, in an order keyed by (seed, e).
//
// Thread-safe: values.
#pragma once

#include <cstdint>

#include "proto/spec.pb.h"

namespace muster::data {

class SampleOrder {
 public:
  struct Options {
    uint64_t samples = 0;  // at least 1
    DataOrder order = DATA_ORDER_SHUFFLED;
    uint64_t seed = 0;
  };
  explicit SampleOrder(const Options& options) : options_(options) {}

  uint64_t samples_per_epoch() const { return options_.samples; }
  uint64_t seed() const { return options_.seed; }
  // The record of sample `sample`.
  uint64_t Index(uint64_t sample) const;

 private:
  Options options_;
};

}  // namespace muster::data
