#include "models/inventory.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "google/protobuf/descriptor.h"
#include "models/family.h"

namespace muster::models {
namespace {

Model OfSize(Gpt2Size size) {
  Model model;
  model.mutable_gpt2()->set_size(size);
  return model;
}

TEST(Gpt2, ParameterCountsAreThePublishedOnes) {
  // Hugging Face's gpt2, gpt2-medium, gpt2-large, gpt2-xl, head tied.
  EXPECT_EQ(Parameters(*MakeInventory(OfSize(GPT2_SIZE_SMALL))), 124'439'808u);
  EXPECT_EQ(Parameters(*MakeInventory(OfSize(GPT2_SIZE_MEDIUM))), 354'823'168u);
  EXPECT_EQ(Parameters(*MakeInventory(OfSize(GPT2_SIZE_LARGE))), 774'030'080u);
  EXPECT_EQ(Parameters(*MakeInventory(OfSize(GPT2_SIZE_XL))), 1'557'611'200u);
  EXPECT_EQ(Parameters(*MakeInventory(OfSize(GPT2_SIZE_TINY))), 842'496u);
}

// 72 s l h^2 (1 + s / 6h + V / 12lh) a sequence (Narayanan et al. 2021, section 5.1, without their recomputation, which
// is a quarter), which counts all of the attention's scores; we count those before each token.
TEST(Gpt2, TrainingTakesThePublishedFlops) {
  const double s = 1024, l = 12, h = 768, v = 50257;
  const double scores = 72 * s * l * h * h * s / (6 * h),
               published = 72 * s * l * h * h * (1 + v / (12 * l * h)) + scores;
  EXPECT_NEAR(TrainingFlops(*MakeInventory(OfSize(GPT2_SIZE_SMALL))) / (published - scores / 2), 1, 0.02);
}

TEST(Gpt2, NamesAndShapes) {
  const Inventory inventory = *MakeInventory(OfSize(GPT2_SIZE_SMALL));
  std::map<std::string, std::vector<uint64_t>> shapes;
  for (const Unit& unit : inventory.units()) {
    for (const Tensor& t : unit.tensors()) {
      EXPECT_TRUE(shapes.emplace(t.name(), std::vector<uint64_t>(t.shape().begin(), t.shape().end())).second)
          << t.name();
      EXPECT_EQ(t.decay(), t.shape_size() >= 2) << t.name();
      EXPECT_NE(t.init().kind(), Initialisation::KIND_UNSPECIFIED) << t.name();
    }
  }
  EXPECT_EQ(shapes.size(), 2u + 12 * 12 + 2);
  EXPECT_EQ(shapes["wte.weight"], (std::vector<uint64_t>{50257, 768}));
  EXPECT_EQ(shapes["h.11.attn.c_attn.weight"], (std::vector<uint64_t>{768, 2304}));
  EXPECT_EQ(shapes["h.0.mlp.c_proj.weight"], (std::vector<uint64_t>{3072, 768}));
  EXPECT_EQ(inventory.units(13).borrows(0).tensor(), "wte.weight");
}

TEST(Gpt2, ResidualProjectionsStartSmaller) {
  const Inventory inventory = *MakeInventory(OfSize(GPT2_SIZE_SMALL));
  for (const Tensor& t : inventory.units(1).tensors()) {
    if (absl::StrContains(t.name(), "c_proj.weight")) {
      EXPECT_NEAR(t.init().standard_deviation(), 0.02 / std::sqrt(24.0), 1e-12);
    }
  }
}

TEST(FirstTrained, IsWhereTheBackwardEnds) {
  struct Case {
    std::string units;  // a letter for each: a trained tensor, frozen ones, none; borrows from the last unit
    bool borrows = false;
    int first = 0;
  };
  for (const Case& c : {Case{"ttt", false, 0},
                        {"ftf", false, 1},
                        {"fft", false, 2},
                        {"fft", true, 1},
                        {"ftf", true, 1},
                        {"fff", false, 2},
                        {"fff", true, 2},
                        {"-tf", false, 1},
                        {"--f", false, 2},
                        {"f", false, 0},
                        {"", false, 0}}) {
    Inventory inventory;
    for (size_t u = 0; u < c.units.size(); ++u) {
      Unit& unit = *inventory.add_units();
      unit.set_name("u" + std::to_string(u));
      if (c.units[u] == '-') continue;
      for (const bool frozen : {true, c.units[u] == 'f'}) {
        Tensor& tensor = *unit.add_tensors();
        tensor.set_name(unit.name() + (frozen ? ".frozen" : ".trained")), tensor.set_frozen(frozen);
      }
    }
    if (c.borrows) {
      for (const char* tensor : {"u2.frozen", "u2.trained"}) {
        Borrow& borrow = *inventory.mutable_units(1)->add_borrows();
        borrow.set_unit("u2"), borrow.set_tensor(tensor);
      }
      Borrow& frozen = *inventory.mutable_units(0)->add_borrows();
      frozen.set_unit("u2"), frozen.set_tensor("u2.frozen");
    }
    EXPECT_EQ(FirstTrained(inventory), c.first) << c.units << (c.borrows ? ", borrows" : "");
  }
}

TEST(Gpt2, Bf16TakesAGradientOrPanelsMore) {
  EXPECT_EQ(NarrowBytes(*MakeInventory(OfSize(GPT2_SIZE_SMALL))), 2u * 50257 * 768);
  EXPECT_EQ(NarrowBytes(*MakeInventory(OfSize(GPT2_SIZE_TINY))), 3u * 4 * 1024 * 1024);
}

// 124M on a GPU, by hand. Kept a token, in widths: the input 1, q k v 3, attention 1, its sum 1, the hidden layer 4;
// and two scalars a norm and one a head. Pieces of 8,192 rows, and of 1 GiB of fp32 logits.
TEST(Gpt2, AGpusBytesAreThoseOfItsUnits) {
  const Inventory gpu = *MakeInventory(OfSize(GPT2_SIZE_SMALL), DEVICE_CUDA);
  EXPECT_EQ(gpu.device(), DEVICE_CUDA);
  const Unit &block = gpu.units(1), &head = gpu.units(13);
  EXPECT_EQ(block.saved_bytes(), 4u * 1024 * (10 * 768 + 4 + 12));
  EXPECT_EQ(block.piece_rows(), 8192u);
  EXPECT_EQ(block.backward_bytes(), 4u * 1024 * 3 * 768 + 4 * 1024 * 3 * 768 / 32);
  EXPECT_EQ(block.backward_piece_bytes(), 4u * 9 * 768 + 4 * 6 * 768 / 32);
  EXPECT_EQ(head.piece_rows(), (1u << 28) / 50257);
  const Inventory cpu = *MakeInventory(OfSize(GPT2_SIZE_SMALL));
  EXPECT_EQ(cpu.device(), DEVICE_CPU);
  EXPECT_LT(cpu.units(1).piece_rows(), 8192u);
  EXPECT_EQ(MakeInventory(OfSize(GPT2_SIZE_SMALL), DEVICE_AUTO)->device(), DEVICE_CPU);
}

TEST(Gpt2, OverridesAndErrors) {
  Model model = OfSize(GPT2_SIZE_TINY);
  model.mutable_gpt2()->set_layers(7);
  EXPECT_EQ(MakeInventory(model)->units_size(), 9);
  EXPECT_EQ(Resolve(*Resolve(model))->SerializeAsString(), Resolve(model)->SerializeAsString());

  model.mutable_gpt2()->set_heads(5);
  EXPECT_EQ(Resolve(model).status().message(), "heads: 5 does not divide width 128");
  model.mutable_gpt2()->set_heads(0);
  EXPECT_TRUE(absl::StartsWith(Resolve(model).status().message(), "heads: must be 1 to"));
  model = Model();
  EXPECT_TRUE(absl::StartsWith(Resolve(model).status().message(), "family: missing"));
  model.mutable_gpt2()->set_layers(2);
  EXPECT_TRUE(absl::StartsWith(Resolve(model).status().message(), "heads: missing"));
  model = OfSize(GPT2_SIZE_TINY);
  model.mutable_gpt2()->set_vocabulary((1u << 24) + 1);
  EXPECT_TRUE(absl::StartsWith(Resolve(model).status().message(), "vocabulary: must be"));
}

// A residual stream of fp32 in language models; features as the convolutions give them, smaller with each stage.
TEST(Outputs, AreTheActivationsBetweenUnits) {
  Model llama, resnet;
  llama.mutable_llama()->set_size(LLAMA_SIZE_8B);
  resnet.mutable_resnet()->set_depth(50), resnet.mutable_resnet()->set_stem(RESNET_STEM_IMAGENET);
  for (const auto& [model, tokens, width] : {std::tuple(OfSize(GPT2_SIZE_XL), 1024u, 1600u), {llama, 8192u, 4096u}}) {
    const Inventory inventory = *MakeInventory(model);
    EXPECT_TRUE(CheckOutputs(inventory).ok());
    for (int u = 0; u + 1 < inventory.units_size(); ++u) {
      const Unit& unit = inventory.units(u);
      ASSERT_EQ(unit.outputs_size(), 1) << unit.name();
      EXPECT_EQ(unit.outputs(0).name(), "hidden_states");
      EXPECT_EQ(unit.outputs(0).shape(0), tokens);
      EXPECT_EQ(unit.outputs(0).shape(1), width);
      EXPECT_EQ(unit.output_bytes(), uint64_t{4} * tokens * width);
      EXPECT_EQ(OutputBytes(unit, 2), unit.output_bytes()) << "fp32 in every precision";
    }
  }
  const Inventory inventory = *MakeInventory(resnet);
  EXPECT_TRUE(CheckOutputs(inventory).ok());
  const auto shape = [&](int unit) {
    const auto& s = inventory.units(unit).outputs(0).shape();
    return std::vector<uint64_t>(s.begin(), s.end());
  };
  EXPECT_EQ(shape(0), (std::vector<uint64_t>{64, 56, 56}));  // torchvision's, of images of 224
  EXPECT_EQ(shape(1), (std::vector<uint64_t>{256, 56, 56}));
  EXPECT_EQ(shape(16), (std::vector<uint64_t>{2048, 7, 7}));
  EXPECT_EQ(inventory.units(16).output_bytes(), 4u * 2048 * 49);
  EXPECT_EQ(OutputBytes(inventory.units(16), 2), 2u * 2048 * 49);
  EXPECT_EQ(inventory.units(17).output_bytes(), 0u);
}

TEST(Outputs, OfAnInventoryThatCannotBeCutAreNamed) {
  const Inventory good = *MakeInventory(OfSize(GPT2_SIZE_TINY));
  const auto error = [&](const auto& change) {
    Inventory inventory = good;
    change(inventory);
    const absl::Status status = CheckOutputs(inventory);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    return std::string(status.message());
  };
  EXPECT_TRUE(absl::StartsWith(error([](Inventory& i) { i.mutable_units(2)->clear_outputs(); }),
                               "unit h.1 does not say what it hands to the next one"));
  EXPECT_EQ(error([](Inventory& i) { *i.mutable_units(5)->add_outputs() = i.units(4).outputs(0); }),
            "unit head is the last one and hands activations to a next one");
  EXPECT_EQ(error([](Inventory& i) { i.mutable_units(1)->mutable_outputs(0)->clear_type(); }),
            "unit h.0 hands over hidden_states of an unknown type");
  EXPECT_EQ(error([](Inventory& i) { i.mutable_units(1)->set_output_bytes(5); }),
            "unit h.0 hands over 65536 bytes of a sample, but has output_bytes 5");
}

// --model FAMILY:SIZE of the CLI, and HasSize and WithoutSize, know named sizes as model.size. A family may have none.
TEST(Families, CallTheirNamedSizesSize) {
  int named = 0;
  for (const ModelFamily* family : Families()) {
    const google::protobuf::FieldDescriptor* field = Model::descriptor()->FindFieldByName(family->name());
    ASSERT_NE(field, nullptr) << family->name();
    const google::protobuf::Descriptor& numbers = *field->message_type();
    for (int i = 0; i < numbers.field_count(); ++i) {
      const google::protobuf::EnumDescriptor* type = numbers.field(i)->enum_type();
      if (type == nullptr || !absl::EndsWith(type->name(), "Size")) continue;
      EXPECT_EQ(numbers.field(i)->name(), "size") << family->name();
      ++named;
    }
  }
  EXPECT_GE(named, 2) << "gpt2 and llama have some";
  Model resnet;
  resnet.mutable_resnet()->set_depth(20);
  EXPECT_FALSE(HasSize(resnet));
  EXPECT_EQ(WithoutSize(resnet).SerializeAsString(), resnet.SerializeAsString());
  EXPECT_TRUE(HasSize(OfSize(GPT2_SIZE_TINY)));
  EXPECT_FALSE(HasSize(WithoutSize(OfSize(GPT2_SIZE_TINY))));
}

}  // namespace
}  // namespace muster::models
