// What a job trains of its model: frozen tensors, and low-rank adapters (Lora in proto/spec.proto).
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/inventory.pb.h"
#include "proto/spec.pb.h"

namespace muster::models {

// Freezes tensors, adds adapters and counts what dropout takes, as `train` says; it is resolved. InvalidArgument begins
// with the field: a pattern or target that fits nothing ("freeze: ..."), a model without linear layers that take
// adapters ("lora: ...") or without places for dropout, or nothing left to train.
absl::Status Tune(const Train& train, Inventory& inventory);

// Counts what the inventory's dropout takes, in its units' bytes.
void AddDropoutBytes(Inventory& inventory);

// Whether `name` fits the pattern, in which * stands for any characters and ? for one.
bool Fits(absl::string_view pattern, absl::string_view name);

// The names of an adapter's tensors are PEFT's: "h.0.attn.c_attn.lora_A.weight".
bool IsAdapter(absl::string_view tensor);

}  // namespace muster::models
