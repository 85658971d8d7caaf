// Models from libraries of users (proto/spec.proto, Custom; docs/custom_models.md). The inventory is what the spec
// carries: nothing here loads the library, and everything in the spec is untrusted.
#pragma once

#include "models/family.h"

namespace muster::models {

const ModelFamily& CustomFamily();

// What a plug-in's inventory may have; Resolve refuses more.
inline constexpr int kMaxCustomOptions = 64;
inline constexpr int kMaxCustomUnits = 4096;
inline constexpr size_t kMaxCustomUnitsBytes = 128 << 10;  // a worker receives a spec for each of its ranks
inline constexpr int kMaxCustomDimensions = 8;
inline constexpr uint64_t kMaxCustomElements = uint64_t{1} << 42;  // of all tensors
inline constexpr uint64_t kMaxCustomBytes = uint64_t{1} << 50;     // of each number of bytes

// Units' kind.
inline constexpr char kCustomKind[] = "custom.modules";

// InvalidArgument: `theirs` is not the structure of `ours`; names the first difference: a unit, or a tensor's name,
// shape or initialization. Numbers of bytes and FLOPs, which are measured, may differ.
absl::Status CheckSameStructure(const Custom& theirs, const Custom& ours);

}  // namespace muster::models
