// The last unit of a classifier of images, which families share.
#pragma once

#include <memory>

#include "worker/units/unit.h"

namespace muster::units {

// The mean of each channel, logits by `weight` [classes, channels] and `bias` [classes], and cross entropy with label
// smoothing. Metrics: top1 and, of more than five classes, top5; of equal logits the target's comes first.
std::unique_ptr<UnitModule> MakeClassifierHead(Parameter weight, Parameter bias);

}  // namespace muster::units
