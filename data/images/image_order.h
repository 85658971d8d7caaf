// Maps sample k of a job to an image: a pure function of (seed, k), independent of the world size. So the number of
// consumed samples is all that a resumed or resized job needs to continue.
//
//   ImageOrder order({.images = file.images(), .order = DATA_ORDER_SHUFFLED, .seed = 1});
//   order.Index(consumed);
//
// sequential: sample k is image k mod images.
// shuffled: epoch e (samples [e n, e n + n), n images) takes each image exactly once, in an order keyed by (seed, e).
//
// Thread-safe: values.
#pragma once

#include <cstdint>

#include "proto/spec.pb.h"

namespace muster::data {

class ImageOrder {
 public:
  struct Options {
    uint64_t images = 0;  // at least 1
    DataOrder order = DATA_ORDER_SHUFFLED;
    uint64_t seed = 0;
  };
  explicit ImageOrder(const Options& options) : options_(options) {}

  uint64_t samples_per_epoch() const { return options_.images; }
  uint64_t seed() const { return options_.seed; }
  // The image of sample `sample`.
  uint64_t Index(uint64_t sample) const;

 private:
  Options options_;
};

}  // namespace muster::data
