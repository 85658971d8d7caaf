#include "worker/engine/offloaded_inputs.h"

#include <ATen/ops/arange.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/inventory.h"
#include "strategies/schedule/build.h"
#include "worker/engine/failed.h"

namespace muster::engine {
namespace {

// Two blocks with inputs of 8 tokens of 16 floats: 512 bytes a sample.
struct TwoBlocks {
  explicit TwoBlocks(uint64_t samples, const std::string& folder = "") : host(folder, /*page_locked=*/false) {
    Model model;
    Gpt2& m = *model.mutable_gpt2();
    m.set_layers(2), m.set_heads(1), m.set_width(16), m.set_vocabulary(32), m.set_context(8);
    inventory = *models::MakeInventory(model);
    schedule = Build(inventory, {.recompute = true, .offload_inputs = true});
    inputs.emplace(OffloadedInputs::Options{
        .schedule = &schedule, .inventory = &inventory, .host = &host, .samples = samples, .poison = true});
  }
  const Op& Find(OpKind kind, int32_t unit) const {
    for (const Op& op : schedule.ops) {
      if (op.kind == kind && op.unit == unit) return op;
    }
    ADD_FAILURE();
    return schedule.ops[0];
  }
  units::Activations RoundTrip(int32_t unit, const units::Activations& input) {
    inputs->Offload(Find(OpKind::kOffloadInput, unit), input);
    return inputs->Fetch(Find(OpKind::kFetchInput, unit));
  }

  HostMemory host;
  Inventory inventory;
  Schedule schedule;
  std::optional<OffloadedInputs> inputs;
};

at::Tensor Numbers(std::vector<int64_t> shape, at::ScalarType dtype = at::kFloat) {
  int64_t elements = 1;
  for (const int64_t n : shape) elements *= n;
  return at::arange(elements, at::kFloat).to(dtype).view(shape);
}

TEST(OffloadedInputs, KeepNumbersAndLayouts) {
  for (const std::string& folder : {std::string(), testing::TempDir()}) {
    TwoBlocks blocks(3, folder);
    EXPECT_EQ(blocks.host.bytes(), 2u * 3 * 512);
    EXPECT_FALSE(blocks.inputs->Has(0));
    EXPECT_TRUE(blocks.inputs->Has(1) && blocks.inputs->Has(2));
    EXPECT_FALSE(blocks.inputs->Has(3) || blocks.inputs->Has(4)) << "the head, and nothing";
    const at::Tensor images = Numbers({2, 4, 6, 6}).contiguous(at::MemoryFormat::ChannelsLast);
    const at::Tensor gaps = Numbers({3, 8, 16}).slice(2, 0, 16, 2);
    for (const at::Tensor& input : {Numbers({3, 8, 16}), Numbers({3, 8, 16}, at::kBFloat16), images,
                                    Numbers({16, 9}).t(), gaps, Numbers({0, 8, 16})}) {
      const units::Activations back = blocks.RoundTrip(1, {input});
      ASSERT_EQ(back.size(), 1u);
      EXPECT_TRUE(back[0].equal(input)) << input.sizes();
      EXPECT_EQ(back[0].scalar_type(), input.scalar_type());
      if (!input.is_same(gaps)) {
        EXPECT_EQ(back[0].strides(), input.strides()) << input.sizes();
      }
      EXPECT_FALSE(back[0].is_alias_of(input));
      EXPECT_TRUE(back[0].is_alias_of(blocks.inputs->DeviceSlot(1)));
    }
  }
}

TEST(OffloadedInputs, SeveralTensorsLieOneAfterAnother) {
  TwoBlocks blocks(3);
  const at::Tensor a = Numbers({5}), b = Numbers({2, 7}, at::kDouble), c = Numbers({3}, at::kInt).add_(9);
  const units::Activations back = blocks.RoundTrip(2, {a, b, c});
  ASSERT_EQ(back.size(), 3u);
  EXPECT_TRUE(back[0].equal(a) && back[1].equal(b) && back[2].equal(c));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(back[2].const_data_ptr()) % 64, 0u);
}

// Each unit has its own slot of the host, and what was there before is overwritten.
TEST(OffloadedInputs, UnitsDoNotShareTheHostsSlots) {
  TwoBlocks blocks(1);
  const at::Tensor first = Numbers({8, 16}), second = first.add(1000);
  blocks.inputs->Offload(blocks.Find(OpKind::kOffloadInput, 1), {first.mul(7)});
  blocks.inputs->Offload(blocks.Find(OpKind::kOffloadInput, 1), {first});
  blocks.inputs->Offload(blocks.Find(OpKind::kOffloadInput, 2), {second});
  EXPECT_TRUE(blocks.inputs->Fetch(blocks.Find(OpKind::kFetchInput, 2))[0].equal(second));
  const at::Tensor back = blocks.inputs->Fetch(blocks.Find(OpKind::kFetchInput, 1))[0];
  EXPECT_TRUE(back.equal(first));
  blocks.inputs->EndUse(1);
  EXPECT_TRUE(back.isnan().all().item<bool>()) << "a use after the unit's backward shows";
}

TEST(OffloadedInputs, MoreThanPlannedIsAnError) {
  TwoBlocks blocks(3);
  try {
    blocks.inputs->Offload(blocks.Find(OpKind::kOffloadInput, 1), {Numbers({4, 8, 16})});
    ADD_FAILURE() << "four samples in a slot of three";
  } catch (const Failed& failed) {
    EXPECT_EQ(failed.status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(failed.status.message()),
                testing::HasSubstr("offload.activations: the input of h.0 takes 2 KiB, planned are 1.5 KiB"));
  }
}

}  // namespace
}  // namespace muster::engine
