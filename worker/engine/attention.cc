#include "worker/engine/attention.h"

#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "models/inventory.h"
#include "strategies/compile.h"
#include "worker/engine/dtype.h"
#include "worker/units/attention_choice.h"
#include "worker/units/row_check.h"

namespace muster::engine {

bool IsDeterministic(const Train& train) { return !train.has_deterministic() || train.deterministic(); }

namespace {

// That of most units: layers may differ in their window.
AttentionShape ShapeOfMost(const Inventory& inventory) {
  std::map<std::string, std::pair<int, AttentionShape>> shapes;
  const std::pair<int, AttentionShape>* most = nullptr;
  for (const Unit& unit : inventory.units()) {
    if (unit.attention().heads() == 0) continue;
    auto& [units, shape] = shapes[unit.attention().SerializeAsString()];
    ++units, shape = unit.attention();
  }
  for (const auto& [key, counted] : shapes) {
    if (most == nullptr || counted.first > most->first) most = &counted;
  }
  return most == nullptr ? AttentionShape() : most->second;
}

units::AttentionShape TrialOf(const Config& config, at::Device device) {
  units::AttentionShape shape{.tokens = static_cast<int64_t>(models::TargetsPerSample(config.inventory)),
                              .dtype = ScalarTypeOf(config.train.precision().compute()),
                              .device = device,
                              .deterministic = IsDeterministic(config.train)};
  shape.sequences = std::max<int64_t>(1, strategies::MicrobatchRows(config.train.batch(), config.mesh.sample_ranks()));
  const AttentionShape attention = ShapeOfMost(config.inventory);
  shape.heads = attention.heads();
  shape.key_value_heads = attention.key_value_heads();
  shape.width = attention.width();
  shape.window = attention.window();
  return shape;
}

bool Attends(const Inventory& inventory) {
  return std::any_of(inventory.units().begin(), inventory.units().end(),
                     [](const Unit& unit) { return unit.attention().heads() > 0; });
}

// The first rank whose stage has attention; as many as there are ranks: none has. Every rank calls it.
absl::StatusOr<int> FirstThatAttends(const Config& config, at::Device device) {
  collectives::Group* const world = config.groups[kWorldGroup];
  const bool attends = Attends(config.inventory);
  if (world == nullptr) return attends ? 0 : 1;
  const at::Tensor attending = at::zeros({world->size()}, at::TensorOptions(at::kInt).device(device));
  if (attends) attending[world->rank()].fill_(1);
  if (absl::Status s = world->AllReduce(attending)->Wait(); !s.ok()) return s;
  const at::Tensor on_host = attending.to(at::kCPU);
  if (absl::Status s = world->Health(); !s.ok()) return s;
  const int* const ranks = on_host.const_data_ptr<int>();
  return static_cast<int>(std::find(ranks, ranks + world->size(), 1) - ranks);
}

// A program that does not run at all is as wrong as one that computes other numbers.
absl::Status CheckRows(const Config& config, at::Device device) {
  if (config.portable) return absl::OkStatus();
  try {
    return config.check_rows ? config.check_rows() : units::CheckRowPrograms(device);
  } catch (const c10::Error& e) {
    return absl::InternalError(e.what_without_backtrace());
  }
}

}  // namespace

absl::StatusOr<Kernels> AgreeOnKernels(const Config& config, at::Device device) {
  collectives::Group* const world = config.groups[kWorldGroup];
  const std::vector<std::string>& names = units::AttentionNames();
  const absl::StatusOr<int> first = FirstThatAttends(config, device);
  if (!first.ok()) return first.status();
  const int rank = world == nullptr ? 0 : world->rank();
  Kernels kernels;
  // None passed, or there is nothing to try: plain GEMMs are what LibTorch falls back to.
  kernels.attention = names.back();
  if (rank == *first) {
    const units::AttentionShape shape = TrialOf(config, device);
    const units::AttentionChoice choice =
        config.try_attention ? config.try_attention(shape) : units::ChooseAttention(shape);
    if (!choice.name.empty()) kernels.attention = choice.name;
    kernels.notes.push_back(choice.Describe());
  }
  if (rank == 0) {
    if (const absl::Status checked = CheckRows(config, device); !checked.ok()) {
      kernels.portable = true;
      kernels.notes.push_back(
          absl::StrCat("units by LibTorch's operators alone, which takes more memory than planned: ", checked.message(),
                       "; please report it"));
    }
  }
  if (world != nullptr) {
    // Each is of one rank, so the sum is what that rank chose.
    const at::Tensor choices = at::zeros({2}, at::TensorOptions(at::kLong).device(device));
    if (rank == *first) choices[0].fill_(std::find(names.begin(), names.end(), kernels.attention) - names.begin());
    choices[1].fill_(kernels.portable ? 1 : 0);
    if (absl::Status s = world->AllReduce(choices)->Wait(); !s.ok()) return s;
    const int64_t agreed = choices[0].item<int64_t>();
    const bool portable = choices[1].item<int64_t>() != 0;
    if (absl::Status s = world->Health(); !s.ok()) return s;
    if (agreed < 0 || agreed >= static_cast<int64_t>(names.size())) {
      return absl::InternalError(absl::StrCat("rank ", *first, " chose implementation ", agreed, " of attention"));
    }
    kernels.portable = portable;
    if (*first < world->size() && rank != *first) {
      kernels.attention = names[static_cast<size_t>(agreed)];
      kernels.notes.push_back(absl::StrCat("attention by ", kernels.attention, ", as rank ", *first, " chose"));
    }
    if (rank != 0 && portable) {
      kernels.notes.emplace_back("units by LibTorch's operators alone: rank 0's row programs are wrong");
    }
  }
  if (!device.is_cuda()) return kernels;
  if (absl::Status s = units::UseAttention(kernels.attention); !s.ok()) return s;
  return kernels;
}

}  // namespace muster::engine
