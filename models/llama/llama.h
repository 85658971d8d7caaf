// Llama and what is built as it (proto/spec.proto, Llama), with Hugging Face's tensor names and [out, in] projections.
//
// Units: "embedding", "layers.0" … "layers.<layers-1>", "head" (the last norm, and its own projection or the
// embedding's, borrowed).
#pragma once

#include <vector>

#include "models/family.h"

namespace muster::models {

const ModelFamily& LlamaFamily();

// Of a resolved model: by pair of elements of a head, the angle in radians by which a position turns it.
std::vector<double> RopeFrequencies(const Llama& model);
// What sine and cosine are multiplied by: 1 but for yarn and longrope.
double RopeAmplitude(const Llama& model);

}  // namespace muster::models
