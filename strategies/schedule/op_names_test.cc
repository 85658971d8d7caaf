#include "strategies/schedule/op_names.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

// Two forwards ahead, then a backward after each forward, as a stage of a pipeline runs: in the middle a backward is of
// an earlier microbatch than the forward before it. Long enough that its middle is kept once.
TEST(OpNames, OfAPipelineNameTheBackwardsOwnMicrobatch) {
  constexpr int32_t kMicrobatches = 10;
  Inventory inventory;
  inventory.add_units()->set_name("h.0");
  Schedule schedule;
  const auto add = [&](OpKind kind, int32_t microbatch) {
    schedule.ops.push_back({.kind = kind, .unit = 0, .unit_end = 1, .microbatch = microbatch});
  };
  for (int32_t m = 0; m < kMicrobatches + 2; ++m) {
    if (m < kMicrobatches) add(OpKind::kForward, m);
    if (m >= 2) add(OpKind::kBackward, m - 2);
  }
  const OpNames names(schedule, inventory);
  ASSERT_EQ(names.ops(), schedule.ops.size());
  for (size_t i = 0; i < schedule.ops.size(); ++i) {
    const Op& op = schedule.ops[i];
    EXPECT_EQ(names.NameOf(i),
              absl::StrCat(op.kind == OpKind::kForward ? "Forward" : "Backward", " h.0 m", op.microbatch))
        << i;
    EXPECT_EQ(names.KindOf(i), op.kind);
  }
  EXPECT_EQ(names.NameOf(names.ops()), "");
  EXPECT_EQ(names.KindOf(names.ops()), OpKind::kEnd);
}

}  // namespace
}  // namespace muster
