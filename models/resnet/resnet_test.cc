#include "models/resnet/resnet.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "models/inventory.h"

namespace muster::models {
namespace {

Model Resnets(
    uint32_t depth, const std::function<void(Resnet&)>& change = [](Resnet&) {}) {
  Model model;
  model.mutable_resnet()->set_depth(depth);
  change(*model.mutable_resnet());
  return model;
}

Inventory Of(const Model& model) { return MakeInventory(Resolve(model).value()).value(); }

double Flops(const Inventory& inventory) {
  double flops = 0;
  for (const Unit& unit : inventory.units()) flops += unit.forward_flops();
  return flops;
}

// torchvision's documentation of each model: num_params and _ops (multiply-adds) of the ImageNet weights.
TEST(Resnet, SizesAreTorchvisions) {
  const auto imagenet = [](Resnet& m) { m.set_stem(RESNET_STEM_IMAGENET), m.set_classes(1000); };
  const struct {
    uint32_t depth;
    uint64_t parameters;
    double giga_ops;
  } cases[] = {{18, 11689512, 1.814},
               {34, 21797672, 3.664},
               {50, 25557032, 4.089},
               {101, 44549160, 7.801},
               {152, 60192808, 11.514}};
  for (const auto& c : cases) {
    const Inventory inventory = Of(Resnets(c.depth, imagenet));
    EXPECT_EQ(Parameters(inventory), c.parameters) << c.depth;
    EXPECT_NEAR(Flops(inventory) / 2e9, c.giga_ops, 0.005) << c.depth;
  }
}

// He et al. 2016, table 6.
TEST(Resnet, SizesForCifarAreThePapers) {
  const std::pair<uint32_t, double> cases[] = {{20, 0.27}, {32, 0.46}, {44, 0.66},
                                               {56, 0.85}, {110, 1.7}, {1202, 19.4}};
  for (const auto& [depth, millions] : cases) {
    const double parameters = static_cast<double>(Parameters(Of(Resnets(depth)))) / 1e6;
    EXPECT_NEAR(parameters, millions, millions < 1 ? 0.006 : 0.06) << depth;
  }
}

TEST(Resnet, HasTwoBuffersANormalization) {
  const Inventory inventory = Of(Resnets(20));
  EXPECT_EQ(inventory.units_size(), 1 + 9 + 1);
  EXPECT_EQ(inventory.units(0).buffers(0).name(), "bn1.running_mean");
  EXPECT_EQ(inventory.units(1).buffers(3).name(), "layer1.0.bn2.running_var");
  EXPECT_EQ(inventory.units(1).buffers(3).init().kind(), Initialisation::ONES);
  // 7 of 16 channels, 6 of 32, 6 of 64; each has a mean and a variance.
  EXPECT_EQ(Buffers(inventory), 2u * (7 * 16 + 6 * 32 + 6 * 64));
}

// By hand: a mean and a variance for each channel, and one count, of each normalization.
TEST(Resnet, SynchronizedNormalizationsDeclareWhatTheyExchange) {
  const auto synchronized = [](Resnet& m) { m.set_sync_batch_norm(true); };
  const Inventory inventory = Of(Resnets(20, synchronized));
  uint32_t collectives = 0;
  uint64_t gathered = 0, summed = 0;
  for (const Unit& unit : inventory.units()) {
    EXPECT_EQ(unit.has_exchange(), unit.name() != "head") << unit.name();
    collectives += unit.exchange().collectives();
    gathered += unit.exchange().gathered_bytes(), summed += unit.exchange().summed_bytes();
  }
  EXPECT_EQ(collectives, 19u);
  EXPECT_EQ(summed, 4u * 2 * (7 * 16 + 6 * 32 + 6 * 64));
  EXPECT_EQ(gathered, summed + 4 * 19);
  const Inventory plain = Of(Resnets(20));
  for (const Unit& unit : plain.units()) EXPECT_FALSE(unit.has_exchange());
  EXPECT_TRUE(CheckSame(Resolve(Resnets(20, synchronized)).value(), Resolve(Resnets(20)).value()).ok())
      << "the same weights";
}

TEST(Resnet, DescribesItsBatch) {
  const Inventory inventory = Of(Resnets(18, [](Resnet& m) { m.set_classes(3), m.set_image(24), m.set_channels(1); }));
  EXPECT_EQ(inventory.task().name(), "image_classification");
  EXPECT_EQ(Elements(Find(inventory.task(), kInputs)), 24u * 24);
  EXPECT_EQ(TargetsPerSample(inventory), 1u);
  EXPECT_EQ(Find(inventory.task(), kTargets).bound(), 3u);
  EXPECT_EQ(inventory.task().metrics_size(), 1) << "the five likeliest of three classes are all of them";
}

TEST(Resnet, RefusesWhatItIsNot) {
  const std::pair<Model, const char*> cases[] = {
      {Resnets(0), "depth: must be 18, 34, 50"},
      {Resnets(21), "depth: must be 18, 34, 50"},
      {Resnets(2), "depth: must be"},
      {Resnets(1214), "depth: must be"},
      {Resnets(20, [](Resnet& m) { m.set_classes(1); }), "classes: must be at least 2"},
      {Resnets(20, [](Resnet& m) { m.set_width(0); }), "width: must be 1 to"},
      {Resnets(20, [](Resnet& m) { m.set_batch_norm_momentum(0); }), "batch_norm_momentum: must be greater than 0"},
      {Resnets(20, [](Resnet& m) { m.set_stem(static_cast<ResnetStem>(9)); }), "stem: must be"},
  };
  for (const auto& [model, says] : cases) {
    const auto resolved = Resolve(model);
    EXPECT_TRUE(absl::StartsWith(resolved.status().message(), says)) << resolved.status();
  }
  EXPECT_TRUE(absl::StartsWith(Resolve([] {
                                 Model model;
                                 model.mutable_resnet();
                                 return model;
                               }())
                                   .status()
                                   .message(),
                               "depth: missing"));
}

TEST(Resnet, ReadsItsOwnConfiguration) {
  const Model model = Resolve(Resnets(34, [](Resnet& m) { m.set_stem(RESNET_STEM_IMAGENET), m.set_width(8); })).value();
  const nlohmann::json config = ResnetFamily().ToConfig(model);
  ASSERT_EQ(FamilyOfConfig(config), &ResnetFamily());
  EXPECT_TRUE(CheckSame(Resolve(ResnetFamily().FromConfig(config).value()).value(), model).ok());
  for (const auto& [key, value] : config.items()) {
    if (key == "model_type" || key == "batch_norm_momentum") continue;
    nlohmann::json damaged = config;
    damaged[key] = nlohmann::json::array();
    EXPECT_FALSE(ResnetFamily().FromConfig(damaged).ok()) << key;
    damaged.erase(key);
    EXPECT_FALSE(ResnetFamily().FromConfig(damaged).ok()) << key;
  }
}

}  // namespace
}  // namespace muster::models
