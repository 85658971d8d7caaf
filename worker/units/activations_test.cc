// What flows between units is what their inventories declare: for each family, by each of its codes, in each precision.
#include "worker/units/activations_test.h"

#include <ATen/Parallel.h>

#include "absl/strings/str_cat.h"
#include "models/inventory.h"

namespace muster::units {
namespace {

using Family = std::pair<std::string, Model>;

std::vector<Family> FamiliesOfTrial() {
  std::vector<Family> all(5);
  all[0].first = "gpt2";
  Gpt2& gpt2 = *all[0].second.mutable_gpt2();
  gpt2.set_layers(2), gpt2.set_heads(3), gpt2.set_width(39), gpt2.set_vocabulary(61), gpt2.set_context(16);
  for (int i = 1; i < 3; ++i) {
    all[i].first = i == 1 ? "llama" : "llama, tied, with norms of heads and a window";
    Llama& llama = *all[i].second.mutable_llama();
    llama.set_layers(2), llama.set_heads(4), llama.set_key_value_heads(2), llama.set_width(38),
        llama.set_head_width(10);
    llama.set_inner(75), llama.set_vocabulary(61), llama.set_context(16);
    if (i == 2) llama.set_tied_head(true), llama.set_qk_norm(true), llama.set_window(7);
  }
  all[3].first = "resnet of small images";
  all[3].second.mutable_resnet()->set_depth(8);
  all[3].second.mutable_resnet()->set_width(4), all[3].second.mutable_resnet()->set_image(9);
  all[4].first = "resnet with bottlenecks and ImageNet's stem";
  all[4].second.mutable_resnet()->set_depth(50), all[4].second.mutable_resnet()->set_stem(RESNET_STEM_IMAGENET);
  all[4].second.mutable_resnet()->set_width(4), all[4].second.mutable_resnet()->set_image(67);
  return all;
}

struct ActivationWay {
  const char* name;
  UnitOptions options;
};

TEST(Activations, AreWhatTheInventoryDeclares) {
  at::set_num_threads(1);
  const ActivationWay ways[] = {{"the CPU's own code", {}},
                                {"through panels", {.bf16_gemms = Bf16Gemms::kPanels}},
                                {"the programs of GPUs", {.rows = RowCode::kDevice}},
                                {"portable", {.portable = true}}};
  OneSampleRank ranks;
  for (const auto& [family, model] : FamiliesOfTrial()) {
    for (const bool synchronized : {false, true}) {
      Model changed = model;
      if (synchronized && !model.has_resnet()) continue;
      if (synchronized) changed.mutable_resnet()->set_sync_batch_norm(true);
      const Inventory inventory = *models::MakeInventory(changed);
      ASSERT_TRUE(models::CheckOutputs(inventory).ok()) << models::CheckOutputs(inventory);
      for (const at::ScalarType compute : {at::kFloat, at::kBFloat16, at::kHalf}) {
        for (const ActivationWay& way : ways) {
          Context context = RandomContext(inventory.task(), 3);
          if (synchronized) context.ranks = &ranks;
          ExpectDeclaredActivations(
              inventory, compute, way.options, context,
              absl::StrCat(family, synchronized ? ", synchronized" : "", ", ", at::toString(compute), ", ", way.name));
        }
      }
    }
  }
}

TEST(Activations, ThatWereNotDeclaredAreNamed) {
  Unit unit;
  unit.set_name("h.3");
  Activation& output = *unit.add_outputs();
  output.set_name("hidden_states"), output.add_shape(5), output.add_shape(7), output.set_type(Activation::COMPUTE);
  const auto error = [&](const Activations& given) {
    return std::string(CheckActivations(unit, 2, at::kBFloat16, given).message());
  };
  const at::Tensor right = at::zeros({2, 5, 7}, at::kBFloat16);
  EXPECT_EQ(error({right}), "");
  EXPECT_EQ(error({}), "unit h.3 declares 1 activations, but there are 0");
  EXPECT_EQ(error({right.to(at::kFloat)}),
            "unit h.3 declares hidden_states as BFloat16 [2, 5, 7], but it is Float [2, 5, 7]");
  EXPECT_EQ(error({right.narrow(0, 0, 1)}),
            "unit h.3 declares hidden_states as BFloat16 [2, 5, 7], but it is BFloat16 [1, 5, 7]");
  EXPECT_EQ(error({at::Tensor()}), "unit h.3 declares hidden_states as BFloat16 [2, 5, 7], but it is undefined");
  output.set_type(Activation::FP32);
  EXPECT_EQ(error({right.to(at::kFloat)}), "");
}

}  // namespace
}  // namespace muster::units
