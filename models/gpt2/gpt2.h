// GPT-2 (Radford et al. 2019) with Hugging Face's tensor names and [in, out] projections.
//
// Units: "embedding" (wte, wpe), "h.0" … "h.<layers-1>", "head" (ln_f, and wte borrowed from the embedding).
#pragma once

#include "models/family.h"

namespace muster::models {

const ModelFamily& Gpt2Family();

}  // namespace muster::models
