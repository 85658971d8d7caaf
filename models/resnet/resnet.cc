#include "models/resnet/resnet.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "models/config.h"
#include "models/inventory.h"
#include "models/inventory_build.h"

namespace muster::models {
namespace {

using nlohmann::json;

constexpr char kModelType[] = "torchvision_resnet";

struct Architecture {
  std::vector<uint32_t> blocks;  // by stage
  bool bottleneck = false;
  bool small_images = false;  // section 4.2
};

std::optional<Architecture> ArchitectureOf(uint32_t depth) {
  switch (depth) {
    case 18:
      return Architecture{.blocks = {2, 2, 2, 2}};
    case 34:
      return Architecture{.blocks = {3, 4, 6, 3}};
    case 50:
      return Architecture{.blocks = {3, 4, 6, 3}, .bottleneck = true};
    case 101:
      return Architecture{.blocks = {3, 4, 23, 3}, .bottleneck = true};
    case 152:
      return Architecture{.blocks = {3, 8, 36, 3}, .bottleneck = true};
    default:
      if (depth < 8 || depth % 6 != 2) return std::nullopt;
      return Architecture{.blocks = std::vector<uint32_t>(3, (depth - 2) / 6), .small_images = true};
  }
}

absl::StatusOr<Resnet> ResolveResnet(const Resnet& model) {
  Resnet m = model;
  if (!m.has_depth()) return absl::InvalidArgumentError("depth: missing; known: 18, 34, 50, 101, 152, and 6n + 2");
  const std::optional<Architecture> architecture = ArchitectureOf(m.depth());
  if (!architecture.has_value() || m.depth() > 1208) {
    return absl::InvalidArgumentError(absl::StrCat(
        "depth: must be 18, 34, 50, 101, 152, or 6n + 2 (20, 32, 44, 56, 110) up to 1208, got ", m.depth()));
  }
  if (!m.has_stem()) m.set_stem(RESNET_STEM_CIFAR);
  const bool imagenet = m.stem() == RESNET_STEM_IMAGENET;
  if (!imagenet && m.stem() != RESNET_STEM_CIFAR) return absl::InvalidArgumentError("stem: must be cifar or imagenet");
  if (!m.has_width()) m.set_width(architecture->small_images ? 16 : 64);
  if (!m.has_classes()) m.set_classes(10);
  if (!m.has_image()) m.set_image(imagenet ? 224 : 32);
  if (!m.has_channels()) m.set_channels(3);
  absl::Status numbers = CheckNumbers({{"width", true, m.width(), 1u << 14},
                                       {"classes", true, m.classes(), 1u << 16},
                                       {"image", true, m.image(), 1u << 12},
                                       {"channels", true, m.channels(), 1u << 10}},
                                      "");
  if (!numbers.ok()) return numbers;
  // A label of one class teaches nothing.
  if (m.classes() < 2) return absl::InvalidArgumentError("classes: must be at least 2, got 1");
  if (!m.has_batch_norm_momentum()) m.set_batch_norm_momentum(0.1);
  if (!(m.batch_norm_momentum() > 0 && m.batch_norm_momentum() <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("batch_norm_momentum: must be greater than 0 and at most 1, got ", m.batch_norm_momentum()));
  }
  if (!m.has_sync_batch_norm()) m.set_sync_batch_norm(false);
  return m;
}

// A unit that convolutions are added to, with what autograd keeps and computes of one sample.
class UnitBuilder {
 public:
  // `synchronized`: its normalizations exchange their statistics, as torch.nn.SyncBatchNorm.
  UnitBuilder(const std::string& name, const char* kind, bool synchronized) : synchronized_(synchronized) {
    unit_.set_name(name);
    unit_.set_kind(kind);
  }

  // A convolution without bias and a batch normalization; `size`: of its output. Returns the output's elements.
  uint64_t AddConvolution(const std::string& conv, const std::string& norm, uint64_t in, uint64_t out, uint64_t kernel,
                          uint64_t size) {
    // Kaiming He's for what follows a rectifier, by outputs (He et al. 2015), as torchvision.
    AddTensor(unit_, conv + ".weight", {out, in, kernel, kernel}, Initialisation::NORMAL,
              std::sqrt(2.0 / static_cast<double>(out * kernel * kernel)));
    AddTensor(unit_, norm + ".weight", {out}, Initialisation::ONES);
    AddTensor(unit_, norm + ".bias", {out}, Initialisation::ZEROS);
    AddBuffer(norm + ".running_mean", out, Initialisation::ZEROS);
    AddBuffer(norm + ".running_var", out, Initialisation::ONES);
    const uint64_t elements = out * size * size;
    flops_ += 2.0 * static_cast<double>(in * kernel * kernel) * static_cast<double>(elements);
    saved_ += elements;  // the normalization's input
    if (synchronized_) {
      Exchange& exchange = *unit_.mutable_exchange();
      exchange.set_collectives(exchange.collectives() + 1);
      exchange.set_gathered_bytes(exchange.gathered_bytes() + 4 * (2 * out + 1));  // mean, variance and count
      exchange.set_summed_bytes(exchange.summed_bytes() + 4 * 2 * out);
    }
    return elements;
  }
  void Save(uint64_t elements) { saved_ += elements; }
  Unit& unit() { return unit_; }
  // To the next unit. A normalization gives the dtype of its input: that of the convolutions.
  void HandOver(uint64_t channels, uint64_t size) {
    AddOutput(unit_, "features", {channels, size, size}, Activation::COMPUTE);
  }
  Unit Done(uint64_t forward, uint64_t backward) {
    unit_.set_forward_flops(flops_);
    unit_.set_saved_bytes(4 * saved_);
    unit_.set_forward_bytes(4 * forward);
    unit_.set_backward_bytes(4 * backward);
    // Each tensor's gradient; the largest one's once more, in the layout in which oneDNN computes it.
    uint64_t parameters = 0, largest = 0;
    for (const Tensor& tensor : unit_.tensors()) {
      parameters += Elements(tensor);
      largest = std::max(largest, Elements(tensor));
    }
    unit_.set_backward_constant_bytes(4 * (parameters + largest));
    return unit_;
  }

 private:
  void AddBuffer(const std::string& name, uint64_t elements, Initialisation::Kind kind) {
    Tensor& buffer = *unit_.add_buffers();
    buffer.set_name(name);
    buffer.add_shape(elements);
    buffer.mutable_init()->set_kind(kind);
  }

  const bool synchronized_;
  Unit unit_;
  double flops_ = 0;
  uint64_t saved_ = 0;  // elements
};

uint64_t Strided(uint64_t size, uint64_t stride) { return (size + stride - 1) / stride; }

// `size`: of the images, then of the result.
Unit MakeStem(const Resnet& m, uint64_t& size) {
  const bool imagenet = m.stem() == RESNET_STEM_IMAGENET;
  UnitBuilder stem("stem", "resnet.stem", m.sync_batch_norm());
  stem.Save(uint64_t{m.channels()} * size * size);
  if (imagenet) size = Strided(size, 2);
  const uint64_t convolved = stem.AddConvolution("conv1", "bn1", m.channels(), m.width(), imagenet ? 7 : 3, size);
  if (imagenet) {
    stem.Save(convolved);  // the rectifier's result
    size = Strided(size, 2);
    stem.Save(2 * m.width() * size * size);  // where each maximum was, in 8 bytes
  }
  stem.HandOver(m.width(), size);
  return stem.Done(0, 2 * convolved);
}

Unit MakeBlock(const Resnet& m, const ResnetBlock& block, uint64_t& size) {
  UnitBuilder built(block.name, "resnet.block", m.sync_batch_norm());
  const std::string at = block.name + ".";
  const uint64_t input = uint64_t{block.in} * size * size, strided = Strided(size, block.stride);
  built.Save(input);
  uint64_t output = 0, widest = 0;
  if (block.bottleneck) {
    const uint64_t inner = block.out / kBottleneckExpansion;
    widest = built.AddConvolution(at + "conv1", at + "bn1", block.in, inner, 1, size);
    built.Save(widest);
    built.Save(built.AddConvolution(at + "conv2", at + "bn2", inner, inner, 3, strided));
    output = built.AddConvolution(at + "conv3", at + "bn3", inner, block.out, 1, strided);
  } else {
    built.Save(built.AddConvolution(at + "conv1", at + "bn1", block.in, block.out, 3, strided));
    output = built.AddConvolution(at + "conv2", at + "bn2", block.out, block.out, 3, strided);
  }
  if (block.projection) {
    built.AddConvolution(at + "downsample.0", at + "downsample.1", block.in, block.out, 1, strided);
  }
  // The rectifier's result is the next unit's input, which that one counts.
  size = strided;
  // Forward: the shortcut until it is added. Backward: the sum's gradient, which the shortcut waits for, and those of
  // two neighbors on the other path.
  built.HandOver(block.out, size);
  return built.Done(output, output + 2 * std::max({output, widest, input}));
}

Unit MakeHead(const Resnet& m, uint64_t features, uint64_t size) {
  UnitBuilder head("head", "resnet.head", /*synchronized=*/false);
  // torch.nn.Linear's variance.
  AddTensor(head.unit(), "fc.weight", {m.classes(), features}, Initialisation::NORMAL,
            1 / std::sqrt(3.0 * static_cast<double>(features)));
  AddTensor(head.unit(), "fc.bias", {m.classes()}, Initialisation::ZEROS);
  const uint64_t input = features * size * size;
  head.Save(input);
  Unit unit = head.Done(features + 2 * m.classes(), input + 2 * features + 3 * m.classes());
  unit.set_forward_flops(2.0 * static_cast<double>(features) * m.classes());
  return unit;
}

Inventory MakeResnet(const Resnet& m) {
  Inventory inventory;
  SetImageTask(inventory, m.channels(), m.image(), m.image(), m.classes());
  uint64_t size = m.image();
  *inventory.add_units() = MakeStem(m, size);
  uint64_t features = m.width();
  for (const ResnetBlock& block : ResnetBlocks(m)) {
    *inventory.add_units() = MakeBlock(m, block, size);
    features = block.out;
  }
  *inventory.add_units() = MakeHead(m, features, size);
  return inventory;
}

class Resnets final : public ModelFamily {
 public:
  std::string name() const override { return "resnet"; }

  absl::StatusOr<Model> Resolve(const Model& model) const override {
    absl::StatusOr<Resnet> resnet = ResolveResnet(model.resnet());
    if (!resnet.ok()) return resnet.status();
    Model resolved = model;
    *resolved.mutable_resnet() = *std::move(resnet);
    return resolved;
  }
  // The same on every device: LibTorch's operators and autograd.
  Inventory MakeInventory(const Model& resolved, Device, const TensorShare&) const override {
    return MakeResnet(resolved.resnet());
  }
  std::string Describe(const Model& model) const override { return absl::StrCat("resnet ", model.resnet().depth()); }

  bool Reads(const json& config) const override { return config.value("model_type", json()) == kModelType; }
  absl::StatusOr<Model> FromConfig(const json& config) const override {
    Model model;
    Resnet& m = *model.mutable_resnet();
    for (const auto& [field, set] : kNumbers) {
      const absl::StatusOr<uint32_t> number = ReadNumber(config, field);
      if (!number.ok()) return number.status();
      (m.*set)(*number);
    }
    const json stem = config.value("stem", json());
    if (stem != "cifar" && stem != "imagenet") {
      return absl::FailedPreconditionError(absl::StrCat("stem: must be cifar or imagenet, got ", stem.dump()));
    }
    m.set_stem(stem == "cifar" ? RESNET_STEM_CIFAR : RESNET_STEM_IMAGENET);
    const absl::StatusOr<double> momentum = ReadReal(config, "batch_norm_momentum", 0.1);
    if (!momentum.ok()) return momentum.status();
    m.set_batch_norm_momentum(*momentum);
    return model;
  }
  // torchvision's files have no configuration: this one is Muster's, with the fields of the spec.
  nlohmann::ordered_json ToConfig(const Model& resolved) const override {
    const Resnet& m = resolved.resnet();
    return {{"model_type", kModelType},
            {"depth", m.depth()},
            {"width", m.width()},
            {"classes", m.classes()},
            {"image", m.image()},
            {"channels", m.channels()},
            {"stem", m.stem() == RESNET_STEM_CIFAR ? "cifar" : "imagenet"},
            {"batch_norm_momentum", m.batch_norm_momentum()}};
  }
  // Images of other sizes, and other ways to take statistics, take the same weights.
  std::string ConfigKey(absl::string_view field) const override {
    return field == "image" || field == "batch_norm_momentum" || field == "sync_batch_norm" ? "" : std::string(field);
  }
  std::string StoredName(absl::string_view tensor) const override { return std::string(tensor); }
  std::string TensorName(const Model&, absl::string_view stored) const override {
    // Only a momentum that is not a number needs it.
    return absl::EndsWith(stored, ".num_batches_tracked") ? "" : std::string(stored);
  }

 private:
  struct Number {
    const char* field;
    void (Resnet::*set)(uint32_t);
  };
  static constexpr Number kNumbers[] = {{"depth", &Resnet::set_depth},
                                        {"width", &Resnet::set_width},
                                        {"classes", &Resnet::set_classes},
                                        {"image", &Resnet::set_image},
                                        {"channels", &Resnet::set_channels}};
};

}  // namespace

std::vector<ResnetBlock> ResnetBlocks(const Resnet& model) {
  const Architecture architecture = ArchitectureOf(model.depth()).value();
  std::vector<ResnetBlock> blocks;
  uint32_t in = model.width(), width = model.width();
  for (size_t stage = 0; stage < architecture.blocks.size(); ++stage, width *= 2) {
    const uint32_t out = architecture.bottleneck ? width * kBottleneckExpansion : width;
    for (uint32_t i = 0; i < architecture.blocks[stage]; ++i) {
      const uint32_t stride = stage > 0 && i == 0 ? 2 : 1;
      blocks.push_back({.name = absl::StrCat("layer", stage + 1, ".", i),
                        .in = in,
                        .out = out,
                        .stride = stride,
                        .bottleneck = architecture.bottleneck,
                        .projection = !architecture.small_images && (stride > 1 || in != out)});
      in = out;
    }
  }
  return blocks;
}

const ModelFamily& ResnetFamily() {
  static const auto& family = *new Resnets;
  return family;
}

}  // namespace muster::models
