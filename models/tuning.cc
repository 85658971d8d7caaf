#include "models/tuning.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "models/inventory.h"
#include "models/inventory_build.h"

namespace muster::models {
namespace {

// A pattern is compared with every name, in the product of their lengths at most; this keeps that within a second or
// two.
constexpr uint64_t kMaxComparisons = 1 << 20;
constexpr size_t kMaxPatternBytes = 64;

template <typename Patterns>
absl::Status CheckPatterns(const char* field, const Patterns& patterns, const Inventory& inventory) {
  uint64_t tensors = 0;
  for (const Unit& unit : inventory.units()) tensors += static_cast<uint64_t>(unit.tensors_size());
  if (static_cast<uint64_t>(patterns.size()) * tensors > kMaxComparisons) {
    return absl::InvalidArgumentError(absl::StrCat(field, ": ", patterns.size(), " entries are too many for ", tensors,
                                                   " tensors; at most ", kMaxComparisons / tensors, " are allowed"));
  }
  for (const std::string& pattern : patterns) {
    if (pattern.size() <= kMaxPatternBytes) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": an entry of ", pattern.size(), " bytes, at most ", kMaxPatternBytes, " are allowed"));
  }
  return absl::OkStatus();
}

constexpr char kWeight[] = ".weight", kA[] = ".lora_A.weight", kB[] = ".lora_B.weight";

// As PEFT's target_modules: the module's whole name or what follows a dot in it.
bool IsTarget(absl::string_view module, absl::string_view target) {
  return module == target || absl::EndsWith(module, absl::StrCat(".", target));
}

void AddAdapter(const Lora& lora, uint64_t rows, Tensor& tensor, Unit& unit) {
  const bool in_first = tensor.linear() == LINEAR_LAYOUT_IN_OUT;
  const uint64_t in = tensor.shape(in_first ? 0 : 1), out = tensor.shape(in_first ? 1 : 0), rank = lora.rank();
  const std::string module(absl::StripSuffix(tensor.name(), kWeight));
  LowRank& adapter = *tensor.mutable_low_rank();
  adapter.set_a(module + kA);
  adapter.set_b(module + kB);
  adapter.set_scale(lora.alpha() / static_cast<double>(rank));
  // B begins at zero, so training begins with the model as it is. A has the variance of PEFT's (kaiming_uniform_ with a
  // of sqrt(5): 1 / (3 in)).
  AddTensor(unit, adapter.a(), {rank, in}, Initialisation::NORMAL, 1 / std::sqrt(3.0 * static_cast<double>(in)));
  AddTensor(unit, adapter.b(), {out, rank}, Initialisation::ZEROS);
  unit.set_forward_flops(unit.forward_flops() + 2.0 * static_cast<double>(rows * rank * (in + out)));
}

absl::Status AddAdapters(const Lora& lora, Inventory& inventory) {
  if (absl::Status s = CheckPatterns("lora.targets", lora.targets(), inventory); !s.ok()) return s;
  std::vector<bool> used(static_cast<size_t>(lora.targets_size()));
  bool any = false;
  const uint64_t rows = TargetsPerSample(inventory);
  for (Unit& unit : *inventory.mutable_units()) {
    bool adapted = false;
    const int own = unit.tensors_size();
    for (int t = 0; t < own; ++t) {
      if (unit.tensors(t).linear() == LINEAR_LAYOUT_UNSPECIFIED) continue;
      const absl::string_view module = absl::StripSuffix(unit.tensors(t).name(), kWeight);
      bool target = used.empty();
      for (size_t i = 0; i < used.size(); ++i) {
        if (!IsTarget(module, lora.targets(static_cast<int>(i)))) continue;
        used[i] = target = true;
      }
      if (!target) continue;
      // A copy, since adding tensors moves those that are there.
      Tensor tensor = unit.tensors(t);
      AddAdapter(lora, rows, tensor, unit);
      *unit.mutable_tensors(t) = std::move(tensor);
      adapted = any = true;
    }
    if (!adapted) continue;
    // x A^T, and in backward also its gradient.
    unit.set_forward_bytes(unit.forward_bytes() + 4 * rows * lora.rank());
    unit.set_backward_bytes(unit.backward_bytes() + 2 * 4 * rows * lora.rank());
  }
  for (size_t i = 0; i < used.size(); ++i) {
    if (used[i]) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("lora.targets: no linear layer of this model is called ", lora.targets(static_cast<int>(i))));
  }
  if (any) return absl::OkStatus();
  return absl::InvalidArgumentError("lora: this model has no linear layers that take adapters");
}

// Of attention on a GPU, which goes by products.
void AddProductBytes(const Inventory& inventory, Unit& unit) {
  const TensorShare share{.context_ranks = ContextRanks(inventory)};
  const uint64_t context = WholeTargetsPerSample(inventory), heads = unit.attention().heads();
  if (share.context_ranks == 1) {  // scores, weights, factors and their gradients
    const uint64_t weights = 4 * heads * context * context;
    unit.set_saved_bytes(unit.saved_bytes() + 3 * weights);
    unit.set_backward_bytes(unit.backward_bytes() + 2 * weights);
    return;
  }
  // Nothing is kept of a block of queries (worker/units/sequence_attention.cc). Its weights, factors and their product;
  // backward computes these again, and has one gradient beside them. Their mask is a run's: with a window, one beside
  // that of the window, and where it is added is known in two parts.
  const uint64_t weights = 4 * heads * RunQueries(context, share) * context;
  unit.set_forward_bytes(unit.forward_bytes() + 3 * weights);
  unit.set_backward_bytes(unit.backward_bytes() + 4 * weights);
  const uint64_t mask = RunMaskBytes(context, share), constant = unit.backward_constant_bytes();
  const bool windowed = unit.attention().window() > 0;
  unit.set_backward_constant_bytes(windowed ? constant + mask + RunQueries(context, share) * context
                                            : std::max(constant, mask));
}

}  // namespace

// Beside the factors of a row, backward takes a copy of the gradient of what was dropped.
void AddDropoutBytes(Inventory& inventory) {
  const Dropout& dropout = inventory.dropout();
  for (Unit& unit : *inventory.mutable_units()) {
    if (!unit.drops()) continue;
    const bool block = unit.attention().heads() > 0;
    if (block ? dropout.residual() > 0 : dropout.embedding() > 0) {
      unit.set_backward_bytes(unit.backward_bytes() + unit.output_bytes());
    }
    if (block && dropout.attention() > 0 && inventory.device() == DEVICE_CUDA) AddProductBytes(inventory, unit);
  }
}

namespace {

absl::Status AddDropout(const Dropout& dropout, Inventory& inventory) {
  if (dropout.embedding() == 0 && dropout.attention() == 0 && dropout.residual() == 0) return absl::OkStatus();
  if (std::none_of(inventory.units().begin(), inventory.units().end(), [](const Unit& unit) { return unit.drops(); })) {
    return absl::InvalidArgumentError("dropout: this model has no places for it");
  }
  *inventory.mutable_dropout() = dropout;
  AddDropoutBytes(inventory);
  return absl::OkStatus();
}

}  // namespace

bool Fits(absl::string_view pattern, absl::string_view name) {
  size_t p = 0, n = 0, star = absl::string_view::npos, tried = 0;  // after the last *, and where its match ends
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = ++p;
      tried = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p;
      ++n;
    } else if (star != absl::string_view::npos) {
      p = star;
      n = ++tried;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

bool IsAdapter(absl::string_view tensor) { return absl::EndsWith(tensor, kA) || absl::EndsWith(tensor, kB); }

absl::Status Tune(const Train& train, Inventory& inventory) {
  if (absl::Status s = AddDropout(train.dropout(), inventory); !s.ok()) return s;
  if (train.has_lora()) {
    for (Unit& unit : *inventory.mutable_units()) {
      for (Tensor& tensor : *unit.mutable_tensors()) tensor.set_frozen(true);
    }
    if (absl::Status s = AddAdapters(train.lora(), inventory); !s.ok()) return s;
  }
  if (absl::Status s = CheckPatterns("freeze", train.freeze(), inventory); !s.ok()) return s;
  for (const std::string& given : train.freeze()) {
    absl::string_view pattern = given;
    const bool frozen = !absl::ConsumePrefix(&pattern, "!");
    bool any = false;
    for (Unit& unit : *inventory.mutable_units()) {
      for (Tensor& tensor : *unit.mutable_tensors()) {
        if (IsAdapter(tensor.name()) || !Fits(pattern, tensor.name())) continue;
        tensor.set_frozen(frozen);
        any = true;
      }
    }
    if (any) continue;
    const Unit& first = inventory.units(0);
    return absl::InvalidArgumentError(absl::StrCat("freeze: ", given,
                                                   " fits no tensor of this model; its first one is ",
                                                   first.tensors_size() > 0 ? first.tensors(0).name() : "missing"));
  }
  if (train.freeze_size() == 0 || TrainedParameters(inventory) > 0) return absl::OkStatus();
  return absl::InvalidArgumentError("freeze: every tensor is frozen, so nothing is left to train");
}

}  // namespace muster::models
