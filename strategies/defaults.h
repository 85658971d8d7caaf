// The defaults of a strategy's options. Pure.
#pragma once

#include "proto/spec.pb.h"

namespace muster::strategies {

// Fills in absent options; keeps given ones, even invalid ones. Where the optimizer needs whole tensors, so does the
// placement.
void FillDefaults(const Optimizer& optimizer, Strategy& strategy);

}  // namespace muster::strategies
