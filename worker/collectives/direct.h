// A group whose ranks are all on one machine and read each other's memory (neighbours.h, transfers.h).
#pragma once

#include <memory>

#include "worker/collectives/group.h"
#include "worker/collectives/group_status.h"
#include "worker/collectives/neighbours.h"

namespace muster::collectives {

// All-reduce, all-gather, reduce-scatter and parts go between the neighbours, with the same results as `gloo`'s bit for
// bit; everything else goes through `gloo`, which shares the status. A Work that is dropped before it is done ends
// the group, for nobody would know when its tensors are read no more.
std::unique_ptr<Group> MakeDirect(std::unique_ptr<Group> gloo, std::unique_ptr<Neighbours> neighbours,
                                  std::shared_ptr<GroupStatus> status);

}  // namespace muster::collectives
