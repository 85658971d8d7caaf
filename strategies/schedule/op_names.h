// What each op of a schedule is called, in little memory: the ops of a microbatch are kept once for all microbatches
// that are alike, so a schedule of two million ops takes less than a megabyte. For reports of where a rank stands.
//
//   const OpNames names(schedule, inventory);
//   names.NameOf(17);  // "Gather h.3"
//
// Plain values, no thread safety needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "proto/inventory.pb.h"
#include "strategies/schedule/schedule.h"

namespace muster {

class OpNames {
 public:
  OpNames() = default;
  OpNames(const Schedule& schedule, const Inventory& inventory);

  // What the op of that index does, without the buffers and streams that it needs for it. Empty: there is no such op.
  std::string NameOf(uint64_t index) const;
  // kEnd: there is no such op.
  OpKind KindOf(uint64_t index) const;
  uint64_t ops() const { return ops_; }
  size_t bytes() const;  // that it takes

 private:
  static constexpr int32_t kNone = std::numeric_limits<int32_t>::min();
  struct Entry {
    OpKind kind;
    int32_t unit;
    int32_t unit_end;
    int32_t microbatch;  // counted from the stretch's: less than 0 where a pipeline's stage is behind; or kNone
    friend bool operator==(const Entry&, const Entry&) = default;
  };
  // Ops from one microbatch's first forward to the next one's, `times` in a row.
  struct Stretch {
    uint64_t first_op = 0;
    int32_t microbatch = 0;
    uint64_t times = 1;
    std::vector<Entry> entries;
  };
  void Close(Stretch stretch);
  Op At(uint64_t index) const;  // REQUIRES: index < ops_

  std::vector<std::string> units_;
  std::vector<Stretch> stretches_;
  uint64_t ops_ = 0;
};

}  // namespace muster
