// What a GPU can compute at most.
#pragma once

#include <optional>

#include "absl/strings/string_view.h"
#include "proto/spec.pb.h"

namespace muster {

// Dense FLOP/s of GEMMs on a GPU of this model ("NVIDIA H100 80GB HBM3"), in the precision in which a job computes, by
// NVIDIA's data sheets. None: not a known model.
std::optional<double> PeakFlops(absl::string_view model, const Precision& precision);

}  // namespace muster
