#include "strategies/optimizer_plan.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "absl/strings/match.h"
#include "models/inventory.h"
#include "strategies/partition/planners.h"

namespace muster::strategies {
namespace {

Optimizer OfMuon() {
  Optimizer optimizer;
  optimizer.mutable_muon()->set_ns_steps(5);
  return optimizer;
}

std::set<std::string> UpdatedWhole(const Train& train, const Optimizer& optimizer) {
  const Inventory inventory = *models::MakeInventory(train);
  std::set<std::string> names;
  for (int u = 0; u < inventory.units_size(); ++u) {
    for (const Tensor& tensor : inventory.units(u).tensors()) {
      if (IsUpdatedWhole(optimizer, inventory, u, tensor)) names.insert(tensor.name());
    }
  }
  return names;
}

Train OfOneLayer(bool llama) {
  Train train;
  Model& model = *train.mutable_model();
  if (llama) {
    model.mutable_llama()->set_size(LLAMA_SIZE_TINY);
    model.mutable_llama()->set_layers(1);
  } else {
    model.mutable_gpt2()->set_size(GPT2_SIZE_TINY);
    model.mutable_gpt2()->set_layers(1);
  }
  model = *models::Resolve(model);
  return train;
}

// As torch.optim.Muon's page says: not embeddings, heads and vectors.
TEST(OptimizerPlan, MuonTakesTheMatricesOfBlocks) {
  EXPECT_EQ(UpdatedWhole(OfOneLayer(false), OfMuon()),
            (std::set<std::string>{"h.0.attn.c_attn.weight", "h.0.attn.c_proj.weight", "h.0.mlp.c_fc.weight",
                                   "h.0.mlp.c_proj.weight"}));
  const std::string layer = "model.layers.0.";
  EXPECT_EQ(UpdatedWhole(OfOneLayer(true), OfMuon()),
            (std::set<std::string>{layer + "self_attn.q_proj.weight", layer + "self_attn.k_proj.weight",
                                   layer + "self_attn.v_proj.weight", layer + "self_attn.o_proj.weight",
                                   layer + "mlp.gate_proj.weight", layer + "mlp.up_proj.weight",
                                   layer + "mlp.down_proj.weight"}));
  EXPECT_TRUE(UpdatedWhole(OfOneLayer(false), Optimizer()).empty());
}

TEST(OptimizerPlan, MuonTakesConvolutionsAndWhatIsTrained) {
  Train resnet;
  resnet.mutable_model()->mutable_resnet()->set_depth(8);
  *resnet.mutable_model() = *models::Resolve(resnet.model());
  const std::set<std::string> convolutions = UpdatedWhole(resnet, OfMuon());
  EXPECT_EQ(convolutions.size(), 6u) << "two of each of three blocks";
  for (const std::string& name : convolutions) EXPECT_TRUE(absl::StartsWith(name, "layer")) << name;
  Train adapted = OfOneLayer(false);
  adapted.mutable_lora()->set_rank(2), adapted.mutable_lora()->set_alpha(2);
  adapted.mutable_lora()->add_targets("c_fc");
  EXPECT_EQ(UpdatedWhole(adapted, OfMuon()),
            (std::set<std::string>{"h.0.mlp.c_fc.lora_A.weight", "h.0.mlp.c_fc.lora_B.weight"}));
}

TEST(OptimizerPlan, AdafactorTakesEveryTensorThatIsTrained) {
  Optimizer adafactor;
  adafactor.mutable_adafactor();
  Train train = OfOneLayer(false);
  EXPECT_EQ(UpdatedWhole(train, adafactor).size(), 2u + 12 + 2);
  train.add_freeze("h.*");
  EXPECT_EQ(UpdatedWhole(train, adafactor),
            (std::set<std::string>{"wte.weight", "wpe.weight", "ln_f.weight", "ln_f.bias"}));
}

TEST(OptimizerPlan, ATableThatCutsIsNamed) {
  const Inventory inventory = *models::MakeInventory(OfOneLayer(false));
  const absl::Status cut = CheckWhole(OfMuon(), inventory, partition::Even(inventory, 3));
  EXPECT_TRUE(absl::IsInvalidArgument(cut));
  EXPECT_TRUE(absl::StrContains(cut.message(), "h.0.")) << cut;
  EXPECT_TRUE(absl::StrContains(cut.message(), "use placement: whole")) << cut;
  EXPECT_TRUE(CheckWhole(OfMuon(), inventory, partition::Even(inventory, 1)).ok());
  EXPECT_TRUE(CheckWhole(OfMuon(), inventory, partition::WholeTensors(inventory, 3)).ok());
  EXPECT_TRUE(CheckWhole(Optimizer(), inventory, partition::Even(inventory, 3)).ok());
}

}  // namespace
}  // namespace muster::strategies
