// GPT-2 (Radford et al. 2019) as an inventory, with Hugging Face's tensor names and [in, out] projections.
#pragma once

#include "absl/status/statusor.h"
#include "proto/inventory.pb.h"
#include "proto/spec.pb.h"

namespace muster::models {

// Fills the numbers that `model` leaves out from its size. InvalidArgument as Resolve in inventory.h.
absl::StatusOr<Gpt2> ResolveGpt2(const Gpt2& model);

// Units: "embedding" (wte, wpe), "h.0" … "h.<layers-1>", "head" (ln_f, and wte borrowed from the embedding). `device`:
// DEVICE_CPU or DEVICE_CUDA.
Inventory MakeGpt2(const Gpt2& resolved, Device device);

}  // namespace muster::models
