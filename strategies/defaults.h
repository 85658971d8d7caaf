// The defaults of a strategy's options. Pure.
#pragma once

#include "proto/spec.pb.h"

namespace muster::strategies {

// Fills in absent options; keeps given ones, even invalid ones.
void FillDefaults(Strategy& strategy);

}  // namespace muster::strategies
