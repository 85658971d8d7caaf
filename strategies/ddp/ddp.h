// Every rank holds everything; gradients are summed over ranks bucket by bucket while the backward goes on (Li et al.
// 2020, "PyTorch Distributed", section 3.2: bucketing and overlap; only in the last microbatch, as its no_sync does).
#pragma once

#include <cstdint>

#include "proto/inventory.pb.h"
#include "strategies/schedule/schedule.h"

namespace muster::ddp {

struct Options {
  int32_t microbatches = 1;
  bool clip = true;
  uint64_t bucket_bytes = 25 << 20;  // at least, of fp32 gradients; less at the model's front
};

// Buckets are runs of whole units, filled from the model's end, where the backward begins: each is reduced as soon as
// the backward of its first unit is done. A tied tensor lies in the bucket of the unit that owns it, whose backward
// comes after those that borrow it.
Schedule Emit(const Inventory& inventory, const Options& options);

}  // namespace muster::ddp
