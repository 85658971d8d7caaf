// What a strategy's options are where the user does not say. Pure.
#pragma once

#include "proto/spec.pb.h"

namespace muster::strategies {

// Fills in what is absent; what is given stays, also where it is wrong.
void FillDefaults(Strategy& strategy);

}  // namespace muster::strategies
