// Injects many faults, one after another, and collects their figures.
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace muster::faults {

struct CampaignOptions {
  int faults = 200;
  absl::Duration detection = absl::Seconds(2);
  uint64_t seed = 1;
  int at_once = 3;
};

// Prints each fault as it ends, then the table. False: weights differed, a fault was missed, or a job did not end.
bool RunCampaign(const CampaignOptions& options);

}  // namespace muster::faults
