// Where the elements of a part of a tensor (Box in proto/units.proto) lie in the whole. Pure.
//
//   const FlatBox box = FlatBoxOf(tensor);
//   for (uint64_t e = 0; e < n; e += box.Left(e)) Copy(whole + box.Whole(e), part + e, std::min(n - e, box.Left(e)));
#pragma once

#include <cstdint>
#include <limits>

#include "proto/units.pb.h"

namespace muster::models {

// A part is runs of equal length, one in each row of the whole. By default all of it, as one run.
struct FlatBox {
  uint64_t row = std::numeric_limits<uint64_t>::max();  // elements of the whole from one run's begin to the next one's
  uint64_t begin = 0;                                   // of a run in its row
  uint64_t run = std::numeric_limits<uint64_t>::max();  // elements, consecutive in both

  bool whole() const { return row == run; }
  // The place in the whole of the part's element.
  uint64_t Whole(uint64_t element) const { return element / run * row + begin + element % run; }
  // Elements from this one to the end of its run.
  uint64_t Left(uint64_t element) const { return run - element % run; }
  // The first element of the part that lies at `place` of the whole or after it.
  uint64_t FirstFrom(uint64_t place) const {
    const uint64_t at = place % row;
    return place / row * run + (at < begin ? 0 : at - begin < run ? at - begin : run);
  }
  friend bool operator==(const FlatBox&, const FlatBox&) = default;
};

inline FlatBox FlatBoxOf(const Tensor& tensor) {
  if (!tensor.has_box()) return {};
  uint64_t inner = 1;
  for (int d = static_cast<int>(tensor.box().axis()) + 1; d < tensor.box().view_size(); ++d) {
    inner *= tensor.box().view(d);
  }
  return {.row = tensor.box().view(static_cast<int>(tensor.box().axis())) * inner,
          .begin = tensor.box().begin() * inner,
          .run = tensor.box().size() * inner};
}

}  // namespace muster::models
